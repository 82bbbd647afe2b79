"""The format and its reader: every fault is reported by line, the rest is used, memory stays flat."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from nvproxy_model.trace import format as fmt
from nvproxy_model.trace import reader as reader_module
from nvproxy_model.trace.format import Header, printable, writing
from nvproxy_model.trace.lines import MAX_LINE
from nvproxy_model.trace.reader import Problems, Reader, TraceError, lines, parse

Write = Callable[..., Path]
OPEN = '{"k":"open","t":1,"tid":5,"fd":3,"ret":3,"path":"/dev/nvidiactl"}'
CONTROL = (
    '{"k":"ioctl","t":2,"tid":5,"fd":3,"ret":0,"dev":"/dev/nvidiactl","req":"0xc020462a","kind":"control","key":"0x102",'
    '"status":"0x0","top0":"%s"}' % ("00" * 32)
)
PACKERS = pytest.mark.parametrize(
    "pack", [gzip.compress, zstandard.compress, partial(bz2.compress, compresslevel=1), lzma.compress]
)
HEAD = '{"schema":"nvproxy-trace/1","driver":"580.126.20"}'


def read(path: Path) -> tuple[list[fmt.Record], Reader]:
    reader = Reader(path)
    return list(reader), reader


def test_the_real_traces_are_read_whole(trace: Path) -> None:
    records, reader = read(trace)
    assert reader.complete
    assert len(records) == gzip.decompress(trace.read_bytes()).count(b"\n")
    assert len({record.pid for record in records}) == 1


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_what_is_written_is_read_back(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"t.jsonl{ending}"
    objects = [json.loads(OPEN), json.loads(CONTROL)]
    head = Header(driver="580.126.20", arch="x86_64", recorder="preload", command=("a", "b"), values=False)
    with writing(path, head) as writer:
        for obj in objects:
            writer.put(obj)
    records, reader = read(path)
    assert [record.raw for record in records] == objects
    assert reader.complete
    assert reader.header.as_json() == head.as_json()
    assert path.read_bytes()[:2] == {"": b'{"', ".gz": b"\x1f\x8b", ".zst": b"\x28\xb5"}[ending]


def test_the_same_records_give_the_same_gzip_bytes(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        with writing(tmp_path / name, Header()) as writer:
            writer.put(json.loads(OPEN))
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


FAULTS = {
    "not JSON": ("{nonsense", "not one JSON object"),
    "two documents": (OPEN + OPEN, "not one JSON object"),
    "an array": ("[1]", "not a JSON object"),
    "a duplicate key": ('{"k":"open","k":"close","fd":1}', "stands twice"),
    "a duplicate key after a space": ('{"k" :"open","k":"close","fd":1}', "stands twice"),
    "an escaped duplicate key": ('{"k":"open","\\u006b":"close","fd":1}', "stands twice"),
    "odd hex": (CONTROL.replace('top0":"00', 'top0":"0'), "odd number of hex digits"),
    "no hex": (CONTROL.replace('top0":"00', 'top0":"zz'), "not hex"),
    "spaced hex": (CONTROL.replace('top0":"0000', 'top0":"00 00 '), "not hex"),
    "hex that is a number": ('{"k":"ioctl","req":"0x1","kind":"fe","key":"0x1","top0":7}', "not a hex string"),
    "a kind that is none": (CONTROL.replace('"control"', '"quux"'), "not a kind of ioctl"),
    "a record that is none": ('{"k":"quux"}', "not a kind of record"),
    "a number with signs": (CONTROL.replace('"0x102"', '"-0x102"'), "0x..."),
    "a number with an underscore": (CONTROL.replace('"0x102"', '"0x1_02"'), "0x..."),
    "a time out of range": (OPEN.replace('"t":1', '"t":1e99'), "not an integer"),
    "a boolean descriptor": (OPEN.replace('"fd":3', '"fd":true'), "not an integer"),
    "a huge descriptor": (OPEN.replace('"fd":3', '"fd":99999999999999999999'), "not an integer"),
    "another schema": ('{"schema":"nvproxy-trace/9"}', "is not nvproxy-trace/1"),
    "a lone surrogate": ('{"k":"open","path":"\\ud800","fd":1}', "JSON"),
    "bytes that are no UTF-8": (b'{"k":"open","path":"\xff","fd":1}', "JSON"),
    "deep nesting": ('{"k":"open","x":' + "[" * 5000 + "]" * 5000 + "}", ""),
    "buffers that are none": (CONTROL[:-1] + ',"bufs":[[1]]}', "bufs"),
    "nvproxy's words that are none": (CONTROL[:-1] + ',"refused":["unknown"]}', "refused is not a string"),
    "a buffer offset out of range": (CONTROL[:-1] + ',"bufs":[[-1,"00"]]}', "offset"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_line_is_reported_and_the_rest_used(name: str, write: Write) -> None:
    bad, said = FAULTS[name]
    text = bad if isinstance(bad, bytes) else bad.encode()
    records, reader = read(write(OPEN.encode() + b"\n" + text + b"\n" + CONTROL.encode() + b"\n"))
    assert [record.line for record in records] == [1, 3]
    assert [line for line, _ in reader.problems.kept] == [2]
    problem = reader.problems.texts("t")[0]
    assert said in problem
    assert "\n" not in problem
    assert len(problem) < 200


TIMED = {
    "as recorders write it": '{"t":%d,"d":%d,"tid":5,"fd":3,"ret":0,"k":"close"}',
    "the times last": '{"k":"close","tid":5,"fd":3,"t":%d,"d":%d}',
    "the times turned round": '{"k":"close","tid":5,"fd":3,"d":%d,"t":%d}',
    "no time in the call": '{"k":"close","t":%d,"tid":5,"fd":3,"ret":%d}',
    "no time": '{"k":"close","tid":5,"ret":%d,"fd":%d}',
    "a space": '{"k":"close","t": %d,"tid":5,"d":%d}',
    "spaces at the end": '{"k":"close","tid":5,"d":%d,"t":%d }  ',
    "a key that ends as the time's": '{"k":"close","a\\"t":%d,"t" :7,"tid":5,"d":%d}',
    "a text that looks like the time": '{"k":"close","x":"{\\"t\\":7,","t":%d,"tid":5,"d":%d}',
    "a time below another key": '{"k":"close","x":{"t":%d,"a":1},"tid":5,"t" :7,"d":%d}',
    "a time in a list": '{"k":"close","t":%d,"x":[{"a":1,"d":%d,"b":1}],"tid":5}',
    "a second time": '{"k":"close","t":%d,"tid":5,"d":1,"d":%d}',
    "no object": '"{,"t":%d,"d":%d}',
    "nothing at the end": '{"k":"close","t":%d,"tid":5,"d":%d',
    "no time in format 0": '{"k":"close","tid":5,"t":%d,"fl":%d}',
}
NUMBERS = ("0", "7", "12", "-1", "07", "1.0", "1e3", "null", "true", '"1"', "", "999999999999999999", str(1 << 63), str(1 << 64))


@pytest.mark.parametrize("known", [0, 3000, 1 << 20])
@pytest.mark.parametrize("name", TIMED)
def test_a_line_at_another_time_is_read_as_any_line(
    name: str, known: int, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reader remembers, and whatever stands where it takes a time to be."""
    monkeypatch.setattr(reader_module, "_KNOWN", known)
    template = TIMED[name].replace("%d", "%s")
    texts = [template % ("5", "6"), template % ("6", "5"), *(template % (a, b) for a in NUMBERS for b in NUMBERS), CONTROL, OPEN]
    want, faults = [], []
    for number, text in enumerate(texts, 1):
        try:
            want.append(fmt.record(parse(text.encode()), number))
        except ValueError as error:
            faults.append((number, str(error)))
    records, reader = read(write("\n".join(texts) + "\n"))
    names = [slot for slot in fmt.Record.__slots__ if slot not in ("said", "pid")]
    assert [[getattr(rec, slot) for slot in names] for rec in records] == [
        [getattr(rec, slot) for slot in names] for rec in want
    ]
    assert {rec.pid for rec in records} == {5}
    assert reader.problems.kept == faults[:100]
    assert reader.problems.count == len(faults)


