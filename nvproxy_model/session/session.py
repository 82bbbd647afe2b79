"""One guest process: its calls through a policy to a host, over three ports that an embedder fills."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from nvproxy_model.abi.escapes import NV_ESC_RM_ALLOC, NV_ESC_RM_CONTROL
from nvproxy_model.errors import MemoryFault
from nvproxy_model.policy.decision import int32
from nvproxy_model.policy.handlers import PAGE
from nvproxy_model.policy.policy import Entry, Policy
from nvproxy_model.session import mistakes
from nvproxy_model.session.alloc import alloc
from nvproxy_model.session.control import control
from nvproxy_model.session.escapes import any_size, command, escape, no_params
from nvproxy_model.session.events import Events
from nvproxy_model.session.exchange import let_go
from nvproxy_model.session.objects import Graph, Object
from nvproxy_model.session.ports import FdTable, File, GuestMemory, Host, Result

__all__ = ["Session"]


class Session:
    """The ioctls of one guest process. Not safe for calls from two threads at once; policies are, and can be
    shared.

    Guest bytes never raise: every call has a Result. What a refused or failed call leaves in guest memory is
    the guest's own, with the status of the refusal where the struct has one.

    ``policy``: what is admitted. ``memory``, ``fds``, ``host``: the three ports. ``graph``: the objects. The
    other attributes are the session's own (`nvproxy_model.session.ports.Process`).
    """

    def __init__(self, policy: Policy, memory: GuestMemory, fds: FdTable, host: Host) -> None:
        """A process without objects. Takes over the ports as they are. Raises TypeError for one that is none."""
        mistakes.ports(memory=memory, fds=fds, host=host)
        self.policy = policy
        self.memory = memory
        self.fds = fds
        self.host = host
        self.graph = Graph()
        self.events = Events() if policy.profile == "hardened" else None
        self.unpin: list[tuple[int, int]] = []
        self.close_host: list[int] = []
        self.frontend: Mapping[int, Entry] = policy.entries("frontend")
        self.uvm: Mapping[int, Entry] = policy.entries("uvm")
        self.controls: Mapping[int, Entry] = policy.entries("control")
        self.classes: Mapping[int, Entry] = policy.entries("alloc")
        self.passed: dict[int, Result] = {}
        self._controls_admitted = self.frontend[NV_ESC_RM_CONTROL].decision.allowed

    def objects(self) -> tuple[Object, ...]:
        """All live objects, clients first seen first."""
        return tuple(self.graph)

    def not_restorable(self) -> tuple[Object, ...]:
        """What a checkpoint could not bring back: nvproxy refuses to save while one of these lives
        (save_restore.go)."""
        return tuple(obj for obj in self.graph if not obj.restorable)

    def ioctl(self, fd: int, request: int, argp: int) -> Result:
        """Answer one ioctl(2) of the guest: ``ret`` 0 with errno 0, or -1 with an errno.

        ``fd``, ``request``, ``argp``: the system call's arguments; the upper halves of the first two are
        ignored, as the kernel does. Raises HostError for a host outside its contract, and nothing else.
        """
        file = None
        try:
            file = self.fds.get(fd if -0x80000000 <= fd <= 0x7FFFFFFF else int32(fd))
            if file is None:
                return Result(-1, errno.EBADF)
            kind = file.kind
        except (AttributeError, TypeError):
            mistakes.blame(fd, file)
            raise
        try:
            if kind == "frontend":
                number = request & 0xFF
                if number == NV_ESC_RM_CONTROL and self._controls_admitted:
                    result = control(self, file, request, argp)
                else:
                    result = self._frontend(file, number, request, argp)
            elif kind == "uvm" or (kind == "uvm-tools" and self.policy.pending):
                result = self._uvm(file, request & 0xFFFFFFFF, argp)
            else:
                return Result(-1, errno.ENOTTY)
        except MemoryFault:
            result = Result(-1, errno.EFAULT)
        return self._let_go(result) if self.unpin or self.close_host else result

    def _frontend(self, file: File, number: int, request: int, argp: int) -> Result:
        entry = self.frontend[number]
        if not entry.decision.allowed:
            return Result(-1, entry.decision.errno, entry.decision)
        if number == NV_ESC_RM_ALLOC:
            return alloc(self, file, request, argp)
        if entry.decide is None:
            return any_size(self, entry, file, request, argp)
        return escape(self, entry, file, request, argp)

    def _uvm(self, file: File, request: int, argp: int) -> Result:
        entry = self.uvm[request]
        if not entry.decision.allowed:
            return Result(-1, entry.decision.errno, entry.decision)
        if entry.decide is None:
            return no_params(self, entry, file, request)
        return command(self, entry, file, request, argp)

    def _let_go(self, result: Result) -> Result:
        result = result._replace(unpin=tuple(self.unpin), close=tuple(self.close_host))
        self.unpin.clear()
        self.close_host.clear()
        return result

    def close(self, fd: int) -> Result:
        """close(2): the file's clients are freed with its last reference. EBADF if the descriptor is not
        open."""
        mistakes.integer("Session.close({})", fd)
        file = self.fds.remove(int32(fd))
        if file is None:
            return Result(-1, errno.EBADF)
        if self.events is not None:
            self.events.closed(int32(fd))
        mistakes.file("fds.remove(fd)", file)
        return self._release(file)

    def mmap(self, fd: int, length: int, offset: int = 0) -> Result:
        """Whether mmap(2) of ``length`` bytes at ``offset`` of the file is in order; if so the mapping is
        counted until `munmap`.

        EBADF: the descriptor is not open. EINVAL: no call has said that the file may be mapped, or the range
        is outside what it may be mapped as. The embedder does the mapping.
        """
        mistakes.integer("Session.mmap({}, ...)", fd)
        file = self.fds.get(int32(fd))
        if file is None:
            return Result(-1, errno.EBADF)
        mistakes.file("fds.get(fd)", file)
        if file.kind != "frontend" or file.mapping is None:
            return Result(-1, errno.EINVAL)
        whole_pages = -(-file.mapping.length // PAGE) * PAGE
        if length <= 0 or offset < 0 or offset + length > whole_pages:
            return Result(-1, errno.EINVAL)
        file.references += 1
        return Result(0, 0)

    def munmap(self, file: File) -> Result:
        """One mapping of the file has ended. Raises TypeError for a descriptor: it may name another file by now."""
        mistakes.file("Session.munmap(file)", file)
        return self._release(file)

    def _release(self, file: File) -> Result:
        file.references -= 1
        if file.references == 0:
            self.close_host.append(file.host_fd)
            self.unpin += file.pins
            let_go(self, self.graph.close(file))
        return self._let_go(Result(0, 0))
