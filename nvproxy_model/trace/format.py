"""The trace format, ``nvproxy-trace/1``: one JSON object a line, plain, gzip or zstd. docs/trace-format.md is its text.

A trace without a header line (format 0) is read too: it is the same records as one process wrote them.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, Literal, cast, get_args

from nvproxy_model.files import replacing
from nvproxy_model.printable import escaped_json, printable
from nvproxy_model.trace.lines import MAX_LINE, Problems

__all__ = [
    "AUTHORS",
    "IOCTL_KINDS",
    "KINDS",
    "MAX_LINE",
    "SCHEMA",
    "TRUNCATED",
    "UNFINISHED",
    "Author",
    "CallKind",
    "Header",
    "IoctlKind",
    "Record",
    "RecordKind",
    "Writer",
    "printable",
    "require_writer",
    "writing",
]

SCHEMA: Final = "nvproxy-trace/1"
"""What the header of a trace names."""

RecordKind = Literal["process", "open", "fd", "ioctl", "mmap", "close", "dup", "exec", "end", "lost"]
"""The kind of event that a record describes."""
KINDS: Final[tuple[RecordKind, ...]] = get_args(RecordKind)
"""The ``k`` of a record."""

IoctlKind = Literal["fe", "control", "alloc", "uvm", "other"]
"""What an ioctl's number counts."""
IOCTL_KINDS: Final[tuple[IoctlKind, ...]] = get_args(IoctlKind)
"""The ``kind`` of an ioctl: frontend escape, RM control command, RM allocation class, UVM command, another device's."""

CallKind = Literal[RecordKind, IoctlKind]
"""What was called, an ioctl by its own kind."""

TRUNCATED: Final = 1
"""A bit of a record's ``fl``: parameters were cut at the recorder's bound."""
SIZE_BY_TABLE: Final = 2
"""A bit of ``fl``: the size of the parameters came from a table, because the call does not say it."""
UNFINISHED: Final = 4
"""A bit of ``fl``: the call's end is not in the trace. Its process ended inside it, or the end was lost (then a ``lost``
record says so)."""

Author = Literal["nvproxy", "driver", "permission"]
"""Who refused a call."""
AUTHORS: Final[tuple[Author, ...]] = get_args(Author)
"""Who can refuse a call: nvproxy itself, the host's driver, or the rights on a device node (file mode, cgroup, LSM, no node)."""

_LOST: Final = 128
"""Reasons that one ``lost`` record holds."""

_ZSTD: Final = (".zst", ".zstd")


class Header:
    """What a header line says of the records after it."""

    __slots__ = ("arch", "command", "driver", "inside", "recorder", "schema", "values")

    def __init__(
        self,
        *,
        schema: str = SCHEMA,
        driver: str | None = None,
        arch: str | None = None,
        recorder: str | None = None,
        command: tuple[str, ...] = (),
        values: bool = True,
        inside: bool = False,
    ) -> None:
        self.schema = schema
        self.driver = driver
        """The release that answered, as the recorder or the log named it; None when neither did."""
        self.arch = arch
        self.recorder = recorder
        """``preload``, ``seccomp``, ``strace``, ``nvproxy-log``, ``ioctl-sniffer``; None in format 0."""
        self.command = command
        self.values = values
        """False when the recorder left bytes out (``--no-values``)."""
        self.inside = inside
        """True when the program ran inside a sandbox, so that nvproxy answered it and not the host's driver alone."""

    def as_json(self) -> dict[str, Any]:
        """The first line of a trace."""
        return {
            "schema": self.schema,
            "driver": self.driver,
            "arch": self.arch,
            "recorder": self.recorder,
            "command": list(self.command),
            "values": self.values,
            **({"inside": True} if self.inside else {}),
        }


