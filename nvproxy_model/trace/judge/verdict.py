"""The one place where what was found becomes a verdict and an exit status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from nvproxy_model.trace.judge.groups import MISSING, Group

__all__ = ["EXITS", "Verdict", "Word", "decide"]

Word = Literal["admitted", "refused", "cannot tell"]
"""How a verdict reads."""
EXITS: Final[Mapping[Word, int]] = {"admitted": 0, "refused": 1, "cannot tell": 2}
"""Verdict -> exit status."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``word`` is a key of `EXITS`; ``why`` says in whole sentences what could not be told."""

    word: Word
    why: tuple[str, ...] = ()

    @property
    def exit(self) -> int:
        """The exit status of a command that gives this verdict."""
        return EXITS[self.word]


def decide(groups: Mapping[Group, int], doubts: Sequence[str]) -> Verdict:
    """The verdict on distinct calls by group. ``doubts``: reasons, besides the groups, why an admission would not be sure."""
    why = list(doubts)
    if groups.get("cannot-tell"):
        count = groups["cannot-tell"]
        depend = "kinds of calls depend" if count != 1 else "kind of call depends"
        why.append(f"{count} {depend} on what this log does not hold")
    if any(groups.get(group) for group in MISSING):
        return Verdict("refused", tuple(why))
    return Verdict("cannot tell" if why else "admitted", tuple(why))
