"""The exported allow list against the handlers: what a session sends to the host is on it, and nothing else is, by name."""

from __future__ import annotations

import pytest

from nvproxy_model import Caps, Policy, versions
from nvproxy_model.caps import DEFAULT, SUPPORTED
from nvproxy_model.fields import CStruct
from nvproxy_model.followed import is_pending
from nvproxy_model.policy.seccomp import EXCEPTIONS, Request, allow_list
from tests.effort import sampled

TREE = versions.load()
SETS = [SUPPORTED, DEFAULT, Caps.GRAPHICS | Caps.UTILITY, Caps.VIDEO, Caps.RDMA, Caps.PROFILING]


def _admits(rows: tuple[Request, ...], device: str, request: int) -> list[str]:
    return [row.name for row in rows if row.device == device and request & row.mask == row.request]


@pytest.mark.parametrize("caps", SETS, ids=str)
@pytest.mark.parametrize("version", sampled(TREE))
def test_the_list_and_the_handlers_agree(version: str, caps: Caps) -> None:
    rows = allow_list(TREE[version], caps)
    policy = Policy.for_driver(version, caps, allow_unsupported=True)
    wanted = set()
    for rule in policy.frontend.values():
        of = rule.params_at(policy.version)
        size = of.sizeof() if isinstance(of, CStruct) else 0
        request = 0xC0004600 | size << 16 | rule.number
        if rule.rejected:
            assert rule.name in EXCEPTIONS
            assert _admits(rows, "frontend", request) == []
            continue
        if rule.caps & caps:
            wanted.add(rule.name)
            assert _admits(rows, "frontend", request) == [rule.name]
            if not isinstance(of, CStruct):
                assert _admits(rows, "frontend", request | 0x3FFF << 16) == [rule.name]
        else:
            assert _admits(rows, "frontend", request) == []
    for rule in policy.uvm.values():
        if rule.caps & caps:
            wanted.add(rule.name)
        admitted = rule.caps & caps and not is_pending(rule.later)
        assert _admits(rows, "uvm", rule.number) == ([rule.name] if admitted else [])
    extra = {row.name for row in rows if row.in_release} - wanted
    assert extra == {"UVM_TOOLS_READ_PROCESS_MEMORY", "UVM_TOOLS_WRITE_PROCESS_MEMORY"} <= set(EXCEPTIONS)


@pytest.mark.parametrize("version", sampled(TREE))
def test_only_named_rows_take_any_size(version: str) -> None:
    rows = [row for row in allow_list(TREE[version], SUPPORTED) if row.device == "frontend"]
    assert {row.name for row in rows if row.size is None} == {
        "NV_ESC_ATTACH_GPUS_TO_FD",
        "NV_ESC_CARD_INFO",
        "NV_ESC_EXPORT_TO_DMABUF_FD",
        "NV_ESC_RM_MAP_MEMORY_DMA",
        "NV_ESC_RM_UNMAP_MEMORY_DMA",
    }
    for row in rows:
        assert row.size is None or not row.in_release or row.size == row.size_in_release
    sizes = {row.name: row.size for row in rows}
    assert sizes["NV_ESC_RM_ALLOC"] == 48


@pytest.mark.parametrize("version", sampled(TREE))
def test_one_list_serves_every_release(version: str) -> None:
    """pkg/sentry/devices/nvproxy/seccomp_filters.go: 23 frontend and 33 UVM requests, 18 and 32 by default."""
    for caps, counts in ((SUPPORTED, (23, 33)), (DEFAULT, (18, 32)), (Caps(0), (0, 0))):
        rows = allow_list(TREE[version], caps)
        assert (sum(row.device == "frontend" for row in rows), sum(row.device == "uvm" for row in rows)) == counts
        assert [(row.request, row.mask) for row in rows] == [
            (row.request, row.mask) for row in allow_list(TREE.latest, caps)
        ]


def test_a_request_is_what_ioctl_is_given() -> None:
    rows = {row.name: row for row in allow_list(TREE["580.126.20"], SUPPORTED)}
    assert (rows["NV_ESC_RM_CONTROL"].request, rows["NV_ESC_RM_CONTROL"].mask) == (0xC020462A, 0xFFFFFFFF)
    assert (rows["NV_ESC_CARD_INFO"].request, rows["NV_ESC_CARD_INFO"].mask) == (0xC00046C8, 0xC000FFFF)
    assert (rows["UVM_INITIALIZE"].request, rows["UVM_INITIALIZE"].mask) == (0x30000001, 0xFFFFFFFF)


def test_a_uvm_command_encodes_no_size() -> None:
    """uvm_linux_ioctl.h: the request is the command's number."""
    rows = [row for row in allow_list(versions.load().find("580.126.20"), Caps(sum(Caps))) if row.device == "uvm"]
    assert {62, 63, 0x30000001} <= {row.number for row in rows}
    for row in rows:
        assert (row.size, row.request, row.mask) == (0, row.number, 0xFFFFFFFF)
        assert row.size_in_release == (0 if row.in_release else None)
