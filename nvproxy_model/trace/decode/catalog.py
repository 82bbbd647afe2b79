"""What a number means in one driver release: its name and its struct, from the model where it has them, else from
the recorded facts.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from nvproxy_model import ioctl, versions
from nvproxy_model.abi import tables
from nvproxy_model.abi.escapes import ARGUMENTS, NV_ESC_ATTACH_GPUS_TO_FD, NV_ESC_CARD_INFO, NV_ESC_RM_ALLOC
from nvproxy_model.drivers import facts as recorded
from nvproxy_model.drivers.names import CallNames
from nvproxy_model.drivers.release import Release
from nvproxy_model.errors import UnknownDriverVersion
from nvproxy_model.fields import CStruct, Role, Scalar, Status
from nvproxy_model.layout import Field, Layout, Leaf
from nvproxy_model.rules import Rule, Table, active
from nvproxy_model.structs.nvos import NVOS21_PARAMETERS, NVOS64_PARAMETERS
from nvproxy_model.trace.decode import layouts
from nvproxy_model.trace.format import Record

__all__ = ["TABLES", "Catalog", "Shape", "is_bits"]

TABLES: Final[Mapping[str, Table]] = {"fe": "frontend", "uvm": "uvm", "control": "control", "alloc": "alloc"}
"""The kind of an ioctl in a trace -> the table of a policy."""

_SUFFIX: Final = re.compile(r"_(?:ALLOC(?:ATION)?_)?(?:PARAMS|PARAMETERS)(?:_V\d+)?$")
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Shape:
    """A struct as a decoder needs it."""

    def __init__(self, name: str, layout: Layout, roles: Mapping[str, Role] | None = None) -> None:
        self.name = name
        self.layout = layout
        self.size = layout.size
        self.modelled = roles is not None
        self.roles: Mapping[str, Role] = roles or {}
        """Dotted path -> role; empty for a struct that only the recorded facts know."""
        self.leaves = tuple(layout.leaves())

    @cached_property
    def read(self) -> Callable[[bytes], dict[str, Any]]:
        """Its bytes' fields (`layouts.reader`)."""
        return layouts.reader(self.layout)

    @cached_property
    def status(self) -> int | None:
        """Where it carries its NV status: the field with that role, else the one of that type or name."""
        for leaf in self.leaves:
            if isinstance(self.roles.get(leaf.path), Status):
                return leaf.offset
        if not self.modelled:
            for leaf in self.leaves:
                if leaf.type == "NV_STATUS" or (leaf.path in ("status", "rmStatus", "Status") and leaf.base == "u32"):
                    return leaf.offset
        return None


def _roles(record: CStruct) -> dict[str, Role]:
    return {path: member.role for path, _, member in record.walk() if member.role is not None}


def _array(name: str, element: Layout, count: int) -> Layout:
    name = f"{name}[{count}]"
    field = Field("entries", 0, element.size * count, element.name, "record", (count,), element)
    return Layout(name, "struct", element.size * count, element.align, (field,))


