"""A recorded program through a Session, with a host that answers what the recorded driver answered.

Where the policy admits a call, the guest must see what the program saw: the same errno, the same bytes, and in the end the same
objects and descriptors. A difference there is a divergence. Refused calls are listed and then treated as the program saw them.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from nvproxy_model import ioctl
from nvproxy_model.abi.escapes import (
    NV_ESC_RM_ALLOC,
    NV_ESC_RM_ALLOC_CONTEXT_DMA2,
    NV_ESC_RM_ALLOC_MEMORY,
    NV_ESC_RM_DUP_OBJECT,
    NV_ESC_RM_FREE,
    NV_ESC_RM_VID_HEAP_CONTROL,
)
from nvproxy_model.errors import MemoryFault
from nvproxy_model.fields import CStruct, Fd, FileKind
from nvproxy_model.policy.decision import Decision, Why
from nvproxy_model.policy.handlers import reader
from nvproxy_model.policy.plan import plan
from nvproxy_model.policy.policy import Policy
from nvproxy_model.session.ports import Buffer, File, Files
from nvproxy_model.session.session import Session
from nvproxy_model.structs import nvos
from nvproxy_model.trace.devices import device_kind
from nvproxy_model.trace.format import TRUNCATED, CallKind, Record
from nvproxy_model.trace.judge.refusals import exposed

__all__ = ["Replay", "Step"]

_ARGUMENT: Final = 0x1000
"""Where the argument struct lies. No program has memory below 64 KiB, and the trace does not say where it was."""

_LISTED: Final = 1000
_SUPPLIED: Final = 1 << 20
"""Reads of memory that a trace lacks, per call: a session looks at each page that a program pins, here up to 4 GiB of them."""
_PROCESSES: Final = 1 << 12
"""Processes that are followed at once."""
_INHERITED: Final = 1 << 18
"""Descriptors that all forks together may hand on. Beyond it a child begins without them, and counts as skipped."""
_CONTROL: Final = nvos.NVOS54_PARAMETERS.sizeof()
_ALLOC, _OLD_ALLOC = nvos.NVOS64_PARAMETERS.sizeof(), nvos.NVOS21_PARAMETERS.sizeof()
_WHOLE: Final = {"control": (_CONTROL,), "alloc": (_ALLOC, _OLD_ALLOC)}
"""Sizes of the argument that a record of the kind can have."""
_FREE, _DUP = nvos.NVOS00_PARAMETERS.sizeof(), nvos.NVOS55_PARAMETERS.sizeof()
_control: Final = reader(nvos.NVOS54_PARAMETERS, "hClient", "hObject", "paramsSize")
_alloc: Final = struct.Struct("<IIII").unpack_from
"""hRoot, hObjectParent, hObjectNew, hClass: how both forms begin."""
_free: Final = reader(nvos.NVOS00_PARAMETERS, "hRoot", "hObjectOld", "status")
_dup: Final = reader(nvos.NVOS55_PARAMETERS, "hClient", "hParent", "hObject", "hClientSrc", "hObjectSrc", "status")


class _Places(NamedTuple):
    """Where an escape of its own puts what it allocated; None: by rules of nvproxy's, so that any will do."""

    client: int
    new: int
    status: int
    hclass: int | None = None
    parent: int | None = None


def _places(of: CStruct, **names: str) -> _Places:
    offsets = {path: offset for path, offset, _ in of.walk()}
    return _Places(**{field: offsets[path] for field, path in names.items()})


_ALLOCATES: Final = {
    NV_ESC_RM_ALLOC_MEMORY: _places(
        nvos.NVOS02_PARAMETERS,
        client="hRoot",
        new="hObjectNew",
        status="status",
        hclass="hClass",
        parent="hObjectParent",
    ),
    NV_ESC_RM_VID_HEAP_CONTROL: _places(
        nvos.NVOS32_PARAMETERS, client="hRoot", new="data.AllocSize.hMemory", status="status"
    ),
    NV_ESC_RM_ALLOC_CONTEXT_DMA2: _places(
        nvos.NVOS39_PARAMETERS, client="hObjectParent", new="hObjectNew", status="status", hclass="hClass"
    ),
}


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


@dataclass(frozen=True, slots=True)
class Step:
    """One call that is worth a line."""

    line: int
    kind: Literal[CallKind, "object"]
    number: int
    text: str

    def as_json(self) -> dict[str, Any]:
        return {"line": self.line, "kind": self.kind, "number": self.number, "text": self.text}


