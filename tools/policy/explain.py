"""``nvproxy-policy explain``: what becomes of one call, why, and what would change that."""

from __future__ import annotations

import argparse
import errno
from collections.abc import Iterator, Mapping
from typing import Any

from nvproxy_model import versions
from nvproxy_model.abi.constants import NV01_EVENT
from nvproxy_model.abi.windows import window
from nvproxy_model.caps import DEFAULT, Caps
from nvproxy_model.drivers.names import allocation, ever_called
from nvproxy_model.fields import CStruct, Fd, Handle, Member, OpaquePointer, Role, Status, UserPointer
from nvproxy_model.followed import described
from nvproxy_model.layout import Layout
from nvproxy_model.policy.decision import Decision, Facts, Verdict, Why
from nvproxy_model.policy.hardened import CAPS
from nvproxy_model.policy.policy import Policy
from nvproxy_model.rules import Rule
from nvproxy_model.structs import named
from nvproxy_model.tools.command import UNKNOWN
from nvproxy_model.tools.output import emit
from nvproxy_model.tools.policy import upstream as policy_upstream
from nvproxy_model.tools.policy.names import ROWS, Asked, Call, asked, near, releases, status_note
from nvproxy_model.tools.policy.sentences import WORDS, advice, sentence
from nvproxy_model.tools.policy.shared import ADMITTED, REFUSED, handled, policy_of
from nvproxy_model.versions import DriverVersion

__all__ = ["run"]

SCHEMA = "nvproxy-policy/explain/1"
_SHORT_ALLOC = "nvos.NVOS21_PARAMETERS"  # the other form of NV_ESC_RM_ALLOC's argument
_COLUMNS = (
    "kind",
    "number",
    "name",
    "verdict",
    "conditional",
    "why",
    "errno",
    "status",
    "capabilities",
    "answer",
    "advice",
)


def run(args: argparse.Namespace) -> int:
    """Explain and print; returns the exit status."""
    policy = policy_of(args)
    found = asked(args.what, args.kind, policy.version)
    answers = [_answer(policy, call) for call in found.calls]
    document = {
        "schema": SCHEMA,
        "input": args.what,
        "driver": policy.version.name,
        "supported": policy.version.supported,
        "caps": list(policy.caps.names),
        "profile": policy.profile,
        "answers": answers,
        "log_says": found.said or None,
        "not_a_call": None if answers else _not_a_call(found),
    }
    head = f"driver {policy.version}, capabilities {policy.caps or 'none'}" + (
        f", profile {policy.profile}" if policy.profile != "gvisor" else ""
    )
    if found.said:
        head += f"; in the pasted line {found.said}"
    emit(args, document, _text(args.what, head, answers) if answers else _text_not_a_call(found), (_COLUMNS, map(_row, answers)))
    if not answers:
        return UNKNOWN
    return ADMITTED if any(answer["verdict"] == "admitted" for answer in answers) else REFUSED


def _not_a_call(found: Asked) -> dict[str, Any]:
    note = status_note(found.number) if found.kind == "status" and found.number is not None else None
    return {"name": found.name, "number": found.number, "kind": found.kind, "what": found.what, "note": note}


def _text_not_a_call(found: Asked) -> Iterator[str]:
    if found.name is None and found.number is None:
        yield f"not the number of a call: it {found.what}"
    elif found.name is None:
        yield f"not a call that nvproxy decides: {found.number:#x} is {found.what}"
    else:
        value = "" if found.number is None else f" ({found.number:#x})"
        yield f"not a call: {found.name}{value} is {found.what}"
    if found.kind == "status" and found.number is not None:
        yield f"  {status_note(found.number)}"


def _row(answer: Mapping[str, Any]) -> tuple[object, ...]:
    caps = ",".join(answer["admits"]["caps"])
    return (
        *(answer[name] for name in ("kind", "hex", *_COLUMNS[2:8])),
        caps,
        answer["answer"],
        "; ".join(answer["advice"]),
    )


