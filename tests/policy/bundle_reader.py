"""A proxy's decision from a bundle alone: written from docs/bundle.md and the schema, with nothing of nvproxy_model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

EINVAL, EFAULT = 22, 14

Json = Mapping[str, Any]
File = tuple[str, int]
"""A guest's file: its kind, and the host's descriptor."""


class Answer(NamedTuple):
    """What becomes of a call. ``copies``: (offset, address, bytes, copy in, late, pinned, writable)."""

    verdict: str
    errno: int = 0
    status: int | None = None
    params: bytes | None = None
    depends: tuple[int, ...] = ()
    copies: tuple[tuple[int, int, int, bool, bool, bool, bool], ...] = ()


class _Refused(Exception):
    def __init__(self, how: Json) -> None:
        super().__init__()
        self.answer = Answer("reject", how.get("errno", 0), how.get("status"))


class Bundle:
    """The decisions of one release for some capabilities."""

    def __init__(
        self, document: Json, release: str, caps: Collection[str], extra: Collection[int] = (), pending: bool = False
    ) -> None:
        names = [entry["release"] for entry in document["releases"]]
        index = names.index(release)
        self.document, self.extra, self.pending = document, extra, pending
        self.caps = sum(document["capabilities"][name] for name in caps)
        self.rows = {
            table: {
                row["number"]: row for row in of["rows"] if any(first <= index <= last for first, last in row["in"])
            }
            for table, of in document["tables"].items()
        }
        self.shut = {
            table: of["gate"] is not None
            and not any(
                row["caps"] & self.caps for row in self.rows["frontend"].values() if row["name"] == of["gate"]["row"]
            )
            for table, of in document["tables"].items()
        }

    def decide(self, table: str, number: int, data: bytes | None, fds: Mapping[int, File]) -> Answer:
        """The answer for a request of frontend or uvm, a control command or a class, with its bytes."""
        try:
            return self._decide(table, number, data, fds)
        except _Refused as refused:
            return refused.answer

    def _decide(self, table: str, number: int, data: bytes | None, fds: Mapping[int, File]) -> Answer:
        if table == "frontend":
            return self._frontend(number, data, fds)
        event = self.document["event"]
        if table == "alloc" and number == event["number"] and not self.shut[table]:
            if data is None or len(data) < event["offset"] + event["width"]:
                raise _Refused(event["short"])
            number = _read(data, event)
            if number == event["number"]:
                raise _Refused(self.document["tables"][table]["unknown"])
        row = self._row(table, number)
        if row is None or not row.get("exact"):
            if table == "control" and data is not None and len(data) > self.document["control_bytes"]:
                raise _Refused({"errno": EINVAL})
            return Answer("allow", params=data)
        return self._exact(row, data, fds)

    def _frontend(self, request: int, data: bytes | None, fds: Mapping[int, File]) -> Answer:
        row = self._row("frontend", request & 0xFF)
        if row is None or not row.get("exact"):
            return Answer("allow", params=data)
        size, inner = request >> 16 & 0x3FFF, row.get("inner")
        if size != row["size"] and (inner is None or size not in inner["sizes"]):
            raise _Refused({"errno": EINVAL})
        if data is not None and len(data) != size:
            raise _Refused({"errno": EINVAL})
        if inner is None or data is None:
            return self._exact(row, data, fds)
        number = _read(data, inner)
        if inner["table"] != "alloc" or number != self.document["event"]["number"] or self.shut["alloc"]:
            self._row(inner["table"], number)
        return Answer("allow", params=data)

    def _row(self, table: str, number: int) -> Json | None:
        """The row that admits a number, None for one that a window admits. Raises _Refused."""
        of = self.document["tables"][table]
        if self.shut[table]:
            raise _Refused(of["gate"]["refuse"])
        row: Json | None = self.rows[table].get(number)
        if row is None:
            windows = self.document["windows"] if table == "control" else ()
            if any(number & window["mask"] == window["value"] for window in windows):
                return None
            raise _Refused(of["unknown"])
        if "refuse" in row:
            raise _Refused(row["refuse"])
        asked = not row.get("opt_in") or number in self.extra
        if not asked or (row.get("pending") and not self.pending) or not row["caps"] & self.caps:
            raise _Refused(of["unknown"])
        return row

    def _exact(self, row: Json, data: bytes | None, fds: Mapping[int, File]) -> Answer:
        if data is None:
            if row.get("null") == "admit":
                return Answer("allow")
            raise _Refused({"errno": EFAULT})
        if len(data) != row["size"]:
            raise _Refused({"errno": EINVAL})
        call = _Call(data, fds, self.document["page"])
        for field in self.document["layouts"][row["layout"]]["fields"]:
            if all(_holds(call.data, condition) for condition in field.get("when", ())):
                getattr(call, field["role"])(field)
        verdict = "translate" if call.translated else "allow"
        return Answer(verdict, 0, None, bytes(call.data), tuple(call.depends), tuple(call.copies))


def _read(data: bytes | bytearray, at: Json) -> int:
    return int.from_bytes(data[at["offset"] : at["offset"] + at["width"]], "little")


def _holds(data: bytearray, condition: Json) -> bool:
    value = _read(data, condition)
    return value in condition["in"] if "in" in condition else value not in condition["not"]


class _Call:
    """One struct on its way through its fields: a method for each role."""

    def __init__(self, data: bytes, fds: Mapping[int, File], page: int) -> None:
        self.data, self.fds, self.page = bytearray(data), fds, page
        self.translated = False
        self.depends: list[int] = []
        self.copies: list[tuple[int, int, int, bool, bool, bool, bool]] = []

    def put(self, field: Json, value: int) -> None:
        self.data[field["offset"] : field["offset"] + field["width"]] = value.to_bytes(field["width"], "little")
        self.translated = True

    def pointer(self, field: Json) -> None:
        pass

    status = pointer

    def handle(self, field: Json) -> None:
        if "dims" in field:
            return
        value = _read(self.data, field)
        if "required" in field and not value:
            raise _Refused(field["required"])
        if "depends" in field and value not in field["depends"]:
            self.depends.append(value)

    def fd(self, field: Json) -> None:
        value = _read(self.data, field)
        low = value & 0xFFFFFFFF
        number = low - (1 << 32) if low >> 31 else low
        if value == field.get("none") or (field.get("negative") and number < 0):
            return
        if "host" in field:
            self.put(field, field["host"])
            return
        kind, host = self.fds.get(number, (None, -1))
        if kind != field["file"]:
            raise _Refused(field["refuse"])
        self.put(field, host)

    def buffer(self, field: Json) -> None:
        address = _read(self.data, field)
        if not address and field["null"] == "forward":
            return
        count = _read(self.data, field["count"]) if "count" in field else field["elements"]
        size = (count * count if field.get("square") else count) * field["element"]
        if size > field["limit"] or (not size and field["empty"] == "refuse"):
            raise _Refused(field["refuse"])
        if address:
            self.put(field, 0)
        if size and (address or field["null"] == "copy"):
            self.translated = True
            self.copies.append(
                (field["offset"], address, size, field["copy_in"], field.get("late", False), False, True)
            )

    def null(self, field: Json) -> None:
        if _read(self.data, field):
            raise _Refused(field["refuse"])

    def clear(self, field: Json) -> None:
        if _read(self.data, field):
            self.put(field, 0)

    def value(self, field: Json) -> None:
        if _read(self.data, field) not in field["in"]:
            raise _Refused(field["refuse"])

    def set(self, field: Json) -> None:
        self.put(field, field["to"])

    def max(self, field: Json) -> None:
        if _read(self.data, field) > field["to"]:
            self.put(field, field["to"])

    def pin(self, field: Json) -> None:
        address, size, of = _read(self.data, field), field.get("bytes"), field.get("bytes_of")
        if of is not None:
            size = (_read(self.data, of) * of["times"] + of["plus"]) & 0xFFFFFFFFFFFFFFFF
        if not address and "if_null" in field:
            raise _Refused(field["if_null"])
        if address % self.page:
            raise _Refused(field["if_unaligned"])
        if not size:
            raise _Refused(field["if_empty"])
        size = -(-size // self.page) * self.page
        if address + size >= 1 << 64:
            raise _Refused(field["if_end"])
        readable = field.get("read_only")
        writable = readable is None or not _read(self.data, readable) & readable["mask"]
        self.copies.append((field["offset"], address, size, True, False, True, writable))
        self.put(field, 0)


def _bits(call: _Call, field: Json) -> None:
    call.put(field, _read(call.data, field) | field["bits"])


setattr(_Call, "or", _bits)
