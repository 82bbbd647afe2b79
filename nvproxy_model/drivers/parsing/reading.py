"""Releases of a source, read: what they have in common is parsed once, and nothing that the cache has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from importlib.metadata import version as installed
from typing import Any

from nvproxy_model.drivers.parsing import scan, units
from nvproxy_model.drivers.parsing.cache import Cache
from nvproxy_model.drivers.parsing.headers import EXTRACTION
from nvproxy_model.drivers.parsing.processes import Readable, parse, place
from nvproxy_model.drivers.parsing.units import Part, Unit
from nvproxy_model.drivers.release import Release, Wanted, reachable, unpack_release
from nvproxy_model.errors import SourceError

__all__ = ["parse_releases"]


def parse_releases(source: Readable, versions: list[str], wanted: Wanted | None, use_cache: bool) -> Iterator[Release]:
    """The releases in the order asked for, each as soon as all that it needs is parsed. Raises SourceError."""
    cache = Cache() if use_cache else None
    reading = _Reading(source, wanted, cache)
    try:
        with closing(parse(source, reading.units(versions))) as parsed:
            for index, version in enumerate(versions):
                while not reading.complete(index) and (answered := next(parsed, None)) is not None:
                    reading.take(*answered)
                yield reading.release(index)._replace(version=version)
    finally:
        if cache:
            cache.trim()


class _Reading:
    """What is known of the releases so far. A release's key is the digest of its headers and of what is asked of them."""

    def __init__(self, source: Readable, wanted: Wanted | None, cache: Cache | None) -> None:
        self._source, self._wanted, self._cache = source, wanted, cache
        names = None if wanted is None else (sorted(wanted.structs), sorted(wanted.constants))
        self._tool = (EXTRACTION, installed("libclang"), names)
        self._modeset = wanted is None or wanted.modeset
        self._names = frozenset(() if wanted is None else (name.encode() for name in wanted.structs | wanted.constants))
        self._declared: dict[frozenset[bytes], frozenset[bytes]] = {}
        self._keys: list[str] = []
        self._headers: dict[str, int] = {}
        self._parts: dict[str, list[Part]] = {}
        self._units: dict[Part, Unit] = {}
        """The unit that answers, or will answer, for a part."""
        self._answers: dict[Unit, dict[str, Any]] = {}
        self._releases: dict[str, Release] = {}

    def units(self, versions: Iterable[str]) -> Iterator[Unit]:
        """What has to be parsed, release by release: a release is looked at when the units before it are under way."""
        known: dict[tuple[str, ...], str] = {}
        identities = self._source.identities(versions)
        for version in versions:
            identity = identities[version]
            unit = None
            if identity not in known:
                content, closed = self._content(version, identity)
                key = known[identity] = _digest("release", self._tool, content)
                if key not in self._parts and key not in self._releases:
                    stored = self._cache.get(key) if self._cache else None
                    if stored is not None:
                        self._unpack(key, json.loads(stored))
                    else:
                        unit = self._plan(key, version, closed or self._closure(version))
            self._keys.append(known[identity])
            if unit is not None:
                yield unit

    def _plan(self, key: str, version: str, headers: scan.Headers) -> Unit | None:
        """The unit for what no release before has, or None where those have all of it."""
        files = headers.files
        self._headers[key] = len(scan.roots(files, self._modeset))
        if self._wanted is None:
            fresh = self._parts[key] = [Part(frozenset(), frozenset(), frozenset(files.items()))]
            unit = Unit(version, files, None, None, files)
        else:
            said = self._source.said({path: files[path] for path in headers.includes})
            self._parts[key] = units.parts(headers, self._asked(said), said, self._wanted)
            fresh = [part for part in self._parts[key] if part not in self._units]
            if not fresh:
                return None
            unit = units.unit(version, files, fresh, self._wanted)
        self._units |= dict.fromkeys(fresh, unit)
        return unit

    def _asked(self, said: Mapping[str, scan.Said]) -> dict[str, frozenset[bytes]]:
        """Path -> the names asked for that a header may declare; equal headers are looked at once.

        A name that none declares may stand where a header was cut short, or be made by a macro.
        """
        for each in said.values():
            if each.words not in self._declared:
                self._declared[each.words] = self._names & each.words
        asked = {path: self._declared[each.words] for path, each in said.items()}
        missing = self._names.difference(*asked.values())
        pasting = frozenset[bytes]().union(*(each.pastes for each in said.values()))
        told = {path for path, each in said.items() if each.finished and pasting.isdisjoint(each.calls)}
        return {path: found for path, names in asked.items() if (found := names if path in told else names | missing)}

    def take(self, unit: Unit, answer: bytes) -> None:
        """Note what a unit's parser answered."""
        packed = self._answers[unit] = json.loads(answer)
        self._source.table.rows.update(packed["rows"])

    def complete(self, index: int) -> bool:
        """Whether all that a release needs is parsed."""
        if index >= len(self._keys):
            return False
        key = self._keys[index]
        return key in self._releases or all(self._units[part] in self._answers for part in self._parts[key])

    def release(self, index: int) -> Release:
        """A release that is complete."""
        key = self._keys[index]
        if key not in self._releases:
            packed = self._packed(key)
            if self._cache:
                rows = reachable(self._source.table.rows, packed["structs"].values())
                self._cache.put(key, json.dumps(packed | {"rows": rows}, separators=(",", ":")).encode())
            self._unpack(key, packed)
        return self._releases[key]

    def _packed(self, key: str) -> dict[str, Any]:
        """A release as its parts' answers have it. The rows of its layouts are in the source's table."""
        parts = self._parts[key]
        if self._wanted is None:
            return self._answers[self._units[parts[0]]] | {"rows": {}}
        found: dict[str, dict[str, Any]] = {
            kind: {} for kind in ("structs", "constants", "enums", "params", "embedded")
        }
        parsed: set[str] = set()
        for part in parts:
            answer = self._answers[self._units[part]]
            parsed |= part.starts
            for kind in ("constants", "enums", "params"):
                found[kind] |= {name: answer[kind][name] for name in part.names if name in answer[kind]}
            structs = {*part.names, *(answer["params"].get(name) for name in part.names)}
            found["structs"] |= {name: answer["structs"][name] for name in structs if name in answer["structs"]}
            if not part.names:
                found["embedded"] = answer["embedded"]
        ordered = {kind: dict(sorted(values.items())) for kind, values in found.items()}
        return {"headers": self._headers[key], "parsed": len(parsed), "rows": {}, **ordered}

    def _unpack(self, key: str, packed: Mapping[str, Any]) -> None:
        self._releases[key] = unpack_release("", packed, str(self._source.path), self._source.table)

    def _content(self, version: str, identity: tuple[str, ...]) -> tuple[str, scan.Headers | None]:
        """A digest of the headers that a release's ABI is made of, and those headers unless the cache knew the digest.

        What they are takes reading them (``source.closure``), so the digest is remembered by the release's identity.
        """
        key = _digest("content", EXTRACTION, self._modeset, identity)
        stored = self._cache.get(key) if self._cache else None
        if stored is not None:
            return stored.decode(), None
        closed = self._closure(version)
        content = _digest(sorted(closed.files.items()))
        if self._cache:
            self._cache.put(key, content.encode())
        return content, closed

    def _closure(self, version: str) -> scan.Headers:
        try:
            return self._source.closure(self._source.files(version), self._modeset)
        except SourceError as error:
            raise error.at(place(self._source, version)) from None


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