def _answer(policy: Policy, call: Call) -> dict[str, Any]:
    rule = policy.rules[call.table].get(call.number)
    every = [row for row in ROWS[call.table] if row.number == call.number]
    shown = rule or (every[-1] if every else None)
    decision = _decision(policy, call, rule)
    name = shown.name if shown is not None else next(iter(ever_called(call.number)[call.table]), None)
    answer: dict[str, Any] = {
        "kind": call.table,
        "number": call.number,
        "hex": f"{call.number:#x}",
        "name": name,
        "request_size": call.size,
        "verdict": "admitted" if decision.allowed else "refused",
        "conditional": decision.allowed and _terms(policy, call, rule),
        "why": decision.why.name,
        "reason": decision.reason,
        "errno": errno.errorcode.get(decision.errno) if decision.errno else None,
        "status": decision.status,
        "admits": _admits(policy, decision, every),
        "handling": handled(rule, policy.version) if rule is not None else None,
        "duty": decision.duty,
        "params": _params(rule, policy.version, call.size) if rule is not None else None,
        "upstream": {
            "gvisor": policy_upstream.place(call.table, shown, policy.version),
            "driver": policy_upstream.driver(call.table, name),
        },
        "rm": _authority(call, name, policy.version),
        "driver_is_recorded": _is_recorded(policy.version),
        "later": _later(shown),
        "decoded": _decoded(call),
        "allocated": allocation(call.number) if call.table == "alloc" else None,
        "as_status": status_note(call.number) if call.table != "control" else None,
        "nearest": []
        if shown is not None or decision.allowed
        else [{"number": row.number, "name": row.name} for row in near(call)],
    }
    if (call.table, call.number) == ("alloc", NV01_EVENT):
        answer["name"], answer["duty"] = "NV01_EVENT", "the class that counts is hClass of its NV0005_ALLOC_PARAMETERS"
    answer["answer"] = sentence(answer, policy, decision)
    answer["advice"] = advice(answer, policy, decision)
    return answer


def _terms(policy: Policy, call: Call, rule: Rule | None) -> bool:
    """Whether what the struct's fields hold matters, once the number is admitted."""
    decided = policy.entry(call.table, call.number).decide is None
    return not decided and (rule is None or handled(rule, policy.version) not in ("simple", "depends"))


def _decision(policy: Policy, call: Call, rule: Rule | None) -> Decision:
    """The answer as far as the number, and a frontend request's size, decide it."""
    entry = policy.entry(call.table, call.number)
    if entry.decide is None:
        return entry.decision
    asked = policy.call(call.table, call.number)
    if rule is not None and call.size is not None:
        sizes = _sizes(rule, policy.version)
        if sizes and call.size not in sizes:
            facts = Facts("_IOC_SIZE", None, " or ".join(map(str, sizes)), call.size)
            return Decision(Verdict.REJECT, Why.SIZE, asked, errno.EINVAL, facts=facts)
    return entry.decision


def _sizes(rule: Rule, version: DriverVersion) -> list[int]:
    """The argument sizes that a frontend row takes; none means any."""
    of = rule.params_at(version)
    if not isinstance(of, CStruct):
        return []
    return [named(_SHORT_ALLOC).sizeof(), of.sizeof()] if rule.handler == "alloc" else [of.sizeof()]


def _admits(policy: Policy, decision: Decision, every: list[Rule]) -> dict[str, Any]:
    """What would admit the call: capabilities, releases, an opt-in. Nothing where no row does."""
    rows = [row for row in every if not row.rejected]
    rule = decision.rule
    caps = rule.caps if rule is not None and not rule.rejected else Caps(0)
    for row in rows if rule is None else ():
        caps |= row.caps
    if decision.why is Why.CAPABILITY and rule is not None and policy.profile == "hardened":
        caps = CAPS.get(rule.name, caps)
    return {
        "caps": list(caps.names),
        "also": ["compute", "utility"]
        if decision.call.table in ("control", "alloc") and caps and not caps & DEFAULT
        else [],
        "rows": [dict(zip(("name", "from", "until"), (row.name, *releases(row)), strict=True)) for row in rows],
        "opt_in": any(row.opt_in for row in rows),
    }