class _Memory:
    """The guest's memory during one call: what was recorded, and zeros where a pointer leads to what was not."""

    def __init__(self) -> None:
        self._pieces: list[tuple[int, bytearray]] = []
        self.supplied = 0
        """How often the call needed memory that was not recorded."""

    def put(self, address: int, data: bytes) -> None:
        self._pieces.append((address, bytearray(data)))

    def clear(self) -> None:
        self._pieces.clear()
        self.supplied = 0

    def _find(self, address: int, size: int) -> tuple[bytearray, int] | None:
        if address <= 0 or address + size > 1 << 64:
            raise MemoryFault(f"{address:#x}")
        for start, data in self._pieces:
            if start <= address and address + size <= start + len(data):
                return data, address - start
        self.supplied += 1
        if self.supplied > _SUPPLIED:
            raise MemoryFault(f"{address:#x}")
        return None

    def read(self, address: int, size: int, /) -> bytes:
        if not size:
            return b""
        found = self._find(address, size)
        if found is None:
            # Not kept: a session asks for every page of what a program pins, and that may be gigabytes.
            return bytes(size)
        data, at = found
        return bytes(data[at : at + size])

    def write(self, address: int, new: bytes, /) -> None:
        if not new:
            return
        found = self._find(address, len(new))
        if found is None:
            self._pieces.append((address, bytearray(new)))
        else:
            data, at = found
            data[at : at + len(new)] = new


class _Recording:
    """The host: the current record's answer."""

    def __init__(self) -> None:
        self.rec: Record | None = None
        self.asked = 0

    def ioctl(self, host_fd: int, request: int, arg: Buffer | None, /) -> int:
        rec = self.rec
        assert rec is not None
        self.asked += 1
        if rec.err:
            return rec.err
        if arg is not None and rec.top is not None:
            answer = rec.top
            if ioctl.number(request) == NV_ESC_RM_ALLOC and len(answer) == _OLD_ALLOC:
                answer = _wide(answer)
            arg.data[: len(answer)] = answer[: len(arg.data)]
            inner = next(iter(arg.pointers.values()), None) if rec.kind in ("control", "alloc") else None
            if inner is not None and isinstance(inner, Buffer) and rec.par is not None:
                inner.data[: len(rec.par)] = rec.par[: len(inner.data)]
                self._buffers(inner, rec)
            self._buffers(arg, rec)
        return 0

    @staticmethod
    def _buffers(at: Buffer, rec: Record) -> None:
        for offset, before, after in rec.bufs:
            pointee = at.pointers.get(offset)
            if isinstance(pointee, Buffer) and len(pointee.data) == len(before):
                pointee.data[:] = after if after is not None else before


def _kept(after: bytes | None, before: bytes | None, own: tuple[tuple[int, int], ...]) -> bytes:
    data = bytearray(after or b"")
    for offset, size in own:
        if before is not None and offset + size <= len(before):
            data[offset : offset + size] = before[offset : offset + size]
    return bytes(data)


def _wide(old: bytes) -> bytes:
    return nvos.NVOS64_PARAMETERS.make(**nvos.NVOS21_PARAMETERS.read(old))


@dataclass(slots=True)
class _Process:
    session: Session
    fds: Files
    expected: dict[int, File] = field(default_factory=dict)
    """The program's descriptors as the trace has them."""


