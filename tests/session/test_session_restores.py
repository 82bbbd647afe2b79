"""Every fd and every copied pointer of every row, on every way back from the host: the guest sees its own value again."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from nvproxy_model import Files, Policy, Session, versions
from nvproxy_model.fields import CStruct, Fd, Handle, OpaquePointer, UserPointer
from nvproxy_model.policy.plan import plan
from nvproxy_model.rules import Rule
from nvproxy_model.session.ports import Buffer, File, Pages
from nvproxy_model.structs.nvos import NVOS21_PARAMETERS, NVOS64_PARAMETERS
from nvproxy_model.testing import Memory
from tests.session.follower import Follower
from tests.session.session_world import ADDRESS_MARK, ARG, END, FD_MARK, PARAMS, SPARE, Addressing, host_fd, request

CAPS = "all,profiling,rdma,fabric-imex-mgmt"
GUEST_FDS = {"frontend": 3, "uvm": 4, "open-only": 5, "dma-buf": 6, "cgroup": 8}
CLIENT = 0xC1D00001
FREE, BAD_STATUS = 0x29, 0x57
OUTCOMES = ("ok", "status", "errno", "unknown-client")


class Case(NamedTuple):
    """One row at the first release that has this layout of its struct."""

    version: str
    rule: Rule
    of: CStruct


def _cases() -> Iterator[Case]:
    seen = set()
    for version in versions.load().values():
        policy = Policy.for_driver(version.name, CAPS, allow_unsupported=True)
        for table in ("frontend", "uvm", "control", "alloc"):
            rules: dict[int, Rule] = dict(getattr(policy, table))
            for rule in rules.values():
                of = rule.params_at(version)
                # Trackers have a test of their own below: only a file of the tools device makes one.
                elsewhere = ("control", "alloc", "uvm_tools_init_event_tracker")
                if rule.rejected or not isinstance(of, CStruct) or rule.handler in elsewhere:
                    continue
                if plan(of).restore and (table, rule.number, id(of)) not in seen:
                    seen.add((table, rule.number, id(of)))
                    yield Case(version.name, rule, of)


CASES = list(_cases())


class Host:
    """Writes over everything that it is given but its own numbers, and answers as it is told."""

    def __init__(self) -> None:
        self.outcome = "ok"
        self.of: CStruct | None = None
        self.status_at = (0, 0)
        self.saw: list[Buffer] = []
        self.made_client = False

    def ioctl(self, host_fd: int, request: int, arg: Buffer | None) -> int:
        assert arg is not None
        if not self.made_client:
            self.made_client = True
            arg.data[8:12] = CLIENT.to_bytes(4, "little")
            return 0
        self.saw.append(Buffer(bytearray(arg.data), dict(arg.pointers)))
        for behind in arg.pointers.values():
            if isinstance(behind, Buffer):
                self.saw.append(Buffer(bytearray(behind.data)))
        self._scribble(arg)
        at, size = self.status_at
        if size:
            arg.data[at : at + size] = (BAD_STATUS if self.outcome == "status" else 0).to_bytes(size, "little")
        return errno.EIO if self.outcome == "errno" else 0

    def _scribble(self, buffer: Buffer) -> None:
        """All but the host's own addresses and descriptors, which stay where the session put them."""
        addresses = {at + half for at in buffer.pointers for half in (0, 4)}
        for behind in buffer.pointers.values():
            if isinstance(behind, Buffer):
                self._scribble(behind)
        for index in range(0, len(buffer.data) - 3, 4):
            if index not in addresses and FD_MARK not in buffer.data[index : index + 4]:
                buffer.data[index : index + 4] = b"\x11\x22\x33\x44"


