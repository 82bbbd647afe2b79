"""NV_ESC_RM_CONTROL: a command of an object, whose parameters lie behind a pointer of the argument."""

from __future__ import annotations

import errno
import struct

from nvproxy_model import ioctl
from nvproxy_model.abi import constants as nv
from nvproxy_model.abi.escapes import NV_ESC_RM_CONTROL
from nvproxy_model.errors import HostError
from nvproxy_model.policy import hardened
from nvproxy_model.policy.decision import Decision, Facts, Why
from nvproxy_model.policy.handlers import offset, reader
from nvproxy_model.policy.policy import Entry, too_long
from nvproxy_model.policy.refusals import refuse, refuse_size
from nvproxy_model.session.escapes import HANDLERS
from nvproxy_model.session.exchange import Exchange, Part, answer, hold
from nvproxy_model.session.ownership import check_binapi, check_clients, check_memory
from nvproxy_model.session.ports import Buffer, File, Process, Result
from nvproxy_model.structs.nvos import NVOS54_PARAMETERS

__all__ = ["RM_CONTROL_REQUEST", "control"]

_SIZE = NVOS54_PARAMETERS.sizeof()
RM_CONTROL_REQUEST = ioctl.request(NV_ESC_RM_CONTROL, _SIZE)
_SIZE_MASK = ioctl.encode(0, 0, 0, ioctl.MAX_SIZE)
_PASSED = 4096
"""Numbers whose result is remembered; a hostile guest must not grow it."""
_SIZE_BITS = ioctl.encode(0, 0, 0, _SIZE)
_read = reader(NVOS54_PARAMETERS, "hClient", "hObject", "cmd", "params", "paramsSize")
_asked = reader(NVOS54_PARAMETERS, "cmd", "params", "paramsSize")
_PARAMS, _STATUS = offset(NVOS54_PARAMETERS, "params"), offset(NVOS54_PARAMETERS, "status")
_put_pointer = struct.Struct("<Q").pack_into
_MAX_PARAMS = nv.RMAPI_PARAM_COPY_MAX_PARAMS_SIZE
_new = object.__new__


def control(process: Process, file: File, request: int, argp: int) -> Result:
    """A control command of the guest."""
    # Most calls of a program are commands that are passed on whole. Those are written out here, without an
    # Exchange: the same steps with no helper between the four copies and the host, with objects made past
    # their constructors, and with one look-up for what a number alone decides. It halves the cost of a call
    # (benchmarks/policy.py, "simple control").
    if request & _SIZE_MASK != _SIZE_BITS:
        decision = refuse_size(
            process.policy.call("frontend", NV_ESC_RM_CONTROL), "NVOS54_PARAMETERS", _SIZE, ioctl.size(request)
        )
        return Result(-1, errno.EINVAL, decision)
    memory = process.memory
    outer = memory.read(argp, _SIZE)
    number, address, length = _asked(outer)
    passed = process.passed.get(number) or _passed(process, number)
    if passed is None or length > _MAX_PARAMS or not address or not length:
        return _exchange(process, file, argp, outer, process.controls[number])
    params = _new(Buffer)
    params.data = bytearray(memory.read(address, length))
    params.pointers = {}
    data = bytearray(outer)
    _put_pointer(data, _PARAMS, 0)
    arg = _new(Buffer)
    arg.data = data
    arg.pointers = {_PARAMS: params}
    try:
        error = process.host.ioctl(file.host_fd, RM_CONTROL_REQUEST, arg)
    except OSError as raised:
        raise HostError(f"Host.ioctl raised {raised!r}: it must return the errno") from raised
    data = arg.data
    if error != 0 or len(data) != _SIZE or len(params.data) != length or data.__class__ is not bytearray:
        hold(error, ((arg, _SIZE), (params, length)))
        return Result(-1, error, passed.decision)
    _put_pointer(data, _PARAMS, address)
    memory.write(argp, bytes(data))
    memory.write(address, bytes(params.data))
    return passed


def _passed(process: Process, number: int) -> Result | None:
    """The result of a command that is passed on whole whatever its parameters are; None for any other."""
    entry = process.controls[number]
    if entry.decide is not None or process.events is not None or not entry.decision.allowed:
        return None
    passed = Result(0, 0, entry.decision)
    if len(process.passed) < _PASSED:
        process.passed[number] = passed
    return passed


def _exchange(process: Process, file: File, argp: int, outer: bytes, entry: Entry) -> Result:
    memory = process.memory
    client, handle, _, address, length = _read(outer)
    decision, data = _decide(process, entry, client, address, length)
    if process.events is not None:
        decision = check_binapi(process, decision, client, handle)
    exchange = Exchange(
        process, file, HANDLERS[entry.handler.name], decision, data or b"", entry.plan, client=client, handle=handle
    )
    if not exchange.decide():
        return answer(memory, argp, outer, _STATUS, exchange.decision)
    argument = Part(memory, argp, outer)
    if data is None:
        return exchange.perform(RM_CONTROL_REQUEST, argument, None, (argument,), _STATUS)
    params = Part(memory, address, data, exchange.decision, entry.plan)
    argument.point(_PARAMS, params)
    return exchange.perform(RM_CONTROL_REQUEST, argument, params, (argument, params), _STATUS)


def _half(decision: Decision, address: int, length: int) -> Decision:
    """A size without a pointer, or a pointer without a size, which the driver could follow all the same."""
    return refuse(decision.call, Why.NULL, None, Facts("paramsSize", length, found=f"params = {address:#x}"))


def _decide(process: Process, entry: Entry, client: int, address: int, length: int) -> tuple[Decision, bytes | None]:
    """The decision, and the parameters if there are any."""
    decision, what = entry.decision, entry.plan
    if not decision.allowed:
        return decision, None
    if entry.decide is None:
        if bool(length) != bool(address):
            return _half(decision, address, length), None
        if length > _MAX_PARAMS:
            return too_long(decision.call, length), None
        data = process.memory.read(address, length) if length else None
    else:
        assert entry.size is not None
        if length != entry.size:
            # A struct that nvproxy passes through at any size: the driver judges it (control.c: INVALID_ARGUMENT).
            name = "paramsSize" if what is None else what.name
            wrong = refuse_size(decision.call, name, entry.size, length)
            if what is not None and (what.roles or entry.handler.name):
                return wrong, None
            return hardened.refuse(decision.call, nv.NV_ERR_INVALID_ARGUMENT, wrong.facts or Facts()), None
        if address and not length:
            return _half(decision, address, length), None
        data = process.memory.read(address, length) if length else None
        decision = entry.decide(data or b"", process.fds)
    if decision.allowed and process.events is not None and data is not None:
        decision = process.events.control(decision, client, data, process.graph)
        decision = check_memory(process, check_clients(process, decision, data), client, data)
    return decision, data
