"""What check says of the real traces equals a list worked out from the tables alone, number by number."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nvproxy_model import versions
from nvproxy_model.caps import SUPPORTED, Caps
from nvproxy_model.followed import is_pending
from nvproxy_model.policy.policy import Policy
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.judge import check as module
from nvproxy_model.trace.judge.check import Check, every_release, minimal_caps
from nvproxy_model.trace.judge.groups import GROUPS, MISSING
from nvproxy_model.trace.judge.notes import HARMLESS
from nvproxy_model.trace.reader import Reader

DRIVER = "580.159.04"
CALL = '{"k":"ioctl","t":1,"tid":5,"fd":3,"ret":0,"dev":"/dev/nvidiactl","req":"0xc020462a","kind":"%s","key":"%s"%s}\n'
CAPS = ("compute,utility", "compute,utility,profiling", "graphics", SUPPORTED)


def objects(trace: Path) -> Iterator[dict[str, Any]]:
    """The trace read by nothing of ours."""
    return map(json.loads, gzip.decompress(trace.read_bytes()).splitlines())


@cache
def distinct(trace: Path) -> Counter[tuple[str, str, int, str, bool]]:
    """(k, kind, number, device, whether the host refused) -> calls."""
    result: Counter[tuple[str, str, int, str, bool]] = Counter()
    for obj in objects(trace):
        if obj["k"] == "open":
            result["open", "open", 0, obj["path"], bool(obj.get("err"))] += 1
        elif obj["k"] == "ioctl":
            result["ioctl", obj["kind"], int(obj["key"], 16), obj["dev"], obj.get("status") in ("0x22", "0x56")] += 1
    return result


def from_tables(trace: Path, policy: Policy) -> Counter[tuple[str, str, int, str]]:
    """(group, kind, number, device) -> calls, by rows and capabilities: neither decisions nor bytes are looked at."""
    result: Counter[tuple[str, str, int, str]] = Counter()
    gate = policy.caps & (Caps.COMPUTE | Caps.UTILITY)
    table = {"fe": policy.frontend, "uvm": policy.uvm, "control": policy.control, "alloc": policy.alloc}
    hidden = ("/dev/nvidia-caps/", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
    for (k, kind, number, dev, same), count in distinct(trace).items():
        if k == "open":
            group = ("refused-outside-too" if same else "device") if dev.startswith(hidden) else "admitted"
            group = "harmless" if group == "device" and ("open", dev) in HARMLESS else group
            result[group, "open", 0, dev] += count
            continue
        if dev.startswith(hidden):
            result["device", kind, number, dev] += count
            continue
        rule = table[kind].get(number)
        if kind in ("control", "alloc") and not gate:
            group = "refused-outside-too" if same else "capability"
        elif kind == "control" and (number & 0x8000 or number >> 16 == 0x2081):
            group = "window"
        elif rule is None or is_pending(rule.later):
            group = "refused-outside-too" if same else "unknown"
        elif rule.rejected:
            group = "refused-outside-too" if same else "always-refused"
        elif rule.opt_in or not rule.caps & policy.caps:
            group = "refused-outside-too" if same else "capability"
        else:
            group = "admitted"
        group = "harmless" if group == "unknown" and (kind, number) in HARMLESS else group
        result[group, kind, number, ""] += count
    return result


def from_check(check: Check) -> Counter[tuple[str, str, int, str]]:
    result: Counter[tuple[str, str, int, str]] = Counter()
    for row in check.rows.values():
        # Arguments are judged by more than the tables: here they count as what the tables say of their number.
        group = (
            "admitted"
            if row.group == "argument" or (row.group == "refused-outside-too" and "no open file" in row.reason)
            else row.group
        )
        if row.count:
            result[group, row.kind, row.number, row.device or ""] += row.count
        for inner in row.under:
            result[inner.group, inner.kind, inner.number, row.device or ""] += inner.count
    return result


@pytest.mark.parametrize("caps", CAPS, ids=str)
def test_check_equals_the_list_from_the_tables(trace: Path, caps: Any, catalog: Catalog) -> None:
    policy = Policy.for_driver(DRIVER, caps)
    check = Check(policy, catalog).feed(Reader(trace))
    assert from_check(check) == from_tables(trace, policy)
    assert sum(group["calls"] for group in check.counts().values()) + sum(
        inner.count for row in check.rows.values() for inner in row.under
    ) == sum(obj["k"] in ("open", "ioctl") for obj in objects(trace))


def groups(check: Check, *names: str) -> set[tuple[str, int, str]]:
    return {(row.kind, row.number, row.device or "") for row in check.rows.values() if row.group in names}


def test_what_nsys_still_lacks_with_profiling(traces: dict[str, Path], catalog: Catalog) -> None:
    """The classes, the device, and the UVM tools calls that never reach dispatch; each with a sentence on whether it matters."""
    policy = Policy.for_driver(DRIVER, "compute,utility,profiling")
    missing: set[tuple[str, int, str]] = set()
    harmless: set[tuple[str, int, str]] = set()
    under: set[int] = set()
    for name in (f"nsys-gpuctxsw-{i}" for i in range(1, 7)):
        check = Check(policy, catalog).feed(Reader(traces[name]))
        for row in check.rows.values():
            if row.group in (*MISSING, "harmless"):
                assert row.note, row
                under |= {inner.number for inner in row.under}
        missing |= groups(check, *MISSING)
        harmless |= groups(check, "harmless")
    caps = ("/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2")
    assert missing == {("uvm", 77, ""), ("open", 0, "/dev/nvidia-uvm-tools")}
    assert harmless == {("alloc", 0xC639, ""), ("alloc", 0xC640, ""), *(("open", 0, path) for path in caps)}
    assert under == {57, 58, 76}


def test_the_silent_refusals_carry_their_sentence(traces: dict[str, Path], catalog: Catalog) -> None:
    check = Check(Policy.for_driver(DRIVER, "compute,utility"), catalog).feed(Reader(traces["nsys-gpuctxsw-3"]))
    row = next(row for row in check.rows.values() if (row.kind, row.number) == ("alloc", 0x90CD))
    assert row.group == "capability"
    assert row.caps == ("profiling",)
    assert "nothing says so" in (row.note or "")


def test_a_host_s_own_refusal_is_shown_and_not_missing(traces: dict[str, Path], catalog: Catalog) -> None:
    check = Check(Policy.for_driver(DRIVER, "compute,utility"), catalog).feed(Reader(traces["nsys-gpuctxsw-1"]))
    assert groups(check, "refused-outside-too") == {
        ("alloc", 0x73, ""),
        ("control", 0x2080123D, ""),
        ("open", 0, "/dev/nvidia-modeset"),
    }


def test_the_same_number_refused_and_answered_is_two_rows(write: Callable[..., Path], catalog: Catalog) -> None:
    line = CALL % ("control", "0x20800ffe", ',"status":"%s"')
    check = Check(Policy.for_driver(DRIVER), catalog).feed(
        Reader(write(line % "0x0" + line % "0x56" + line % "0x56" + line % "0x1f"))
    )
    assert {row.group: row.count for row in check.rows.values()} == {"unknown": 2, "refused-outside-too": 2}


def test_what_a_call_is_judged_by_is_looked_at_each_time(write: Callable[..., Path], catalog: Catalog) -> None:
    """The same line is admitted while the descriptor that it names is open, and refused once that is closed."""
    attach = CALL % ("fe", "0xc9", ',"err":%d,"top0":"07000000"')
    opened = '{"k":"open","t":1,"tid":1,"fd":7,"ret":7,"path":"/dev/nvidiactl"}\n'
    closed = '{"k":"close","t":1,"tid":1,"fd":7,"ret":0}\n'
    attach = attach.replace('"req":"0xc020462a"', '"req":"0xc00446c9"') % 22
    check = Check(Policy.for_driver(DRIVER), catalog).feed(Reader(write(opened + attach * 3 + closed + attach * 3)))
    assert {row.group: row.count for row in check.rows.values() if row.kind == "fe"} == {
        "admitted": 3,
        "refused-outside-too": 3,
    }


def test_a_call_inside_and_the_same_outside_are_counted_apart(write: Callable[..., Path], catalog: Catalog) -> None:
    head = '{"schema":"nvproxy-trace/1","driver":"%s","inside":%s}\n'
    call = (CALL % ("control", "0x20800301", ',"status":"0x0","pid":1')) * 3
    end = '{"k":"end","records":3}\n'
    source = Reader(write("".join(head % (DRIVER, inside) + call + end for inside in ("false", "true", "false"))))
    check = Check(Policy.for_driver(DRIVER), catalog)
    for rec in source:
        check.inside = source.header.inside
        check.one(rec)
    (row,) = check.rows.values()
    assert (row.host, row.sandbox) == ({"0x0": 6}, {"0x0": 3})


@pytest.mark.parametrize("same", [0, 20_000, 1 << 30])
def test_a_check_is_the_same_whatever_is_remembered(
    same: int, traces: dict[str, Path], catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "three.jsonl.gz"
    path.write_bytes(traces["ncu-2"].read_bytes() * 3)
    policy = Policy.for_driver(DRIVER)
    want = Check(policy, catalog)
    for rec in Reader(path):
        rec.said = None
        want.one(rec)
    monkeypatch.setattr(module, "_SAME", same)
    check = Check(policy, catalog).feed(Reader(path))
    assert [row.as_json() for row in check.sorted_rows()] == [row.as_json() for row in want.sorted_rows()]
    assert sum(len(said) for said, *_ in check._same if said is not None) <= same
    assert bool(check._same) == bool(same)


def test_descriptors_from_elsewhere_are_taken_as_live(traces: dict[str, Path], catalog: Catalog) -> None:
    policy = Policy.for_driver(DRIVER, SUPPORTED)
    supplied = {name: Check(policy, catalog).feed(Reader(path)).supplied for name, path in traces.items()}
    assert {name for name, count in supplied.items() if count} == {"cuda-vmm-2", "ncu-2", "nsys-gpuctxsw-6"}


def test_the_smallest_set_is_the_smallest(trace: Path, catalog: Catalog) -> None:
    """Against every subset, by checking the trace under each."""
    check = Check(Policy.for_driver(DRIVER, "compute,utility"), catalog).feed(Reader(trace))
    caps, _ = minimal_caps(check)
    single = [cap for cap in Caps if cap & SUPPORTED]

    def lacks(chosen: Caps) -> int:
        tables = from_tables(trace, Policy.for_driver(DRIVER, chosen))
        return sum(count for (group, *_), count in tables.items() if group == "capability")

    floor = lacks(SUPPORTED)
    sizes = [
        size
        for size in range(len(single) + 1)
        for chosen in itertools.combinations(single, size)
        if lacks(Caps(sum(chosen))) == floor
    ][:1]
    assert caps is not None
    assert len(caps.names) == sizes[0]
    assert lacks(caps) == floor


def test_all_drivers_agree_with_a_check_of_each(traces: dict[str, Path], catalog: Catalog) -> None:
    path = traces["nvidia-smi-q"]
    caps = "compute,graphics,utility,fabric-imex-mgmt"
    check = Check(Policy.for_driver(DRIVER, caps), catalog, drivers=every_release()).feed(Reader(path))
    assert list(check.drivers) == list(versions.load())
    for name in ("535.104.05", "550.90.12", "580.159.04", "620.06.00"):
        alone = Check(Policy.for_driver(name, caps, allow_unsupported=True), Catalog(name)).feed(Reader(path))
        refused = {(row.kind, row.number) for row in alone.rows.values() if row.group in MISSING and row.kind != "open"}
        assert set(check.drivers[name]) == refused, name


def test_verdicts(write: Callable[..., Path], catalog: Catalog) -> None:
    def verdict(*calls: tuple[str, str]) -> str:
        text = "".join(CALL % (*call, "") for call in calls)
        return Check(Policy.for_driver(DRIVER), catalog).feed(Reader(write(text))).verdict

    assert verdict(("control", "0x20800301")) == "admitted"
    assert verdict(("control", "0x20808157")) == "admitted"
    assert verdict(("fe", "0x2a")) == "cannot tell"
    assert verdict(("control", "0x20800301"), ("control", "0x20800ffe")) == "refused"
    assert verdict(("fe", "0x63")) == "refused"
    assert verdict(("fe", "0xd7")) == "admitted"
    assert verdict(("fe", "0x4e")) == "cannot tell"
    assert verdict(("alloc", "0xdead")) == "refused"
    assert verdict(("uvm", "0x7ffe")) == "refused"


def test_a_precedence_of_windows(write: Callable[..., Path], catalog: Catalog) -> None:
    line = CALL % ("control", "%s", "")
    check = Check(Policy.for_driver(DRIVER), catalog).feed(
        Reader(write("".join(line % key for key in ("0x20808157", "0x20810110", "0x20818001"))))
    )
    reasons = {row.number: row.reason for row in check.rows.values()}
    assert "RM_GSS_LEGACY_MASK" in reasons[0x20808157]
    assert "NV2081_BINAPI" in reasons[0x20810110]
    assert "RM_GSS_LEGACY_MASK" in reasons[0x20818001]
    assert {row.group for row in check.rows.values()} == {"window"}


def test_every_group_has_its_meaning() -> None:
    assert set(MISSING) < set(GROUPS)
