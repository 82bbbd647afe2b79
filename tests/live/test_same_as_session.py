"""A program's calls through the broker, and the same calls through a plain Session: the same answers and the same memory."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvproxy_model import Files, Policy, Session
from nvproxy_model.session.ports import File
from nvproxy_model.testing import Memory
from nvproxy_model.testing.strategies import calls, garbage
from tests.live.watched import VERSION, LockedDriver, World

ARENA, SIZE = 0x10000000, 0x8000
FRONTEND, GPU, UVM, OTHER = 100, 101, 102, 103
CAPS = "compute,utility,graphics,video,profiling,fabric-imex-mgmt"


class Obedient:
    """The C program at the other end of two pipes, under a broker in a thread of its own process."""

    def __init__(self, send: int, receive: int) -> None:
        self.send, self.receive = send, receive

    def put(self, address: int, data: bytes) -> None:
        os.write(self.send, struct.pack("<QQQQ", ord("w"), address - ARENA, len(data), 0) + data)

    def zero(self) -> None:
        os.write(self.send, struct.pack("<QQQQ", ord("z"), 0, 0, 0))

    def ioctl(self, fd: int, request: int, address: int) -> tuple[int, bytes]:
        os.write(self.send, struct.pack("<QQQQ", ord("i"), fd, request, address))
        wanted, data = 4 + SIZE, b""
        while len(data) < wanted:
            piece = os.read(self.receive, wanted - len(data))
            assert piece, "the program ended"
            data += piece
        return int.from_bytes(data[:4], "little"), data[4:]
