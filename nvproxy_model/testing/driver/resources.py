"""What a driver holds: clients, objects below them by handle, dependencies, OS events (src/nvidia/src/libraries/resserv)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from nvproxy_model.abi import constants as nv
from nvproxy_model.testing.driver import classes
from nvproxy_model.versions import DriverVersion

__all__ = ["FIRST_CLIENT", "FIRST_HANDLE", "FakeObject", "Resources"]

FIRST_CLIENT, FIRST_HANDLE = 0xC1D00001, 0xCAF00001
"""Where the driver starts to count the handles that it chooses itself."""


@dataclass(slots=True, eq=False)
class FakeObject:
    """One resource. ``lost``: it went with something that it depended on; its handle stays taken until it is freed.

    ``kind``: what it is to those below it. ``params``: the bytes of its allocation parameters.
    """

    client: int
    handle: int
    hclass: int
    kind: classes.Kind
    parent: FakeObject | None
    version: DriverVersion
    params: bytes = b""
    lost: bool = False
    children: dict[FakeObject, None] = field(default_factory=dict, repr=False)
    dependants: dict[FakeObject, None] = field(default_factory=dict, repr=False)
    depends_on: list[FakeObject] = field(default_factory=list, repr=False)


class Resources:
    """The resources of one release's driver; ``mig`` says whether the GPU is partitioned.

    ``os_events`` are the (client, fd) pairs registered with NV_ESC_ALLOC_OS_EVENT: the fd is a key to the driver,
    and it is the host's number. ``notes`` are remarks on the call that is being answered.
    """

    def __init__(self, version: DriverVersion, *, mig: bool = False) -> None:
        """No client yet."""
        self.version = version
        self.mig = mig
        self.os_events: set[tuple[int, int]] = set()
        self.notes: list[str] = []
        self.clients: dict[int, dict[int, FakeObject]] = {}
        self._owners: dict[int, int] = {}
        self._next_client, self._next_handle = FIRST_CLIENT, FIRST_HANDLE

    def note(self, text: str) -> None:
        """Add a remark to the log entry of the call that is being answered."""
        self.notes.append(text)

    def find(self, client: int, handle: int) -> FakeObject | None:
        """The resource of that handle, lost ones included."""
        return self.clients.get(client, {}).get(handle)

    def objects(self) -> Iterator[FakeObject]:
        """Every resource that is alive, by client."""
        return (obj for handles in self.clients.values() for obj in handles.values() if not obj.lost)

    def close(self, host_fd: int) -> None:
        """A host file was closed: the clients that it allocated and the OS events of its number are gone."""
        for client in [client for client, owner in self._owners.items() if owner == host_fd]:
            self.free_client(client)
        self.os_events = {key for key in self.os_events if key[1] != host_fd}

    def add_client(self, handle: int, owner: int) -> tuple[int, int]:
        """A client of the host file ``owner``, at a handle of the driver's choice for 0: (status, handle)."""
        if not handle:
            while self._next_client in self.clients:
                self._next_client += 1
            handle = self._next_client
            self._next_client += 1
        if handle in self.clients:
            return nv.NV_ERR_INSERT_DUPLICATE_NAME, handle
        self.clients[handle] = {handle: FakeObject(handle, handle, nv.NV01_ROOT_CLIENT, "client", None, self.version)}
        self._owners[handle] = owner
        return nv.NV_OK, handle

    def place(self, client: int, parent: int, handle: int, parents: tuple[str, ...]) -> int:
        """Whether a new resource may stand there: alloc_free.c:serverAllocResourceUnderLock()."""
        handles = self.clients.get(client)
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

    def add(
        self,
        client: int,
        handle: int,
        hclass: int,
        parent: int,
        kind: classes.Kind,
        params: bytes,
        deps: tuple[int, ...] = (),
    ) -> int:
        """A resource where `place` found room, at a handle of the driver's choice for 0; its handle."""
        handles = self.clients[client]
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

    def free_client(self, client: int) -> None:
        """A client, all below it, and its OS events."""
        self.free_tree(self.clients[client][client])
        del self.clients[client], self._owners[client]
        self.os_events = {key for key in self.os_events if key[0] != client}

    def free_tree(self, target: FakeObject) -> None:
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
            self.clients[obj.client].pop(obj.handle, None)
