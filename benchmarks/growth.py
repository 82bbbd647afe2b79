"""What hostile input costs as it grows: ``python benchmarks/growth.py [CASE...] [--json FILE]``.

Each case is a kind of input that was once expensive, or could be. It is read at one, two and four times a size, each time in a
fresh process that has read a tiny one before, so that imports and tables do not count. Printed are CPU seconds and the peak of
memory over what the process had, and the ratio of each step; linear reading stays near 2. A ratio over 3 (of CPU over 50 ms, of
memory over 4 MiB) fails.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import itertools
import json
import os
import resource
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

DRIVER: Final = "580.126.20"
FAIL: Final = 3.0
CPU_FLOOR: Final = 0.05
MEMORY_FLOOR: Final = 4 << 20


class Case(NamedTuple):
    """``make`` gives an input of a size, ``read`` reads it from a file; ``size`` is what 1x means."""

    what: str
    size: int
    make: Callable[[int], bytes]
    read: Callable[[Path], None]


def _head(driver: str = DRIVER) -> bytes:
    return json.dumps(
        {
            "schema": "nvproxy-trace/1",
            "driver": driver,
            "arch": None,
            "recorder": "preload",
            "command": [],
            "values": True,
        }
    ).encode()


def _line(**more: Any) -> bytes:
    return json.dumps({"t": 0, "pid": 7, "tid": 7, **more}, separators=(",", ":")).encode()


def _trace(records: list[bytes]) -> bytes:
    return b"\n".join([_head(), *records, _line(k="end", records=len(records)), b""])


def _open(pid: int = 7, fd: int = 3) -> bytes:
    return _line(k="open", pid=pid, tid=pid, fd=fd, ret=fd, path="/dev/nvidiactl", flags=2)


def calls(count: int) -> bytes:
    """Controls as programs make them."""
    top = struct.pack("<IIIIQII", 0xC1D00001, 0xC1D00001, 0x20800102, 0, 4096, 64, 0).hex()
    more: dict[str, Any] = {"dev": "/dev/nvidiactl", "req": "0xc020462a", "kind": "control", "key": "0x20800102"}
    call = _line(k="ioctl", fd=3, ret=0, status="0x0", top0=top, par0=bytes(64).hex(), **more)
    return _trace([_open(), *[call] * count])


def distinct(count: int) -> bytes:
    """As many different commands as calls."""
    more: dict[str, Any] = {"fd": 3, "ret": 0, "dev": "/dev/nvidiactl", "req": "0xc020462a", "kind": "control"}
    return _trace([_open(), *(_line(k="ioctl", key=hex(0x1000000 + i), status="0x0", **more) for i in range(count))])


def forks(count: int) -> bytes:
    """Half of them descriptors, then as many forks that each inherit all."""
    half = count // 2
    opens = [_open(fd=fd + 3) for fd in range(half)]
    return _trace(
        [*opens, *(_line(k="process", pid=8 + i, tid=8 + i, ppid=7 + i, how="fork", command=[]) for i in range(half))]
    )


def drivers(count: int) -> bytes:
    """Another driver's header before each record."""
    lines = []
    for i in range(count):
        lines += [_head(f"5{i % 90 + 10}.{i % 7}.{i % 97:02}"), _open(), _line(k="end", records=1)]
    return b"\n".join([*lines, b""])


