"""What `explain` says first: the answer as a person would give it, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvproxy_model.caps import Caps
from nvproxy_model.policy.decision import Decision, Why
from nvproxy_model.policy.policy import Policy

__all__ = ["WORDS", "advice", "sentence"]

WORDS = {"frontend": "an escape", "uvm": "a UVM command", "control": "a control command", "alloc": "a class"}
"""What a number of each table is."""
_NOUNS = {"frontend": "escape", "uvm": "UVM command", "control": "control command", "alloc": "class"}


def sentence(answer: Mapping[str, Any], policy: Policy, decision: Decision) -> str:
    """The verdict and its cause in one line."""
    noun = _NOUNS[answer["kind"]]
    what = f"{noun} {answer['hex']}" if answer["name"] is None else f"{answer['name']} ({noun} {answer['hex']})"
    if decision.allowed:
        if decision.why is Why.WINDOW:
            return f"admitted without a look at it: {what} is in the bypass window {_window(decision)}"
        if answer["conditional"]:
            return f"admitted, subject to its fields: {what}"
        return f"admitted: {what}"
    return f"refused: {_cause(what, answer, policy, decision)}"


def _cause(what: str, answer: Mapping[str, Any], policy: Policy, decision: Decision) -> str:
    caps = " or ".join(answer["admits"]["caps"])
    have = str(policy.caps) or "none"
    if decision.why is Why.CAPABILITY:
        gate = " or ".join(answer["admits"]["also"]) if answer["admits"]["also"] else ""
        if gate and policy.caps & _caps(answer["admits"]["caps"]):
            return f"{what} needs {gate} for the ioctl that carries it; the sandbox has {have}"
        return f"{what} needs {caps or gate or 'a capability'}; the sandbox has {have}"
    if decision.why is Why.VERSION:
        return f"{what} is not admitted at {policy.version}; {_releases(answer)}"
    if decision.why is Why.UNKNOWN:
        return f"nvproxy has no rule for {what}"
    if decision.why is Why.OPT_IN:
        return f"{what} needs an opt-in of the embedder"
    if decision.why is Why.PENDING:
        return f"{what} has a row that was seen in gVisor, and nobody has confirmed that it was merged"
    if decision.why is Why.WINDOW:
        return f"{what} is in the bypass window {_window(decision)}, which is closed here"
    if decision.why is Why.SIZE:
        return f"{what} with this size: {decision.detail}"
    if decision.why is Why.REFUSED:
        why = decision.rule.why if decision.rule is not None else ""
        return f"nvproxy always refuses {what}" + (f": {why}" if why else "")
    return f"{what}: {decision.why.value}" + (f": {decision.detail}" if decision.facts is not None else "")


def _window(decision: Decision) -> str:
    return decision.facts.field if decision.facts is not None else "unknown"


def _releases(answer: Mapping[str, Any]) -> str:
    rows = answer["admits"]["rows"]
    first = ", ".join(dict.fromkeys(version for row in rows for version in row["from"]))
    last = ", ".join(dict.fromkeys(version for row in rows for version in row["until"]))
    return f"it is from {first} on" + (f", until {last}" if last else "")


def advice(answer: Mapping[str, Any], policy: Policy, decision: Decision) -> list[str]:
    """What to do, a line each; nothing where there is nothing to do."""
    admits = answer["admits"]
    lines = []
    if decision.allowed:
        if answer["conditional"]:
            lines.append("nothing; the struct below says what each field must hold")
        return lines
    if decision.why is Why.CAPABILITY and (admits["caps"] or admits["also"]):
        wanted = policy.caps
        if admits["caps"] and not wanted & _caps(admits["caps"]):
            wanted |= _caps(admits["caps"][:1])
        if admits["also"] and not wanted & _caps(admits["also"]):
            wanted |= _caps(admits["also"][:1])
        lines.append(f"run the sandbox with the capabilities {Caps(wanted)}")
    elif decision.why is Why.VERSION:
        lines.append(f"use another driver: {_releases(answer)}")
    elif decision.why is Why.OPT_IN:
        lines.append(f"Policy.for_driver(..., extra=[{answer['hex']}])")
    elif decision.why is Why.PENDING:
        lines.append("--pending, or Policy.for_driver(..., pending=True), admits such rows")
    elif decision.why is Why.UNKNOWN:
        lines.append(
            "no capability and no listed release admits it: a row is needed, docs/adding-a-command.md says how"
        )
    return lines


def _caps(names: list[str]) -> Caps:
    wanted = Caps(0)
    for cap in Caps:
        if set(cap.names) & set(names):
            wanted |= cap
    return wanted
