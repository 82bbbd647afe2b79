"""From a struct's roles to a decision: one small function a struct, generated once, and the plain reading it is tested against."""

from __future__ import annotations

import errno
import functools
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from nvproxy_model.errors import DefinitionError
from nvproxy_model.fields import CStruct, Fd, Handle, Member, OpaquePointer, Role, Status, UserPointer
from nvproxy_model.policy.decision import Call, Copy, Decision, FdLookup, GuestFile, Verdict, Why, int32

__all__ = ["Decider", "Plan", "Step", "decider", "interpret", "plan", "refuse_size"]


class Step(NamedTuple):
    """One field with a role: where it is and how its bytes read."""

    struct: str
    path: str
    offset: int
    size: int
    format: str
    role: Role


class Plan(NamedTuple):
    """What a policy needs of one struct in one release, worked out once."""

    name: str
    size: int
    required: tuple[Step, ...]
    fds: tuple[Step, ...]
    pointers: tuple[Step, ...]
    counts: tuple[tuple[str, int, str], ...]
    depends: tuple[Step, ...]
    status: Step | None
    restore: tuple[tuple[int, int], ...]
    """(offset, size) of what the guest must see unchanged after the host call."""

    @property
    def roles(self) -> bool:
        """Whether there is anything to translate, copy or refuse."""
        return bool(self.required or self.fds or self.pointers)


_FORMAT = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "s8": "b", "s16": "h", "s32": "i", "s64": "q", "ptr": "Q"}


@functools.cache
def plan(of: CStruct) -> Plan:
    """The plan of a resolved struct (`CStruct.at`). Raises DefinitionError for what no decider is made for."""
    steps = [
        Step(of.ctype or "", path, offset, member.size, _FORMAT[member.element.base], member.role)
        for path, offset, member in of.walk()
        if member.role is not None and not member.dims
    ]

    def pick(kind: type[Role], test: Callable[[Any], bool] = lambda role: True) -> tuple[Step, ...]:
        return tuple(step for step in steps if isinstance(step.role, kind) and test(step.role))

    pointers = pick(UserPointer, lambda role: role.to is not None) + pick(
        OpaquePointer, lambda role: role.null_only or role.cleared
    )
    counts = tuple(_count(of, step) for step in pointers if _count_name(step))
    fds = pick(Fd)
    if fds and pointers:
        raise DefinitionError(f"{of.ctype}: fds and buffers in one struct")
    restored = fds + pick(UserPointer)
    return Plan(
        of.ctype or "",
        of.sizeof(),
        pick(Handle, lambda role: role.required),
        fds,
        pointers,
        tuple(dict.fromkeys(counts)),
        pick(Handle, lambda role: role.depends),
        next(iter(pick(Status)), None),
        tuple((step.offset, step.size) for step in restored),
    )


def _count_name(step: Step) -> str | None:
    count = getattr(step.role, "count", None)
    return count[1] if isinstance(count, tuple) else count if isinstance(count, str) else None


def _count(of: CStruct, step: Step) -> tuple[str, int, str]:
    """The sibling that counts a pointer's elements: (path, offset, format)."""
    path = step.path.rpartition(".")[0]
    name = f"{path}.{_count_name(step)}" if path else str(_count_name(step))
    members: dict[str, tuple[int, Member]] = {p: (offset, member) for p, offset, member in of.walk()}
    offset, member = members[name]
    return name, offset, _FORMAT[member.element.base]


Decider = Callable[[Any, FdLookup], Decision]


def _refusal(call: Call, why: Why, status: int | None, *detail: Any, error: int = errno.EINVAL) -> Decision:
    return Decision(Verdict.REJECT, why, call, 0 if status is not None else error, status, detail=detail)


def refuse_fd(call: Call, step: Step, value: int, file: GuestFile | None) -> Decision:
    """The refusal of one fd, naming the field and what stands behind the number."""
    role: Any = step.role
    found = "not open" if file is None else f"a {file.kind} file"
    return _refusal(
        call,
        Why.FD,
        role.refuse,
        f"{step.struct}.{step.path} = {value:#x}",
        f"fd {int32(value)} is {found}, not a {role.file} file",
    )


def refuse_wide_fd(call: Call, step: Step, value: int) -> Decision:
    """The hardened profile's refusal of a value that is no fd number."""
    role: Any = step.role
    return _refusal(call, Why.HARDENED, role.refuse, f"{step.struct}.{step.path} = {value:#x}", "more than INT32_MAX")


def refuse_count(call: Call, step: Step, count: int) -> Decision:
    """The refusal of a buffer that is empty or over its limit."""
    role: Any = step.role
    return _refusal(
        call, Why.COUNT, role.refuse, f"{step.struct}.{step.path}: {count} elements", f"want 1 byte to {role.limit}"
    )


def refuse_pointer(call: Call, step: Step, value: int) -> Decision:
    """The refusal of a pointer that must be NULL."""
    return _refusal(call, Why.POINTER, None, f"{step.struct}.{step.path} = {value:#x}")


