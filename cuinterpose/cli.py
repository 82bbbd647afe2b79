"""The command cuinterpose. Exit status: 0 yes (or the program's own, of run), 1 no, 2 could not tell."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from . import group_commands, launcher
from .launcher import LaunchError
from .output import Failure, emit, reason, say

# (command, what it answers), by subcommand
EXAMPLES = {
    "run": [
        ("cuinterpose run -- python train.py", "runs a program under the shim"),
        (
            "cuinterpose run --check -- ./prog",
            "the same, after a look at whether the shim is on, and what it alone defines",
        ),
    ],
    "doctor": [("cuinterpose doctor 4711", "what of a running process is covered, and what leads past the shim")],
    "ticket": [("cuinterpose ticket show 4711 23", "whether its descriptor 23 is a ticket, and whose")],
    "conform": [
        ("cuinterpose conform --libcuda libcuda.so.1", "whether the shim keeps the resolvers' contract there"),
        ("cuinterpose conform --shim my.so --require all", "another shim, which must cover every route"),
    ],
    "peers": [("cuinterpose peers --json", "which endpoints are alive")],
    **group_commands.EXAMPLES,
}


class _Help(argparse.HelpFormatter):
    """Paragraphs are filled to the terminal's width; lines that begin with two blanks stay, or go on below.

    A name with a hyphen is not broken.
    """

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = []
        for number, paragraph in enumerate(text.split("\n\n")):
            if not paragraph.startswith("  "):
                paragraphs += [""] if number else []
                paragraphs.append(textwrap.fill(" ".join(paragraph.split()), width, break_on_hyphens=False))
                continue
            for line in paragraph.splitlines():
                command, _, answer = line.strip().partition("  ")
                shown = f"  {line.strip()}"
                if len(shown) > width:
                    shown = f"  {command}\n" + textwrap.fill(
                        answer.strip(), width, initial_indent="      ", subsequent_indent="      "
                    )
                paragraphs.append(shown)
        return "\n".join(paragraphs)


class _Parser(argparse.ArgumentParser):
    """argparse whose mistakes are one line."""

    def error(self, message: str) -> NoReturn:
        raise Failure(f"{message} (see {self.prog} --help)")


def _examples(*names: str) -> str:
    pairs = [pair for name in names for pair in EXAMPLES[name]]
    width = max(len(command) for command, _ in pairs)
    return "examples:\n\n" + "\n".join(f"  {command:{width}}  {answer}" for command, answer in pairs)


def _run(arguments: argparse.Namespace) -> int:
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise Failure("run: no command; write it after --")
    launcher.run(command, check=arguments.check, track=arguments.track)
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
    except OSError as error:
        raise Failure(f"process {arguments.pid}: {error.strerror or error}") from None
    if arguments.json:
        emit(found.as_json())
    else:
        for line in found.lines(verbose=arguments.verbose):
            say(line)
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
        emit(
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
        say(f"process {arguments.pid} descriptor {arguments.fd}: {found.verdict.value} ({found.why})")
        for name, value in {"seals": " ".join(seals) or "none", **fields}.items():
            say(f"  {name:11} {value}")
    return 0 if found.ticket else 1


def _conform(arguments: argparse.Namespace) -> int:
    from . import conform

    libcuda = arguments.libcuda or os.environ.get("NVPROXY_LIBCUDA") or "libcuda.so.1"
    required = [] if arguments.require == ["all"] else arguments.require
    shim = launcher.shim_path(arguments.shim)
    try:
        found = conform.compare(libcuda, shim, arguments.libcudart, required)
    except conform.ConformError as error:
        raise Failure(str(error)) from None
    if arguments.require == ["all"]:
        found = replace(found, required=tuple(found.routes))
    if arguments.json:
        emit(found.as_json())
    else:
        for line in found.lines(verbose=arguments.verbose):
            say(line)
    return {"conforms": 0, "does not conform": 1, "cannot tell": 2}[found.verdict]


def _routes(text: str) -> list[str]:
    from .conform import ROUTES

    routes = text.split(",")
    if routes != ["all"] and (unknown := [route for route in routes if route not in ROUTES]):
        raise argparse.ArgumentTypeError(f"no route {unknown[0]!r}; `all`, or of {', '.join(ROUTES)}")
    return routes


def _peers(arguments: argparse.Namespace) -> int:
    from . import coordinator
    from .directory import directory

    try:
        where = Path(arguments.directory) if arguments.directory else directory()
    except OSError as error:
        raise Failure(f"endpoints: {reason(error)}; name the directory") from None
    try:
        members = coordinator.discover(where.absolute(), arguments.timeout)
    except OSError as error:
        raise Failure(f"endpoints: {reason(error)}") from None
    if arguments.json:
        emit(
            {
                "schema": "cuinterpose.peers/1",
                "directory": str(where),
                "members": [vars(member) for member in members],
            }
        )
    else:
        say(f"{where}: {sum(member.state == 'alive' for member in members)} alive of {len(members)}")
        for member in members:
            pid = "-" if member.pid is None else member.pid
            say(f"  {member.participant}  {member.state:8}  pid {pid}  {member.why}")
    return 0 if all(member.state == "alive" for member in members) else 1


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text}: not within 0 and 3600 seconds")
    return value


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib import metadata

        say(f"cuinterpose {metadata.version('nvproxy-model')}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    root = _Parser(
        prog="cuinterpose",
        description="A CUDA shim that forwards everything and changes nothing: run under it, and look at what it covers.",
        epilog=_examples(*EXAMPLES) + "\n\nexit status: 0 yes, 1 no, 2 could not tell; of run, the program's own",
        formatter_class=_Help,
    )
    root.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    root.set_defaults(func=lambda _: _no_command(root))
    commands = root.add_subparsers(dest="name", metavar="COMMAND")

    def add(name: str, summary: str, description: str, usage: str | None = None) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}. {description}",
            epilog=_examples(name),
            formatter_class=_Help,
            usage=usage,
        )

    run = add(
        "run",
        "run a command under the shim",
        "It replaces this process, so the exit status is the command's own. What ld.so would run without the shim is "
        "refused beforehand, with the reason: static and set-user-ID programs, another machine, a path that it splits.",
        usage="cuinterpose run [--check] [--track] -- COMMAND...",
    )
    run.add_argument(
        "--check",
        action="store_true",
        help="first see, in a process of its own, that the shim loads and is on; and name the references of the program "
        "and its libraries that only the shim satisfies",
    )
    run.add_argument(
        "--track",
        action="store_true",
        help="keep a ledger of its GPU memory, so that what it shares survives a checkpoint; sets CUINTERPOSE_TRACK=1",
    )
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the command and its arguments")
    run.set_defaults(func=_run)

    doctor = add(
        "doctor",
        "which routes of a running process are covered",
        "Reads its memory and changes nothing. Exit status: 0 covered, 1 bypassed, 2 could not tell, as when the process "
        "has not loaded CUDA.",
    )
    doctor.add_argument("pid", type=int, metavar="PID", help="a process that you may trace")
    doctor.add_argument("--verbose", action="store_true", help="show covered slots too, and all that could not be read")
    doctor.add_argument("--json", action="store_true", help="schema cuinterpose.doctor/1")
    doctor.set_defaults(func=_doctor)

    ticket = add("ticket", "look at a ticket", "Tickets are sealed memfds that stand for shared GPU memory.")
    ticket.set_defaults(func=lambda _: _no_command(ticket))
    show = ticket.add_subparsers(dest="what", metavar="COMMAND").add_parser(
        "show",
        help="what a descriptor of a process is",
        description="What a descriptor of a process is. Exit status: 0 a ticket, 1 not one, 2 could not tell.",
        epilog=_examples("ticket"),
        formatter_class=_Help,
    )
    show.add_argument("pid", type=int, metavar="PID", help="a process that you may trace")
    show.add_argument("fd", type=int, metavar="FD", help="the number of its descriptor")
    show.add_argument("--json", action="store_true", help="schema cuinterpose.ticket/1")
    show.set_defaults(func=_ticket_show)

    conform = add(
        "conform",
        "whether a shim keeps the resolvers' contract",
        "One probe asks every look-up and every resolver for every name, with the shim and without, and compares the "
        "answers. No GPU is needed, and no function that an answer names is called. Exit status: 0 conforms, 1 does not, 2 "
        "could not tell, as when a runtime refuses every question.",
    )
    conform.add_argument("--libcuda", metavar="PATH", help="default: $NVPROXY_LIBCUDA, else libcuda.so.1")
    conform.add_argument("--libcudart", metavar="PATH", help="a runtime whose resolvers are asked too")
    conform.add_argument("--shim", metavar="PATH", help="default: $CUINTERPOSE_SHIM, else this package's")
    conform.add_argument(
        "--require",
        type=_routes,
        default=[],
        metavar="ROUTES",
        help="routes on which every name must be covered, with commas between: direct, dlsym, cuGetProcAddress, "
        "cuGetProcAddress_v2, cudaGetDriverEntryPoint and its forms; or all that are asked",
    )
    conform.add_argument("--verbose", action="store_true", help="every difference")
    conform.add_argument("--json", action="store_true", help="schema cuinterpose.conform/1")
    conform.set_defaults(func=_conform)

    peers = add(
        "peers",
        "which endpoints of a directory are alive",
        "Exit status: 0 all that are there, 1 not all, 2 the directory cannot be read or trusted.",
    )
    peers.add_argument(
        "directory", nargs="?", metavar="DIR", help="default: $CUINTERPOSE_DIR, else $XDG_RUNTIME_DIR/cuinterpose"
    )
    peers.add_argument(
        "--timeout", type=_seconds, default=1.0, metavar="SECONDS", help="for each to answer (%(default)s)"
    )
    peers.add_argument("--json", action="store_true", help="schema cuinterpose.peers/1")
    peers.set_defaults(func=_peers)
    group_commands.register(add)
    return root


def _no_command(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def _main(argv: list[str] | None) -> int:
    try:
        arguments, unknown = parser().parse_known_args(argv)
        if unknown:
            command = " ".join(filter(None, ("cuinterpose", arguments.name)))
            raise Failure(f"unrecognized arguments: {' '.join(unknown)} (see {command} --help)")
        status: int = arguments.func(arguments)
        return status
    except (Failure, LaunchError) as error:
        say(f"cuinterpose: error: {error}", sys.stderr)
    except MemoryError:
        say("cuinterpose: error: not enough memory for an answer", sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 2


def main(argv: list[str] | None = None) -> int:
    """The command: runs with these arguments (without: the process's) and returns its exit status."""
    try:
        try:
            return _main(argv)
        finally:  # --help leaves by SystemExit
            if sys.stdout:
                sys.stdout.flush()
    except BrokenPipeError:
        # The reader has left: no word of it, now or when Python flushes at its end.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except OSError as error:
        say(f"cuinterpose: error: standard output: {error.strerror or error}", sys.stderr)
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2


if __name__ == "__main__":
    sys.exit(main())
