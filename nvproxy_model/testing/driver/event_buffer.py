"""Event buffers as the driver answers for them: the checks of class 0x90cd in their order, and the controls of 0x90cd and 0x2080.

src/nvidia/src/kernel/rmapi/event_buffer.c: eventbufferConstruct_IMPL() and eventbuffertBufferCtrlCmd*(), with what was seen of
580.159.04 on hardware where that differs (a notification handle that nobody registered is refused).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nvproxy_model.abi import constants as nv
from nvproxy_model.fields import CStruct
from nvproxy_model.structs import cl90cd, ctrl90cd, ctrl2080event, ctrl2080gr
from nvproxy_model.structs.nvos import NV_MEMORY_ALLOCATION_PARAMS
from nvproxy_model.testing.driver.resources import FakeObject, Resources

__all__ = ["CONTROLS", "construct", "dependencies"]

_HEADER_SIZE = cl90cd.NV_EVENT_BUFFER_HEADER.sizeof()
_FLAGS = 0x3
"""NV_EVENT_BUFFER_FLAG_OVERFLOW_POLICY_KEEP_OLDEST and _KEEP_NEWEST."""
_U32 = 0xFFFFFFFF

NO_SUBDEVICE = "hSubDevice 0 with deviceless memory: answered 0, as 580.159.04 does"


def dependencies(params: bytes) -> tuple[int, ...]:
    """The memory handles whose end is the buffer's end too."""
    fields = cl90cd.NV_EVENT_BUFFER_ALLOC_PARAMETERS.parse(params)
    return tuple(filter(None, (fields.hBufferHeader, fields.hRecordBuffer, fields.hVardataBuffer)))


def construct(driver: Resources, client: int, params: bytearray) -> int:
    """The status of allocating class 0x90cd with these parameters, which an NV_OK clears the three addresses of."""
    of = cl90cd.NV_EVENT_BUFFER_ALLOC_PARAMETERS
    fields = of.parse(bytes(params))
    status = _check(driver, client, fields)
    if status == nv.NV_OK:
        fields.bufferHeader = fields.recordBuffer = fields.vardataBuffer = 0
        params[:] = of.build(fields)
    return status


def _check(driver: Resources, client: int, fields: Any) -> int:
    if not fields.hBufferHeader:
        return nv.NV_ERR_NOT_SUPPORTED
    if not fields.hRecordBuffer or bool(fields.vardataBufferSize) != bool(fields.hVardataBuffer):
        return nv.NV_ERR_INVALID_ARGUMENT
    header, record = driver.find(client, fields.hBufferHeader), driver.find(client, fields.hRecordBuffer)
    if header is None or record is None:
        return nv.NV_ERR_OBJECT_NOT_FOUND
    if header.hclass != record.hclass:
        return nv.NV_ERR_INVALID_ARGUMENT
    vardata = None
    if fields.hVardataBuffer:
        vardata = driver.find(client, fields.hVardataBuffer)
        if vardata is None:
            return nv.NV_ERR_OBJECT_NOT_FOUND
        if vardata.hclass != header.hclass:
            return nv.NV_ERR_INVALID_ARGUMENT
    deviceless = record.hclass == nv.NV01_MEMORY_DEVICELESS
    if not fields.hSubDevice and not deviceless:
        return nv.NV_ERR_INVALID_ARGUMENT
    needed = fields.recordSize * fields.recordCount
    if not 0 < needed <= _U32 or fields.recordsFreeThreshold > fields.recordCount:
        return nv.NV_ERR_INVALID_ARGUMENT
    if fields.vardataFreeThreshold > fields.vardataBufferSize:
        return nv.NV_ERR_INVALID_ARGUMENT
    if fields.hSubDevice:
        subdevice = driver.find(client, fields.hSubDevice)
        if subdevice is None or subdevice.kind != "subdevice":
            return nv.NV_ERR_INVALID_OBJECT_HANDLE
    else:
        driver.note(NO_SUBDEVICE)
    for memory, size in ((header, _HEADER_SIZE), (record, needed), (vardata, fields.vardataBufferSize)):
        if memory is not None and not _usable(memory, size):
            return nv.NV_ERR_INVALID_ARGUMENT
    # osUserHandleToKernelPtr(): a key, not a file, and 32 bits of it.
    key = fields.notificationHandle & _U32
    if fields.notificationHandle and (client, key) not in driver.os_events:
        return nv.NV_ERR_OBJECT_NOT_FOUND
    return nv.NV_OK