def _refuse_required(call: Call, step: Step) -> Decision:
    return _refusal(call, Why.REQUIRED, None, f"{step.struct}.{step.path} == 0")


def refuse_size(call: Call, name: str, size: int) -> Decision:
    """The refusal of bytes that are not one whole struct."""
    return _refusal(call, Why.SIZE, None, f"{name} is {size} bytes")


def _null(call: Call, what: Plan) -> Decision:
    """NULL parameters: a fault where nvproxy must read them, otherwise the driver's own affair."""
    if what.required or what.fds or call.table != "alloc":
        return _refusal(call, Why.NULL, None, what.name, error=errno.EFAULT)
    return Decision(Verdict.ALLOW, Why.RULE, call)


def _element_size(role: Any) -> int:
    return int(role.to.sizeof())


def interpret(call: Call, of: CStruct, data: bytes | None, fds: FdLookup, *, strict: bool = False) -> Decision:
    """The same answer as the generated decider's, read plainly through construct: the oracle of its tests.

    ``strict`` is the hardened profile's: a value that does not fit an fd is refused, not truncated.
    """
    what = plan(of)
    if data is None:
        return _null(call, what)
    if len(data) != what.size:
        return refuse_size(call, what.name, what.size)
    parsed = of.parse(data)

    def value(path: str) -> int:
        return int(functools.reduce(lambda record, name: record[name], path.split("."), parsed))

    for step in what.required:
        if not value(step.path):
            return _refuse_required(call, step)
    params, copies, verdict = bytearray(data), [], Verdict.ALLOW
    for step in what.fds:
        role: Any = step.role
        number = value(step.path)
        if number == role.null or (role.negative and int32(number) < 0):
            continue
        if strict and number > 0x7FFFFFFF:
            return refuse_wide_fd(call, step, number)
        file = fds.get(int32(number))
        if file is None or file.kind != role.file:
            return refuse_fd(call, step, number, file)
        params[step.offset : step.offset + step.size] = file.host_fd.to_bytes(step.size, "little")
        verdict = Verdict.TRANSLATE
    for step in what.pointers:
        address = value(step.path)
        end = step.offset + step.size
        if isinstance(step.role, OpaquePointer):
            if step.role.null_only and address:
                return refuse_pointer(call, step, address)
            params[step.offset : end] = bytes(step.size)
            continue
        role = step.role
        if not address and role.null == "forward":
            continue
        name = _count_name(step)
        count = role.count if name is None else value(_count(of, step)[0])
        size = (count * count if isinstance(role.count, tuple) else count) * _element_size(role)
        params[step.offset : end] = bytes(step.size)
        if size > role.limit or not (size or role.empty == "forward"):
            return refuse_count(call, step, count)
        if not size or (not address and role.null == "judge"):
            continue
        copies.append(Copy(step.offset, address, size, role.mode == "inout", role.late))
    depends = tuple(value(s.path) for s in what.depends if value(s.path) not in s.role.null)
    if copies or params != data:
        verdict = Verdict.TRANSLATE
    return Decision(verdict, Why.RULE, call, 0, None, bytes(params), depends, tuple(copies))


def _gather(what: Plan) -> tuple[struct.Struct, list[str], dict[str, str]]:
    """A struct.Struct that reads the fields a decision needs, the variables in order, and each path's variable.

    What lies between the fields is skipped, or, where an fd may be replaced, kept in pieces to pack anew.
    """
    wanted: dict[int, tuple[str, str]] = {}
    for step in (*what.required, *what.fds, *what.pointers, *what.depends):
        wanted[step.offset] = (step.path, step.format)
    for path, offset, kind in what.counts:
        wanted[offset] = (path, kind)
    gap = "s" if what.fds and not what.pointers else "x"
    text, end, variables, names = "<", 0, [], {}
    for offset, (path, kind) in sorted(wanted.items()):
        if offset > end:
            text += f"{offset - end}{gap}"
            variables += [f"piece{end}"] if gap == "s" else []
        text += kind
        end = offset + struct.calcsize(f"<{kind}")
        names[path] = f"v{offset}"
        variables.append(names[path])
    if what.size > end:
        text += f"{what.size - end}{gap}"
        variables += [f"piece{end}"] if gap == "s" else []
    return struct.Struct(text), variables, names


