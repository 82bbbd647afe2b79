"""What a gVisor checkout needs for a driver release that it does not list: Go types, registrations, and what to say of them.

A row needs a new type where its struct differs from the parent's release and the row's Go type does not fit it any more.
The text of registrations and methods is the checkout's own, with the type's name replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from nvproxy_model.drivers.compare.carriers import simple_struct_carriers
from nvproxy_model.drivers.gvisor.checkout import Nvproxy
from nvproxy_model.drivers.gvisor.gosource import GoPackage
from nvproxy_model.drivers.gvisor.layouts import VARIANT, compare_layouts, plain
from nvproxy_model.drivers.gvisor.parity import Comparer, Gathered, entries, release_name
from nvproxy_model.drivers.gvisor.rows import Entry
from nvproxy_model.drivers.release import Release
from nvproxy_model.errors import SourceError
from nvproxy_model.layout import Field, Layout

__all__ = ["Addition", "Row", "Type", "add", "parent_in"]

_TABLES: Final[Mapping[str, tuple[str, str]]] = {
    "frontend": ("frontendIoctl", "FrontendInfos"),
    "uvm": ("uvmIoctl", "UvmInfos"),
    "control": ("controlCmd", "ControlInfos"),
    "alloc": ("allocationClass", "AllocationInfos"),
}
"""Table -> nvproxy's map of handlers, and its map of names."""
_GO: Final[Mapping[str, str]] = {
    **{f"{sign}{bits}": f"{'u' if sign == 'u' else ''}int{bits}" for sign in "us" for bits in (8, 16, 32, 64)},
    "f32": "float32",
    "f64": "float64",
    "ptr": "P64",
}
"""Base of a member -> the Go type that nvgpu gives it; NvHandle is Handle."""


@dataclass(frozen=True, slots=True)
class Type:
    """A Go type to add. ``source`` is its declaration with its methods; ``replaces`` the type that rows have now."""

    name: str
    struct: str
    replaces: str | None
    file: str
    source: str
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A row that still has the old type, and the two lines that register it anew."""

    table: str
    symbol: str
    where: str
    handler: str
    info: str


@dataclass(frozen=True, slots=True)
class Addition:
    """The whole: ``types`` and ``rows`` to add, and what a person must decide (``notes``), for ``version`` below ``parent``."""

    version: str
    parent: str
    types: tuple[Type, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def registration(self) -> str:
        """The lines for ``Init()`` in version.go."""
        variable, above = _variable(self.version), _variable(self.parent)
        numbers = ", ".join(str(int(part)) for part in self.version.split("."))
        checksums = f'"<sha256 of NVIDIA-Linux-x86_64-{self.version}.run>", "<sha256 of NVIDIA-Linux-aarch64-{self.version}.run>"'
        if not self.rows:
            return f"\t\t_ = addDriverABI({numbers}, {checksums}, {above})\n"
        lines = [f"\t\t{variable} := func() *driverABI {{", f"\t\t\tabi := {above}()"]
        lines += [f"\t\t\t{row.handler}" for row in self.rows]
        lines += ["", "\t\t\tprevGetInfo := abi.getInfo", "\t\t\tabi.getInfo = func() *DriverABIInfo {"]
        lines += ["\t\t\t\tinfo := prevGetInfo()", *(f"\t\t\t\t{row.info}" for row in self.rows)]
        lines += ["\t\t\t\treturn info", "\t\t\t}", "\t\t\treturn abi", "\t\t}"]
        return "\n".join([*lines, f"\t\t_ = addDriverABI({numbers}, {checksums}, {variable})", ""])

    @property
    def description(self) -> str:
        """A paragraph for the pull request."""
        if not self.types:
            text = f"Adds driver {self.version}. No struct that nvproxy interprets differs from {self.parent}."
        else:
            structs = sorted({kind.struct for kind in self.types if kind.replaces})
            text = f"Adds driver {self.version}, below {self.parent}. {len(structs)} structs that nvproxy interprets changed: "
            text += f"{', '.join(structs)}; {len(self.rows)} rows use their new types."
        return f"{text} Compared with NVIDIA's open-gpu-kernel-modules at tag {self.version}."


def parent_in(nvproxy: Nvproxy, version: str, parent: Callable[[str], str | None]) -> str:
    """The nearest ancestor of a release that the checkout registers, as the checkout spells it.

    Raises SourceError if the checkout has the release already, or none of its ancestors.
    """
    spelled = {tag: name for name in nvproxy.versions if (tag := release_name(name, [name, name.removesuffix(".00")]))}
    spelled |= {name.removesuffix(".00"): name for name in nvproxy.versions}
    if version in spelled:
        raise SourceError(f"{version} is registered already", nvproxy.revision)
    at = parent(version)
    while at is not None and at not in spelled:
        at = parent(at)
    if at is None:
        raise SourceError(f"no ancestor of {version} is registered", nvproxy.revision)
    return spelled[at]


def add(nvproxy: Nvproxy, parent: str, before: Release, release: Release) -> Addition:
    """What ``release`` needs, where the checkout's ``parent`` was made for the release ``before``."""
    comparer = Comparer(nvproxy, Gathered(), set())
    writer = _Writer(nvproxy.nvgpu, comparer.go_layouts, release.version)
    version = nvproxy.versions[parent]
    rows: list[Row] = []
    notes: list[str] = []
    for entry in entries(version):
        name = entry.name or comparer.symbol(entry, before)
        old, new = before.constants.get(name), release.constants.get(name)
        if old is not None and old != new:
            now = "is not defined any more" if new is None else f"is {new:#x} now"
            notes.append(f"{entry.table} {entry.symbol} ({entry.where}): {name} {now}")
        for struct, go_type in comparer.structs_of(version, entry, name, before):
            layout, earlier = release.structs.get(struct), before.structs.get(struct)
            if layout is None or earlier is None or layout == earlier:
                if layout is None and earlier is not None:
                    notes.append(f"{entry.table} {entry.symbol} ({entry.where}): {struct} is not defined any more")
                continue
            if go_type is None:
                known = {unfit.path for unfit in simple_struct_carriers(before, name, struct)}
                for unfit in simple_struct_carriers(release, name, struct):
                    if unfit.path not in known:
                        notes.append(
                            f"{entry.table} {entry.symbol} ({entry.where}): {struct}.{unfit.path} is new, {unfit.why}: "
                            "the row cannot pass the struct on as bytes"
                        )
                continue
            new_type = writer.variant(go_type, struct, layout)
            if new_type is not None:
                rows.append(_row(nvproxy, entry, go_type, new_type, struct))
    return Addition(release.version, parent, tuple(writer.types), tuple(rows), tuple(dict.fromkeys(notes)))


