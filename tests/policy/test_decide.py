"""What a policy answers: the event buffer's own answers, statuses, reasons and facts, gates and windows."""

from __future__ import annotations

import copy
import errno
import pickle
import struct
from typing import Any

import pytest

from nvproxy_model import Caps, Policy, Verdict, Why
from nvproxy_model.policy.decision import Decision, Facts
from nvproxy_model.session.ports import File

FILES = {
    0: File("other", 1 << 20),
    3: File("frontend", (1 << 20) + 3),
    4: File("uvm", (1 << 20) + 4),
    5: File("open-only", (1 << 20) + 5),
    6: File("dma-buf", (1 << 20) + 6),
}


POLICY = Policy.for_driver("580.126.20", caps="compute,utility,profiling")


def _event_buffer(**values: int) -> bytes:
    of: Any = POLICY.alloc[0x90CD].params
    return of.build({**of.parse(bytes(72)), "hBufferHeader": 1, "hRecordBuffer": 2, **values})  # type: ignore[no-any-return]


def test_event_buffer_without_a_header_is_refused() -> None:
    decision = POLICY.decide_alloc(0x90CD, _event_buffer(hBufferHeader=0), FILES)
    assert (decision.verdict, decision.errno, decision.why) == (Verdict.REJECT, errno.EINVAL, Why.REQUIRED)
    for word in ("580.126.20", "0x90cd", "NV_EVENT_BUFFER", "hBufferHeader", "EINVAL"):
        assert word in decision.reason


def test_notification_fd_is_translated() -> None:
    decision = POLICY.decide_alloc(0x90CD, _event_buffer(notificationHandle=3, hVardataBuffer=9), FILES)
    assert decision.verdict is Verdict.TRANSLATE
    assert decision.params == _event_buffer(notificationHandle=(1 << 20) + 3, hVardataBuffer=9)
    assert decision.depends == (1, 2, 9)


def test_no_notification_is_no_look_up() -> None:
    decision = POLICY.decide_alloc(0x90CD, _event_buffer(), {})
    assert (decision.verdict, decision.depends) == (Verdict.ALLOW, (1, 2))


@pytest.mark.parametrize("value", [7, 4, 0xFFFFFFFF, (1 << 64) - 1, 1 << 32])
def test_a_bad_notification_fd_names_the_field(value: int) -> None:
    files = {fd: file for fd, file in FILES.items() if fd}
    decision = POLICY.decide_alloc(0x90CD, _event_buffer(notificationHandle=value), files)
    assert (decision.errno, decision.why) == (errno.EINVAL, Why.FD)
    assert "notificationHandle" in decision.reason


def test_values_wider_than_an_fd() -> None:
    """nvproxy and the driver read 32 bits; the hardened profile refuses the rest."""
    wide = _event_buffer(notificationHandle=(1 << 32) + 3, hSubDevice=1, recordSize=0x20)
    assert POLICY.decide_alloc(0x90CD, wide, FILES).verdict is Verdict.TRANSLATE
    hardened = Policy.for_driver("580.126.20", caps="compute,utility,profiling", profile="hardened")
    decision = hardened.decide_alloc(0x90CD, wide, FILES)
    assert (decision.verdict, decision.why) == (Verdict.REJECT, Why.HARDENED)


@pytest.mark.parametrize(
    ("table", "number", "status", "why"),
    [
        ("control", 0x20800FFE, 0x56, Why.UNKNOWN),
        ("alloc", 0xDEAD, 0x22, Why.UNKNOWN),
        ("alloc", 0x7F, 0x22, Why.REFUSED),
        ("control", 0x90CD0103, 0x56, Why.REFUSED),
        ("control", 0x90CD0105, 0x56, Why.REFUSED),
        ("control", 0x90CD0000, 0x56, Why.REFUSED),
        ("control", 0x2080030A, 0x56, Why.REFUSED),
        ("control", 0x20801238, 0x56, Why.OPT_IN),
    ],
)
def test_refusals_with_a_status(table: str, number: int, status: int, why: Why) -> None:
    decision: Decision = getattr(POLICY, f"decide_{table}")(number, b"", {})
    assert (decision.verdict, decision.errno, decision.status, decision.why) == (Verdict.REJECT, 0, status, why)


