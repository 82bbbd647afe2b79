"""nvproxy-trace check: does a policy admit this trace, and what would it take."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from typing import Any, Final

from nvproxy_model import versions
from nvproxy_model.caps import Caps
from nvproxy_model.policy.policy import Policy
from nvproxy_model.printable import printable
from nvproxy_model.tools.command import fail
from nvproxy_model.tools.output import bold, print_json, progress
from nvproxy_model.tools.trace.shared import Files, many, problems
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.judge.check import Check, Row, every_release, minimal_caps
from nvproxy_model.trace.judge.groups import GROUPS, MISSING, QUIET
from nvproxy_model.trace.judge.notes import MEASURED
from nvproxy_model.trace.judge.verdict import Verdict
from nvproxy_model.trace.source import Source

SCHEMA: Final = "nvproxy-trace/check/2"


def run(args: argparse.Namespace) -> int:
    """Judge the trace."""
    with Files(args.files, args.log) as files:
        catalog = Catalog(files.driver(args.driver))
        try:
            policy = Policy.for_driver(catalog.node.name, args.caps, profile=args.profile, allow_unsupported=True)
        except ValueError as error:
            fail(f"--caps: {error}")
        source = files.open()
        check = Check(policy, catalog, drivers=every_release() if args.all_drivers else (), strict=args.strict)
        for rec in progress(source):
            check.inside = args.inside or source.header.inside
            if check.made_with is None:
                check.made_with = source.driver
            check.one(rec)
    verdict = check.verdict_on(complete=source.complete)
    if args.format == "json":
        print_json(document(files.shown, check, source, verdict))
    else:
        for line in text(check, source, verdict, everything=args.all):
            print(line)
    problems(files.shown, source.problems)
    return verdict.exit


def document(name: str, check: Check, source: Source, verdict: Verdict) -> dict[str, Any]:
    """The answer as JSON."""
    caps, never = minimal_caps(check)
    releases = versions.load()
    counts = check.counts()
    return {
        "schema": SCHEMA,
        "file": name,
        "driver": check.catalog.driver,
        "rules_of": check.catalog.node.name,
        "notes": check.catalog.notes,
        "capabilities": list(check.policy.caps.names),
        "profile": check.policy.profile,
        "recorded_inside": check.inside,
        "recorded_with": check.made_with,
        "verdict": verdict.word,
        "exit_status": verdict.exit,
        "answer": answer(check, verdict),
        "doubts": list(verdict.why),
        "refused_kinds": sum(counts[group]["distinct"] for group in MISSING),
        "harmless_kinds": counts["harmless"]["distinct"],
        "mig": check.mig,
        "refused_by": check.refusals(),
        "groups": counts,
        "calls": [row.as_json() for row in check.sorted_rows()],
        "minimal_capabilities": None if caps is None else list(caps.names),
        "no_capability_admits": [{"kind": r.kind, "number": r.number, "device": r.device} for r in never],
        "supplied_descriptors": check.supplied,
        "drivers": [
            {
                "version": name,
                "supported": releases[name].supported,
                "admits": not refused,
                "refused": [{"kind": k, "number": n, "reason": why} for (k, n), why in sorted(refused.items())],
            }
            for name, refused in check.drivers.items()
        ],
        "complete": source.complete,
        "problems": source.problems.count,
    }


def answer(check: Check, verdict: Verdict) -> str:
    """The verdict in one sentence, with what to do."""
    counts = {group: count["distinct"] for group, count in check.counts().items()}
    missing = sum(counts[group] for group in MISSING)
    harmless = counts["harmless"]
    calls = sum(count["calls"] for group, count in check.counts().items() if group not in ("foreign", "cannot-tell"))
    where = f"{check.policy.version} with {check.policy.caps or 'no capability'}"
    if verdict.word == "admitted":
        if harmless:
            return f"works, {many(harmless, 'harmless refusal')}: {many(calls, 'call')} judged, {where}"
        return f"admitted: {many(calls, 'call')} judged, {where}"
    if verdict.word == "cannot tell":
        return f"cannot tell: {verdict.why[0]} ({where})"
    caps, never = minimal_caps(check)
    parts = [f"refused: {many(missing, 'kind of call', 'kinds of calls')}, {where}"]
    if counts["capability"] and caps is not None:
        parts.append(f"run it with {caps}")
    always = len(never) + harmless
    if always:
        known = "" if not harmless else ", all known as harmless" if not never else f", {harmless} known as harmless"
        parts.append(f"{always} {'is' if always == 1 else 'are'} refused under every set{known}")
    return "; ".join(parts)


def _advice(check: Check, verdict: Verdict) -> Iterator[str]:
    """What to do, one sentence a line."""
    rows = check.sorted_rows()
    caps, _ = minimal_caps(check)
    groups = {row.group for row in rows}
    if "capability" in groups and caps is not None:
        yield f"Give the sandbox {caps}: NVIDIA_DRIVER_CAPABILITIES, within runsc's --nvproxy-allowed-driver-capabilities."
    if "unknown" in groups:
        yield "nvproxy needs rules for the unknown numbers: nvproxy-policy explain NUMBER shows what is known about one."
    if "contradiction" in groups:
        yield "The nvproxy that wrote this log lacks rules that this model has: a newer runsc admits these calls."
    if "permission" in groups:
        yield "Look at the node's mode, the container's device cgroup and the security module, then record again."
    if verdict.why and "cannot-tell" in groups:
        yield "Record with nvproxy-trace record, or strace -v (6.11 or later): only these hold the arguments that decide."
    if check.mig and any(row.known_harmless for row in rows):
        yield f"MIG is on in this trace. Some of these refusals are harmless without it ({MEASURED}); here they count."


def _line(row: Row, indent: str = "  ") -> str:
    what = {
        "open": f"open {printable(row.device or '')}",
        "other": f"{row.name or 'request'} {row.number:#x}" + (f" on {printable(row.device)}" if row.device else ""),
    }.get(row.kind, f"{row.kind} {row.number:#x} {row.name or '?'}")

    def answers(found: dict[str, int]) -> str:
        return ", ".join(f"{got} x{count}" if len(found) > 1 else got for got, count in sorted(found.items()))

    said = [f"x{row.count}", f"first at line {row.first}"] if row.count else [f"first at line {row.first}"]
    if row.by.get("permission"):
        said.append(f"failed with {answers(row.host or row.sandbox)}")
    elif row.host:
        said.append(f"host {answers(row.host)}")
    if row.by.get("nvproxy"):
        got = {answer: count for answer, count in row.sandbox.items() if answer not in ("?", "0")}
        said.append("refused by nvproxy" + (f" with {answers(got)}" if got else ""))
    elif row.sandbox and not row.by.get("permission"):
        said.append(f"in the sandbox {answers(row.sandbox)}")
    if row.caps:
        said.append(f"needs {' or '.join(row.caps)}")
    return f"{indent}{what}  {', '.join(said)}"


def text(check: Check, source: Source, verdict: Verdict, *, everything: bool = False) -> Iterator[str]:
    """The answer, then what to do, then the evidence by group."""
    yield bold(answer(check, verdict))
    for doubt in verdict.why[1:] if verdict.word == "cannot tell" else verdict.why:
        yield f"not sure: {doubt}"
    for advice in _advice(check, verdict):
        yield from textwrap.wrap(advice, 110, initial_indent="* ", subsequent_indent="  ", break_on_hyphens=False)
    by = check.refusals()
    if by:
        names = {"nvproxy": "nvproxy", "driver": "the host's driver", "permission": "rights on a device node"}
        yield "refusals in this trace: " + ", ".join(f"{by[name]} by {names[name]}" for name in names if name in by)
    if check.made_with and check.inside:
        yield f"recorded inside a sandbox with driver {printable(check.made_with)}"
    elif check.inside:
        yield "recorded inside a sandbox"
    for note in check.catalog.notes:
        yield f"# {note}"
    if not check.policy.version.supported:
        yield f"# nvproxy knows {check.policy.version} and does not support it: a sandbox there needs its opt-in"
    for group in GROUPS:
        rows = [row for row in check.sorted_rows() if row.group == group]
        if not rows or (group in QUIET and not everything):
            continue
        yield bold(GROUPS[group] + (f" ({MEASURED})" if group == "harmless" else ""))
        for row in rows:
            yield _line(row)
            if group in ("argument", "cannot-tell", "contradiction", "permission"):
                yield f"      {printable(row.reason)}"
            if row.note:
                yield f"      {row.note}"
            for inner in row.under:
                yield _line(inner, "      ")
    if check.supplied:
        yield f"{many(check.supplied, 'descriptor')} came from another process, which this trace does not show: taken as open"
    caps, _ = minimal_caps(check)
    yield f"smallest sufficient capability set: {_set(caps)}"
    if check.drivers:
        yield from _drivers(check)


def _set(caps: Caps | None) -> str:
    return str(caps) if caps else "none"


def _drivers(check: Check) -> Iterator[str]:
    """Releases with one answer stand together."""
    yield bold(
        "releases (the first call of each number and size is judged; arguments are those of this trace's driver):"
    )
    alike: dict[tuple[tuple[str, int], ...], list[str]] = {}
    releases = versions.load()
    for name, refused in check.drivers.items():
        alike.setdefault(tuple(sorted(refused)), []).append(name if releases[name].supported else f"{name}*")
    for numbers, names in alike.items():
        said = f"refuse {len(numbers)}" if numbers else "admit it"
        yield from textwrap.wrap(
            f"{len(names)} {said}: {', '.join(names)}", 118, initial_indent="  ", subsequent_indent="    "
        )
        if numbers:
            listed = ", ".join(f"{kind} {number:#x}" for kind, number in numbers)
            yield from textwrap.wrap(
                listed, 118, initial_indent="      ", subsequent_indent="      ", break_on_hyphens=False
            )
    yield "  * known to nvproxy, not supported by it"
