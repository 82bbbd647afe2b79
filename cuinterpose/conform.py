"""Whether a shim keeps the resolvers' contract: one probe, with it and without it, against a given libcuda.

The probe (src/probe.c) asks every look-up and both resolvers for every covered name, for others, and for what the shim
itself exports, at versions around each ABI's and with every flag. An answer must have the same result, the same status
and the same function S, be it the driver's entry or a wrapper of it. No GPU is needed, and no function that an answer
names is called.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final, Literal

from . import elf, launcher, surface

ROUTES = ("direct", "dlsym", "cuGetProcAddress", "cuGetProcAddress_v2", *surface.RUNTIME)
_TIMEOUT_S = 120
_MOST_NAMES = 4096  # that a shim exports; a driver has some 700
_SHOWN = 8  # groups of differences
_LISTED = 6  # versions of one group
_CHILD = """
import ctypes, os, sys
ctypes.CDLL(sys.argv[1], os.RTLD_NOW | os.RTLD_GLOBAL)
probe = ctypes.CDLL(sys.argv[2]).cuprobe_main
runtime = os.fsencode(sys.argv[3]) if sys.argv[3] else None
names = [os.fsencode(name) for name in sys.stdin.read().split()]
exported = (ctypes.c_char_p * len(names))(*names)
sys.exit(probe(os.fsencode(sys.argv[1]), runtime, int(sys.argv[4]), exported, len(names)))
"""


_NUMBERS = ("version", "flags")  # what a question has after its name
_RESULTS = {
    "1": "invalid value",
    "3": "not initialized",
    "34": "a stub library",
    "35": "the driver is too old",
    "100": "no device",
    "500": "not found",
}
_STATUSES = {"0": "found", "1": "no such symbol", "2": "version too low", "-99": "not written", "-": "not asked for"}


Verdict = Literal["conforms", "does not conform", "cannot tell"]


class ConformError(Exception):
    """The comparison could not be made; one line."""


@dataclass(frozen=True)
class Answer:
    """One line of the probe. pointer: untouched, NULL, entry, wrapper or other; function: S, or the object of other."""

    result: str
    pointer: str
    function: str
    status: str

    @cached_property
    def seen(self) -> tuple[str, str, str]:
        """What must be equal: an entry and a wrapper of it are the same function."""
        pointer = "function" if self.pointer in ("entry", "wrapper") else self.pointer
        return self.result, f"{pointer} {self.function}".strip(), self.status

    def __str__(self) -> str:
        return f"{self.result} {self.pointer} {self.function} {self.status}".replace("  ", " ")

    @property
    def words(self) -> str:
        """For people, the status apart."""
        where = {
            "entry": f"the driver's {self.function}",
            "wrapper": f"a wrapper of {self.function}",
            "other": f"an address in {self.function}",
            "untouched": "nothing written",
        }.get(self.pointer, self.pointer)
        if self.result in ("-", "0"):
            return where
        return f"{_RESULTS.get(self.result, 'result')} ({self.result}), {where}"


Key = tuple[str, str]
"""A question: (route, what was asked)."""
Transcript = dict[Key, Answer]


def _several(word: str, numbers: list[int]) -> str:
    """The different ones, or how many there are."""
    distinct = sorted(set(numbers))
    plural = word if len(distinct) == 1 or word.endswith("s") else f"{word}s"
    if len(distinct) > _LISTED:
        return f"{len(distinct)} {plural} from {distinct[0]} to {distinct[-1]}"
    return f"{plural} {' '.join(map(str, distinct))}"


def _question(key: Key) -> str:
    """For people: cuGetProcAddress_v2("cuMemCreate", version 12000, flags 0)."""
    route, asked = key
    name, *numbers = asked.removesuffix(" no status").split(" ")
    words = [f"{word} {number}" for word, number in zip(_NUMBERS, numbers, strict=False)]
    words += ["no status"] if asked.endswith(" no status") else []
    return f"{route}({', '.join([repr(name), *words])})"


@dataclass(frozen=True)
class Difference:
    """Answers of one route for one name that differ in the same way.

    keys: the questions, in the probe's order. plain, shimmed: the first of them, without the shim and with it; None if
    there was none.
    """

    keys: tuple[Key, ...]
    plain: Answer | None
    shimmed: Answer | None

    @property
    def lines(self) -> list[str]:
        """For people: what was asked, and the two answers."""
        route, name = self.keys[0][0], self.keys[0][1].split(" ")[0]
        numbers = [key[1].split(" ")[1:3] for key in self.keys]
        where = [
            _several(word, [int(row[column]) for row in numbers])
            for column, word in enumerate(_NUMBERS)
            if column < len(numbers[0])
        ]
        count = f"{len(self.keys)} answer{'s' * (len(self.keys) > 1)}"
        statuses = [answer.status if answer else "-" for answer in (self.plain, self.shimmed)]
        answers = [answer.words if answer else "no answer" for answer in (self.plain, self.shimmed)]
        if statuses[0] != statuses[1]:
            answers = [
                f"{text}; status {status} ({_STATUSES.get(status, 'unknown')})"
                for text, status in zip(answers, statuses, strict=True)
            ]
        return [
            f"different: {', '.join([f'{_question((route, name))}: {count}', *where])}",
            f"  without the shim  {answers[0]}",
            f"  with the shim     {answers[1]}",
        ]


@dataclass(frozen=True)
class Conformance:
    """What a shim does to the resolvers of a driver.

    plain, shimmed: answers by question, without it and with it. ended: how the probe ended with the shim, "" if it
    ended well. exported: what the shim exports of the driver's names, beyond the surface. required: routes that the shim
    must cover.
    """

    libcuda: str
    shim: str
    plain: Transcript
    shimmed: Transcript
    ended: str = ""
    exported: tuple[str, ...] = ()
    required: tuple[str, ...] = ()

    @cached_property
    def differences(self) -> list[tuple[Key, Answer | None, Answer | None]]:
        """(question, answer without the shim, with it), in the probe's order; phantoms are not among them.

        After an early end, only what was answered before counts.
        """
        keys = self.shimmed if self.ended else {**self.plain, **self.shimmed}
        return [
            (key, self.plain.get(key), self.shimmed.get(key))
            for key in keys
            if key not in self.plain
            or key not in self.shimmed
            or (
                self.plain[key] is not self.shimmed[key]
                and self.plain[key].seen != self.shimmed[key].seen
                and not self._phantom(key)
            )
        ]

    @cached_property
    def groups(self) -> list[Difference]:
        """The differences by route, name and the two answers, those of the most questions first."""
        found: defaultdict[tuple[object, ...], list[tuple[Key, Answer | None, Answer | None]]] = defaultdict(list)
        for key, plain, shimmed in self.differences:
            # with a status and without one are the same answer
            kinds = [(answer.seen[:2], answer.pointer) if answer else None for answer in (plain, shimmed)]
            found[key[0], key[1].split(" ")[0], kinds[0], kinds[1]].append((key, plain, shimmed))
        groups = [Difference(tuple(key for key, _, _ in of), of[0][1], of[0][2]) for of in found.values()]
        return sorted(groups, key=lambda group: -len(group.keys))

    @property
    def last_question(self) -> Key | None:
        """After an early end: what was asked and not answered; None if all was, or nothing was."""
        unanswered = (key for key in self.plain if key not in self.shimmed)
        return next(unanswered, None) if self.ended else None

    def _phantom(self, key: Key) -> bool:
        """A weak reference to a name that this driver lacks finds the shim's: no preloaded object can avoid it."""
        plain, shimmed = self.plain[key], self.shimmed[key]
        return (
            key[0] == "direct"
            and plain.pointer == "NULL"
            and (shimmed.pointer, shimmed.function) == ("wrapper", key[1])
        )

    @cached_property
    def routes(self) -> list[str]:
        """Those that were asked, in the order of ROUTES."""
        asked = {route for route, _ in self.plain}
        return [route for route in ROUTES if route in asked]

    @cached_property
    def names(self) -> list[str]:
        """The surface, and what the shim exports besides."""
        return [*surface.DRIVER, *(name for name in self.exported if name not in surface.DRIVER)]

    @cached_property
    def coverage(self) -> dict[str, dict[str, str]]:
        """By name and route: covered, open (the driver's own entry comes out), mixed, absent, or phantom."""
        found: dict[tuple[str, str], Counter[str]] = {}
        for (route, _), answer in self.shimmed.items():
            if answer.pointer in ("entry", "wrapper"):
                found.setdefault((answer.function, route), Counter())[answer.pointer] += 1
        words = {(): "absent", ("wrapper",): "covered", ("entry",): "open"}

        def word(name: str, route: str) -> str:
            if (key := (route, name)) in self.plain and key in self.shimmed and self._phantom(key):
                return "phantom"
            if route == "direct" and name not in surface.DRIVER:  # the probe has no reference to it: the preloaded wins
                return "covered" if self.plain["dlsym", name].pointer == "entry" else "phantom"
            return words.get(tuple(sorted(found.get((name, route), ()))), "mixed")

        return {name: {route: word(name, route) for route in self.routes} for name in self.names}

    @cached_property
    def _given(self) -> set[tuple[str, str]]:
        """(name, route) of each entry that the driver gives on a route without the shim."""
        given = {(answer.function, route) for (route, _), answer in self.plain.items() if answer.pointer == "entry"}
        own = set(self.names) - set(surface.DRIVER)
        return given | {(name, "direct") for name in own if (name, "dlsym") in given}

    def covered(self, *, names: Iterable[str], routes: Iterable[str]) -> bool:
        """Whether the shim covers these names wherever these routes give them, and they give any."""
        pairs = {(name, route) for name in names for route in routes} & self._given
        return bool(pairs) and all(self.coverage[name][route] == "covered" for name, route in pairs)

    @cached_property
    def covered_routes(self) -> list[str]:
        """Routes on which every name of memory and multicast is covered that the driver gives there."""
        return [route for route in self.routes if self.covered(names=surface.TYPED, routes=[route])]

    @cached_property
    def covered_names(self) -> list[str]:
        """Names that are covered on every route that gives them."""
        return [name for name in self.names if self.covered(names=[name], routes=self.routes)]

    @cached_property
    def given_names(self) -> list[str]:
        """Names that the driver gives on any route."""
        return [name for name in self.names if any((name, route) in self._given for route in self.routes)]

    @cached_property
    def substituted(self) -> int:
        """Answers that were the driver's entry and are the shim's wrapper."""
        return sum(
            answer.pointer == "wrapper" and key in self.plain and not self._phantom(key)
            for key, answer in self.shimmed.items()
        )

    @cached_property
    def refused_routes(self) -> list[str]:
        """Routes that gave no function at all without the shim: nothing was compared there."""
        return [route for route in self.routes if not any(given == route for _, given in self._given)]

    @property
    def verdict(self) -> Verdict:
        """The answer in one phrase."""
        return self._answer[0]

    @property
    def conforms(self) -> bool:
        """Nothing differs, what is required is covered, and the shim does something: an inert one differs in nothing."""
        return self.verdict == "conforms"

    @cached_property
    def _answer(self) -> tuple[Verdict, str, str]:
        """(verdict, why, what to do)"""
        no: Final = "does not conform"
        unknown: Final = "cannot tell"
        if self.ended:
            asked = list(self.plain)
            at = "before the first question" if not self.shimmed else "after the last question"
            if self.shimmed and self.last_question:
                at = f"at question {asked.index(self.last_question) + 1} of {len(asked)}, {_question(self.last_question)}"
            return no, f"with it, the probe ended by {self.ended} {at}", "debug the shim with that question"
        if self.differences:
            return (
                no,
                f"{len(self.differences)} of {len(self.plain)} answers differ",
                "give what the driver gives, or a wrapper of the same function; leave every other answer as it is",
            )
        missing = [route for route in self.required if route not in self.covered_routes]
        if [route for route in missing if route in self.refused_routes]:
            return unknown, f"{self.libcuda} gives no function by {' '.join(missing)}", "name another driver"
        if missing:
            return no, f"it does not cover {' '.join(missing)}, which --require names", "see `open` and `mixed` below"
        if not self.substituted:
            return no, "it substitutes nothing", "see whether it is on, and whether it knows this driver"
        if refused := self.refused_routes:
            results = {answer.result for (route, _), answer in self.plain.items() if route in refused}
            why = ", ".join(f"{result}: {_RESULTS.get(result, 'unknown')}" for result in sorted(results))
            who = "runtime" if set(refused) <= set(surface.RUNTIME) else "driver"
            return (
                unknown,
                f"the {who} refused every question ({why})",
                "ask where it can start: a GPU, a new enough driver",
            )
        partial = len(self.covered_routes) < len(self.routes)
        return "conforms", self._extent, "--require all makes it a failure to cover a part" if partial else ""

    @property
    def _extent(self) -> str:
        names, routes = f"{len(self.covered_names)} of {len(self.given_names)}", len(self.covered_routes)
        return f"it covers {names} names on every route, and every name on {routes} of {len(self.routes)} routes"

    def as_json(self) -> dict[str, object]:
        """The document of schema cuinterpose.conform/1."""
        verdict, why, advice = self._answer
        last = self.last_question
        return {
            "schema": "cuinterpose.conform/1",
            "verdict": verdict,
            "conforms": self.conforms,
            "why": why,
            "advice": advice,
            "libcuda": self.libcuda,
            "shim": self.shim,
            "questions": len(self.plain),
            "answered": len(self.shimmed),
            "ended": self.ended or None,
            "last_question": {"route": last[0], "asked": last[1]} if last else None,
            "substituted": self.substituted,
            "routes": {"asked": self.routes, "covered": self.covered_routes, "required": list(self.required)},
            "names": {"given": self.given_names, "covered": self.covered_names},
            "differences": [
                {"route": key[0], "asked": key[1], "plain": str(plain), "shimmed": str(shimmed)}
                for key, plain, shimmed in self.differences
            ],
            "coverage": self.coverage,
        }

    def lines(self, *, verbose: bool = False) -> list[str]:
        """For people: the answer, what to do, the differences, and a table of what is covered."""
        verdict, why, advice = self._answer
        lines = [
            f"cannot tell whether {self.shim} conforms on {self.libcuda}: {why}"
            if verdict == "cannot tell"
            else f"{self.shim} {verdict} on {self.libcuda}: {why}",
            *([] if self.conforms else [f"  {self._extent}"]),
            f"  {len(self.plain)} questions, {self.substituted} answers substituted, {len(self.differences)} different",
        ]
        if advice:
            lines.insert(1, f"  {advice}")
        shown = self.groups if verbose else self.groups[:_SHOWN]
        for group in shown:
            lines += group.lines
        if len(self.groups) > len(shown):
            lines.append(f"and {len(self.groups) - len(shown)} more groups of differences (--verbose)")
        width = max(map(len, self.coverage))
        lines.append(f"{'':{width}}  " + "  ".join(f"{route:7}" for route in self.routes))
        for name, states in self.coverage.items():
            cells = "  ".join(f"{states[route]:{max(len(route), 7)}}" for route in self.routes)
            lines.append(f"{name:{width}}  {cells}".rstrip())
        return lines


