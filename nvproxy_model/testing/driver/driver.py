"""A Host that answers like the resource manager, so that a session can be driven where there is no GPU.

It keeps clients, handles, parents and dependencies of its own (src/nvidia/src/libraries/resserv), knows which class goes
where (`nvproxy_model.testing.driver.classes`), gives each wrong call the status that the driver gives it, and logs every call.
What it does not model it answers with NV_OK and the bytes unchanged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nvproxy_model import abi, ioctl, versions
from nvproxy_model.abi import constants as nv
from nvproxy_model.abi.windows import window
from nvproxy_model.fields import CStruct
from nvproxy_model.policy.decide import plan
from nvproxy_model.rules import Rule, active
from nvproxy_model.session.ports import Buffer
from nvproxy_model.structs import cl00f1, cl00fd, cl0005, nv_ioctl, nvos
from nvproxy_model.testing.driver import classes
from nvproxy_model.testing.driver import event_buffer as fake_event_buffer
from nvproxy_model.versions import DriverVersion

__all__ = ["FIRST_CLIENT", "FIRST_HANDLE", "FIRST_HOST_FD", "Entry", "FakeDriver", "FakeObject"]

NV_ERR_INSUFFICIENT_RESOURCES = 0x1A
NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO = 0xD02
FIRST_CLIENT, FIRST_HANDLE = 0xC1D00001, 0xCAF00001
"""Where the driver starts to count the handles that it chooses itself."""
FIRST_HOST_FD = 1 << 20
"""The first descriptor of a dma-buf that this driver makes."""
_FRONTEND = 0xC0004600
_MEMORY_BLOCK = 128 << 20


class Entry(NamedTuple):
    """One host call: ``table`` and ``number`` are the command's or class's for NV_ESC_RM_CONTROL and NV_ESC_RM_ALLOC."""

    host_fd: int
    request: int
    table: str
    number: int
    errno: int
    status: int | None
    notes: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class FakeObject:
    """One resource. ``lost``: it went with something that it depended on; its handle stays taken until it is freed."""

    client: int
    handle: int
    hclass: int
    kind: str
    parent: FakeObject | None
    version: DriverVersion
    params: bytes = b""
    lost: bool = False
    children: dict[FakeObject, None] = field(default_factory=dict, repr=False)
    dependants: dict[FakeObject, None] = field(default_factory=dict, repr=False)
    depends_on: list[FakeObject] = field(default_factory=list, repr=False)


@dataclass(slots=True)
class _Answer:
    errno: int
    status: int | None


class FakeDriver:
    """The driver of one release; ``mig`` says whether the GPU is partitioned. ``log`` holds the last ``keep`` calls, or all.

    ``os_events`` are the (client, fd) pairs registered with NV_ESC_ALLOC_OS_EVENT: the fd is a key to the driver, and it is the
    host's number. Raises UnknownDriverVersion.
    """

    def __init__(self, version: str = "580.159.04", *, mig: bool = False, keep: int | None = None) -> None:
        self.version = versions.load().find(version, allow_unsupported=True)
        self.mig = mig
        self.log: deque[Entry] = deque(maxlen=keep)
        self.os_events: set[tuple[int, int]] = set()
        self._clients: dict[int, dict[int, FakeObject]] = {}
        self._owners: dict[int, int] = {}
        self._resources = classes.at(self.version)
        self._rules: dict[str, Any] = {
            table: active(rows, self.version)
            for table, rows in (
                ("frontend", abi.FRONTEND),
                ("uvm", abi.UVM),
                ("control", abi.CONTROL),
                ("alloc", abi.ALLOC),
            )
        }
        self._next_client, self._next_handle, self._next_fd = FIRST_CLIENT, FIRST_HANDLE, FIRST_HOST_FD
        self._answers: deque[_Answer] = deque()
        self._notes: list[str] = []
        self._asked: tuple[str, int] = ("frontend", 0)

    def answer_next(self, *, errno: int = 0, status: int | None = None) -> None:
        """The next call fails with this errno, or answers this NV status, and does nothing else."""
        self._answers.append(_Answer(errno, status))

    def note(self, text: str) -> None:
        """Add a remark to the log entry of the call that is being answered."""
        self._notes.append(text)

    def rules(self, table: str) -> Mapping[int, Rule]:
        """The rows of one table at this release, whatever the capabilities: what the driver knows the shape of."""
        found: Mapping[int, Rule] = self._rules[table]
        return found

    def find(self, client: int, handle: int) -> FakeObject | None:
        """The resource of that handle, lost ones included."""
        return self._clients.get(client, {}).get(handle)

    def objects(self) -> Iterator[FakeObject]:
        """Every resource that is alive, by client."""
        return (obj for handles in self._clients.values() for obj in handles.values() if not obj.lost)

    def close(self, host_fd: int) -> None:
        """A host file was closed: the clients that it allocated and the OS events of its number are gone."""
        for client in [client for client, owner in self._owners.items() if owner == host_fd]:
            self._free_client(client)
        self.os_events = {key for key in self.os_events if key[1] != host_fd}

    def ioctl(self, host_fd: int, request: int, arg: Buffer | None) -> int:
        """Host.ioctl: the answer is written into ``arg``, which keeps its length."""
        self._notes = []
        error, status = self._answer(request, arg, host_fd)
        self.log.append(Entry(host_fd, request, *self._asked, error, status, tuple(self._notes)))
        return error

    def _answer(self, request: int, arg: Buffer | None, host_fd: int) -> tuple[int, int | None]:
        table = "frontend" if request & 0xC000FF00 == _FRONTEND else "uvm"
        number = ioctl.number(request) if table == "frontend" else request
        self._asked = table, number
        rule: Rule | None = self._rules[table].get(number)
        handler = self._HANDLERS.get(rule.name) if rule is not None and table == "frontend" else None
        if rule is not None and rule.handler in ("control", "alloc") and arg is not None:
            name = "cmd" if rule.handler == "control" else "hClass"
            at = rule.params.field(name).offset if isinstance(rule.params, CStruct) else 0
            self._asked = rule.handler, int.from_bytes(arg.data[at : at + 4], "little")
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
        status = self._place(fields.hRoot, fields.hObjectParent, fields.hObjectNew, resource.parents)
        if status != nv.NV_OK:
            return status
        status = self._construct(fields.hRoot, fields.hClass, data)
        if status != nv.NV_OK:
            return status
        params_bytes = bytes(data) if data is not None else b""
        deps = self._dependencies(fields.hClass, params_bytes)
        fields.hObjectNew = self._add(
            fields.hRoot, fields.hObjectNew, fields.hClass, fields.hObjectParent, resource.kind, params_bytes, deps
        )
        return nv.NV_OK

    def _alloc_client(self, fields: Any, host_fd: int) -> int:
        handle = fields.hObjectNew or self._choose_client()
        if handle in self._clients:
            return nv.NV_ERR_INSERT_DUPLICATE_NAME
        self._clients[handle] = {handle: FakeObject(handle, handle, nv.NV01_ROOT_CLIENT, "client", None, self.version)}
        self._owners[handle] = host_fd
        fields.hObjectNew, fields.hClass = handle, nv.NV01_ROOT_CLIENT
        return nv.NV_OK

    def _choose_client(self) -> int:
        while self._next_client in self._clients:
            self._next_client += 1
        self._next_client += 1
        return self._next_client - 1

    def _place(self, client: int, parent: int, handle: int, parents: tuple[str, ...]) -> int:
        """Whether a new resource may stand there: alloc_free.c:serverAllocResourceUnderLock()."""
        handles = self._clients.get(client)
        if handles is None:
            return nv.NV_ERR_INVALID_CLIENT
        if handle == client:
            return nv.NV_ERR_INVALID_OBJECT_PARENT
        above = handles.get(parent)
        if above is None:
            return nv.NV_ERR_OBJECT_NOT_FOUND
        if above.lost:
            return nv.NV_ERR_RESOURCE_LOST
        if parents != classes.ANY and above.kind not in parents:
            return nv.NV_ERR_INVALID_OBJECT_PARENT
        return nv.NV_ERR_INSERT_DUPLICATE_NAME if handle in handles else nv.NV_OK

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

    def _add(
        self, client: int, handle: int, hclass: int, parent: int, kind: str, params: bytes, deps: tuple[int, ...] = ()
    ) -> int:
        handles = self._clients[client]
        if not handle:
            while self._next_handle in handles:
                self._next_handle += 1
            handle = self._next_handle
            self._next_handle += 1
        above = handles[parent]
        new = handles[handle] = FakeObject(client, handle, hclass, kind, above, self.version, params)
        above.children[new] = None
        for dep in deps:
            other = handles.get(dep)
            if other is not None and other is not new:
                other.dependants[new] = None
                new.depends_on.append(other)
        return handle

    def _alloc_memory(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        params = fields.params
        status = self._place(params.hRoot, params.hObjectParent, params.hObjectNew, ("device", "subdevice"))
        if status == nv.NV_OK:
            params.hObjectNew = self._add(
                params.hRoot, params.hObjectNew, params.hClass, params.hObjectParent, "leaf", b""
            )
        return status

    def _vid_heap_control(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        if fields.function != nv.NVOS32_FUNCTION_ALLOC_SIZE:
            return nv.NV_OK
        handle = fields.data.AllocSize.hMemory
        status = self._place(fields.hRoot, fields.hObjectParent, handle, ("device", "subdevice"))
        if status == nv.NV_OK:
            fields.data.AllocSize.hMemory = self._add(
                fields.hRoot, handle, nv.NV01_MEMORY_LOCAL_USER, fields.hObjectParent, "leaf", b""
            )
        return status

    def _alloc_context_dma2(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        # hObjectParent is the client here: RmDeprecatedAllocContextDma().
        client = fields.hObjectParent
        memory = self.find(client, fields.hMemory)
        if client in self._clients and memory is None:
            return nv.NV_ERR_OBJECT_NOT_FOUND
        parent = memory.parent.handle if memory is not None and memory.parent is not None else 0
        status = self._place(client, parent, fields.hObjectNew, classes.ANY)
        if status == nv.NV_OK:
            fields.hObjectNew = self._add(
                client, fields.hObjectNew, fields.hClass, parent, "leaf", b"", (fields.hMemory,)
            )
        return status

    def _dup_object(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        if fields.hClient not in self._clients or fields.hClientSrc not in self._clients:
            return nv.NV_ERR_INVALID_CLIENT
        source = self.find(fields.hClientSrc, fields.hObjectSrc)
        if source is None:
            return nv.NV_ERR_OBJECT_NOT_FOUND
        if source.lost:
            return nv.NV_ERR_RESOURCE_LOST
        if source.kind != "leaf":
            return nv.NV_ERR_INVALID_ARGUMENT
        status = self._place(fields.hClient, fields.hParent, fields.hObject, classes.ANY)
        if status == nv.NV_ERR_INVALID_OBJECT_PARENT:
            status = nv.NV_ERR_INVALID_OBJECT_HANDLE
        if status == nv.NV_OK:
            fields.hObject = self._add(
                fields.hClient, fields.hObject, source.hclass, fields.hParent, source.kind, source.params
            )
        return status

    # NV_ESC_RM_FREE

    def _free(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        if fields.hRoot not in self._clients:
            return nv.NV_ERR_INVALID_CLIENT
        if fields.hObjectOld == fields.hRoot:
            self._free_client(fields.hRoot)
            return nv.NV_OK
        target = self.find(fields.hRoot, fields.hObjectOld)
        # rs_server.c: RS_COMPATABILITY_MODE makes freeing an unknown handle a success.
        if target is not None:
            self._free_tree(target)
        return nv.NV_OK

    def _free_client(self, client: int) -> None:
        self._free_tree(self._clients[client][client])
        del self._clients[client], self._owners[client]
        self.os_events = {key for key in self.os_events if key[0] != client}

    def _free_tree(self, target: FakeObject) -> None:
        """Descendants go with their handles; what merely depends on one of them is lost, and its handle stays."""
        family, stack = {target: None}, [target]
        while stack:
            for child in stack.pop().children:
                if child not in family:
                    family[child] = None
                    stack.append(child)
        going, stack = dict(family), list(family)
        while stack:
            top = stack.pop()
            for dependant in (*top.dependants, *top.children):
                if dependant not in going:
                    going[dependant] = None
                    stack.append(dependant)
        for obj in going:
            obj.lost = True
            for other in obj.depends_on:
                other.dependants.pop(obj, None)
            obj.depends_on.clear()
        for obj in family:
            if obj.parent is not None:
                obj.parent.children.pop(obj, None)
            self._clients[obj.client].pop(obj.handle, None)

    # NV_ESC_RM_CONTROL

    def _control(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        params = arg.pointers.get(nvos.NVOS54_PARAMETERS.field("params").offset)
        data = bytes(params.data) if isinstance(params, Buffer) else b""
        if fields.hClient not in self._clients:
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
        if client not in self._clients:
            return nv.NV_ERR_INVALID_CLIENT
        found = self.find(client, memory)
        if found is None:
            return nv.NV_ERR_OBJECT_NOT_FOUND
        return nv.NV_ERR_RESOURCE_LOST if found.lost else nv.NV_OK

    def _alloc_os_event(self, arg: Buffer, fields: Any, host_fd: int) -> int:
        key = fields.hClient, fields.fd
        if key in self.os_events:
            return NV_ERR_INSUFFICIENT_RESOURCES
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
        if fields.hClient not in self._clients:
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
