"""Each call by name, with every field of its struct in one driver release. Never fails on bytes: what cannot be known is said."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson

from nvproxy_model import ioctl
from nvproxy_model.abi.escapes import NV_ESC_IOCTL_XFER_CMD, NV_ESC_RM_ALLOC, NV_ESC_RM_CONTROL
from nvproxy_model.fields import Fd, Handle, OpaquePointer, Role, Status, UserPointer
from nvproxy_model.printable import escaped_json
from nvproxy_model.trace.decode.catalog import Catalog, Shape, is_bits
from nvproxy_model.trace.decode.layouts import changes, partial
from nvproxy_model.trace.format import TRUNCATED, UNFINISHED, Record
from nvproxy_model.trace.room import Room

__all__ = ["NOT_RECORDED", "NO_LAYOUT", "SCHEMA", "Decoder"]

SCHEMA: Final = "nvproxy-trace/decode/1"
"""The schema of what `decode` prints with ``--json``."""

NO_LAYOUT: Final = "no public layout"
"""Said of bytes whose struct is in no recorded header."""
NOT_RECORDED: Final = "not recorded"
"""Said of bytes that the trace does not hold."""

_CALLS: Final = 1 << 13
"""Distinct calls whose names and structs are remembered."""
_KEPT: Final = 64 << 20
"""Bytes of JSON that are remembered, with the bytes which they stand for: programs ask the same questions over and over."""
_ENVELOPE: Final = frozenset({"line", "k", "t", "pid", "tid", "d", "fd"})
"""What tells a call from the same call made again."""

_INNER: Final = {NV_ESC_RM_CONTROL: "command", NV_ESC_RM_ALLOC: "class"}
_ROLES: Final = (
    (Fd, "fd"),
    (Handle, "handle"),
    (UserPointer, "pointer"),
    (OpaquePointer, "opaque"),
    (Status, "status"),
)
_PARAMETERS: Final = ("params", "pAllocParms")


def role_name(role: Role) -> str:
    """``fd``, ``handle``, ``pointer`` (a buffer that a proxy copies), ``opaque`` (an address that it must not
    follow), ``status``.
    """
    return next(name for kind, name in _ROLES if isinstance(role, kind))


class _Part(NamedTuple):
    """A struct of one call, decoded: all that depends on nothing but its bytes before and after the call."""

    text: bytes
    """The object of the output, as JSON that is safe to show."""
    notes: tuple[str, ...]
    number: int | None
    """The command or class that an argument names, and below the address and the size of its parameters."""
    pointer: int
    size: int | None


class _Line(NamedTuple):
    """A record but for its envelope, decoded: all that is the same when a program makes a call again."""

    k: bytes
    pieces: tuple[bytes, ...]
    """Its JSON after the envelope. Every second piece is a `_Part`'s text, shared with it."""
    not_known: tuple[str, ...]


class _Struct:
    """What is the same for every call with one struct."""

    __slots__ = ("enums", "pointers", "roles", "shape")

    def __init__(self, shape: Shape, catalog: Catalog) -> None:
        self.shape = shape
        self.roles = {path: role_name(role) for path, role in shape.roles.items()}
        self.enums: list[tuple[str, list[str], Mapping[int, str], bool]] = []
        for leaf in shape.leaves:
            names = None if leaf.dims or "[]" in leaf.path else catalog.named_values(leaf, shape.name)
            if names is not None:
                self.enums.append((leaf.path, leaf.path.split("."), names, is_bits(names)))
        self.pointers = [
            (leaf.path, leaf.offset)
            for leaf in shape.leaves
            if isinstance(shape.roles.get(leaf.path), UserPointer) and leaf.path not in _PARAMETERS
        ]


def _flags(value: int, names: Mapping[int, str]) -> str | None:
    """The names of the bits that are set, and in hex what has none."""
    known = [(bit, name) for bit, name in sorted(names.items()) if bit & value]
    rest = value & ~sum(bit for bit, _ in known)
    return "|".join([name for _, name in known] + ([f"{rest:#x}"] if rest else [])) if known else None


def _fields(shape: Shape, data: bytes) -> dict[str, Any]:
    """Whole structs are read at once; short ones as far as they go."""
    return shape.read(data) if len(data) >= shape.size else partial(shape.layout, data)


