"""Public names that are imported on first use: the one mechanism by which a package keeps its import cheap (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

__all__ = ["lazy"]


def lazy(
    package: str, names_by_module: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """A package's ``__getattr__`` and ``__dir__``, from its modules (relative to the package) and their public names."""
    places = {name: f"{package}.{module}" for module, names in names_by_module.items() for name in names}

    def get(name: str) -> object:
        place = places.get(name)
        if place is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(place), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted(places)

    return get, names
