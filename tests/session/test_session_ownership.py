"""The hardened profile: sizes, fields of profilers and debuggers, clients in fields, objects of the bypass class."""

from __future__ import annotations

import struct

import pytest

from nvproxy_model import Policy, Why, versions
from nvproxy_model.abi import CONTROL
from nvproxy_model.abi import constants as nv
from nvproxy_model.abi.sizes import SIZES, UNRECORDED, size_at
from nvproxy_model.drivers import facts
from nvproxy_model.fields import CStruct
from nvproxy_model.policy import hardened
from nvproxy_model.rules import active
from tests.session.test_session_hardened import DEVICE, RECORD, SUBDEVICE, Profiler

FACTS = facts.load(facts.FACTS)
TREE = versions.load()
CAPS = "all,profiling,rdma,fabric-imex-mgmt"
RECORDED = [node for node in TREE.values() if node.name in FACTS]


def decided(name: str, data: bytes, version: str = "610.57.04") -> tuple[bool, int | None, str]:
    """(admitted, status, field) under the hardened profile; the default profile admits all of them."""
    number = next(rule.number for rule in active(CONTROL, TREE[version]).values() if rule.name == name)
    assert Policy.for_driver(version, CAPS, allow_unsupported=True).decide_control(number, data, {}).allowed
    policy = Policy.for_driver(version, CAPS, profile="hardened", allow_unsupported=True)
    decision = policy.decide_control(number, data, {})
    assert decision.allowed or decision.why is Why.HARDENED
    return decision.allowed, decision.status, "" if decision.facts is None else decision.facts.field


@pytest.mark.parametrize("node", RECORDED, ids=str)
def test_every_size_is_the_headers(node: versions.DriverVersion) -> None:
    release = FACTS.release(node.name)
    checked = 0
    for number, rule in active(CONTROL, node).items():
        if rule.rejected or isinstance(rule.params, CStruct):
            continue
        size = size_at(number, node.lineage)
        struct_name = rule.struct_at(node)
        if struct_name is None:
            assert size in (0, None)  # 0x80028b is in no header
        elif struct_name in release.structs:
            assert size == release.structs[struct_name].size, rule
            checked += 1
    assert checked > 130


def test_no_size_is_claimed_where_no_header_is_recorded() -> None:
    assert {node.name for node in TREE.values()} - {node.name for node in RECORDED} == UNRECORDED
    assert all(size_at(number, TREE["620.51.00"].lineage) is None for number in SIZES)
    assert size_at(0x208001A3, TREE["610.57.04"].lineage) == 56


def test_a_size_that_is_not_the_struct_s() -> None:
    name = "NV2080_CTRL_CMD_GPU_GET_NAME_STRING"
    assert decided(name, bytes(68))[0]
    assert decided(name, bytes(67)) == (False, nv.NV_ERR_INVALID_ARGUMENT, "paramsSize")
    assert decided(name, bytes(132))[0] is False
    assert decided(name, bytes(132), "535.129.03")[0]
    assert decided(name, bytes(7), "620.06.00")[0]  # its size there is not known
    assert decided("NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS", bytes(8))[0]
    assert decided("NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS", bytes(9)) == (
        False,
        nv.NV_ERR_INVALID_ARGUMENT,
        "paramsSize",
    )


def thermal(*opcodes: int, count: int | None = None, **head: int) -> bytes:
    fields = {"ver": 1, "rev": 0, "size": 44, "flags": 0, **head}
    block = bytearray(1432)
    struct.pack_into("<6I", block, 0, *fields.values(), 0, len(opcodes) if count is None else count)
    for index, opcode in enumerate(opcodes):
        struct.pack_into("<I", block, 24 + 44 * index + 8, opcode)
    return bytes(block)


def reg_ops(*ops: tuple[int, int], count: int | None = None, mode: int = 0) -> bytes:
    block = bytearray(3980)
    struct.pack_into("<II", block, 0, len(ops) if count is None else count, mode)
    for index, op in enumerate(ops):
        block[12 + 32 * index : 14 + 32 * index] = bytes(op)
    return bytes(block)


def at(size: int, offset: int, value: int) -> bytes:
    return bytes(offset) + bytes([value]) + bytes(size - offset - 1)


THERMAL, REG_OPS = "NV2080_CTRL_CMD_THERMAL_SYSTEM_EXECUTE_V2", "NVB0CC_CTRL_CMD_EXEC_REG_OPS"
GET_PUT, PMA = "NVB0CC_CTRL_CMD_PMA_STREAM_UPDATE_GET_PUT", "NVB0CC_CTRL_CMD_ALLOC_PMA_STREAM"


