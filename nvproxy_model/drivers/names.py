"""NVIDIA's names for numbers and numbers for names: escapes, UVM commands, controls, classes, statuses.

One look-up for everything that names a call. A header says a number; only its name says what kind of number it is, so the
rules by which a name is told to be a command, a class or neither stand here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, Final, Literal

from nvproxy_model.drivers import facts as recorded
from nvproxy_model.drivers.release import Release
from nvproxy_model.naming import TABLES, Table, control_struct

__all__ = ["CallNames", "Kind", "Symbol", "allocation", "ever", "ever_called", "ever_status", "symbol", "users_of"]

Kind = Literal["frontend", "uvm", "control", "alloc", "status", "foreign", "other"]
"""What a symbol is: a number of one of the four tables, an NV status, another driver's request, or none of these."""

_CONTROL: Final = re.compile(r"NV(?:([0-9A-F]{4})|_EVENT_BUFFER|_SEMAPHORE_SURFACE|_CONF_COMPUTE|PCF0100)_CTRL_")
_NO_PARAMS: Final = frozenset(("UVM_DEINITIALIZE",))
_STATUS: Final = re.compile(r"NV_OK|NV_(?:ERR|WARN)_\w+")
_NUMBERED: Final = re.compile(r"NV([0-9A-F]{4})_(?!CTRL_|NOTIFIERS|\w*_MESSAGE_ID)\w+")
"""A class header names the class for its number: NVA081_VGPU_CONFIG is 0xa081."""
_GENERATION: Final = re.compile(
    r"(?:TURING|AMPERE|ADA|HOPPER|BLACKWELL|RUBIN|VOLTA|PASCAL|MAXWELL|KEPLER|FERMI|GF100|GT200|NV50|NV40|NV30|NV20|G84|GP100"
    r"|NV01(?!_ALLOC_)|NV04(?=_DISPLAY_COMMON$|_SOFTWARE_TEST$|_MEMORY$))_(?!\w*_MESSAGE_ID)[A-Z0-9_]+"
)
"""A class named for the generation that brought it. Most NV04_ names, and two of NV01_, are functions of nvos.h."""
_UNLISTED: Final = frozenset(("NV_EVENT_BUFFER_BIND", "NVFBC_SW_SESSION"))
"""Classes of class headers whose names have neither form, and that are in no release's list of resources."""


@cache
def _listed() -> Mapping[int, Mapping[str, str]]:
    """Class -> the recorded releases whose list of resources (resource_list.h) has it, in order of ancestry -> its name there."""
    classes = recorded.load().classes()
    return {number: {version: entry.name for version, entry in having.items()} for number, having in classes.items()}


@cache
def _listed_names() -> frozenset[str]:
    return frozenset(name for names in _listed().values() for name in names.values())


def _is_class(name: str, number: int) -> bool:
    numbered = _NUMBERED.fullmatch(name)
    if numbered is not None:
        return number == int(numbered[1], 16) and number > 0
    if name in _UNLISTED or name in _listed_names():
        return True
    return 0 < number <= 0xFFFF and _GENERATION.fullmatch(name) is not None


class CallNames:
    """The names of one set of constants. ``params`` maps controls to the structs that the headers' MESSAGE_IDs name."""

    def __init__(self, constants: Iterable[tuple[str, int]], params: Mapping[str, str], structs: Collection[str]) -> None:
        self._constants = constants
        self._params = params
        self._structs = structs

    @classmethod
    def of(cls, release: Release) -> CallNames:
        """Those of one release."""
        return cls(release.constants.items(), release.params, release.structs)

    def control_struct(self, name: str) -> str | None:
        """The parameter struct of a control: by its header's MESSAGE_ID, else by NVIDIA's naming rule."""
        named = self._params.get(name)
        if named is not None and named in self._structs:
            return str(named)
        return control_struct(name, {}, self._structs) or (f"{name}_PARAMS" if f"{name}_PARAMS" in self._structs else None)

    def is_control(self, name: str, number: int) -> bool:
        """Whether a name is a control command's; the constants of its interface have the same prefix."""
        match = _CONTROL.match(name)
        if match is None or name.endswith("_MESSAGE_ID") or not number & 0xFFFF:
            return False
        if number >> 16 != int(match[1], 16) if match[1] is not None else not number >> 16:
            return False
        return name in self._params or "_CTRL_CMD_" in name or self.control_struct(name) is not None

    def is_uvm(self, name: str) -> bool:
        """Whether a name is a UVM command's: the only names of its headers that have a struct of parameters."""
        return name.startswith("UVM_") and (f"{name}_PARAMS" in self._structs or name in _NO_PARAMS)

    def table_of(self, name: str, number: int) -> Table | None:
        """The table in which a constant would stand, or None if it is not a call's number."""
        if name.startswith("NV_ESC_"):
            return "frontend"
        if name.startswith("UVM_") and name not in _listed_names():
            return "uvm" if self.is_uvm(name) else None
        if _CONTROL.match(name):
            return "control" if self.is_control(name, number) else None
        return "alloc" if _is_class(name, number) else None

    @cached_property
    def tables(self) -> Mapping[Table, Mapping[int, tuple[str, ...]]]:
        """Table -> number -> its names, the one to show first."""
        found: dict[Table, dict[int, set[str]]] = {table: {} for table in TABLES}
        for name, number in self._constants:
            table = self.table_of(name, number)
            if table is not None:
                found[table].setdefault(number, set()).add(name)
        return {
            table: {number: tuple(sorted(names, key=self._rank)) for number, names in numbers.items()}
            for table, numbers in found.items()
        }

    def _rank(self, name: str) -> tuple[bool, bool, bool, int, str]:
        """Controls with a struct before others, then the shortest: an alias is longer than what it stands for."""
        return name not in self._params, self.control_struct(name) is None, name.startswith("NV2080_"), len(name), name

    def name(self, table: str, number: int) -> str | None:
        """The name of a table's number, or None."""
        return next(iter(self.all(table, number)), None)

    def all(self, table: str, number: int) -> tuple[str, ...]:
        """Every name of a table's number."""
        return next((numbers.get(number, ()) for name, numbers in self.tables.items() if name == table), ())

    @cached_property
    def statuses(self) -> Mapping[int, str]:
        """NV status -> name (nvstatuscodes.h)."""
        names: dict[int, str] = {}
        for name, number in self._constants:
            if _STATUS.fullmatch(name):
                names.setdefault(number, name)
        return names


