"""nvproxy-trace decode: every call by name, with every field of its struct."""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Iterator
from typing import Any

import orjson

from nvproxy_model.errors import UnknownDriverVersion
from nvproxy_model.printable import escaped_json, printable
from nvproxy_model.tools.command import UNKNOWN
from nvproxy_model.tools.output import bold, progress, versions
from nvproxy_model.tools.trace.shared import ADMITTED, Files, problems, selected
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.decode.decoder import SCHEMA, Decoder
from nvproxy_model.trace.format import Record
from nvproxy_model.trace.source import Source

_LONG = 8
_RELEASES = 16
"""Releases in one file that are read each by its own facts. Making a decoder takes some 12 ms."""


def run(args: argparse.Namespace) -> int:
    """Decode; 2 when not all of the trace could be read."""
    with Files(args.files, args.log) as files:
        return _decode(args, files)


def _decode(args: argparse.Namespace, files: Files) -> int:
    driver = files.driver(args.driver)
    decoders = {driver: Decoder(Catalog(driver))}
    reader = files.open()
    keep = selected(args)
    numbers = set(args.number or ())
    left_out = 0

    def chosen() -> Iterator[tuple[Decoder, Record]]:
        nonlocal left_out
        for rec in progress(reader):
            if not keep(rec) or (numbers and rec.key not in numbers):
                continue
            # Traces of several machines in one file: each is read by its own driver.
            named = (reader.header.driver if args.driver is None else None) or driver
            if named not in decoders and not _learn(named, decoders):
                if not left_out:
                    why = f"driver {printable(named)}: not a version, or one of more than {_RELEASES} in one file"
                    reader.problems.add(rec.line, f"{why}; the records of such drivers are left out")
                left_out += 1
                continue
            decoder = decoders[named]
            if args.name and not fnmatch.fnmatchcase(decoder.name(rec) or "", args.name):
                continue
            yield decoder, rec

    notes = decoders[driver].catalog.notes
    (_as_json if args.format == "json" else _as_text)(chosen(), driver, notes, decoders, reader)
    problems(files.shown, reader.problems)
    return ADMITTED if reader.complete else UNKNOWN


def _learn(name: str, decoders: dict[str, Decoder]) -> bool:
    """Add the decoder of another release; False for a name that is not one, and where the file names too many."""
    if len(decoders) >= _RELEASES:
        return False
    try:
        decoders[name] = Decoder(Catalog(name))
    except UnknownDriverVersion:
        return False
    return True


def _counts(decoders: dict[str, Decoder]) -> dict[str, int]:
    total: dict[str, int] = {}
    for decoder in decoders.values():
        for what, count in decoder.counts.items():
            total[what] = total.get(what, 0) + count
    return dict(sorted(total.items()))


def _as_json(
    chosen: Iterator[tuple[Decoder, Record]], driver: str, notes: list[str], decoders: dict[str, Decoder], reader: Source
) -> None:
    out = sys.stdout.buffer
    sys.stdout.flush()

    def put(obj: Any) -> None:
        out.write(escaped_json(orjson.dumps(obj, option=orjson.OPT_APPEND_NEWLINE)))

    put({"schema": SCHEMA, "produced_by": versions(), "driver": driver, "notes": notes})
    count = 0
    for decoder, rec in chosen:
        out.write(decoder.line(rec))
        count += 1
    summary = {
        "records": count,
        "not_known": _counts(decoders),
        "complete": reader.complete,
        "problems": reader.problems.count,
    }
    put({"summary": summary})
    out.flush()


def _as_text(
    chosen: Iterator[tuple[Decoder, Record]], driver: str, notes: list[str], decoders: dict[str, Decoder], reader: Source
) -> None:
    for note in notes:
        print(f"# {note}")
    for decoder, rec in chosen:
        for line in text(decoder.record(rec)):
            print(line)
    for what, count in _counts(decoders).items():
        print(f"# {what}: {count}")


