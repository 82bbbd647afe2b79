"""How many examples Hypothesis tries: its profiles, and shares of them for properties whose examples cost more than most.

``quick``, the default, and ``ci``, which .ci/run chooses, find the same examples every time; ``nightly`` and ``deep`` look
further, with other examples each time. HYPOTHESIS_PROFILE names one.
"""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, settings

__all__ = ["choose", "examples"]

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
