"""The map of descriptors against a plain dict, and what a fork bomb may cost."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvproxy_model.trace import devices
from nvproxy_model.trace.devices import DescriptorMap, Descriptors, device_kind, node
from nvproxy_model.trace.format import Record, record

FDS = st.integers(0, 70) | st.integers(0, 0x7FFFFFFF) | st.sampled_from((31, 32, 1023, 1024, 0x7FFFFFFF))


@given(
    st.lists(st.tuples(FDS, st.none() | st.sampled_from(("/dev/nvidia0", "/dev/nvidiactl"))), max_size=40), st.data()
)
def test_a_map_is_a_dict_whose_copies_are_free(changes: list[tuple[int, str | None]], data: st.DataObject) -> None:
    table, plain = DescriptorMap(), dict[int, str]()
    copies: list[tuple[DescriptorMap, dict[int, str]]] = []
    for fd, device in changes:
        if data.draw(st.booleans()):
            copies.append((table.copy(), dict(plain)))
        table.set(fd, device)
        plain.pop(fd, None)
        if device is not None:
            plain[fd] = device
        assert table.get(fd) == device
        assert (fd in table) == (device is not None)
    for got, want in [*copies, (table, plain)]:
        assert dict(got.items()) == want
        assert list(dict(got.items())) == sorted(want)
    assert table.get(-1) is None


def rec(**fields: object) -> Record:
    return record({"t": 0, "tid": 1, **fields}, 1)


def bomb(count: int) -> Descriptors:
    """A process with many open files, and as many children that each open one more."""
    fds = Descriptors()
    for fd in range(count):
        fds.feed(rec(k="open", pid=1, fd=fd, ret=fd, path="/dev/nvidia0"))
    for pid in range(2, count + 2):
        fds.feed(rec(k="process", pid=pid, ppid=1, how="fork"))
        fds.feed(rec(k="open", pid=pid, fd=count, ret=count, path="/dev/nvidiactl"))
    return fds


def test_a_fork_bomb_costs_what_it_does() -> None:
    """Twice the records cost about twice the memory: a copy of each table would be four times."""

    def peak(count: int) -> int:
        tracemalloc.start()
        fds = bomb(count)
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert dict(fds.of(count + 1).items()) == dict.fromkeys(range(count), "/dev/nvidia0") | {
            count: "/dev/nvidiactl"
        }
        return top

    peak(100)
    assert peak(2000) < 3 * peak(1000)


def test_the_limit_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_DESCRIPTORS", 10)
    fds = Descriptors()
    for fd in range(15):
        fds.feed(rec(k="open", pid=1, fd=fd, ret=fd, path="/dev/nvidia0"))
    assert (fds.dropped, len(dict(fds.of(1).items()))) == (5, 10)
    monkeypatch.setattr(devices, "_PROCESSES", 3)
    for pid in range(2, 8):
        fds.of(pid)
    assert fds.dropped > 5


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(("open", "close", "dup", "fork", "ioctl", "ask")),
        st.integers(1, 4),
        st.integers(0, 3),
        st.integers(1, 4),
    ),
    max_size=40,
)


@given(steps=_STEPS)
def test_the_quick_answer_is_the_table_s(steps: list[tuple[str, int, int, int]]) -> None:
    """Whatever was asked before: opens, closes, forks and the end of a process's table are seen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "_PROCESSES", 3)
        fds = Descriptors()
        for what, pid, fd, other in steps:
            if what == "fork":
                fds.feed(rec(k="process", pid=pid, ppid=other, how="fork"))
            elif what != "ask":
                ioctl = {"kind": "fe", "req": "0x1", "key": "0x1", "dev": "/dev/nvidia1"} if what == "ioctl" else {}
                path = {"path": "/dev/nvidia0"} if what == "open" else {}
                fds.feed(rec(k=what, pid=pid, fd=fd, ret=other if what == "dup" else 0, **ioctl, **path))
            assert fds.has(pid, fd) == (fd in fds.of(pid))
            assert fds.has(other, fd) == (fd in fds.of(other))


def test_what_a_close_and_a_dup_do() -> None:
    fds = Descriptors()
    fds.feed(rec(k="open", pid=1, fd=3, ret=3, path="/dev/nvidia0"))
    fds.feed(rec(k="close", pid=1, fd=3, ret=-1, err=9))
    fds.feed(rec(k="dup", pid=1, fd=3, ret=4))
    fds.feed(rec(k="dup", pid=1, fd=3, ret=-1, err=24))
    fds.feed(rec(k="close", pid=1, fd=3, ret=0))
    fds.feed(rec(k="open", pid=1, fd=-1, ret=-1, err=2, path="/dev/nvidia9"))
    fds.feed(rec(k="dup", pid=1, fd=77, ret=4))
    assert dict(fds.of(1).items()) == {}
    fds.feed(rec(k="fd", pid=1, fd=5, dev="/dev/nvidia-uvm"))
    fds.feed(rec(k="mmap", pid=1, fd=6, ret=0, dev="/dev/nvidia0"))
    assert (dict(fds.of(1).items()), fds.unseen) == ({5: "/dev/nvidia-uvm", 6: "/dev/nvidia0"}, 1)
    assert list(fds) == [(1, 5, "/dev/nvidia-uvm"), (1, 6, "/dev/nvidia0")]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/dev/nvidiactl", "frontend"),
        ("/dev/nvidia0", "frontend"),
        ("/dev/nvidia247", "frontend"),
        ("/dev/nvidia²", "other"),
        ("/dev/nvidia", "other"),
        ("nvidia0", "other"),
        ("/dev/nvidia-uvm", "uvm"),
        ("/dev/nvidia-uvm-tools", "other"),
        ("/dev/nvidia-caps/nvidia-cap1", "open-only"),
        ("/dev/nvidia-caps-imex-channels/channel0", "open-only"),
        (None, "other"),
    ],
)
def test_kinds_of_nodes(path: str | None, kind: str) -> None:
    assert device_kind(path) == kind


def test_a_node_that_is_no_path() -> None:
    assert node("socket:[71]") is None
    assert node("char 510:0") is None
    assert node("/home/dev/notes") == "/home/dev/notes"
