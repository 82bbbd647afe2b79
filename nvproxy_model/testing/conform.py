"""Replay a file of recorded nvproxy calls against a session whose host answers as the recording's did.

The form is that of tests/data/nvproxy_vectors.json.xz: a header, and vectors in order, each with the guest's
call and memory, what the host saw and wrote, and what the guest saw afterwards. Nothing here knows a vector
by its name.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvproxy_model.errors import MemoryFault, NvproxyError
from nvproxy_model.fields import FileKind
from nvproxy_model.policy.policy import Policy
from nvproxy_model.session.ports import Buffer, File, Files, Pages
from nvproxy_model.session.session import Session

__all__ = ["Failure", "Memory", "ScriptedHost", "VectorsError", "load", "replay"]

GUARD = b"\xaa" * 32
"""What stands behind every argument before the call."""
MAX_BYTES = 256 << 20
"""What a compressed file may unpack to."""
SENTRY_VA = b"SENTRYVA"
"""What a recording shows in place of a host address."""
_HOST_FDS = {"ctl": 1001, "dev0": 1002, "evt": 1003, "uvm": 1004, "cap": 1005, "reg": 1006}
_KINDS: Mapping[str, FileKind] = {
    "ctl": "frontend",
    "dev0": "frontend",
    "evt": "frontend",
    "uvm": "uvm",
    "cap": "open-only",
    "reg": "dma-buf",
}


class VectorsError(NvproxyError, ValueError):
    """The file is not one of recorded vectors; the message names the vector and the field."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One vector whose outcome differs, and in what."""

    name: str
    what: str


class Memory:
    """Guest memory: one mapped range, zero where nothing was written."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.data = bytearray(last - first)
        # The array's length is fixed from here on: a view of it reads and writes without a second copy.
        self._view = memoryview(self.data)
        self._size = last - first

    def read(self, address: int, size: int) -> bytes:
        """``size`` bytes at ``address``. Raises MemoryFault."""
        at = address - self.first
        end = at + size
        if at < 0 or end > self._size:
            raise MemoryFault(f"{address:#x}+{size:#x}")
        return self._view[at:end].tobytes()

    def write(self, address: int, data: bytes) -> None:
        """Raises MemoryFault, having written what fits before the end, as gVisor's CopyOut does."""
        at = address - self.first
        end = at + len(data)
        if at >= 0 and end <= self._size:
            self._view[at:end] = data
            return
        if 0 <= at < self._size:
            self._view[at:] = data[: self._size - at]
        raise MemoryFault(f"{address:#x}+{len(data):#x}")