class Record:
    """One line of a trace. Absent facts are None; ``pid`` is the first thread's in format 0, whose files hold one process each."""

    __slots__ = (
        "bufs",
        "by",
        "d",
        "dev",
        "err",
        "fd",
        "fl",
        "k",
        "key",
        "kind",
        "line",
        "par0",
        "par1",
        "pid",
        "psize",
        "raw",
        "refused",
        "req",
        "ret",
        "said",
        "status",
        "t",
        "tid",
        "top0",
        "top1",
    )

    line: int
    """Where it stands in the file, from 1."""
    k: RecordKind
    t: int
    d: int | None
    """Nanoseconds in the call."""
    pid: int
    tid: int
    fd: int
    ret: int | None
    err: int
    dev: str | None
    """The device node behind ``fd``; for an open, the path."""
    req: int
    kind: Literal[IoctlKind, ""]
    """What kind of ioctl; "" for another record."""
    key: int
    status: int | None
    top0: bytes | None
    """The argument struct before the call, and after it where it changed."""
    top1: bytes | None
    par0: bytes | None
    par1: bytes | None
    psize: int | None
    """The size of the parameters where that is more than what was kept."""
    bufs: tuple[tuple[int, bytes, bytes | None], ...]
    """Buffers behind pointers of the parameters: offset of the pointer, bytes before, bytes after where they changed."""
    fl: int
    refused: str | None
    """nvproxy's own words for a refusal, in a trace imported from its log."""
    by: Author | None
    """Who refused the call, one of AUTHORS, where the log says so itself. None: nobody refused it, or the answer must tell."""
    raw: Mapping[str, Any]
    said: bytes | None
    """Its line without ``t`` and ``d``, if the reader has seen one like it before: records of equal ones differ in their place,
    times and, in format 0, process alone. What was found out about a record may be remembered by it: who changes a record sets
    it to None.
    """

    def again(self, line: int, t: int, d: int | None) -> Record:
        """The record of a line that says the same at another time. ``d``: None where the line has its time in the call elsewhere,
        or none.
        """
        rec = Record()
        rec.line, rec.t = line, t
        rec.raw = {**self.raw, "t": t} if d is None else {**self.raw, "t": t, "d": d}
        rec.d = self.d if d is None else d
        rec.said, rec.k, rec.pid, rec.tid, rec.fd, rec.dev = self.said, self.k, self.pid, self.tid, self.fd, self.dev
        rec.ret, rec.err, rec.by, rec.refused, rec.fl = self.ret, self.err, self.by, self.refused, self.fl
        rec.kind, rec.req, rec.key, rec.status, rec.psize = self.kind, self.req, self.key, self.status, self.psize
        rec.top0, rec.top1, rec.par0, rec.par1, rec.bufs = self.top0, self.top1, self.par0, self.par1, self.bufs
        return rec

    @property
    def number(self) -> tuple[CallKind, int]:
        """What was called: ``("control", 0x20800301)``, ``("open", 0)``."""
        return self.kind or self.k, self.key

    @property
    def top(self) -> bytes | None:
        """The argument struct after the call."""
        return self.top1 if self.top1 is not None else self.top0

    @property
    def par(self) -> bytes | None:
        """The parameters after the call."""
        return self.par1 if self.par1 is not None else self.par0


def _bounded(value: Any, what: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{what} is not an integer from {low} to {high}")
    return value


class _Numbers(dict[str, int]):
    """``0x2a`` -> 42, remembered: a trace writes the same few requests, commands and statuses over and over."""

    def __missing__(self, text: Any) -> int:
        if type(text) is not str or not text.startswith("0x") or len(text) > 18 or "_" in text:
            raise ValueError
        number = int(text, 16)
        if len(self) >= _NUMBERS:
            self.clear()
        self[text] = number
        return number


_NUMBERS: Final = 1 << 12
_numbers: Final = _Numbers()


def _number(obj: Mapping[str, Any], what: str) -> int:
    try:
        return _numbers[obj[what]]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f'{what} is not a number written "0x..."') from None


def _hex(text: Any, what: str) -> bytes:
    try:
        data = bytes.fromhex(text)
    except TypeError:
        raise ValueError(f"{what} is not a hex string") from None
    except ValueError:
        data = b""
    if len(data) * 2 != len(text):  # fromhex skips white space
        raise ValueError(f"{what} has an odd number of hex digits" if len(text) % 2 else f"{what} is not hex")
    return data


_NAME_LIMIT: Final = 4096
_I64: Final = (1 << 63) - 1


