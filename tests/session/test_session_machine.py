"""A guest that opens, allocates, duplicates, frees and closes in any order, against a small model of what nvproxy tracks."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nvproxy_model.abi import constants as nv
from nvproxy_model.session.objects import State
from nvproxy_model.structs.cl90cd import NV_EVENT_BUFFER_ALLOC_PARAMETERS
from nvproxy_model.structs.nvos import (
    NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS,
    NV_CTXSHARE_ALLOCATION_PARAMETERS,
    NV_MEMORY_ALLOCATION_PARAMS,
    NV_VASPACE_ALLOCATION_PARAMETERS,
)
from tests.effort import examples
from tests.session.session_world import PARAMS, World

VASPACE, GROUP, SHARE = 0x90F1, 0xA06C, 0x9067
READ_ONLY = 0x400000


@dataclass(eq=False)
class Node:
    """The model's object. ``needs`` are the nodes whose end is its own."""

    client: int
    handle: int
    hclass: int
    parent: int
    needs: list[Node] = field(default_factory=list)
    fd: int = -1

    def row(self) -> tuple[int, int, int, int, frozenset[tuple[int, int]]]:
        return self.client, self.handle, self.hclass, self.parent, frozenset((n.client, n.handle) for n in self.needs)


class Model:
    """What must be alive, as the issue and object.go put it; nothing is shared with the code under test."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def find(self, client: int, handle: int) -> Node | None:
        return next((node for node in self.nodes if (node.client, node.handle) == (client, handle)), None)

    def add(self, node: Node, *needs: int) -> None:
        found = (self.find(node.client, handle) for handle in (node.parent, *needs) if handle)
        node.needs += [other for other in found if other is not None]
        self.nodes.append(node)

    def free(self, client: int, handle: int) -> None:
        gone = {node for node in self.nodes if (node.client, node.handle) == (client, handle)}
        if client == handle:
            gone |= {node for node in self.nodes if node.client == client}
        while True:
            more = {node for node in self.nodes if node not in gone and any(need in gone for need in node.needs)}
            if not more:
                break
            gone |= more
        self.nodes = [node for node in self.nodes if node not in gone]


BOGUS = 0xDEADBEEF
CONTROLS = [(0x90CD0101, b"\1\0\0\0\0\0\0\0"), (0x90CD0102, bytes(8)), (0x90CD0104, b"")]
LOST = (nv.NV_ERR_INVALID_CLIENT, nv.NV_ERR_OBJECT_NOT_FOUND, nv.NV_ERR_RESOURCE_LOST, nv.NV_ERR_NOT_SUPPORTED)


class Guest(RuleBasedStateMachine):
    """Rules mostly name what is alive, and sometimes what was, or never was."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.model = Model()
        self.handles = iter(range(0x5C000001, 0x7FFFFFFF))
        self.ever = [(BOGUS, BOGUS)]
        self.world.open()

    def _fd(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from([*self.world.files] * 6 + [99]))

    def _client(self, data: st.DataObject) -> int:
        live = [node.client for node in self.model.nodes if node.client == node.handle]
        if live and data.draw(st.integers(0, 9)) < 9:
            return data.draw(st.sampled_from(live))
        return data.draw(st.sampled_from([client for client, _ in self.ever]))

    def _pick(self, data: st.DataObject, client: int, *classes: int) -> int:
        live = [node.handle for node in self.model.nodes if node.client == client and node.hclass in classes]
        if live and data.draw(st.integers(0, 9)) < 9:
            return data.draw(st.sampled_from(live))
        return data.draw(st.sampled_from([handle for owner, handle in self.ever if owner == client] + [BOGUS]))

    def _allocate(
        self, data: st.DataObject, client: int, parent: int, hclass: int, params: bytes | None, *needs: int
    ) -> tuple[int, int]:
        """(errno, status); the model follows a success."""
        fd, handle, short = self._fd(data), next(self.handles), data.draw(st.booleans())
        result, status, new = self.world.alloc(fd, client, parent, handle, hclass, params, short=short)
        if fd not in self.world.files:
            assert result.errno == errno.EBADF
        elif not result.errno and not status:
            assert self.model.find(client, parent) is not None, "the driver allocated below what is not there"
            self.model.add(Node(client, new, hclass, parent), *needs)
            self.ever.append((client, new))
        return result.errno, status

    @rule(control=st.booleans())
    def open(self, control: bool) -> None:
        if len(self.world.files) < 6:
            self.world.open(control=control)

    @precondition(lambda self: len(self.world.files) > 1)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        fd = data.draw(st.sampled_from(list(self.world.files)))
        self.world.close(fd)
        for node in [node for node in self.model.nodes if node.fd == fd]:
            self.model.free(node.client, node.handle)

    @initialize(data=st.data())
    def first_client(self, data: st.DataObject) -> None:
        self._new_client(data, 0x41, False)

    @rule(data=st.data(), hclass=st.sampled_from([0x0, 0x1, 0x41]), short=st.booleans())
    def client(self, data: st.DataObject, hclass: int, short: bool) -> None:
        self._new_client(data, hclass, short)

    def _new_client(self, data: st.DataObject, hclass: int, short: bool) -> None:
        """A client with what a profiler gives it first: device, subdevice, three blocks of memory."""
        fd = self._fd(data)
        result, status, new = self.world.alloc(fd, 0, 0, 0, hclass, short=short)
        if fd not in self.world.files:
            assert result.errno == errno.EBADF
            return
        assert (result.errno, status) == (0, nv.NV_OK)
        self.model.nodes.append(Node(new, new, nv.NV01_ROOT_CLIENT, 0, fd=fd))
        self.ever.append((new, new))
        self._allocate(data, new, new, nv.NV01_DEVICE_0, None)
        self._allocate(data, new, self._pick(data, new, nv.NV01_DEVICE_0), nv.NV20_SUBDEVICE_0, bytes(4))
        for _ in range(3):
            self._memory(data, new)

    def _memory(self, data: st.DataObject, client: int) -> None:
        params = NV_MEMORY_ALLOCATION_PARAMS.at(self.world.policy.version).make(size=0x1000, attr2=READ_ONLY)
        self._allocate(data, client, client, nv.NV01_MEMORY_DEVICELESS, params)

    @rule(data=st.data())
    def memory(self, data: st.DataObject) -> None:
        self._memory(data, self._client(data))

    @rule(data=st.data())
    def channel_group(self, data: st.DataObject) -> None:
        """A VA space, a channel group in it, and a context share of both."""
        client = self._client(data)
        device = self._pick(data, client, nv.NV01_DEVICE_0)
        params = bytes(NV_VASPACE_ALLOCATION_PARAMETERS.at(self.world.policy.version).sizeof())
        self._allocate(data, client, device, VASPACE, params)
        space = self._pick(data, client, VASPACE)
        self._allocate(data, client, device, GROUP, NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS.make(hVASpace=space), space)
        group, space = self._pick(data, client, GROUP), self._pick(data, client, VASPACE)
        self._allocate(data, client, group, SHARE, NV_CTXSHARE_ALLOCATION_PARAMETERS.make(hVASpace=space), space)

    @rule(data=st.data(), free=st.booleans())
    def os_event(self, data: st.DataObject, free: bool) -> None:
        self.world.os_event(self._fd(data), self._client(data), self._fd(data), free=free)

    @rule(data=st.data(), with_vardata=st.booleans(), with_event=st.booleans())
    def event_buffer(self, data: st.DataObject, with_vardata: bool, with_event: bool) -> None:
        of = NV_EVENT_BUFFER_ALLOC_PARAMETERS
        client, event = self._client(data), self._fd(data) if with_event else 0
        header, record, vardata = (self._pick(data, client, nv.NV01_MEMORY_DEVICELESS) for _ in range(3))
        params = of.make(
            recordSize=0x20,
            recordCount=0x10,
            vardataBufferSize=0x400 if with_vardata else 0,
            notificationHandle=event,
            hSubDevice=self._pick(data, client, nv.NV20_SUBDEVICE_0),
            hBufferHeader=header,
            hRecordBuffer=record,
            hVardataBuffer=vardata if with_vardata else 0,
        )
        error, _ = self._allocate(
            data, client, client, nv.NV_EVENT_BUFFER, params, header, record, vardata if with_vardata else 0
        )
        assert of.parse(self.world.memory.read(PARAMS, of.sizeof())).notificationHandle == event
        if event and event not in self.world.files:
            assert error

    @precondition(lambda self: any(node.hclass == nv.NV_EVENT_BUFFER for node in self.model.nodes))
    @rule(data=st.data())
    def shared_buffer(self, data: st.DataObject) -> None:
        """A buffer duplicated into another client still goes with the first one's memory."""
        original = data.draw(st.sampled_from([node for node in self.model.nodes if node.hclass == nv.NV_EVENT_BUFFER]))
        fd = next(iter(self.world.files))
        _, _, other = self.world.alloc(fd, 0, 0, 0, 0x41)
        self.model.nodes.append(Node(other, other, nv.NV01_ROOT_CLIENT, 0, fd=fd))
        self.ever.append((other, other))
        self._dup(fd, other, original.client, original.handle)
        if original.needs and data.draw(st.booleans()):
            need = data.draw(st.sampled_from(original.needs))
            assert self.world.free(fd, need.client, need.handle)[1] == nv.NV_OK
            self.model.free(need.client, need.handle)

    @rule(data=st.data(), call=st.sampled_from(CONTROLS))
    def event_control(self, data: st.DataObject, call: tuple[int, bytes]) -> None:
        fd, client = self._fd(data), self._client(data)
        handle = self._pick(data, client, nv.NV_EVENT_BUFFER)
        result, status = self.world.control(fd, client, handle, *call)
        if fd not in self.world.files:
            assert result.errno == errno.EBADF
            return
        node = self.model.find(client, handle)
        there = self.world.driver.find(client, handle)
        works = there is not None and not there.lost and there.hclass == nv.NV_EVENT_BUFFER
        assert status in ((nv.NV_OK,) if works else LOST)
        # The driver keeps a duplicate whose source's memory went; nvproxy does not.
        assert works or node is None or node.hclass != nv.NV_EVENT_BUFFER

    @rule(data=st.data())
    def dup(self, data: st.DataObject) -> None:
        fd, client, source_client = self._fd(data), self._client(data), self._client(data)
        source = self._pick(data, source_client, nv.NV01_MEMORY_DEVICELESS, nv.NV_EVENT_BUFFER, SHARE)
        self._dup(fd, client, source_client, source)

    def _dup(self, fd: int, client: int, source_client: int, source: int) -> None:
        result, status, new = self.world.dup(fd, client, client, next(self.handles), source_client, source)
        if result.errno or status:
            return
        original = self.model.find(source_client, source)
        if original is None:  # alive at the driver only: nvproxy tracks no duplicate of what it does not know (objDup)
            return
        copy = Node(client, new, original.hclass, client)
        self.model.add(copy)
        above = self.model.find(original.client, original.parent)
        copy.needs += [need for need in original.needs if need is not above and need not in copy.needs]
        self.ever.append((client, new))

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        fd = self._fd(data)
        live = [(node.client, node.handle) for node in self.model.nodes]
        client, handle = data.draw(st.sampled_from(live * 2 + self.ever))
        result, status = self.world.free(fd, client, handle)
        if fd not in self.world.files:
            assert result.errno == errno.EBADF
            return
        known = self.model.find(client, client) is not None
        assert (result.errno, status) == (0, nv.NV_OK if known else nv.NV_ERR_INVALID_CLIENT)
        if known:
            self.model.free(client, handle)

    @rule(data=st.data(), status=st.sampled_from([None, nv.NV_ERR_INVALID_STATE]))
    def failing_host(self, data: st.DataObject, status: int | None) -> None:
        """A host that fails leaves no object behind."""
        client = self._client(data)
        if self.model.find(client, client) is None:
            return
        before = len(self.model.nodes)
        self.world.driver.answer_next(errno=0 if status else errno.EIO, status=status)
        fd = next(iter(self.world.files))
        result, answered, _ = self.world.alloc(fd, client, client, next(self.handles), nv.NV01_DEVICE_0)
        assert (result.errno, answered) == ((0, status) if status else (errno.EIO, 0))
        assert len(self.world.session.objects()) == before

    @precondition(lambda self: self.model.nodes)
    @rule(data=st.data())
    def taken_handle(self, data: st.DataObject) -> None:
        """The driver refuses a handle in use, and the session then keeps what it had."""
        node = data.draw(st.sampled_from(self.model.nodes))
        if node.client != node.handle:
            fd = next(iter(self.world.files))
            _, status, _ = self.world.alloc(fd, node.client, node.client, node.handle, nv.NV01_DEVICE_0)
            assert status == nv.NV_ERR_INSERT_DUPLICATE_NAME

    @invariant()
    def the_graph_is_the_model(self) -> None:
        seen = {
            (obj.client, obj.handle, obj.hclass, obj.parent, frozenset((dep.client, dep.handle) for dep in obj.deps))
            for obj in self.world.session.objects()
        }
        assert seen == {node.row() for node in self.model.nodes}
        self.world.check_graph()

    @invariant()
    def invalidated_handles_are_taken_at_the_driver(self) -> None:
        """Of what the session knows as invalidated nothing is free at the driver, and all that the driver lost is known."""
        driver, graph = self.world.driver, self.world.session.graph
        for client, handle in graph.invalidated():
            assert driver.find(client, handle) is not None
        for client, handles in driver.clients.items():
            for handle, obj in handles.items():
                assert not obj.lost or graph.state(client, handle) is State.INVALIDATED

    @invariant()
    def what_is_tracked_is_alive_at_the_driver(self) -> None:
        alive = {(obj.client, obj.handle) for obj in self.world.driver.objects()}
        assert {(obj.client, obj.handle) for obj in self.world.session.objects()} <= alive


TestGuest = Guest.TestCase
TestGuest.settings = settings(max_examples=examples(60), stateful_step_count=40)
