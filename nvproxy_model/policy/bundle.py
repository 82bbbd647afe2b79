"""The policy as one document: what a proxy in another language needs to decide a call as `Policy` does.

docs/bundle.md has the algorithm, nvproxy_model/schemas/nvproxy-policy.bundle.1.json every property. Fields stand in the order in
which they are looked at. What a handler does to bytes is said by fields too; what a session does for it is `SESSION`, in words.
"""

from __future__ import annotations

import errno
import functools
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from nvproxy_model import abi
from nvproxy_model.abi import constants as nv
from nvproxy_model.abi.sizes import size_at
from nvproxy_model.abi.windows import NV2081_BINAPI, RM_GSS_LEGACY_MASK, WINDOWS
from nvproxy_model.caps import Caps
from nvproxy_model.errors import DefinitionError
from nvproxy_model.fields import CStruct, Fd, Handle, OpaquePointer, Role, Status, UserPointer
from nvproxy_model.followed import is_pending
from nvproxy_model.policy.handlers import HANDLERS, PAGE, TRACKER_CONTROL, TRACKER_ENTRY, handler_of
from nvproxy_model.policy.plan import Count, Plan, plan
from nvproxy_model.policy.policy import GATES, UNKNOWN_STATUS
from nvproxy_model.rules import TABLES, Rule, active
from nvproxy_model.rules import Table as TableName
from nvproxy_model.versions import DriverVersion

__all__ = ["SCHEMA", "SESSION", "bundle", "encode"]

SCHEMA: Final = "nvproxy-policy/bundle/1"

Json = dict[str, Any]

_FILES: Final = {
    "frontend": "/dev/nvidiactl or /dev/nvidiaN",
    "uvm": "/dev/nvidia-uvm",
    "uvm-tools": "/dev/nvidia-uvm-tools",
    "open-only": "a capability or an IMEX channel below /dev/nvidia-caps*",
    "dma-buf": "a dma-buf that the proxy made",
    "cgroup": "a directory of cgroup v2",
    "other": "anything else",
}
"""What an open file of the guest is."""

SESSION: Final[Mapping[str, tuple[bool, str]]] = {
    "alloc": (
        False,
        "the class decides: table alloc, with hClass and the bytes at pAllocParms; the 32-byte form is widened to 48",
    ),
    "alloc_context_dma2": (True, "the client must be alive; the new object stands beside the memory that it names"),
    "alloc_memory": (
        True,
        "the client must be alive, a file that maps at once must have no map context; pages are pinned",
    ),
    "control": (False, "the command decides: table control, with cmd and the paramsSize bytes at params"),
    "dup_object": (True, "both clients must be alive; the copy depends on the original"),
    "export_to_dmabuf_fd": (False, "a dma-buf that the driver makes becomes a new file of the guest"),
    "free": (True, "the client must be alive; the object goes with all that depends on it"),
    "get_build_version": (False, "nothing more"),
    "in_only": (False, "nothing of the struct is copied out"),
    "map_memory": (True, "the file must have no map context; it gets one"),
    "os_event": (False, "nothing more"),
    "register_va_space": (True, "the client must be alive; the object of the call depends on the address space"),
    "root_client": (False, "the new client is alive from now on; its handle is the object that the others stand below"),
    "uvm_initialize": (
        False,
        "the bit that was set is taken back before the guest sees the struct, unless it was the guest's",
    ),
    "uvm_tools_init_event_tracker": (
        True,
        "of /dev/nvidia-uvm-tools only; pages are pinned; the guest sees the status alone",
    ),
    "vid_heap_control": (True, "the client must be alive; the new object's class comes from flags, attr and attr2"),
}
"""By handler: whether the objects of a session can refuse what the bytes admit, and what a session does."""


