"""The refusals that a struct's roles make, each with its facts. Both readings of a struct, generated and
plain, use these."""

from __future__ import annotations

import errno

from nvproxy_model.fields import Fd, Handle, OpaquePointer, UserPointer
from nvproxy_model.policy.decision import Call, Decision, Facts, GuestFile, Verdict, Why
from nvproxy_model.policy.plan import Plan, Step

__all__ = [
    "null",
    "refuse",
    "refuse_count",
    "refuse_fd",
    "refuse_pointer",
    "refuse_required",
    "refuse_size",
    "refuse_wide_fd",
]

INT32_MAX = 0x7FFFFFFF


def refuse(
    call: Call, why: Why, status: int | None = None, facts: Facts | None = None, *, error: int = errno.EINVAL
) -> Decision:
    """A refusal with an NV status, or with an errno where ``status`` is None."""
    return Decision(Verdict.REJECT, why, call, 0 if status is not None else error, status, facts=facts)


def refuse_fd(call: Call, step: Step[Fd], value: int, file: GuestFile | None) -> Decision:
    """The refusal of a descriptor: it is not open, or a file of another kind."""
    facts = Facts(step.name, value, None, None if file is None else file.kind, step.role.file)
    return refuse(call, Why.FD, step.role.refuse, facts)


def refuse_wide_fd(call: Call, step: Step[Fd], value: int) -> Decision:
    """The hardened profile's refusal of a value that is not a descriptor."""
    return refuse(call, Why.HARDENED, step.role.refuse, Facts(step.name, value, f"at most {INT32_MAX:#x}"))


def refuse_count(call: Call, step: Step[UserPointer], count: int, size: int) -> Decision:
    """The refusal of a buffer of ``size`` bytes, which is empty or over its limit."""
    return refuse(call, Why.COUNT, step.role.refuse, Facts(step.name, count, step.role.limit, size))


def refuse_pointer(call: Call, step: Step[OpaquePointer], value: int) -> Decision:
    """The refusal of a pointer that must be NULL."""
    return refuse(call, Why.POINTER, None, Facts(step.name, value, "NULL"))


def refuse_required(call: Call, step: Step[Handle]) -> Decision:
    """The refusal of a handle that must not be 0."""
    return refuse(call, Why.REQUIRED, None, Facts(step.name, 0))


def refuse_size(call: Call, name: str, size: int, found: int) -> Decision:
    """The refusal of bytes that are not one whole struct: ``size`` bytes are wanted."""
    return refuse(call, Why.SIZE, None, Facts(name, None, size, found))


def null(call: Call, what: Plan) -> Decision:
    """The answer for NULL parameters: EFAULT where nvproxy must read them, otherwise the driver answers."""
    if what.required or what.fds or call.table != "alloc":
        return refuse(call, Why.NULL, None, Facts(what.name), error=errno.EFAULT)
    return Decision(Verdict.ALLOW, Why.RULE, call)
