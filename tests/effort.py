"""How far the tests look: how many examples Hypothesis tries, and how much of a sweep is left to the slow tests.

``quick``, the default, and ``ci``, which .ci/run chooses, find the same examples every time; ``nightly`` and ``deep`` look
further, with other examples each time. HYPOTHESIS_PROFILE names one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, settings

__all__ = ["choose", "examples", "part", "sampled"]

T = TypeVar("T")

_CI: Final = 300
_FURTHEST: Final = 1000


def _profile(name: str, examples: int, *, derandomize: bool = False) -> None:
    settings.register_profile(
        name,
        derandomize=derandomize,
        max_examples=examples,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )


_profile("quick", 50, derandomize=True)
_profile("ci", _CI, derandomize=True)
_profile("nightly", _FURTHEST)
_profile("deep", 20_000)


def choose(name: str) -> None:
    """Take this profile for every property whose settings are made from now on."""
    settings.load_profile(name)


def examples(in_ci: int, *, least: int = 5) -> int:
    """How many examples a property is tried with that gets ``in_ci`` of them under the profile ``ci``.

    In proportion under the others, though never fewer than ``least``, and under ``deep`` no more than under ``nightly``:
    such properties would not end within the time that a test has.
    """
    return max(min(least, in_ci), in_ci * min(settings().max_examples, _FURTHEST) // _CI)


def part(values: Sequence[T]) -> Sequence[T]:
    """All of these under ``ci`` and what looks further, and one of every six under ``quick``, for a loop within one test."""
    return values[:: max(1, _CI // settings().max_examples)]


def sampled(values: Iterable[Any], *, every: int = 8) -> list[Any]:
    """For ``parametrize``: the first of these, the last, and one of ``every`` between; all others are marked slow.

    A tuple is the values of several arguments.
    """
    listed = [value if isinstance(value, tuple) else (value,) for value in values]
    kept = {*range(0, len(listed), every), len(listed) - 1}
    return [pytest.param(*each, marks=() if at in kept else pytest.mark.slow) for at, each in enumerate(listed)]