def test_equal_lines_say_the_same(write: Write) -> None:
    later = CONTROL.replace('"t":2', '"t":9')
    other = CONTROL.replace('"fd":3', '"fd":4')
    long = CONTROL.replace('"top0":"', '"top0":"' + "00" * (1 << 15))
    records, _ = read(write("\n".join([CONTROL, later, CONTROL, other, other, long, long, long])))
    assert records[0].said is None, "a line that comes once needs no memory"
    assert records[1].said is records[2].said is not None
    assert records[4].said not in (None, records[1].said)
    assert {rec.said for rec in records[5:]} == {None}, "a long line is not remembered"
    last = '{"k":"close","tid":5,"fd":3%s}'
    for times in ((',"t":1', ',"t":2', ',"t":3'), (',"t":1,"d":1', ',"t":2,"d":2', ',"t":2,"d":1')):
        records, _ = read(write("\n".join(last % time for time in times)))
        assert records[1].said is records[2].said is not None


def test_a_record_that_is_changed_changes_no_other(write: Write) -> None:
    kept = None
    for rec in Reader(write((CONTROL + "\n") * 4)):
        assert (rec.key, rec.raw["key"]) == (0x102, "0x102")
        rec.key, rec.raw, kept = 7, {}, rec
    assert kept is not None


