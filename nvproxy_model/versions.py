"""Driver releases as a tree, from driver_versions.yaml.

Importing PyYAML takes longer than all else that a decision needs, so the table is shipped as JSON too, with the checksum of
the text that it was made of: where the two do not belong together, the YAML is read.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from nvproxy_model.errors import DefinitionError, UnknownDriverVersion, UnsupportedDriverVersion
from nvproxy_model.followed import LATER

__all__ = ["DERIVED", "PROC", "DriverVersion", "Tree", "derived", "host", "load", "numbers"]

PROC: Final = Path("/proc/driver/nvidia/version")
"""Where a loaded kernel module names its release."""

TABLE: Final = Path(__file__).with_name("driver_versions.yaml")
DERIVED: Final = TABLE.with_suffix(".json")
"""What `derived` gives for the shipped table; ``python -m nvproxy_model.tools.pages --docs`` writes it."""


class DriverVersion:
    """One release.

    ``name``: as NVIDIA writes it. ``parent``: the release that it descends from, None for the root.
    ``supported``: whether nvproxy runs it without an opt-in. ``sha256``: of NVIDIA's installers, by architecture.
    ``lineage``: this release's name, then its ancestors' up to the root. ``later``: the entry of
    `nvproxy_model.followed.LATER` that brought the node; None if the followed revision has it.
    """

    __slots__ = ("later", "lineage", "name", "parent", "sha256", "supported")

    def __init__(
        self,
        name: str,
        parent: DriverVersion | None,
        supported: bool,
        sha256: Mapping[str, str],
        lineage: tuple[str, ...],
        later: str | None = None,
    ) -> None:
        self.name: Final = name
        self.parent: Final = parent
        self.supported: Final = supported
        self.sha256: Final = sha256
        self.lineage: Final = lineage
        self.later: Final = later

    def descends_from(self, version: str) -> bool:
        """Whether ``version`` is this release or an ancestor of it."""
        return version in self.lineage

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"DriverVersion({self.name!r})"

    def __reduce__(self) -> tuple[object, ...]:
        # A release is a node of the shipped tree: a copy, in this process or another, is that node.
        return _node, (self.name,)


def numbers(text: str) -> tuple[int, int, int]:
    """The three numbers of a version, for sorting and for naming neighbours; ancestry is never judged by them.

    Two or three dot-separated integers, a missing third being 0 (pkg/sentry/devices/nvproxy/nvconf: DriverVersionFrom).
    Raises ValueError.
    """
    parts = text.split(".")
    if not 2 <= len(parts) <= 3 or not all(
        part.isascii() and part.lstrip("+-").isdigit() and len(part) < 10 for part in parts
    ):
        raise ValueError(f"{text!r} is not a driver version: want two or three numbers such as 580.126.20")
    major, minor, patch = (*map(int, parts), *[0] * (3 - len(parts)))
    return major, minor, patch


def host(path: Path = PROC) -> str | None:
    """The release of the kernel module that this machine has loaded, or None where there is none."""
    try:
        found = re.search(r"\b(\d{3,4}\.\d+(?:\.\d+)?)\b", path.read_text(errors="replace"))
    except OSError:
        return None
    return found[1] if found else None


class Tree(Mapping[str, DriverVersion]):
    """All known releases by name, in the order of the file: a parent stands before its children."""

    def __init__(self, releases: Mapping[str, Mapping[str, Any]]) -> None:
        self._nodes: dict[str, DriverVersion] = {}
        for name, facts in releases.items():
            parent = facts.get("parent")
            if parent is not None and parent not in self._nodes:
                raise DefinitionError(f"driver_versions.yaml: {name}: its parent {parent} must stand before it")
            above = self._nodes[parent] if parent else None
            later = facts.get("later")
            if later is not None and later not in LATER:
                raise DefinitionError(f"driver_versions.yaml: {name}: nvproxy_model/followed.py has no entry {later!r}")
            lineage = (name, *(above.lineage if above else ()))
            self._nodes[name] = DriverVersion(name, above, facts["supported"], facts.get("sha256", {}), lineage, later)
        self._by_numbers = {numbers(name): node for name, node in self._nodes.items()}

    def __getitem__(self, name: str) -> DriverVersion:
        return self._nodes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def latest(self) -> DriverVersion:
        """The supported release with the highest number: nvproxy's ``latest``."""
        return self._by_numbers[max(key for key, node in self._by_numbers.items() if node.supported)]

    def nearest(self, text: str) -> list[str]:
        """The known releases just below and just above, by number; for messages only."""
        try:
            wanted = numbers(text)
        except ValueError:
            return [self.latest.name]
        below = [key for key in self._by_numbers if key < wanted]
        above = [key for key in self._by_numbers if key > wanted]
        return [self._by_numbers[key].name for key in ([max(below)] if below else []) + ([min(above)] if above else [])]

    def find(self, text: str, *, allow_unsupported: bool = False) -> DriverVersion:
        """The release that a host names, exactly: nvproxy has no nearest-version fallback.

        Raises UnknownDriverVersion, which names the neighbours, or UnsupportedDriverVersion without the opt-in.
        """
        try:
            node = self.latest if text == "latest" else self._by_numbers.get(numbers(str(text)))
        except ValueError as error:
            raise UnknownDriverVersion(str(error)) from None
        if node is None:
            near = " and ".join(self.nearest(text))
            raise UnknownDriverVersion(f"driver {text} is not in driver_versions.yaml; nearest known: {near}")
        if not (node.supported or allow_unsupported):
            raise UnsupportedDriverVersion(f"driver {node} is known but not supported: opt in with allow_unsupported")
        return node


def _node(name: str) -> DriverVersion:
    return load()[name]


_LOADED: dict[Path | None, Tree] = {}


def load(path: Path | None = None) -> Tree:
    """The tree of the shipped driver_versions.yaml, or of another file of its form. Raises DefinitionError.

    A file is one tree, whichever thread asks first: releases are compared by identity.
    """
    return _LOADED.get(path) or _LOADED.setdefault(path, _read(path))


def derived() -> str:
    """The shipped table as JSON, with the checksum of its YAML. Raises DefinitionError."""
    text = TABLE.read_bytes()
    return json.dumps({"crc32": zlib.crc32(text), "releases": _parsed(text, TABLE.name)}, indent=1) + "\n"


def _read(path: Path | None) -> Tree:
    name = (path or TABLE).name
    text = (path or TABLE).read_bytes()
    releases = (_kept(zlib.crc32(text)) if path is None else None) or _parsed(text, name)
    try:
        return Tree(releases)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DefinitionError(f"{name}: not a table of releases: {error}") from None


def _kept(crc32: int) -> Any:
    """The releases of the shipped JSON; None if it is not there or was made of another text."""
    try:
        kept = json.loads(DERIVED.read_bytes())
    except (OSError, ValueError):
        return None
    return kept["releases"] if kept["crc32"] == crc32 else None


def _parsed(text: bytes, name: str) -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))["releases"]
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise DefinitionError(f"{name}: not a table of releases: {error}") from None
