"""Whether a shim keeps the resolvers' contract: one probe, with it and without it, against a given libcuda.

The probe (src/probe.c) asks every look-up and both resolvers for every covered name and for others, at versions around
each ABI's and with every flag. An answer must have the same result, the same status and the same function S, be it the
driver's entry or a wrapper of it. No GPU is needed, and no function that an answer names is called.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from . import launcher, surface

ROUTES = ("direct", "dlsym", "cuGetProcAddress", "cuGetProcAddress_v2", *surface.RUNTIME)
_TIMEOUT_S = 120
_CHILD = """
import ctypes, os, sys
ctypes.CDLL(sys.argv[1], os.RTLD_NOW | os.RTLD_GLOBAL)
probe = ctypes.CDLL(sys.argv[2]).cuprobe_main
runtime = os.fsencode(sys.argv[3]) if len(sys.argv) > 3 else None
sys.exit(probe(os.fsencode(sys.argv[1]), runtime, int(sys.argv[4]) if runtime else 0))
"""


class ConformError(Exception):
    """The comparison could not be made; one line."""


@dataclass(frozen=True)
class Answer:
    """One line of the probe. pointer: untouched, NULL, entry, wrapper or other; function: S, or the object of other."""

    result: str
    pointer: str
    function: str
    status: str

    @property
    def seen(self) -> tuple[str, str, str]:
        """What must be equal: an entry and a wrapper of it are the same function."""
        pointer = "function" if self.pointer in ("entry", "wrapper") else self.pointer
        return self.result, f"{pointer} {self.function}".strip(), self.status

    def __str__(self) -> str:
        return f"{self.result} {self.pointer} {self.function} {self.status}".replace("  ", " ")


Transcript = dict[tuple[str, str], Answer]


@dataclass(frozen=True)
class Conformance:
    """plain and shimmed: answers by (route, question)."""

    libcuda: str
    shim: str
    plain: Transcript
    shimmed: Transcript

    @property
    def differences(self) -> list[tuple[tuple[str, str], Answer | None, Answer | None]]:
        """(question, answer without the shim, with it), in the probe's order; phantoms are none."""
        return [
            (key, self.plain.get(key), self.shimmed.get(key))
            for key in {**self.plain, **self.shimmed}
            if key not in self.plain
            or key not in self.shimmed
            or (self.plain[key].seen != self.shimmed[key].seen and not self._phantom(key))
        ]

    def _phantom(self, key: tuple[str, str]) -> bool:
        """A weak reference to a name that this driver lacks finds the shim's: no preloaded object can avoid it."""
        plain, shimmed = self.plain[key], self.shimmed[key]
        return (
            key[0] == "direct"
            and plain.pointer == "NULL"
            and (shimmed.pointer, shimmed.function) == ("wrapper", key[1])
        )

    @property
    def coverage(self) -> dict[str, dict[str, str]]:
        """By name and route: covered, open (the driver's own entry comes out), mixed, absent, or phantom."""
        found: dict[tuple[str, str], Counter[str]] = {}
        for (route, _), answer in self.shimmed.items():
            if answer.pointer in ("entry", "wrapper"):
                found.setdefault((answer.function, route), Counter())[answer.pointer] += 1
        routes = [route for route in ROUTES if any(key[0] == route for key in self.shimmed)]
        words = {(): "absent", ("wrapper",): "covered", ("entry",): "open"}

        def word(name: str, route: str) -> str:
            if (key := (route, name)) in self.plain and key in self.shimmed and self._phantom(key):
                return "phantom"
            return words.get(tuple(sorted(found.get((name, route), ()))), "mixed")

        return {name: {route: word(name, route) for route in routes} for name in surface.DRIVER}

    @property
    def substituted(self) -> int:
        return sum(
            answer.pointer == "wrapper" and key in self.plain and not self._phantom(key)
            for key, answer in self.shimmed.items()
        )

    @property
    def conforms(self) -> bool:
        """Nothing differs, and the shim does something: an inert one differs in nothing."""
        return not self.differences and self.substituted > 0

    def as_json(self) -> dict[str, object]:
        return {
            "schema": "cuinterpose.conform/1",
            "conforms": self.conforms,
            "libcuda": self.libcuda,
            "shim": self.shim,
            "questions": len(self.plain),
            "substituted": self.substituted,
            "differences": [
                {"route": key[0], "asked": key[1], "plain": str(plain), "shimmed": str(shimmed)}
                for key, plain, shimmed in self.differences
            ],
            "coverage": self.coverage,
        }


def _probe(libcuda: str, probe: Path, shim: Path | None, libcudart: str | None) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "CUINTERPOSE_DISABLE")
    }
    if shim:
        environment["LD_PRELOAD"] = str(launcher.clean_path(shim))
    arguments = [libcuda, str(probe)]
    if libcudart:
        generation = re.search(r"libcudart\.so\.(\d+)", libcudart)
        if not generation:
            raise ConformError(f"{libcudart}: not named libcudart.so.N; the generation decides how it is called")
        arguments += [libcudart, generation[1]]
    try:
        return subprocess.run(
            [sys.executable, "-c", _CHILD, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        how = "with" if shim else "without"
        raise ConformError(f"{libcuda}: no end of the probe after {_TIMEOUT_S} s {how} the shim") from None


def _ending(done: subprocess.CompletedProcess[str]) -> str:
    how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit {done.returncode}"
    return f"{how} {(done.stderr.strip().splitlines() or [''])[-1]}".strip()


def _parse(text: str) -> Transcript:
    transcript: Transcript = {}
    for line in text.splitlines():
        if line.count("\t") != 4:
            continue  # a shim's own words; an answer that they spoil is missed below
        route, asked, result, kind, status = line.split("\t")
        pointer, _, function = kind.partition(" ")
        transcript[route, asked] = Answer(result, pointer, function, status)
    return transcript


def compare(libcuda: str, shim: Path, libcudart: str | None = None) -> Conformance:
    """Runs the probe twice. ConformError if it does not even run without the shim; a crash with it is a difference."""
    probe = launcher.native_path(launcher.PROBE)
    plain = _probe(libcuda, probe, None, libcudart)
    if plain.returncode:
        raise ConformError(
            f"{libcuda}: the probe failed without the shim: {_ending(plain)}; name another with --libcuda"
        )
    shimmed = _probe(libcuda, probe, shim, libcudart)
    if "cannot be preloaded" in shimmed.stderr:
        raise ConformError(f"{shim}: {shimmed.stderr.strip().splitlines()[0]}")
    answers = _parse(plain.stdout)
    if not any(route.startswith("cuGetProcAddress") for route, _ in answers):
        raise ConformError(f"{libcuda}: exports no cuGetProcAddress: no driver, or one older than 11.3; name another")
    if shimmed.returncode:
        end = ("probe", "end")
        crashed = {end: Answer(_ending(shimmed), "other", "", "-")}
        return Conformance(libcuda, str(shim), {end: Answer("exit 0", "other", "", "-")}, crashed)
    return Conformance(libcuda, str(shim), answers, _parse(shimmed.stdout))