def _variable(version: str) -> str:
    return "v" + version.replace(".", "_")


def _row(nvproxy: Nvproxy, entry: Entry, old: str, new: str, struct: str) -> Row:
    handlers, infos = _TABLES[entry.table]
    key = f"nvgpu.{entry.symbol}" if re.fullmatch(r"[A-Za-z]\w*", entry.symbol) else entry.symbol
    value = re.sub(rf"\bnvgpu\.{re.escape(old)}\b", f"nvgpu.{new}", _registered(nvproxy.nvproxy, entry))
    info = f'info.{infos}[{key}] = ioctlInfoWithStructName("{entry.name or entry.symbol}", nvgpu.{new}{{}}, "{struct}")'
    return Row(entry.table, entry.symbol, entry.where, f"abi.{handlers}[{key}] = {value}", info)


def _registered(package: GoPackage, entry: Entry) -> str:
    """The value of a row as the checkout writes it: what follows the key's colon, or an assignment's sign."""
    file, _, line = entry.where.rpartition(":")
    lines = package.files[file].decode("utf-8", "replace").splitlines()[int(line) - 1 :]
    text = ""
    for part in lines[:20]:
        text += part.strip()
        if text.count("(") == text.count(")") and text.count("(") > 0:
            break
    found = re.search(r"(?::|=)\s*(\S.*?),?$", text)
    return found[1] if found else text


