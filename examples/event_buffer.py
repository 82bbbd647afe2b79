"""A guest process that sets up an event buffer as a context-switch profiler does, over a driver that is not there.

The Guest class is what an embedder writes: how its guest's memory, files and driver look to a Session.
"""

from __future__ import annotations

import struct

from nvproxy_model import File, Files, Policy, Session
from nvproxy_model.structs.cl90cd import NV_EVENT_BUFFER_ALLOC_PARAMETERS
from nvproxy_model.structs.ctrl90cd import NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET_PARAMS
from nvproxy_model.structs.ctrl2080gr import NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_PARAMS
from nvproxy_model.structs.nv_unix_nvos_params_wrappers import nv_ioctl_nvos33_parameters_with_fd
from nvproxy_model.structs.nvos import NV_MEMORY_ALLOCATION_PARAMS, NVOS54_PARAMETERS, NVOS64_PARAMETERS
from nvproxy_model.testing import FakeDriver, Memory

ARG, PARAMS = 0x1000, 0x2000
CTL, EVENTS = 3, 4
RECORD_SIZE, RECORD_COUNT, VARDATA_SIZE = 0x20, 0x4000, 0x400
USER_READ_ONLY = 0x400000


class Guest:
    """One process with nvidiactl open twice, and the three ioctls that it needs."""

    def __init__(self, version: str = "580.159.04") -> None:
        self.policy = Policy.for_driver(version, "compute,utility,profiling")
        self.memory = Memory(0, 0x10000)
        self.files = Files({CTL: File("frontend", host_fd=1 << 20), EVENTS: File("frontend", host_fd=(1 << 20) + 1)})
        self.driver = FakeDriver(version)
        self.session = Session(self.policy, self.memory, self.files, self.driver)
        self.client = 0

    def ioctl(self, nr: int, argument: bytes, params: bytes = b"") -> bytes:
        """One ioctl(2) on nvidiactl; the argument as the program finds it afterwards."""
        self.memory.write(ARG, argument)
        self.memory.write(PARAMS, params)
        result = self.session.ioctl(CTL, 0xC0004600 | len(argument) << 16 | nr, ARG)
        if result.errno:
            raise OSError(result.errno, result.decision.reason if result.decision else "")
        return self.memory.read(ARG, len(argument))

    def alloc(self, parent: int, hclass: int, params: bytes = b"") -> int:
        """NV_ESC_RM_ALLOC; the new handle."""
        argument = NVOS64_PARAMETERS.make(
            hRoot=self.client,
            hObjectParent=parent,
            hClass=hclass,
            pAllocParms=PARAMS if params else 0,
        )
        answer = NVOS64_PARAMETERS.parse(self.ioctl(0x2B, argument, params))
        print(f"alloc {hclass:#x}: status {answer.status:#x}, handle {answer.hObjectNew:#x}")
        return int(answer.hObjectNew)

    def control(self, handle: int, command: int, params: bytes = b"") -> int:
        """NV_ESC_RM_CONTROL; the NV status."""
        argument = NVOS54_PARAMETERS.make(
            hClient=self.client,
            hObject=handle,
            cmd=command,
            params=PARAMS if params else 0,
            paramsSize=len(params),
        )
        status = int(NVOS54_PARAMETERS.parse(self.ioctl(0x2A, argument, params)).status)
        print(f"control {command:#x}: status {status:#x}")
        return status

    def free(self, handle: int) -> None:
        """NV_ESC_RM_FREE."""
        self.ioctl(0x29, struct.pack("<IIII", self.client, 0, handle, 0))
        print(f"free {handle:#x}: {len(self.session.objects())} objects left")


def main() -> Guest:
    """The whole chain; what is left of the guest."""
    guest = Guest()
    guest.client = client = guest.alloc(0, 0x41)
    device = guest.alloc(client, 0x80)
    subdevice = guest.alloc(device, 0x2080)

    memory = NV_MEMORY_ALLOCATION_PARAMS.at(guest.policy.version)
    sizes = (0x20, RECORD_SIZE * RECORD_COUNT, VARDATA_SIZE)
    header, record, vardata = (
        guest.alloc(client, 0x90CE, memory.make(size=size, attr2=USER_READ_ONLY)) for size in sizes
    )

    shared = {"hClient": client, "hDevice": client, "hMemory": header, "length": 0x20}
    guest.ioctl(0x4E, nv_ioctl_nvos33_parameters_with_fd.make(params=shared, fd=EVENTS))
    print("map: ", guest.files[EVENTS].mapping, "mmap(2):", guest.session.mmap(EVENTS, 0x20).ret)

    guest.ioctl(0xCE, struct.pack("<IIiI", client, 0, EVENTS, 0))  # NV_ESC_ALLOC_OS_EVENT
    buffer = guest.alloc(
        client,
        0x90CD,
        NV_EVENT_BUFFER_ALLOC_PARAMETERS.make(
            recordSize=RECORD_SIZE,
            recordCount=RECORD_COUNT,
            vardataBufferSize=VARDATA_SIZE,
            recordsFreeThreshold=RECORD_COUNT // 2,
            vardataFreeThreshold=VARDATA_SIZE // 2,
            notificationHandle=EVENTS,
            hSubDevice=subdevice,
            hBufferHeader=header,
            hRecordBuffer=record,
            hVardataBuffer=vardata,
        ),
    )
    seen = NV_EVENT_BUFFER_ALLOC_PARAMETERS.parse(guest.memory.read(PARAMS, 72))
    print(f"notificationHandle: the program sees {seen.notificationHandle}, the driver {1 + (1 << 20)}")

    bind = NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_PARAMS.make(
        hEventBuffer=buffer, recordSize=RECORD_SIZE, levelOfDetail=1
    )
    guest.control(subdevice, 0x20801231, bind)
    guest.control(buffer, 0x90CD0101, struct.pack("<BxxxI", 1, 0))  # ENABLE_EVENTS
    guest.control(buffer, 0x90CD0104)  # FLUSH
    guest.control(buffer, 0x90CD0102, NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET_PARAMS.make(recordBufferGet=1))

    guest.free(record)  # and with it the buffer
    guest.control(buffer, 0x90CD0104)
    guest.free(buffer)
    guest.free(client)
    return guest


if __name__ == "__main__":
    main()