def record(obj: Mapping[str, Any], line: int) -> Record:
    """The record of one parsed line. ValueError, in one line, for an object that is none."""
    rec = Record()
    rec.raw = obj
    rec.line = line
    rec.said = None
    get = obj.get
    k = get("k")
    if k not in KINDS:
        raise ValueError("k is not a kind of record" if k is not None else "an object without k is not a record")
    rec.k = k
    t = get("t", 0)
    tid = get("tid", 0)
    pid = get("pid", tid)
    fd = get("fd", -1)
    if not (type(t) is type(tid) is type(pid) is type(fd) is int):
        raise ValueError("t, tid, pid or fd is not an integer")
    if not (-_I64 <= t <= _I64 and 0 <= tid <= 0x7FFFFFFF and 0 <= pid <= 0x7FFFFFFF and -_I64 <= fd <= 0x7FFFFFFF):
        raise ValueError("t, tid, pid or fd is out of range")
    rec.t, rec.tid, rec.pid, rec.fd = t, tid, pid, fd
    d, ret, err = get("d"), get("ret"), get("err", 0)
    rec.d = d if d is None else _bounded(d, "d", 0, _I64)
    rec.ret = ret if ret is None else _bounded(ret, "ret", -_I64, _I64)
    rec.err = 0 if err == 0 else _bounded(err, "err", 0, 4095)
    by = get("by")
    if by is not None and by not in AUTHORS:
        raise ValueError(f"by is not one of {', '.join(AUTHORS)}")
    rec.by = by
    refused = get("refused")
    if refused is not None and type(refused) is not str:
        raise ValueError("refused is not a string")
    rec.refused = refused
    rec.fl = _bounded(obj["fl"], "fl", 0, 0xFFFF) if "fl" in obj else 0
    dev = get("dev") or get("path")
    if dev is not None and (not isinstance(dev, str) or len(dev) > _NAME_LIMIT):
        raise ValueError("dev or path is not a string of a path's length")
    rec.dev = dev
    if k == "ioctl":
        kind = get("kind")
        if kind not in IOCTL_KINDS:
            raise ValueError("kind is not a kind of ioctl")
        rec.kind = kind
        rec.req = _number(obj, "req")
        rec.key = _number(obj, "key")
        rec.status = _number(obj, "status") if "status" in obj else None
        top0, top1, par0, par1 = get("top0"), get("top1"), get("par0"), get("par1")
        rec.top0 = None if top0 is None else _hex(top0, "top0")
        rec.top1 = None if top1 is None else _hex(top1, "top1")
        rec.par0 = None if par0 is None else _hex(par0, "par0")
        rec.par1 = None if par1 is None else _hex(par1, "par1")
        rec.psize = _bounded(obj["psize"], "psize", 0, 0xFFFFFFFF) if "psize" in obj else None
        rec.bufs = _bufs(obj["bufs"]) if "bufs" in obj else ()
        return rec
    if k == "lost":
        why = get("why")
        if not isinstance(why, list) or not 0 < len(why) <= _LOST or not all(isinstance(text, str) for text in why):
            raise ValueError("why is not a list of reasons")
    rec.kind = ""
    rec.req = rec.key = 0
    rec.status = rec.psize = None
    rec.top0 = rec.top1 = rec.par0 = rec.par1 = None
    rec.bufs = ()
    return rec


def _bufs(value: Any) -> tuple[tuple[int, bytes, bytes | None], ...]:
    if not isinstance(value, list) or len(value) > 64:
        raise ValueError("bufs is not a list of at most 64 buffers")
    result = []
    for item in value:
        if not isinstance(item, list) or len(item) not in (2, 3):
            raise ValueError("bufs holds something else than [offset, before] or [offset, before, after]")
        offset = _bounded(item[0], "a buffer's offset", 0, 0xFFFFFFFF)
        after = _hex(item[2], "a buffer") if len(item) == 3 else None
        result.append((offset, _hex(item[1], "a buffer"), after))
    return tuple(result)