class Replay:
    """Feed it the records of a trace; then read ``refused``, ``divergences``, ``supplied`` and `finish`.

    ``policy`` should hold the capabilities that the question is about; every supported one when it is whether the session keeps up.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.refused: list[Step] = []
        self.refusals = Counter[tuple[str, int]]()
        self.divergences: list[Step] = []
        self.expected: list[Step] = []
        """Refusals by argument where the host refused too, with another answer."""
        self.supplied = Counter[str]()
        """``descriptors`` that calls prove though the trace saw none arrive, and calls that needed ``memory`` it does not hold."""
        self.calls = 0
        self.skipped = 0
        """Calls whose bytes the trace does not hold."""
        self._host = _Recording()
        self._memory = _Memory()
        self._processes: dict[int, _Process] = {}
        self._next_host_fd = 1 << 20
        self._inherited = _INHERITED
        self._objects: dict[tuple[int, int], tuple[int | None, int | None]] = {}
        self._known: set[tuple[int, int]] = set()

    def feed(self, records: Iterable[Record]) -> Replay:
        for rec in records:
            self.one(rec)
        return self

    def _process(self, pid: int) -> _Process:
        process = self._processes.get(pid)
        if process is None:
            if len(self._processes) >= _PROCESSES:
                self._processes.pop(next(iter(self._processes)))
            fds = Files()
            process = self._processes[pid] = _Process(Session(self.policy, self._memory, fds, self._host), fds)
        return process

    def pids(self) -> tuple[int, ...]:
        """The processes that are followed."""
        return tuple(self._processes)

    def session(self, pid: int) -> Session:
        """The session of a process, as it stands after the records so far."""
        return self._process(pid).session

    def _file(self, path: str | None, kind: FileKind | None = None) -> File:
        self._next_host_fd += 1
        control = path in (None, "/dev/nvidiactl")
        return File(kind or device_kind(path), self._next_host_fd, control_device=control)

    def _is_client(self, hclass: int) -> bool:
        rule = self.policy.alloc.get(hclass)
        return rule is not None and rule.handler == "root_client"

    def _add(self, steps: list[Step], rec: Record, text: str) -> None:
        if len(steps) < _LISTED:
            steps.append(Step(rec.line, *rec.number, text))

    def one(self, rec: Record) -> None:
        process = self._process(rec.pid)
        k = rec.k
        if k == "ioctl":
            self._ioctl(process, rec)
        elif k in ("open", "fd"):
            self._opened(process, rec)
        elif k == "close":
            if not rec.err and rec.fd in process.fds:
                process.session.close(rec.fd)
                process.expected.pop(rec.fd, None)
        elif k == "dup":
            self._dup(process, rec)
        elif k == "mmap":
            self._mmap(process, rec)
        elif k == "process" and rec.raw.get("how") == "fork":
            parent = self._processes.get(rec.raw.get("ppid", -1)) if isinstance(rec.raw.get("ppid"), int) else None
            if parent is not None and parent is not process:
                self._fork(parent, process)

    def _fork(self, parent: _Process, child: _Process) -> None:
        if len(parent.fds) > self._inherited:
            self.skipped += 1
            return
        self._inherited -= len(parent.fds)
        for fd, file in parent.fds.items():
            file.references += 1
            child.fds[fd] = child.expected[fd] = file
        child.session.graph = parent.session.graph

    def _opened(self, process: _Process, rec: Record) -> None:
        if rec.err or rec.fd < 0:
            return
        if not exposed(rec.dev or ""):
            self._refuse(rec, f"{rec.dev}: nvproxy gives a sandbox no such device")
        if rec.fd in process.fds:
            process.session.close(rec.fd)
        process.fds[rec.fd] = process.expected[rec.fd] = self._file(rec.dev)

    def _dup(self, process: _Process, rec: Record) -> None:
        file = process.fds.get(rec.fd)
        if file is None or rec.ret is None or rec.ret < 0:
            return
        if rec.ret in process.fds and rec.ret != rec.fd:
            process.session.close(rec.ret)
        if rec.ret != rec.fd:
            file.references += 1
        process.fds[rec.ret] = process.expected[rec.ret] = file

    def _mmap(self, process: _Process, rec: Record) -> None:
        file = process.fds.get(rec.fd)
        if file is None or file.kind != "frontend" or rec.err:
            return
        self.calls += 1
        length, offset = rec.raw.get("len"), rec.raw.get("off")
        if not isinstance(length, int) or not isinstance(offset, int):
            self.skipped += 1
            return
        result = process.session.mmap(rec.fd, length, offset)
        if result.errno and self.skipped:
            # What made the file mappable may be among the calls that could not be replayed.
            self.skipped += 1
        elif result.errno:
            self._add(self.divergences, rec, f"mmap of fd {rec.fd}: errno {result.errno}, the program's succeeded")

    def _refuse(self, rec: Record, text: str) -> None:
        self.refusals[rec.kind if rec.k == "ioctl" else rec.k, rec.key] += 1
        self._add(self.refused, rec, text)

    def _ioctl(self, process: _Process, rec: Record) -> None:
        self.calls += 1
        if rec.fd < 0:
            self.skipped += 1
            return
        if rec.fd not in process.fds:
            self.supplied["descriptors"] += 1
            process.fds[rec.fd] = process.expected[rec.fd] = self._file(rec.dev)
        size = ioctl.size(rec.req)
        if rec.kind == "other" or (
            rec.top0 is None and (rec.kind != "uvm" or self.policy.uvm.get(rec.key) is not None)
        ):
            self.skipped += 1
            return
        whole = _WHOLE.get(rec.kind)
        if rec.kind != "uvm" and (len(rec.top0 or b"") != size or (whole is not None and size not in whole)):
            self.skipped += 1
            return
        if not exposed(rec.dev or "/dev/nvidiactl"):
            self._refuse(rec, f"on {rec.dev}: nvproxy gives a sandbox no such device")
            return
        result = self._call(process, rec)
        decision = result.decision
        if decision is not None and not decision.allowed and self._supply(process, rec, decision):
            result = self._call(process, rec)
            decision = result.decision
        if decision is not None and not decision.allowed:
            self._refused(process, rec, decision)
            return
        if result.errno != rec.err:
            self._add(self.divergences, rec, f"errno {result.errno}, the program saw {rec.err}")
        elif not rec.err:
            self._compare(rec, decision)
        if not rec.err:
            self._follow(rec, process)

    def _arrange(self, rec: Record) -> None:
        memory = self._memory
        memory.clear()
        top = rec.top0 or b""
        if top:
            memory.put(_ARGUMENT, top)
        if rec.kind in ("control", "alloc") and len(top) >= 24:
            address = int.from_bytes(top[16:24], "little")
            if rec.par0 and address:
                memory.put(address, self._whole(rec))
        for offset, before, _ in rec.bufs:
            holder = rec.par0 if rec.par0 and rec.kind in ("control", "alloc") else top
            address = int.from_bytes(holder[offset : offset + 8], "little")
            if address:
                memory.put(address, before)

    def _whole(self, rec: Record) -> bytes:
        """The parameters as long as the call says: what the recorder cut off is supplied."""
        data = rec.par0 or b""
        whole = rec.kind == "control" and len(rec.top0 or b"") == _CONTROL
        size = rec.psize or (_control(rec.top0 or b"")[2] if whole else 0)
        if rec.fl & TRUNCATED and len(data) < size <= 1 << 20:
            return data + bytes(size - len(data))
        return data

    def _call(self, process: _Process, rec: Record) -> Any:
        self._arrange(rec)
        self._host.rec = rec
        cut = len(rec.par0 or b"") != len(self._whole(rec))
        result = process.session.ioctl(rec.fd, rec.req, _ARGUMENT)
        self.supplied["memory"] += bool(self._memory.supplied or cut)
        return result

    def _supply(self, process: _Process, rec: Record, decision: Decision) -> bool:
        """A descriptor in the arguments that the driver took, so that the program had it: install one of the kind
        that is wanted.
        """
        if decision.why is not Why.FD or rec.err or rec.status or decision.rule is None:
            return False
        of = decision.rule.params_at(self.policy.version)
        data = rec.par0 if rec.kind in ("control", "alloc") else rec.top0
        if not isinstance(of, CStruct) or data is None or len(data) < of.sizeof():
            return False
        done = False
        for step in plan(of).fds:
            fd = int.from_bytes(data[step.offset : step.offset + 4], "little", signed=True)
            if isinstance(step.role, Fd) and fd >= 0 and fd not in process.fds:
                process.fds[fd] = process.expected[fd] = self._file(None, step.role.file)
                self.supplied["descriptors"] += 1
                done = True
        return done

    def _refused(self, process: _Process, rec: Record, decision: Decision) -> None:
        host = f"errno {rec.err}" if rec.err else f"status {rec.status:#x}" if rec.status else None
        if host is not None and decision.why not in (
            Why.UNKNOWN,
            Why.VERSION,
            Why.PENDING,
            Why.CAPABILITY,
            Why.OPT_IN,
            Why.REFUSED,
        ):
            self._add(self.expected, rec, f"{decision.reason}; the host: {host}")
            return
        self._refuse(rec, decision.reason)
        if not rec.err and rec.top is not None:
            self._inject(process, rec)

    def _inject(self, process: _Process, rec: Record) -> None:
        """What a refused call did in the program's world, so that what builds on it finds it."""
        graph = process.session.graph
        top = rec.top or b""
        if rec.kind == "alloc" and not rec.status and len(top) in (_ALLOC, _OLD_ALLOC):
            root, parent, new, hclass = _alloc(top)
            if self._is_client(hclass):
                graph.add_client(new, hclass, process.fds.get(rec.fd))
            else:
                graph.add(root, new, hclass, parent)
            self._follow(rec, process)

    def _own(self, decision: Decision | None) -> tuple[tuple[int, int], ...]:
        """The fields that a guest always finds as it left them: descriptors and pointers, whatever the driver wrote there."""
        of = (
            decision.rule.params_at(self.policy.version) if decision is not None and decision.rule is not None else None
        )
        return plan(of).restore if isinstance(of, CStruct) else ()

    def _compare(self, rec: Record, decision: Decision | None) -> None:
        """What the guest's memory holds against what the program's held."""
        memory = self._memory
        own = self._own(decision)
        inner = rec.kind in ("control", "alloc")
        top = rec.top or b"" if inner else _kept(rec.top, rec.top0, own)
        pieces = [("the argument", _ARGUMENT, top)]
        before = rec.top0 or b""
        address = int.from_bytes(before[16:24], "little") if len(before) >= 24 else 0
        if inner and rec.par is not None and address:
            pieces.append(("the parameters", address, _kept(rec.par, rec.par0, own)))
        for offset, old, new in rec.bufs:
            holder = rec.par0 if rec.par0 and inner else before
            pieces.append(
                (f"the buffer at {offset}", int.from_bytes(holder[offset : offset + 8], "little"), new or old)
            )
        for what, at, want in pieces:
            try:
                got = memory.read(at, len(want))
            except MemoryFault:
                continue
            if got != want:
                first = next(i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b)
                self._add(
                    self.divergences,
                    rec,
                    f"{what} differs at byte {first}: {got[first : first + 8].hex()}, the program's "
                    f"{want[first : first + 8].hex()}",
                )
                return

    # The program's own objects, read off the answers it got

    def _follow(self, rec: Record, process: _Process) -> None:
        top = rec.top or b""
        graph = process.session.graph
        if rec.kind == "alloc" and not rec.status and len(top) >= 16:
            root, parent, new, hclass = _alloc(top)
            client = new if self._is_client(hclass) else root
            self._objects[client, new] = (hclass, 0 if client == new else parent)
            self._known.add((client, new))
        elif rec.kind == "fe" and rec.key == NV_ESC_RM_DUP_OBJECT and len(top) == _DUP and not _dup(top)[-1]:
            client, parent, new, source_client, source, _ = _dup(top)
            if (source_client, source) in self._objects:
                self._objects[client, new] = (self._objects[source_client, source][0], parent)
                self._known.add((client, new))
        elif rec.kind == "fe" and rec.key == NV_ESC_RM_FREE and len(top) == _FREE and not _free(top)[-1]:
            client, handle, _ = _free(top)
            # Its number may come back by a way that nvproxy does not follow: an import from a descriptor.
            self._known.discard((client, handle))
        elif rec.kind == "fe" and rec.key in _ALLOCATES and not _word(top, _ALLOCATES[rec.key].status):
            where = _ALLOCATES[rec.key]
            key = (_word(top, where.client), _word(top, where.new))
            self._objects[key] = (
                None if where.hclass is None else _word(top, where.hclass),
                None if where.parent is None else _word(top, where.parent),
            )
            self._known.add(key)
        elif rec.kind == "control" and not rec.status and len(top) == _CONTROL:
            # The driver answered for this object, so it was alive: the session's graph must have it if it ever had.
            client, handle, _ = _control(top)
            if (client, handle) in self._known and graph.get(client, handle) is None:
                self._add(
                    self.divergences, rec, f"the driver still had object {client:#x}:{handle:#x}, the session has not"
                )
        if len(self._known) > 1 << 20:
            self._known.clear()

    def finish(self) -> dict[str, Any]:
        """What is left: the session's live objects and descriptors, and where they are not the program's.

        Every object that the session still has was allocated by the program with that class and parent, and none was freed by it.
        """
        left = []
        for pid, process in self._processes.items():
            for obj in process.session.objects():
                want = self._objects.get((obj.client, obj.handle))
                if want is None or want[0] not in (None, obj.hclass) or want[1] not in (None, obj.parent):
                    self.divergences.append(
                        Step(0, "object", obj.hclass, f"process {pid}: {obj}: the program has no such object")
                    )
                left.append((pid, str(obj)))
            if dict(process.fds) != process.expected:
                odd = sorted(set(process.fds) ^ set(process.expected))
                self.divergences.append(Step(0, "fd", 0, f"process {pid}: descriptors {odd} differ"))
        return {
            "calls": self.calls,
            "skipped": self.skipped,
            "refused": sum(self.refusals.values()),
            "expected": len(self.expected),
            "divergences": len(self.divergences),
            "supplied": {name: self.supplied[name] for name in ("descriptors", "memory")},
            "objects": len(left),
            "descriptors": sum(len(p.fds) for p in self._processes.values()),
        }
