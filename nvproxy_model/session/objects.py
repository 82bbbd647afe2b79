"""The guest's RM objects: clients, handles, parents, dependencies, and what goes when something is freed."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

__all__ = ["Graph", "Object", "State"]


class State(enum.Enum):
    """What a handle stands for.

    LIVE: an object that can be used. INVALIDATED: something the object needed was freed, and it was not below
    what was freed. The object is gone and the handle is taken: a control on it answers NV_ERR_RESOURCE_LOST,
    an allocation of the same handle fails, and freeing it succeeds (rs_server.c: bInvalidateOnly). FREE:
    nothing.
    """

    LIVE = "live"
    INVALIDATED = "invalidated"
    FREE = "free"


class _Handles(dict[int, "Object"]):
    """One client's live objects by handle, and the handles of invalidated ones."""

    def __init__(self) -> None:
        super().__init__()
        self.invalidated: set[int] = set()


@dataclass(slots=True, eq=False)
class _Shared:
    """Dependencies that an object and its duplicates have in common: one node, so that n duplicates add n
    edges."""

    needs: dict[Object | _Shared, None] = field(default_factory=dict, repr=False)
    needed_by: dict[Object | _Shared, None] = field(default_factory=dict, repr=False)


@dataclass(slots=True, eq=False)
class Object:
    """One RM object.

    ``client``, ``handle``, ``hclass``, ``parent``: as the driver answered. ``owner``: for a root client, the
    file that allocated it; its close frees the client. ``restorable``: whether a checkpoint could replay the
    allocation, as nvproxy sees it. ``pins``: (address, size) in bytes of guest memory that stays pinned for
    as long as the object lives. ``deps``: the objects whose end is this one's too, the parent included.
    ``rdeps``: the objects that go when this one does. Equality is identity, since a handle may be reused.
    """

    client: int
    handle: int
    hclass: int
    parent: int
    owner: object = None
    restorable: bool = True
    pins: tuple[tuple[int, int], ...] = ()
    above: Object | None = field(default=None, repr=False)
    handles: _Handles = field(default_factory=_Handles, repr=False)
    needs: dict[Object | _Shared, None] = field(default_factory=dict, repr=False)
    needed_by: dict[Object | _Shared, None] = field(default_factory=dict, repr=False)

    @property
    def deps(self) -> dict[Object, None]:
        """The objects whose end is this one's too, in the order in which they were named."""
        return _objects(self.needs, up=True)

    @property
    def rdeps(self) -> dict[Object, None]:
        """The objects that depend on this one directly, in the order of their allocation."""
        return _objects(self.needed_by, up=False)

    def __str__(self) -> str:
        deps = " ".join(sorted(f"{dep.client:#x}:{dep.handle:#x}" for dep in self.deps))
        return f"{self.client:#x}:{self.handle:#x} class={self.hclass:#x} parent={self.parent:#x} deps=[{deps}]"


def _objects(nodes: Iterable[Object | _Shared], *, up: bool) -> dict[Object, None]:
    """The objects among nodes, and those behind shared ones."""
    found: dict[Object, None] = {}
    stack = list(reversed(list(nodes)))
    while stack:
        node = stack.pop()
        if isinstance(node, Object):
            found[node] = None
        else:
            stack += reversed(list(node.needs if up else node.needed_by))
    return found