def bundle(nodes: Sequence[DriverVersion]) -> Json:
    """The document for these releases, without its schema's ``produced_by``. Equal arguments give equal documents."""
    layouts: dict[str, int] = {}
    tables = {table: _table(table, nodes, layouts) for table in TABLES}
    return {
        "schema": SCHEMA,
        "profile": "gvisor",
        "capabilities": {str(cap): int(cap) for cap in Caps},
        "statuses": {name: value for name, value in sorted(vars(nv).items()) if name.startswith("NV_ERR_")},
        "files": _FILES,
        "page": PAGE,
        "control_bytes": nv.RMAPI_PARAM_COPY_MAX_PARAMS_SIZE,
        "windows": [
            {"name": WINDOWS[0], "mask": RM_GSS_LEGACY_MASK, "value": RM_GSS_LEGACY_MASK},
            {"name": WINDOWS[1], "mask": 0xFFFF0000, "value": NV2081_BINAPI << 16},
        ],
        "event": {"number": nv.NV01_EVENT, "offset": 8, "width": 4, "short": {"errno": errno.EFAULT}},
        "handlers": [
            {"name": name, "objects": SESSION[name][0], "session": SESSION[name][1], "duty": handler.duty}
            for name, handler in HANDLERS.items()
        ],
        "releases": [
            {"release": node.name, "parent": node.parent.name if node.parent else None, "supported": node.supported}
            for node in nodes
        ],
        "tables": tables,
        "layouts": [json.loads(text) for text in layouts],
    }


def encode(document: Json) -> str:
    """The document as JSON with one row, layout or other entry a line."""
    parts = []
    for key, value in document.items():
        if key == "tables":
            inner = ",\n".join(f"{_text(table)}:{{{_table_text(of)}}}" for table, of in value.items())
            parts.append(f"{_text(key)}:{{\n{inner}}}")
        else:
            parts.append(f"{_text(key)}:{_each(value)}")
    return "{" + ",\n".join(parts) + "}\n"


def _table_text(table: Json) -> str:
    return ",".join(f"{_text(key)}:{_each(value)}" for key, value in table.items())