def _params(rule: Rule, version: DriverVersion, size: int | None) -> dict[str, Any] | None:
    """The struct of a row with its leaves; one that is known by name only is looked up in the recorded headers."""
    of = rule.params_at(version)
    if rule.handler == "alloc" and size == named(_SHORT_ALLOC).sizeof():
        of = named(_SHORT_ALLOC)
    if isinstance(of, CStruct):
        fields = [
            {"path": path, "offset": offset, "size": member.size, "type": _type(member), "role": _role(member.role)}
            for path, offset, member in of.walk()
        ]
        return {"struct": of.ctype, "size": of.sizeof(), "source": "model", "fields": fields}
    name = rule.struct_at(version)
    if of is not None or name is None:
        return None if of is None else {"struct": name, "size": of.sizeof(), "source": "model", "fields": []}
    layout, source = _recorded(name, version)
    if layout is None:
        return {"struct": name, "size": None, "source": None, "fields": []}
    leaves = [
        {"path": leaf.path, "offset": leaf.offset, "size": leaf.size, "type": _dims(leaf.type, leaf.dims), "role": None}
        for leaf in layout.leaves()
    ]
    return {"struct": name, "size": layout.size, "source": source, "fields": leaves}


def _authority(call: Call, name: str | None, version: DriverVersion) -> dict[str, Any] | None:
    """Who may make the call, as the driver's own tables say at the release or at its nearest recorded ancestor."""
    from nvproxy_model.drivers import authority, facts

    recorded = facts.load()
    release = authority.recorded_for(recorded, version)
    said = None if release is None else authority.ask(recorded, release, call.table, call.number, name)
    return None if said is None else said.as_json()


def _is_recorded(version: DriverVersion) -> bool:
    from nvproxy_model.drivers import facts

    return version.name in facts.load()


def _later(rule: Rule | None) -> str | None:
    """Where a row came from that the followed revision of gVisor lacks."""
    return described(rule.later) if rule is not None and rule.later is not None else None


def _recorded(name: str, version: DriverVersion) -> tuple[Layout | None, str | None]:
    """A struct's layout at the release, or at its nearest recorded ancestor."""
    from nvproxy_model.drivers import facts

    recorded = facts.load()
    for ancestor in version.lineage:
        if ancestor in recorded:
            return recorded.release(ancestor).structs.get(name), f"headers of {ancestor}"
    return None, None


def _type(member: Member) -> str:
    return _dims(str(member.element.ctype), member.dims)


def _dims(name: str, dims: tuple[int, ...]) -> str:
    return name + "".join(f"[{n}]" for n in dims)


def _role(role: Role | None) -> str | None:
    """What a proxy does with a field, in words."""
    if isinstance(role, Fd):
        return _fd(role)
    if isinstance(role, UserPointer):
        return _pointer(role)
    if isinstance(role, OpaquePointer):
        if role.null_only:
            return "pointer: anything but NULL is EINVAL"
        return (
            "pointer: NULL for the driver and afterwards for the program"
            if role.cleared
            else "pointer, passed on as it is"
        )
    if isinstance(role, Handle):
        words = (
            ["handle"] + ["0 is EINVAL"] * role.required + ["the new object is freed with the named one"] * role.depends
        )
        return ": ".join([words[0], ", ".join(words[1:])]) if words[1:] else "handle"
    return "status" if isinstance(role, Status) else None


def _fd(role: Fd) -> str:
    passes = [f"{role.null}"] * (role.null is not None) + ["negative values"] * role.negative
    refused = "EINVAL" if role.refuse is None else f"status {role.refuse:#x}"
    return (
        f"fd of a {role.file} file, the host's number for the driver, the program's own afterwards; "
        f"{' and '.join(passes) + ' passed on, ' if passes else ''}another is {refused}"
    )


def _pointer(role: UserPointer) -> str:
    if role.to is None:
        return "pointer to parameters, copied in and out as their own row says"
    count = f"{role.count[1]} squared" if isinstance(role.count, tuple) else str(role.count)
    moved = "copied in and out" if role.mode == "inout" else "zeroed for the driver, copied out"
    null = {
        "forward": "NULL passed on",
        "judge": "NULL passed on if the count is in bounds",
        "copy": "NULL is a fault",
        "refuse": "NULL refused",
    }[role.null]
    refused = "EINVAL" if role.refuse is None else f"status {role.refuse:#x}"
    empty = "0 elements passed on as NULL" if role.empty == "forward" else f"0 elements {refused}"
    return f"buffer of {count} x {role.to.sizeof()} bytes, {moved}; {null}, {empty}, over {role.limit} bytes {refused}"