@pytest.mark.parametrize(
    ("name", "data", "field"),
    [
        (THERMAL, thermal(0x100, 0x1500), ""),
        (THERMAL, thermal(*[0x540] * 32, flags=1), ""),
        (THERMAL, thermal(0x102), "instructionList[0].opcode"),
        (THERMAL, thermal(0x100, 0x1501), "instructionList[1].opcode"),
        (THERMAL, thermal(ver=2), "clientAPIVersion"),
        (THERMAL, thermal(rev=1), "clientAPIRevision"),
        (THERMAL, thermal(size=45), "clientInstructionSizeOf"),
        (THERMAL, thermal(flags=2), "executeFlags"),
        (THERMAL, thermal(count=33), "instructionListSize"),
        (REG_OPS, reg_ops((0, 1), (2, 0x40), (4, 8), mode=1), ""),
        (REG_OPS, reg_ops(*[(0, 1)] * 124), ""),
        (REG_OPS, reg_ops((1, 1)), "regOps[0].regOp"),
        (REG_OPS, reg_ops((0, 1), (0, 0)), "regOps[1].regType"),
        (REG_OPS, reg_ops((0, 0x20)), "regOps[0].regType"),
        (REG_OPS, reg_ops((0, 0x80)), "regOps[0].regType"),
        (REG_OPS, reg_ops(count=0), "regOpCount"),
        (REG_OPS, reg_ops(count=125), "regOpCount"),
        (REG_OPS, reg_ops((0, 1), mode=2), "mode"),
        (GET_PUT, bytes(48), ""),
        (GET_PUT, at(48, 9, 1), "bWait"),
        (PMA, at(56, 40, 1), ""),
        (PMA, bytes(56), "ctxsw"),
        ("NVB0CC_CTRL_CMD_RESERVE_HWPM_LEGACY", b"\1", ""),
        ("NVB0CC_CTRL_CMD_RESERVE_HWPM_LEGACY", b"\0", "ctxsw"),
        ("NVB0CC_CTRL_CMD_RESERVE_PM_AREA_SMPC", b"\0", "ctxsw"),
        ("NVB0CC_CTRL_CMD_RESERVE_CCU_PROF", b"\2", "ctxsw"),
        ("NV83DE_CTRL_CMD_DEBUG_SET_MODE_MMU_DEBUG", struct.pack("<I", 2), ""),
        ("NV83DE_CTRL_CMD_DEBUG_SET_MODE_MMU_DEBUG", struct.pack("<I", 3), "action"),
        ("NV83DE_CTRL_CMD_DEBUG_SET_MODE_ERRBAR_DEBUG", struct.pack("<I", 0), "action"),
        ("NV83DE_CTRL_CMD_DEBUG_READ_MEMORY", struct.pack("<IIQQ", 1, 256 << 10, 0, 0x1000), ""),
        ("NV83DE_CTRL_CMD_DEBUG_READ_MEMORY", struct.pack("<IIQQ", 1, (256 << 10) + 1, 0, 0x1000), "length"),
    ],
)
def test_fields_of_profilers_and_debuggers(name: str, data: bytes, field: str) -> None:
    admitted, status, found = decided(name, data)
    assert (admitted, found) == (not field, field)
    assert (status is None) is admitted