def _probe(
    libcuda: str, probe: Path, shim: Path | None, libcudart: str | None, exported: Iterable[str]
) -> tuple[str, str, str]:
    """(standard output, standard error, how it ended: "" for well)"""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "CUINTERPOSE_DISABLE")
    }
    if shim:
        environment["LD_PRELOAD"] = str(launcher.clean_path(shim))
    arguments = [libcuda, str(probe), "", "0"]
    if libcudart:
        generation = re.search(r"libcudart\.so\.(\d+)", libcudart)
        if not generation:
            raise ConformError(f"{libcudart}: not named libcudart.so.N; the generation decides how it is called")
        arguments[2:] = [libcudart, generation[1]]
    # Memory: the probe writes each of its 100,000 lines by itself, and a pipe would wake us for every one.
    with os.fdopen(os.memfd_create("answers"), "w+", errors="replace") as lines:
        process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=lines,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        with process:
            try:
                _, errors = process.communicate("\n".join(exported), timeout=_TIMEOUT_S)
                late = False
            except subprocess.TimeoutExpired:
                process.kill()
                _, errors = process.communicate()
                late = True
        lines.seek(0)
        output = lines.read()
    if late:
        return output, errors, f"a time-out of {_TIMEOUT_S} s"
    last = (errors.strip().splitlines() or [""])[-1]
    if process.returncode < 0:
        return output, errors, f"{signal.Signals(-process.returncode).name} {last}".strip()
    return output, errors, f"exit {process.returncode} {last}".strip() if process.returncode else ""


