"""One guest process: its calls through a policy to a host, over three ports that an embedder fills."""

from __future__ import annotations

import contextlib
import errno
import functools
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from nvproxy_model.abi import constants as nv
from nvproxy_model.errors import MemoryFault
from nvproxy_model.fields import CStruct
from nvproxy_model.ioctl import number as ioctl_nr
from nvproxy_model.ioctl import request as frontend_request
from nvproxy_model.ioctl import size as ioctl_size
from nvproxy_model.policy import hardened
from nvproxy_model.policy.decide import Decider, Plan, plan, refuse_size
from nvproxy_model.policy.decision import Copy, Decision, Verdict, Why, int32
from nvproxy_model.policy.handlers import PAGE, offset, reader
from nvproxy_model.policy.policy import Policy
from nvproxy_model.rules import Rule
from nvproxy_model.session.escapes import AFTER, BEFORE, FINISH, let_go, unknown_client
from nvproxy_model.session.events import Events
from nvproxy_model.session.objects import Graph, Object
from nvproxy_model.session.ports import Buffer, FdTable, File, GuestMemory, Host, Pages, Result
from nvproxy_model.structs import nvos
from nvproxy_model.structs.cl0005 import NV0005_ALLOC_PARAMETERS
from nvproxy_model.structs.ctrl503c import NV503C_CTRL_REGISTER_VA_SPACE_PARAMS

__all__ = ["Session"]

RM_CONTROL_REQUEST = 0xC020462A
RM_ALLOC_REQUEST = 0xC030462B
"""NV_ESC_RM_ALLOC with the 48-byte form: the one that the host is always given."""


_NVOS54 = reader(nvos.NVOS54_PARAMETERS, "hClient", "hObject", "cmd", "params", "paramsSize")
_NVOS54_PARAMS = offset(nvos.NVOS54_PARAMETERS, "params")
_put_pointer = struct.Struct("<Q").pack_into
_NVOS54_STATUS = offset(nvos.NVOS54_PARAMETERS, "status")
_NVOS54_SIZE = nvos.NVOS54_PARAMETERS.sizeof()
_NVOS64 = struct.Struct("<IIIIQQIIII")
_NVOS21 = struct.Struct("<IIIIQII")
_va_space = reader(NV503C_CTRL_REGISTER_VA_SPACE_PARAMS, "hVASpace")
_event_class = reader(NV0005_ALLOC_PARAMETERS, "hClass")
_EVENT_SIZE = NV0005_ALLOC_PARAMETERS.sizeof()
_ALLOC_PARAMS = offset(nvos.NVOS64_PARAMETERS, "pAllocParms")
_ALLOC_RIGHTS = offset(nvos.NVOS64_PARAMETERS, "pRightsRequested")
_ROOTS = (nv.NV01_ROOT, nv.NV01_ROOT_NON_PRIV, nv.NV01_ROOT_CLIENT)


class _Alloc(NamedTuple):
    """NVOS64_PARAMETERS, or NVOS21_PARAMETERS with nothing in what it lacks."""

    root: int
    parent: int
    new: int
    hclass: int
    address: int
    rights: int
    params_size: int
    flags: int
    status: int
    pad: int

    @classmethod
    def unpack(cls, raw: bytes | bytearray) -> _Alloc:
        if len(raw) == _NVOS64.size:
            return cls(*_NVOS64.unpack(raw))
        root, parent, new, hclass, address, params_size, status = _NVOS21.unpack(raw)
        return cls(root, parent, new, hclass, address, 0, params_size, 0, status, 0)

    def pack(self, size: int) -> bytes:
        if size == _NVOS64.size:
            return _NVOS64.pack(*self)
        return _NVOS21.pack(*self[:4], self.address, self.params_size, self.status)


_Answer = Callable[[File, int, int], Result]
_result = tuple.__new__
_REJECT = Verdict.REJECT


def _host_request(request: int) -> int:
    """_IOWR('F', nr, size): the host never sees the guest's own type and direction bits."""
    return frontend_request(request, ioctl_size(request))


