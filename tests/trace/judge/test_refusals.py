"""Who refused and what follows, case by case: the decisions are the policy's own, the records are written by hand."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from nvproxy_model.policy.decision import Decision, Why
from nvproxy_model.policy.policy import Policy
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.format import Record, record
from nvproxy_model.trace.judge.check import Check, minimal_caps
from nvproxy_model.trace.judge.groups import GROUPS, MISSING, QUIET
from nvproxy_model.trace.judge.mig import shows_mig
from nvproxy_model.trace.judge.refusals import answer, author, exposed, group_of_call, group_of_open, refused
from nvproxy_model.trace.judge.verdict import EXITS, decide

POLICY = Policy.for_driver("580.126.20", "compute,utility")
CATALOG = Catalog("580.126.20")
NODE = "/dev/nvidiactl"


def rec(kind: str = "control", key: int = 0x20800FFE, **more: Any) -> Record:
    base = {"k": "ioctl", "tid": 1, "fd": 3, "ret": 0, "dev": NODE, "req": "0xc020462a", "kind": kind, "key": hex(key)}
    return record({**base, **more}, 1)


def opened(path: str, **more: Any) -> Record:
    return record({"k": "open", "tid": 1, "fd": 3, "ret": 3, "path": path, **more}, 1)


UNKNOWN = POLICY.decide_control(0x20800FFE, None, {})
CAPABILITY = POLICY.decide_control(0x90CD0101, bytes(8), {})
WINDOW = POLICY.decide_control(0x20808157, None, {})
ADMITTED = POLICY.decide_control(0x20800301, bytes(12), {})
ALWAYS = POLICY.decide_frontend(0xC00446D7, bytes(4), {})
ARGUMENT = POLICY.decide_frontend(0xC00446C9, (7).to_bytes(4, "little"), {})
CLASS = POLICY.decide_alloc(0xDEAD, None, {})


def test_the_decisions_are_what_they_are_called() -> None:
    assert UNKNOWN.why is Why.UNKNOWN
    assert CAPABILITY.why is Why.CAPABILITY
    assert WINDOW.why is Why.WINDOW
    assert ADMITTED.allowed
    assert ALWAYS.why is Why.REFUSED
    assert ARGUMENT.why is Why.FD


AUTHORS: list[tuple[Record, Decision | None, bool, str | None]] = [
    (rec(), UNKNOWN, True, None),
    (rec(status="0x0"), UNKNOWN, True, None),
    (rec(status="0x56"), UNKNOWN, False, "driver"),
    (rec(status="0x56"), UNKNOWN, True, "nvproxy"),
    (rec(status="0x57"), UNKNOWN, True, "driver"),
    (rec(err=22, ret=-1), UNKNOWN, True, "nvproxy"),
    (rec(err=5, ret=-1), UNKNOWN, True, "driver"),
    (rec(status="0x56"), ADMITTED, True, "driver"),
    (rec(status="0x56"), None, True, "driver"),
    (rec("fe", 0xD7, err=22, ret=-1), ALWAYS, True, "nvproxy"),
    (rec(refused="unknown"), None, False, "nvproxy"),
    (rec(status="0x56", by="driver"), UNKNOWN, True, "driver"),
    (rec(by="nvproxy"), None, False, "nvproxy"),
    (opened(NODE), None, True, None),
    (opened(NODE, err=1), None, True, "permission"),
    (opened(NODE, err=1), None, False, "permission"),
    (opened("/dev/nvidia-modeset", err=2), None, True, "nvproxy"),
    (opened("/dev/nvidia-modeset", err=2), None, False, "permission"),
]


@pytest.mark.parametrize("at", range(len(AUTHORS)))
def test_authors(at: int) -> None:
    call, decision, inside, by = AUTHORS[at]
    assert author(call, decision, inside) == by
    assert refused(call) is (by is not None)


GROUPED: list[tuple[Record, Decision | None, str | None, bool, bool, str]] = [
    # record, decision, author, inside, elsewhere -> group
    (rec(), UNKNOWN, None, False, False, "unknown"),
    (rec(status="0x56"), UNKNOWN, "driver", False, False, "refused-outside-too"),
    (rec(status="0x22"), UNKNOWN, "driver", False, False, "refused-outside-too"),
    (rec(status="0x1f"), UNKNOWN, "driver", False, False, "unknown"),
    (rec("fe", 0x63, status="0x56"), UNKNOWN, "driver", False, False, "refused-outside-too"),
    (rec("fe", 0x63, status="0x22"), UNKNOWN, "driver", False, False, "unknown"),
    (rec(status="0x56"), UNKNOWN, "nvproxy", True, False, "unknown"),
    (rec(status="0x56"), CAPABILITY, "nvproxy", True, False, "capability"),
    (rec(status="0x56"), CAPABILITY, "driver", False, False, "refused-outside-too"),
    (rec("alloc", 0xDEAD, status="0x22"), CLASS, "driver", False, False, "refused-outside-too"),
    (rec(), WINDOW, None, False, False, "window"),
    (rec(status="0x56"), WINDOW, "driver", False, False, "window"),
    (rec(), ADMITTED, None, False, False, "admitted"),
    (rec(status="0x56"), ADMITTED, "driver", True, False, "admitted"),
    (rec(), None, None, False, False, "cannot-tell"),
    (rec(), None, None, True, False, "admitted"),
    (rec(), None, None, True, True, "cannot-tell"),
    (rec(status="0x57", by="driver"), None, "driver", True, False, "admitted"),
    (rec(status="0x57"), None, "driver", True, False, "cannot-tell"),
    (rec(status="0x57", by="driver"), None, "driver", False, False, "cannot-tell"),
    (rec("fe", 0xD7), ALWAYS, None, False, False, "always-refused"),
    (rec("fe", 0xD7, err=22, ret=-1), ALWAYS, "driver", False, False, "refused-outside-too"),
    (rec("fe", 0xC9), ARGUMENT, None, False, False, "argument"),
    (rec("fe", 0xC9, err=9, ret=-1), ARGUMENT, "driver", False, False, "refused-outside-too"),
    (rec("fe", 0xC9, err=22, ret=-1), ARGUMENT, "nvproxy", True, False, "argument"),
    (rec(refused="unknown"), UNKNOWN, "nvproxy", True, False, "unknown"),
    (rec(refused="unknown"), ADMITTED, "nvproxy", True, False, "contradiction"),
    (rec(refused="handler is undefined"), None, "nvproxy", True, False, "contradiction"),
    (rec(refused="handler is undefined"), None, "nvproxy", True, True, "cannot-tell"),
    (rec(refused="handler is undefined"), ADMITTED, "nvproxy", True, True, "admitted"),
    (rec(refused="handler is undefined"), WINDOW, "nvproxy", True, True, "window"),
    (rec(refused="missing capability"), ADMITTED, "nvproxy", True, False, "admitted"),
    (rec(refused="missing capability"), None, "nvproxy", True, False, "cannot-tell"),
    (rec(refused="missing capability"), CAPABILITY, "nvproxy", True, False, "capability"),
    (rec(refused="ioctl internally failed"), None, "nvproxy", True, False, "argument"),
    (rec(refused="ioctl internally failed"), ADMITTED, "nvproxy", True, False, "argument"),
]


@pytest.mark.parametrize("at", range(len(GROUPED)))
def test_groups_of_calls(at: int) -> None:
    call, decision, by, inside, elsewhere, group = GROUPED[at]
    assert group_of_call(call, decision, by, inside=inside, elsewhere=elsewhere) == group
    assert group in GROUPS


@pytest.mark.parametrize("why", [why for why in Why if why not in (Why.RULE, Why.WINDOW)])
def test_every_cause_of_a_refusal_has_a_group(why: Why) -> None:
    assert group_of_call(rec(), UNKNOWN._replace(why=why), None) in MISSING


@pytest.mark.parametrize(
    ("path", "by", "group"),
    [
        (NODE, None, "admitted"),
        (NODE, "permission", "permission"),
        ("/dev/nvidia-uvm", "permission", "permission"),
        ("/dev/nvidia-caps-imex-channels/channel0", None, "admitted"),
        ("/dev/nvidia-caps/nvidia-cap1", None, "device"),
        ("/dev/nvidia-modeset", "permission", "refused-outside-too"),
        ("/dev/nvidia-modeset", "nvproxy", "device"),
        ("/dev/dri/card0", None, "foreign"),
        ("/dev/dri/card0", "permission", "foreign"),
        ("/dev/dxg", None, "foreign"),
    ],
)
def test_groups_of_opens(path: str, by: str | None, group: str) -> None:
    assert group_of_open(opened(path), by) == group
    assert exposed(path) is (group in ("admitted", "permission"))


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"err": 22, "ret": -1}, "EINVAL"),
        ({"err": 4000, "ret": -1}, "4000"),
        ({"status": "0x56"}, "0x56"),
        ({"ret": None}, "?"),
        ({}, "0"),
    ],
)
def test_answers(more: dict[str, Any], text: str) -> None:
    assert answer(rec(**more)) == text


@pytest.mark.parametrize("group", GROUPS)
def test_a_verdict_from_one_group(group: str) -> None:
    verdict = decide({group: 1}, ())
    assert verdict.word == ("refused" if group in MISSING else "cannot tell" if group == "cannot-tell" else "admitted")
    assert verdict.exit == EXITS[verdict.word]
    doubted = decide({group: 1}, ("it was cut",))
    assert doubted.word == ("refused" if group in MISSING else "cannot tell")
    assert doubted.why[0] == "it was cut"


def test_sentences_of_a_verdict() -> None:
    assert decide({"cannot-tell": 1}, ()).why == ("1 kind of call depends on what this log does not hold",)
    assert decide({"cannot-tell": 2, "unknown": 1}, ()).why == (
        "2 kinds of calls depend on what this log does not hold",
    )
    assert EXITS == {"admitted": 0, "refused": 1, "cannot tell": 2}
    assert set(QUIET) < set(GROUPS)


def info(*pairs: tuple[int, int], count: int | None = None) -> str:
    return struct.pack(
        f"<I{2 * len(pairs)}I", len(pairs) if count is None else count, *(n for pair in pairs for n in pair)
    ).hex()


@pytest.mark.parametrize(
    ("call", "on"),
    [
        (rec("alloc", 0xC637, status="0x0"), True),
        (rec("alloc", 0xC638, status="0x0"), True),
        (rec("alloc", 0xC639, status="0x0"), False),
        (rec("alloc", 0xC637, status="0x22"), False),
        (rec("alloc", 0xC637), False),
        (opened("/dev/nvidia-caps/nvidia-cap2"), False),
        (opened("/dev/nvidia-caps/nvidia-cap3"), True),
        (opened("/dev/nvidia-caps/nvidia-cap3", err=13), False),
        (opened("/dev/nvidia-caps/nvidia-cap30x"), False),
        (opened("/dev/nvidia-caps/nvidia-cap" + "9" * 9), True),
        (opened("/dev/nvidia-caps/nvidia-cap" + "9" * 10), False),
        (rec(key=0x20800102, status="0x0", par0=info((0x2A, 0)), par1=info((0x2A, 1))), True),
        (rec(key=0x20800102, status="0x0", par0=info((1, 1), (0x2A, 1))), True),
        (rec(key=0x20800102, status="0x0", par0=info((0x2A, 2))), False),
        (rec(key=0x20800102, status="0x0", par0=info((0x2B, 1))), False),
        (rec(key=0x20800102, status="0x0", par0=info((1, 0x2A), (1, 1))), False),
        (rec(key=0x20800102, status="0x0", par0=info((1, 1), (0x2A, 1), count=1)), False),
        (rec(key=0x20800102, status="0x0", par0=info((0x2A, 1), count=1 << 31)), True),
        (rec(key=0x20800102, status="0x0", par0="01"), False),
        (rec(key=0x20800102, status="0x0"), False),
        (rec(key=0x20800103, status="0x0", par0=info((0x2A, 1))), False),
        (rec("fe", 0x2A, par0=info((0x2A, 1))), False),
    ],
)
def test_evidence_of_mig(call: Record, on: bool) -> None:
    assert shows_mig(call) is on


def checked(*records: Record, **more: Any) -> Check:
    return Check(POLICY, CATALOG, **more).feed(records)


def test_doubts() -> None:
    assert checked().doubts() == ["no call was judged"]
    assert checked(opened(NODE)).doubts() == ["no call was judged"]
    assert checked(opened(NODE, err=1)).doubts() == [
        "the program never reached the driver: no open of a device succeeded"
    ]
    assert checked(opened(NODE), rec()).doubts() == []
    assert checked(rec()).doubts() == []
    failed = "what the program would have done with {} is not known: its open failed"
    assert checked(opened(NODE), opened("/dev/nvidia0", err=1), rec()).doubts() == [failed.format("/dev/nvidia0")]
    assert checked(opened("/dev/nvidia0"), opened("/dev/nvidia1", err=2), rec()).doubts() == []
    assert checked(opened("/dev/nvidia0"), opened("/dev/nvidia-uvm", err=2), rec()).doubts() == [
        failed.format("/dev/nvidia-uvm")
    ]
    assert checked(opened(NODE, err=4), opened(NODE), rec()).doubts() == []
    assert checked(opened("/dev/nvidia-modeset"), rec("other", 0xC0106D00, dev="/dev/nvidia-modeset")).doubts() == []


def test_who_answered_what() -> None:
    check = checked(rec(), rec(status="0x56"), rec(status="0x56"), rec(status="0x1f"))
    rows = {row.group: row for row in check.rows.values()}
    assert rows["unknown"].host == {"0": 1, "0x1f": 1}
    assert (rows["refused-outside-too"].host, rows["refused-outside-too"].by) == ({"0x56": 2}, {"driver": 2})
    assert check.refusals() == {"driver": 3}
    inside = checked(rec(), rec(status="0x56"), rec(status="0x1f"), inside=True)
    (row,) = inside.rows.values()
    assert (row.sandbox, row.host, row.by) == ({"0": 1, "0x56": 1}, {"0x1f": 1}, {"nvproxy": 1, "driver": 1})
    quick = checked(rec(by="nvproxy", refused="unknown"), rec(by="nvproxy", refused="unknown"))
    (row,) = quick.rows.values()
    assert (row.by, row.count, row.sandbox, row.host) == ({"nvproxy": 2}, 2, {"0": 2}, {})


def test_the_release_that_a_log_names() -> None:
    call = rec("uvm", 37, refused="handler is undefined", by="nvproxy")
    for made_with, group in ((None, "contradiction"), ("580.126.20", "contradiction"), ("580.95.05", "cannot-tell")):
        assert [row.group for row in checked(call, inside=True, made_with=made_with).rows.values()] == [group]


def test_reasons() -> None:
    """The log's words where the policy has none for it, the policy's otherwise."""
    check = checked(
        rec("uvm", 37, refused="handler is undefined", by="nvproxy"),
        rec("fe", 0x4E, refused="attempted to reuse FD 7", by="nvproxy"),
        rec(refused="unknown", by="nvproxy"),
        rec("fe", 0x4A),
        rec("fe", 0x2A),
        inside=True,
        made_with="580.126.20",
    )
    reasons = {(row.kind, row.number): (row.group, row.reason) for row in check.rows.values()}
    assert reasons["uvm", 37] == ("contradiction", "nvproxy: handler is undefined")
    assert reasons["fe", 0x4E] == ("argument", "nvproxy: attempted to reuse FD 7")
    assert reasons["control", 0x20800FFE] == ("unknown", UNKNOWN.reason)
    assert reasons["fe", 0x4A] == ("admitted", "nvproxy let it through where this was recorded")
    outside = checked(rec("fe", 0x2A), rec("fe", 0x2B), rec("fe", 0x4A))
    assert [row.reason for row in outside.rows.values()] == [
        "the command is in the argument, which this trace does not hold",
        "the class is in the argument, which this trace does not hold",
        "the number is admitted; its arguments decide, and this trace does not hold them",
    ]


def test_an_argument_that_the_policy_refuses_has_the_policys_reason() -> None:
    calls = [rec("fe", 0xC9, req="0xc00446c9", top0=top0, err=22) for top0 in ("07000000", "08000000", "07000000")]
    check = checked(*calls, inside=True)
    assert [(row.group, row.reason, row.count) for row in check.rows.values()] == [
        ("argument", ARGUMENT.reason, 2),
        ("argument", ARGUMENT.reason.replace("0x7", "0x8"), 1),
    ]


def test_rows_are_sorted_by_group_kind_number_and_device() -> None:
    calls = [opened(NODE), opened("/dev/nvidia-uvm"), rec(), rec(key=0x20800FFD), rec("alloc", 0xDEAD), rec("fe", 0x4A)]
    expected = [
        ("unknown", "alloc", 0xDEAD, None),
        ("unknown", "control", 0x20800FFD, None),
        ("unknown", "control", 0x20800FFE, None),
        ("cannot-tell", "fe", 0x4A, None),
        ("admitted", "open", 0, "/dev/nvidia-uvm"),
        ("admitted", "open", 0, NODE),
    ]
    for order in (calls, calls[::-1]):
        rows = checked(*order).sorted_rows()
        assert [(row.group, row.kind, row.number, row.device) for row in rows] == expected


def test_calls_under_a_device_that_is_not_there() -> None:
    tools = "/dev/nvidia-uvm-tools"
    check = checked(
        opened(tools),
        *(rec("uvm", number, dev=tools) for number in (57, 57, 58)),
        rec("other", 0xC0106D00, dev="/dev/nvidia-modeset", req="0xc0106d00"),
    )
    rows = {row.device: row for row in check.rows.values()}
    assert [(inner.number, inner.count) for inner in rows[tools].under] == [(57, 2), (58, 1)]
    assert (rows["/dev/nvidia-modeset"].count, rows["/dev/nvidia-modeset"].under[0].name) == (0, "NVKMS")
    assert check.verdict == "refused"


def test_the_smallest_set_without_what_is_known_as_harmless() -> None:
    check = checked(rec("alloc", 0xC639), rec(key=0x90CD0101), rec(key=0x20800FFE), opened("/dev/nvidia-uvm-tools"))
    caps, never = minimal_caps(check)
    assert caps is not None
    assert caps.names == ("compute", "profiling")
    assert {row.number for row in never} == {0x20800FFE, 0}
    strict = checked(rec("alloc", 0xC639), strict=True)
    assert minimal_caps(strict) == (None, list(strict.rows.values()))
