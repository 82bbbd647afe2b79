"""One row of nvproxy's tables as version.go writes it: the handler, its capabilities, and the driver's structs that it names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from nvproxy_model.drivers.gvisor.gosource import GoPackage, Nesting, Unread, Unreadable, named, text

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["Cell", "Entry", "NamedStruct", "RowReader"]


@dataclass(frozen=True, slots=True)
class NamedStruct:
    """A driver struct that a row names: NVIDIA's name, and the Go type for it (None: forwarded as bytes)."""

    name: str
    go_type: str | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a table at one version."""

    table: str
    number: int
    symbol: str
    """The key as written in Go, without its package: a constant's name, or the number itself."""
    handler: str
    handler_type: str | None
    """The Go type that the handler is instantiated with, if it is generic."""
    caps: tuple[str, ...] | None
    """Names of the capabilities any of which admits the call; None in revisions before November 2024, which have none."""
    name: str | None
    """The driver's name of the number; None where the revision does not say (before August 2025)."""
    structs: tuple[NamedStruct, ...] | None
    """None: this revision names no struct for the row. Empty: it says that there is none."""
    where: str
    """``file:line`` of the registration."""


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """A cell of one of version.go's maps: what its value means is decided when the maps are complete."""

    symbol: str
    value: Node
    where: str


# How each helper that version.go has had reads its arguments: does the first string name the number?
_INFO_HELPERS: Mapping[str, bool] = {
    "simpleIoctlInfo": True,
    "ioctlInfo": True,
    "ioctlInfoWithStructName": True,
    "simpleDriverStruct": False,
    "driverStructs": False,
    "driverStructWithName": False,
    "driverStructWith": False,
    "simpleIoctl": False,
    "getStructName": False,
}


@dataclass
class RowReader:
    """Reads cells of the package that declares the tables; what it does not know it adds to ``unread``."""

    package: GoPackage
    unread: list[Unread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.entries: dict[tuple[str, int, Cell, Cell | None], Entry | None] = {}
        self.nesting = Nesting()

    def entry(self, table: str, number: int, cell: Cell, info: Cell | None) -> Entry | None:
        """A row, read once however many versions inherit it."""
        key = (table, number, cell, info)
        if key not in self.entries:
            self.entries[key] = self._read_entry(*key)
        return self.entries[key]

    def _read_entry(self, table: str, number: int, cell: Cell, info: Cell | None) -> Entry | None:
        try:
            handler, handler_type, caps = self._handler(cell.value)
            name, structs = self._info(info.value) if info is not None else (None, None)
        except Unreadable as error:
            where = info.where if info is not None else cell.where
            self.unread.append(Unread(where, cell.symbol, str(error)))
            return None
        return Entry(table, number, cell.symbol, handler, handler_type, caps, name, structs, cell.where)

    def _handler(self, node: Node) -> tuple[str, str | None, tuple[str, ...] | None]:
        """``feHandler(frontendIoctlSimple[nvgpu.X], caps)``, or the bare handler of revisions without capabilities."""
        caps: tuple[str, ...] | None = None
        if node.type == "call_expression":
            function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
            if (
                function is None
                or arguments is None
                or not text(function).endswith("Handler")
                or len(named(arguments)) != 2
            ):
                raise Unreadable(f"not a handler: {text(node)[:60]}")
            node, mask = named(arguments)
            caps = self._caps(mask)
        written = "".join(text(node).split())
        match = re.fullmatch(r"(\w+)(?:\[nvgpu\.(\w+)(?:,\*?nvgpu\.\w+)*\])?(?:\(nvgpu\.(\w+)\))?", written)
        if match is None:
            raise Unreadable(f"not a handler: {written[:60]}")
        return match[1] + (f"({match[3]})" if match[3] else ""), match[2], caps

    @cached_property
    def _cap_names(self) -> dict[int, str]:
        """Bit -> the constant that names it."""
        nvconf = self.package.imports["nvconf"]
        names: dict[int, str] = {}
        for name in nvconf.constant_names:
            bit = nvconf.constant(name).value if name.startswith("Cap") else 0
            if isinstance(bit, int) and bit > 0 and bit & (bit - 1) == 0:
                names.setdefault(bit, name)
        return names

    def _caps(self, node: Node) -> tuple[str, ...]:
        value = self.package.evaluate(node).value
        if not isinstance(value, int) or value < 0:
            raise Unreadable(f"not capabilities: {text(node)[:60]}")
        names = self._cap_names
        known = [name for bit, name in sorted(names.items()) if value & bit]
        if sum(bit for bit in names if value & bit) != value:
            raise Unreadable(f"capabilities without a name in {value:#x}")
        return tuple(capability_name(name) for name in known)

    def _info(self, node: Node) -> tuple[str | None, tuple[NamedStruct, ...] | None]:
        with self.nesting:
            return self._info_of(node)

    def _info_of(self, node: Node) -> tuple[str | None, tuple[NamedStruct, ...] | None]:
        if text(node) == "nil":
            return None, None
        function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        helper = text(function) if function is not None else ""
        if helper == "append" and arguments is not None:
            parts = [
                self._info(argument if argument.type != "variadic_argument" else named(argument)[0])[1]
                for argument in named(arguments)
            ]
            return None, tuple(struct for part in parts for struct in part or ()) or None
        if node.type != "call_expression" or arguments is None or helper not in _INFO_HELPERS:
            raise Unreadable(f"not a list of structs: {text(node)[:60]}")
        strings: list[str] = []
        types: list[str] = []
        for argument in named(arguments):
            match = re.fullmatch(r"nvgpu\.(\w+)\{\}", text(argument))
            if match is not None:
                types.append(match[1])
                continue
            value = self.package.evaluate(argument).value
            if not isinstance(value, str):
                raise Unreadable(f"neither a name nor a struct: {text(argument)[:60]}")
            strings.append(value)
        name = (strings.pop(0) or None) if _INFO_HELPERS[helper] and strings else None
        if helper == "getStructName":
            return name, self._tagged(types)
        if types and strings:
            if len(types) != len(strings):
                raise Unreadable(f"{len(types)} types for {len(strings)} names")
            return name, tuple(map(NamedStruct, strings, types))
        return name, tuple(NamedStruct(item, None) for item in strings) + tuple(
            NamedStruct(item, item) for item in types
        )

    def _tagged(self, types: list[str]) -> tuple[NamedStruct, ...] | None:
        """July to August 2024: the driver's name was a tag, ``nvproxy:"NAME"``, on one of the struct's fields."""
        result = []
        for go_type in types:
            nvgpu = self.package.imports["nvgpu"]
            nvgpu.layout(go_type)
            found = [match[1] for tag in nvgpu.tags.get(go_type, []) if (match := re.search(r'nvproxy:"([^"]*)"', tag))]
            if len(found) != 1:
                raise Unreadable(f"{go_type} has {len(found)} tags that name a driver struct")
            if found[0]:
                result.append(NamedStruct(go_type if found[0] == "same" else found[0], go_type))
        return tuple(result) or None


_CAPABILITY_NAMES = {"FabricIMEXManagement": "fabric-imex-mgmt"}


def capability_name(constant: str) -> str:
    """The name under which runsc knows a capability: CapGraphics is ``graphics``."""
    bare = constant.removeprefix("Cap")
    return _CAPABILITY_NAMES.get(bare, bare.lower())
