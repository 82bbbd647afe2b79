"""The driver without coverage: seeded mutations of the corpus. ``python -m tests.fuzz.mutate TARGET --seconds N``.

It changes, cuts, repeats and joins bytes, lines and numbers. Each case has ten seconds; what takes longer is a finding.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from tests.fuzz.targets import TARGETS, seeds

__all__ = ["fuzz", "main", "mutated"]

_INTERESTING: Final = (
    b"\0",
    b"\xff",
    b"\x7f",
    b"\n",
    b"\0" * 8,
    b"\xff" * 8,
    b"\xed\xa0\x80",
    b"-",
    b"0x",
    b"\x1b[",
    b'"',
    b"{}",
)
_NUMBERS: Final = (
    b"0",
    b"-1",
    b"4294967295",
    b"9223372036854775807",
    b"18446744073709551616",
    b"099",
    b"0x5",
    b"1e999",
)
_NUMBER: Final = re.compile(rb"0x[0-9a-fA-F]+|\d+")
_LARGEST: Final = 1 << 16
_SECONDS: Final = 10
_KEPT: Final = 20


class Slow(Exception):
    """A case that took too long."""


def mutated(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """One of the corpus, changed at one to eight places."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        size = min(rng.choice((1, 1, 2, 4, 8, 30, 200)), len(data) - at)
        how = rng.randrange(9)
        if how == 0 and size:
            data[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            data[at : at + size] = rng.randbytes(size)
        elif how == 2:
            del data[at : at + size]
        elif how == 3:
            data[at:at] = data[at : at + size] * rng.choice((1, 2, 50))
        elif how == 4:
            data[at : at + size] = rng.choice(_INTERESTING)
        elif how == 5:
            other = rng.choice(corpus)
            start = rng.randrange(len(other) + 1)
            data[at : at + size] = other[start : start + rng.choice((1, 8, 60, 400))]
        elif how == 6:
            numbers = list(_NUMBER.finditer(data, max(at - 40, 0), at + 40))
            if numbers:
                found = rng.choice(numbers)
                data[found.start() : found.end()] = rng.choice(_NUMBERS)
        elif how == 7:
            rows = data.split(b"\n")
            i, j = rng.randrange(len(rows)), rng.randrange(len(rows))
            rows[i], rows[j] = rows[j], rows[i]
            data = bytearray(b"\n".join(rows))
        else:
            del data[at:]
        if len(data) > _LARGEST:
            del data[_LARGEST:]
    return bytes(data)


def _slow(_: int, __: FrameType | None) -> None:
    raise Slow(f"a case took more than {_SECONDS} s")


def fuzz(
    run: Callable[[bytes], None], corpus: Sequence[bytes], *, seconds: float, cases: int | None = None, seed: int = 0
) -> tuple[int, dict[str, bytes]]:
    """How many cases ran, and findings: the place of the exception -> the smallest input that raised it."""
    rng = random.Random(seed)
    found: dict[str, bytes] = {}
    count = 0
    end = time.monotonic() + seconds
    before = signal.signal(signal.SIGALRM, _slow)
    try:
        for count, data in enumerate(_inputs(rng, corpus), 1):
            signal.alarm(_SECONDS)
            try:
                run(data)
            except Exception as error:
                last = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {str(error)[:100]!r}"
                key = where.partition(": ")[0]
                if len(found) < _KEPT and len(data) < len(found.get(key, b"x" * (_LARGEST + 1))):
                    found[key] = data
            finally:
                signal.alarm(0)
            if time.monotonic() > end or count == cases:
                break
    finally:
        signal.signal(signal.SIGALRM, before)
    return count, found


def _inputs(rng: random.Random, corpus: Sequence[bytes]):  # type: ignore[no-untyped-def]
    yield from corpus
    while True:
        yield mutated(rng, corpus)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one target; one line a finding on standard error, the count on standard output."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--findings", type=Path, help="a folder for the inputs that failed")
    args = parser.parse_args(argv)
    count, found = fuzz(TARGETS[args.target].run, seeds(args.target), seconds=args.seconds, seed=args.seed)
    for where, data in found.items():
        name = f"{args.target}-{hashlib.sha256(data).hexdigest()[:12]}"
        print(f"{args.target}: {where} ({len(data)} bytes: {name})", file=sys.stderr)
        if args.findings:
            args.findings.mkdir(parents=True, exist_ok=True)
            (args.findings / name).write_bytes(data)
    print(count)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