def _decoded(call: Call) -> dict[str, Any] | None:
    """How a control command is built: class, category, id, and the bypass window that it may be in."""
    if call.table != "control":
        return None
    hclass = call.number >> 16
    name = next((row.name for row in ROWS["alloc"] if row.number == hclass), None)
    return {
        "class": hclass,
        "class_name": name,
        "category": call.number >> 8 & 0xFF,
        "id": call.number & 0xFF,
        "window": window(call.number),
    }


def _text(what: str, head: str, answers: list[dict[str, Any]]) -> Iterator[str]:
    if len({answer["hex"] for answer in answers}) > 1:
        calls = ", ".join(f"{answer['name'] or answer['hex']} ({answer['verdict']})" for answer in answers)
        yield f"{what} is the parameters of {len(answers)} calls: {calls}"
        yield ""
    elif len(answers) > 1:
        meant = ", ".join(f"{WORDS[answer['kind']]} ({answer['verdict']})" for answer in answers)
        yield f"{answers[0]['hex']} can be {len(answers)} calls: {meant}; --kind picks one"
        yield ""
    for index, answer in enumerate(answers):
        if index:
            yield ""
        yield answer["answer"]
        for line in answer["advice"]:
            yield f"  to do      {line}"
        yield f"  call       {answer['kind']} {answer['hex']} {answer['name'] or '(no name known)'}"
        yield f"  under      {head}"
        yield f"  decision   {answer['reason']}"
        yield from _text_admits(answer)
        if answer["handling"] is not None:
            yield f"  handling   {answer['handling']}"
        if answer["duty"] is not None:
            yield f"  embedder   {answer['duty']}"
        yield from _text_params(answer["params"])
        if answer["decoded"] is not None:
            made = answer["decoded"]
            window = f", window {made['window']}" if made["window"] else ""
            hclass = " ".join(filter(None, (f"{made['class']:#x}", made["class_name"])))
            yield f"  number     class {hclass}, category {made['category']:#x}, id {made['id']:#x}{window}"
        if answer["allocated"] is not None:
            yield f"  allocated  {answer['allocated']['says']}"
        if answer["nearest"]:
            yield f"  nearest    {', '.join(format(row['number'], '#x') + ' ' + row['name'] for row in answer['nearest'])}"
        if answer["as_status"] is not None:
            yield f"  status     {answer['as_status']}"
        yield from _text_authority(answer)
        for who, where in answer["upstream"].items():
            if where is not None:
                yield f"  {who:11}{where}"


def _text_admits(answer: dict[str, Any]) -> Iterator[str]:
    admits = answer["admits"]
    if admits["caps"]:
        also = f", with {' or '.join(admits['also'])} for the call itself" if admits["also"] else ""
        yield f"  caps       any of {', '.join(admits['caps'])}{also}"
    root = next(iter(versions.load()))
    for row in admits["rows"]:
        if len(admits["rows"]) == 1 and row["from"] == [root] and not row["until"]:
            yield "  releases   every one"
            continue
        until = f", until {', '.join(row['until'])}" if row["until"] else ""
        name = f": {row['name']}" if len(admits["rows"]) > 1 else ""
        yield f"  releases   from {', '.join(row['from'])}{until}{name}"
    if admits["opt_in"]:
        yield f"  opt-in     Policy.for_driver(..., extra=[{answer['hex']}])"


def _text_params(params: dict[str, Any] | None) -> Iterator[str]:
    if params is None:
        return
    size = "its layout is not recorded" if params["size"] is None else f"{params['size']} bytes"
    source = "" if params["source"] in (None, "model") else f", from the {params['source']}"
    yield f"  struct     {params['struct']}, {size}{source}"
    width = max((len(field["path"]) for field in params["fields"]), default=0)
    for field in params["fields"]:
        place = f"{field['offset']:5} {field['size']:5}  {field['path']:{width}}"
        yield f"    {place}  {field['type']:10}  {field['role'] or ''}".rstrip()


def _text_authority(answer: Mapping[str, Any]) -> Iterator[str]:
    rm = answer["rm"]
    if rm is not None:
        where = "" if answer["driver_is_recorded"] else f" (as {rm['release']} has it)"
        yield f"  privilege  {rm['words']}{where}"
        if rm["chips_words"] is not None:
            yield f"  chips      {rm['chips_words']}"
    if answer["later"] is not None:
        yield f"  row        newer than the followed revision of gVisor: {answer['later']}"
