"""The subcommands on a group of processes: inventory, preflight, checkpoint, restore, cycle."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from . import checkpoint_driver
from .checkpoint_driver import Checkpointer, NoDriver
from .directory import directory
from .output import Failure, emit, reason, say

EXAMPLES = {
    "inventory": [("cuinterpose inventory --all", "what each tracked process holds, and shares with whom")],
    "preflight": [
        ("cuinterpose preflight 4711 4712", "whether a checkpoint of the two would succeed, and what stands in the way")
    ],
    "checkpoint": [("cuinterpose checkpoint --all", "saves their GPU memory to theirs, and leaves none on the GPU")],
    "restore": [("cuinterpose restore --all", "the way back, from whatever step a coordinator left them in")],
    "cycle": [("cuinterpose cycle --all --json", "both at once, with the time of every step")],
}


class Add(Protocol):
    """How a subcommand is added to the command."""

    def __call__(
        self, name: str, summary: str, description: str, usage: str | None = None
    ) -> argparse.ArgumentParser: ...


def _where(arguments: argparse.Namespace) -> Path:
    try:
        return (Path(arguments.directory) if arguments.directory else directory()).absolute()
    except OSError as error:
        raise Failure(f"endpoints: {error}; name the directory with --directory") from None


def _pids(arguments: argparse.Namespace) -> list[int] | None:
    if arguments.all == bool(arguments.pids):
        raise Failure(f"{arguments.name}: name processes, or say --all")
    return None if arguments.all else arguments.pids


@contextmanager
def _errors(where: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        raise Failure(f"{where}: another coordinator is at work on these processes") from None
    except OSError as error:
        raise Failure(f"endpoints: {reason(error)}") from None


def _driver(arguments: argparse.Namespace) -> Checkpointer:
    try:
        return checkpoint_driver.find(arguments.libcuda, arguments.cuda_checkpoint)
    except NoDriver as error:
        raise Failure(str(error)) from None


def _inventory(arguments: argparse.Namespace) -> int:
    from . import inventory

    where = _where(arguments)
    with _errors(where):
        group = inventory.collect(where, _pids(arguments), arguments.timeout)
    if arguments.json:
        emit(inventory.as_json(group))
    else:
        for line in inventory.lines(group):
            say(line)
    return 0 if all(member.tracked for member in group.members) else 2


def _preflight(arguments: argparse.Namespace) -> int:
    from . import inventory, preflight

    where, why = _where(arguments), ""
    driver: Checkpointer | None = None
    try:
        driver = checkpoint_driver.find(arguments.libcuda, arguments.cuda_checkpoint)
    except NoDriver as error:
        why = str(error)
    with _errors(where):
        group = inventory.collect(where, _pids(arguments), arguments.timeout)
    answer = preflight.judge(group, driver, why, accept=_accepted(arguments))
    if arguments.json:
        emit(answer.as_json())
    else:
        for line in answer.lines():
            say(line)
    return answer.status


def _act(command: str, arguments: argparse.Namespace) -> int:
    from . import checkpoint

    where, pids = _where(arguments), _pids(arguments)
    limits = checkpoint.Limits(
        quiesce=arguments.quiesce,
        lock=arguments.lock,
        driver=arguments.driver_limit,
        importing=arguments.importing,
        patience=arguments.patience,
    )
    driver = _driver(arguments)
    with _errors(where):
        if command == "restore":
            report = checkpoint.restore(where, pids, driver, limits)
        else:
            act = checkpoint.checkpoint if command == "checkpoint" else checkpoint.cycle
            report = act(where, pids, driver, limits, accept=_accepted(arguments))
    if arguments.json:
        emit(report.as_json())
    else:
        for line in report.lines(verbose=arguments.verbose):
            say(line)
    return report.status


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"{text}: not within 0 and 86400 seconds")
    return value


def _group(parser: argparse.ArgumentParser, schema: str) -> None:
    parser.add_argument("pids", nargs="*", type=int, metavar="PID", help="the processes of the group")
    parser.add_argument("--all", action="store_true", help="every process with an endpoint in the directory")
    parser.add_argument(
        "--directory", metavar="DIR", help="default: $CUINTERPOSE_DIR, else $XDG_RUNTIME_DIR/cuinterpose"
    )
    parser.add_argument("--json", action="store_true", help=f"schema {schema}")


def _with_driver(parser: argparse.ArgumentParser) -> None:
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--libcuda", metavar="PATH", help="the driver to ask; default: libcuda.so.1, then cuda-checkpoint"
    )
    either.add_argument("--cuda-checkpoint", metavar="PATH", help="the driver's command to use in its place")


_ASSUME_IDLE = (
    "the programs launch nothing meanwhile: do not refuse those whose launches pass the shim by. A launch that reads "
    "what was let go of would fail, and its context with it"
)
_ACCEPT = (
    "go on in spite of an obstacle, named by its code in preflight's --json, as ipc-event-given; may be given again"
)
_USAGE = "cuinterpose {} [option ...] (--all | PID ...)"
_LIMITS = (
    ("--quiesce", "quiesce", 10.0, "for calls under way and the device to end"),
    ("--lock", "lock", 10.0, "for the driver to lock a process"),
    ("--driver-limit", "driver_limit", 600.0, "for the driver to checkpoint or restore a process"),
    ("--importing", "importing", 30.0, "for imports to come back"),
    ("--patience", "patience", 30.0, "that a process waits for a step before it puts everything back by itself"),
)


def _with_obstacles(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--assume-idle", action="store_true", help=_ASSUME_IDLE)
    parser.add_argument("--accept", action="append", default=[], metavar="CODE", help=_ACCEPT)


def _accepted(arguments: argparse.Namespace) -> list[str]:
    from . import preflight

    return [*arguments.accept, *(preflight.IDLE if arguments.assume_idle else ())]


def register(add: Add) -> None:
    """Adds the subcommands."""
    inventory = add(
        "inventory",
        "what the processes of a group hold and share",
        "Asks each over its endpoint, changes nothing. Exit status: 0 each was asked, 2 one could not be, or is not "
        "tracked.",
        usage=_USAGE.format("inventory"),
    )
    _group(inventory, "cuinterpose.inventory/1")
    inventory.add_argument(
        "--timeout", type=_seconds, default=5.0, metavar="SECONDS", help="for each to answer (%(default)s)"
    )
    inventory.set_defaults(func=_inventory)

    preflight = add(
        "preflight",
        "whether a checkpoint of a group would succeed",
        "Changes nothing. Exit status: 0 it would, 1 it would not, and the answer says what stands in the way, 2 could "
        "not tell.",
        usage=_USAGE.format("preflight"),
    )
    _group(preflight, "cuinterpose.preflight/1")
    _with_driver(preflight)
    _with_obstacles(preflight)
    preflight.add_argument(
        "--timeout", type=_seconds, default=5.0, metavar="SECONDS", help="for each to answer (%(default)s)"
    )
    preflight.set_defaults(func=_preflight)

    words: dict[str, tuple[str, str]] = {
        "checkpoint": (
            "checkpoint a group of processes that share GPU memory",
            "Runs preflight first. Until the driver's own checkpoint any failure puts everything back and the programs go "
            "on. Exit status: 0 all are checkpointed, 1 refused, put back or lost, 2 could not tell.",
        ),
        "restore": (
            "restore a group, and what its processes share",
            "From whatever step a coordinator left it in; processes that run are left alone. Exit status: 0 all is back, "
            "1 something is lost and named, 2 could not tell.",
        ),
        "cycle": (
            "checkpoint and restore a group at once",
            "The steps of `checkpoint`, then those of `restore`. Exit status: 0 all is back, 1 refused, put back or lost, "
            "2 could not tell.",
        ),
    }
    for name, (summary, description) in words.items():
        parser = add(name, summary, description, usage=_USAGE.format(name))
        _group(parser, "cuinterpose.checkpoint/1")
        _with_driver(parser)
        if name != "restore":
            _with_obstacles(parser)
        for option, dest, default, words_of in _LIMITS:
            parser.add_argument(
                option, dest=dest, type=_seconds, default=default, metavar="SECONDS", help=f"{words_of} (%(default)s)"
            )
        parser.add_argument("--verbose", action="store_true", help="every step, with its time")
        parser.set_defaults(func=_bound(name))


def _bound(command: str) -> Callable[[argparse.Namespace], int]:
    return lambda arguments: _act(command, arguments)