def test_a_torn_last_line_is_said_to_be_one(write: Write) -> None:
    records, reader = read(write(OPEN + "\n" + CONTROL[:40]))
    assert len(records) == 1
    assert reader.problems.kept == [(2, "a torn last line")]


def test_a_whole_last_line_needs_no_newline(write: Write) -> None:
    records, reader = read(write(OPEN + "\n" + CONTROL))
    assert len(records) == 2
    assert reader.complete


def test_a_missing_end_record_is_reported(write: Write) -> None:
    _, reader = read(write(HEAD + "\n" + OPEN + "\n"))
    assert "no end record" in reader.problems.texts("t")[0]


def test_an_end_record_that_counts_otherwise_is_reported(write: Write) -> None:
    _, reader = read(write(HEAD + "\n" + OPEN + "\n" + '{"k":"end","records":2}\n'))
    assert "1 records, but the end record says 2" in reader.problems.texts("t")[0]


def test_whole_traces_one_after_the_other_are_one(write: Write) -> None:
    one = HEAD + "\n" + OPEN + "\n" + '{"k":"end","records":1}\n'
    records, reader = read(write(one + one))
    assert len(records) == 2
    assert reader.complete


def test_mixed_drivers_are_said(write: Write) -> None:
    one = HEAD + "\n" + OPEN + "\n" + '{"k":"end","records":1}\n'
    _, reader = read(write(one + one.replace("580.126.20", "535.129.03")))
    assert list(reader.drivers) == ["580.126.20", "535.129.03"]
    assert reader.problems.kept == [(4, "driver 535.129.03 in a trace of 580.126.20")]


def test_the_driver_is_read_off_the_version_check(traces: dict[str, Path]) -> None:
    _, reader = read(traces["nvidia-smi"])
    assert reader.driver == "580.159.04"
    assert reader.drivers["580.159.04"] == 2


def test_concatenated_members_and_frames(write: Write) -> None:
    half = (OPEN + "\n").encode()
    other = (CONTROL + "\n").encode()
    for pack in (gzip.compress, zstandard.compress, bz2.compress, lzma.compress):
        packed = pack(half) + pack(other)
        records, reader = read(write(packed))
        assert [record.k for record in records] == ["open", "ioctl"]
        assert reader.complete