def _usable(memory: FakeObject, size: int) -> bool:
    """Whether a memory object is long enough and read-only to its user."""
    of = NV_MEMORY_ALLOCATION_PARAMS.at(memory.version)
    if memory.lost or len(memory.params) < of.sizeof():
        return False
    fields = of.parse(memory.params)
    protection = fields.attr2 >> nv.NVOS32_ATTR2_PROTECTION_USER_SHIFT & nv.NVOS32_ATTR2_PROTECTION_USER_MASK
    return bool(protection == nv.NVOS32_ATTR2_PROTECTION_USER_READ_ONLY and fields.size >= size)


Control = Callable[[Resources, FakeObject, bytes], int]


def _enable(driver: Resources, buffer: FakeObject, data: bytes) -> int:
    fields = ctrl90cd.NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS.parse(data)
    return nv.NV_ERR_INVALID_ARGUMENT if fields.flags & ~_FLAGS else nv.NV_OK


def _update_get(driver: Resources, buffer: FakeObject, data: bytes) -> int:
    wanted = ctrl90cd.NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET_PARAMS.parse(data)
    has = cl90cd.NV_EVENT_BUFFER_ALLOC_PARAMETERS.parse(buffer.params)
    vardata = max(has.vardataBufferSize, 1)
    in_bounds = wanted.recordBufferGet < has.recordCount and wanted.varDataBufferGet < vardata
    return nv.NV_OK if in_bounds else nv.NV_ERR_INVALID_ARGUMENT


def _flush(driver: Resources, buffer: FakeObject, data: bytes) -> int:
    return nv.NV_OK


def _never(driver: Resources, buffer: FakeObject, data: bytes) -> int:
    return nv.NV_ERR_NOT_SUPPORTED


def _privileged(driver: Resources, subdevice: FakeObject, data: bytes) -> int:
    return nv.NV_ERR_INSUFFICIENT_PERMISSIONS


def _bind(driver: Resources, subdevice: FakeObject, data: bytes) -> int:
    # Every bind structure starts with the buffer's handle.
    handle = int.from_bytes(data[:4], "little")
    buffer = driver.find(subdevice.client, handle)
    if buffer is None:
        return nv.NV_ERR_OBJECT_NOT_FOUND
    usable = buffer.hclass == nv.NV_EVENT_BUFFER and not buffer.lost
    return nv.NV_OK if usable else nv.NV_ERR_INVALID_OBJECT_HANDLE


def _bind_without_mig(driver: Resources, subdevice: FakeObject, data: bytes) -> int:
    # kernel_graphics.c: the handle is looked up before MIG is asked about.
    status = _bind(driver, subdevice, data)
    return nv.NV_ERR_NOT_SUPPORTED if status == nv.NV_OK and driver.mig else status


def _bind_video(driver: Resources, subdevice: FakeObject, data: bytes) -> int:
    # Numbered since 535, implemented from 545.29.06: no release of the tree between the two.
    return _bind(driver, subdevice, data) if driver.version.descends_from("550.40.07") else nv.NV_ERR_NOT_SUPPORTED


CONTROLS: Mapping[int, tuple[CStruct | None, Control]] = {
    0x90CD0000: (None, _flush),
    0x90CD0101: (ctrl90cd.NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS, _enable),
    0x90CD0102: (ctrl90cd.NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET_PARAMS, _update_get),
    0x90CD0103: (None, _never),
    0x90CD0104: (None, _flush),
    0x90CD0105: (ctrl90cd.NV_EVENT_BUFFER_CTRL_CMD_POST_TELEMETRY_EVENT_PARAMS, _never),
    0x20801231: (ctrl2080gr.NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_PARAMS, _bind_without_mig),
    0x20801238: (ctrl2080gr.NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS, _bind),
    0x20800309: (ctrl2080event.NV2080_CTRL_EVENT_VIDEO_BIND_EVTBUF_PARAMS, _bind_video),
    0x2080030A: (ctrl2080event.NV2080_CTRL_EVENT_RATS_GSP_TRACE_BIND_EVTBUF_PARAMS, _privileged),
}
"""Command to (parameter struct, what it does to an object that is there)."""