def _unknown(before: bytes, after: bytes | None) -> dict[str, Any]:
    """Bytes without a layout."""
    out = {"struct": None, "unknown": len(before), "hex": before.hex()}
    return out if after is None else {**out, "changed_hex": after.hex()}


def _not_known(out: Mapping[str, Any]) -> tuple[str, ...]:
    """The notes of a decoded call that are counted."""
    notes = out.get("notes", ())
    return tuple(note for note in notes if note in (NO_LAYOUT, NOT_RECORDED) or note.startswith("truncated"))


def _line(out: Mapping[str, Any]) -> _Line:
    pieces: list[bytes] = []
    text = b""
    for name, value in out.items():
        if type(value) is bytes:
            pieces += (text + b',"%b":' % name.encode(), value)
            text = b""
        elif name not in _ENVELOPE:
            text += b"," + escaped_json(orjson.dumps({name: value}, default=orjson.Fragment)[1:-1])
    return _Line(out["k"].encode(), (*pieces, text + b"}\n"), _not_known(out))


_NOTHING: Final = _Part(b"", (), None, 0, None)
"""An argument that says nothing of its parameters."""


class Decoder:
    """Decodes the records of one trace. ``counts`` says how often each thing that could not be known was said."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.counts: Counter[str] = Counter()
        self._structs: dict[int, _Struct] = {}
        self._calls: dict[tuple[str, int, int], tuple[str | None, _Struct | None, _Struct | None]] = {}
        self._room = Room(_KEPT)
        self._parts: dict[tuple[_Struct, bytes | None, bytes | None], _Part] = {}
        self._lines: dict[bytes, _Line] = {}
        """By what the records say."""

    def _forget(self) -> None:
        self._room.clear()
        self._parts.clear()
        self._lines.clear()

    def _struct(self, shape: Shape | None) -> _Struct | None:
        if shape is None:
            return None
        found = self._structs.get(id(shape))
        if found is None:
            found = self._structs[id(shape)] = _Struct(shape, self.catalog)
        return found

    def _call(self, rec: Record) -> tuple[str | None, _Struct | None, _Struct | None]:
        key = (rec.kind, rec.key, rec.req)
        found = self._calls.get(key)
        if found is None:
            if len(self._calls) > _CALLS:
                self._calls.clear()
                self._structs.clear()
                self._forget()
            catalog = self.catalog
            inner = catalog.shape(rec.kind, rec.key) if rec.kind in ("control", "alloc") else None
            found = self._calls[key] = (
                catalog.name(rec.kind, rec.key),
                self._struct(catalog.outer(rec)),
                self._struct(inner),
            )
        return found

    def name(self, rec: Record) -> str | None:
        """NVIDIA's name for what an ioctl asks; None for another record, and for a number that nothing names."""
        return self._call(rec)[0] if rec.k == "ioctl" else None

    def record(self, rec: Record) -> dict[str, Any]:
        """One record as a JSON-able object: its envelope, ``arg`` and ``params`` with fields, and ``notes``."""
        out = self._decoded(rec)
        self.counts.update(_not_known(out))
        for holder in (out, out.get("via_xfer", {})):
            for name, value in holder.items():
                if type(value) is bytes:
                    holder[name] = orjson.loads(value)
        return out

    def line(self, rec: Record) -> bytes:
        """The same as a line of JSON, with the characters escaped that a terminal would act on.

        What was seen before is copied as text.
        """
        said = rec.said
        if said is None:
            out = self._decoded(rec)
            self.counts.update(_not_known(out))
            return escaped_json(orjson.dumps(out, default=orjson.Fragment, option=orjson.OPT_APPEND_NEWLINE))
        line = self._lines.get(said)
        if line is None:
            line = _line(self._decoded(rec))
            if self._room.take(len(said) + sum(map(len, line.pieces[::2]))):
                self._lines[said] = line
            else:
                self._forget()
        if line.not_known:
            self.counts.update(line.not_known)
        head = b'{"line":%d,"k":"%b","t":%d,"pid":%d,"tid":%d' % (rec.line, line.k, rec.t, rec.pid, rec.tid)
        if rec.d is not None:
            head += b',"d":%d' % rec.d
        if rec.fd >= 0:
            head += b',"fd":%d' % rec.fd
        return b"".join((head, *line.pieces))

    def _decoded(self, rec: Record) -> dict[str, Any]:
        """What `record` gives, with the parts as JSON."""
        out: dict[str, Any] = {"line": rec.line, "k": rec.k, "t": rec.t, "pid": rec.pid, "tid": rec.tid}
        if rec.d is not None:
            out["d"] = rec.d
        if rec.fd >= 0:
            out["fd"] = rec.fd
        if rec.dev is not None:
            out["dev"] = rec.dev
        out["ret"] = rec.ret
        if rec.err:
            out["errno"] = errno.errorcode.get(rec.err, str(rec.err))
        if rec.k != "ioctl":
            for field in ("flags", "addr", "len", "prot", "off", "va", "ppid", "how", "command"):
                if field in rec.raw:
                    out[field] = rec.raw[field]
            return out
        name, outer, inner = self._call(rec)
        out["kind"], out["number"], out["name"], out["request"] = rec.kind, rec.key, name, rec.req
        status = self._status(rec, outer)
        if status is not None:
            out["status"] = status
            out["status_name"] = self.catalog.statuses.get(status)
        notes: list[str] = []
        if rec.kind == "other":
            other = ioctl.foreign(rec.req)
            notes.append(
                f"{f'a request of {other}' if other else 'a device of another kind'}: its calls are not decoded"
            )
        else:
            said = self._argument(rec, outer, out, notes)
            if rec.kind in ("control", "alloc"):
                if said.number is not None and said.number != rec.key:
                    notes.append(f"the record says {rec.key:#x}, its bytes {said.number:#x}")
                self._parameters(rec, said, inner, out, notes)
        if rec.fl & UNFINISHED:
            notes.append("the process ended inside this call")
        if rec.refused is not None:
            notes.append(f"nvproxy: {rec.refused}")
        if notes:
            out["notes"] = notes
        return out

    @staticmethod
    def _status(rec: Record, outer: _Struct | None) -> int | None:
        if rec.status is not None:
            return rec.status
        data = rec.top
        at = outer.shape.status if outer is not None and rec.ret is not None else None
        if at is None or data is None or len(data) < at + 4:
            return None
        return int.from_bytes(data[at : at + 4], "little")

    def _part(self, struct: _Struct, before: bytes | None, after: bytes | None) -> _Part:
        """Equal bytes are read and written once."""
        found = self._parts.get((struct, before, after))
        if found is None:
            found = self._read(struct, before, after)
            if self._room.take(len(found.text) + len(before or b"") + len(after or b"")):
                self._parts[struct, before, after] = found
            else:
                self._forget()
        return found

    def _read(self, struct: _Struct, before: bytes | None, after: bytes | None) -> _Part:
        shape = struct.shape
        out: dict[str, Any] = {"struct": shape.name, "modelled": shape.modelled}
        notes: tuple[str, ...] = ()
        fields: dict[str, Any] = {}
        if before is not None:
            fields = out["fields"] = _fields(shape, before)
            if len(before) < shape.size:
                notes = (f"{shape.name} is {shape.size} bytes, {len(before)} were recorded",)
            if len(before) > shape.size:
                out["unknown"] = len(before) - shape.size
        if after is not None:
            new = _fields(shape, after)
            out["changed"] = changes(fields, new) if before is not None else new
        if struct.roles:
            out["roles"] = struct.roles
        names = self._names(struct, out)
        if names:
            out["names"] = names
        return _Part(
            # A copy, since orjson's own lies in a block of memory that was made for far more.
            bytes(memoryview(escaped_json(orjson.dumps(out)))),
            notes,
            fields.get("cmd", fields.get("hClass")),
            fields.get("params", fields.get("pAllocParms", 0)),
            fields.get("paramsSize"),
        )

    @staticmethod
    def _names(struct: _Struct, out: dict[str, Any]) -> dict[str, str]:
        names = {}
        for path, parts, enum, bits in struct.enums:
            for side in ("changed", "fields"):
                value: Any = out.get(side)
                for part in parts:
                    value = value.get(part) if isinstance(value, dict) else None
                if isinstance(value, int):
                    name = enum.get(value) or (_flags(value, enum) if bits else None)
                    if name is not None:
                        names[path] = name
                    break
        return names

    def _argument(
        self,
        rec: Record,
        outer: _Struct | None,
        out: dict[str, Any],
        notes: list[str],
    ) -> _Part:
        """Puts the argument into ``out``; what it says of its parameters."""
        size = outer.shape.size if outer is not None else ioctl.size(rec.req) if rec.kind == "fe" else 0
        missing = rec.top0 is None or (not rec.top0 and size > 0)
        if missing and size:
            notes.append(NOT_RECORDED)
            if rec.kind == "fe" and rec.key in _INNER:
                notes.append(f"the {_INNER[rec.key]} is in the argument, which this trace does not hold")
            return _NOTHING
        if outer is None:
            if rec.top0:
                notes.append(NO_LAYOUT)
                out["arg"] = _unknown(rec.top0, rec.top1)
            return _NOTHING
        part = self._part(outer, rec.top0, rec.top1)
        out["arg"] = part.text
        notes += part.notes
        self._buffers(rec, outer, rec.top0 or b"", out, notes)
        if rec.kind == "fe" and rec.key == NV_ESC_IOCTL_XFER_CMD:
            self._wrapped(rec, orjson.loads(part.text).get("fields", {}), out, notes)
        return part

    def _wrapped(
        self,
        rec: Record,
        fields: Mapping[str, Any],
        out: dict[str, Any],
        notes: list[str],
    ) -> None:
        """One level of nv_ioctl_xfer_t (nv.c: nvidia_ioctl()): the request that it carries."""
        number, size = fields.get("cmd", 0), fields.get("size", 0)
        if ioctl.number(number) == NV_ESC_IOCTL_XFER_CMD:
            notes.append("a wrapper inside a wrapper: the driver refuses it")
            return
        request = ioctl.request(number, size)
        struct = self._struct(self.catalog.shape("fe", ioctl.number(number), request))
        via: dict[str, Any] = {
            "number": ioctl.number(number),
            "name": self.catalog.name("fe", ioctl.number(number)),
            "size": size,
        }
        if struct is not None and rec.bufs:
            _, before, after = rec.bufs[0]
            part = self._part(struct, before, after)
            via["arg"] = part.text
            notes += part.notes
        else:
            notes.append("the wrapped argument: not recorded")
        out["via_xfer"] = via

    def _parameters(
        self,
        rec: Record,
        said: _Part,
        inner: _Struct | None,
        out: dict[str, Any],
        notes: list[str],
    ) -> None:
        size = said.size
        if rec.par0 is None and rec.par1 is None:
            # An allocation's size is the class's own: a pointer that leads to nothing known is still a pointer.
            if said.pointer and (size or (rec.kind == "alloc" and inner is not None)) and NOT_RECORDED not in notes:
                notes.append(NOT_RECORDED)
            return
        data = rec.par0 or b""
        whole = rec.psize or (size if rec.fl & TRUNCATED else None)
        if rec.fl & TRUNCATED:
            notes.append(f"truncated at {len(data)} of {whole or 'an unknown size'}")
        if inner is None:
            notes.append(NO_LAYOUT)
            out["params"] = _unknown(data, rec.par1)
            return
        part = self._part(inner, rec.par0, rec.par1)
        out["params"] = part.text
        notes += part.notes
        if size is not None and size != inner.shape.size and not rec.fl & TRUNCATED and (rec.kind == "control" or size):
            notes.append(f"paramsSize says {size}, {inner.shape.name} is {inner.shape.size} bytes")
        self._buffers(rec, inner, data, out, notes)

    def _buffers(self, rec: Record, struct: _Struct, data: bytes, out: dict[str, Any], notes: list[str]) -> None:
        if not struct.pointers:
            return
        recorded = {offset: (before, after) for offset, before, after in rec.bufs}
        for path, offset in struct.pointers:
            if offset in recorded:
                before, after = recorded[offset]
                item: dict[str, Any] = {"field": path, "size": len(before), "hex": before.hex()}
                if after is not None:
                    item["changed_hex"] = after.hex()
                out.setdefault("buffers", []).append(item)
            elif any(data[offset : offset + 8]):
                notes.append(f"what {path} points at: not recorded")

    def records(self, records: Iterator[Record]) -> Iterator[dict[str, Any]]:
        """`record` of each."""
        return map(self.record, records)
