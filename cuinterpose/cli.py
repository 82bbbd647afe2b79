"""The command cuinterpose. Exit status: 0 yes (or the program's own, of run), 1 no, 2 could not tell."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path

from . import launcher
from .launcher import LaunchError

_EXAMPLES = """\
examples:
  cuinterpose run --check -- python train.py     run a program under the shim, or say why it would not be
  cuinterpose doctor 4711                        what of a running process is covered, and what passes by
  cuinterpose ticket show 4711 23                is its descriptor 23 a ticket, and whose
  cuinterpose conform --libcuda libcuda.so.1     does the shim keep the resolvers' contract there
  cuinterpose peers --json                       which endpoints are alive
"""


class Failure(Exception):
    """One line for stderr; exit status 2."""


def _emit(document: dict[str, object]) -> None:
    print(json.dumps(document, indent=2))


def _run(arguments: argparse.Namespace) -> int:
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise Failure("run: no command; write it after --")
    launcher.run(command, check=arguments.check)
    return 2  # not reached: run replaces the process or raises


def _doctor(arguments: argparse.Namespace) -> int:
    from . import doctor

    try:
        found = doctor.diagnose(arguments.pid)
    except PermissionError:
        raise Failure(
            f"process {arguments.pid}: no permission to read it; needs the same user with ptrace allowed "
            "(kernel.yama.ptrace_scope), or CAP_SYS_PTRACE"
        ) from None
    except (ProcessLookupError, FileNotFoundError):
        raise Failure(f"process {arguments.pid}: no such process") from None
    if arguments.json:
        _emit(found.as_json())
    else:
        print(f"process {found.pid}: {found.verdict}")
        print(f"  shim      {found.shim or 'not loaded'}")
        for stat, value in (found.stats or {}).items():
            print(f"            {stat} {value}")
        for label, paths in (("driver", found.drivers), ("runtime", found.runtimes)):
            for path in paths or ("not loaded",):
                print(f"  {label:9} {path}")
        for reference in found.references:
            if reference.state != "covered" or arguments.verbose:
                line = f"  {reference.state:9} {reference.symbol} of {reference.object}: {reference.target}"
                print(line)
        counts = {
            state: sum(r.state == state for r in found.references)
            for state in ("covered", "bypass", "unbound", "other")
        }
        print("  slots     " + ", ".join(f"{count} {state}" for state, count in counts.items()))
        for line in found.unreadable:
            print(f"  unread    {line}")
    return {"covered": 0, "bypassed": 1, "unclear": 2}[found.verdict]


def _ticket_show(arguments: argparse.Namespace) -> int:
    from . import ticket
    from .remote_fd import descriptor_of

    try:
        fd = descriptor_of(arguments.pid, arguments.fd)
    except PermissionError:
        raise Failure(
            f"process {arguments.pid}: no permission to take its descriptors; pidfd_getfd needs the right to ptrace it "
            "(same user and kernel.yama.ptrace_scope 0, or CAP_SYS_PTRACE)"
        ) from None
    except ProcessLookupError:
        raise Failure(f"process {arguments.pid}: no such process") from None
    except OSError as error:
        raise Failure(f"process {arguments.pid}: descriptor {arguments.fd}: {error.strerror}") from None
    try:
        found = ticket.classify(fd)
    finally:
        os.close(fd)
    seals = [name for bit, name in enumerate(ticket.SEAL_NAMES) if found.seals > 0 and found.seals >> bit & 1]
    fields: dict[str, object] = {}
    if found.ticket:
        fields = {
            "kind": found.ticket.kind.name.lower(),
            "participant": found.ticket.participant.hex(),
            "resource": found.ticket.resource.hex(),
            "endpoint": found.ticket.endpoint_bytes.decode("utf-8", "backslashreplace"),
        }
    if arguments.json:
        _emit(
            {
                "schema": "cuinterpose.ticket/1",
                "pid": arguments.pid,
                "fd": arguments.fd,
                "verdict": found.verdict.value,
                "why": found.why,
                "seals": seals,
                "ticket": fields or None,
            }
        )
    else:
        print(f"process {arguments.pid} descriptor {arguments.fd}: {found.verdict.value} ({found.why})")
        for name, value in {"seals": " ".join(seals) or "none", **fields}.items():
            print(f"  {name:11} {value}")
    return 0 if found.ticket else 1


def _conform(arguments: argparse.Namespace) -> int:
    from . import conform

    libcuda = arguments.libcuda or os.environ.get("NVPROXY_LIBCUDA") or "libcuda.so.1"
    try:
        found = conform.compare(libcuda, launcher.shim_path(arguments.shim), arguments.libcudart)
    except conform.ConformError as error:
        raise Failure(str(error)) from None
    if arguments.json:
        _emit(found.as_json())
        return 0 if found.conforms else 1
    for (route, asked), plain, shimmed in found.differences[: None if arguments.verbose else 20]:
        print(f"differs  {route} {asked}: {plain} without the shim, {shimmed} with it")
    if len(found.differences) > 20 and not arguments.verbose:
        print(f"... and {len(found.differences) - 20} more (--verbose)")
    coverage = found.coverage
    routes = list(next(iter(coverage.values())))
    width = max(map(len, coverage))
    print(f"{'':{width}}  " + "  ".join(routes))
    for name, states in coverage.items():
        print(f"{name:{width}}  " + "  ".join(f"{states[route]:{len(route)}}" for route in routes).rstrip())
    verdict = "conforms" if found.conforms else "does not conform"
    why = "" if found.substituted else ": it substitutes nothing"
    print(
        f"{found.shim} {verdict} on {found.libcuda}{why}: {len(found.plain)} questions, {found.substituted} answers "
        f"substituted, {len(found.differences)} different"
    )
    return 0 if found.conforms else 1


def _peers(arguments: argparse.Namespace) -> int:
    from . import coordinator
    from .directory import directory

    try:
        where = Path(arguments.directory) if arguments.directory else directory()
        members = coordinator.discover(where.absolute(), arguments.timeout)
    except OSError as error:
        raise Failure(f"endpoints: {error}") from None
    if arguments.json:
        _emit(
            {
                "schema": "cuinterpose.peers/1",
                "directory": str(where),
                "members": [vars(member) for member in members],
            }
        )
    else:
        for member in members:
            pid = "-" if member.pid is None else member.pid
            print(f"{member.participant}  {member.state:8}  pid {pid}  {member.why}")
        print(f"{where}: {sum(member.state == 'alive' for member in members)} alive of {len(members)}")
    return 0 if all(member.state == "alive" for member in members) else 1


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text}: not within 0 and 3600 seconds")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cuinterpose",
        description="A CUDA shim that forwards everything and changes nothing: run under it, and look at what it covers.",
        epilog=_EXAMPLES + "\nexit status: 0 yes, 1 no, 2 could not tell; of run, the program's own",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="name", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a command under the shim", usage="cuinterpose run [--check] -- CMD...")
    run.add_argument(
        "--check", action="store_true", help="first see in a process of its own that the shim loads and is on"
    )
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD", help="the command and its arguments")
    run.set_defaults(func=_run)

    doctor = commands.add_parser("doctor", help="which routes of a running process are covered")
    doctor.add_argument("pid", type=int, metavar="PID")
    doctor.add_argument("--verbose", action="store_true", help="covered slots too")
    doctor.add_argument("--json", action="store_true", help="schema cuinterpose.doctor/1")
    doctor.set_defaults(func=_doctor)

    ticket = commands.add_parser("ticket", help="look at a ticket").add_subparsers(
        dest="what", required=True, metavar="show"
    )
    show = ticket.add_parser("show", help="what a descriptor of a process is")
    show.add_argument("pid", type=int, metavar="PID")
    show.add_argument("fd", type=int, metavar="FD")
    show.add_argument("--json", action="store_true", help="schema cuinterpose.ticket/1")
    show.set_defaults(func=_ticket_show)

    conform = commands.add_parser("conform", help="run the resolver-contract probe with and without a shim")
    conform.add_argument("--libcuda", metavar="PATH", help="default: $NVPROXY_LIBCUDA, else libcuda.so.1")
    conform.add_argument("--libcudart", metavar="PATH", help="a runtime whose resolvers are asked too")
    conform.add_argument("--shim", metavar="PATH", help="default: $CUINTERPOSE_SHIM, else this package's")
    conform.add_argument("--verbose", action="store_true", help="every difference")
    conform.add_argument("--json", action="store_true", help="schema cuinterpose.conform/1")
    conform.set_defaults(func=_conform)

    peers = commands.add_parser("peers", help="which endpoints of a directory are alive")
    peers.add_argument(
        "directory", nargs="?", metavar="DIR", help="default: $CUINTERPOSE_DIR, else $XDG_RUNTIME_DIR/cuinterpose"
    )
    peers.add_argument(
        "--timeout", type=_seconds, default=1.0, metavar="SECONDS", help="for each to answer (%(default)s)"
    )
    peers.add_argument("--json", action="store_true", help="schema cuinterpose.peers/1")
    peers.set_defaults(func=_peers)
    return parser


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.func(arguments)
        sys.stdout.flush()
    except (Failure, LaunchError) as error:
        print(f"cuinterpose: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader has left: no traceback, now or when Python flushes at its end.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
