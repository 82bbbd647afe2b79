"""Who refused a call, and the group that this puts it in. Verdict, counts and exit status all follow from here.

A refusal has one author: nvproxy, the host's driver, or the rights on a device node. A log that names the author is believed.
In a trace recorded outside a sandbox nvproxy was not there. In one recorded inside, an answer is nvproxy's if the policy gives it.
"""

from __future__ import annotations

import errno
from typing import Final

from nvproxy_model.policy.decision import Decision, Why
from nvproxy_model.trace.devices import device_kind, graphics
from nvproxy_model.trace.format import Author, Record
from nvproxy_model.trace.judge.groups import Group

__all__ = ["answer", "author", "exposed", "group_of_call", "group_of_open", "refused"]

NV_ERR_INVALID_CLASS, NV_ERR_NOT_SUPPORTED = 0x22, 0x56

_NUMBER: Final = (Why.UNKNOWN, Why.VERSION, Why.PENDING, Why.CAPABILITY, Why.OPT_IN)
"""Refusals that the number alone decides."""


def exposed(path: str) -> bool:
    """Whether nvproxy gives a sandbox this device node (nvproxy.go: Register).

    The node of nvidia-caps that fabric-imex-mgmt brings has a number that only the host's /proc knows. It is never 1 or 2, which
    are MIG's (nv-caps.c). IMEX channels are as many as the host's module parameter says.
    """
    kind = device_kind(path)
    return kind in ("frontend", "uvm") or path.startswith("/dev/nvidia-caps-imex-channels/")


def refused(rec: Record) -> bool:
    """Whether a call was refused, by anybody."""
    return bool(rec.err or rec.status or rec.by or rec.refused is not None)


def answer(rec: Record) -> str:
    """What the program got: ``EINVAL``, ``0x56``, ``0``; ``?`` where the log does not say."""
    if rec.err:
        return errno.errorcode.get(rec.err, str(rec.err))
    if rec.status is not None:
        return f"{rec.status:#x}"
    return "?" if rec.ret is None else "0"


def author(rec: Record, decision: Decision | None, inside: bool) -> Author | None:
    """Who refused the call (`nvproxy_model.trace.format.AUTHORS`); None if nobody did.

    ``inside``: the trace was recorded in a sandbox. ``decision`` is the policy's, None where it cannot be known.
    """
    if not refused(rec):
        return None
    if rec.k == "open":
        # A node that a sandbox does not have is nvproxy's doing; all other failures are rights.
        return "nvproxy" if inside and not exposed(rec.dev or "") else "permission"
    if rec.by is not None:
        return rec.by
    if rec.refused is not None or (inside and decision is not None and not decision.allowed and _same(rec, decision)):
        return "nvproxy"
    return "driver"


def _same(rec: Record, decision: Decision) -> bool:
    """Whether a program got what this refusal gives it. Releases before April 2025 gave EINVAL where a status is given now."""
    if rec.err:
        return rec.err == (decision.errno or errno.EINVAL)
    return rec.status is not None and rec.status == decision.status


def _as_nvproxy(rec: Record, decision: Decision) -> bool:
    """Whether the host's driver gave the kind of answer that nvproxy gives: the program cannot see a difference."""
    unsupported = rec.kind in ("control", "alloc") and rec.status in (NV_ERR_INVALID_CLASS, NV_ERR_NOT_SUPPORTED)
    return unsupported or _same(rec, decision)


def group_of_open(rec: Record, by: Author | None) -> Group:
    """The group of an open(2) of a device node."""
    path = rec.dev or ""
    if graphics(path):
        return "foreign"
    if exposed(path):
        return "permission" if by else "admitted"
    return "refused-outside-too" if by == "permission" else "device"


def group_of_call(
    rec: Record, decision: Decision | None, by: Author | None, *, inside: bool = False, elsewhere: bool = False
) -> Group:
    """The group of an ioctl. ``elsewhere``: the log was made under another release than the one that is asked about."""
    if by == "nvproxy" and rec.refused is not None and (decision is None or decision.allowed):
        return _contradiction(rec, decision, elsewhere)
    if decision is None:
        # Of a call that nvproxy let through inside a sandbox the log itself is the proof.
        passed = inside and not elsewhere and (by is None or rec.by == "driver")
        return "admitted" if passed else "cannot-tell"
    if decision.allowed:
        return "window" if decision.why is Why.WINDOW else "admitted"
    if by == "driver":
        outside_too = _as_nvproxy(rec, decision) if decision.why in _NUMBER else refused(rec)
        if outside_too:
            return "refused-outside-too"
    if decision.why in (Why.CAPABILITY, Why.OPT_IN):
        return "capability"
    if decision.why in (Why.UNKNOWN, Why.VERSION, Why.PENDING):
        return "unknown"
    if decision.why is Why.REFUSED and decision.rule is not None and decision.rule.rejected:
        return "always-refused"
    return "argument"


def _contradiction(rec: Record, decision: Decision | None, elsewhere: bool) -> Group:
    """nvproxy refused a call that these rules admit, or would admit with arguments that the log does not hold."""
    words = rec.refused or ""
    if words == "missing capability" or elsewhere:
        # The log was made with other capabilities, or by another release: the rules that are asked about answer.
        return "cannot-tell" if decision is None else "window" if decision.why is Why.WINDOW else "admitted"
    return "contradiction" if words in ("handler is undefined", "unknown") else "argument"
