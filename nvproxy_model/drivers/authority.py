"""Who may call what, asked of the recorded facts: one number's privilege over the releases, and what the tables leave out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from nvproxy_model import versions
from nvproxy_model.abi import ALLOC, CONTROL
from nvproxy_model.drivers.facts import Facts
from nvproxy_model.drivers.privileges import (
    ADMINISTRATOR,
    INTERNAL,
    KERNEL,
    UNSAID,
    USER,
    ClassEntry,
    Export,
    Privilege,
    Privileges,
)
from nvproxy_model.rules import Rule, active
from nvproxy_model.versions import DriverVersion

__all__ = [
    "ARCHITECTURES",
    "DEPRECATED",
    "NOT_EXPORTED",
    "WORDS",
    "Authority",
    "Change",
    "Missing",
    "State",
    "administrator_rows",
    "ask",
    "changes",
    "chips_in_words",
    "classes_with_row",
    "classes_without_row",
    "controls_without_row",
    "listed_for",
    "missing_as_json",
    "recorded_for",
]

NOT_EXPORTED: Final = "not exported"
DEPRECATED: Final = "deprecated"
State = Literal[Privilege, "not exported", "deprecated"]
"""What the driver says of a number in one release."""
WORDS: Mapping[State, str] = {
    USER: "any user",
    ADMINISTRATOR: "administrators only (CAP_SYS_ADMIN in the first user namespace)",
    KERNEL: "kernel clients only",
    INTERNAL: "the driver itself only",
    NOT_EXPORTED: "not exported",
    DEPRECATED: "not exported, a deprecated form that the driver converts first",
    UNSAID: "a class whose constructor decides",
}
"""How a privilege reads."""

ARCHITECTURES: Mapping[str, str] = {
    "TU": "Turing",
    "GA": "Ampere",
    "AD": "Ada",
    "GH": "Hopper",
    "GB": "Blackwell",
    "GR": "Rubin",
    "T2": "Orin",
}
"""Chips by the first two letters of their names, in the order of the driver's lists."""


@dataclass(frozen=True, slots=True)
class Authority:
    """What the driver of one release says of a number. ``release``: the recorded release that was asked.

    ``since``: (release, privilege) for each state on the way to it, the newest first; a release stands for its
    descendants. ``size`` is the parameter struct's in bytes. ``chips`` as in `ClassEntry`.
    """

    release: str
    since: tuple[tuple[str, State], ...]
    struct: str | None
    size: int | None
    handle: str | None
    chips: tuple[str, ...] | None
    all_chips: tuple[str, ...]

    @property
    def privilege(self) -> State:
        """The privilege at the release."""
        return self.since[0][1]

    @property
    def words(self) -> str:
        """The privilege and its history in one line."""
        now, *before = self.since
        parts = [WORDS[now[1]] + (f" since {now[0]}" if before else "")]
        for number, (release, privilege) in enumerate(before, 1):
            last = number == len(before)
            parts.append(f"before that {WORDS[privilege]}" if last else f"{WORDS[privilege]} from {release}")
        return "; ".join(parts)

    def as_json(self) -> dict[str, Any]:
        """The answer as JSON-able data."""
        return {
            "release": self.release,
            "privilege": self.privilege,
            "since": [{"release": release, "privilege": privilege} for release, privilege in self.since],
            "struct": self.struct,
            "size": self.size,
            "handle": self.handle,
            "chips": None if self.chips is None else list(self.chips),
            "words": self.words,
            "chips_words": chips_in_words(self.chips, self.all_chips),
        }


@dataclass(frozen=True, slots=True)
class Change:
    """A release in which a number's privilege is another than in its parent; ``before`` is None for the first release."""

    version: str
    parent: str | None
    before: State | None
    privilege: State


@dataclass(frozen=True, slots=True)
class Missing:
    """A number that the driver gives to any user and no row has. ``handle`` is the driver's class of the handle."""

    number: int
    name: str | None
    struct: str | None
    handle: str
    chips: tuple[str, ...] | None = None


def recorded_for(facts: Facts, version: DriverVersion) -> str | None:
    """The recorded release that stands for a listed one: itself, or its nearest recorded ancestor in the table."""
    return next((name for name in version.lineage if name in facts), None)


def _line(facts: Facts, release: str) -> Iterator[str]:
    at: str | None = release
    while at is not None:
        yield at
        at = facts.parent(at)


def _state(found: Privileges, table: str, number: int, name: str | None) -> State:
    entry: Export | ClassEntry | None = (found.exports if table == "control" else found.classes).get(number)
    if entry is not None:
        return entry.privilege
    return DEPRECATED if name in found.deprecated else NOT_EXPORTED


