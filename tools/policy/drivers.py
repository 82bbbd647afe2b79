"""``nvproxy-policy drivers``: the releases that nvproxy knows, the one for an unlisted driver, an installer's checksum."""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from nvproxy_model import versions
from nvproxy_model.drivers import facts
from nvproxy_model.rules import TABLES
from nvproxy_model.tools.command import UNKNOWN, fail
from nvproxy_model.tools.output import emit
from nvproxy_model.tools.policy.shared import ADMITTED, REFUSED
from nvproxy_model.tools.policy.table import compare
from nvproxy_model.versions import DriverVersion

__all__ = ["run"]

SCHEMA = "nvproxy-policy/drivers/1"
_COLUMNS = ("release", "parent", "supported", "checksums", "headers", "here")
FLAG = "--nvproxy-driver-version"
"""runsc's: the release to take the host's driver for (runsc/config/flags.go)."""
_NAMED = re.compile(r"NVIDIA-Linux-(x86_64|aarch64)-(\d+\.\d+(?:\.\d+)?)")
_ARCHITECTURE = {"x86_64": "x86_64", "aarch64": "arm64"}


def run(args: argparse.Namespace) -> int:
    """Answer; returns the exit status."""
    if args.installer is not None:
        if args.version is not None:
            fail("VERSION and --installer: one question at a time")
        return _installer(args)
    return _list(args) if args.version is None else _one(args)


def _list(args: argparse.Namespace) -> int:
    tree, recorded, here = versions.load(), facts.load(), versions.host()
    rows = [
        (
            node.name,
            node.parent.name if node.parent else None,
            node.supported,
            ", ".join(sorted(_checksums(node))) or None,
            "recorded" if node.name in recorded else "not recorded",
            "this machine" if node.name == here else None,
        )
        for node in tree.values()
    ]
    supported = sum(node.supported for node in tree.values())
    document = {
        "schema": SCHEMA,
        "host": here,
        "latest": tree.latest.name,
        "releases": [
            {
                "release": node.name,
                "parent": node.parent.name if node.parent else None,
                "supported": node.supported,
                "sha256": dict(node.sha256),
                "recorded": node.name in recorded,
                "here": node.name == here,
            }
            for node in tree.values()
        ],
    }
    head = [
        f"{len(tree)} releases, {supported} supported, {sum(row[4] == 'recorded' for row in rows)} with recorded headers"
    ]
    if here is None:
        head.append("this machine has no NVIDIA driver loaded")
    elif here not in tree:
        head.append(f"this machine has {here}, which is not listed: nvproxy-policy drivers {here}")
    emit(args, document, _table(head, rows), (_COLUMNS, rows))
    return ADMITTED


def _table(head: list[str], rows: list[tuple[Any, ...]]) -> Iterator[str]:
    from nvproxy_model.drivers.render.text import columns

    yield from head
    shown = [tuple({True: "yes", False: "no", None: "-"}.get(cell, cell) for cell in row) for row in rows]
    yield from columns([_COLUMNS, *shown])


def _checksums(node: DriverVersion) -> dict[str, str]:
    """Architecture -> the installer's SHA-256, leaving out entries that say that none exists."""
    return {name: value for name, value in node.sha256.items() if re.fullmatch("[0-9a-f]{64}", value)}


@dataclass(frozen=True, slots=True)
class _Equal:
    """The listed release that an unlisted one equals. ``release`` is None if it differs from its ancestor, or has none."""

    release: DriverVersion | None
    compared: bool
    why: str


def _one(args: argparse.Namespace) -> int:
    tree, name = versions.load(), args.version
    node = tree.get(name)
    equal = _Equal(node, True, "it is listed") if node is not None else _equal(name)
    stands = None if equal.release is None else _supported(equal.release)
    document = {
        "schema": SCHEMA,
        "release": name,
        "listed": node is not None,
        "supported": node is not None and node.supported,
        "equals": equal.release.name if equal.release is not None else None,
        "runs_as": stands.name if stands is not None else None,
        "flag": f"{FLAG}={stands.name}" if stands is not None and stands is not node else None,
        "why": equal.why,
    }
    emit(args, document, _said(name, node, equal, stands))
    if stands is not None:
        return ADMITTED
    return REFUSED if equal.compared else UNKNOWN