@lru_cache(4096)
def _answer(text: str) -> Answer:
    """Of a line's last three columns; one object for all that are equal, since few differ."""
    result, kind, status = text.split("\t")
    pointer, _, function = kind.partition(" ")
    return Answer(result, pointer, function, status)


def _parse(text: str) -> Transcript:
    transcript: Transcript = {}
    for line in text.splitlines():
        if line.count("\t") != 4:
            continue  # a shim's own words; an answer that they spoil is missed below
        route, asked, answer = line.split("\t", 2)
        transcript[route, asked] = _answer(answer)
    return transcript


def _exported(shim: Path) -> list[str]:
    """The driver's names among what a shim exports. None of a file that is not ELF: ld.so will say so."""
    try:
        names = [name for name in elf.exports(shim) if re.fullmatch(r"cu[A-Z]\w{0,200}", name, re.A)]
    except (OSError, elf.ElfError):
        return []
    if len(names) > _MOST_NAMES:
        raise ConformError(f"{shim}: exports {len(names)} names of the driver's kind, more than {_MOST_NAMES}")
    return names


def compare(libcuda: str, shim: Path, libcudart: str | None = None, required: Iterable[str] = ()) -> Conformance:
    """Runs the probe twice. ConformError if it does not even run without the shim, or a required route is not asked.

    libcuda, libcudart: paths or names, as for dlopen. required: of ROUTES. A crash with the shim is a finding.
    """
    probe = launcher.native_path(launcher.PROBE)
    exported = _exported(shim)
    # a resolver is asked for the base name of what has a suffix
    asked = dict.fromkeys(name for full in exported for name in (full, re.sub(r"(_v\d+)?(_pt[ds]sz?)?$", "", full)))
    output, _, ended = _probe(libcuda, probe, None, libcudart, asked)
    if ended:
        raise ConformError(f"{libcuda}: the probe failed without the shim: {ended}; name another with --libcuda")
    plain = _parse(output)
    output, errors, ended = _probe(libcuda, probe, shim, libcudart, asked)
    if "cannot be preloaded" in errors:
        raise ConformError(f"{shim}: {errors.strip().splitlines()[0]}")
    routes = {route for route, _ in plain}
    if not any(route.startswith("cuGetProcAddress") for route in routes):
        raise ConformError(f"{libcuda}: exports no cuGetProcAddress: no driver, or one older than 11.3; name another")
    if unasked := [route for route in required if route not in routes]:
        way_out = (
            "name a runtime that has it with --libcudart" if unasked[0] in surface.RUNTIME else "name another driver"
        )
        raise ConformError(f"--require: {' '.join(unasked)} could not be asked; {way_out}")
    return Conformance(libcuda, str(shim), plain, _parse(output), ended, tuple(exported), tuple(required))