class _Writer:
    """Writes Go types for the structs of one release, each once."""

    def __init__(self, nvgpu: GoPackage, known: Mapping[str, Layout], version: str) -> None:
        self.nvgpu, self.known, self.version = nvgpu, known, version
        self.types: list[Type] = []
        self._names: dict[Layout, str] = {}
        self._variants: dict[tuple[str, str], str | None] = {}

    def variant(self, go_type: str, struct: str, layout: Layout) -> str | None:
        """The name of the Go type for a struct's new layout; None if the present one fits it."""
        key = (go_type, struct)
        if key not in self._variants:
            go = self.known.get(go_type)
            why = [d for d in compare_layouts(go, layout) if d.kind != "name-differs"] if go else []
            self._variants[key] = None
            if go is not None and why:
                name = self._fresh(VARIANT.sub("", go_type).rstrip("_"))
                self._variants[key] = name
                self._emit(name, struct, layout, go, tuple(f"{d.kind}: {d.detail}" for d in why))
        return self._variants[key]

    def _fresh(self, base: str) -> str:
        branch = self.version.partition(".")[0]
        name, count = f"{base}_V{branch}", 0
        while name in self.known or any(kind.name == name for kind in self.types):
            count += 1
            name = f"{base}_V{self.version.replace('.', '_')}" + ("" if count == 1 else f"_{count}")
        return name

    def _emit(self, name: str, struct: str, layout: Layout, like: Layout | None, why: tuple[str, ...]) -> None:
        body = "\n".join(self._members(layout, like))
        since = f"the layout of {struct} since {self.version}." if like else f"{struct} of driver {self.version}."
        source = f"// {name} is {since}\n//\n// +marshal\ntype {name} struct {{\n\t_ structs.HostLayout\n{body}\n}}\n"
        file = self.nvgpu.where(like.name).rpartition(":")[0] if like else ""
        if like is not None:
            source += "".join(f"\n{method}\n" for method in _methods(self.nvgpu, like.name, name))
        self.types.append(Type(name, struct, like.name if like else None, file, source, why))

    def _members(self, layout: Layout, like: Layout | None) -> Iterator[str]:
        spelled = {plain(field.name): field.name for field in _flat(like)} if like else {}
        end = 0
        for field in layout.fields:
            if field.offset > end:
                yield f"\t_ [{field.offset - end}]byte"
            yield f"\t{_go_name(field.name, spelled)} {self._type(field)}"
            end = max(end, field.offset + field.size)
        if layout.size > end:
            yield f"\t_ [{layout.size - end}]byte"

    def _type(self, field: Field) -> str:
        dims = "".join(f"[{length}]" for length in field.dims)
        if field.record is None:
            return dims + ("Handle" if field.type == "NvHandle" else _GO.get(field.base, f"[{field.size}]byte"))
        if field.record.kind == "union" or field.name.startswith("<"):
            name = "" if field.record.name.startswith("<") else f" {field.record.name}"
            return f"[{field.size}]byte // {field.record.kind}{name}"
        return dims + self._record(field.record)

    def _record(self, record: Layout) -> str:
        for name in (record.name, *(name for name in self.known if plain(VARIANT.sub("", name)) == plain(record.name))):
            go = self.known.get(name)
            if go is not None and not any(d.kind != "name-differs" for d in compare_layouts(go, record)):
                return name
        if record not in self._names:
            self._names[record] = name = record.name if record.name not in self.known else self._fresh(record.name)
            self._emit(name, record.name, record, None, ())
        return self._names[record]


def _flat(layout: Layout | None) -> Iterator[Field]:
    """Members of a Go type, those of embedded types with them."""
    for field in layout.fields if layout else ():
        yield field
        if field.record is not None and field.record.kind == "struct" and not field.dims:
            yield from _flat(field.record)


def _go_name(name: str, spelled: Mapping[str, str]) -> str:
    if name.startswith("<"):
        return "Anonymous" + re.sub(r"\W", "", name).capitalize()
    return spelled.get(plain(name), name[:1].upper() + name[1:])


def _methods(package: GoPackage, old: str, new: str) -> Iterator[str]:
    """The methods of a Go type with their comments, for another type."""
    head = re.compile(rf"^func \(\w+ \*?{re.escape(old)}\) ", re.MULTILINE)
    for _, data in sorted(package.files.items()):
        text = data.decode("utf-8", "replace")
        for found in head.finditer(text):
            end = text.find("\n}\n", found.start())
            start = found.start()
            while text[:start].rstrip("\n").rpartition("\n")[2].startswith("//"):
                start = text[: start - 1].rfind("\n") + 1
            if end >= 0:
                yield re.sub(rf"\b{re.escape(old)}\b", new, text[start : end + 2])
