"""A program that opens a device and allocates a client, over a driver that is not there: Linux 5.19 and no GPU."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from nvproxy_model import Policy
from nvproxy_model.live import Broker, DirectoryNodes
from nvproxy_model.testing import FakeDriver

PROGRAM = """
import fcntl, os, sys
fd = os.open(sys.argv[1] + "/nvidiactl", os.O_RDWR)
for hclass in (0x41, 0xC639):
    arg = bytearray(12) + hclass.to_bytes(4, "little") + bytes(32)      # NVOS64_PARAMETERS
    fcntl.ioctl(fd, 0xC030462B, arg)                                    # NV_ESC_RM_ALLOC
    print(f"class {hclass:#x}: status {int.from_bytes(arg[40:44], 'little'):#x}", flush=True)
"""

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as nodes:
        os.mkfifo(f"{nodes}/nvidiactl")
        policy = Policy.for_driver("580.159.04", "compute,utility", allow_unsupported=True)
        broker = Broker(policy, host=FakeDriver("580.159.04"), nodes=DirectoryNodes(Path(nodes)), in_place=())
        report = broker.run([sys.executable, "-c", PROGRAM, nodes])
    print(*report.lines(), sep="\n")
    print("exit status", report.status)
