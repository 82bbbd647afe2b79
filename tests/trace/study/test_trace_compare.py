"""Counting and comparing: what two runs have in common is found whatever their handles and descriptors were."""

from __future__ import annotations

import gzip
import json
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.devices import Descriptors, device_kind
from nvproxy_model.trace.reader import Reader
from nvproxy_model.trace.study.census import Census, window
from nvproxy_model.trace.study.compare import compare, outcomes
from nvproxy_model.trace.study.scrub import scrub
from nvproxy_model.trace.study.stats import DISTINCT_LIMIT, Durations, Stats, Tally
from nvproxy_model.trace.study.values import Values, compare_values

Write = Callable[..., Path]


def lines(path: Path) -> list[dict[str, Any]]:
    return list(map(json.loads, gzip.decompress(path.read_bytes()).splitlines()))


def rewritten(
    path: Path, write: Write, change: Callable[[dict[str, Any]], dict[str, Any] | None], name: str = "b.jsonl"
) -> Path:
    new = [changed for obj in lines(path) if (changed := change(obj)) is not None]
    return write("".join(json.dumps(obj) + "\n" for obj in new), name)


def differences(a: Path, b: Path) -> list[tuple[str, str, int]]:
    return [(d.change, d.kind, d.number) for d in compare(outcomes(Reader(a)), outcomes(Reader(b)))]


def test_a_trace_equals_itself_with_other_handles_and_descriptors(trace: Path, write: Write) -> None:
    def other(obj: dict[str, Any]) -> dict[str, Any]:
        obj["fd"] = obj["fd"] + 40 if obj["fd"] >= 0 else -1
        if "top0" in obj and len(obj["top0"]) >= 8:
            obj["top0"] = "ffffffff" + obj["top0"][8:]
        for name in ("t", "tid", "va", "addr"):
            if name in obj:
                obj[name] += 7
        return obj

    assert differences(trace, rewritten(trace, write, other)) == []


def test_a_changed_status_behind_a_recycled_handle_is_found(traces: dict[str, Path], write: Write) -> None:
    """The one differing status of a profiler's two runs."""
    number = next(
        obj["key"]
        for obj in lines(traces["ncu-1"])
        if obj["k"] == "ioctl" and obj["kind"] == "control" and obj["status"] == "0x0"
    )
    done = []

    def change(obj: dict[str, Any]) -> dict[str, Any]:
        if obj.get("kind") == "control" and obj["key"] == number and not done:
            done.append(obj["key"])
            obj["status"] = "0x56"
        return obj

    assert differences(traces["ncu-1"], rewritten(traces["ncu-1"], write, change)) == [
        ("other-status", "control", int(number, 16))
    ]


def test_missing_added_and_recounted_calls(traces: dict[str, Path], write: Write) -> None:
    path = traces["nvidia-smi"]
    counts = Counter((obj["kind"], obj["key"]) for obj in lines(path) if obj["k"] == "ioctl")
    once = next(key for key, count in counts.items() if count == 1)
    often = next(key for key, count in counts.items() if count > 2)
    dropped = []

    def change(obj: dict[str, Any]) -> dict[str, Any] | None:
        key = (obj.get("kind"), obj.get("key"))
        if key == once or (key == often and not dropped.append(key) and len(dropped) == 1):  # type: ignore[func-returns-value]
            return None
        return obj

    assert differences(path, rewritten(path, write, change)) == [
        ("only-here", once[0], int(once[1], 16)),
        ("other-count", often[0], int(often[1], 16)),
    ]
    assert differences(rewritten(path, write, change), path)[0] == ("only-there", once[0], int(once[1], 16))


def test_opens_differ_by_path_and_error(write: Write) -> None:
    line = '{"k":"open","t":1,"tid":1,"fd":%d,"ret":%d,"path":"%s"%s}\n'
    a = write(line % (3, 3, "/dev/nvidia0", "") + line % (4, 4, "/dev/nvidia1", ""), "a")
    b = write(line % (9, 9, "/dev/nvidia0", "") + line % (-1, -1, "/dev/nvidia1", ',"err":13'), "b")
    found = compare(outcomes(Reader(a)), outcomes(Reader(b)))
    assert [(d.change, d.device, d.b) for d in found] == [("other-status", "/dev/nvidia1", {(None, 13): 1})]