def header(obj: Mapping[str, Any]) -> Header:
    """The header of one parsed line with a ``schema``. ValueError for one that this reader does not know."""
    if obj.get("schema") != SCHEMA:
        raise ValueError(f"schema {printable(str(obj.get('schema'))[:60])!r} is not {SCHEMA}")
    texts: dict[str, str | None] = {}
    for name in ("driver", "arch", "recorder"):
        text = obj.get(name)
        if text is not None and (not isinstance(text, str) or len(text) > 64):
            raise ValueError(f"the header's {name} is not a short string")
        texts[name] = text
    command = obj.get("command", [])
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise ValueError("the header's command is not a list of strings")
    flags = {"values": obj.get("values", True), "inside": obj.get("inside", False)}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(f"the header's {name} is not true or false")
    return Header(
        driver=texts["driver"],
        arch=texts["arch"],
        recorder=texts["recorder"],
        command=tuple(command),
        **flags,
    )


class Writer:
    """Writes one trace: the header at once; when closed ``end`` with the count, or ``lost`` where something is missing."""

    def __init__(self, out: IO[bytes], head: Header, raw: IO[bytes] | None = None) -> None:
        import orjson

        self._raw = raw
        self._dumps = orjson.dumps
        self._option = orjson.OPT_APPEND_NEWLINE
        self._out = out
        self._lost: list[str] = []
        self.records = 0
        self._write(head.as_json())

    def _write(self, obj: Mapping[str, Any]) -> None:
        try:
            line = self._dumps(obj, option=self._option)
        except TypeError:
            # Arguments and paths are bytes; Python shows those that are not UTF-8 as surrogates, which JSON cannot hold.
            line = self._dumps(_utf8(obj), option=self._option)
        self._out.write(escaped_json(line))

    def put(self, obj: Mapping[str, Any]) -> None:
        """One record, as its JSON object."""
        self._write(obj)
        self.records += 1

    def flush(self) -> None:
        """Everything up to here into the file, for a writer that may be killed."""
        self._out.flush()
        if self._raw is not None:
            self._raw.flush()

    def lose(self, problems: Problems) -> None:
        """What should be in the trace and is not. With any, every reader reports the trace as incomplete."""
        found = [f"line {line}: {text}" if line else text for line, text in problems.kept]
        if problems.count > len(problems.kept):
            found.append(f"{problems.count - len(problems.kept)} more")
        self._lost += found[: _LOST - len(self._lost)]

    def end(self) -> None:
        """The last line. Without any a reader says that the trace is incomplete, too."""
        if self._lost:
            self._write({"k": "lost", "records": self.records, "why": self._lost})
        else:
            self._write({"k": "end", "records": self.records})


def _utf8(value: Any) -> Any:
    """The same with every string that is not Unicode shown with ``\\xNN`` for the bytes that are not UTF-8."""
    if isinstance(value, str):
        try:
            data = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            data = value.encode("utf-8", "surrogatepass")
        return data.decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        return {_utf8(key): _utf8(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_utf8(item) for item in value]
    return value


def require_writer(path: Path | str) -> None:
    """Raises ModuleNotFoundError for what `writing` to ``path`` would miss: before a program runs whose trace it is to be."""
    import orjson  # noqa: F401

    if Path(path).suffix in _ZSTD:
        import zstandard  # noqa: F401


@contextmanager
def writing(path: Path | str, head: Header, *, inputs: Iterable[Path | str] | None = None) -> Iterator[Writer]:
    """A writer of ``path``: gzip or zstd by its ending (``.gz``, ``.zst``), plain otherwise.

    With ``inputs``, the files that are read meanwhile, ``path`` is replaced as a whole at the end (`files.replacing`); without,
    it is written in place, so that a recorder that is killed leaves what it had. Raises OSError as open(2) gives it.
    """
    require_writer(path)
    with _in_place(path) if inputs is None else replacing(path, inputs) as raw, _packed(raw, Path(path).suffix) as out:
        writer = Writer(out, head, raw)
        yield writer
        writer.end()


@contextmanager
def _in_place(path: Path | str) -> Iterator[IO[bytes]]:
    with open(path, "wb") as out:
        yield out


@contextmanager
def _packed(raw: IO[bytes], suffix: str) -> Iterator[IO[bytes]]:
    if suffix == ".gz":
        # No name and no time: the same records give the same bytes.
        out = cast("IO[bytes]", gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0))
    elif suffix in _ZSTD:
        import zstandard

        out = zstandard.ZstdCompressor(level=6).stream_writer(raw, closefd=False)
    else:
        yield raw
        return
    try:
        yield out
    finally:
        out.close()
