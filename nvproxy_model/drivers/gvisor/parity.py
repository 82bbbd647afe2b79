"""A gVisor checkout's tables and Go structs against what the driver's headers say, version by version.

Every row is checked at every version of gVisor's tree that has public sources: the number under the driver's name, each
struct that the row names, its Go type field by field, and -- for structs that nvproxy forwards as bytes -- that they
hold no pointer and no fd. Nothing is sampled; a version that cannot be checked is reported as such.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from nvproxy_model.drivers.compare.carriers import Carried, simple_struct_carriers
from nvproxy_model.drivers.gvisor.checkout import Nvproxy
from nvproxy_model.drivers.gvisor.gosource import Unread
from nvproxy_model.drivers.gvisor.layouts import (
    VARIANT,
    Difference,
    Kind,
    compare_layouts,
    overlaid,
    plain,
    union_types,
)
from nvproxy_model.drivers.gvisor.rows import Entry
from nvproxy_model.drivers.gvisor.tables import Version
from nvproxy_model.drivers.release import Release, control_struct
from nvproxy_model.layout import Layout
from nvproxy_model.rules import TABLES

__all__ = [
    "KINDS",
    "NOTES",
    "SCALARS",
    "Comparer",
    "Finding",
    "Gathered",
    "Parity",
    "VersionReport",
    "compare",
    "entries",
    "parity",
    "release_name",
]

KINDS: Mapping[Kind, str] = {
    # kind -> what it says; the ones below the line are notes, which are no difference
    "number-differs": "the driver gives the name another number",
    "name-missing": "the driver has no constant of the row's name",
    "struct-missing": "the driver has no struct of the name",
    "size-differs": "the Go type has another size than the driver's struct",
    "field-missing": "a member of the driver's struct is padding, or nothing, in the Go type",
    "field-extra": "the Go type has a member where the driver's struct has none",
    "pointer-differs": "a pointer on one side is an integer on the other",
    "handle-differs": "an NvHandle on one side is an integer on the other",
    "sign-differs": "signed on one side, unsigned on the other",
    "type-differs": "elements of another width at the same place",
    "union-member-differs": "a Go type that stands for one member of a union differs from it",
    "simple-pointer": "a struct that is forwarded as bytes holds a pointer",
    "simple-fd": "a struct that is forwarded as bytes holds an fd",
    "simple-pid": "a struct that is forwarded as bytes holds a process id",
    "handler-struct": "the handler reads another Go type than the row names",
    "rows-unmatched": "a row has a handler and no struct list, or the reverse",
    "constant-differs": "a constant of pkg/abi/nvgpu has another value in the driver",
    "version-unknown": "the model does not know a version that gVisor registers",
    "model-lacks": "a row of gVisor's that the model does not have",
    "gvisor-lacks": "a row that the model admits and gVisor does not have",
    "model-refuses": "a row of gVisor's that the model refuses by a rule",
    "caps-differ": "the model admits the row under other capabilities",
    "struct-differs": "the model names another parameter struct",
    "layout-differs": "the model's struct has another layout than the Go type",
    "name-differs": "same offset, size and kind, other name",
    "number-unnamed": "no checked release has a name for the number; the row's is gVisor's own",
    "caps-flip": "a version admits a row under other capabilities than its parent",
    "row-dropped": "a version drops a row whose number the driver still has",
    "no-struct-named": "nothing says which driver struct the row uses",
    "newer": "a row or a struct that gVisor gained after the revision that the model follows whole",
    "contradicted": "a row that the driver of that version contradicts: its headers lack the number",
    "model-only": "a row that only the model has, and admits to nobody who does not ask for it",
}
NOTES: frozenset[Kind] = frozenset(
    {
        "name-differs",
        "number-unnamed",
        "caps-flip",
        "row-dropped",
        "no-struct-named",
        "model-only",
        "newer",
        "contradicted",
    }
)

_SIMPLE: Mapping[Carried, Kind] = {"pointer": "simple-pointer", "fd": "simple-fd", "pid": "simple-pid"}

SCALARS = {"NvHandle": 4, "NvU32": 4, "NvU64": 8, "NvS32": 4}


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference or note. ``base`` is gVisor's value, ``next`` the driver's."""

    kind: Kind
    name: str
    """``table NAME`` for a row, else the name of a type or constant of pkg/abi/nvgpu."""
    detail: str
    base: int | str | None
    next: int | str | None
    where: str
    """``file:line`` in the checkout."""
    versions: tuple[str, ...]
    """Every version at which it holds, in the order of gVisor's tree."""

    @property
    def is_note(self) -> bool:
        return self.kind in NOTES

    def as_json(self) -> dict[str, int | str | list[str] | None]:
        """The finding as the schema gvisor/1 states it."""
        return {
            "kind": self.kind,
            "name": self.name,
            "detail": self.detail,
            "base": self.base,
            "next": self.next,
            "where": self.where,
            "versions": list(self.versions),
        }