def test_census_counts_windows_per_process(trace: Path) -> None:
    census = Census()
    census.feed("x", Reader(trace))
    want = Counter((obj["kind"], int(obj["key"], 16)) for obj in lines(trace) if obj["k"] == "ioctl")
    assert {(row["kind"], row["number"]): row["count"] for row in census.rows()} == want
    calls = sum(
        count
        for (kind, number), count in want.items()
        if kind == "control" and (number & 0x8000 or number >> 16 == 0x2081)
    )
    assert sum(entry[name]["calls"] for entry in census.windows() for name in ("legacy-gss", "binapi", "both")) == calls


def test_windows_have_a_fixed_precedence() -> None:
    assert [window(n) for n in (0x20808157, 0x20810110, 0x20818001, 0x20800301)] == [
        "legacy-gss",
        "binapi",
        "both",
        None,
    ]


def test_stats_agree_with_a_plain_count(trace: Path) -> None:
    stats = Stats(5).feed(Reader(trace))
    objs = lines(trace)
    assert stats.ioctls == sum(obj["k"] == "ioctl" for obj in objs)
    assert stats.span == max(obj["t"] + obj["d"] for obj in objs) - min(obj["t"] for obj in objs)
    for kind in ("control", "alloc", "fe", "uvm"):
        times = [obj["d"] for obj in objs if obj["k"] == "ioctl" and obj["kind"] == kind]
        if times:
            durations = stats.by_kind[kind]
            assert (durations.count, durations.total, durations.max) == (len(times), sum(times), max(times))
            assert durations.quantile(0.5) == pytest.approx(statistics.median_low(times), rel=0.04)
    slowest = sorted(((obj["d"], -line) for line, obj in enumerate(objs, 1)), reverse=True)[:5]
    assert [(ns, -line) for ns, line, _, _ in stats.slowest()] == slowest


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=200), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_a_quantile_is_right_to_three_percent(values: list[int], q: float) -> None:
    durations = Durations()
    for value in values:
        durations.add(value)
    exact = sorted(values)[int(q * (len(values) - 1))]
    assert exact * (1 - 1 / 32) <= durations.quantile(q) <= exact


def test_a_tally_is_bounded() -> None:
    tally = Tally()
    for number in range(DISTINCT_LIMIT + 10):
        tally.hit(number)
    tally.hit(5)
    assert (len(tally), tally.overflow, tally[5]) == (DISTINCT_LIMIT, 10, 2)


def test_descriptors_follow_dup_close_and_fork(write: Write) -> None:
    text = [
        '{"k":"process","tid":1,"pid":1,"how":"exec","ppid":0}',
        '{"k":"open","tid":1,"pid":1,"fd":3,"ret":3,"path":"/dev/nvidiactl"}',
        '{"k":"dup","tid":1,"pid":1,"fd":3,"ret":7}',
        '{"k":"process","tid":2,"pid":2,"how":"fork","ppid":1}',
        '{"k":"close","tid":1,"pid":1,"fd":3,"ret":0}',
        '{"k":"ioctl","tid":2,"pid":2,"fd":9,"ret":0,"dev":"/dev/nvidia0","req":"0x1","kind":"fe","key":"0x1"}',
    ]
    fds = Descriptors()
    for rec in Reader(write("\n".join(text) + "\n")):
        fds.feed(rec)
    assert dict(fds.of(1).items()) == {7: "/dev/nvidiactl"}
    assert dict(fds.of(2).items()) == {3: "/dev/nvidiactl", 7: "/dev/nvidiactl", 9: "/dev/nvidia0"}
    assert fds.unseen == 1


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/dev/nvidiactl", "frontend"),
        ("/dev/nvidia12", "frontend"),
        ("/dev/nvidia-uvm", "uvm"),
        ("/dev/nvidia-uvm-tools", "other"),
        ("/dev/nvidia-caps/nvidia-cap1", "open-only"),
        ("/dev/nvidia-caps-imex-channels/channel0", "open-only"),
        ("/dev/nvidia-modeset", "other"),
        ("/dev/nvidia", "other"),
        (None, "other"),
    ],
)
def test_kinds_of_devices(path: str | None, kind: str) -> None:
    assert device_kind(path) == kind


