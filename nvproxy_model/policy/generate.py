"""One small function a struct, generated once from its plan: what a policy runs for every call.

The text of a decider is its ``__source__``. It gives the answers of `nvproxy_model.policy.interpret`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping
from textwrap import indent
from types import CodeType
from typing import Any

from nvproxy_model.fields import CStruct, Fd, OpaquePointer, UserPointer
from nvproxy_model.policy import refusals
from nvproxy_model.policy.decision import Call, Copy, Decision, FdLookup, Verdict, Why, int32
from nvproxy_model.policy.plan import Count, Plan, Step, plan

__all__ = ["Decider", "decider"]

Decider = Callable[[Any, FdLookup], Decision]
"""(the struct's bytes, or None for a NULL pointer; the guest's descriptors) -> a decision."""

_DECIDE = """\
def decide(data, fds):
    if data is None:
        return NULL
    if len(data) != {size}:
        return refuse_size(CALL, NAME, {size}, len(data))
{fields}
    return new(Decision, ({verdict}, RULE, CALL, 0, None, data, {depends}, {copies}, None))
"""

_REQUIRED = """\
if not {value}:
    return REQUIRED[{index}]
"""

_FD = """\
try:
    file = fds.get({value} if {value} <= 0x7fffffff else int32({value}))
    if file is None or file.kind != {file!r}:
        return refuse_fd(CALL, FDS[{index}], {value}, file)
    {value} = file.host_fd
except AttributeError as error:
    raise no_files(fds) from error
verdict = TRANSLATE
"""

_HOST_FD = """\
{value} = {host}
verdict = TRANSLATE
"""

_WIDE_FD = """\
if {value} > 0x7fffffff:
    return refuse_wide_fd(CALL, FDS[{index}], {value})
"""

_PACK = """\
if verdict is TRANSLATE:
    data = pack({variables})
"""

_BUFFER = """\
size = {elements} * {element_size}
if size > {limit}{or_empty}:
    return refuse_count(CALL, BUFFERS[{index}], {count}, size)
"""

_COPY = """\
copies += (Copy({offset}, {value}, size, {copy_in}, {late}),)
verdict = TRANSLATE
"""

_CLEAR = """\
if {value}:
    data = data[:{offset}] + {zeros!r} + data[{end}:]
    verdict = TRANSLATE
"""

_NULL_ONLY = """\
if {value}:
    return refuse_pointer(CALL, OPAQUE[{index}], {value})
"""

_DEPENDS = """\
depends = ({handles},)
if not ({all}):
    depends = tuple(filter(None, depends))
"""

_DEPENDS_BUT = """\
depends = tuple(handle for handle, none in zip(({handles},), NONE) if handle not in none)
"""


def _no_files(fds: Any) -> TypeError:
    """Why no decision can be made with these descriptors, in the caller's terms."""
    if not callable(getattr(fds, "get", None)):
        return TypeError(f"fds: want a dict of descriptors and Files, or an object with get(fd); got {fds!r}")
    return TypeError("fds: what fds.get(fd) gives must have kind and host_fd, as a File has, or be None")


def _guarded(conditions: list[str], body: str) -> str:
    """``body`` under the conditions that are not empty."""
    tests = [condition for condition in conditions if condition]
    return f"if {' and '.join(tests)}:\n{indent(body, '    ')}" if tests else body


def _gather(what: Plan) -> tuple[struct.Struct, list[str], dict[int, str]]:
    """A Struct that reads the fields a decision needs, the variables in order, and each offset's variable.

    What lies between the fields is skipped, or, where a descriptor may be replaced, kept in pieces to pack
    anew.
    """
    steps = (*what.required, *what.fds, *what.pointers, *what.depends)
    wanted = {step.offset: step.format for step in steps}
    wanted |= {count.offset: count.format for count in what.counts if count is not None}
    gap = "s" if what.fds else "x"
    text, end, variables = "<", 0, []

    def skip(to: int) -> None:
        nonlocal text
        if to > end:
            text += f"{to - end}{gap}"
            if gap == "s":
                variables.append(f"piece{end}")

    for offset, kind in sorted(wanted.items()):
        skip(offset)
        text += kind
        end = offset + struct.calcsize(f"<{kind}")
        variables.append(f"v{offset}")
    skip(what.size)
    return struct.Struct(text), variables, {offset: f"v{offset}" for offset in wanted}