def test_a_missing_capability_answers_like_unknown_with_a_reason_of_its_own() -> None:
    plain = Policy.for_driver("580.126.20", caps="compute,utility")
    for number in (0x90CD0101, 0x90CD0102, 0x90CD0104, 0x20801231, 0x20800309):
        assert POLICY.decide_control(number, bytes(8), {}).allowed
        decision = plain.decide_control(number, bytes(8), {})
        assert (decision.status, decision.why) == (0x56, Why.CAPABILITY)
        assert "profiling" in decision.reason
    assert plain.decide_alloc(0x90CD, bytes(72), {}).status == 0x22
    assert plain.decide_alloc(0x90CE, bytes(128), {}).allowed


def test_an_opt_in_row() -> None:
    policy = Policy.for_driver("580.126.20", caps="compute,utility,profiling", extra=[0x20801238])
    assert policy.decide_control(0x20801238, bytes(24), {}).allowed


def test_shared_decisions_cannot_be_changed() -> None:
    decision = POLICY.decide_control(0x90CD0104, None, {})
    assert decision is POLICY.decide_control(0x90CD0104, None, {})
    for name in ("verdict", "errno", "colour"):
        with pytest.raises(AttributeError):
            setattr(decision, name, 0)
    with pytest.raises(AttributeError):
        POLICY.caps = 0  # type: ignore[misc, assignment]


def test_unknown_numbers_are_remembered_within_bounds() -> None:
    policy = Policy.for_driver("580.126.20")
    for number in range(0x7000_0000, 0x7000_0000 + 5000):
        assert policy.decide_control(number, None, {}).status == 0x56
    assert len(policy._control) < 2000


def test_one_mebibyte_of_parameters_and_no_more() -> None:
    assert POLICY.decide_control(0x20800301, bytes(1 << 20), {}).allowed
    assert POLICY.decide_control(0x20800301, bytes((1 << 20) + 1), {}).errno == errno.EINVAL


def test_both_gates() -> None:
    """Without compute or utility even a root client is EINVAL."""
    for caps in ("profiling", "graphics"):
        policy = Policy.for_driver("580.126.20", caps=caps)
        assert policy.decide_alloc(0x41, None, {}).errno == errno.EINVAL
        assert policy.decide_control(0x20800301, None, {}).errno == errno.EINVAL
        assert policy.decide_alloc(0xDEAD, None, {}).errno == errno.EINVAL


def test_bypass_windows_and_their_precedence() -> None:
    for number, name in (
        (0x20808157, "RM_GSS_LEGACY_MASK"),
        (0x20810110, "NV2081_BINAPI"),
        (0x20818001, "RM_GSS_LEGACY_MASK"),
    ):
        decision = POLICY.decide_control(number, b"", {})
        assert (decision.verdict, decision.why) == (Verdict.ALLOW, Why.WINDOW)
        assert name in decision.reason
    closed = Policy.for_driver("580.126.20", windows="deny")
    assert closed.decide_control(0x20808157, b"", {}).status == 0x56
    listed = Policy.for_driver("580.126.20", windows=[0x20810110])
    assert listed.decide_control(0x20810110, b"", {}).allowed
    assert not listed.decide_control(0x20808157, b"", {}).allowed