def _body(of: CStruct, function: int | None) -> bytes:
    """Acceptable parameters: an open fd of the right kind, buffers of two elements, handles that name something."""
    data = bytearray(of.sizeof())
    counts = {count.offset for count in plan(of).counts if count is not None}
    spare = iter(range(SPARE, END, 0x800))
    for path, offset, member in of.walk():
        if member.dims:
            continue
        value = 0
        if isinstance(member.role, Fd):
            value = GUEST_FDS[member.role.file]
        elif isinstance(member.role, UserPointer) and member.role.to is not None:
            value = next(spare)
        elif isinstance(member.role, OpaquePointer) and not member.role.null_only:
            value = 0x7F0000000000
        elif isinstance(member.role, Handle):
            value = CLIENT if path in ("hRoot", "hClient", "params.hRoot", "params.hClient") else 7
        elif offset in counts:
            value = 2
        elif path == "function" and function is not None:
            value = function
        elif path == "params.hClass":
            value = 0x3E
        data[offset : offset + member.size] = value.to_bytes(member.size, "little")
    return bytes(data)


class Run:
    """One call of a case with one outcome, and what was before and after it."""

    def __init__(self, case: Case, outcome: str, *, short: bool = False) -> None:
        self.case = case
        self.what = plan(case.of)
        self.host = Host()
        self.memory = Memory(ARG, END)
        files = Files({fd: File(kind, host_fd(fd)) for kind, fd in GUEST_FDS.items()})
        policy = Policy.for_driver(
            case.version,
            CAPS,
            allow_unsupported=True,
            extra=[case.rule.number] if case.rule.opt_in else (),
            pending=True,
        )
        self.follower = Follower(
            case.version, Addressing(self.host), lambda fd: fd.to_bytes(4, "little")[1:] == FD_MARK
        )
        self.session = Session(policy, self.memory, files, self.follower)
        self._root()
        self.host.outcome = outcome
        body = _body(case.of, 2)
        self.body_at = PARAMS if case.rule.table in ("control", "alloc") else ARG
        self.memory.write(self.body_at, body)
        client = CLIENT + 1 if outcome == "unknown-client" else CLIENT
        fd, number = GUEST_FDS["frontend"], 0
        if case.rule.table == "uvm":
            fd, number = GUEST_FDS["uvm"], case.rule.number
            self._status(self.what)
        elif case.rule.table == "frontend":
            number = request(case.rule.number, len(body))
            self._status(self.what)
        elif case.rule.table == "control":
            outer = struct.pack("<IIIIQII", client, 7, case.rule.number, 0, PARAMS, len(body), 0)
            self.memory.write(ARG, outer)
            number, self.host.status_at = request(0x2A, 32), (28, 4)
        else:
            form: Any = NVOS21_PARAMETERS if short else NVOS64_PARAMETERS
            fields = form.parse(bytes(form.sizeof()))
            fields.hRoot, fields.hObjectParent, fields.hObjectNew = client, CLIENT, 9
            fields.hClass, fields.pAllocParms = case.rule.number, PARAMS
            if not short:
                fields.pRightsRequested = END - 0x100
            self.outer, self.form = fields, form
            self.memory.write(ARG, form.build(fields))
            number, self.host.status_at = request(0x2B, form.sizeof()), (40, 4)
        self.before = bytes(self.memory.data)
        self.result = self.session.ioctl(fd, number, ARG)

    def _root(self) -> None:
        self.memory.write(ARG, struct.pack("<IIIIQQIIII", 0, 0, 0, 0x41, 0, 0, 0, 0, 0, 0))
        assert self.session.ioctl(GUEST_FDS["frontend"], request(0x2B, 48), ARG).ret == 0
        assert [obj.handle for obj in self.session.objects()] == [CLIENT]

    def _status(self, what: Any) -> None:
        if what.status is not None:
            self.host.status_at = what.status.offset, what.status.size

    def now(self, address: int, size: int) -> bytes:
        return self.memory.read(address, size)

    def then(self, address: int, size: int) -> bytes:
        return self.before[address - ARG : address - ARG + size]