@dataclass(frozen=True, slots=True)
class VersionReport:
    """One version of gVisor's tree; ``reason`` says why it is not checkable."""

    version: str
    supported: bool
    registered: bool
    reason: str
    rows: int
    structs: int
    differs: bool = False

    @property
    def status(self) -> Literal["same", "different", "not-checkable"]:
        """``not-checkable`` with a reason, whatever differs."""
        return "not-checkable" if self.reason else "different" if self.differs else "same"


@dataclass(frozen=True)
class Parity:
    """The whole comparison. ``verdict`` is same, different, or unknown: something could not be read or compared."""

    revision: str
    versions: tuple[VersionReport, ...]
    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    unread: tuple[Unread, ...]

    @property
    def compared(self) -> int:
        return sum(report.status != "not-checkable" for report in self.versions)

    @property
    def verdict(self) -> Literal["same", "different", "unknown"]:
        if self.unread or not self.compared:
            return "unknown"
        return "different" if self.findings else "same"


@dataclass
class Gathered:
    """Findings by everything but the version, so that one that holds at 30 versions is one finding."""

    order: dict[tuple[Kind, str, str, int | str | None, int | str | None, str], list[str]] = field(default_factory=dict)

    def add(self, version: str, name: str, difference: Difference, where: str) -> None:
        versions = self.order.setdefault((*difference[:1], name, *difference[1:], where), [])
        if version not in versions:
            versions.append(version)

    def at(self, version: str) -> bool:
        return any(version in versions and key[0] not in NOTES for key, versions in self.order.items())

    def findings(self) -> list[Finding]:
        rank = {kind: index for index, kind in enumerate(KINDS)}
        found = [Finding(*key, tuple(versions)) for key, versions in self.order.items()]
        return sorted(found, key=lambda f: (rank[f.kind], f.name, f.detail, f.where))


def release_name(version: str, known: Iterable[str]) -> str | None:
    """A version as the driver's tags spell it: nvproxy prints 550.67 as 550.67.00."""
    names = set(known)
    short = version.removesuffix(".00")
    return version if version in names else short if short in names else None


def compare(nvproxy: Nvproxy, releases: Mapping[str, Release]) -> Parity:
    """Checks every version of ``nvproxy`` against the driver release of the same name, where there is one."""
    gathered = Gathered()
    tags = {version: release_name(version, releases) for version in nvproxy.versions}
    used = {tag: releases[tag] for tag in tags.values() if tag is not None}
    symbols = {entry.symbol for version in nvproxy.versions.values() for entry in entries(version)}
    named = {symbol for symbol in symbols if any(symbol in release.constants for release in used.values())}
    comparer = Comparer(nvproxy, gathered, named)
    reports: list[VersionReport] = []
    for version in nvproxy.versions.values():
        comparer.inner_checks(version)
        tag = tags[version.version]
        rows = sum(map(len, version.tables.values()))
        reason = "" if tag is not None else "no public source of this release"
        structs = comparer.check(version, used[tag]) if tag is not None else 0
        reports.append(VersionReport(version.version, version.supported, version.registered, reason, rows, structs))
    return parity(nvproxy, reports, gathered)


