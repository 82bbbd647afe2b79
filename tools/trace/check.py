"""nvproxy-trace check: does a policy admit this trace, and what would it take."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from nvproxy_model import versions
from nvproxy_model.policy.policy import Policy
from nvproxy_model.tools.command import UNKNOWN, fail
from nvproxy_model.tools.output import bold, print_json, progress
from nvproxy_model.tools.trace.shared import ADMITTED, DIFFERENT, choose_driver, problems
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.format import printable
from nvproxy_model.trace.judge.check import GROUPS, MISSING, Check, Row, every_release, minimal_caps
from nvproxy_model.trace.reader import Reader

SCHEMA = "nvproxy-trace/check/1"


def run(args: argparse.Namespace) -> int:
    """Judge the trace."""
    driver = choose_driver(args.file, args.driver)
    catalog = Catalog(driver)
    try:
        policy = Policy.for_driver(catalog.node.name, args.caps, profile=args.profile, allow_unsupported=True)
    except ValueError as error:
        fail(f"--caps: {error}")
    check = Check(policy, catalog, drivers=every_release() if args.all_drivers else ())
    reader = Reader(args.file)
    check.feed(progress(reader))
    if args.format == "json":
        print_json(document(args.file, check, reader))
    else:
        _text(args, check)
    problems(args.file, reader.problems)
    if check.verdict == "refused":
        return DIFFERENT
    return ADMITTED if check.verdict == "admitted" and reader.complete else UNKNOWN


def document(name: str, check: Check, reader: Reader) -> dict[str, Any]:
    """The answer as JSON."""
    caps, never = minimal_caps(check)
    releases = versions.load()
    return {
        "schema": SCHEMA,
        "file": name,
        "driver": check.catalog.driver,
        "rules_of": check.catalog.node.name,
        "notes": check.catalog.notes,
        "capabilities": list(check.policy.caps.names),
        "profile": check.policy.profile,
        "verdict": check.verdict,
        "groups": check.counts(),
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
        "complete": reader.complete,
        "problems": reader.problems.count,
    }


def _line(row: Row, indent: str = "  ") -> str:
    what = (
        f"open {printable(row.device or '')}" if row.kind == "open" else f"{row.kind} {row.number:#x} {row.name or '?'}"
    )
    hosts = ", ".join(
        answer if count == row.count else f"{answer} x{count}" for answer, count in sorted(row.host.items())
    )
    needs = f", needs {' or '.join(row.caps)}" if row.caps else ""
    return f"{indent}{what}  x{row.count}, first at line {row.first}, host {hosts or '?'}{needs}"


def _text(args: argparse.Namespace, check: Check) -> None:
    for note in check.catalog.notes:
        print(f"# {note}")
    if not check.policy.version.supported:
        print(f"# nvproxy knows {check.policy.version} and does not support it: a sandbox there needs its opt-in")
    counts = check.counts()
    shown = [group for group in GROUPS if args.all or group not in ("admitted", "window")]
    for group in shown:
        rows = [row for row in check.sorted_rows() if row.group == group]
        if not rows:
            continue
        mark = "" if group in MISSING or group == "untold" else " (not counted as missing)"
        print(bold(f"{group}: {GROUPS[group]}{mark if group not in ('admitted', 'window') else ''}"))
        for row in rows:
            print(_line(row))
            if group in ("argument", "untold"):
                print(f"      {printable(row.reason)}")
            if row.note:
                print(f"      {row.note}")
            for inner in row.under:
                print(_line(inner, "      "))
    if check.supplied:
        print(
            f"{check.supplied} descriptors that the driver took came from where the trace does not look "
            f"(another process): taken as live"
        )
    if check.overflow:
        print(f"{check.overflow} calls of more distinct kinds than are counted: not judged")
    caps, never = minimal_caps(check)
    told = str(caps) if caps else "none"
    rest = f"; {len(never)} distinct calls that none does: see above" if never else ""
    print(f"smallest capability set that admits what any does: {told}{rest}")
    if check.drivers:
        _drivers(check)
    total = sum(group["calls"] for group in counts.values())
    missing = sum(counts[group]["distinct"] for group in MISSING)
    print(
        bold(
            f"{check.policy.version} {check.policy.caps or 'no capability'}: {check.verdict}, {missing} "
            f"distinct calls missing of {total} calls judged"
        )
    )


def _drivers(check: Check) -> None:
    """Releases with one answer stand together."""
    print(
        bold("releases (the first call of each number and size is judged; arguments are those of this trace's driver):")
    )
    alike: dict[tuple[tuple[str, int], ...], list[str]] = {}
    releases = versions.load()
    for name, refused in check.drivers.items():
        alike.setdefault(tuple(sorted(refused)), []).append(name if releases[name].supported else f"{name}*")
    for numbers, names in alike.items():
        answer = f"refuse {len(numbers)}" if numbers else "admit it"
        print(
            textwrap.fill(
                f"{len(names)} {answer}: {', '.join(names)}", 118, initial_indent="  ", subsequent_indent="    "
            )
        )
        if numbers:
            listed = ", ".join(f"{kind} {number:#x}" for kind, number in numbers)
            print(textwrap.fill(listed, 118, initial_indent="      ", subsequent_indent="      "))
    print("  * known to nvproxy, not supported by it")
