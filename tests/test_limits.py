"""The limits on what others write: the numbers in docs/threat-model.md are the code's, and what lies beyond each is said."""

from __future__ import annotations

import importlib
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvproxy_model.drivers.compare import pins
from nvproxy_model.drivers.gvisor.gosource import GoPackage
from nvproxy_model.drivers.sources import archives, open_source
from nvproxy_model.errors import NvproxyError, SourceError
from nvproxy_model.testing import conform
from nvproxy_model.trace.lines import Problems, lines, split
from nvproxy_model.trace.logs import strace
from nvproxy_model.trace.logs.prefixes import texts, utf8
from nvproxy_model.trace.record import spool
from tests import ROOT
from tests.trace.record.test_trace_spool import ENTER, frame, spooled

LIMITS = [
    ("trace.lines", "MAX_LINE", 1 << 20, "16 MiB a line"),
    ("trace.reader", "_KNOWN", 1 << 20, "64 MiB of lines"),
    ("trace.decode.decoder", "_KEPT", 1 << 20, "64 MiB of what decoding"),
    ("trace.judge.check", "_SAME", 1 << 20, "16 MiB of what judging"),
    ("trace.study.stats", "DISTINCT_LIMIT", 1, "100,000 distinct"),
    ("trace.devices", "_PROCESSES", 1, "65,536 processes"),
    ("trace.devices", "_DESCRIPTORS", 1, "262,144 changes"),
    ("trace.judge.replay", "_PROCESSES", 1, "4,096 processes"),
    ("trace.judge.replay", "_INHERITED", 1, "262,144 inherited descriptors"),
    ("tools.trace.decode", "_RELEASES", 1, "16 releases"),
    ("trace.logs.prefixes", "LINE_LIMIT", 1 << 20, "1 MiB a line"),
    ("trace.logs.strace", "_WAITING", 1, "2,048 interrupted calls"),
    ("trace.logs.strace", "_WAITING_TEXT", 1 << 10, "16 KiB each"),
    ("trace.logs.strace", "_DESCRIPTORS", 1, "262,144 open files"),
    ("trace.logs.nvproxy", "_TASKS", 1, "4,096 tasks"),
    ("trace.record.spool", "_LARGEST", 1 << 20, "3 MiB a frame"),
    ("trace.record.spool", "_PENDING", 1, "16,384 calls without an end"),
    ("trace.record.arguments", "_MAX_PARAMS", 1 << 20, "1 MiB of parameters"),
    ("drivers.sources.archives", "MAX_UNPACKED", 1 << 30, "1 GiB unpacked"),
    ("drivers.sources.archives", "MAX_MEMBERS", 1, "200,000 members"),
    ("drivers.sources.archives", "MAX_TREES", 1, "256 trees"),
    ("drivers.sources.archives", "MAX_EXTENSION", 1 << 10, "64 KiB an extended header"),
    ("drivers.sources.archives", "MAX_GLOBAL", 1 << 10, "4 KiB of global ones"),
    ("drivers.sources.archives", "MAX_EXTENSIONS", 1 << 20, "32 MiB of them in all"),
    ("drivers.sources.source", "MAX_HEADER", 1 << 20, "4 MiB a header"),
    ("drivers.sources.source", "MAX_FILES", 1, "20,000 files"),
    ("drivers.sources.source", "MAX_HEADERS", 1 << 20, "64 MiB of headers"),
    ("drivers.sources.repositories", "MAX_TAGS", 1, "20,000 tags"),
    ("drivers.sources.repositories", "MAX_COMMITS", 1, "500,000 commits"),
    ("drivers.sources.repositories", "GIT_SECONDS", 1, "300 s of processor time"),
    ("drivers.sources.repositories", "GIT_MEMORY", 1 << 30, "4 GiB"),
    ("drivers.parsing.processes", "CPU_SECONDS", 1, "60 s of processor time"),
    ("drivers.parsing.processes", "MEMORY", 1 << 30, "3 GiB"),
    ("drivers.parsing.headers", "MAX_MEMBERS", 1, "4,096 members"),
    ("drivers.yaml_file", "MAX_FILE", 1 << 20, "1 MiB, 100,000 pins"),
    ("drivers.compare.pins", "MAX_PINS", 1, "100,000 pins"),
    ("drivers.yaml_file", "MAX_DIGITS", 1, "80 digits"),
    ("drivers.gvisor.checkout", "MAX_FILE", 1 << 20, "4 MiB a file"),
    ("drivers.gvisor.checkout", "MAX_FILES", 1, "500 files"),
    ("drivers.gvisor.checkout", "MAX_PACKAGE", 1 << 20, "16 MiB a package"),
    ("drivers.gvisor.gosource", "MAX_DEPTH", 1, "60 levels"),
    ("drivers.gvisor.gosource", "MAX_BITS", 1, "512 bits"),
    ("drivers.gvisor.gosource", "MAX_LEAVES", 1, "200,000 members of a struct"),
    ("drivers.gvisor.tables", "MAX_STEPS", 1, "2,000,000 steps"),
    ("testing.conform", "MAX_BYTES", 1 << 20, "256 MiB"),
    ("session.events", "MAX_OS_EVENTS", 1, "16,384 OS events"),
]


@pytest.fixture(scope="module")
def table() -> str:
    return (ROOT / "docs" / "threat-model.md").read_text().partition("## Limits")[2]