def parity(nvproxy: Nvproxy, reports: Iterable[VersionReport], gathered: Gathered) -> Parity:
    """The result of a comparison: a version is different if anything was gathered at it."""
    done = tuple(replace(report, differs=gathered.at(report.version)) for report in reports)
    findings = gathered.findings()
    return Parity(
        nvproxy.revision,
        done,
        tuple(finding for finding in findings if not finding.is_note),
        tuple(finding for finding in findings if finding.is_note),
        nvproxy.unread,
    )


class Comparer:
    """A checkout's rows and Go types against releases; differences go to ``gathered``."""

    def __init__(self, nvproxy: Nvproxy, gathered: Gathered, named: set[str]) -> None:
        self.nvproxy, self.gathered = nvproxy, gathered
        self.used_types = {
            name
            for version in nvproxy.versions.values()
            for entry in entries(version)
            for name in (entry.handler_type, *(struct.go_type for struct in entry.structs or ()))
            if name
        }
        self.named = named
        self.keys = {entry.symbol for version in nvproxy.versions.values() for entry in entries(version)}
        self.go_layouts: dict[str, Layout] = {}
        unread = {item.what for item in nvproxy.unread}
        for name in nvproxy.nvgpu.struct_names:
            if name not in unread:
                self.go_layouts[name] = nvproxy.nvgpu.layout(name)
        self.compared: dict[tuple[str, Layout], tuple[Difference, ...]] = {}

    # What needs no driver.

    def inner_checks(self, version: Version) -> None:
        for row in version.unmatched:
            self.gathered.add(
                version.version,
                f"{row.table} {row.symbol}",
                Difference("rows-unmatched", row.detail, None, None),
                "pkg/sentry/devices/nvproxy/version.go:1",
            )
        for entry in entries(version):
            types = [struct.go_type for struct in entry.structs or () if struct.go_type]
            if entry.handler_type and types and entry.handler_type not in types:
                self._row(
                    version,
                    entry,
                    Difference("handler-struct", "the handler's type and the row's", entry.handler_type, types[0]),
                )
        parent = self.nvproxy.versions.get(version.parent or "")
        if parent is None:
            return
        for table in TABLES:
            for number, entry in version.tables[table].items():
                before = parent.tables[table].get(number)
                if (
                    before is not None
                    and before.caps is not None
                    and entry.caps is not None
                    and before.caps != entry.caps
                ):
                    lost = sorted(set(before.caps) - set(entry.caps))
                    gained = sorted(set(entry.caps) - set(before.caps))
                    detail = " ".join([f"+{cap}" for cap in gained] + [f"-{cap}" for cap in lost])
                    self._row(
                        version,
                        entry,
                        Difference(
                            "caps-flip",
                            f"{detail} (parent {parent.version})",
                            ",".join(entry.caps),
                            ",".join(before.caps),
                        ),
                    )

    def _row(self, version: Version, entry: Entry, difference: Difference) -> None:
        self.gathered.add(version.version, f"{entry.table} {entry.symbol}", difference, entry.where)

    # Against one release.

    def check(self, version: Version, release: Release) -> int:
        """Checks one version; returns how many structs were found in the driver and compared."""
        numbers: dict[int, list[str]] | None = None
        structs: set[str] = set()
        for entry in entries(version):
            name = entry.name or self.symbol(entry, release)
            value = release.constants.get(name)
            if value is None and entry.name is None and name not in self.named:
                self._row(version, entry, Difference("number-unnamed", f"{entry.number:#x}", entry.number, None))
            elif value is None:
                numbers = numbers if numbers is not None else _by_number(release)
                others = _alike(name, numbers.get(entry.number, []))
                detail = f"{name} is not defined" + (f"; {entry.number:#x} is {others[0]}" if others else "")
                self._row(version, entry, Difference("name-missing", detail, entry.number, None))
            elif value is not None and value != entry.number:
                self._row(version, entry, Difference("number-differs", f"{name}", entry.number, value))
            structs |= self._check_structs(version, entry, name, release)
        self._dropped(version, release)
        self._loose(version, release)
        return len(structs)

    @staticmethod
    def symbol(entry: Entry, release: Release) -> str:
        """The row's constant; for a control that is keyed by a bare number, the driver's name of that number."""
        if entry.table == "control" and not re.fullmatch(r"[A-Za-z]\w*", entry.symbol):
            return next((name for name in release.params if release.constants.get(name) == entry.number), entry.symbol)
        return entry.symbol

    def _check_structs(self, version: Version, entry: Entry, name: str, release: Release) -> set[str]:
        found: set[str] = set()
        for struct_name, go_type in self.structs_of(version, entry, name, release):
            if struct_name in SCALARS:
                if go_type is not None and self.go_layouts[go_type].size != SCALARS[struct_name]:
                    size = self.go_layouts[go_type].size
                    self._row(
                        version,
                        entry,
                        Difference("size-differs", f"{struct_name} ({go_type})", size, SCALARS[struct_name]),
                    )
                continue
            layout = release.structs.get(struct_name)
            if layout is None:
                near = _near(struct_name, control_struct(release, name), release)
                hint = f"; did you mean {near}?" if near else ""
                self._row(
                    version, entry, Difference("struct-missing", f"{struct_name} is not defined{hint}", go_type, None)
                )
                continue
            found.add(struct_name)
            if go_type is None:
                self._check_simple(version, entry, struct_name, release)
            elif go_type in self.go_layouts:
                self._check_type(version, entry, go_type, struct_name, layout)
        return found

    def structs_of(
        self, version: Version, entry: Entry, name: str, release: Release
    ) -> Iterator[tuple[str, str | None]]:
        """The driver's structs of a row and their Go types: as it says, else by Go type, else by the controls' rule."""
        if entry.structs is not None:
            yield from ((struct.name, struct.go_type) for struct in entry.structs)
            return
        if entry.handler_type is not None:
            driver_name = "NvHandle" if entry.handler_type == "Handle" else _driver_name(entry.handler_type, release)
            if driver_name is not None:
                yield driver_name, entry.handler_type
                return
        elif entry.handler.endswith("NoParams"):
            return
        elif entry.table == "control":
            ruled = control_struct(release, name)
            if ruled is not None and entry.handler == "rmControlSimple":
                yield ruled, None
                return
        detail = f"handler {entry.handler}" + (f"[{entry.handler_type}]" if entry.handler_type else "")
        self._row(version, entry, Difference("no-struct-named", detail, None, None))

    def _check_simple(self, version: Version, entry: Entry, struct: str, release: Release) -> None:
        carriers = {
            unfit.path: unfit
            for unfit in reversed([*simple_struct_carriers(release, entry.name or entry.symbol, struct)])
        }
        for unfit in carriers.values():
            detail = f"{struct}.{unfit.path}: {unfit.why}"
            self._row(version, entry, Difference(_SIMPLE[unfit.what], detail, entry.handler, None))

    def _check_type(self, version: Version, entry: Entry, go_type: str, struct_name: str, layout: Layout) -> None:
        for found in self._layouts(go_type, layout):
            self._row(version, entry, found._replace(detail=f"{struct_name} ({go_type}): {found.detail}"))
        go = self.go_layouts[go_type]
        for member in overlaid(go, layout):
            for name in union_types(go_type, member.name, self.go_layouts):
                if member.record is not None:
                    self._union_member(version, name, f"{struct_name}.{member.name}", member.record)

    def _union_member(self, version: Version, go_type: str, path: str, layout: Layout) -> None:
        self.used_types.add(go_type)
        go = self.go_layouts[go_type]
        where = self.nvproxy.nvgpu.where(go_type)
        if go.size != layout.size:
            difference = Difference("union-member-differs", f"{path}: size", go.size, layout.size)
            self.gathered.add(version.version, go_type, difference, where)
        for kind, detail, base, next_ in self._layouts(go_type, layout):
            if kind not in ("size-differs", "name-differs"):
                self.gathered.add(
                    version.version,
                    go_type,
                    Difference("union-member-differs", f"{path}: {detail} ({kind})", base, next_),
                    where,
                )

    def _layouts(self, go_type: str, layout: Layout) -> tuple[Difference, ...]:
        key = (go_type, layout)
        if key not in self.compared:
            self.compared[key] = tuple(compare_layouts(self.go_layouts[go_type], layout))
        return self.compared[key]

    def _dropped(self, version: Version, release: Release) -> None:
        parent = self.nvproxy.versions.get(version.parent or "")
        if parent is None:
            return
        for table in TABLES:
            for number, entry in parent.tables[table].items():
                name = entry.name or entry.symbol
                if number not in version.tables[table] and release.constants.get(name) == number:
                    self._row(version, entry, Difference("row-dropped", f"the driver still has {name}", None, number))

    def _loose(self, version: Version, release: Release) -> None:
        """Constants that are no row's key, and types that no row names, where the driver has the same name."""
        nvgpu = self.nvproxy.nvgpu
        unread = {item.what for item in self.nvproxy.unread}
        for name in nvgpu.constant_names:
            if name in self.keys or name in unread:
                continue
            value, actual = nvgpu.constant(name).value, release.constants.get(name)
            if actual is not None and isinstance(value, int) and value != actual:
                moved = next(
                    (
                        other
                        for other in release.constants
                        if other.startswith(f"{name}_V") and release.constants[other] == value
                    ),
                    None,
                )
                detail = "value" + (f"; {value} is the driver's {moved}" if moved else "")
                self.gathered.add(
                    version.version, name, Difference("constant-differs", detail, value, actual), nvgpu.where(name)
                )
        for go_type, layout in self._loose_types(version, release):
            for found in self._layouts(go_type, layout):
                self.gathered.add(version.version, go_type, found, nvgpu.where(go_type))

    def _loose_types(self, version: Version, release: Release) -> Iterator[tuple[str, Layout]]:
        """Of the variants X, X_V550, X_V570 the one for this version: the newest that is not newer than it."""
        major = int(version.version.partition(".")[0])
        chosen: dict[str, tuple[int, str]] = {}
        for go_type in self.go_layouts:
            match = VARIANT.search(go_type)
            since = int(match[1]) if match else 0
            stem = go_type[: match.start()] if match else go_type
            if since <= major and since >= chosen.get(stem, (0, ""))[0]:
                chosen[stem] = (since, go_type)
        for stem, (_, go_type) in chosen.items():
            layout = release.structs.get(stem)
            if layout is not None and go_type not in self.used_types:
                yield go_type, layout


