"""One guest process: its calls through a policy to a host, over three ports that an embedder fills."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nvproxy_model import handlers, hardened
from nvproxy_model.abi import constants as nv
from nvproxy_model.decide import Call, Copy, Decision, Plan, Verdict, Why, int32, plan, refuse_size
from nvproxy_model.errors import MemoryFault
from nvproxy_model.fields import CStruct
from nvproxy_model.handlers import offset, reader
from nvproxy_model.objects import Graph, Object
from nvproxy_model.policy import Policy, ioctl_nr, ioctl_size
from nvproxy_model.ports import Buffer, FdTable, File, GuestMemory, Host, MapContext, Pages, Result
from nvproxy_model.rules import Rule
from nvproxy_model.structs import nvos
from nvproxy_model.structs.cl0005 import NV0005_ALLOC_PARAMETERS
from nvproxy_model.structs.ctrl503c import NV503C_CTRL_REGISTER_VA_SPACE_PARAMS
from nvproxy_model.structs.nv_ioctl import nv_ioctl_alloc_os_event_t, nv_ioctl_export_to_dma_buf_fd_t
from nvproxy_model.structs.nv_unix_nvos_params_wrappers import (
    nv_ioctl_nvos02_parameters_with_fd,
    nv_ioctl_nvos33_parameters_with_fd,
)
from nvproxy_model.structs.uvm_linux_ioctl import UVM_INITIALIZE_PARAMS

__all__ = ["Session"]

RM_ALLOC_REQUEST = 0xC030462B
"""NV_ESC_RM_ALLOC with the 48-byte form: the one that the host is always given."""


_CACHING = {0: "write-back", 5: "write-back", 2: "write-combine", 6: "write-combine"}
"""NVOS33_FLAGS_CACHING_TYPE_* on the control device (nv-mmap.c:nv_encode_caching()); all others, and GPU devices: uncached."""


def _memory_type(file: File, caching: int) -> str:
    return _CACHING.get(caching, "uncached") if file.control_device else "uncached"


_NVOS54 = reader(nvos.NVOS54_PARAMETERS, "hClient", "hObject", "cmd", "params", "paramsSize")
_NVOS54_PARAMS = offset(nvos.NVOS54_PARAMETERS, "params")
_NVOS54_STATUS = offset(nvos.NVOS54_PARAMETERS, "status")
_NVOS54_SIZE = nvos.NVOS54_PARAMETERS.sizeof()
_NVOS64 = struct.Struct("<IIIIQQIIII")
_NVOS21 = struct.Struct("<IIIIQII")
_free = reader(nvos.NVOS00_PARAMETERS, "hRoot", "hObjectOld")
_dup = reader(nvos.NVOS55_PARAMETERS, "hClient", "hParent", "hObject", "hClientSrc", "hObjectSrc")
_dma2 = reader(nvos.NVOS39_PARAMETERS, "hObjectParent", "hObjectNew", "hClass", "hMemory")
_nvos02 = reader(
    nv_ioctl_nvos02_parameters_with_fd,
    *(f"params.{name}" for name in ("hRoot", "hObjectParent", "hObjectNew", "hClass", "flags", "limit")),
    "fd",
)
_nvos33 = reader(nv_ioctl_nvos33_parameters_with_fd, "params.length", "params.flags", "fd")
_os_event = reader(nv_ioctl_alloc_os_event_t, "hClient", "fd")
_va_space = reader(NV503C_CTRL_REGISTER_VA_SPACE_PARAMS, "hVASpace")
_event_class = reader(NV0005_ALLOC_PARAMETERS, "hClass")
_EVENT_SIZE = NV0005_ALLOC_PARAMETERS.sizeof()
_ALLOC_PARAMS = offset(nvos.NVOS64_PARAMETERS, "pAllocParms")
_ALLOC_RIGHTS = offset(nvos.NVOS64_PARAMETERS, "pRightsRequested")
_VID_HEAP = ("hRoot", "hObjectParent", "hVASpace", *(f"data.AllocSize.{name}" for name in ("hMemory", "flags", "attr", "attr2")))
_DMABUF_FD = offset(nv_ioctl_export_to_dma_buf_fd_t, "fd")
_UVM_FLAGS = offset(UVM_INITIALIZE_PARAMS, "flags")
_ROOTS = (nv.NV01_ROOT, nv.NV01_ROOT_NON_PRIV, nv.NV01_ROOT_CLIENT)


def _unknown_client(call: Call, client: int) -> Decision:
    return Decision(Verdict.REJECT, Why.CLIENT, call, 0, nv.NV_ERR_INVALID_CLIENT, detail=(f"client {client:#x}",))


def _in_use(decision: Decision) -> Decision:
    return Decision(Verdict.REJECT, Why.IN_USE, decision.call, errno.EINVAL, detail=("fd", "it has a map context for its life"))


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
        self._events = hardened.Events() if policy.profile == "hardened" else None
        self._unpin: list[tuple[int, int]] = []

    def objects(self) -> tuple[Object, ...]:
        """All live objects, clients first seen first."""
        return tuple(self.graph)

    def not_restorable(self) -> tuple[Object, ...]:
        """What a checkpoint could not bring back: nvproxy refuses to save while one of these lives (save_restore.go)."""
        return tuple(obj for obj in self.graph if not obj.restorable)

    def ioctl(self, fd: int, request: int, argp: int) -> Result:
        """Answer one ioctl(2) of the guest's: ``ret`` 0 with errno 0, or -1 with an errno."""
        file = self.fds.get(int32(fd))
        if file is None:
            return Result(-1, errno.EBADF)
        request &= 0xFFFFFFFF
        try:
            if file.kind == "frontend":
                result = self._frontend(file, request, argp)
            elif file.kind == "uvm":
                result = self._uvm(file, request, argp)
            else:
                return Result(-1, errno.ENOTTY)
        except MemoryFault:
            result = Result(-1, errno.EFAULT)
        if self._unpin:
            result = result._replace(unpin=tuple(self._unpin))
            self._unpin.clear()
        return result

    def close(self, fd: int) -> Result:
        """close(2): the file's clients are freed with its last reference."""
        file = self.fds.remove(int32(fd))
        if file is None:
            return Result(-1, errno.EBADF)
        return self._release(file)

    def mmap(self, fd: int, length: int, offset: int = 0) -> Result:
        """Whether mmap(2) of the file is in order, and if so count the mapping; `munmap` ends it. The embedder does the mapping."""
        file = self.fds.get(int32(fd))
        if file is None:
            return Result(-1, errno.EBADF)
        if file.kind != "frontend" or file.mapping is None or not 0 < offset + length <= file.mapping.length or offset < 0:
            return Result(-1, errno.EINVAL)
        file.references += 1
        return Result(0, 0)

    def munmap(self, file: File) -> Result:
        """One mapping of the file less."""
        return self._release(file)

    def _release(self, file: File) -> Result:
        file.references -= 1
        if file.references == 0 and file.kind == "frontend":
            for client in self.graph.clients_of(file):
                self._free_object(client, client)
        unpin = tuple(self._unpin)
        self._unpin.clear()
        return Result(0, 0, unpin=unpin)

    def _frontend(self, file: File, request: int, argp: int) -> Result:
        number = ioctl_nr(request)
        rule = self.policy.frontend.get(number)
        entry = self.policy.entry("frontend", number)
        if isinstance(entry, Decision) and not entry.allowed:
            return Result(-1, entry.errno, entry)
        assert rule is not None
        size = ioctl_size(request)
        if rule.handler == "control":
            return self._control(file, request, argp, size)
        if rule.handler == "alloc":
            return self._alloc(file, argp, size)
        request = 0xC0000000 | size << 16 | 0x4600 | number
        if isinstance(entry, Decision):
            return self._raw(file, request, argp, size, entry)
        of = rule.params_at(self.policy.version)
        assert isinstance(of, CStruct)
        what = plan(of)
        if size != what.size:
            return Result(-1, errno.EINVAL, refuse_size(self.policy.call("frontend", number), what.name, what.size))
        return self._typed(file, request, argp, rule, what, entry)

    def _uvm(self, file: File, request: int, argp: int) -> Result:
        rule = self.policy.uvm.get(request)
        entry = self.policy.entry("uvm", request)
        if isinstance(entry, Decision):
            if not entry.allowed:
                return Result(-1, entry.errno, entry)
            return self._raw(file, request, argp, 0, entry)
        assert rule is not None
        of = rule.params_at(self.policy.version)
        assert isinstance(of, CStruct)
        return self._typed(file, request, argp, rule, plan(of), entry)

    def _raw(self, file: File, request: int, argp: int, size: int, decision: Decision) -> Result:
        arg = Buffer(bytearray(self.memory.read(argp, size))) if size else None
        error = self.host.ioctl(file.host_fd, request, arg)
        if error:
            return Result(-1, error, decision)
        if arg is not None:
            self.memory.write(argp, bytes(arg.data))
        return Result(0, 0, decision)

    def _typed(self, file: File, request: int, argp: int, rule: Rule, what: Plan, entry: Callable[..., Decision]) -> Result:
        """A struct of the frontend's or UVM's own: decide, let the host have it, put the guest's own values back, copy out."""
        data = self.memory.read(argp, what.size)
        decision = entry(data, self.fds)
        before = self._BEFORE.get(rule.handler or "")
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
        finish = self._FINISH.get(rule.handler or "")
        if finish is not None:
            return finish(self, argp, data, out, decision, ok)
        after = self._AFTER.get(rule.handler or rule.name)
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

    def _control(self, file: File, request: int, argp: int, size: int) -> Result:
        if size != _NVOS54_SIZE:
            return Result(-1, errno.EINVAL)
        outer = self.memory.read(argp, _NVOS54_SIZE)
        client, handle, number, address, length = _NVOS54(outer)
        entry = self.policy.entry("control", number)
        if entry.__class__ is Decision:
            decision: Any = entry
            if not decision.allowed:
                return self._fail_control(argp, outer, decision)
            if (length == 0) != (address == 0) or length > nv.RMAPI_PARAM_COPY_MAX_PARAMS_SIZE:
                return Result(-1, errno.EINVAL, decision)
            params = Buffer(bytearray(self.memory.read(address, length))) if length else None
            if self._events is not None and params is not None:
                decision = self._events.control(decision, client, bytes(params.data), self.graph)
                if not decision.allowed:
                    return self._fail_control(argp, outer, decision)
            arg = self._outer(outer, params)
            error = self.host.ioctl(file.host_fd, request, arg)
            if error:
                return Result(-1, error, decision)
            self.memory.write(argp, bytes(arg.data[:_NVOS54_PARAMS]) + outer[_NVOS54_PARAMS : _NVOS54_PARAMS + 8] + bytes(arg.data[_NVOS54_PARAMS + 8 :]))
            if params is not None:
                self.memory.write(address, bytes(params.data))
            return Result(0, 0, decision)
        return self._typed_control(file, argp, request, outer, entry)

    @staticmethod
    def _outer(outer: bytes, params: Buffer | None) -> Buffer:
        arg = Buffer(bytearray(outer))
        arg.data[_NVOS54_PARAMS : _NVOS54_PARAMS + 8] = bytes(8)
        if params is not None:
            arg.pointers[_NVOS54_PARAMS] = params
        return arg

    def _typed_control(self, file: File, argp: int, request: int, outer: bytes, entry: Any) -> Result:
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
            return self._fail_control(argp, outer, hardened.refuse(wrong.call, nv.NV_ERR_INVALID_ARGUMENT, *map(str, wrong.detail)))
        data = self.memory.read(address, length)
        decision = entry(data, self.fds)
        if decision.allowed and rule.handler == "register_va_space" and not self.graph.has_client(client):
            decision = _unknown_client(decision.call, client)
        if not decision.allowed:
            return self._fail_control(argp, outer, decision)
        params = self._buffer(decision, data)
        arg = self._outer(outer, params)
        error = self.host.ioctl(file.host_fd, request, arg)
        if error:
            return Result(-1, error, decision)
        status = int.from_bytes(arg.data[_NVOS54_STATUS : _NVOS54_STATUS + 4], "little")
        if status == nv.NV_OK and rule.handler == "register_va_space":
            # third_party_p2p.c:CliAddThirdPartyP2PVASpace() => refAddDependant()
            self.graph.depend(client, handle, _va_space(bytes(params.data))[0])
        arg.data[_NVOS54_PARAMS : _NVOS54_PARAMS + 8] = outer[_NVOS54_PARAMS : _NVOS54_PARAMS + 8]
        self.memory.write(argp, bytes(arg.data))
        if rule.handler != "in_only":
            self._restore(params.data, data, what, decision)
            self._copy_out(params, decision, address)
        return Result(0, 0, decision)

    def _fail_control(self, argp: int, outer: bytes, decision: Decision) -> Result:
        if decision.status is None:
            return Result(-1, decision.errno, decision)
        self.memory.write(argp, outer[:_NVOS54_STATUS] + decision.status.to_bytes(4, "little") + outer[_NVOS54_STATUS + 4 :])
        return Result(0, 0, decision)

    # NV_ESC_RM_ALLOC

    def _alloc(self, file: File, argp: int, size: int) -> Result:
        if size == _NVOS64.size:
            root, parent, new, hclass, address, rights, params_size, flags, status, pad = _NVOS64.unpack(self.memory.read(argp, size))
        elif size == _NVOS21.size:
            root, parent, new, hclass, address, params_size, status = _NVOS21.unpack(self.memory.read(argp, size))
            rights = flags = pad = 0
        else:
            return Result(-1, errno.EINVAL)
        short = size == _NVOS21.size

        def out(root: int, parent: int, new: int, hclass: int, params_size: int, flags: int, status: int, pad: int) -> bytes:
            if short:
                return _NVOS21.pack(root, parent, new, hclass, address, params_size, status)
            return _NVOS64.pack(root, parent, new, hclass, address, rights, params_size, flags, status, pad)

        if hclass == nv.NV01_EVENT:
            (hclass,) = _event_class(self.memory.read(address, _EVENT_SIZE))
        decision, of, data = self._decide_alloc(hclass, address)
        if decision.allowed and self._events is not None:
            decision = self._events.alloc(decision, root, data)
        granted = None
        if decision.allowed:
            if rights:
                granted = bytearray(self.memory.read(rights, 4))
            if hclass not in _ROOTS and not self.graph.has_client(root):
                decision = _unknown_client(decision.call, root)
        if not decision.allowed:
            if decision.status is not None:
                try:
                    self.memory.write(argp, out(root, parent, new, hclass, params_size, flags, decision.status, pad))
                except MemoryFault:
                    pass  # nvproxy swallows this one: the refusal stands whether or not the guest can read it.
            return Result(-1 if decision.errno else 0, decision.errno, decision)
        arg = Buffer(bytearray(_NVOS64.pack(root, parent, new, hclass, 0, 0, params_size, flags, status, pad)))
        params = None
        if data is not None:
            params = arg.pointers[_ALLOC_PARAMS] = self._buffer(decision, data)
        if granted is not None:
            arg.pointers[_ALLOC_RIGHTS] = Buffer(granted)
        error = self.host.ioctl(file.host_fd, RM_ALLOC_REQUEST, arg)
        if error:
            return Result(-1, error, decision)
        root, parent, new, hclass, _, _, params_size, flags, status, pad = _NVOS64.unpack(arg.data)
        what = plan(of) if isinstance(of, CStruct) else None
        if status == nv.NV_OK:
            self._add(file, decision, root, parent, new, hclass, what, params)
        if granted is not None:
            self.memory.write(rights, bytes(granted))
        self.memory.write(argp, out(root, parent, new, hclass, params_size, flags, status, pad))
        if params is not None and data is not None:
            if what is not None:
                self._restore(params.data, data, what, decision)
            self._copy_out(params, decision, address)
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
        needed = isinstance(of, CStruct) and (plan(of).fds or plan(of).required)
        data = self.memory.read(address, of.sizeof()) if address or needed else None
        return self.policy.decide_alloc(hclass, data, self.fds), of, data

    def _add(
        self, file: File, decision: Decision, root: int, parent: int, new: int, hclass: int, what: Plan | None, params: Buffer | None
    ) -> None:
        if decision.number in _ROOTS:
            self.graph.add_client(new, hclass, file)
            return
        deps: Iterable[int] = ()
        if what is not None and what.depends and params is not None:
            values = (int.from_bytes(params.data[step.offset : step.offset + step.size], "little") for step in what.depends)
            deps = [value for value, step in zip(values, what.depends, strict=True) if value not in step.role.null]  # type: ignore[attr-defined]
        # An allocation that named a file cannot be replayed: nobody keeps the file.
        named_file = what is not None and bool(what.fds) and decision.verdict is Verdict.TRANSLATE
        obj = self.graph.add(root, new, hclass, parent, deps, restorable=not named_file)
        if obj is not None and self._events is not None and params is not None:
            self._events.allocated(obj, bytes(params.data))

    # What the frontend's own handlers need of the session: before the host call, and after an NV_OK.

    def _need_client(self, client: int, decision: Decision) -> Decision:
        return decision if self.graph.has_client(client) else _unknown_client(decision.call, client)

    def _before_free(self, data: bytes, decision: Decision) -> Decision:
        return self._need_client(_free(data)[0], decision)

    def _before_dup(self, data: bytes, decision: Decision) -> Decision:
        client, _, _, source_client, _ = _dup(data)
        decision = self._need_client(client, decision)
        return self._need_client(source_client, decision) if decision.allowed else decision

    def _before_dma2(self, data: bytes, decision: Decision) -> Decision:
        return self._need_client(_dma2(data)[0], decision)

    def _before_map(self, data: bytes, decision: Decision) -> Decision:
        file = self.fds.get(_nvos33(data)[2])
        return _in_use(decision) if file is not None and file.mapping is not None else decision

    def _before_alloc_memory(self, data: bytes, decision: Decision) -> Decision:
        root, _, _, hclass, flags, _, fd = _nvos02(data)
        if hclass == nv.NV01_MEMORY_SYSTEM and handlers.maps_at_once(flags):
            file = self.fds.get(fd)
            if file is not None and file.mapping is not None:
                return _in_use(decision)
        for copy in decision.copies:
            self.memory.read(copy.address, 1)
            self.memory.read(copy.address + copy.size - 1, 1)
        return self._need_client(root, decision)

    def _after_free(self, data: bytes, out: bytes, decision: Decision) -> None:
        self._free_object(*_free(out))

    def _free_object(self, client: int, handle: int) -> None:
        for gone in self.graph.free(client, handle):
            self._unpin.extend(gone.pins)
            if self._events is not None:
                self._events.freed(gone)

    def _after_dup(self, data: bytes, out: bytes, decision: Decision) -> None:
        client, parent, handle, source_client, source = _dup(out)
        self.graph.dup(client, handle, parent, source_client, source)

    def _after_dma2(self, data: bytes, out: bytes, decision: Decision) -> None:
        # RmDeprecatedAllocContextDma(): hObjectParent is the client, and hMemory's parent becomes the new object's.
        client, new, hclass, memory = _dma2(out)
        below = self.graph.get(client, memory)
        if below is not None:
            self.graph.add(client, new, hclass, below.parent, restorable=False)

    def _after_map(self, data: bytes, out: bytes, decision: Decision) -> None:
        length, flags, _ = _nvos33(out)
        file = self.fds.get(_nvos33(data)[2])
        if file is not None and length:
            caching = flags >> nv.NVOS33_FLAGS_CACHING_TYPE_SHIFT & nv.NVOS33_FLAGS_CACHING_TYPE_MASK
            file.mapping = MapContext(length, _memory_type(file, caching))

    def _after_alloc_memory(self, data: bytes, out: bytes, decision: Decision) -> None:
        root, parent, new, hclass, flags, limit, _ = _nvos02(out)
        pins = tuple((copy.address, copy.size) for copy in decision.copies if copy.pinned)
        self.graph.add(root, new, hclass, parent, restorable=False, pins=pins)
        _, _, _, asked, flags, _, fd = _nvos02(data)
        file = self.fds.get(fd)
        if asked == nv.NV01_MEMORY_SYSTEM and handlers.maps_at_once(flags) and file is not None:
            length = (limit + 1) & 0xFFFFFFFFFFFFFFFF
            if length:
                file.mapping = MapContext(length, _memory_type(file, nv.NVOS33_FLAGS_CACHING_TYPE_DEFAULT))

    def _after_vid_heap(self, data: bytes, out: bytes, decision: Decision) -> None:
        of = nvos.NVOS32_PARAMETERS.at(self.policy.version)
        root, parent, va_space, memory, flags, attr, attr2 = reader(of, *_VID_HEAP)(out)
        deps: tuple[int, ...] = ()
        if flags & nv.NVOS32_ALLOC_FLAGS_VIRTUAL:
            hclass, deps = nv.NV50_MEMORY_VIRTUAL, (va_space,)
        elif attr2 >> nv.NVOS32_ATTR2_USE_EGM_SHIFT & nv.NVOS32_ATTR2_USE_EGM_MASK:
            hclass = nv.NV_MEMORY_EXTENDED_USER
        elif attr >> nv.NVOS32_ATTR_LOCATION_SHIFT & nv.NVOS32_ATTR_LOCATION_MASK == nv.NVOS32_ATTR_LOCATION_VIDMEM:
            hclass = nv.NV01_MEMORY_LOCAL_USER
        else:
            hclass = nv.NV01_MEMORY_SYSTEM
        self.graph.add(root, memory, hclass, parent, deps, restorable=False)

    def _after_os_event(self, data: bytes, out: bytes, decision: Decision) -> None:
        if self._events is not None:
            self._events.register(*_os_event(data), alive=decision.rule is not None and decision.rule.name == "NV_ESC_ALLOC_OS_EVENT")

    def _finish_in_only(self, argp: int, data: bytes, out: bytearray, decision: Decision, ok: bool) -> Result:
        return Result(0, 0, decision)

    def _finish_uvm_initialize(self, argp: int, data: bytes, out: bytearray, decision: Decision, ok: bool) -> Result:
        out[_UVM_FLAGS] &= ~nv.UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE | data[_UVM_FLAGS]
        self.memory.write(argp, bytes(out))
        return Result(0, 0, decision)

    def _finish_dmabuf(self, argp: int, data: bytes, out: bytearray, decision: Decision, ok: bool) -> Result:
        """A dma-buf that the driver has just made becomes a new file of the guest's; undone when the guest cannot be told."""
        span = slice(_DMABUF_FD, _DMABUF_FD + 4)
        made = int32(int.from_bytes(out[span], "little"))
        if int32(int.from_bytes(data[span], "little")) >= 0:
            out[span] = data[span]
        elif ok and made >= 0:
            try:
                fd = self.fds.install(File("dma-buf", made))
            except OSError as error:
                return Result(-1, error.errno or errno.EMFILE, decision)
            out[span] = fd.to_bytes(4, "little")
            try:
                self.memory.write(argp, bytes(out))
            except MemoryFault:
                self.fds.remove(fd)
                raise
            return Result(0, 0, decision)
        else:
            out[span] = data[span]
        self.memory.write(argp, bytes(out))
        return Result(0, 0, decision)

    _BEFORE: Mapping[str, Callable[[Session, bytes, Decision], Decision]] = {
        "alloc_context_dma2": _before_dma2,
        "alloc_memory": _before_alloc_memory,
        "dup_object": _before_dup,
        "free": _before_free,
        "map_memory": _before_map,
    }
    _AFTER: Mapping[str, Callable[[Session, bytes, bytes, Decision], None]] = {
        "NV_ESC_ALLOC_OS_EVENT": _after_os_event,
        "NV_ESC_FREE_OS_EVENT": _after_os_event,
        "alloc_context_dma2": _after_dma2,
        "alloc_memory": _after_alloc_memory,
        "dup_object": _after_dup,
        "free": _after_free,
        "map_memory": _after_map,
        "vid_heap_control": _after_vid_heap,
    }
    _FINISH: Mapping[str, Callable[[Session, int, bytes, bytearray, Decision, bool], Result]] = {
        "export_to_dmabuf_fd": _finish_dmabuf,
        "in_only": _finish_in_only,
        "uvm_initialize": _finish_uvm_initialize,
    }
