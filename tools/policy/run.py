"""``nvproxy-policy run``: a program under nvproxy's rules, without gVisor.

The program begins as soon as nothing can be wrong with what was asked. The rules are loaded while it starts: its first call waits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from nvproxy_model import live, versions
from nvproxy_model.errors import NvproxyError
from nvproxy_model.printable import printable
from nvproxy_model.tools.command import fail
from nvproxy_model.tools.output import versions as produced_by
from nvproxy_model.tools.output import warn
from nvproxy_model.tools.policy.shared import caps_of, node_of
from nvproxy_model.trace.judge.notes import DONE_WITHOUT, NOTES
from nvproxy_model.versions import DriverVersion

if TYPE_CHECKING:
    from nvproxy_model.fields import CStruct
    from nvproxy_model.live import Recorder, Report
    from nvproxy_model.policy.policy import Windows

__all__ = ["run"]

PROGRAM: Final = "nvproxy-policy"
FAILED, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127
"""Our own exit statuses, as env(1) has them; every other one is the program's."""
_TABLES: Final[Mapping[str, str]] = {"fe": "frontend"}
"""A trace's name of a kind of call -> its table's, where the two differ."""


def run(args: argparse.Namespace) -> int:
    """Run the program; its exit status, or one of ours."""
    loaded = versions.host()
    if loaded is None:
        fail("this machine has no NVIDIA driver loaded (/proc/driver/nvidia/version)")
    machine = node_of(loaded, allow_unsupported=True)
    host = machine.name
    node = machine if args.driver is None else node_of(args.driver, allow_unsupported=args.allow_unsupported)
    caps, windows = caps_of(args.caps), _windows(args.windows)
    if node is not machine and not args.observe:
        _same_layouts(node, machine)
    for path in (args.record, args.report):
        if path is not None and not path.absolute().parent.is_dir():
            fail(f"{path}: {path.absolute().parent} is not a directory")
    try:
        with _recorder(args, host) as recorder:
            tree = live.Tree(args.cmd)
            tree.start()
            from nvproxy_model.policy.policy import Policy

            policy = Policy.for_driver(node.name, caps, profile=args.profile, allow_unsupported=True, windows=windows)
            broker = live.Broker(
                policy,
                observe=args.observe,
                expose=args.expose,
                harmless={(_TABLES.get(kind, kind), what) for kind, what in DONE_WITHOUT},
                fail_fast=args.fail_fast,
                verify=args.verify,
                recorder=recorder,
                say=lambda line: warn(PROGRAM, line),
                refused=(lambda line: warn(PROGRAM, f"refused: {line}")) if args.verbose else None,
            )
            report = broker.answer(tree)
    except live.NotifyError as error:
        fail(f"the program cannot be watched: {error}")
    except live.StartError as error:
        warn(PROGRAM, str(error))
        return NOT_FOUND if error.not_found else NOT_EXECUTABLE
    _name(report, host)
    _show(report, args)
    if broker.failed_fast is not None:
        warn(PROGRAM, f"ended at the first refusal: {broker.failed_fast}")
        return 1
    missed = any(not refusal.harmless for refusal in report.refused)
    return 1 if args.strict and missed and not report.status else report.status


def _windows(text: str) -> Windows | list[int]:
    if text == "allow":
        return "allow"
    if text == "deny":
        return "deny"
    try:
        return [int(number, 0) for number in text.split(",")]
    except ValueError:
        fail(f"--windows {text}: want allow, deny or numbers separated by commas")


def _same_layouts(node: DriverVersion, machine: DriverVersion) -> None:
    """End the command where the machine's driver lays out otherwise what both releases know."""
    changed = _differing(node, machine)
    if changed:
        some = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        fail(
            f"the machine's driver is {machine}, and {node} lays out {some} otherwise: its calls cannot be performed "
            f"as {node}'s. --observe asks without performing"
        )


def _differing(one: DriverVersion, other: DriverVersion) -> list[str]:
    """The structs that two releases give the same call in different layouts."""
    from nvproxy_model.abi import TABLES
    from nvproxy_model.fields import CStruct
    from nvproxy_model.rules import active

    found = set()
    for rows in TABLES.values():
        others = active(rows, other)
        for number, rule in active(rows, one).items():
            if number in others:
                of, against = rule.params_at(one), others[number].params_at(other)
                if isinstance(of, CStruct) and isinstance(against, CStruct) and _layout(of) != _layout(against):
                    found.add(of.ctype or rule.name)
    return sorted(found)


def _layout(of: CStruct) -> list[tuple[str, int, int]]:
    return [(path, offset, member.size) for path, offset, member in of.walk()]


@contextlib.contextmanager
def _recorder(args: argparse.Namespace, host: str) -> Iterator[Recorder | None]:
    """The trace. When it cannot be finished that is said, and changes nothing else."""
    if args.record is None:
        yield None
        return
    from nvproxy_model.trace.decode.catalog import Catalog
    from nvproxy_model.trace.format import Header, writing
    from nvproxy_model.trace.record import table
    from nvproxy_model.trace.record.brokered import Brokered

    entries = table.entries(Catalog(host))
    head = Header(driver=host, arch=platform.machine(), recorder="broker", command=tuple(args.cmd))
    file = writing(args.record, head)
    try:
        writer = file.__enter__()
    except OSError as error:
        fail(f"{args.record}: {error.strerror or error}")
    recorder = Brokered(writer, entries)
    try:
        yield recorder
    finally:
        writer.lose(recorder.problems)
        try:
            file.__exit__(None, None, None)
        except OSError as error:
            warn(PROGRAM, f"{args.record}: {error.strerror or error}: the trace is not complete")


def _name(report: Report, host: str) -> None:
    """NVIDIA's names for what no row has, and what is known of single refusals."""
    if any(refusal.name is None for refusal in report.tally.refusals.values()):
        from nvproxy_model.trace.decode.catalog import Catalog

        with contextlib.suppress(NvproxyError, OSError):
            catalog = Catalog(host)
            kinds = {table: kind for kind, table in _TABLES.items()}
            report.names = lambda table, number: catalog.name(kinds.get(table, table), number)
    report.notes = {(_TABLES.get(kind, kind), number): note for (kind, number), note in NOTES.items()}


def _show(report: Report, args: argparse.Namespace) -> None:
    if not args.quiet:
        for line in report.lines():
            print(f"{PROGRAM}: {printable(line)}", file=sys.stderr)
    if args.report is None:
        return
    document = report.as_json()
    text = (
        report.markdown()
        if args.report.suffix == ".md"
        else json.dumps({"schema": document["schema"], "produced_by": produced_by(), **document}, indent=2) + "\n"
    )
    try:
        args.report.write_text(text, "utf-8", "surrogateescape")
    except OSError as error:
        warn(PROGRAM, f"{args.report}: {error.strerror or error}: no report")