def _command(*words: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        from nvproxy_model.tools.trace import main

        with (
            open(os.devnull, "w") as out,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
            contextlib.suppress(SystemExit),
        ):
            main([words[0], str(path), *words[1:]])

    return read


def _log(kind: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        from nvproxy_model.trace.lines import TraceError
        from nvproxy_model.trace.logs.kinds import Import

        with contextlib.suppress(TraceError):
            for _ in Import(path, kind=kind):
                pass

    return read


OPENED: Final = b'7 openat(AT_FDCWD, "/dev/nvidiactl", O_RDWR) = 3\n'


def strace_calls(count: int) -> bytes:
    return OPENED + b"7 ioctl(3, _IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2a, 0x20), 0x7ffd) = 0 <0.000012>\n" * count


def strace_line(size: int) -> bytes:
    """One line full of what may be its result."""
    return OPENED + b"7 ioctl(3, 0xc020462a, " + b") = 0 " * (size // 6) + b"\n"


def strace_unfinished(count: int) -> bytes:
    """Calls that never end, each in a thread of its own, each with a long line."""
    return OPENED + b"".join(
        b"%d ioctl(3, 0xc020462a, %s <unfinished ...>\n" % (i + 10, b"x" * 4000) for i in range(count)
    )


def strace_clones(count: int) -> bytes:
    """Descriptors, and clones that copy them."""
    opens = b"".join(b'7 openat(AT_FDCWD, "/dev/nvidiactl", O_RDWR) = %d\n' % (fd + 3) for fd in range(count))
    return opens + b"".join(b"7 clone(child_stack=NULL, flags=SIGCHLD) = %d\n" % (i + 10) for i in range(count))


def nvproxy_calls(count: int) -> bytes:
    return (
        b"D0101 00:00:00.000000       1 frontend.go:1] [   1:   7] nvproxy: control command 0x20800102, object 0x1\n"
        * count
    )


def nvproxy_devices(count: int) -> bytes:
    """A long device name in each record of a task of its own."""
    return b"".join(
        b"D0101 00:00:00.000000 1 a.go:1] [   1:%4d] nvproxy: unknown device %s\n" % (i, b"y" * 4000)
        for i in range(count)
    )


def sniffer_calls(count: int) -> bytes:
    return b"Control ioctl: request=0xc020462a [nr=NV_ESC_RM_CONTROL, cmd=0x20810110] => ret=0 status=0x0\n" * count


def _spool(path: Path) -> None:
    from nvproxy_model.trace.lines import Problems
    from nvproxy_model.trace.record import spool

    with path.open("rb") as raw:
        for _ in spool.records(raw, Problems(), spool.Seen()):
            pass


def spool_frames(count: int) -> bytes:
    from tests.trace.record.test_trace_spool import ENTER, LEAVE, frame

    return b"".join(
        frame(ENTER, b"/dev/nvidiactl", ((0, bytes(32)), (1, bytes(64))), id=i)
        + frame(LEAVE, b"", ((0, bytes(32)),), id=i)
        for i in range(count)
    )


def spool_claims(size: int) -> bytes:
    """Headers that each claim 3 MiB."""
    return (b"NVTR" + struct.pack("<I", 3 << 20)) * (size // 8)


def spool_begun(count: int) -> bytes:
    """Calls that never end."""
    from tests.trace.record.test_trace_spool import ENTER, frame

    return b"".join(frame(ENTER, b"/dev/nvidiactl", ((0, bytes(4096)),), id=i) for i in range(count))


def _pins(path: Path) -> None:
    from nvproxy_model.drivers.compare import pins

    with contextlib.suppress(pins.PinError):
        pins.load(path.read_bytes())


def pin_entries(count: int) -> bytes:
    return b"pin: 1\nstructs:\n" + b"".join(b"  S%d:\n    size: 8\n" % i for i in range(count))


def pin_aliases(size: int) -> bytes:
    """Aliases of aliases: 10^size nodes, were they followed."""
    lines = ["pin: 1", "a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, size)]
    return "\n".join(lines).encode()


def pin_sexagesimal(size: int) -> bytes:
    return b"pin: 1\nstructs:\n  A:\n    size: 1" + b":1" * (size // 2) + b"\n"


def _archive(path: Path) -> None:
    from nvproxy_model.drivers.sources import open_source
    from nvproxy_model.errors import NvproxyError

    with contextlib.suppress(NvproxyError), open_source(path) as source:
        for version in source.versions:
            source.files(version)


def _tar(members: list[tuple[str, bytes, dict[str, str]]], **more: Any) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, **more) as archive:
        for name, data, pax in members:
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(data), pax
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(out.getvalue(), 1)


_VERSION: Final = ("d/version.mk", b"NVIDIA_VERSION = 580.126.20\n", {})


def tar_members(count: int) -> bytes:
    return _tar([_VERSION, *((f"d/src/common/sdk/nvidia/inc/a{i}.h", b"#define A 1\n", {}) for i in range(count))])


def tar_extended(count: int) -> bytes:
    """A small extended header before each member, and a global one that each of them would copy."""
    more = {"pax_headers": {f"k{i}": "v" * 40 for i in range(60)}}
    return _tar([_VERSION, *((f"d/a{i}", b"", {"comment": "x"}) for i in range(count))], **more)


def tar_zeros(size: int) -> bytes:
    """A bomb: zeros that pack well."""
    return _tar([_VERSION, ("d/zeros", bytes(size), {})])


def _headers(path: Path) -> None:
    from nvproxy_model.drivers.sources import open_source
    from nvproxy_model.errors import NvproxyError

    with contextlib.suppress(NvproxyError), open_source(path) as source:
        for version in source.versions:
            source.release(version, cache=False)


def _tree(text: str) -> bytes:
    header = "typedef unsigned int NvU32;\n" + text
    return _tar([_VERSION, ("d/src/common/sdk/nvidia/inc/nvos.h", header.encode(), {})])


def header_structs(count: int) -> bytes:
    return _tree("".join(f"typedef struct {{ NvU32 a; NvU32 b; }} NVOS_S{i};\n" for i in range(count)))


def header_nested(depth: int) -> bytes:
    """Each struct has the one before it twice: 2^depth members, were they written out."""
    chain = "".join(f"typedef struct {{ NVOS_C{i} a, b; }} NVOS_C{i + 1};\n" for i in range(depth))
    return _tree("typedef struct { NvU32 a; } NVOS_C0;\n" + chain)


def _go(path: Path) -> None:
    from nvproxy_model.drivers.gvisor.gosource import GoPackage

    GoPackage("growth", {"a.go": path.read_bytes()}).read_all()


def go_constants(count: int) -> bytes:
    return b"package nvgpu\nconst (\n" + b"".join(b"\tA%d = 0x%x\n" % (i, i) for i in range(count)) + b")\n"


def go_comment(size: int) -> bytes:
    return b"package nvgpu\n/*" + b" * x\n" * (size // 5) + b"*/\n"


def _vectors(path: Path) -> None:
    from nvproxy_model.errors import NvproxyError
    from nvproxy_model.testing import conform

    with contextlib.suppress(NvproxyError):
        conform.load(path)


def vectors(count: int) -> bytes:
    head = {"guest_memory": {"mapped": "0x10000 to 0x20000", "base": 65536}}
    return json.dumps({"header": head, "vectors": [{"name": f"v{i}"} for i in range(count)]}).encode()


def _elf(path: Path) -> None:
    from cuinterpose import elf

    for reader in (elf.read, elf.exports):
        with contextlib.suppress(elf.ElfError):
            reader(path)


def elf_symbols(count: int) -> bytes:
    """A shared object of that many names."""
    source = "".join(f".globl f{i}\n.type f{i}, @function\nf{i}:\n" for i in range(count)) + "ret\n"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "a.so")
        command = ["cc", "-shared", "-nostdlib", "-x", "assembler", "-", "-o", str(out)]
        subprocess.run(command, input=source.encode(), check=True)
        return out.read_bytes()


CASES: Final[dict[str, Case]] = {
    "trace-check": Case("records, check", 20_000, calls, _command("check", "--driver", DRIVER)),
    "trace-decode": Case("records, decode --json", 10_000, calls, _command("decode", "--json", "--driver", DRIVER)),
    "trace-replay": Case("records, replay", 5_000, calls, _command("replay", "--driver", DRIVER)),
    "trace-stats": Case("records, stats", 20_000, calls, _command("stats", "--driver", DRIVER)),
    "trace-census": Case("records, census", 20_000, calls, _command("census")),
    "trace-scrub": Case("records, scrub", 5_000, calls, _command("scrub", "-o", os.devnull, "--driver", DRIVER)),
    "trace-distinct": Case("distinct commands, check", 10_000, distinct, _command("check", "--driver", DRIVER)),
    "trace-forks": Case("descriptors and forks, check", 4_000, forks, _command("check", "--driver", DRIVER)),
    "trace-forks-replay": Case("descriptors and forks, replay", 4_000, forks, _command("replay", "--driver", DRIVER)),
    "trace-drivers": Case("a header before each record, decode", 2_000, drivers, _command("decode")),
    "strace-calls": Case("lines", 10_000, strace_calls, _log("strace")),
    "strace-line": Case("bytes of one line", 100_000, strace_line, _log("strace")),
    "strace-unfinished": Case("calls without an end", 2_000, strace_unfinished, _log("strace")),
    "strace-clones": Case("descriptors and clones", 2_000, strace_clones, _log("strace")),
    "nvproxy-calls": Case("lines", 10_000, nvproxy_calls, _log("nvproxy-log")),
    "nvproxy-devices": Case("tasks with a long device", 2_000, nvproxy_devices, _log("nvproxy-log")),
    "sniffer-calls": Case("lines", 20_000, sniffer_calls, _log("ioctl-sniffer")),
    "spool-frames": Case("calls", 20_000, spool_frames, _spool),
    "spool-claims": Case("bytes of false headers", 1 << 20, spool_claims, _spool),
    "spool-begun": Case("calls without an end", 3_000, spool_begun, _spool),
    "pin-entries": Case("structs", 3_000, pin_entries, _pins),
    "pin-aliases": Case("levels of aliases", 5, pin_aliases, _pins),
    "pin-sexagesimal": Case("digits", 100_000, pin_sexagesimal, _pins),
    "tar-members": Case("members", 2_000, tar_members, _archive),
    "tar-extended": Case("extended headers", 500, tar_extended, _archive),
    "tar-zeros": Case("bytes of one member", 32 << 20, tar_zeros, _archive),
    "header-structs": Case("structs", 2_000, header_structs, _headers),
    "header-nested": Case("levels of structs", 6, header_nested, _headers),
    "go-constants": Case("constants", 2_000, go_constants, _go),
    "go-comment": Case("bytes of a comment", 200_000, go_comment, _go),
    "vectors": Case("vectors", 10_000, vectors, _vectors),
    "elf-symbols": Case("names", 5_000, elf_symbols, _elf),
}


class Cost(NamedTuple):
    """Of one reading: CPU seconds, children's included, and bytes of memory at its peak over what there was."""

    cpu: float
    peak: int


def _memory(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    return 0


def _cpu() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def one(name: str, path: Path, tiny: Path) -> Cost:
    """In a fresh process."""
    read = CASES[name].read
    read(tiny)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, cpu = _memory("VmRSS:"), _cpu()
    read(path)
    return Cost(_cpu() - cpu, max(_memory("VmHWM:") - before, 0))


def measure(name: str) -> list[Cost]:
    case = CASES[name]
    costs = []
    with tempfile.TemporaryDirectory() as folder:
        tiny = Path(folder, "tiny")
        tiny.write_bytes(case.make(1 if case.size < 100 else case.size // 100))
        for times in (1, 2, 4):
            path = Path(folder, f"{times}x")
            path.write_bytes(case.make(case.size * times))
            command = [sys.executable, __file__, "--one", name, str(path), str(tiny)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            costs.append(Cost(*json.loads(done.stdout)))
            path.unlink()
    return costs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", choices=[[], *CASES], help="default: all")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--one", nargs=3, metavar=("CASE", "FILE", "TINY"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.one[0], Path(args.one[1]), Path(args.one[2]))))
        return 0
    steps = "2x     4x    ratios"
    print(f"{'case':<20} {'1x':>9} {'of what':<36} CPU s     {steps}     MiB     {steps}")
    failed, start = [], time.monotonic()
    found: dict[str, list[Cost]] = {}
    for name in args.cases or CASES:
        costs = found[name] = measure(name)
        cpu, peak = [cost.cpu for cost in costs], [cost.peak for cost in costs]
        ratios = [[after / max(before, 1e-9) for before, after in itertools.pairwise(row)] for row in (cpu, peak)]
        counted = [
            ratio
            for row, floor, numbers in zip(ratios, (CPU_FLOOR, MEMORY_FLOOR), (cpu, peak), strict=True)
            for ratio, before in zip(row, numbers, strict=False)
            if before > floor
        ]
        if any(ratio > FAIL for ratio in counted):
            failed.append(name)
        shown = [" ".join(f"{min(ratio, 99):4.1f}" for ratio in row) for row in ratios]
        mebi = [bytes_ / (1 << 20) for bytes_ in peak]
        print(
            f"{name:<20} {CASES[name].size:>9} {CASES[name].what:<36} {cpu[0]:6.2f} {cpu[1]:6.2f} {cpu[2]:6.2f} {shown[0]:>9}  "
            f"{mebi[0]:6.1f} {mebi[1]:6.1f} {mebi[2]:6.1f} {shown[1]:>9}{'  TOO MUCH' if name in failed else ''}",
            flush=True,
        )
    print(f"{len(found)} cases, {len(failed)} over {FAIL:.0f}x a step, {time.monotonic() - start:.0f} s")
    if args.json:
        args.json.write_text(
            json.dumps({name: [cost._asdict() for cost in costs] for name, costs in found.items()}, indent=1)
        )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