def ask(facts: Facts, release: str, table: str, number: int, name: str | None) -> Authority | None:
    """What a recorded release says of a control or class; None for another table, or facts without the driver's tables."""
    found = facts.privileges(release) if table in ("control", "alloc") else None
    if found is None:
        return None
    since: list[tuple[str, State]] = []
    for version in _line(facts, release):
        then = facts.privileges(version)
        if then is None:
            break
        state = _state(then, table, number, name)
        if since and since[-1][1] == state:
            since[-1] = (version, state)
        else:
            since.append((version, state))
    entry: Any = (found.exports if table == "control" else found.classes).get(number)
    struct = None if entry is None else entry.struct
    layout = None if struct is None else facts.release(release).structs.get(struct)
    return Authority(
        release,
        tuple(since),
        struct,
        layout.size if layout is not None else 0 if entry is not None and struct is None else None,
        entry.handle if isinstance(entry, Export) else entry.internal if entry is not None else None,
        entry.chips if isinstance(entry, ClassEntry) else None,
        found.chips,
    )


def changes(facts: Facts, table: str, number: int, name: str | None) -> list[Change]:
    """Every release whose privilege for a number is not its parent's, in the order of the facts."""
    states: dict[str, State] = {}
    found = []
    for version in facts.versions:
        then = facts.privileges(version)
        if then is None:
            continue
        state = states[version] = _state(then, table, number, name)
        parent = facts.parent(version)
        before = states.get(parent) if parent is not None else None
        if state != before:
            found.append(Change(version, parent, before, state))
    return found


def chips_in_words(chips: tuple[str, ...] | None, every: tuple[str, ...]) -> str | None:
    """Chips as a person names them; None where the release's lists say nothing of absence."""
    if chips is None:
        return None
    if chips == ("all",) or (every and set(chips) >= set(every)):
        return "every chip"
    if not chips:
        return "no chip"
    line = [chip for chip in every if not chip.startswith("T2")]
    first = next((index for index, chip in enumerate(line) if chip in chips), None)
    if first is not None and set(line[first:]) == {chip for chip in chips if not chip.startswith("T2")}:
        starts = first == 0 or line[first - 1][:2] != line[first][:2]
        return f"{ARCHITECTURES.get(line[first][:2], line[first]) if starts else line[first]} and later"
    words = []
    for prefix in dict.fromkeys(chip[:2] for chip in chips):
        mine = [chip for chip in chips if chip.startswith(prefix)]
        whole = mine == [chip for chip in every if chip.startswith(prefix)]
        words.append(ARCHITECTURES[prefix] if whole and prefix in ARCHITECTURES else ", ".join(mine))
    return ", ".join(words)


def administrator_rows(found: Privileges, node: DriverVersion) -> Iterator[tuple[Rule, Privilege]]:
    """Rows that hold at a release and that its driver keeps from a plain user, each with the privilege.

    A sandbox whose process is not an administrator of the host is refused by the driver, whatever the row says.
    """
    for rules, table in ((CONTROL, found.exports), (ALLOC, found.classes)):
        for number, rule in active(rules, node).items():
            entry: Any = table.get(number)
            if entry is not None and not rule.rejected and entry.privilege in (ADMINISTRATOR, KERNEL, INTERNAL):
                yield rule, entry.privilege


def controls_without_row(found: Privileges, node: DriverVersion, name: Callable[[int], str | None]) -> list[Missing]:
    """Controls that any user may ask of a handle of an admitted class and that no row has, by number.

    These are the next reports of an unknown control.
    """
    admitted = active(ALLOC, node)
    handles = {entry.internal for number, entry in found.classes.items() if number in admitted}
    rows = active(CONTROL, node)
    return [
        Missing(number, name(number), export.struct, export.handle)
        for number, export in sorted(found.exports.items())
        if export.privilege == USER and number not in rows and not handles.isdisjoint(export.handle.split("+"))
    ]


def classes_without_row(found: Privileges, node: DriverVersion, chip: str | None = None) -> list[Missing]:
    """Classes that any user may allocate, on some chip or on the one that is named, and that no row has, by number."""
    rows = active(ALLOC, node)
    return [
        Missing(number, entry.name, entry.struct, entry.internal, entry.chips)
        for number, entry in sorted(found.classes.items())
        if entry.privilege == USER
        and number not in rows
        and entry.chips
        and (chip is None or chip in entry.chips or entry.chips == ("all",))
    ]


def classes_with_row(found: Privileges, node: DriverVersion, chip: str) -> list[Rule]:
    """Rows of classes that a chip has, by number; generic classes, which every chip has, are among them."""
    rows = active(ALLOC, node)
    has = (entry for entry in found.classes.items() if entry[1].chips and {chip, "all"} & set(entry[1].chips))
    return [rows[number] for number, _ in sorted(has) if number in rows and not rows[number].rejected]


def missing_as_json(missing: Missing) -> dict[str, Any]:
    """One number without a row as JSON-able data."""
    return {
        "number": missing.number,
        "name": missing.name,
        "struct": missing.struct,
        "handle": missing.handle,
        "chips": None if missing.chips is None else list(missing.chips),
    }


def listed_for(version: str, parent: Callable[[str], str | None]) -> DriverVersion | None:
    """The node of the table that a recorded release is, or descends from."""
    listed = versions.load()
    at: str | None = version
    while at is not None and at not in listed:
        at = parent(at)
    return None if at is None else listed[at]