def entries(version: Version) -> Iterator[Entry]:
    """Every row of a version, table by table."""
    for table in TABLES:
        yield from version.tables[table].values()


def _by_number(release: Release) -> dict[int, list[str]]:
    numbers: dict[int, list[str]] = {}
    for name, value in release.constants.items():
        numbers.setdefault(value, []).append(name)
    return numbers


def _alike(name: str, others: list[str]) -> list[str]:
    """Of the driver's names for a number those of the same family (NV2080_CTRL_CMD_..., UVM_...), nearest first."""
    family = name.partition("_")[0]
    return difflib.get_close_matches(name, [other for other in others if other.partition("_")[0] == family], 1, 0.5)


def _near(name: str, by_rule: str | None, release: Release) -> str | None:
    """What a struct's name may have meant: the same words in another order, the control's own struct, or a near spelling."""
    words = sorted(name.split("_"))
    reordered = next((other for other in release.structs if sorted(other.split("_")) == words), None)
    return reordered or by_rule or next(iter(difflib.get_close_matches(name, list(release.structs), 1, 0.85)), None)


def _driver_name(go_type: str, release: Release) -> str | None:
    """The driver's struct for a Go type by its name alone: NVOS55Parameters, or NV503C_ALLOC_PARAMETERS_V545."""
    for candidate in (go_type, VARIANT.sub("", go_type)):
        if candidate in release.structs:
            return candidate
    wanted = plain(VARIANT.sub("", go_type))
    matches = [name for name in release.structs if plain(name) == wanted]
    return matches[0] if len(matches) == 1 else None