def test_a_policy_can_be_copied_and_sent() -> None:
    policy = Policy.for_driver("595.71.05", caps="compute,profiling", profile="hardened", allow_unsupported=True)
    for other in (copy.copy(policy), copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert (other.version, other.caps, other.profile) == (policy.version, policy.caps, policy.profile)
        assert other.decide_control(0x90CD0104, None, {}).allowed


@pytest.mark.parametrize("number", [-1, 1 << 32, (1 << 32) + 0x8000, -0x8000])
def test_numbers_that_no_ioctl_can_carry(number: int) -> None:
    assert POLICY.decide_control(number, None, {}).why is Why.UNKNOWN


def test_what_a_caller_gets_wrong() -> None:
    wrong: list[dict[str, Any]] = [
        {"caps": "ngx"},
        {"caps": Caps.DISPLAY},
        {"profile": "soft"},
        {"windows": "maybe"},
        {"windows": ["0x8000"]},
        {"extra": [0x1234]},
    ]
    for mistake in wrong:
        with pytest.raises(ValueError, match=r"."):
            Policy.for_driver("580.126.20", **mistake)
    with pytest.raises(LookupError):
        Policy.for_driver(None)  # type: ignore[arg-type]


def test_a_frontend_request_of_another_size() -> None:
    for arg in (None, b"", bytes(8), bytes(72)):
        assert POLICY.decide_frontend(0xC00846C9, arg, FILES).errno == errno.EINVAL


def test_windows_may_be_any_iterable() -> None:
    policy = Policy.for_driver("580.126.20", windows=(number for number in [0x20810110]))
    assert policy.decide_control(0x20810110, b"", {}).allowed


@pytest.mark.parametrize(
    ("number", "error"), [(0xFD, errno.EFAULT), (0x79, errno.EFAULT), (0x90CD, errno.EFAULT), (0x80, 0)]
)
def test_null_parameters_of_a_class(number: int, error: int) -> None:
    """nvproxy must read the parameters of a class that has a descriptor or a handle that it asks for; others may be NULL."""
    decision = POLICY.decide_alloc(number, None, {})
    assert (decision.errno, decision.allowed) == (error, not error)
    assert (decision.why is Why.NULL) is bool(error)


def test_null_parameters_of_an_escape() -> None:
    """The roles of an argument itself cannot be judged without it, whatever they are."""
    assert POLICY.decide_frontend(0xC01C4634, None, {}).errno == errno.EFAULT
    assert POLICY.decide_uvm(0x1B, None, {}).errno == errno.EFAULT


def test_late_buffers_are_named() -> None:
    """The three strings of GET_BUILD_VERSION are copied out after the struct, and no other buffer of a control is."""
    raw = struct.pack("<IxxxxQQQII", 4, 0x1000, 0x2000, 0x3000, 0, 0)
    decision = POLICY.decide_control(0x101, raw, {})
    assert [(copy.offset, copy.address, copy.size, copy.copy_in, copy.late) for copy in decision.copies] == [
        (8, 0x1000, 4, False, True),
        (16, 0x2000, 4, False, True),
        (24, 0x3000, 4, False, True),
    ]
    graphics = Policy.for_driver("580.126.20", "all")
    listed = graphics.decide_control(0x20800802, struct.pack("<IxxxxQ", 2, 0x1000), {})
    assert [(copy.offset, copy.size, copy.copy_in, copy.late) for copy in listed.copies] == [(8, 16, True, False)]


REASONS = [
    ("control", 0x101, bytes(39), "want 40 bytes, found 39 bytes (EINVAL)"),
    ("alloc", 0x90CD, None, "the parameters are NULL: NV_EVENT_BUFFER_ALLOC_PARAMETERS (EFAULT)"),
    ("control", 0x20800FFE, b"", "no rule has this number (status 0x56)"),
    (
        "alloc",
        0x7F,
        b"",
        "a rule refuses it: no driver allocates it: only kernel clients bind by this class (status 0x22)",
    ),
]


@pytest.mark.parametrize(("table", "number", "data", "text"), REASONS)
def test_reasons_are_made_of_facts(table: str, number: int, data: bytes | None, text: str) -> None:
    ask: Any = {"control": POLICY.decide_control, "alloc": POLICY.decide_alloc}[table]
    assert ask(number, data, {}).reason.endswith(text)


def test_the_facts_of_a_refusal() -> None:
    """What a program may look at, so that it need not read the sentence."""
    files = {4: FILES[4]}
    for value, found in ((4, "uvm"), (9, None)):
        decision = POLICY.decide_alloc(0x90CD, _event_buffer(notificationHandle=value), files)
        assert decision.facts == Facts(
            "NV_EVENT_BUFFER_ALLOC_PARAMETERS.notificationHandle", value, None, found, "frontend"
        )
        assert decision.detail == (
            f"NV_EVENT_BUFFER_ALLOC_PARAMETERS.notificationHandle = {value:#x}: want a frontend file, found "
            + ("no open file" if found is None else "a uvm file")
        )
    raw = struct.pack("<IxxxxQQQII", 4, 0x1000, 0x2000, 0x3000, 0, 0)
    graphics = Policy.for_driver("580.126.20", "all")
    refused = graphics.decide_control(0x20800802, struct.pack("<IxxxxQ", 1 << 20, 0x1000), {})
    assert refused.facts == Facts("NV2080_CTRL_BIOS_GET_INFO_PARAMS.biosInfoList", 1 << 20, 1 << 20, 8 << 20)
    assert "0x100000: want 1 to 1048576 bytes, found 8388608 bytes" in refused.reason
    assert POLICY.decide_control(0x101, raw, {}).facts is None
    assert POLICY.decide_control(0x101, raw, {}).detail == ""
    shut = Policy.for_driver("580.126.20", "profiling").decide_control(0x101, raw, {})
    assert shut.facts is not None
    assert (str(shut.facts.want), shut.facts.field) == ("compute,utility", "NV_ESC_RM_CONTROL, which comes first")


@pytest.mark.parametrize(
    ("data", "error", "status", "number"),
    [
        (None, errno.EFAULT, None, 0x5),
        (bytes(11), errno.EFAULT, None, 0x5),
        (bytes(8) + (0x5).to_bytes(4, "little"), 0, 0x22, 0x5),
        (bytes(8) + (0x7F).to_bytes(4, "little"), 0, 0x22, 0x7F),
        (bytes(8) + (0x79).to_bytes(4, "little") + bytes(4) + (3).to_bytes(8, "little"), 0, None, 0x79),
        (bytes(8) + (0x90CC).to_bytes(4, "little"), 0, None, 0x90CC),
    ],
)
def test_an_event_names_its_class(data: bytes | None, error: int, status: int | None, number: int) -> None:
    decision = POLICY.decide_alloc(0x5, data, FILES)
    assert (decision.errno, decision.status, decision.number) == (error, status, number)
    assert decision.allowed is (not error and status is None)


CONTROL_HEAD = struct.pack("<II", 1, 1)


@pytest.mark.parametrize(
    ("number", "arg", "why", "errno_", "status"),
    [
        (0xC020462A, CONTROL_HEAD + (0x20800301).to_bytes(4, "little") + bytes(20), Why.RULE, 0, None),
        (0xC020462A, CONTROL_HEAD + (0x20800FFE).to_bytes(4, "little") + bytes(20), Why.UNKNOWN, 0, 0x56),
        (0xC020462A, None, Why.NULL, errno.EFAULT, None),
        (0xC020462A, bytes(31), Why.SIZE, errno.EINVAL, None),
        (0xC021462A, bytes(33), Why.SIZE, errno.EINVAL, None),
        (0xC030462B, bytes(12) + (0x41).to_bytes(4, "little") + bytes(32), Why.RULE, 0, None),
        (0xC020462B, bytes(12) + (0x41).to_bytes(4, "little") + bytes(16), Why.RULE, 0, None),
        (0xC020462B, bytes(12) + (0xDEAD).to_bytes(4, "little") + bytes(16), Why.UNKNOWN, 0, 0x22),
        (0xC028462B, bytes(40), Why.SIZE, errno.EINVAL, None),
        (0xC00046D7, b"", Why.REFUSED, errno.EINVAL, None),
        (0xC00046D3, b"", Why.UNKNOWN, errno.EINVAL, None),
        (0xC04846C8, bytes(72), Why.RULE, 0, None),
        (0xC00846D6, bytes(8), Why.RULE, 0, None),
    ],
)
def test_what_a_frontend_request_says(
    number: int, arg: bytes | None, why: Why, errno_: int, status: int | None
) -> None:
    decision = POLICY.decide_frontend(number, arg, FILES)
    assert (decision.why, decision.errno, decision.status) == (why, errno_, status)
    assert decision.allowed is (why is Why.RULE)
    if arg is not None and decision.allowed and number >> 16 & 0x3FFF in (32, 48):
        assert decision.params == arg


@pytest.mark.parametrize(
    ("number", "arg", "why"),
    [
        (0x30000002, None, Why.RULE),
        (0x3000, b"", Why.UNKNOWN),
        (62, b"", Why.UNKNOWN),
        (0x46, bytes(24), Why.CAPABILITY),
    ],
)
def test_what_a_uvm_command_says(number: int, arg: bytes | None, why: Why) -> None:
    assert POLICY.decide_uvm(number, arg, FILES).why is why


def test_a_policy_cannot_be_taken_apart() -> None:
    with pytest.raises(AttributeError, match="immutable: caps"):
        del POLICY.caps
    assert repr(POLICY) == "<Policy 580.126.20 caps=compute,utility,profiling profile=gvisor>"
    assert POLICY.rules["alloc"] == POLICY.alloc
    assert POLICY.decide_control(0x20800301, bytes(4), {}).version == "580.126.20"


def test_a_hardened_policy_still_asks_for_whole_structs() -> None:
    """The profile's own look at a field is taken after the size and the roles are found in order."""
    hardened = Policy.for_driver("580.126.20", "compute,utility,profiling", profile="hardened")
    assert hardened.decide_alloc(0x90CD, None, {}).why is Why.NULL
    assert hardened.decide_alloc(0x90CD, bytes(71), {}).why is Why.SIZE
    assert hardened.decide_alloc(0x90CD, bytes(72), {}).why is Why.REQUIRED
    for wrong in (None, bytes(19), bytes(21)):
        refused = hardened.decide_control(0x20801231, wrong, {})
        assert (refused.why, refused.status) == (Why.HARDENED, 0x1F)
        assert POLICY.decide_control(0x20801231, wrong, {}).allowed, "the driver's own to refuse"
    small = hardened.decide_alloc(0x90CD, _event_buffer(recordSize=0x1F, hSubDevice=1), {})
    assert small.facts == Facts("recordSize", 0x1F, "at least 0x20")
    assert small.status == 0x1F
    no_device = hardened.decide_alloc(0x90CD, _event_buffer(recordSize=0x20), {})
    assert (no_device.facts, no_device.status) == (Facts("hSubDevice", 0, "a subdevice"), 0x33)
    everyone = hardened.decide_control(0x20801231, bytes(16) + b"\1\0\0\0", {})
    assert everyone.facts is not None
    assert (everyone.facts.field, everyone.facts.value, everyone.status) == ("bAllUsers", 1, 0x56)


@pytest.mark.parametrize(
    ("nr", "size", "name"), [(0x27, 56, "nv_ioctl_nvos02_parameters_with_fd"), (0x4A, 184, "NVOS32_PARAMETERS")]
)
def test_a_handler_leaves_wrong_bytes_to_the_roles(nr: int, size: int, name: str) -> None:
    decide = POLICY.entry("frontend", nr).decide
    assert decide is not None
    assert (decide(None, {}).why, decide(None, {}).errno) == (Why.NULL, errno.EFAULT)
    for wrong in (0, size - 1, size + 1):
        assert decide(bytes(wrong), {}).facts == Facts(name, None, size, wrong)


@pytest.mark.parametrize("function", [0, 1, 2, 3, 14, 27, 0xFFFFFFFF])
def test_one_function_of_the_heap(function: int) -> None:
    """NVOS32_FUNCTION_ALLOC_SIZE is 2."""
    raw = bytearray(184)
    raw[8:12] = function.to_bytes(4, "little")
    decision = POLICY.decide_frontend(0xC0B8464A, bytes(raw), {})
    assert decision.allowed is (function == 2)
    if function != 2:
        assert (decision.why, decision.errno, decision.facts) == (
            Why.VALUE,
            errno.EINVAL,
            Facts("function", function, 2),
        )


@pytest.mark.parametrize("flags", [0, 1, 2, 3, 0xFE])
def test_the_host_shares_one_address_space(flags: int) -> None:
    decision = POLICY.decide_uvm(0x30000001, bytes([flags]) + bytes(15), {})
    assert (decision.verdict, decision.params) == (Verdict.TRANSLATE, bytes([flags | 2]) + bytes(15))
    assert not POLICY.decide_uvm(0x30000001, bytes(15), {}).allowed


def test_only_classes_have_the_event_class() -> None:
    """The number 5 in the other tables is a number like any other; and without compute or utility no class is looked at."""
    assert (POLICY.decide_control(5, bytes(24), {}).why, POLICY.decide_uvm(5, bytes(24), {}).why) == (
        Why.UNKNOWN,
        Why.UNKNOWN,
    )
    assert POLICY.decide_frontend(0xC0184605, bytes(24), {}).why is Why.UNKNOWN
    shut = Policy.for_driver("580.126.20", "profiling")
    data = bytes(8) + (0x79).to_bytes(4, "little") + bytes(4) + (3).to_bytes(8, "little")
    for params in (None, data):
        decision = shut.decide_alloc(5, params, FILES)
        assert (decision.why, decision.errno) == (Why.CAPABILITY, errno.EINVAL)
