"""What `Import` does with whole files: which kind they are, from where they come, in what order several are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvproxy_model.trace.lines import TraceError
from nvproxy_model.trace.logs.kinds import Import

CTL = "/dev/nvidiactl"
OPENED = f'openat(AT_FDCWD, "{CTL}", O_RDWR) = 3\n'
SNIFFED = "UVM ioctl: request=0x1d [nr=0x1d] => ret=0\n"


def test_the_first_lines_decide(tmp_path: Path) -> None:
    """2000 of strace, then more of the sniffer."""
    log = tmp_path / "log"
    log.write_text(OPENED * 2000 + SNIFFED * 2500)
    source = Import(log)
    assert sum(record["k"] == "open" for record in source) == 2000
    assert source.kind == "strace"


def test_nothing_is_read_before_the_first_record_is_asked_for(tmp_path: Path) -> None:
    source = Import(tmp_path / "absent")
    assert (source.lines, source.kind, source.drivers) == (0, None, {})
    with pytest.raises(TraceError, match="absent: No such file or directory"):
        next(iter(source))


def test_standard_input(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(OPENED)
    saved = os.dup(0)
    try:
        with (tmp_path / "log").open() as file:
            os.dup2(file.fileno(), 0)
        assert [record["path"] for record in Import("-")] == [CTL]
        os.fstat(0)  # and it is left open
    finally:
        os.dup2(saved, 0)
        os.close(saved)


@pytest.mark.parametrize(("before", "timed"), [(100, True), (101, False)])
def test_a_time_stamp_is_looked_for_in_the_first_lines(before: int, timed: bool, tmp_path: Path) -> None:
    """Two threads of strace -ff: with time stamps the earlier goes first, and without them the order is as given."""
    for thread, second in ((1, 5), (2, 3)):
        (tmp_path / f"log.{thread}").write_text("x\n" * before + f"170000000{second}.5 {OPENED}")
    source = Import(tmp_path / "log.1", tmp_path / "log.2", kind="strace")
    assert [record["pid"] for record in source if record["k"] == "open"] == ([2, 1] if timed else [1, 2])
    assert [(line, text.partition(",")[0]) for line, text in source.problems.kept] == (
        [] if timed else [(0, "several files without time stamps")]
    )


def test_so_many_drivers_and_no_more(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"NVIDIA driver version: 580.{n}\n" for n in range(120)))
    source = Import(log, kind="nvproxy-log")
    assert list(source) == []
    assert list(source.drivers.values()) == list(range(1, 101))
