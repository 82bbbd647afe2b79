"""The plain reading of a struct's roles, through construct: what the generated deciders are tested against."""

from __future__ import annotations

import functools

from nvproxy_model.fields import CStruct
from nvproxy_model.policy import refusals
from nvproxy_model.policy.decision import Call, Copy, Decision, FdLookup, Verdict, Why, int32
from nvproxy_model.policy.plan import plan

__all__ = ["interpret"]


def interpret(call: Call, of: CStruct, data: bytes | None, fds: FdLookup, *, strict: bool = False) -> Decision:
    """The decision for one struct's bytes (None: a NULL pointer), field by field.

    ``strict`` is the hardened profile's: a value that does not fit a descriptor is refused, not truncated.
    """
    what = plan(of)
    if data is None:
        return refusals.null(call, what)
    if len(data) != what.size:
        return refusals.refuse_size(call, what.name, what.size, len(data))
    parsed = of.parse(data)

    def value(path: str) -> int:
        return int(functools.reduce(lambda record, name: record[name], path.split("."), parsed))

    for handle in what.required:
        if not value(handle.path):
            return refusals.refuse_required(call, handle)
    params, copies, verdict = bytearray(data), [], Verdict.ALLOW
    for fd in what.fds:
        number = value(fd.path)
        if number == fd.role.null or (fd.role.negative and int32(number) < 0):
            continue
        if fd.role.host is not None:
            host = fd.role.host & 0xFFFFFFFF
            params[fd.offset : fd.offset + fd.size] = host.to_bytes(fd.size, "little")
            verdict = Verdict.TRANSLATE
            continue
        if strict and number > refusals.INT32_MAX:
            return refusals.refuse_wide_fd(call, fd, number)
        file = fds.get(int32(number))
        if file is None or file.kind != fd.role.file:
            return refusals.refuse_fd(call, fd, number, file)
        params[fd.offset : fd.offset + fd.size] = file.host_fd.to_bytes(fd.size, "little")
        verdict = Verdict.TRANSLATE
    for buffer, counted in zip(what.buffers, what.counts, strict=True):
        role, address = buffer.role, value(buffer.path)
        if not address and role.null == "forward":
            continue
        count = value(counted.path) if counted is not None else role.count
        assert isinstance(count, int)
        size = (count * count if isinstance(role.count, tuple) else count) * role.to.sizeof()
        params[buffer.offset : buffer.offset + buffer.size] = bytes(buffer.size)
        if size > role.limit or not (size or role.empty == "forward"):
            return refusals.refuse_count(call, buffer, count, size)
        if not size or (not address and role.null == "judge"):
            continue
        copies.append(Copy(buffer.offset, address, size, role.mode == "inout", role.late))
    for pointer in what.opaque:
        if pointer.role.null_only and value(pointer.path):
            return refusals.refuse_pointer(call, pointer, value(pointer.path))
        params[pointer.offset : pointer.offset + pointer.size] = bytes(pointer.size)
    depends = tuple(value(step.path) for step in what.depends if value(step.path) not in step.role.null)
    if copies or params != data:
        verdict = Verdict.TRANSLATE
    return Decision(verdict, Why.RULE, call, 0, None, bytes(params), depends, tuple(copies))