def _each(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(map(_text, value)) + "]"
    return _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _refusal(status: int | None) -> Json:
    return {"errno": errno.EINVAL} if status is None else {"status": status}


def _table(name: TableName, nodes: Sequence[DriverVersion], layouts: dict[str, int]) -> Json:
    rows: dict[tuple[int, str], list[int]] = {}
    for index, node in enumerate(nodes):
        for number, rule in active(abi.TABLES[name], node).items():
            rows.setdefault((number, _text(_row(rule, node))), []).append(index)
    found = []
    for (number, text), there in sorted(rows.items(), key=lambda item: (item[0][0], item[1])):
        row = json.loads(text)
        layout = row.pop("layout", None)
        if layout is not None:
            row["layout"] = layouts.setdefault(layout, len(layouts))
        found.append({"number": number, **row, "in": list(_ranges(there))})
    gate = GATES.get(name)
    return {
        "unknown": _refusal(UNKNOWN_STATUS[name]),
        "gate": None if gate is None else {"row": gate, "refuse": _refusal(None)},
        "rows": found,
    }


def _ranges(indexes: Iterable[int]) -> Iterator[list[int]]:
    """Rising numbers as [first, last] of each run."""
    run: list[int] = []
    for index in indexes:
        if run and index == run[1] + 1:
            run[1] = index
            continue
        if run:
            yield run
        run = [index, index]
    if run:
        yield run


def _row(rule: Rule, node: DriverVersion) -> Json:
    row: Json = {"name": rule.name, "caps": int(rule.caps)}
    struct = rule.struct_at(node)
    if struct is not None:
        row["struct"] = struct
    if rule.rejected:
        row["refuse"] = _refusal(rule.status)
    if rule.why is not None:
        row["why"] = rule.why
    row |= {key: True for key, there in (("opt_in", rule.opt_in), ("pending", is_pending(rule.later))) if there}
    if not rule.restorable:
        row["restorable"] = False
    handler = handler_of(rule)
    if handler.name:
        row["handler"] = handler.name
    if handler.inner is not None:
        table, offset, sizes = handler.inner.table, handler.inner.offset, list(handler.inner.sizes)
        row["inner"] = {"table": table, "offset": offset, "width": 4, "sizes": sizes}
    of = rule.params_at(node)
    if not isinstance(of, CStruct):
        size = size_at(rule.number, node.lineage) if of is None and rule.table == "control" else of and of.sizeof()
        return row if size is None else row | {"size": size}
    what = plan(of)
    row |= {"size": what.size, "layout": _layout(rule, of)}
    if rule.table in ("frontend", "uvm") or what.roles or what.depends or handler.decide is not None:
        row["exact"] = True
        if rule.table == "alloc" and not (what.required or what.fds):
            row["null"] = "admit"
    return row


@functools.cache
def _layout(rule: Rule, of: CStruct) -> str:
    what = plan(of)
    before, after, only = _handled(rule, of)
    fields = [*before, *_fields(of, what, only), *after]
    return _text({"fields": fields, "restore": [list(span) for span in what.restore]})


_ORDER: Final[tuple[type[Role], ...]] = (Handle, Fd, UserPointer, OpaquePointer, Status)


def _fields(of: CStruct, what: Plan, only: Mapping[str, list[Json]]) -> Iterator[Json]:
    """The fields with a role, by role and then by place: the order in which a policy decides."""
    leaves = [(path, at, member) for path, at, member in of.walk() if member.role is not None]
    counts = {step.path: count for step, count in zip(what.buffers, what.counts, strict=True)}
    for kind in _ORDER:
        for path, at, member in leaves:
            role = member.role
            if not isinstance(role, kind):
                continue
            field: Json = {"path": path, "offset": at, "width": member.element.sizeof()}
            if member.dims:
                yield field | {"role": _PLAIN[kind], "dims": list(member.dims)}
                continue
            if "[]" in path:
                raise DefinitionError(f"{what.name}.{path}: a bundle cannot say a role inside an array")
            field |= _role(role, counts.get(path))
            if path in only:
                field["when"] = only[path]
            yield field


_PLAIN: Final = {Handle: "handle", Fd: "fd", UserPointer: "pointer", OpaquePointer: "pointer", Status: "status"}


def _role(role: Role, count: Count | None) -> Json:
    if isinstance(role, Handle):
        found: Json = {"role": "handle"}
        found |= {"required": _refusal(None)} if role.required else {}
        return found | ({"depends": list(role.null)} if role.depends else {})
    if isinstance(role, Fd):
        found = {"role": "fd", "file": role.file, "refuse": _refusal(role.refuse)}
        mask = (1 << 8 * role.sizeof()) - 1
        found |= {} if role.null is None else {"none": role.null & mask}
        found |= {"negative": True} if role.negative else {}
        return found | ({} if role.host is None else {"host": role.host & 0xFFFFFFFF})
    if isinstance(role, UserPointer) and role.to is not None:
        return _buffer(role, count)
    if isinstance(role, OpaquePointer) and (role.null_only or role.cleared):
        return {"role": "null", "refuse": _refusal(None)} if role.null_only else {"role": "clear"}
    return {"role": _PLAIN[type(role)]}


def _buffer(role: UserPointer, count: Count | None) -> Json:
    if count is not None and count.format.islower():
        raise DefinitionError(f"{count.path}: a bundle's counts are unsigned")
    found: Json = {"role": "buffer", "element": role.to.sizeof(), "limit": role.limit}
    if count is None:
        found["elements"] = role.count
    else:
        found["count"] = {"path": count.path, "offset": count.offset, "width": struct.calcsize(f"<{count.format}")}
    found |= {"square": True} if isinstance(role.count, tuple) else {}
    found |= {"null": role.null, "empty": role.empty, "copy_in": role.mode == "inout"}
    return found | ({"late": True} if role.late else {}) | {"refuse": _refusal(role.refuse)}


Handled = tuple[list[Json], list[Json], Mapping[str, list[Json]]]
"""Fields before those with a role, fields after them, and conditions of the latter by path."""


def _handled(rule: Rule, of: CStruct) -> Handled:
    handler = handler_of(rule)
    if handler.decide is None:
        return [], [], {}
    if handler.name not in _HANDLED:
        raise DefinitionError(f"{rule.name}: a bundle does not say what its handler {handler.name!r} does")
    places = {
        path: {"path": path, "offset": at, "width": member.size} for path, at, member in of.walk() if not member.dims
    }
    return _HANDLED[handler.name](rule, places)


def _alloc_memory(rule: Rule, at: Mapping[str, Json]) -> Handled:
    hclass, fd = at["params.hClass"], at["fd"]
    hidden = [nv.NV01_MEMORY_LOCAL_PRIVILEGED, nv.NV01_MEMORY_LOCAL_USER, nv.NV01_MEMORY_SYSTEM_OS_DESCRIPTOR]
    known = {**hclass, "role": "value", "in": [nv.NV01_MEMORY_SYSTEM, *hidden], "refuse": _refusal(None)}
    pin = {
        **at["params.pMemory"],
        "role": "pin",
        "when": [{**hclass, "in": [nv.NV01_MEMORY_SYSTEM_OS_DESCRIPTOR]}],
        "bytes_of": {**at["params.limit"], "times": 1, "plus": 1},
        "if_unaligned": _refusal(nv.NV_ERR_NOT_SUPPORTED),
        "if_empty": _refusal(nv.NV_ERR_INVALID_LIMIT),
        "if_end": _refusal(nv.NV_ERR_INVALID_ADDRESS),
        "read_only": {**at["params.flags"], "mask": 1 << nv.NVOS02_FLAGS_ALLOC_USER_READ_ONLY_SHIFT},
    }
    hide = {**fd, "role": "set", "to": 0xFFFFFFFF, "when": [{**hclass, "in": hidden}]}
    return [known], [hide, pin], {"fd": [{**hclass, "in": [nv.NV01_MEMORY_SYSTEM]}]}


def _vid_heap_control(rule: Rule, at: Mapping[str, Json]) -> Handled:
    return (
        [{**at["function"], "role": "value", "in": [nv.NVOS32_FUNCTION_ALLOC_SIZE], "refuse": _refusal(None)}],
        [],
        {},
    )


def _uvm_initialize(rule: Rule, at: Mapping[str, Json]) -> Handled:
    return [], [{**at["flags"], "role": "or", "bits": nv.UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE}], {}


def _tracker(rule: Rule, at: Mapping[str, Json]) -> Handled:
    count, queue, control = at["queueBufferSize"], at["queueBuffer"], at["controlBuffer"]
    none, some = [{**count, "in": [0]}], [{**count, "not": [0]}]
    good = [0, *(1 << bit for bit in range(1, 32))]
    refuse = _refusal(nv.NV_ERR_INVALID_ADDRESS)
    pin = {"role": "pin", **dict.fromkeys(("if_null", "if_unaligned", "if_empty", "if_end"), refuse)}
    return (
        [],
        [
            {**count, "role": "value", "in": good, "refuse": _refusal(nv.NV_ERR_INVALID_ARGUMENT)},
            {**queue, "role": "set", "to": 0, "when": none},
            {**queue, **pin, "when": some, "bytes_of": {**count, "times": TRACKER_ENTRY[rule.number], "plus": 0}},
            {**control, **pin, "when": some, "bytes": TRACKER_CONTROL},
            {**control, **pin, "when": none, "bytes": nv.UVM_TOTAL_COUNTERS * 8},
        ],
        {},
    )


def _get_build_version(rule: Rule, at: Mapping[str, Json]) -> Handled:
    strings = [at[name] for name in ("pDriverVersionBuffer", "pVersionBuffer", "pTitleBuffer")]
    clear = [
        {**one, "role": "set", "to": 0, "when": [{**other, "in": [0]}, {**one, "not": [0]}]}
        for one in strings
        for other in strings
        if other is not one
    ]
    most = nv.NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_V2_MAX_STRING_SIZE
    clamp = {**at["sizeOfStrings"], "role": "max", "to": most, "when": [{**one, "not": [0]} for one in strings]}
    return [*clear, clamp], [], {}


_HANDLED: Mapping[str, Callable[[Rule, Mapping[str, Json]], Handled]] = {
    "alloc_memory": _alloc_memory,
    "get_build_version": _get_build_version,
    "uvm_initialize": _uvm_initialize,
    "uvm_tools_init_event_tracker": _tracker,
    "vid_heap_control": _vid_heap_control,
}
"""By handler that decides by bytes: what it does, as fields. A test holds it to the handler."""
