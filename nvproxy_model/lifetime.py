"""Since when and until when something is in the driver: releases of the version tree, each with its descendants."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Lineage", "Releases", "alive", "releases"]

Releases = str | tuple[str, ...]
"""One release, or several where a change was backported to other branches."""


class Lineage(Protocol):
    """A release: which nodes of the version tree it is, or descends from."""

    def descends_from(self, version: str) -> bool:
        """Whether ``version`` is this release or an ancestor of it."""


def releases(text: Releases) -> tuple[str, ...]:
    """One release or several, as a tuple."""
    return (text,) if isinstance(text, str) else text


def alive(since: tuple[str, ...], until: tuple[str, ...], version: Lineage | None) -> bool:
    """Whether something is there at a release; None asks for the newest state, in which nothing that ended is left.

    ``since``: it begins at each of these; empty for always. ``until``: it is gone from each of these on.
    """
    if version is None:
        return not until
    return (not since or any(map(version.descends_from, since))) and not any(map(version.descends_from, until))
