"""A C union for construct, which has none that keeps the bytes that no member covers."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import construct
from construct.core import stream_read, stream_write

__all__ = ["Overlay"]


class Overlay(construct.Construct):
    """Members by name over the same ``size`` bytes, which stay at hand as ``_raw``."""

    def __init__(self, size: int, members: Mapping[str, Any]) -> None:
        super().__init__()
        self._size = size
        self._members = members

    def _parse(self, stream: BytesIO, context: Any, path: str) -> Any:
        raw = stream_read(stream, self._size, path)
        parsed = construct.Container(_raw=raw)
        for name, member in self._members.items():
            parsed[name] = member._parsereport(BytesIO(raw), context, f"{path} -> {name}")
        return parsed

    def _build(self, obj: Any, stream: BytesIO, context: Any, path: str) -> Any:
        raw = bytearray(obj.get("_raw") or bytes(self._size))
        for name, member in self._members.items():
            if name in obj and ("_raw" not in obj or obj[name] != member.parse(obj["_raw"])):
                raw[: member.sizeof()] = member.build(obj[name])
        stream_write(stream, bytes(raw), self._size, path)
        return obj

    def _sizeof(self, context: Any, path: str) -> int:
        return self._size