def test_the_offsets_are_the_headers_in_every_listed_release() -> None:
    """The checks read bytes; a release in which a field lies elsewhere would be misread."""
    wanted = {
        "NVB0CC_CTRL_ALLOC_PMA_STREAM_PARAMS": {"hMemPmaBuffer": 0, "hMemPmaBytesAvailable": 24, "ctxsw": 40},
        "NVB0CC_CTRL_PMA_STREAM_UPDATE_GET_PUT_PARAMS": {"bWait": 9},
        "NVB0CC_CTRL_EXEC_REG_OPS_PARAMS": {"regOpCount": 0, "mode": 4, "regOps": 12},
        "NVB0CC_CTRL_RESERVE_HWPM_LEGACY_PARAMS": {"ctxsw": 0},
        "NVB0CC_CTRL_RESERVE_PM_AREA_SMPC_PARAMS": {"ctxsw": 0},
        "NV83DE_CTRL_DEBUG_SET_MODE_MMU_DEBUG_PARAMS": {"action": 0},
        "NV83DE_CTRL_DEBUG_SET_MODE_ERRBAR_DEBUG_PARAMS": {"action": 0},
        "NV2080_CTRL_GR_CTXSW_ZCULL_BIND_PARAMS": {"hClient": 0},
        "NV2080_CTRL_THERMAL_SYSTEM_EXECUTE_V2_PARAMS": {
            "clientAPIVersion": 0,
            "clientInstructionSizeOf": 8,
            "executeFlags": 12,
            "instructionListSize": 20,
            "instructionList": 24,
        },
    }
    for node in RECORDED:
        structs = FACTS.release(node.name).structs
        for name, offsets in wanted.items():
            if name in structs:
                known = {field.name: field.offset for field in structs[name].fields}
                assert {field: known[field] for field in offsets} == offsets, (node, name)
        for name, size in hardened.BYTES_SIZES.items():
            rule = next((rule for rule in active(CONTROL, node).values() if rule.name == name), None)
            if rule is not None:
                assert size_at(rule.number, node.lineage) == size


@pytest.mark.parametrize("profile", ["gvisor", "hardened"])
def test_a_profiler_names_a_context_of_its_own(profile: str) -> None:
    world = Profiler(profile)
    strict = profile == "hardened"

    def device(client: int, context: int) -> Why | None:
        params = struct.pack("<II", client, context)
        result, _, _ = world.alloc(world.fd, world.client, SUBDEVICE, 0x50, 0xB2CC, params)
        assert result.decision is not None
        return result.decision.why

    assert device(0, 0) is (Why.HARDENED if strict else Why.RULE)
    assert device(0xC1D0BAD0, 7) is (Why.HARDENED if strict else Why.RULE)
    assert device(world.client, 7) is Why.RULE


@pytest.mark.parametrize("profile", ["gvisor", "hardened"])
def test_a_list_of_clients_is_looked_at_as_far_as_the_driver_reads_it(profile: str) -> None:
    world = Profiler(profile)

    def disable(count: int, *clients: int) -> Why | None:
        params = struct.pack("<B3xIBB6xQ", 1, count, 0, 0, 0) + struct.pack(f"<{len(clients)}I", *clients)
        params += bytes(536 - len(params))
        result, _ = world.control(world.fd, world.client, SUBDEVICE, 0x2080110B, params)
        assert result.decision is not None
        return result.decision.why

    refused = Why.HARDENED if profile == "hardened" else Why.RULE
    assert disable(2, world.client, world.client) is Why.RULE
    assert disable(2, world.client, 0xBAD) is refused
    assert disable(1, world.client, 0xBAD) is Why.RULE


@pytest.mark.parametrize("profile", ["gvisor", "hardened"])
def test_the_memory_of_a_stream_is_the_callers(profile: str) -> None:
    world = Profiler(profile)

    def stream(buffer: int, available: int) -> Why | None:
        params = struct.pack("<IxxxxQQIxxxxQBxxxIQ", buffer, 0, 0, available, 0, 1, 0, 0)
        result, _ = world.control(world.fd, world.client, SUBDEVICE, 0xB0CC0105, params)
        assert result.decision is not None
        return result.decision.why

    refused = Why.HARDENED if profile == "hardened" else Why.RULE
    assert stream(0x7777, 0x7777) is refused
    assert stream(DEVICE, DEVICE) is refused
    assert stream(RECORD, RECORD) is refused  # deviceless memory is of another class


def test_with_the_windows_closed_the_bypass_class_takes_no_command() -> None:
    for windows, refused in (("allow", False), ("deny", True), ({0x20800119}, False)):
        world = Profiler("hardened")
        closed = Policy.for_driver("580.159.04", "compute,utility,profiling", profile="hardened", windows=windows)  # type: ignore[arg-type]
        world.session.policy = closed
        world.session.controls = closed.entries("control")
        assert world.alloc(world.fd, world.client, SUBDEVICE, 0x60, nv.NV2081_BINAPI, bytes(4))[1] == 0
        size = size_at(0x20800119, closed.version.lineage)
        assert size is not None
        result, _ = world.control(world.fd, world.client, 0x60, 0x20800119, bytes(size))
        assert result.decision is not None
        assert (result.decision.why is Why.HARDENED) is refused
        result, _ = world.control(world.fd, world.client, SUBDEVICE, 0x20800119, bytes(size))
        assert result.decision is not None
        assert result.decision.allowed