@PACKERS
def test_a_truncated_archive_gives_what_it_holds(pack: Callable[[bytes], bytes], write: Write) -> None:
    noise = "".join(f'{{"k":"close","t":{i * 7919 % 10007},"tid":5,"fd":{i}}}\n' for i in range(20000))
    packed = pack(noise.encode())
    records, reader = read(write(packed[: len(packed) // 2]))
    assert 1000 < len(records) < 20000
    assert "ends early" in " ".join(reader.problems.texts("t"))


@PACKERS
def test_damage_in_an_archive_is_one_line(pack: Callable[[bytes], bytes], write: Write) -> None:
    noise = random.Random(7)
    packed = bytearray(pack(((OPEN + "\n") * 50 + "x" * 3000 + noise.randbytes(4000).hex()).encode()))
    packed[len(packed) // 2 : len(packed) // 2 + 40] = noise.randbytes(40)
    try:
        _, reader = read(write(bytes(packed)))
    except TraceError as error:
        said = [str(error)]
    else:
        assert not reader.complete
        said = reader.problems.texts("t")
    assert said
    assert all(len(text) < 300 and "\n" not in text for text in said)


def test_nothing_is_an_error(write: Write, tmp_path: Path) -> None:
    for path in (write(""), write("\n\n"), tmp_path / "absent", tmp_path):
        with pytest.raises(TraceError):
            list(Reader(path))


def test_a_path_with_terminal_escapes_is_shown_harmless() -> None:
    assert printable("/dev/\x1b[2Jnvidia\u202e0\n") == "/dev/\\x1b[2Jnvidia\\u202e0\\n"
    assert printable("/dev/nvidia-ü") == "/dev/nvidia-ü"


def test_problems_are_counted_beyond_those_kept(write: Write) -> None:
    _, reader = read(write(OPEN + "\n" + "x\n" * 500))
    assert reader.problems.count == 500
    assert len(reader.problems.kept) == 100
    assert reader.problems.texts("t")[-1] == "t: 400 more problems"


def test_a_64_mib_line_and_a_long_file_take_flat_memory(tmp_path: Path) -> None:
    """A FIFO feeds what would be gigabytes: the reader's peak is measured in a process of its own."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def feed() -> None:
        with open(fifo, "wb") as out:
            out.write(b'{"k":"open","path":"')
            for _ in range(64):
                out.write(b"a" * (1 << 20))
            out.write(b'"}\n')
            block = (CONTROL + "\n").encode() * 1000
            for _ in range(200):
                out.write(block)

    feeder = threading.Thread(target=feed)
    feeder.start()
    program = (
        "import resource, sys; from nvproxy_model.trace.reader import Reader; r = Reader(sys.argv[1])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "n = sum(1 for _ in r)\n"
        "print(n, r.problems.count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    out = subprocess.run(
        [sys.executable, "-c", program, fifo], capture_output=True, text=True, check=True
    ).stdout.split()
    feeder.join()
    assert out[:2] == ["200000", "1"]
    assert int(out[2]) < 40 << 10


def test_a_bomb_is_read_in_pieces(write: Write) -> None:
    for pack in (gzip.compress, bz2.compress):
        reader = Reader(write(pack(b"a" * (3 * MAX_LINE)) + pack((OPEN + "\n").encode())))
        with pytest.raises(TraceError):
            list(reader)
        assert "more than" in reader.problems.texts("t")[0]


def test_xz_that_wants_more_memory_than_it_gets(write: Write) -> None:
    """Its header names a dictionary of 512 MiB."""
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 512 << 20}]
    reader = Reader(write(lzma.compress((OPEN + "\n").encode(), filters=filters)))
    with pytest.raises(TraceError):
        list(reader)
    assert "damaged xz data" in reader.problems.texts("t")[0]


def test_lines_are_those_of_split() -> None:
    import io

    data = b"one\n\ntwo\nthree"
    found = list(lines(io.BytesIO(data), Problems()))
    assert found == [(1, b"one", True), (2, b"", True), (3, b"two", True), (4, b"three", False)]


@given(st.binary(max_size=2000))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    import io

    problems, said = Problems(), []
    for number, line, _ in lines(io.BytesIO(data), problems):
        assert number >= 1
        try:
            fmt.record(parse(line), number)
        except ValueError as error:
            said.append(str(error))
    assert not any("\n" in text for text in said)


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
_RECORD = st.fixed_dictionaries(
    {"k": st.sampled_from(fmt.KINDS)},
    optional={
        name: _JSON | st.sampled_from(["0x1", "00", "control", "fe", "uvm", "alloc", "/dev/nvidiactl", 1])
        for name in (
            "t",
            "d",
            "tid",
            "pid",
            "fd",
            "ret",
            "err",
            "dev",
            "path",
            "req",
            "kind",
            "key",
            "status",
            "top0",
            "par0",
            "psize",
            "bufs",
            "fl",
        )
    },
)


@given(_RECORD)
def test_any_object_is_a_record_or_a_value_error(obj: dict[str, object]) -> None:
    try:
        record = fmt.record(obj, 1)
    except ValueError:
        return
    assert record.k == obj["k"]


@given(st.dictionaries(_TEXT, _JSON, max_size=5))
def test_an_object_with_unique_keys_is_parsed(obj: dict[str, object]) -> None:
    text = json.dumps(obj, ensure_ascii=False)
    assert parse(text.encode()) == json.loads(text)