@dataclass(slots=True)
class ScriptedHost:
    """A driver that answers one vector's host calls in order and notes what it saw."""

    script: list[Mapping[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    calls: int = 0

    def ioctl(self, host_fd: int, request: int, arg: Buffer | None) -> int:
        """Compare the call with the script and write the script's answer."""
        if self.calls >= len(self.script):
            self.wrong.append(f"host call {self.calls}: not in the recording: {request:#x}")
            self.calls += 1
            return 0
        wanted = self.script[self.calls]
        self.calls += 1
        label = f"host call {self.calls - 1}"
        if (host_fd, f"{request:#x}") != (wanted["host_fd"], wanted["cmd"]):
            self.wrong.append(f"{label}: {host_fd} {request:#x}, recorded {wanted['host_fd']} {wanted['cmd']}")
        self._compare(label, arg, wanted["data"], wanted.get("sentry_va_at"))
        for block in wanted.get("deref") or ():
            self._compare_block(f"{label}, behind {block['ptr_at']}", arg, block)
        _leave_addresses(arg)
        for answer in wanted.get("answer_writes") or ():
            self._write(arg, answer)
        return int(wanted.get("answer_errno") or 0)

    def _compare(
        self,
        label: str,
        buffer: Buffer | Pages | None,
        data: str | None,
        addresses: list[int] | None,
        behind: bool = False,
    ) -> None:
        if data is None:
            return
        if isinstance(buffer, Pages):
            self.wrong.append(f"{label}: pinned pages, recorded bytes")
            return
        seen = bytearray(buffer.data) if buffer is not None else bytearray()
        pointers = sorted(buffer.pointers) if buffer is not None else []
        for at in pointers:
            seen[at : at + 8] = SENTRY_VA
        if pointers != sorted(addresses or []):
            self.wrong.append(f"{label}: host addresses at {pointers}, recorded {addresses or []}")
        # A recorder reads behind a pointer as far as it chose to; past the proxy's own buffer that is residue.
        recorded = data[: 2 * len(seen)] if behind else data
        if seen.hex() != recorded:
            self.wrong.append(f"{label}: {seen.hex()}, recorded {data}")

    def _compare_block(self, label: str, arg: Buffer | None, block: Mapping[str, Any]) -> None:
        behind = arg.pointers.get(block["ptr_at"]) if arg is not None else None
        if block.get("data") is not None:
            if behind is None:
                self.wrong.append(f"{label}: nothing there")
            else:
                self._compare(label, behind, block["data"], block.get("sentry_va_at"), behind=True)
        for inner in block.get("deref") or ():
            self._compare_block(f"{label}/{inner['ptr_at']}", behind if isinstance(behind, Buffer) else None, inner)

    def _write(self, arg: Buffer | None, answer: Mapping[str, Any]) -> None:
        kind, *path = answer["at"].split("/")
        target: Buffer | Pages | None = arg
        for step in path:
            target = target.pointers.get(int(step)) if isinstance(target, Buffer) else None
        if kind != "arg" or not isinstance(target, Buffer):
            self.wrong.append(f"the host writes behind {answer['at']}, where the session gave it nothing")
            return
        data = bytes.fromhex(answer["data"])
        target.data[answer["off"] : answer["off"] + len(data)] = data


_AT = re.compile(r"arg(/[0-9]{1,6})*\Z")


def _leave_addresses(buffer: Buffer | Pages | None) -> None:
    """What a real host does to the pointers in its argument: they hold host addresses when it is done."""
    if isinstance(buffer, Buffer):
        for at, behind in buffer.pointers.items():
            buffer.data[at : at + 8] = SENTRY_VA
            _leave_addresses(behind)


def _decompress(raw: bytes) -> bytes:
    unpacked = lzma.LZMADecompressor()
    data = unpacked.decompress(raw, MAX_BYTES)
    if not unpacked.eof:
        raise ValueError(f"more than {MAX_BYTES} bytes, or cut short")
    return data


def load(path: Path) -> dict[str, Any]:
    """The checked content of a vectors file, plain or .xz. Raises VectorsError, OSError."""
    try:
        raw = _decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        content = json.loads(raw)
    except (lzma.LZMAError, ValueError, RecursionError) as error:
        raise VectorsError(f"{path}: not a vectors file: {error}") from None
    try:
        memory = _of(dict, _of(dict, _of(dict, content, "")["header"], "header")["guest_memory"], "guest_memory")
        first, last = (
            int(text, 16) for text in re.findall(r"0x[0-9a-fA-F]+", _of(str, memory["mapped"], "mapped"))[:2]
        )
        base = _of(int, memory["base"], "base")
        vectors = _of(list, content["vectors"], "vectors")
        if not vectors:
            raise ValueError("there is nothing to replay")
        if not 0 <= first <= base < last or last - first > 1 << 30:
            raise ValueError(f"mapped {first:#x} to {last:#x}, base {base:#x}")
    except (ValueError, KeyError, TypeError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else error
        raise VectorsError(f"{path}: not a vectors file: {what}") from None
    for index, vector in enumerate(vectors):
        try:
            _check(_of(dict, vector, "vector"))
        except (ValueError, KeyError, TypeError) as error:
            name = vector.get("name", "no name") if isinstance(vector, dict) else "no object"
            raise VectorsError(f"{path}: vector {index} ({name}): {type(error).__name__}: {error}") from None
    return {"header": content["header"], "vectors": vectors, "mapped": (first, last), "base": base}


def _of(kind: type, value: Any, name: str) -> Any:
    """The value, if it is of exactly that type: a bool is not a number here."""
    if type(value) is not kind:
        raise TypeError(f"{name}: want {kind.__name__}, not {type(value).__name__}")
    return value


def _hex(value: Any, name: str) -> None:
    bytes.fromhex(_of(str, value, name))


def _natural(value: Any, name: str) -> None:
    if not 0 <= _of(int, value, name) < 1 << 30:
        raise ValueError(f"{name}: {value}")


def _check(vector: Mapping[str, Any]) -> None:
    for name in ("name", "version", "caps", "device", "cmd"):
        _of(str, vector[name], name)
    for name in ("process", "errno", "ret"):
        _of(int, vector[name], name)
    _of(bool, vector["guard_intact"], "guard_intact")
    for name in ("in", "out"):
        _hex(vector[name], name)
    for name in ("objects_added", "objects_removed"):
        for text in _of(list, vector[name], name):
            _of(str, text, name)
    for name in ("mem", "reads"):
        for address, data in _of(dict, vector[name], name).items():
            int(address, 16)
            _hex(data, name)
    for role, fd in _of(dict, vector["fds"], "fds").items():
        _natural(fd, f"fds.{role}")
    if vector["device"] not in vector["fds"]:
        raise ValueError(f"device {vector['device']!r} is not in fds")
    int(vector["cmd"], 16)
    for call in _of(list, vector["host"], "host"):
        _check_call(_of(dict, call, "host"))


def _check_call(call: Mapping[str, Any]) -> None:
    _natural(call["host_fd"], "host_fd")
    int(_of(str, call["cmd"], "cmd"), 16)
    _check_block(call)
    for answer in _of(list, call.get("answer_writes") or [], "answer_writes"):
        at = _of(str, _of(dict, answer, "answer_writes")["at"], "at")
        if not _AT.match(at):
            raise ValueError(f"unknown 'at': {at!r}")
        _hex(answer["data"], "data")
        _natural(answer["off"], "off")
    if call.get("answer_errno") is not None:
        _natural(call["answer_errno"], "answer_errno")


def _check_block(block: Mapping[str, Any]) -> None:
    if block["data"] is not None:
        _hex(block["data"], "data")
    for at in _of(list, block.get("sentry_va_at") or [], "sentry_va_at"):
        _natural(at, "sentry_va_at")
    for inner in _of(list, block.get("deref") or [], "deref"):
        _natural(_of(dict, inner, "deref")["ptr_at"], "ptr_at")
        _check_block(inner)


def replay(content: Mapping[str, Any]) -> tuple[int, list[Failure]]:
    """How many vectors pass, and the failures of the others. Each process is a fresh session; state carries
    over within it.

    Raises NvproxyError or ValueError where a vector names a driver version or capability that does not exist.
    """
    passed, failures = 0, []
    process, session, host, memory = None, None, ScriptedHost(), Memory(*content["mapped"])
    for vector in content["vectors"]:
        if session is None or vector["process"] != process:
            process = vector["process"]
            policy = Policy.for_driver(vector["version"], vector["caps"], allow_unsupported=True)
            fds = Files(
                {
                    number: File(_KINDS.get(role, "other"), _HOST_FDS.get(role, 1999), control_device=role != "dev0")
                    for role, number in vector["fds"].items()
                }
            )
            host = ScriptedHost()
            memory = Memory(*content["mapped"])
            session = Session(policy, memory, fds, host)
        wrong = _one(vector, session, host, memory, content["base"])
        if wrong:
            failures.append(Failure(vector["name"], "; ".join(wrong)))
        else:
            passed += 1
    return passed, failures


def _one(vector: Mapping[str, Any], session: Session, host: ScriptedHost, memory: Memory, base: int) -> list[str]:
    argument = bytes.fromhex(vector["in"])
    memory.data[:] = bytes(len(memory.data))
    memory.write(base, argument + GUARD)
    for address, data in vector["mem"].items():
        memory.write(int(address, 16), bytes.fromhex(data))
    host.script, host.wrong, host.calls = vector["host"], [], 0
    before = {str(obj) for obj in session.objects()}
    untouched = bytes(memory.data)
    result = session.ioctl(vector["fds"][vector["device"]], int(vector["cmd"], 16), base)
    after = {str(obj) for obj in session.objects()}
    wrong = list(host.wrong)

    def differ(what: str, seen: Any, recorded: Any) -> None:
        if seen != recorded:
            wrong.append(f"{what}: {seen}, recorded {recorded}")

    differ("ret", result.ret if not result.errno else vector["ret"], vector["ret"])
    differ("errno", result.errno, vector["errno"])
    differ("host calls", host.calls, len(vector["host"]))
    differ("out", memory.read(base, len(argument)).hex(), vector["out"])
    for address, data in vector["reads"].items():
        differ(f"memory at {address}", memory.read(int(address, 16), len(data) // 2).hex(), data)
    differ("guard intact", memory.read(base + len(argument), len(GUARD)) == GUARD, vector["guard_intact"])
    differ("objects added", sorted(after - before), sorted(vector["objects_added"]))
    differ("objects removed", sorted(before - after), sorted(vector["objects_removed"]))
    wrong += _leaks(vector, memory, untouched, base, len(argument))
    return wrong


def _leaks(vector: Mapping[str, Any], memory: Memory, untouched: bytes, base: int, size: int) -> Iterator[str]:
    """Memory that the vector does not list holds what it held, or what the host wrote behind a pointer of the
    guest's.

    Zeros are accepted too: a buffer that the driver only writes is zeroed before it is handed over.
    """
    expected = bytearray(untouched)
    for call in vector["host"]:
        for answer in call.get("answer_writes") or ():
            _imply(expected, answer, untouched, base, memory.first)
    spans = [(base - memory.first, size)]
    spans += [(int(address, 16) - memory.first, len(data) // 2) for address, data in vector["reads"].items()]
    now = bytearray(memory.data)
    for at, length in spans:
        now[at : at + length] = expected[at : at + length] = untouched[at : at + length]
    for page in range(0, len(now), 4096):
        chunk = slice(page, page + 4096)
        if now[chunk] != expected[chunk]:
            images = zip(now[chunk], expected[chunk], untouched[chunk], strict=True)
            if any(seen not in (wanted, before, 0) for seen, wanted, before in images):
                yield "guest memory that the vector does not list changed as no answer of the host's implies"
                break
    if SENTRY_VA in memory.data and SENTRY_VA not in untouched:
        yield "a host address stands in guest memory"


def _imply(expected: bytearray, answer: Mapping[str, Any], untouched: bytes, base: int, first: int) -> None:
    """Write an answer where the guest's own pointers lead; 'arg' itself is listed in every vector."""
    _, *path = answer["at"].split("/")
    address = base
    for step in path:
        at = address - first + int(step)
        address = int.from_bytes(untouched[at : at + 8], "little") if 0 <= at <= len(untouched) - 8 else -1
    data = bytes.fromhex(answer["data"])
    at = address - first + answer["off"]
    if path and at >= 0 and at + len(data) <= len(expected):
        expected[at : at + len(data)] = data