def _source(what: Plan, variables: list[str], names: Mapping[int, str], strict: bool) -> str:
    fields = [f"{', '.join(variables)}, = unpack(data)\n"] if variables else []
    fields += [_REQUIRED.format(value=names[step.offset], index=index) for index, step in enumerate(what.required)]
    translates = bool(what.fds or what.buffers or what.opaque)
    fields += ["verdict = ALLOW\n"] if translates else []
    fields += [_fd(index, step, names[step.offset], strict) for index, step in enumerate(what.fds)]
    fields += [_PACK.format(variables=", ".join(variables))] if what.fds else []
    fields += ["copies = ()\n"] if what.buffers else []
    for index, (step, counted) in enumerate(zip(what.buffers, what.counts, strict=True)):
        fields.append(_buffer(index, step, names[step.offset], counted))
    fields += [_opaque(index, step, names[step.offset]) for index, step in enumerate(what.opaque)]
    handles = [names[step.offset] for step in what.depends]
    if handles:
        simple = all(step.role.null == (0,) for step in what.depends)
        template = _DEPENDS if simple else _DEPENDS_BUT
        fields.append(template.format(handles=", ".join(handles), all=" and ".join(handles)))
    return _DECIDE.format(
        size=what.size,
        fields=indent("".join(fields), "    "),
        verdict="verdict" if translates else "ALLOW",
        depends="depends" if handles else "()",
        copies="copies" if what.buffers else "()",
    )


def _fd(index: int, step: Step[Fd], value: str, strict: bool) -> str:
    role = step.role
    body = _FD.format(value=value, file=role.file, index=index)
    if role.host is not None:
        number = (role.host & 0xFFFFFFFF).to_bytes(step.size, "little")
        body = _HOST_FD.format(value=value, host=struct.unpack(f"<{step.format}", number)[0])
    elif strict:
        body = _WIDE_FD.format(value=value, index=index) + body
    given = "" if role.null is None else value if role.null == 0 else f"{value} != {role.null}"
    return _guarded([given, f"not {value} & 0x80000000" if role.negative else ""], body)


def _buffer(index: int, step: Step[UserPointer], value: str, counted: Count | None) -> str:
    role = step.role
    count = str(role.count) if counted is None else f"v{counted.offset}"
    body = _BUFFER.format(
        elements=f"{count} * {count}" if isinstance(role.count, tuple) else count,
        element_size=role.to.sizeof(),
        limit=role.limit,
        or_empty="" if role.empty == "forward" else " or size < 1",
        index=index,
        count=count,
    )
    copy = _COPY.format(offset=step.offset, value=value, copy_in=role.mode == "inout", late=role.late)
    body += _guarded(["size" if role.empty == "forward" else "", value if role.null == "judge" else ""], copy)
    body += _clear(step, value)
    return _guarded([value if role.null == "forward" else ""], body)


def _opaque(index: int, step: Step[OpaquePointer], value: str) -> str:
    return _NULL_ONLY.format(value=value, index=index) if step.role.null_only else _clear(step, value)


def _clear(step: Step[UserPointer] | Step[OpaquePointer], value: str) -> str:
    return _CLEAR.format(value=value, offset=step.offset, zeros=bytes(step.size), end=step.offset + step.size)


@functools.cache
def _code(of: CStruct, strict: bool) -> tuple[CodeType, str, Mapping[str, Any]]:
    what = plan(of)
    fields, variables, names = _gather(what)
    source = _source(what, variables, names, strict)
    shared = {
        "pack": fields.pack,
        "unpack": fields.unpack,
        "new": tuple.__new__,
        "int32": int32,
        "no_files": _no_files,
        "Decision": Decision,
        "Copy": Copy,
        "ALLOW": Verdict.ALLOW,
        "TRANSLATE": Verdict.TRANSLATE,
        "RULE": Why.RULE,
        "NAME": what.name,
        "FDS": what.fds,
        "BUFFERS": what.buffers,
        "OPAQUE": what.opaque,
        "NONE": tuple(step.role.null for step in what.depends),
        "refuse_fd": refusals.refuse_fd,
        "refuse_wide_fd": refusals.refuse_wide_fd,
        "refuse_count": refusals.refuse_count,
        "refuse_pointer": refusals.refuse_pointer,
        "refuse_size": refusals.refuse_size,
    }
    return compile(source, f"<decide {what.name}>", "exec"), source, shared


def decider(call: Call, of: CStruct, *, strict: bool = False) -> Decider:
    """The decider of one struct for one call, equal to `interpret`. Raises DefinitionError for a struct that
    none is made for."""
    what = plan(of)
    code, source, shared = _code(of, strict)
    scope: dict[str, Any] = {
        **shared,
        "CALL": call,
        "NULL": refusals.null(call, what),
        "REQUIRED": tuple(refusals.refuse_required(call, step) for step in what.required),
    }
    exec(code, scope)
    decide: Decider = scope["decide"]
    setattr(decide, "__source__", source)  # noqa: B010  (a function's attribute, which mypy knows nothing of)
    return decide