def text(obj: dict[str, Any]) -> Iterator[str]:
    """A decoded record in lines: the call, then its structs, then what changed."""
    head = f"{obj['line']:>6} {obj['t'] / 1e9:.6f} {obj['pid']}"
    if obj["tid"] != obj["pid"]:
        head += f"/{obj['tid']}"
    dev = printable(str(obj.get("dev", "")).removeprefix("/dev/"))
    if "fd" in obj:
        head += f" {obj['fd']}"
    if obj["k"] != "ioctl":
        rest = " ".join(
            f"{key}={printable(str(obj[key]))}" for key in ("len", "prot", "how", "ppid", "command") if key in obj
        )
        yield " ".join(filter(None, [head, obj["k"], dev, rest])) + _answer(obj)
        return
    name = obj["name"] or "?"
    yield f"{head} {dev} {obj['kind']} {obj['number']:#x} {bold(name)}{_answer(obj)}"
    if "via_xfer" in obj:
        via = obj["via_xfer"]
        yield f"         via XFER: {via['number']:#x} {via['name'] or '?'}, {via['size']} bytes"
        if "arg" in via:
            yield from _struct(via["arg"])
    for part in ("arg", "params"):
        if part in obj:
            yield from _struct(obj[part])
    for buffer in obj.get("buffers", ()):
        yield f"         {buffer['field']} -> {buffer['size']} bytes {_hex(buffer['hex'])}"
        if "changed_hex" in buffer:
            yield f"           after: {_hex(buffer['changed_hex'])}"
    for note in obj.get("notes", ()):
        yield f"         # {printable(note)}"


def _answer(obj: dict[str, Any]) -> str:
    if obj.get("errno"):
        out = f" = {obj['errno']}"
    elif "status" in obj:
        out = f" = {obj['status']:#x}" + (f" {obj['status_name']}" if obj["status_name"] else "")
    elif obj["ret"] is None:
        out = "" if obj["k"] in ("process", "exec") else " = ?"
    else:
        out = f" = {obj['ret']}"
    return out + (f" ({obj['d'] / 1000:.1f} us)" if "d" in obj else "")


def _hex(digits: str) -> str:
    return digits if len(digits) <= 64 else f"{digits[:64]}..."


def _struct(part: dict[str, Any]) -> Iterator[str]:
    if part["struct"] is None:
        yield f"         {part['unknown']} bytes {_hex(part['hex'])}"
        if "changed_hex" in part:
            yield f"           after: {_hex(part['changed_hex'])}"
        return
    roles, names = part.get("roles", {}), part.get("names", {})
    if "fields" in part:
        yield f"         {part['struct']} {_fields(part['fields'], roles, names)}".rstrip()
    if "changed" in part:
        yield f"           after: {_fields(part['changed'], roles, names)}".rstrip()
    if part.get("unknown"):
        yield f"         # {part['unknown']} bytes more than {part['struct']} has"


def _fields(fields: dict[str, Any], roles: dict[str, str], names: dict[str, str], prefix: str = "") -> str:
    return " ".join(f"{name}={_value(value, prefix + name, roles, names)}" for name, value in fields.items())


def _value(value: Any, path: str, roles: dict[str, str], names: dict[str, str]) -> str:
    if isinstance(value, dict):
        return "{" + _fields(value, roles, names, path + ".") + "}"
    if isinstance(value, list):
        return _list(value, path, roles, names)
    if isinstance(value, str):
        return f'"{printable(value)}"' if not _is_hex(value) else _zeros(value)
    if path in names:
        return f"{value}:{names[path]}"
    role = roles.get(path)
    if role == "fd":
        return f"fd:{value if value < 1 << 31 or value >= 1 << 32 else value - (1 << 32)}"
    if role in ("handle", "pointer", "opaque", "status") or (isinstance(value, int) and value > 9):
        return f"{value:#x}"
    return str(value)


def _is_hex(text: str) -> bool:
    return len(text) % 2 == 0 and len(text) > 1 and all(c in "0123456789abcdef" for c in text)


def _zeros(digits: str) -> str:
    kept = digits.rstrip("0")
    if len(digits) <= 64:
        return digits
    kept = kept[:64] + ("..." if len(kept) > 64 else "")
    return f"{kept}[{len(digits) // 2} bytes]"


def _list(values: list[Any], path: str, roles: dict[str, str], names: dict[str, str]) -> str:
    """Runs of equal elements are counted: most arrays of this ABI are mostly zero."""
    parts: list[str] = []
    at = 0
    while at < len(values):
        end = at
        while end < len(values) and values[end] == values[at]:
            end += 1
        shown = _value(values[at], path + "[]", roles, names)
        parts.append(shown if end - at == 1 else f"{shown} x{end - at}")
        if len(parts) > 4 * _LONG and end < len(values):
            parts.append(f"... {len(values) - end} more")
            break
        at = end
    return "[" + ", ".join(parts) + "]"