@cache
def ever() -> CallNames:
    """The names of every recorded release together."""
    facts = recorded.load()
    constants = (
        (name, value)
        for name in facts.names("constants")
        for value in {value for _, value in facts.runs("constants", name) if value is not None}
    )
    listed = ((name, number) for number, names in _listed().items() for name in names.values())
    return CallNames((*constants, *set(listed)), _ever_params(), facts.names("structs"))


@lru_cache
def ever_called(number: int) -> Mapping[Table, tuple[str, ...]]:
    """Table -> what `ever` has for one number, at a fraction of the cost."""
    return {table: numbers.get(number, ()) for table, numbers in _with_number(number).tables.items()}


def ever_status(number: int) -> str | None:
    """The name that `ever` has for an NV status, at a fraction of the cost; None for a number that is not one."""
    return next(filter(_STATUS.fullmatch, recorded.load().having(number)), None)


@lru_cache
def _with_number(number: int) -> CallNames:
    """The names that one number has in any recorded release."""
    facts = recorded.load()
    called = {*facts.having(number), *(entry.name for entry in facts.with_class(number).values())}
    return CallNames([(name, number) for name in sorted(called)], _ever_params(), facts.names("structs"))


@cache
def _ever_params() -> Mapping[str, str]:
    facts = recorded.load()
    return {name: str(struct) for name in facts.names("params") if (struct := _last(facts.runs("params", name))) is not None}


def _newest(table: str, name: str) -> Any:
    """What the last recorded release that has a name says of it, or None."""
    return _last(recorded.load().runs(table, name))


def _last(runs: Iterable[tuple[int, Any]]) -> Any:
    values = [value for _, value in runs if value is not None]
    return values[-1] if values else None


@dataclass(frozen=True, slots=True)
class Symbol:
    """A constant of NVIDIA's headers: its newest value, what kind of number that is, and the same in words."""

    name: str
    value: int
    kind: Kind
    what: str


_WORDS: Final[Mapping[str, str]] = {
    "frontend": "an escape",
    "uvm": "a UVM command",
    "control": "a control command",
    "alloc": "a class",
    "status": "an NV status, which a call answers with",
    "foreign": "a request to /dev/nvidia-modeset (NVKMS), a device that nvproxy does not have",
}


def symbol(name: str) -> Symbol | None:
    """What a name of NVIDIA's headers is, whichever release has it; None if none has. Case counts."""
    value = _newest("constants", name)
    if value is None:
        return None
    number = int(value)
    kind: Kind | None = _with_number(number).table_of(name, number)
    if kind is None and _STATUS.fullmatch(name):
        kind = "status"
    if kind is None and name.startswith("NVKMS_IOCTL_"):
        kind = "foreign"
    if kind is not None:
        return Symbol(name, number, kind, _WORDS[kind])
    return Symbol(name, number, "other", _other(name))


def users_of(struct: str) -> tuple[tuple[Table, int], ...] | None:
    """The UVM commands and controls whose parameters a struct of the headers is; None for a name that is not a struct's."""
    if not recorded.load().runs("structs", struct):
        return None
    tables = ever().tables
    found: list[tuple[Table, int]] = [
        ("uvm", number) for number, names in tables["uvm"].items() if struct == f"{names[0]}_PARAMS"
    ]
    found += [
        ("control", number)
        for number, names in tables["control"].items()
        if any(ever().control_struct(name) == struct for name in names)
    ]
    return tuple(found)


def allocation(hclass: int) -> dict[str, Any]:
    """Whether the driver allocates a class: what its list of resources says (resource_list.h), over all recorded releases.

    ``first``: the releases that begin to, those whose parent does not. ``last``: the last ones that do, where newer releases
    no longer do. ``says``: the same in words.
    """
    facts = recorded.load()
    having = facts.with_class(hclass)
    told = [version for version in facts.versions if facts.privileges(version) is not None]
    first = [version for version in having if facts.parent(version) not in having]
    gone = [version for version in told if version not in having and facts.parent(version) in having]
    last = list(dict.fromkeys(str(facts.parent(version)) for version in gone))
    if not having:
        says = f"by no driver: none of {len(told)} recorded releases has the class in its list of resources"
    elif len(having) == len(told):
        says = f"by the driver in all {len(told)} recorded releases"
    else:
        until = f", until {', '.join(last)}" if last else ""
        says = f"by the driver since {', '.join(first)}{until}: {len(having)} of {len(told)} recorded releases"
    return {"first": first, "last": last, "releases": len(having), "of": len(told), "says": says}


def _other(name: str) -> str:
    struct = name.removesuffix("_MESSAGE_ID")
    if struct != name:
        return f"the index of the struct {struct} within its interface, not the number of a command"
    if "_ENGINE_TYPE_" in name:
        return "an engine type"
    enum = _newest("enums", name)
    if enum:
        return f"a value of the enum {enum}"
    return "a constant of NVIDIA's headers that is not the number of a call"
