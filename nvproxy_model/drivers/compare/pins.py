"""Expectations that somebody else's project keeps about the driver's ABI, and which releases break them.

A pin file is YAML::

    pin: 1
    driver: "570.86.15"          # where the values were taken; a remark, not a limit
    structs:
      NV_MEMORY_ALLOCATION_PARAMS:
        size: 128
        offsets: {owner: 0, flags: 8}       # dotted paths below the struct
    constants:
      NV01_MEMORY_SYSTEM: 0x3e
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nvproxy_model.drivers import yaml_file
from nvproxy_model.drivers.release import Release
from nvproxy_model.errors import NvproxyError
from nvproxy_model.layout import Layout

__all__ = ["Break", "Pin", "PinError", "PinReport", "Places", "check", "dump", "load", "nearest", "offsets"]

MAX_PINS = 100_000


class PinError(NvproxyError, ValueError):
    """A pin file that is not one, or that names nothing."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One expectation: ``what`` is size, offset or value; ``path`` the field's for an offset, else empty."""

    name: str
    what: str
    path: str
    value: int

    def __str__(self) -> str:
        return f"{self.name}.{self.path} offset" if self.path else f"{self.name} {self.what}"

    def actual(self, release: Release, places: Places | None = None) -> int | None:
        """The release's own value; None where it has no such struct, field or constant. ``places`` spares walking twice."""
        if self.what == "value":
            return release.constants.get(self.name)
        layout = release.structs.get(self.name)
        if layout is None:
            return None
        return layout.size if self.what == "size" else (places or Places()).find(layout, self.path)


@dataclass(frozen=True, slots=True)
class Break:
    """A release at which a pin stops holding: it held at the parent, or there is none. ``actual`` None: absent."""

    version: str
    actual: int | None


@dataclass(frozen=True, slots=True)
class PinReport:
    """One pin over all releases. ``first`` are the breaks in order of ancestry, several where branches break apart."""

    pin: Pin
    holds: tuple[str, ...]
    broken: tuple[tuple[str, int | None], ...]
    first: tuple[Break, ...]
    unknown: str | None = None
    """For a name that none of the releases has: the nearest one that there is, or ``""``. Nothing is judged then."""


def load(text: bytes) -> list[Pin]:
    """The pins of a file. Raises PinError with one line that says what is wrong with it."""
    data = yaml_file.parse(text, PinError)
    top = _mapping(data, "the file", {"pin", "driver", "structs", "constants"})
    if top.get("pin") != 1:
        raise PinError(f"pin: {yaml_file.described(top.get('pin'))}; this version reads `pin: 1`")
    pins: list[Pin] = []
    for name, body in _mapping(top.get("structs", {}), "structs").items():
        struct = _mapping(body, name, {"size", "offsets"})
        if "size" in struct:
            pins.append(Pin(name, "size", "", _number(struct["size"], f"{name}: size")))
        for path, value in _mapping(struct.get("offsets", {}), f"{name}: offsets").items():
            pins.append(Pin(name, "offset", path, _number(value, f"{name}.{path}")))
        if len(pins) > MAX_PINS:
            raise PinError(f"more than {MAX_PINS} pins")
    for name, value in _mapping(top.get("constants", {}), "constants").items():
        pins.append(Pin(name, "value", "", _number(value, name)))
    if not pins:
        raise PinError("nothing is pinned; `pin --init NAME...` writes a file")
    if len(pins) > MAX_PINS:
        raise PinError(f"more than {MAX_PINS} pins")
    return pins


