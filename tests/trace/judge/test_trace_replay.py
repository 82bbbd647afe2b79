"""The recorded programs through a session: nothing that the policy admits comes out otherwise."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from nvproxy_model.caps import SUPPORTED
from nvproxy_model.policy.policy import Policy
from nvproxy_model.trace.format import Record
from nvproxy_model.trace.judge import replay as module
from nvproxy_model.trace.judge.replay import Replay
from nvproxy_model.trace.reader import Reader

POLICY = Policy.for_driver("580.159.04", SUPPORTED)

# What the traces lack that the calls prove: descriptors that came from another process.
DESCRIPTORS = {"cuda-vmm-2": 1, "ncu-2": 1, "nsys-gpuctxsw-6": 1}


def run(trace: Path, policy: Policy = POLICY) -> tuple[Replay, dict[str, Any]]:
    replay = Replay(policy).feed(Reader(trace))
    return replay, replay.finish()


def test_nothing_diverges(trace: Path) -> None:
    replay, summary = run(trace)
    assert replay.divergences == []
    assert summary["skipped"] == 0
    assert summary["supplied"]["descriptors"] == DESCRIPTORS.get(trace.name.split(".")[0], 0)
    assert summary["calls"] == sum(
        rec.k == "ioctl" or (rec.k == "mmap" and "uvm" not in (rec.dev or "")) for rec in Reader(trace)
    )


def test_refused_handles_are_expected_where_the_host_refused_too(traces: dict[str, Path]) -> None:
    replay, _ = run(traces["event-buffer-chain"])
    assert len(replay.expected) == 5
    assert all(
        "notificationHandle" in step.text and "(EINVAL)" in step.text and step.text.endswith("the host: status 0x57")
        for step in replay.expected
    )


def test_refusals_are_listed_and_what_builds_on_them_goes_on(traces: dict[str, Path]) -> None:
    replay, summary = run(traces["torch-matmul"], Policy.for_driver("580.159.04", "compute,utility"))
    refused = {(step.kind, step.number) for step in replay.refused}
    assert {("alloc", 0xC639), ("alloc", 0xC640), ("fe", 0xD7)} <= refused
    assert replay.divergences == []
    assert summary["objects"] > 100


class _Lying(module._Recording):
    """A session whose host changes one byte of one answer."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line

    def ioctl(self, host_fd: int, request: int, arg: Any, /) -> int:
        error = super().ioctl(host_fd, request, arg)
        if self.rec is not None and self.rec.line == self.line and arg is not None:
            arg.data[8] ^= 1
        return error


@pytest.mark.parametrize("line", [2, 5])
def test_one_wrong_byte_is_a_divergence(line: int, traces: dict[str, Path]) -> None:
    replay = Replay(POLICY)
    replay._host = _Lying(line)
    replay.feed(Reader(traces["nvidia-smi"]))
    assert [step.line for step in replay.divergences][:1] == [line]