def _said(name: str, node: DriverVersion | None, equal: _Equal, stands: DriverVersion | None) -> Iterator[str]:
    if node is not None and node.supported:
        yield f"yes: nvproxy supports {name}; no flag is needed"
        return
    state = "known to nvproxy but not supported" if node is not None else "not listed by nvproxy"
    if stands is not None:
        yield f"yes, as {stands}: {name} is {state}, and {stands} has the same tables and layouts as far as this model goes"
        yield f"  to do      runsc {FLAG}={stands}"
        if node is None and equal.release is not stands:
            yield f"  by way of  {equal.release}, a listed release that nvproxy does not support"
    elif equal.release is not None:
        yield f"no: {name} is {state}, and no supported release has the same tables and layouts"
        yield f"  to do      nvproxy-policy table {equal.release} --diff {versions.load().latest} shows what differs"
    else:
        yield f"{'no' if equal.compared else 'could not tell'}: {name} is {state}; {equal.why}"
        yield f"  to do      nvproxy-differ place {name} shows what it needs"
    if node is None and equal.release is not None:
        yield f"  evidence   {equal.why}"


def _equal(name: str) -> _Equal:
    """The listed release whose model an unlisted one's headers agree with, and how that is known."""
    from nvproxy_model.drivers.compare.check import check_release, model_release

    recorded = facts.load()
    if name not in recorded:
        near = ", ".join(facts.nearest_names(name, {*versions.load(), *recorded.versions}))
        fail(
            f"{name}: neither listed nor in the recorded facts; nearest known: {near}; see nvproxy-differ place --source"
        )
    listed = model_release(name, lambda version: recorded.parent(version) if version in recorded else None)
    if listed is None:
        return _Equal(None, False, "no ancestor of it is listed")
    checked = check_release(recorded.release(name), listed)
    compared = f"{checked.structs} structs and {checked.constants} numbers compared"
    if checked.status == "same":
        return _Equal(
            versions.load()[listed], True, f"its headers agree with {listed} in what the model uses ({compared})"
        )
    count = len(checked.findings)
    return _Equal(
        None, True, f"it differs from {listed}, its nearest listed ancestor, in {count} findings ({compared})"
    )


def _supported(node: DriverVersion) -> DriverVersion | None:
    """The release itself if it is supported, else the nearest supported one with the same tables."""
    if node.supported:
        return node
    candidates = [other for other in versions.load().values() if other.supported]
    candidates.sort(
        key=lambda other: (not (other.descends_from(node.name) or node.descends_from(other.name)), other.name)
    )
    return next((other for other in candidates if _same_tables(node, other)), None)


def _same_tables(one: DriverVersion, other: DriverVersion) -> bool:
    return not any(True for table in TABLES for _ in compare(table, one, other, None))


def _installer(args: argparse.Namespace) -> int:
    path = Path(args.installer)
    with path.open("rb") as file:
        digest = _digest(file)
    known = {
        value: (node.name, architecture)
        for node in versions.load().values()
        for architecture, value in _checksums(node).items()
    }
    found = known.get(digest)
    named = _NAMED.search(path.name)
    wanted = None
    if named is not None:
        node = versions.load().get(named[2])
        wanted = None if node is None else _checksums(node).get(_ARCHITECTURE[named[1]])
    verdict = "match" if found else "mismatch" if wanted else "unknown"
    document = {
        "schema": SCHEMA,
        "file": str(path),
        "sha256": digest,
        "verdict": verdict,
        "release": found[0] if found else None,
        "architecture": found[1] if found else None,
        "wanted": wanted,
    }
    if found:
        first = f"yes: {path.name} is the installer of {found[0]} for {found[1]}, by the checksum that nvproxy pins"
    elif wanted and named:
        first = f"no: {path.name} does not have the checksum that nvproxy pins for {named[2]} ({named[1]}): {wanted}"
    else:
        first = f"could not tell: nvproxy pins no checksum for {path.name}"
    emit(args, document, [first, f"  sha256     {digest}"])
    return {"match": ADMITTED, "mismatch": REFUSED, "unknown": UNKNOWN}[verdict]


def _digest(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()