def _source(what: Plan, names: dict[str, str], variables: list[str], strict: bool) -> Iterator[str]:
    yield "def decide(data, fds):"
    yield "    if data is None:"
    yield "        return NULL"
    yield f"    if len(data) != {what.size}:"
    yield "        return SIZE"
    if variables:
        yield f"    {', '.join(variables)}, = unpack(data)"
    for index, step in enumerate(what.required):
        yield f"    if not {names[step.path]}:"
        yield f"        return REQUIRED[{index}]"
    if what.fds or what.pointers:
        yield "    verdict = ALLOW"
    for index, step in enumerate(what.fds):
        yield from _fd_source(index, step, names[step.path], strict)
    if what.fds:
        yield "    if verdict is TRANSLATE:"
        yield f"        data = pack({', '.join(variables)})"
    if what.pointers:
        yield "    copies = ()"
    for index, step in enumerate(what.pointers):
        count = next((names[path] for path, _, _ in what.counts if path.rpartition(".")[2] == _count_name(step)), None)
        yield from _pointer_source(index, step, names[step.path], count)
    depends = [names[step.path] for step in what.depends]
    if depends:
        plain = all(step.role.null == (0,) for step in what.depends)
        yield f"    depends = ({', '.join(depends)},)"
        if plain:
            yield f"    if not ({' and '.join(depends)}):"
            yield "        depends = tuple(filter(None, depends))"
        else:
            yield "    depends = tuple(h for h, none in zip(depends, NONE) if h not in none)"
    verdict = "verdict" if what.fds or what.pointers else "ALLOW"
    yield (
        f"    return new(Decision, ({verdict}, RULE, CALL, 0, None, data, "
        f"{'depends' if depends else '()'}, {'copies' if what.pointers else '()'}, ()))"
    )


def _fd_source(index: int, step: Step, name: str, strict: bool) -> Iterator[str]:
    role: Any = step.role
    tests = [f"{name} != {role.null}"] if role.null is not None else []
    if role.negative:
        tests.append(f"not {name} & 0x80000000")
    indent = "    "
    if tests:
        yield f"{indent}if {' and '.join(tests)}:"
        indent += "    "
    if strict:
        yield f"{indent}if {name} > 0x7fffffff:"
        yield f"{indent}    return refuse_wide_fd(CALL, FDS[{index}], {name})"
    yield f"{indent}fd = {name} & 0xffffffff"
    yield f"{indent}file = fds.get(fd if fd < 0x80000000 else fd - 0x100000000)"
    yield f"{indent}if file is None or file.kind != {role.file!r}:"
    yield f"{indent}    return refuse_fd(CALL, FDS[{index}], {name}, file)"
    yield f"{indent}{name} = file.host_fd"
    yield f"{indent}verdict = TRANSLATE"


def _pointer_source(index: int, step: Step, name: str, count: str | None) -> Iterator[str]:
    role: Any = step.role
    clear = f"data = data[:{step.offset}] + {bytes(step.size)!r} + data[{step.offset + step.size}:]"
    if isinstance(role, OpaquePointer):
        yield f"    if {name}:"
        if role.null_only:
            yield f"        return refuse_pointer(CALL, POINTERS[{index}], {name})"
        else:
            yield f"        {clear}"
            yield "        verdict = TRANSLATE"
        return
    indent = "    "
    if role.null == "forward":
        yield f"    if {name}:"
        indent += "    "
    number = count or str(role.count)
    elements = f"{number} * {number}" if isinstance(role.count, tuple) else number
    yield f"{indent}size = {elements} * {_element_size(role)}"
    lowest = "" if role.empty == "forward" else "size < 1 or "
    yield f"{indent}if {lowest}size > {role.limit}:"
    yield f"{indent}    return refuse_count(CALL, POINTERS[{index}], {number})"
    needs = ["size"] * (role.empty == "forward") + [name] * (role.null == "judge")
    if needs:
        yield f"{indent}if {' and '.join(needs)}:"
    inner = indent + "    " * bool(needs)
    yield f"{inner}copies += (Copy({step.offset}, {name}, size, {role.mode == 'inout'}, {role.late}),)"
    yield f"{inner}verdict = TRANSLATE"
    yield f"{indent}if {name}:"
    yield f"{indent}    {clear}"
    yield f"{indent}    verdict = TRANSLATE"


@functools.cache
def _code(of: CStruct, strict: bool) -> tuple[Any, str, dict[str, Any]]:
    what = plan(of)
    fields, variables, names = _gather(what)
    source = "\n".join(_source(what, names, variables, strict)) + "\n"
    shared = {
        "pack": fields.pack,
        "unpack": fields.unpack,
        "new": tuple.__new__,
        "Decision": Decision,
        "Copy": Copy,
        "ALLOW": Verdict.ALLOW,
        "TRANSLATE": Verdict.TRANSLATE,
        "RULE": Why.RULE,
        "FDS": what.fds,
        "POINTERS": what.pointers,
        "NONE": tuple(step.role.null for step in what.depends),
        "refuse_fd": refuse_fd,
        "refuse_wide_fd": refuse_wide_fd,
        "refuse_count": refuse_count,
        "refuse_pointer": refuse_pointer,
    }
    return compile(source, f"<decide {what.name}>", "exec"), source, shared


def decider(call: Call, of: CStruct, *, strict: bool = False) -> Decider:
    """A function (bytes or None, fds) -> Decision for one struct, equal to `interpret`. Its text is its ``__source__``."""
    what = plan(of)
    code, source, shared = _code(of, strict)
    scope = {
        **shared,
        "CALL": call,
        "NULL": _null(call, what),
        "SIZE": refuse_size(call, what.name, what.size),
        "REQUIRED": tuple(_refuse_required(call, step) for step in what.required),
    }
    exec(code, scope)
    decide: Decider = scope["decide"]
    setattr(decide, "__source__", source)  # noqa: B010  (a function's attribute, which mypy knows nothing of)
    return decide
