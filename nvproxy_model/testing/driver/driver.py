"""A Host that answers like the resource manager, so that a session can be driven where there is no GPU.

It keeps clients, handles, parents and dependencies of its own (src/nvidia/src/libraries/resserv), knows which class goes
where (`nvproxy_model.testing.driver.classes`), gives each wrong call the status that the driver gives it, and logs every call.
What it does not model it answers with NV_OK and the bytes unchanged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from nvproxy_model import abi, ioctl, versions
from nvproxy_model.abi import constants as nv
from nvproxy_model.abi.windows import window
from nvproxy_model.fields import CStruct
from nvproxy_model.policy.handlers import handler_of
from nvproxy_model.policy.plan import plan
from nvproxy_model.rules import Rule, Table, active
from nvproxy_model.session.ports import Buffer
from nvproxy_model.structs import cl00f1, cl00fd, cl0005, nv_ioctl, nvos
from nvproxy_model.testing.driver import classes
from nvproxy_model.testing.driver import event_buffer as fake_event_buffer
from nvproxy_model.testing.driver.resources import FIRST_CLIENT, FIRST_HANDLE, FakeObject, Resources

__all__ = ["FIRST_CLIENT", "FIRST_HANDLE", "FIRST_HOST_FD", "Entry", "FakeDriver", "FakeObject"]

NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO = 0xD02
FIRST_HOST_FD = 1 << 20
"""The first descriptor of a dma-buf that this driver makes."""
_FRONTEND = ioctl.request(0)
_NOT_SIZE_OR_NUMBER = ioctl.encode(3, 0xFF, 0, 0)
_MEMORY_BLOCK = 128 << 20


class Entry(NamedTuple):
    """One host call: ``table`` and ``number`` are the command's or class's for NV_ESC_RM_CONTROL and NV_ESC_RM_ALLOC."""

    host_fd: int
    request: int
    table: Table
    number: int
    errno: int
    status: int | None
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Answer:
    errno: int
    status: int | None


class FakeDriver(Resources):
    """The driver of one release: a Host. ``mig`` says whether the GPU is partitioned.

    ``log`` holds the last ``keep`` calls, or all. Raises UnknownDriverVersion.
    """

    def __init__(self, version: str = "580.159.04", *, mig: bool = False, keep: int | None = None) -> None:
        """A driver that holds nothing yet."""
        super().__init__(versions.load().find(version, allow_unsupported=True), mig=mig)
        self.log: deque[Entry] = deque(maxlen=keep)
        self._resources = classes.at(self.version)
        self._rules = {table: active(rows, self.version) for table, rows in abi.TABLES.items()}
        self._next_fd = FIRST_HOST_FD
        self._answers: deque[_Answer] = deque()
        self._asked: tuple[Table, int] = ("frontend", 0)

    def answer_next(self, *, errno: int = 0, status: int | None = None) -> None:
        """The next call fails with this errno, or answers this NV status, and does nothing else."""
        self._answers.append(_Answer(errno, status))

    def rules(self, table: Table) -> Mapping[int, Rule]:
        """The rows of one table at this release, whatever the capabilities: what the driver knows the shape of."""
        return self._rules[table]

    def ioctl(self, host_fd: int, request: int, arg: Buffer | None) -> int:
        """Host.ioctl: the answer is written into ``arg``, which keeps its length."""
        self.notes = []
        error, status = self._answer(request, arg, host_fd)
        self.log.append(Entry(host_fd, request, *self._asked, error, status, tuple(self.notes)))
        return error

    def _answer(self, request: int, arg: Buffer | None, host_fd: int) -> tuple[int, int | None]:
        table: Table = "frontend" if request & _NOT_SIZE_OR_NUMBER == _FRONTEND else "uvm"
        number = ioctl.number(request) if table == "frontend" else request
        self._asked = table, number
        rule: Rule | None = self._rules[table].get(number)
        handler = self._HANDLERS.get(rule.name) if rule is not None and table == "frontend" else None
        inner = handler_of(rule).inner if rule is not None else None
        if inner is not None and arg is not None:
            self._asked = inner.table, int.from_bytes(arg.data[inner.offset : inner.offset + 4], "little")
        of = rule.params_at(self.version) if rule is not None else None
        if self._answers:
            answer = self._answers.popleft()
            if not answer.errno and answer.status is not None:
                self._write_status(arg, of, answer.status)
            return answer.errno, answer.status
        if arg is None or not isinstance(of, CStruct) or len(arg.data) != of.sizeof():
            if handler is not None and arg is not None:
                handler(self, arg, None, host_fd)
            return 0, None
        status = nv.NV_OK
        if handler is not None:
            fields = of.parse(bytes(arg.data))
            status = handler(self, arg, fields, host_fd)
            arg.data[:] = of.build(fields)
        self._write_status(arg, of, status)
        return 0, status

    @staticmethod
    def _write_status(arg: Buffer | None, of: Any, status: int) -> None:
        where = plan(of).status if isinstance(of, CStruct) else None
        if arg is not None and where is not None:
            arg.data[where.offset : where.offset + where.size] = status.to_bytes(where.size, "little")

    # NV_ESC_RM_ALLOC and what else makes objects

    def _alloc(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        params = arg.pointers.get(nvos.NVOS64_PARAMETERS.field("pAllocParms").offset)
        data = params.data if isinstance(params, Buffer) else None
        resource = self._resources.get(fields.hClass)
        if resource is None:
            return nv.NV_ERR_INVALID_CLASS
        if resource.params == "required" and data is None:
            return nv.NV_ERR_INVALID_ARGUMENT
        if resource.kind == "client":
            return self._alloc_client(fields, host_fd)
        status = self.place(fields.hRoot, fields.hObjectParent, fields.hObjectNew, resource.parents)
        if status != nv.NV_OK:
            return status
        status = self._construct(fields.hRoot, fields.hClass, data)
        if status != nv.NV_OK:
            return status
        params_bytes = bytes(data) if data is not None else b""
        deps = self._dependencies(fields.hClass, params_bytes)
        fields.hObjectNew = self.add(
            fields.hRoot, fields.hObjectNew, fields.hClass, fields.hObjectParent, resource.kind, params_bytes, deps
        )
        return nv.NV_OK

    def _alloc_client(self, fields: Any, host_fd: int) -> int:
        status, handle = self.add_client(fields.hObjectNew, host_fd)
        if status == nv.NV_OK:
            fields.hObjectNew, fields.hClass = handle, nv.NV01_ROOT_CLIENT
        return status

    def _construct(self, client: int, hclass: int, data: bytearray | None) -> int:
        if hclass == nv.NV_EVENT_BUFFER and data is not None:
            return fake_event_buffer.construct(self, client, data)
        of, name, optional = _OS_EVENT_FIELDS.get(hclass, (None, "", False))
        if of is None or data is None:
            return nv.NV_OK
        key = of.at(self.version).parse(bytes(data))[name] & 0xFFFFFFFF
        if (optional and not key) or (client, key) in self.os_events:
            return nv.NV_OK
        return nv.NV_ERR_OBJECT_NOT_FOUND

    def _dependencies(self, hclass: int, params: bytes) -> tuple[int, ...]:
        if hclass == nv.NV_EVENT_BUFFER:
            return fake_event_buffer.dependencies(params)
        rule = self._rules["alloc"].get(hclass)
        of = rule.params_at(self.version) if rule is not None else None
        if not isinstance(of, CStruct) or len(params) != of.sizeof():
            return ()
        return tuple(int.from_bytes(params[s.offset : s.offset + s.size], "little") for s in plan(of).depends)

    def _alloc_memory(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        params = fields.params
        status = self.place(params.hRoot, params.hObjectParent, params.hObjectNew, ("device", "subdevice"))
        if status == nv.NV_OK:
            params.hObjectNew = self.add(
                params.hRoot, params.hObjectNew, params.hClass, params.hObjectParent, "leaf", b""
            )
        return status

    def _vid_heap_control(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        if fields.function != nv.NVOS32_FUNCTION_ALLOC_SIZE:
            return nv.NV_OK
        handle = fields.data.AllocSize.hMemory
        status = self.place(fields.hRoot, fields.hObjectParent, handle, ("device", "subdevice"))
        if status == nv.NV_OK:
            fields.data.AllocSize.hMemory = self.add(
                fields.hRoot, handle, nv.NV01_MEMORY_LOCAL_USER, fields.hObjectParent, "leaf", b""
            )
        return status

    def _alloc_context_dma2(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        # hObjectParent is the client here: RmDeprecatedAllocContextDma().
        client = fields.hObjectParent
        memory = self.find(client, fields.hMemory)
        if client in self.clients and memory is None:
            return nv.NV_ERR_OBJECT_NOT_FOUND
        parent = memory.parent.handle if memory is not None and memory.parent is not None else 0
        status = self.place(client, parent, fields.hObjectNew, classes.ANY)
        if status == nv.NV_OK:
            fields.hObjectNew = self.add(
                client, fields.hObjectNew, fields.hClass, parent, "leaf", b"", (fields.hMemory,)
            )
        return status

    def _dup_object(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        if fields.hClient not in self.clients or fields.hClientSrc not in self.clients:
            return nv.NV_ERR_INVALID_CLIENT
        source = self.find(fields.hClientSrc, fields.hObjectSrc)
        if source is None:
            return nv.NV_ERR_OBJECT_NOT_FOUND
        if source.lost:
            return nv.NV_ERR_RESOURCE_LOST
        if source.kind != "leaf":
            return nv.NV_ERR_INVALID_ARGUMENT
        status = self.place(fields.hClient, fields.hParent, fields.hObject, classes.ANY)
        if status == nv.NV_ERR_INVALID_OBJECT_PARENT:
            status = nv.NV_ERR_INVALID_OBJECT_HANDLE
        if status == nv.NV_OK:
            fields.hObject = self.add(
                fields.hClient, fields.hObject, source.hclass, fields.hParent, source.kind, source.params
            )
        return status

    # NV_ESC_RM_FREE

    def _free(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        if fields.hRoot not in self.clients:
            return nv.NV_ERR_INVALID_CLIENT
        if fields.hObjectOld == fields.hRoot:
            self.free_client(fields.hRoot)
            return nv.NV_OK
        target = self.find(fields.hRoot, fields.hObjectOld)
        # rs_server.c: RS_COMPATABILITY_MODE makes freeing an unknown handle a success.
        if target is not None:
            self.free_tree(target)
        return nv.NV_OK

    # NV_ESC_RM_CONTROL

    def _control(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        params = arg.pointers.get(nvos.NVOS54_PARAMETERS.field("params").offset)
        data = bytes(params.data) if isinstance(params, Buffer) else b""
        if fields.hClient not in self.clients:
            return nv.NV_ERR_INVALID_CLIENT
        if fields.cmd == NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO and isinstance(params, Buffer):
            return self._handle_info(fields.hClient, params.data)
        of, act = fake_event_buffer.CONTROLS.get(fields.cmd, (None, None))
        rule = self._rules["control"].get(fields.cmd)
        resolved = of if of is not None else rule.params_at(self.version) if rule is not None else None
        if isinstance(resolved, CStruct):
            if len(data) != resolved.at(self.version).sizeof():
                return nv.NV_ERR_INVALID_ARGUMENT
        elif act is not None and data:
            return nv.NV_ERR_INVALID_ARGUMENT
        target = self.find(fields.hClient, fields.hObject)
        if target is None:
            return nv.NV_ERR_OBJECT_NOT_FOUND
        if target.lost:
            return nv.NV_ERR_RESOURCE_LOST
        if window(fields.cmd) != "RM_GSS_LEGACY_MASK" and not _takes(target, fields.cmd >> 16):
            return nv.NV_ERR_NOT_SUPPORTED
        return act(self, target, data) if act is not None else nv.NV_OK

    def _handle_info(self, client: int, params: bytearray) -> int:
        """client_resource.c: cliresCtrlCmdClientGetHandleInfo_IMPL(). A handle is taken while its resource is lost, too."""
        if len(params) != 16:
            return nv.NV_ERR_INVALID_ARGUMENT
        found = self.find(client, int.from_bytes(params[:4], "little"))
        if found is None:
            return nv.NV_ERR_OBJECT_NOT_FOUND
        answers = {1: found.parent.handle if found.parent is not None else 0, 2: found.hclass}
        index = int.from_bytes(params[4:8], "little")
        if index not in answers:
            return nv.NV_ERR_INVALID_ARGUMENT
        params[8:] = answers[index].to_bytes(8, "little")
        return nv.NV_OK

    # The rest of the frontend

    def _map_memory(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        params = fields.params
        status = self._memory_status(params.hClient, params.hMemory)
        if status == nv.NV_OK:
            params.pLinearAddress = params.offset
        return status

    def _unmap_memory(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        return self._memory_status(fields.hClient, fields.hMemory)

    def _memory_status(self, client: int, memory: int) -> int:
        if client not in self.clients:
            return nv.NV_ERR_INVALID_CLIENT
        found = self.find(client, memory)
        if found is None:
            return nv.NV_ERR_OBJECT_NOT_FOUND
        return nv.NV_ERR_RESOURCE_LOST if found.lost else nv.NV_OK

    def _alloc_os_event(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        key = fields.hClient, fields.fd
        if key in self.os_events:
            return nv.NV_ERR_INSUFFICIENT_RESOURCES
        self.os_events.add(key)
        return nv.NV_OK

    def _free_os_event(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        key = fields.hClient, fields.fd
        if key not in self.os_events:
            return nv.NV_ERR_INVALID_EVENT
        self.os_events.discard(key)
        return nv.NV_OK

    def _check_version_str(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        text = self.version.name.encode().ljust(64, b"\0")
        fields.reply, fields.versionString = 1, list(text)
        return nv.NV_OK

    def _sys_params(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        fields.memblock_size = _MEMORY_BLOCK
        return nv.NV_OK

    def _card_info(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        """One GPU, 0x600, in an array of any length."""
        of = nv_ioctl.nv_ioctl_card_info_t.at(self.version)
        if len(arg.data) >= of.sizeof():
            arg.data[:] = bytes(len(arg.data))
            card = of.parse(bytes(of.sizeof()))
            card.valid, card.gpu_id, card.pci_info.bus, card.pci_info.vendor_id = 1, 0x600, 6, 0x10DE
            arg.data[: of.sizeof()] = of.build(card)
        return nv.NV_OK

    def _export_to_dmabuf_fd(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        if fields.hClient not in self.clients:
            return nv.NV_ERR_INVALID_CLIENT
        if fields.fd < 0:
            fields.fd = self._next_fd
            self._next_fd += 1
        return nv.NV_OK

    _HANDLERS: Mapping[str, Callable[[FakeDriver, Buffer, Any, int], int]] = {
        "NV_ESC_ALLOC_OS_EVENT": _alloc_os_event,
        "NV_ESC_CARD_INFO": _card_info,
        "NV_ESC_CHECK_VERSION_STR": _check_version_str,
        "NV_ESC_EXPORT_TO_DMABUF_FD": _export_to_dmabuf_fd,
        "NV_ESC_FREE_OS_EVENT": _free_os_event,
        "NV_ESC_RM_ALLOC": _alloc,
        "NV_ESC_RM_ALLOC_CONTEXT_DMA2": _alloc_context_dma2,
        "NV_ESC_RM_ALLOC_MEMORY": _alloc_memory,
        "NV_ESC_RM_CONTROL": _control,
        "NV_ESC_RM_DUP_OBJECT": _dup_object,
        "NV_ESC_RM_FREE": _free,
        "NV_ESC_RM_MAP_MEMORY": _map_memory,
        "NV_ESC_RM_UNMAP_MEMORY": _unmap_memory,
        "NV_ESC_RM_VID_HEAP_CONTROL": _vid_heap_control,
        "NV_ESC_SYS_PARAMS": _sys_params,
    }


_OS_EVENT_FIELDS: dict[int, tuple[CStruct, str, bool]] = {
    nv.NV01_EVENT_OS_EVENT: (cl0005.NV0005_ALLOC_PARAMETERS, "data", False),
    nv.NV_IMEX_SESSION: (cl00f1.NV00F1_ALLOCATION_PARAMETERS, "pOsEvent", False),
    nv.NV_MEMORY_MULTICAST_FABRIC: (cl00fd.NV00FD_ALLOCATION_PARAMETERS, "pOsEvent", True),
}
"""Class to (struct, field, whether 0 means none): who else calls osUserHandleToKernelPtr()."""

_TAKES = {0: "client", nv.NV01_DEVICE_0: "device", nv.NV20_SUBDEVICE_0: "subdevice"}


def _takes(target: FakeObject, hclass: int) -> bool:
    """Whether an object takes the controls of a class. Channels and engines are not judged."""
    if hclass in _TAKES:
        return target.kind == _TAKES[hclass]
    return target.hclass == hclass if hclass in (nv.NV_EVENT_BUFFER, nv.NV2081_BINAPI) else True