class Graph:
    """Objects by client and handle (pkg/sentry/devices/nvproxy/object.go). Sets are insertion-ordered, so
    order is stable.

    Where a driver contradicts itself (a handle given out twice, an unknown parent) this does what nvproxy
    does. Iteration and ``len`` are over live objects.
    """

    def __init__(self) -> None:
        self._clients: dict[int, _Handles] = {}
        self._owned: dict[object, dict[Object, None]] = {}

    def __iter__(self) -> Iterator[Object]:
        for objects in self._clients.values():
            yield from objects.values()

    def __len__(self) -> int:
        return sum(map(len, self._clients.values()))

    def has_client(self, client: int) -> bool:
        """Whether the handle names a client that is alive."""
        return client in self._clients

    def get(self, client: int, handle: int) -> Object | None:
        """The live object of that handle, if any."""
        objects = self._clients.get(client)
        return None if objects is None else objects.get(handle)

    def state(self, client: int, handle: int) -> State:
        """What the handle stands for, as far as the calls of this session say."""
        objects = self._clients.get(client)
        if objects is None:
            return State.FREE
        if handle in objects:
            return State.LIVE
        return State.INVALIDATED if handle in objects.invalidated else State.FREE

    def invalidated(self) -> Iterator[tuple[int, int]]:
        """(client, handle) of every invalidated object."""
        for client, objects in self._clients.items():
            for handle in sorted(objects.invalidated):
                yield client, handle

    def add_client(self, handle: int, hclass: int, owner: object) -> Object:
        """A root client. One of the same handle is out of reach from now on, and freed when its file is
        closed."""
        root = Object(handle, handle, hclass, 0, owner)
        if handle:
            root.handles[handle] = root
        self._clients[handle] = root.handles
        self._owned.setdefault(owner, {})[root] = None
        return root

    def add(
        self,
        client: int,
        handle: int,
        hclass: int,
        parent: int,
        deps: Iterable[int] = (),
        *,
        restorable: bool = True,
        pins: tuple[tuple[int, int], ...] = (),
    ) -> Object | None:
        """An object below a live client. Handle 0 and an unknown client are ignored, unknown dependencies
        left out.

        A handle in use is taken over; the object that had it stays reachable through its edges (objAdd).
        """
        objects = self._clients.get(client)
        if objects is None or not handle:
            return None
        new = Object(client, handle, hclass, parent, None, restorable, pins, None, objects)
        objects[handle] = new
        objects.invalidated.discard(handle)
        if parent and parent in objects:
            new.above = objects[parent]
            _depend(new, new.above)
        for wanted in deps:
            if wanted and wanted in objects:
                _depend(new, objects[wanted])
        return new

    def depend(self, client: int, handle: int, on: int) -> None:
        """Object ``handle`` goes when ``on`` does; handles that name nothing are ignored."""
        one, other = self.get(client, handle), self.get(client, on)
        if one is not None and other is not None:
            _depend(one, other)

    def dup(self, client: int, handle: int, parent: int, source_client: int, source: int) -> Object | None:
        """A duplicate: the source's class, and its dependencies but the parent, which still point into the
        source's client."""
        original = self.get(source_client, source)
        if original is None:
            return None
        copy = self.add(client, handle, original.hclass, parent, restorable=False)
        common = _common(original)
        if copy is not None and common is not None:
            _depend(copy, common)
        return copy

    def free(self, client: int, handle: int) -> list[Object]:
        """Free an object and all that depends on it, across clients; what is gone, dependents first.

        Freeing a client's own handle frees the client. An invalidated handle is free afterwards. An unknown
        handle frees nothing.
        """
        first = self.get(client, handle)
        if first is not None:
            return self._free(first)
        if client in self._clients:
            self._clients[client].invalidated.discard(handle)
        return []

    def close(self, owner: object) -> list[Object]:
        """Free every client that a file allocated, oldest first; what is gone."""
        return [gone for root in tuple(self._owned.get(owner, ())) for gone in self._free(root)]

    def _free(self, first: Object) -> list[Object]:
        """rs_server.c:serverFreeResourceTree() => clientUpdatePendingFreeList_IMPL(). Linear in what is
        freed."""
        order: list[Object] = []
        for node in _dependents_first(first):
            for need in node.needs:
                need.needed_by.pop(node, None)
                if need.__class__ is _Shared and not need.needed_by:
                    _let_go(need)
            if isinstance(node, Object):
                order.append(node)
                # By handle, whichever object has it by now (objFree).
                node.handles.pop(node.handle, None)
        below = {first}
        for gone in reversed(order):
            if gone.above in below:
                below.add(gone)
            elif gone is not first:
                gone.handles.invalidated.add(gone.handle)
        for root in [gone for gone in order if gone in self._owned.get(gone.owner, ())]:
            self._clients.pop(root.handle, None)
            self._owned[root.owner].pop(root)
            if not self._owned[root.owner]:
                del self._owned[root.owner]
            # Objects whose parent was unknown are tied to nothing: they vanish with the client, alone.
            order += root.handles.values()
            root.handles.clear()
            root.handles.invalidated.clear()
        return order


def _depend(one: Object | _Shared, other: Object | _Shared) -> None:
    one.needs[other] = None
    other.needed_by[one] = None


def _common(original: Object) -> _Shared | None:
    """The node that holds all dependencies of an object but its parent; None if it has none."""
    own = [need for need in original.needs if need is not original.above]
    if not own:
        return None
    if len(own) == 1 and isinstance(own[0], _Shared):
        return own[0]
    common = _Shared()
    for need in own:
        del original.needs[need], need.needed_by[original]
        _depend(common, need)
    _depend(original, common)
    return common


def _let_go(unneeded: Object | _Shared) -> None:
    """Take shared dependencies that nothing needs any more out of what they need in turn."""
    stack = [unneeded]
    while stack:
        top = stack.pop()
        for need in top.needs:
            need.needed_by.pop(top, None)
            if need.__class__ is _Shared and not need.needed_by:
                stack.append(need)


def _dependents_first(root: Object) -> list[Object | _Shared]:
    """An object and all that depends on it. Not recursive: a guest decides how deep the graph is."""
    seen: set[Object | _Shared] = {root}
    order: list[Object | _Shared] = []
    stack: list[tuple[Object | _Shared, Iterator[Object | _Shared]]] = [(root, iter(root.needed_by))]
    while stack:
        top, rest = stack[-1]
        for dependent in rest:
            if dependent not in seen:
                seen.add(dependent)
                stack.append((dependent, iter(dependent.needed_by)))
                break
        else:
            order.append(top)
            stack.pop()
    return order