@pytest.mark.parametrize(("module", "name", "unit", "words"), LIMITS, ids=str)
def test_the_table_has_the_code_s_numbers(module: str, name: str, unit: int, words: str, table: str) -> None:
    value = getattr(importlib.import_module(f"nvproxy_model.{module}"), name)
    assert words in table
    assert value % unit == 0
    assert f"{value // unit:,}" == words.split(maxsplit=1)[0]


def test_the_table_s_tests_exist(table: str) -> None:
    for row in table.splitlines():
        if row.startswith("| ") and "`" in row:
            last = row.split("|")[-2]
            named = [word for word in last.replace(",", " ").split("`") if word.strip().endswith(".py")]
            assert named, row
            folder = Path()
            for word in named:
                path = Path(word.strip())
                folder = path.parent if path.parent != Path() else folder
                assert (ROOT / folder / path.name).exists(), word


def _problems(reader: Callable[..., Iterator[Any]], data: bytes) -> list[str]:
    problems = Problems()
    for _ in reader(texts(split(utf8([data]), problems, 1 << 20)), problems):
        pass
    return [text for _, text in problems.kept]


def test_lines_beyond_the_limit_are_dropped_and_counted() -> None:
    problems = Problems()
    assert [line for _, line, _ in lines(io.BytesIO(b"ab\n" + b"x" * 9 + b"\ncd\n"), problems, 8)] == [b"ab", b"cd"]
    assert problems.kept == [(2, "a line of more than 8 bytes was dropped")]


OPENED = b'7 openat(AT_FDCWD, "/dev/nvidiactl", O_RDWR) = 3\n'


def test_interrupted_calls_of_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strace, "_WAITING", 2)
    log = OPENED + b"".join(b"%d ioctl(3, 0xc020462a <unfinished ...>\n" % (i + 7) for i in range(4))
    assert any("more than 2 interrupted calls" in text for text in _problems(strace.records, log))


def test_open_files_of_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strace, "_DESCRIPTORS", 2)
    log = b"".join(OPENED.replace(b"= 3", b"= %d" % (i + 3)) for i in range(4))
    assert any("more than 2 open files" in text for text in _problems(strace.records, log))


def test_frames_of_a_spool(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = Problems()
    begun = [frame(ENTER, b"/dev/nvidia0", id=i, time=i) for i in range(4)]
    monkeypatch.setattr(spool, "_PENDING", 2)
    assert len(list(spool.records(io.BytesIO(spooled(*begun)), problems, spool.Seen()))) == 2
    assert [text for _, text in problems.kept] == ["process 7: a call without its end"] * 2
    problems = Problems()
    large = frame(ENTER, b"/dev/nvidia0", ((0, bytes(3 << 20)),))
    assert list(spool.records(io.BytesIO(spooled(large)), problems, spool.Seen())) == []
    assert "a torn frame" in problems.kept[0][1]


def _archive(path: Path, *names: str) -> Path:
    with tarfile.open(path, "w") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 20
            archive.addfile(info, io.BytesIO(b"#define A 1111111111"))
    return path


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("MAX_MEMBERS", 1, "more than 1 members"),
        ("MAX_TREES", 1, "more than 1 trees"),
        ("MAX_HEADER", 19, "a header has at most 19"),
        ("MAX_UNPACKED", 1024, "unpack"),
    ],
)
def test_archives(name: str, value: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, name, value)
    inside = "src/common/sdk/nvidia/inc/nvos.h"
    path = _archive(tmp_path / "a.tar", f"a/{inside}", f"b/{inside}", *(f"c/{i}" for i in range(3)))
    with pytest.raises(SourceError, match=message):
        open_source(path)


@pytest.mark.parametrize(
    "text",
    [
        b"#" * ((1 << 20) + 1),
        b"pin: 1\nstructs:\n  A:\n    size: " + b"9" * 81,
        b"pin: 1\nstructs:\n  A:\n    size: 1" + b":1" * 1000,
        b"pin: 1\na: &a [x]\n" + b"structs:\n  A: *a\n",
    ],
)
def test_pins(text: bytes) -> None:
    with pytest.raises(pins.PinError) as error:
        pins.load(text)
    assert len(str(error.value)) < 300


def test_too_many_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "MAX_PINS", 2)
    text = b"pin: 1\nstructs:\n" + b"".join(b"  S%d:\n    size: 8\n" % i for i in range(4))
    with pytest.raises(pins.PinError, match="2 pins"):
        pins.load(text)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"const A = " + b"(" * 70 + b"1" + b")" * 70, "nested deeper than 60"),
        (b"const A = 1 << 500 * 1 << 100", "bits"),
        (b"const A = 1 << 600", "shift by 600"),
        (b"type A [300000]uint8\ntype B struct { A [300000]C }\ntype C struct { A, B uint8 }", ""),
    ],
)
def test_go(source: bytes, message: str) -> None:
    package = GoPackage("limits", {"a.go": b"package limits\n" + source})
    package.read_all()
    assert not message or any(message in str(unread) for unread in package.unread), package.unread


def test_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lzma

    monkeypatch.setattr(conform, "MAX_BYTES", 100)
    path = tmp_path / "v.json.xz"
    path.write_bytes(lzma.compress(b" " * 200))
    with pytest.raises(NvproxyError, match="more than 100 bytes"):
        conform.load(path)