CONTROL = (
    '{"k":"ioctl","tid":1,"fd":3,"ret":0,"dev":"/dev/nvidiactl","req":"0xc020462a","kind":"control",'
    '"key":"0x20808888","par0":"%s"}\n'
)
UUID = bytes(range(0x30, 0x40))
TEXT = b"GPU-30313233-3435-3637-3839-3a3b3c3d3e3f"


def test_scrubbing_replaces_and_still_compares_and_replays(trace: Path, tmp_path: Path, catalog: Catalog) -> None:
    from nvproxy_model.caps import SUPPORTED
    from nvproxy_model.policy.policy import Policy
    from nvproxy_model.trace.judge.replay import Replay

    out = tmp_path / "clean.jsonl.gz"
    reader, scrubber = scrub(trace, out, catalog)
    assert reader.complete
    assert differences(trace, out) == []
    replay = Replay(Policy.for_driver("580.159.04", SUPPORTED)).feed(Reader(out))
    replay.finish()
    assert replay.divergences == []
    old = {obj["va"] for obj in lines(trace) if obj["k"] == "mmap" and obj["va"]}
    new = {rec.raw["va"] for rec in Reader(out) if rec.k == "mmap"}
    assert not old & new
    assert scrubber.replaced or not old


def test_scrubbing_finds_uuids_in_both_forms(write: Write, tmp_path: Path, catalog: Catalog) -> None:
    """The text form names it; from then on its 16 bytes are found wherever they stand, before it too."""
    params = bytes(8) + UUID + bytes(8)
    line = CONTROL
    source = write(line % params.hex() + line % (b"xx" + TEXT + b"\0\0").hex())
    out = tmp_path / "clean.jsonl"
    _, scrubber = scrub(source, out, catalog)
    text = out.read_text()
    assert UUID.hex() not in text
    assert TEXT.hex() not in text
    assert len(scrubber.uuids) == 1
    records = list(Reader(out))
    assert records[0].par0[8:24].hex() == records[1].par0[6:42].replace(b"-", b"").decode()  # type: ignore[index]


def test_scrubbing_keeps_distinct_values_distinct(write: Write, tmp_path: Path, catalog: Catalog) -> None:
    line = CONTROL
    source = write(line % TEXT.hex() + line % TEXT.replace(b"30313233", b"40313233").hex() + line % TEXT.hex())
    out = tmp_path / "clean.jsonl"
    scrub(source, out, catalog)
    a, b, c = (rec.par0 for rec in Reader(out))
    assert a == c
    assert a != b


def test_values_differ_only_where_no_role_explains_it(traces: dict[str, Path], write: Write, catalog: Catalog) -> None:
    """Two processes of the same program: after roles are left out, what differs is theirs; one changed field is found."""
    path = traces["nvidia-smi"]
    same = Values(catalog).feed(Reader(path))
    assert compare_values(same, Values(catalog).feed(Reader(path))) == []

    def change(obj: dict[str, Any]) -> dict[str, Any]:
        if obj.get("key") == "0x21b" and obj["kind"] == "control":
            obj["par1"] = obj["par1"][:20] + "0700"
        if obj.get("kind") == "alloc" and obj["key"] == "0x80" and "par0" in obj:
            obj["par0"] = obj["par0"][:8] + "78563412" + obj["par0"][16:]
        return obj

    (found,) = compare_values(same, Values(catalog).feed(Reader(rewritten(path, write, change))))
    assert (found.number, found.path, found.a, found.b) == (0x21B, "slot", (6,), (7,))