class Session:
    """The ioctls of one guest process. Not safe for calls from two threads at once; policies are, and can be shared.

    Guest bytes never raise: every call has a Result. What a refused or failed call leaves in guest memory is the
    guest's own, with the status of the refusal where the struct has one.
    """

    def __init__(self, policy: Policy, memory: GuestMemory, fds: FdTable, host: Host) -> None:
        self.policy = policy
        self.memory = memory
        self.fds = fds
        self.host = host
        self.graph = Graph()
        self.events = Events() if policy.profile == "hardened" else None
        self.unpin: list[tuple[int, int]] = []
        self.close_host: list[int] = []
        self._controls = policy.entries("control")
        self._escapes = dict(self._answers("frontend"))
        self._commands = dict(self._answers("uvm"))

    def objects(self) -> tuple[Object, ...]:
        """All live objects, clients first seen first."""
        return tuple(self.graph)

    def not_restorable(self) -> tuple[Object, ...]:
        """What a checkpoint could not bring back: nvproxy refuses to save while one of these lives (save_restore.go)."""
        return tuple(obj for obj in self.graph if not obj.restorable)

    def ioctl(self, fd: int, request: int, argp: int) -> Result:
        """Answer one ioctl(2) of the guest's: ``ret`` 0 with errno 0, or -1 with an errno."""
        file = self.fds.get(fd if -0x80000000 <= fd <= 0x7FFFFFFF else int32(fd))
        if file is None:
            return Result(-1, errno.EBADF)
        request &= 0xFFFFFFFF
        try:
            if file.kind == "frontend":
                number = request & 0xFF
                answer = self._escapes.get(number)
                result = answer(file, request, argp) if answer is not None else self._refused("frontend", number)
            elif file.kind == "uvm":
                answer = self._commands.get(request)
                result = answer(file, request, argp) if answer is not None else self._refused("uvm", request)
            else:
                return Result(-1, errno.ENOTTY)
        except MemoryFault:
            result = Result(-1, errno.EFAULT)
        return self._let_go(result) if self.unpin or self.close_host else result

    def _let_go(self, result: Result) -> Result:
        result = result._replace(unpin=tuple(self.unpin), close=tuple(self.close_host))
        self.unpin.clear()
        self.close_host.clear()
        return result

    def close(self, fd: int) -> Result:
        """close(2): the file's clients are freed with its last reference."""
        file = self.fds.remove(int32(fd))
        if file is None:
            return Result(-1, errno.EBADF)
        if self.events is not None:
            self.events.closed(int32(fd))
        return self._release(file)

    def mmap(self, fd: int, length: int, offset: int = 0) -> Result:
        """Whether mmap(2) of the file is in order, and if so count the mapping; `munmap` ends it. The embedder does the mapping."""
        file = self.fds.get(int32(fd))
        if file is None:
            return Result(-1, errno.EBADF)
        if file.kind != "frontend" or file.mapping is None:
            return Result(-1, errno.EINVAL)
        whole_pages = -(-file.mapping.length // PAGE) * PAGE
        if length <= 0 or offset < 0 or offset + length > whole_pages:
            return Result(-1, errno.EINVAL)
        file.references += 1
        return Result(0, 0)

    def munmap(self, file: File) -> Result:
        """One mapping of the file less."""
        return self._release(file)

    def _release(self, file: File) -> Result:
        file.references -= 1
        if file.references == 0:
            self.close_host.append(file.host_fd)
            let_go(self, self.graph.close(file))
        return self._let_go(Result(0, 0))

    def _answers(self, table: str) -> Iterator[tuple[int, _Answer]]:
        """What answers each admitted number of the frontend's or UVM's table, worked out once."""
        rules: Mapping[int, Rule] = getattr(self.policy, table)
        for number, rule in rules.items():
            entry = self.policy.entry(table, number)
            if isinstance(entry, Decision):
                if entry.allowed:
                    yield number, functools.partial(self._any_size if table == "frontend" else self._no_params, entry)
            elif rule.handler == "control":
                yield number, self._control
            elif rule.handler == "alloc":
                yield number, self._alloc
            else:
                of = rule.params_at(self.policy.version)
                assert isinstance(of, CStruct)
                typed = self._escape if table == "frontend" else self._typed
                yield number, functools.partial(typed, rule, plan(of), entry)

    def _refused(self, table: str, number: int) -> Result:
        decision = self.policy.entry(table, number)
        assert isinstance(decision, Decision)
        return Result(-1, decision.errno, decision)

    def _any_size(self, decision: Decision, file: File, request: int, argp: int) -> Result:
        size = ioctl_size(request)
        arg = Buffer(bytearray(self.memory.read(argp, size))) if size else None
        error = self.host.ioctl(file.host_fd, _host_request(request), arg)
        if error:
            return Result(-1, error, decision)
        if arg is not None:
            self.memory.write(argp, bytes(arg.data))
        return Result(0, 0, decision)

    def _no_params(self, decision: Decision, file: File, request: int, argp: int) -> Result:
        error = self.host.ioctl(file.host_fd, request, None)
        return Result(-1 if error else 0, error, decision)

    def _escape(self, rule: Rule, what: Plan, entry: Decider, file: File, request: int, argp: int) -> Result:
        if ioctl_size(request) != what.size:
            wrong = refuse_size(self.policy.call("frontend", rule.number), what.name, what.size)
            return Result(-1, errno.EINVAL, wrong)
        return self._typed(rule, what, entry, file, _host_request(request), argp)

    def _typed(self, rule: Rule, what: Plan, entry: Decider, file: File, request: int, argp: int) -> Result:
        """A struct of the frontend's or UVM's own: decide, let the host have it, put the guest's own values back, copy out."""
        data = self.memory.read(argp, what.size)
        decision = entry(data, self.fds)
        before = BEFORE.get(rule.handler or "")
        if decision.allowed and before is not None:
            decision = before(self, data, decision)
        if not decision.allowed:
            if decision.status is not None and what.status is not None:
                at = what.status.offset
                status = decision.status.to_bytes(what.status.size, "little")
                self.memory.write(argp, data[:at] + status + data[at + what.status.size :])
            return Result(-1 if decision.errno else 0, decision.errno, decision)
        arg = self._buffer(decision, data)
        error = self.host.ioctl(file.host_fd, request, arg)
        if error:
            return Result(-1, error, decision)
        out = arg.data
        ok = what.status is None or not any(out[what.status.offset : what.status.offset + what.status.size])
        finish = FINISH.get(rule.handler or "")
        if finish is not None:
            return finish(self, argp, data, out, decision, ok)
        after = AFTER.get(rule.handler or rule.name)
        if ok and after is not None:
            after(self, data, bytes(out), decision)
        self._restore(out, data, what, decision)
        self._copy_out(arg, decision, argp)
        return Result(0, 0, decision)

    def _buffer(self, decision: Decision, data: bytes) -> Buffer:
        arg = Buffer(bytearray(decision.params if decision.params is not None else data))
        for copy in decision.copies:
            arg.pointers[copy.offset] = self._pointee(copy)
        return arg

    def _pointee(self, copy: Copy) -> Buffer | Pages:
        if copy.pinned:
            return Pages(copy.address, copy.size, copy.writable)
        return Buffer(bytearray(self.memory.read(copy.address, copy.size) if copy.copy_in else copy.size))

    @staticmethod
    def _restore(out: bytearray, data: bytes, what: Plan, decision: Decision) -> None:
        for at, size in what.restore:
            out[at : at + size] = data[at : at + size]
        for copy in decision.copies:
            out[copy.offset : copy.offset + 8] = data[copy.offset : copy.offset + 8]

    def _copy_out(self, arg: Buffer, decision: Decision, address: int) -> None:
        for late in (False, True):
            if late:
                self.memory.write(address, bytes(arg.data))
            for copy in decision.copies:
                if copy.late is late and not copy.pinned:
                    pointee = arg.pointers[copy.offset]
                    assert isinstance(pointee, Buffer)
                    self.memory.write(copy.address, bytes(pointee.data))

    # NV_ESC_RM_CONTROL

    def _control(self, file: File, request: int, argp: int) -> Result:
        # The commonest call by far, so it is written out: no helper between the four copies and the host.
        if ioctl_size(request) != _NVOS54_SIZE:
            call = self.policy.call("frontend", ioctl_nr(request))
            return Result(-1, errno.EINVAL, refuse_size(call, "NVOS54_PARAMETERS", _NVOS54_SIZE))
        memory = self.memory
        outer = memory.read(argp, _NVOS54_SIZE)
        client, _, number, address, length = _NVOS54(outer)
        decision = self._controls[number]
        if not isinstance(decision, Decision):
            return self._typed_control(file, argp, outer, decision)
        if decision.verdict is _REJECT:
            return self._fail_control(argp, outer, decision)
        data = bytearray(outer)
        if length and address:
            if length > nv.RMAPI_PARAM_COPY_MAX_PARAMS_SIZE:
                return Result(-1, errno.EINVAL, decision)
            params = Buffer(bytearray(memory.read(address, length)))
            if self.events is not None:
                decision = self.events.control(decision, client, bytes(params.data), self.graph)
                if not decision.allowed:
                    return self._fail_control(argp, outer, decision)
            _put_pointer(data, _NVOS54_PARAMS, 0)
            error = self.host.ioctl(file.host_fd, RM_CONTROL_REQUEST, Buffer(data, {_NVOS54_PARAMS: params}))
        elif length or address:
            return Result(-1, errno.EINVAL, decision)
        else:
            params = None
            error = self.host.ioctl(file.host_fd, RM_CONTROL_REQUEST, Buffer(data))
        if error:
            return Result(-1, error, decision)
        _put_pointer(data, _NVOS54_PARAMS, address)
        memory.write(argp, bytes(data))
        if params is not None:
            memory.write(address, bytes(params.data))
        return _result(Result, (0, 0, decision, (), ()))

    def _typed_control(self, file: File, argp: int, outer: bytes, entry: Decider) -> Result:
        client, handle, number, address, length = _NVOS54(outer)
        rule = self.policy.control[number]
        of = rule.params_at(self.policy.version)
        assert isinstance(of, CStruct)
        what = plan(of)
        if length != what.size:
            # A struct that nvproxy passes through at any size: the driver judges it (control.c: INVALID_ARGUMENT).
            wrong = refuse_size(self.policy.call("control", number), what.name, what.size)
            if what.roles or rule.handler:
                return Result(-1, errno.EINVAL, wrong)
            return self._fail_control(
                argp, outer, hardened.refuse(wrong.call, nv.NV_ERR_INVALID_ARGUMENT, *map(str, wrong.detail))
            )
        data = self.memory.read(address, length)
        decision = entry(data, self.fds)
        if decision.allowed and rule.handler == "register_va_space" and not self.graph.has_client(client):
            decision = unknown_client(decision.call, client)
        if not decision.allowed:
            return self._fail_control(argp, outer, decision)
        params = self._buffer(decision, data)
        arg = Buffer(bytearray(outer), {_NVOS54_PARAMS: params})
        _put_pointer(arg.data, _NVOS54_PARAMS, 0)
        error = self.host.ioctl(file.host_fd, RM_CONTROL_REQUEST, arg)
        if error:
            return Result(-1, error, decision)
        _put_pointer(arg.data, _NVOS54_PARAMS, address)
        self.memory.write(argp, bytes(arg.data))
        status = int.from_bytes(arg.data[_NVOS54_STATUS : _NVOS54_STATUS + 4], "little")
        if status == nv.NV_OK and rule.handler == "register_va_space":
            # third_party_p2p.c:CliAddThirdPartyP2PVASpace() => refAddDependant()
            self.graph.depend(client, handle, _va_space(bytes(params.data))[0])
        if rule.handler != "in_only":
            self._restore(params.data, data, what, decision)
            self._copy_out(params, decision, address)
        return Result(0, 0, decision)

    def _fail_control(self, argp: int, outer: bytes, decision: Decision) -> Result:
        if decision.status is None:
            return Result(-1, decision.errno, decision)
        self.memory.write(
            argp, outer[:_NVOS54_STATUS] + decision.status.to_bytes(4, "little") + outer[_NVOS54_STATUS + 4 :]
        )
        return Result(0, 0, decision)

    # NV_ESC_RM_ALLOC

    def _alloc(self, file: File, request: int, argp: int) -> Result:
        size = ioctl_size(request)
        if size not in (_NVOS64.size, _NVOS21.size):
            return Result(
                -1,
                errno.EINVAL,
                refuse_size(self.policy.call("frontend", ioctl_nr(request)), "NVOS64_PARAMETERS", _NVOS64.size),
            )
        asked = _Alloc.unpack(self.memory.read(argp, size))
        if asked.hclass == nv.NV01_EVENT:
            asked = asked._replace(hclass=_event_class(self.memory.read(asked.address, _EVENT_SIZE))[0])
        decision, of, data = self._decide_alloc(asked.hclass, asked.address)
        if decision.allowed and self.events is not None:
            decision = self.events.alloc(decision, asked.root, data)
        rights = None
        if decision.allowed:
            rights = Buffer(bytearray(self.memory.read(asked.rights, 4))) if asked.rights else None
            if asked.hclass not in _ROOTS and not self.graph.has_client(asked.root):
                decision = unknown_client(decision.call, asked.root)
        if not decision.allowed:
            if decision.status is not None:
                # nvproxy swallows a fault when it refuses the class: that stands whether or not the guest can read it.
                swallowed = (MemoryFault,) if decision.why is not Why.CLIENT else ()
                with contextlib.suppress(*swallowed):
                    self.memory.write(argp, asked._replace(status=decision.status).pack(size))
            return Result(-1 if decision.errno else 0, decision.errno, decision)
        arg = Buffer(bytearray(asked._replace(address=0, rights=0).pack(_NVOS64.size)))
        params = None if data is None else self._buffer(decision, data)
        if params is not None:
            arg.pointers[_ALLOC_PARAMS] = params
        if rights is not None:
            arg.pointers[_ALLOC_RIGHTS] = rights
        error = self.host.ioctl(file.host_fd, RM_ALLOC_REQUEST, arg)
        if error:
            return Result(-1, error, decision)
        answer = _Alloc.unpack(arg.data)._replace(address=asked.address, rights=asked.rights)
        what = plan(of) if isinstance(of, CStruct) else None
        if answer.status == nv.NV_OK:
            # Below the client that was looked up, whatever the host says of it.
            self._add(file, decision, answer._replace(root=asked.root), what, params)
        if rights is not None:
            self.memory.write(asked.rights, bytes(rights.data))
        self.memory.write(argp, answer.pack(size))
        if params is not None and data is not None:
            if what is not None:
                self._restore(params.data, data, what, decision)
            self._copy_out(params, decision, asked.address)
        return Result(0, 0, decision)

    def _decide_alloc(self, hclass: int, address: int) -> tuple[Decision, Any, bytes | None]:
        if hclass == nv.NV01_EVENT:
            return self.policy.unknown("alloc", hclass), None, None
        rule = self.policy.alloc.get(hclass)
        entry = self.policy.entry("alloc", hclass)
        if isinstance(entry, Decision) and not entry.allowed:
            return entry, None, None
        of = rule.params_at(self.policy.version) if rule is not None else None
        if of is None:
            return self.policy.decide_alloc(hclass, None, self.fds), None, None
        # construct walks a whole struct to say how long it is; a plan knows.
        what = plan(of) if isinstance(of, CStruct) else None
        size, needed = (of.sizeof(), False) if what is None else (what.size, bool(what.fds or what.required))
        data = self.memory.read(address, size) if address or needed else None
        return self.policy.decide_alloc(hclass, data, self.fds), of, data

    def _add(self, file: File, decision: Decision, answer: _Alloc, what: Plan | None, params: Buffer | None) -> None:
        if decision.number in _ROOTS:
            self.graph.add_client(answer.new, answer.hclass, file)
            return
        deps: list[int] = []
        if what is not None and params is not None:
            for step in what.depends:
                role: Any = step.role
                handle = int.from_bytes(params.data[step.offset : step.offset + step.size], "little")
                if handle not in role.null:
                    deps.append(handle)
        # An allocation that named a file cannot be replayed: nobody keeps the file.
        named_file = what is not None and bool(what.fds) and decision.verdict is Verdict.TRANSLATE
        obj = self.graph.add(answer.root, answer.new, answer.hclass, answer.parent, deps, restorable=not named_file)
        if obj is not None and self.events is not None and params is not None:
            self.events.allocated(obj, bytes(params.data))