def test_a_forgotten_object_is_a_divergence(traces: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that drops what is below a freed object too early answers for it no more; the driver did."""
    from nvproxy_model.session.objects import Graph

    add = Graph.add

    def forget(self: Graph, client: int, handle: int, hclass: int, parent: int, deps: Any = (), **more: Any) -> Any:
        return None if hclass == 0x2080 else add(self, client, handle, hclass, parent, deps, **more)

    monkeypatch.setattr(Graph, "add", forget)
    replay, _ = run(traces["torch-matmul"])
    assert any("the driver still had object" in step.text for step in replay.divergences)


def test_an_object_too_many_is_a_divergence(traces: dict[str, Path]) -> None:
    replay = Replay(POLICY).feed(Reader(traces["torch-matmul"]))
    session = next(iter(replay._processes.values())).session
    client = next(iter(session.graph)).client
    session.graph.add(client, 0x7777, 0x3E, client)
    assert replay.finish()["divergences"] == 1


def test_a_descriptor_too_many_is_a_divergence(traces: dict[str, Path]) -> None:
    replay = Replay(POLICY).feed(Reader(traces["nvidia-smi"]))
    process = next(iter(replay._processes.values()))
    process.fds[99] = replay._file("/dev/nvidiactl")
    assert replay.finish()["divergences"] == 1


def test_truncated_and_missing_bytes_are_supplied_or_skipped(traces: dict[str, Path]) -> None:
    def without_bytes(rec: Record) -> Record:
        rec.top0 = rec.top1 = rec.par0 = rec.par1 = None
        return rec

    replay = Replay(POLICY).feed(map(without_bytes, Reader(traces["nvidia-smi"])))
    summary = replay.finish()
    assert summary["skipped"] > 80
    assert summary["divergences"] == 0


def test_a_hostile_size_ends(write: Any) -> None:
    """An OS descriptor of 2**50 bytes: the session looks at each of its pages, and the trace has none."""
    top = struct.pack("<IIIIIIQQI4xi4x", 1, 1, 2, 0x71, 0, 0, 0x7F0000000000, (1 << 50) - 1, 0, -1)
    call = '{"k":"ioctl","tid":5,"fd":3,"ret":0,"dev":"/dev/nvidiactl","req":"0xc0384627","kind":"fe","key":"0x27","top0":"%s"}\n'
    replay = Replay(POLICY).feed(Reader(write(call % top.hex())))
    assert replay.finish()["calls"] == 1


def test_a_fork_bomb_is_bounded(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptors that forks hand on are bounded; a child beyond that counts as one that could not be replayed."""
    monkeypatch.setattr(module, "_INHERITED", 100)
    opens = [f'{{"k":"open","tid":1,"pid":1,"fd":{fd},"ret":{fd},"path":"/dev/nvidia0"}}' for fd in range(3, 43)]
    forks = [f'{{"k":"process","tid":{pid},"pid":{pid},"how":"fork","ppid":1}}' for pid in range(2, 7)]
    head = '{"schema":"nvproxy-trace/1","driver":null}'
    replay = Replay(POLICY).feed(Reader(write("\n".join([head, *opens, *forks]) + "\n")))
    summary = replay.finish()
    assert (summary["skipped"], summary["descriptors"]) == (3, 40 * 3)


# By hand: what no recorded program did

OPENED = '{"k":"open","tid":5,"fd":3,"ret":3,"path":"/dev/nvidiactl"}'
MAPPED = '{"k":"mmap","tid":5,"fd":3,"ret":0,"dev":"/dev/nvidiactl","addr":0,"len":4096,"off":0}'
CALLED = '{"k":"ioctl","tid":5,"fd":3,"ret":0,"dev":"/dev/nvidiactl","req":"0xc020462a","kind":"control","key":"0x20800102"%s}'


def by_hand(write: Any, *lines: str) -> tuple[Replay, dict[str, Any]]:
    return run(write("\n".join(['{"schema":"nvproxy-trace/1","driver":null}', *lines]) + "\n"))


def test_opens(write: Any) -> None:
    """A device that nvproxy has not is refused, and one that failed is not open, whatever number is beside it."""
    replay, summary = by_hand(
        write,
        OPENED,
        '{"k":"open","tid":5,"fd":4,"ret":4,"path":"/dev/nvidia-uvm-tools"}',
        '{"k":"open","tid":5,"fd":5,"ret":-1,"path":"/dev/nvidia0","err":2}',
        '{"k":"open","tid":5,"fd":-1,"ret":-1,"path":"/dev/nvidia0"}',
    )
    assert replay.refusals == {("open", 0): 1}
    assert [step.text for step in replay.refused] == ["/dev/nvidia-uvm-tools: nvproxy gives a sandbox no such device"]
    assert summary["descriptors"] == 2


def test_a_call_on_no_descriptor_that_is_known_is_skipped(write: Any) -> None:
    call = '{"k":"ioctl","tid":5,"fd":-1,"ret":0,"dev":"/dev/nvidiactl","req":"0xc00846d6","kind":"fe","key":"0xd6","top0":"%s"}'
    _, summary = by_hand(write, call % ("00" * 8))
    assert (summary["calls"], summary["skipped"], summary["descriptors"]) == (1, 1, 0)


def test_a_mapping_of_what_may_have_been_skipped(write: Any) -> None:
    replay, summary = by_hand(write, OPENED, MAPPED)
    assert ["mmap of fd 3: errno" in step.text for step in replay.divergences] == [True]
    assert summary["skipped"] == 0
    replay, summary = by_hand(write, OPENED, CALLED % "", MAPPED)
    assert (replay.divergences, summary["skipped"]) == ([], 2)


def test_what_the_host_did_and_nvproxy_would_not_is_refused(traces: dict[str, Path]) -> None:
    """The five of the trace that the host refused as well, as if it had not: three name a descriptor that the program then had."""

    def done(rec: Record) -> Record:
        rec.status = None if rec.status == 0x57 else rec.status
        return rec

    replay = Replay(POLICY).feed(map(done, Reader(traces["event-buffer-chain"])))
    assert replay.expected == []
    assert sum("notificationHandle" in step.text for step in replay.refused) == 2
    assert replay.supplied["descriptors"] == 3


def test_memory_behind_the_argument_of_a_control_without_parameters(write: Any) -> None:
    top = struct.pack("<IIIIQII", 1, 1, 0x20800102, 0, 0x7000, 64, 0)
    replay, summary = by_hand(write, OPENED, CALLED % f',"top0":"{top.hex()}","bufs":[[16,"{bytes(64).hex()}"]]')
    assert (replay.refused, replay.divergences, summary["skipped"]) == ([], [], 0)