def _ids(case: Case) -> str:
    return f"{case.rule.name}-{case.version}"


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("case", CASES, ids=_ids)
def test_the_guests_own_values_come_back(case: Case, outcome: str) -> None:
    for short in (False, True) if case.rule.table == "alloc" else (False,):
        run = Run(case, outcome, short=short)
        if outcome == "unknown-client" and case.rule.table == "alloc":
            assert (run.result.errno, run.host.saw) == (0, [])
            assert int.from_bytes(run.now(ARG + run.form.sizeof() - (4 if short else 8), 4), "little") == 0x23
        elif outcome == "errno":
            assert run.result.errno == errno.EIO
            assert run.memory.data == run.before, "a host errno leaves guest memory alone"
        else:
            assert run.result.errno == 0, run.result.decision and run.result.decision.reason
            assert run.host.saw, "the host was not asked"
        for at, size in run.what.restore:
            assert run.now(run.body_at + at, size) == run.then(run.body_at + at, size)
        if case.rule.table == "control":
            assert run.now(ARG + 16, 8) == run.then(ARG + 16, 8)
        elif case.rule.table == "alloc":
            pointers = 8 if short else 16
            assert run.now(ARG + 16, pointers) == run.then(ARG + 16, pointers)
        assert FD_MARK not in run.memory.data
        assert ADDRESS_MARK not in run.memory.data


@pytest.mark.parametrize("case", [case for case in CASES if plan(case.of).fds], ids=_ids)
def test_the_host_gets_its_own_descriptor(case: Case) -> None:
    run = Run(case, "ok")
    behind = run.host.saw[1 if case.rule.table in ("control", "alloc") else 0]
    for step in run.what.fds:
        role: Any = step.role
        seen = behind.data[step.offset : step.offset + step.size]
        wanted = host_fd(GUEST_FDS[role.file]) if role.host is None else role.host & 0xFFFFFFFF
        assert int.from_bytes(seen, "little") == wanted


def _looked_up(case: Case) -> bool:
    fds: Any = plan(case.of).fds
    return any(step.role.host is None for step in fds)


@pytest.mark.parametrize("case", [case for case in CASES if _looked_up(case)], ids=_ids)
def test_a_closed_or_wrong_descriptor_is_refused_by_name(case: Case) -> None:
    for step in plan(case.of).fds:
        for bad in (77, 1 << 31, GUEST_FDS["frontend" if step.role.file != "frontend" else "uvm"]):  # type: ignore[attr-defined]
            body = bytearray(_body(case.of, 2))
            body[step.offset : step.offset + step.size] = bad.to_bytes(step.size, "little")
            files = Files({fd: File(kind, host_fd(fd)) for kind, fd in GUEST_FDS.items()})
            policy = Policy.for_driver(case.version, CAPS, allow_unsupported=True, pending=True)
            ask: Any = getattr(policy, f"decide_{case.rule.table}")
            number = request(case.rule.number, len(body)) if case.rule.table == "frontend" else case.rule.number
            decision = ask(number, bytes(body), files)
            role: Any = step.role
            if role.negative and bad == 1 << 31:
                assert decision.allowed
                continue
            assert not decision.allowed
            assert step.path in decision.reason
            assert (decision.errno, decision.status) == (
                (errno.EINVAL, None) if role.refuse is None else (0, role.refuse)
            )


def test_pinned_pages_are_the_guests_own() -> None:
    """An OS descriptor's pages are named to the host, and let go when the object is freed."""
    host, memory = Host(), Memory(ARG, END)
    session = Session(Policy.for_driver("580.159.04", CAPS), memory, Files({3: File("frontend", host_fd(3))}), host)
    memory.write(ARG, struct.pack("<IIIIQQIIII", 0, 0, 0, 0x41, 0, 0, 0, 0, 0, 0))
    session.ioctl(3, request(0x2B, 48), ARG)
    argument = struct.pack("<IIIIIxxxxQQIxxxxixxxx", CLIENT, CLIENT, 9, 0x71, 0, 0x12000, 0xFFF, 0, 0)
    memory.write(ARG, argument)

    def quiet(fd: int, number: int, arg: Buffer | None) -> int:
        host.saw.append(arg)  # type: ignore[arg-type]
        return 0

    host.ioctl = quiet  # type: ignore[method-assign]
    assert session.ioctl(3, request(0x27, len(argument)), ARG).ret == 0
    assert list(host.saw[0].pointers.values()) == [Pages(0x12000, 0x1000, True)]
    assert memory.read(ARG, len(argument)) == argument
    memory.write(ARG, struct.pack("<IIII", CLIENT, 0, 9, 0))
    assert session.ioctl(3, request(FREE, 16), ARG).unpin == ((0x12000, 0x1000),)
