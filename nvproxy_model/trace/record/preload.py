"""Runs a program under the preloaded recorder and turns what it appended into a trace."""

from __future__ import annotations

import os
import platform
import re
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nvproxy_model.errors import NvproxyError
from nvproxy_model.printable import printable
from nvproxy_model.signals import passed_on
from nvproxy_model.trace.decode.catalog import Catalog
from nvproxy_model.trace.format import Header, writing
from nvproxy_model.trace.lines import Problems
from nvproxy_model.trace.record import spool, table
from nvproxy_model.trace.record.mapped import Keeper, SpoolError, keeping

__all__ = [
    "RECORDER",
    "Outcome",
    "RecordError",
    "convert",
    "driver_version",
    "hides",
    "newest",
    "record",
    "shell_status",
]

RECORDER: Final = Path(__file__).with_name("librecorder.so")
"""Built by the package's setup.py."""

_VERSION: Final = Path("/proc/driver/nvidia/version")


class RecordError(NvproxyError):
    """The program could not be run under the recorder."""


@dataclass
class Outcome:
    """What a recorded run came to."""

    status: int
    """The program's exit status as a shell gives it: 128 + N for signal N."""
    seen: spool.Seen = field(default_factory=spool.Seen)
    problems: Problems = field(default_factory=Problems)
    records: int = 0
    alive: list[int] = field(default_factory=list)
    """Processes of the run that still live: what they do from now on is not in the trace."""


def driver_version(path: Path = _VERSION) -> str | None:
    """The release of the loaded kernel module, or None where there is none."""
    try:
        match = re.search(r"\b(\d{3,4}\.\d+(?:\.\d+)?)\b", path.read_text(errors="replace"))
    except OSError:
        return None
    return match[1] if match else None


def hides(command: str, search: str | None = None) -> str | None:
    """Why a preloaded recorder would not see this program: ``static``, ``setuid``, ``not readable``; None where it would."""
    import shutil

    path = shutil.which(command, path=search)
    if path is None:
        return None
    try:
        mode = os.stat(path).st_mode
        if mode & (stat.S_ISUID | stat.S_ISGID) and os.geteuid() != 0:
            return "setuid"
        with open(path, "rb") as file:
            head = file.read(1 << 16)
    except OSError:
        return "not readable"
    if head.startswith(b"\x7fELF") and not _interpreted(head):
        return "static"
    return None


def _interpreted(head: bytes) -> bool:
    """Whether an ELF file names a dynamic loader (PT_INTERP)."""
    wide = head[4:5] == b"\2"
    order = "little" if head[5:6] == b"\1" else "big"
    at, entry, count = ((0x20, 8), (0x36, 2), (0x38, 2)) if wide else ((0x1C, 4), (0x2A, 2), (0x2C, 2))

    def number(place: tuple[int, int]) -> int:
        return int.from_bytes(head[place[0] : place[0] + place[1]], order)  # type: ignore[arg-type]

    start, size = number(at), number(entry)
    return any(
        int.from_bytes(head[start + i * size : start + i * size + 4], order) == 3  # type: ignore[arg-type]
        for i in range(min(number(count), 256))
    )


def shell_status(returncode: int) -> int:
    """A shell's exit status of subprocess's."""
    return 128 - returncode if returncode < 0 else returncode


def _preload(recorder: Path, present: str | None) -> str:
    """Ours first, the others kept in their order, none twice."""
    others = [entry for entry in re.split(r"[ :]+", present or "") if entry and entry != str(recorder)]
    return ":".join([str(recorder), *others])


def record(
    command: Sequence[str],
    output: Path,
    *,
    values: bool = True,
    inside: bool = False,
    driver: str | None = None,
    recorder: Path = RECORDER,
    environment: dict[str, str] | None = None,
) -> Outcome:
    """Run ``command`` and write its trace to ``output``. Its output, input and exit status are its own.

    ``inside``: it runs in a sandbox, and the trace says so.

    Raises RecordError when the recorder was not built, the program cannot be started or a spool of an earlier run is in
    the way; OSError for the output.
    """
    if not recorder.exists():
        raise RecordError("the recorder was not built: install the package with a C compiler, or use --seccomp")
    if re.search(r"[ :]", str(recorder)):
        raise RecordError(f"{printable(str(recorder))}: LD_PRELOAD takes no path with a space or colon")
    release = driver or driver_version()
    spool_path = _spool_of(output)
    numbers = table.pack(table.entries(Catalog(release or newest())))
    try:
        keeper = Keeper(spool_path, numbers, values=values)
    except FileExistsError:
        raise RecordError(
            f"{printable(str(spool_path))} is left from another run: import it (nvproxy-trace import) or remove it"
        ) from None
    except SpoolError as error:
        raise RecordError(f"{printable(str(spool_path))}: {error}") from None
    except OSError as error:
        raise RecordError(f"{printable(str(spool_path))}: {error.strerror or error}") from None
    env = dict(os.environ if environment is None else environment)
    env["LD_PRELOAD"] = _preload(recorder, env.get("LD_PRELOAD"))
    env["NVPROXY_TRACE_SPOOL"] = str(spool_path)
    outcome = Outcome(0)
    with keeping(keeper):
        try:
            child = subprocess.Popen(command, env=env)
        except OSError as error:
            _remove(spool_path)
            raise RecordError(f"{printable(command[0])}: {error.strerror or error}") from None
        with passed_on(child.send_signal):
            outcome.status = shell_status(child.wait())
    head = Header(
        driver=release,
        arch=platform.machine(),
        recorder="preload",
        command=tuple(command),
        values=values,
        inside=inside,
    )
    try:
        convert(spool_path, output, head, outcome, first=child.pid)
    except OSError as error:
        raise RecordError(
            f"{printable(str(output))}: {error.strerror or error}; what was recorded is in {printable(str(spool_path))}: "
            "nvproxy-trace import reads it"
        ) from None
    outcome.alive = [pid for pid in outcome.seen.processes if _lives(pid, spool_path)]
    _remove(spool_path)
    return outcome


def _spool_of(output: Path) -> Path:
    """Beside the output, where it is looked for if this process dies; for a FIFO or /dev/stdout in a temporary folder."""
    if output.is_symlink() or (output.exists() and not output.is_file()):
        return Path(tempfile.mkdtemp(prefix="nvproxy-trace-")) / "spool"
    return output.with_name(output.name + ".spool").absolute()


def _remove(spool_path: Path) -> None:
    spool_path.unlink()
    if spool_path.name == "spool":
        spool_path.parent.rmdir()


def newest() -> str:
    """The release whose tables serve where the machine's own is not known."""
    from nvproxy_model import versions

    return versions.load().latest.name


def _lives(pid: int, spool_path: Path) -> bool:
    """Whether that process still has our spool mapped; its number may be another's by now."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            return any(line.rstrip().endswith(os.fsencode(spool_path)) for line in maps)
    except OSError:
        return False


def convert(source: Path, output: Path, head: Header, outcome: Outcome, first: int | None = None) -> None:
    """Write the trace of a spool; it says itself what is missing in it. Raises OSError."""
    with open(source, "rb") as raw:
        head.values = spool.keeps_values(raw)
    with open(source, "rb") as raw, writing(output, head, inputs=(source,)) as writer:
        for obj in spool.records(raw, outcome.problems, outcome.seen, values=head.values, first=first):
            writer.put(obj)
        writer.lose(outcome.problems)
        outcome.records = writer.records