def _mapping(value: Any, what: str, keys: set[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise PinError(f"{what}: want `name: value` lines, not {yaml_file.described(value)}")
    unknown = sorted(set(value) - keys) if keys is not None else []
    if unknown:
        near = difflib.get_close_matches(unknown[0], keys or (), 1)
        raise PinError(f"{what}: unknown key {unknown[0]}" + (f"; did you mean {near[0]}?" if near else ""))
    return value


def _number(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 64:
        raise PinError(f"{what}: want a number, not {yaml_file.described(value)}")
    return value


def offsets(layout: Layout, prefix: str = "", base: int = 0) -> Iterator[tuple[str, int]]:
    """Dotted path and offset of every member, records and unions included; an array of records at its first element."""
    for member in layout.fields:
        path, offset = prefix + member.name, base + member.offset
        yield path, offset
        if member.record is not None:
            yield from offsets(member.record, path + "[]" * len(member.dims) + ".", offset)


class Places:
    """Offsets by path, kept for layouts that many releases share."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Layout, dict[str, int]]] = {}

    def find(self, layout: Layout, path: str) -> int | None:
        """The offset of a dotted path. Anonymous members may be left out of it, as in C."""
        kept = self._known.get(id(layout))
        if kept is None or kept[0] is not layout:
            found: dict[str, int] = {}
            for member, offset in offsets(layout):
                found.setdefault(member, offset)
                found.setdefault(_named_path(member), offset)
            kept = self._known[id(layout)] = layout, found
        return kept[1].get(path, kept[1].get(_named_path(path)))


def _named_path(path: str) -> str:
    return ".".join(part for part in path.split(".") if not part.startswith("<"))


def check(pins: Iterable[Pin], releases: Mapping[str, Release], parent: Callable[[str], str | None]) -> list[PinReport]:
    """Every pin at every release. ``parent`` gives a release's parent, whether that was read or not."""
    reports = []
    places = Places()
    above = {version: nearest(parent, version, releases) for version in releases}
    for pin in pins:
        found = {version: pin.actual(release, places) for version, release in releases.items()}
        if all(value is None for value in found.values()):
            reports.append(PinReport(pin, (), (), (), _hint(pin, list(releases.values())[-1])))
            continue
        holds = tuple(version for version, value in found.items() if value == pin.value)
        broken = tuple((version, value) for version, value in found.items() if value != pin.value)
        first = tuple(Break(version, value) for version, value in broken if _fresh(above[version], found, pin))
        reports.append(PinReport(pin, holds, broken, first))
    return reports


def nearest(parent: Callable[[str], str | None], version: str, known: Container[str]) -> str | None:
    """The nearest ancestor that was read."""
    above = parent(version)
    while above is not None and above not in known:
        above = parent(above)
    return above


def _fresh(above: str | None, found: Mapping[str, int | None], pin: Pin) -> bool:
    """Whether the pin held just above, or nothing above was read."""
    return above is None or found[above] == pin.value


def _hint(pin: Pin, release: Release) -> str:
    names: Iterable[str] = release.constants if pin.what == "value" else release.structs
    wanted = pin.name
    layout = release.structs.get(pin.name) if pin.what == "offset" else None
    if layout is not None:
        names, wanted = [path for path, _ in offsets(layout)], pin.path
    near = difflib.get_close_matches(wanted, list(names), 1, 0.6)
    return near[0] if near else ""


def dump(names: Sequence[str], release: Release) -> str:
    """A pin file for structs and constants as one release has them. Raises PinError for a name it does not have."""
    structs: dict[str, Any] = {}
    constants: dict[str, int] = {}
    for name in names:
        layout, value = release.structs.get(name), release.constants.get(name)
        if layout is not None:
            places: dict[str, int] = {}
            for path, offset in offsets(layout):
                if "<" not in path.rpartition(".")[2]:
                    places.setdefault(_named_path(path), offset)
            structs[name] = {"size": layout.size, "offsets": places}
        elif value is not None:
            constants[name] = value
        else:
            near = difflib.get_close_matches(name, [*release.structs, *release.constants], 1, 0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise PinError(f"{name}: {release.version} has no struct and no constant of that name{hint}")
    lines = ["pin: 1", f'driver: "{release.version}"']
    if structs:
        lines.append("structs:")
        for name, body in structs.items():
            lines += [f"  {name}:", f"    size: {body['size']}", "    offsets:"]
            lines += [f"      {path}: {offset}" for path, offset in body["offsets"].items()]
            if not body["offsets"]:
                lines[-1] += " {}"
    if constants:
        lines += ["constants:", *(f"  {name}: {value:#x}" for name, value in constants.items())]
    return "\n".join(lines) + "\n"