class Catalog:
    """The names and structs of one release.

    ``driver`` is the release that answered. Where the model or the facts do not know it, the nearest that they know stands for
    it, and ``notes`` says so. Raises UnknownDriverVersion for text that is no version.
    """

    def __init__(self, driver: str, facts: recorded.Facts | None = None) -> None:
        self.driver = driver
        self.notes: list[str] = []
        self._facts = recorded.load() if facts is None else facts
        try:
            self._numbers = versions.numbers(driver)
        except ValueError as error:
            raise UnknownDriverVersion(str(error)) from None
        self.node = self._node()
        self.release = self._release()
        self._shapes: dict[tuple[str, int, int], Shape | None] = {}

    def _near(self, known: Mapping[str, tuple[int, ...]]) -> str:
        """The highest of the same branch that is not above, else the lowest of the branch, else the nearest of all."""
        branch = {name: numbers for name, numbers in known.items() if numbers[0] == self._numbers[0]}
        below = {name: numbers for name, numbers in (branch or known).items() if numbers <= self._numbers}
        pool = below or branch or dict(known)
        choose = max if below else min
        return choose(pool, key=lambda name: pool[name])

    def _node(self) -> versions.DriverVersion:
        tree = versions.load()
        try:
            return tree.find(self.driver, allow_unsupported=True)
        except UnknownDriverVersion:
            name = self._near({name: versions.numbers(name) for name in tree})
            self.notes.append(f"driver {self.driver} is not in driver_versions.yaml: the rules of {name} stand for it")
            return tree[name]

    def _release(self) -> Release:
        facts = self._facts
        known = {name: versions.numbers(name) for name in facts.versions}
        for name, numbers in known.items():
            if numbers == self._numbers:
                return facts.release(name)
        name = self._near(known)
        self.notes.append(f"driver {self.driver} has no public source: the recorded facts of {name} stand for it")
        return facts.release(name)

    @cached_property
    def _rules(self) -> Mapping[str, Mapping[int, Rule]]:
        return {kind: active(tables.TABLES[table], self.node) for kind, table in TABLES.items()}

    def rules(self, kind: str) -> Mapping[int, Rule]:
        """The rows of a kind by number, whatever the capabilities; none for a kind that no table has."""
        return self._rules.get(kind, {})

    # Names

    @cached_property
    def names(self) -> CallNames:
        """NVIDIA's names in this release."""
        return CallNames.of(self.release)

    def name(self, kind: str, number: int) -> str | None:
        """NVIDIA's name for a number, or None where no public fact of this release names it."""
        rule = self.rules(kind).get(number)
        if rule is not None:
            return str(rule.name)
        return self.names.name(TABLES.get(kind, kind), number)

    @property
    def statuses(self) -> Mapping[int, str]:
        """NV status -> name (nvstatuscodes.h)."""
        return self.names.statuses

    @cached_property
    def enums(self) -> Mapping[str, Mapping[int, str]]:
        """Enum -> value -> enumerator."""
        result: dict[str, dict[int, str]] = {}
        constants = self.release.constants
        for name, of in self.release.enums.items():
            value = constants.get(name)
            if of and value is not None:
                result.setdefault(of, {}).setdefault(value, name)
        return result

    @cached_property
    def _sorted(self) -> list[str]:
        return sorted(
            name for name in self.release.constants if "_PARAMS" not in name and not name.endswith("_MESSAGE_ID")
        )

    def _below(self, prefix: str) -> dict[str, int]:
        first = bisect.bisect_left(self._sorted, prefix)
        names = itertools.takewhile(lambda name: name.startswith(prefix), self._sorted[first:])
        return {name: self.release.constants[name] for name in names}

    def named_values(self, leaf: Leaf, struct: str) -> Mapping[int, str] | None:
        """Value -> name for one field, or None: its enum's, else the defines named after the struct and the field.

        Defines of one value each are an enumeration. For a field called flags they are only trusted where they are single bits,
        three or more: others are numbers within a bit range, and the range is nowhere recorded.
        """
        if leaf.type in self.enums:
            return self.enums[leaf.type]
        stem = _SUFFIX.sub("", struct)
        if stem == struct or leaf.base not in ("u8", "u16", "u32", "u64"):
            return None
        field = leaf.path.rpartition(".")[2]
        by_name = self._below(f"{stem}_{_WORDS.sub('_', field).upper()}_")
        names = {value: name for name, value in by_name.items()}
        if len(names) != len(by_name) or len(names) < 2:
            return None
        if "flag" in field.lower() and not is_bits(names):
            return None
        return names

    # Structs

    def shape(self, kind: str, number: int, request: int = 0) -> Shape | None:
        """The struct of a call: a frontend escape's or UVM command's argument, a control's or class's parameters.

        None where no public layout exists. ``request`` tells the two forms of RM_ALLOC and the arrays of the frontend apart.
        """
        size = ioctl.size(request) if kind == "fe" else 0
        key = (kind, number, size)
        if key not in self._shapes:
            if len(self._shapes) > 1 << 14:
                self._shapes.clear()
            self._shapes[key] = self._shape(kind, number, size)
        return self._shapes[key]

    def outer(self, rec: Record) -> Shape | None:
        """The argument struct of an ioctl: NVOS54_PARAMETERS for a control, NVOS64_PARAMETERS or
        NVOS21_PARAMETERS for an allocation.
        """
        kind = "fe" if rec.kind in ("control", "alloc") else rec.kind
        return self.shape(kind, rec.req & 0xFF if kind == "fe" else rec.key, rec.req)

    def _shape(self, kind: str, number: int, size: int) -> Shape | None:
        if kind == "fe" and number == NV_ESC_RM_ALLOC:
            return self._model(NVOS21_PARAMETERS if size == NVOS21_PARAMETERS.sizeof() else NVOS64_PARAMETERS)
        if kind == "fe" and number == NV_ESC_ATTACH_GPUS_TO_FD:
            ids = Field("gpu_ids", 0, size & ~3, "NvU32", "u32", (size // 4,))
            return Shape(f"NvU32[{size // 4}]", Layout(f"NvU32[{size // 4}]", "struct", size & ~3, 4, (ids,)))
        rule = self.rules(kind).get(number)
        params = rule.params_at(self.node) if rule is not None else None
        if isinstance(params, CStruct):
            return self._model(params)
        if isinstance(params, Scalar):
            field = Field("value", 0, params.sizeof(), params.ctype, params.base)
            return Shape(params.ctype, Layout(params.ctype, "struct", field.size, field.size, (field,)), {})
        name = self._struct_name(kind, number, rule)
        layout = self.release.structs.get(name) if name else None
        if name is None or layout is None:
            return None
        if kind == "fe" and number == NV_ESC_CARD_INFO and size >= layout.size:
            layout = _array(name, layout, size // layout.size)
        return Shape(layout.name if layout.name.endswith("]") else name, layout)

    @staticmethod
    def _model(record: CStruct) -> Shape:
        return Shape(record.ctype or "", record.layout(), _roles(record))

    def _struct_name(self, kind: str, number: int, rule: Any) -> str | None:
        if kind == "fe":
            return next(iter(ARGUMENTS.get(number, ())), None) or (
                rule.struct_at(self.node) if rule is not None else None
            )
        name = self.name(kind, number)
        if kind == "uvm":
            return f"{name}_PARAMS" if name else None
        if kind == "control":
            found = self.names.control_struct(name) if name else None
            return found or (rule.struct_at(self.node) if rule is not None else None)
        if rule is not None and rule.struct_at(self.node):
            return str(rule.struct_at(self.node))
        return self._class_params(number, name)

    def _class_params(self, number: int, name: str | None) -> str | None:
        structs = self.release.structs
        tagged = self._class_messages.get(number)
        if tagged is not None:
            return tagged
        stems = [f"NV{number:04X}", *([name] if name else [])]
        endings = ("_ALLOCATION_PARAMETERS", "_ALLOC_PARAMETERS", "_ALLOCATION_PARAMS", "_ALLOC_PARAMS")
        return next((stem + end for stem in stems for end in endings if stem + end in structs), None)

    @cached_property
    def _class_messages(self) -> dict[int, str]:
        """Class -> struct, where its header defines ``<struct>_MESSAGE_ID`` as the whole class number."""
        result = {}
        for name, number in self.release.constants.items():
            struct = name.removesuffix("_MESSAGE_ID")
            if struct != name and "_CTRL_" not in name and struct in self.release.structs:
                result[number] = struct
        return result

    # What the recorder's table is made of

    def definitions(self) -> Iterator[tuple[str, int, CStruct | Scalar]]:
        """(kind, number, struct) of everything that the model defines for this release."""
        yield "fe", NV_ESC_RM_ALLOC, NVOS21_PARAMETERS
        yield "fe", NV_ESC_RM_ALLOC, NVOS64_PARAMETERS
        for kind in TABLES:
            for number, rule in self.rules(kind).items():
                params = rule.params_at(self.node)
                if params is not None and not (kind == "fe" and number == NV_ESC_RM_ALLOC):
                    yield kind, number, params

    def sizes(self) -> Iterator[tuple[str, int, int, int | None]]:
        """(kind, number, bytes, offset of the NV status or None) of the UVM commands and classes that only the facts know."""
        for kind in ("uvm", "alloc"):
            for number in self.names.tables[kind]:
                shape = self.shape(kind, number)
                if shape is not None:
                    yield kind, number, shape.size, shape.status


def is_bits(names: Mapping[int, str]) -> bool:
    """Whether these are flags that may be set together: three single bits or more, and at most a name for none."""
    bits = [value for value in names if value]
    return len(bits) >= 3 and all(value & (value - 1) == 0 for value in bits)
