"""The guest's RM objects: clients, handles, parents, dependencies, and what goes when something is freed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Graph", "Object"]


@dataclass(slots=True, eq=False)
class Object:
    """One RM object. ``deps`` includes the parent; ``rdeps`` are the objects that go when this one does.

    ``restorable`` is nvproxy's: whether a checkpoint could replay the allocation (its rmAllocObject and root clients).
    Equality is identity: a handle may be reused.
    """

    client: int
    handle: int
    hclass: int
    parent: int
    owner: Any = None
    """For a root client, the file that allocated it; its close frees the client."""
    restorable: bool = True
    pins: tuple[tuple[int, int], ...] = ()
    """(address, size) of guest memory that stays pinned for as long as the object lives."""
    deps: dict[Object, None] = field(default_factory=dict, repr=False)
    rdeps: dict[Object, None] = field(default_factory=dict, repr=False)
    handles: dict[int, Object] = field(default_factory=dict, repr=False)
    """Its client's objects by handle."""

    def __str__(self) -> str:
        deps = " ".join(sorted(f"{dep.client:#x}:{dep.handle:#x}" for dep in self.deps))
        return f"{self.client:#x}:{self.handle:#x} class={self.hclass:#x} parent={self.parent:#x} deps=[{deps}]"


class Graph:
    """Objects by client and handle (pkg/sentry/devices/nvproxy/object.go). Sets are insertion-ordered, so order is stable.

    What nvproxy does where a driver contradicts itself (a handle given out twice, an unknown parent) is done here too.
    """

    def __init__(self) -> None:
        self._clients: dict[int, dict[int, Object]] = {}
        self._owned: dict[Any, dict[Object, None]] = {}

    def __iter__(self) -> Iterator[Object]:
        for objects in self._clients.values():
            yield from objects.values()

    def __len__(self) -> int:
        return sum(map(len, self._clients.values()))

    def has_client(self, client: int) -> bool:
        """Whether the handle names a client that is alive."""
        return client in self._clients

    def get(self, client: int, handle: int) -> Object | None:
        """The object of that handle, if any."""
        return self._clients.get(client, {}).get(handle)

    def add_client(self, handle: int, hclass: int, owner: Any) -> Object:
        """A root client. One of the same handle is out of reach from now on, and freed when its file is closed."""
        root = Object(handle, handle, hclass, 0, owner)
        if handle:
            root.handles[handle] = root
        self._clients[handle] = root.handles
        self._owned.setdefault(owner, {})[root] = None
        return root

    def add(
        self, client: int, handle: int, hclass: int, parent: int, deps: Iterable[int] = (), **more: Any
    ) -> Object | None:
        """An object below a live client. Handle 0 and an unknown client are ignored, unknown dependencies left out.

        A handle in use is taken over; the object that had it stays reachable through its edges (objAdd).
        """
        objects = self._clients.get(client)
        if objects is None or not handle:
            return None
        new = objects[handle] = Object(client, handle, hclass, parent, handles=objects, **more)
        for wanted in (parent, *deps):
            if wanted and wanted in objects:
                self._depend(new, objects[wanted])
        return new

    @staticmethod
    def _depend(one: Object, other: Object) -> None:
        one.deps[other] = None
        other.rdeps[one] = None

    def depend(self, client: int, handle: int, on: int) -> None:
        """Object ``handle`` goes when ``on`` does; handles that name nothing are ignored."""
        one, other = self.get(client, handle), self.get(client, on)
        if one is not None and other is not None:
            self._depend(one, other)

    def dup(self, client: int, handle: int, parent: int, source_client: int, source: int) -> Object | None:
        """A duplicate: the source's class, and its dependencies but the parent, which still point into the source's client."""
        original = self.get(source_client, source)
        if original is None:
            return None
        copy = self.add(client, handle, original.hclass, parent, restorable=False)
        if copy is not None:
            above = self.get(source_client, original.parent)
            for dep in original.deps:
                if dep is not above:
                    self._depend(copy, dep)
        return copy

    def free(self, client: int, handle: int) -> list[Object]:
        """Free an object and all that depends on it, across clients; what is gone, dependents first.

        Freeing a client's own handle frees the client. An unknown handle frees nothing.
        """
        first = self.get(client, handle)
        return [] if first is None else self._free(first)

    def close(self, owner: Any) -> list[Object]:
        """Free every client that a file allocated, oldest first; what is gone."""
        return [gone for root in tuple(self._owned.get(owner, ())) for gone in self._free(root)]

    def _free(self, first: Object) -> list[Object]:
        """rs_server.c:serverFreeResourceTree() => clientUpdatePendingFreeList_IMPL(). Linear in what is freed."""
        order = _dependents_first(first)
        for gone in order:
            for dep in gone.deps:
                dep.rdeps.pop(gone, None)
            # By handle, whoever has it by now (objFree).
            gone.handles.pop(gone.handle, None)
        for root in [gone for gone in order if gone in self._owned.get(gone.owner, ())]:
            self._clients.pop(root.handle, None)
            self._owned[root.owner].pop(root)
            if not self._owned[root.owner]:
                del self._owned[root.owner]
            # Objects whose parent was unknown are tied to nothing: they vanish with the client, alone.
            order += root.handles.values()
            root.handles.clear()
        return order


def _dependents_first(root: Object) -> list[Object]:
    """An object and all that depends on it. Not recursive: a guest decides how deep the graph is."""
    seen, order = {root}, []
    stack = [(root, iter(root.rdeps))]
    while stack:
        top, rest = stack[-1]
        for dependent in rest:
            if dependent not in seen:
                seen.add(dependent)
                stack.append((dependent, iter(dependent.rdeps)))
                break
        else:
            order.append(top)
            stack.pop()
    return order
