"""A gVisor checkout's tables against this model's own: rows that one side lacks, and rows that say different things."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

from nvproxy_model import abi, versions
from nvproxy_model.caps import from_string
from nvproxy_model.drivers.gvisor.checkout import Nvproxy
from nvproxy_model.drivers.gvisor.layouts import Difference, Kind, compare_layouts
from nvproxy_model.drivers.gvisor.parity import SCALARS, Gathered, Parity, VersionReport, parity
from nvproxy_model.drivers.gvisor.rows import Entry
from nvproxy_model.fields import CStruct
from nvproxy_model.followed import STRUCTS, described
from nvproxy_model.layout import Layout
from nvproxy_model.rules import TABLES, Rule, active
from nvproxy_model.versions import DriverVersion

__all__ = ["compare_with_model"]


_VERSION_GO = "pkg/sentry/devices/nvproxy/version.go:1"

_REFUSING = {"rmNumaInfo"}
"""Handlers that answer EINVAL whatever the call (pkg/sentry/devices/nvproxy/frontend.go)."""


@functools.cache
def _slips() -> Mapping[tuple[str, int, str], str]:
    """Rows of gVisor's that the driver of that release contradicts, and why; the model follows the driver."""
    import yaml

    text = Path(abi.__file__).with_name("known_deviations.yaml").read_text()
    entries = yaml.safe_load(text)["slips"]
    return {(entry["table"], entry["number"], entry["version"]): entry["why"] for entry in entries}


def compare_with_model(nvproxy: Nvproxy) -> Parity:
    """Every row of every version that both know. ``base`` of a finding is gVisor's side, ``next`` the model's."""
    tree = versions.load()
    gathered = Gathered()
    reports = []
    for version in nvproxy.versions.values():
        node = tree.get(version.version)
        rows = sum(map(len, version.tables.values()))
        compared = 0
        if node is not None:
            for table in TABLES:
                compared += _compare_table(
                    nvproxy, version.tables[table], node, active(abi.TABLES[table], node), gathered
                )
        elif version.registered:
            unknown = Difference("version-unknown", "driver_versions.yaml has no such release", version.version, None)
            gathered.add(version.version, version.version, unknown, _VERSION_GO)
        reason = "" if node is not None else "the model does not know this release"
        reports.append(VersionReport(version.version, version.supported, version.registered, reason, rows, compared))
    return parity(nvproxy, reports, gathered)


def _compare_table(
    nvproxy: Nvproxy, theirs: Mapping[int, Entry], node: DriverVersion, ours: Mapping[int, Rule], gathered: Gathered
) -> int:
    """Compares one table at one release; returns how many structs both sides lay out."""
    compared = 0
    for number in sorted(theirs.keys() | ours.keys()):
        entry, rule = theirs.get(number), ours.get(number)
        if entry is not None and rule is not None:
            name, where = f"{entry.table} {entry.symbol}", entry.where
            differences = [*_compare_row(entry, rule, node), *_compare_struct(nvproxy, entry, rule, node)]
            compared += isinstance(rule.params_at(node), CStruct)
        elif entry is not None:
            name, where = f"{entry.table} {entry.symbol}", entry.where
            contradicted = _slips().get((entry.table, number, node.name))
            kind: Kind = "model-lacks" if contradicted is None else "contradicted"
            differences = [Difference(kind, contradicted or f"{number:#x} {entry.handler}", number, None)]
        else:
            assert rule is not None
            name, where = f"{rule.table} {rule.name}", _VERSION_GO
            kind = "model-only" if rule.rejected or rule.opt_in else "gvisor-lacks"
            if rule.later is not None:
                kind = "newer"
            how = "refused by a rule" if rule.rejected else "opt-in" if rule.opt_in else f"admitted to {rule.caps}"
            if rule.later is not None:
                how += f", {described(rule.later)}"
            differences = [Difference(kind, f"{number:#x} {how}", None, number)]
        for difference in differences:
            gathered.add(node.name, name, difference, where)
    return compared


def _compare_row(entry: Entry, rule: Rule, node: DriverVersion) -> Iterator[Difference]:
    if rule.rejected:
        if entry.handler in _REFUSING:
            return
        yield Difference("model-refuses", f"{entry.number:#x}: {rule.why}", entry.handler, None)
        return
    if entry.caps is not None and from_string(",".join(entry.caps))[0] != rule.caps:
        yield Difference("caps-differ", "capabilities", ",".join(entry.caps), str(rule.caps))
    if entry.structs is not None:
        names = [struct.name for struct in entry.structs]
        ours = rule.struct_at(node)
        if not names and ours in SCALARS:  # an array of numbers, which gVisor passes on as bytes
            return
        if (ours is None) != (not names) or (ours is not None and ours not in names):
            yield Difference("struct-differs", "parameters", ",".join(names) or None, ours)


def _compare_struct(nvproxy: Nvproxy, entry: Entry, rule: Rule, node: DriverVersion) -> Iterator[Difference]:
    params = rule.params_at(node)
    unread = {item.what for item in nvproxy.unread}
    for struct in entry.structs or ():
        if struct.go_type is None or struct.go_type in unread or struct.name != rule.struct_at(node):
            continue
        if isinstance(params, CStruct):
            for found in _compare_layouts(nvproxy.nvgpu.layout(struct.go_type), params):
                detail = f"{struct.name} ({struct.go_type}): {found.detail} ({found.kind})"
                newer = STRUCTS.get(struct.name)
                if newer is not None:
                    yield Difference("newer", f"{detail}, {described(newer)}", found.base, found.next)
                else:
                    yield Difference("layout-differs", detail, found.base, found.next)


@functools.lru_cache(maxsize=4096)
def _compare_layouts(go: Layout, params: CStruct) -> tuple[Difference, ...]:
    """Variants of a struct are one object for every release that shares them."""
    return tuple(found for found in compare_layouts(go, params.layout()) if found.kind != "name-differs")
