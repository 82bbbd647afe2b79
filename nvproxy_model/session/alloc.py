"""NV_ESC_RM_ALLOC: a new object of a class, in either form of the argument."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Mapping
from dataclasses import replace

from nvproxy_model import ioctl
from nvproxy_model.abi import constants as nv
from nvproxy_model.abi.escapes import NV_ESC_RM_ALLOC
from nvproxy_model.errors import MemoryFault
from nvproxy_model.fields import CStruct
from nvproxy_model.policy import handlers
from nvproxy_model.policy.decision import Decision, Why
from nvproxy_model.policy.handlers import Handler, offset, reader
from nvproxy_model.policy.policy import Entry
from nvproxy_model.policy.refusals import refuse_size
from nvproxy_model.session.exchange import Exchange, Part, answer
from nvproxy_model.session.ownership import check_clients
from nvproxy_model.session.ports import File, GuestMemory, Process, Result
from nvproxy_model.structs import nvos
from nvproxy_model.structs.cl0005 import NV0005_ALLOC_PARAMETERS
from nvproxy_model.structs.rs_access import RS_ACCESS_MASK

__all__ = ["RM_ALLOC_REQUEST", "alloc"]

_SIZE, _SHORT = nvos.NVOS64_PARAMETERS.sizeof(), nvos.NVOS21_PARAMETERS.sizeof()
RM_ALLOC_REQUEST = ioctl.request(NV_ESC_RM_ALLOC, _SIZE)
"""With the 48-byte form: the one that the host is always given."""
_STATUS, _SHORT_STATUS = offset(nvos.NVOS64_PARAMETERS, "status"), offset(nvos.NVOS21_PARAMETERS, "status")
_CLASS = offset(nvos.NVOS64_PARAMETERS, "hClass")
_PARAMS, _RIGHTS = offset(nvos.NVOS64_PARAMETERS, "pAllocParms"), offset(nvos.NVOS64_PARAMETERS, "pRightsRequested")
_RIGHTS_SIZE = RS_ACCESS_MASK.sizeof()
_asked = reader(nvos.NVOS64_PARAMETERS, "hRoot", "hClass", "pAllocParms", "pRightsRequested")
_answered = reader(nvos.NVOS64_PARAMETERS, "hRoot", "hObjectParent", "hObjectNew", "hClass")
_event_class = reader(NV0005_ALLOC_PARAMETERS, "hClass")
_EVENT_SIZE = NV0005_ALLOC_PARAMETERS.sizeof()


def _converted(data: bytes | bytearray, source: CStruct, target: CStruct) -> bytes:
    """The other form of the argument: the members that both have, and zeros."""
    out = bytearray(target.sizeof())
    there = {member.name: member for member in source.members}
    for member in target.members:
        if member.name in there:
            at = there[member.name].offset
            out[member.offset : member.offset + member.size] = data[at : at + member.size]
    return bytes(out)


class _Argument(Part):
    """NVOS64_PARAMETERS, written back in the form that the guest used."""

    __slots__ = ("size",)

    def __init__(self, memory: GuestMemory, address: int, data: bytes, size: int) -> None:
        super().__init__(memory, address, data)
        self.size = size

    def write_struct(self, memory: GuestMemory) -> None:
        memory.write(self.address, _in_form(self.buffer.data, self.size))


def _in_form(data: bytes | bytearray, size: int) -> bytes:
    if size == _SIZE:
        return bytes(data)
    return _converted(data, nvos.NVOS64_PARAMETERS, nvos.NVOS21_PARAMETERS)


def alloc(process: Process, file: File, request: int, argp: int) -> Result:
    """An allocation by the guest."""
    memory, size = process.memory, ioctl.size(request)
    if size not in (_SIZE, _SHORT):
        call = process.policy.call("frontend", NV_ESC_RM_ALLOC)
        return Result(-1, errno.EINVAL, refuse_size(call, "NVOS64_PARAMETERS", _SIZE, size))
    asked = memory.read(argp, size)
    if size == _SHORT:
        asked = _converted(asked, nvos.NVOS21_PARAMETERS, nvos.NVOS64_PARAMETERS)
    client, hclass, address, rights_at = _asked(asked)
    if hclass == nv.NV01_EVENT:
        (hclass,) = _event_class(memory.read(address, _EVENT_SIZE))
        asked = asked[:_CLASS] + hclass.to_bytes(4, "little") + asked[_CLASS + 4 :]
    entry = process.classes[hclass]
    decision, data = _decide(process, entry, hclass, client, address)
    exchange = Exchange(process, file, _HANDLERS[entry.handler.name], decision, data or b"", entry.plan, client=client)
    rights = Part(memory, rights_at, memory.read(rights_at, _RIGHTS_SIZE)) if decision.allowed and rights_at else None
    if not exchange.decide():
        return _refuse(memory, argp, asked, size, exchange.decision)
    argument = _Argument(memory, argp, asked, size)
    params = None if data is None else Part(memory, address, data, exchange.decision, entry.plan)
    argument.point(_PARAMS, params)
    argument.point(_RIGHTS, rights)
    parts = [part for part in (rights, argument, params) if part is not None]
    return exchange.perform(RM_ALLOC_REQUEST, argument, params, parts, _STATUS)


def _decide(process: Process, entry: Entry, hclass: int, client: int, address: int) -> tuple[Decision, bytes | None]:
    """The decision, and the parameters where the class has any and the guest gives some."""
    if hclass == nv.NV01_EVENT:
        return process.policy.unknown("alloc", hclass), None
    if not entry.decision.allowed or entry.size is None:
        return entry.decision, None
    needed = entry.plan is not None and bool(entry.plan.fds or entry.plan.required)
    data = process.memory.read(address, entry.size) if address or needed else None
    decision = entry.decision if entry.decide is None else entry.decide(data, process.fds)
    if decision.allowed and process.events is not None:
        decision = process.events.alloc(decision, client, data)
        if data is not None:
            decision = check_clients(process, decision, data)
    return decision, data


def _refuse(memory: GuestMemory, argp: int, asked: bytes, size: int, decision: Decision) -> Result:
    """The refusal in the form that the guest used.

    nvproxy ignores a fault when it refuses the class or its parameters, so that the status is the answer
    whether or not the guest can be written; a fault when it refuses the client is EFAULT (frontend.go:
    rmAlloc).
    """
    ignored = () if decision.why is Why.CLIENT else (MemoryFault,)
    with contextlib.suppress(*ignored):
        return answer(memory, argp, _in_form(asked, size), _STATUS if size == _SIZE else _SHORT_STATUS, decision)
    return Result(0, 0, decision)


def _before(exchange: Exchange) -> Decision:
    return exchange.need_client(exchange.client)


def _after(exchange: Exchange) -> None:
    """The new object, below the client that was looked up, whatever the host says of it."""
    _, parent, new, hclass = _answered(exchange.argument.buffer.data)
    rule, what, out = exchange.decision.rule, exchange.what, exchange.out
    deps: list[int] = []
    if what is not None and out:
        for step in what.depends:
            handle = int.from_bytes(out[step.offset : step.offset + step.size], "little")
            if handle not in step.role.null:
                deps.append(handle)
    process = exchange.process
    restorable = rule is None or rule.restorable
    obj = process.graph.add(exchange.client, new, hclass, parent, deps, restorable=restorable)
    if obj is not None and process.events is not None and out:
        process.events.allocated(obj, out)


def _after_client(exchange: Exchange) -> None:
    """The new client, of the file that the call was made on."""
    _, _, new, hclass = _answered(exchange.argument.buffer.data)
    exchange.process.graph.add_client(new, hclass, exchange.file)


_HANDLERS: Mapping[str, Handler[Exchange]] = {
    handlers.PLAIN.name: replace(handlers.PLAIN, before=_before, after=_after),
    "root_client": replace(handlers.HANDLERS["root_client"], after=_after_client),
}
"""What a session does for classes: a client is a new one, every other object needs one."""
