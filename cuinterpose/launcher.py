"""Runs a program under the shim, and refuses beforehand what the dynamic loader would run without it.

ld.so drops a preload that it cannot use, with a line on stderr or without a word, and starts the program all the same.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from . import elf
from .directory import directory, open_directory
from .output import say

SHIM = "libcuinterpose.so"
TRACKER = "libcutrack.so"
PROBE = "libcuprobe.so"
_SEPARATORS = re.compile(r"[ :]+")  # ld.so splits LD_PRELOAD at both
# glibc's line under LD_DEBUG=bindings: binding file A [0] to B [0]: normal symbol `name' [VERSION]
_BINDING = re.compile(r"binding file (?P<file>.+) \[\d+\] to (?P<target>.+) \[\d+\]: \w+ symbol `(?P<symbol>[^']*)'")
_MOST_INTERPRETERS = 4  # the kernel's own limit of nested #! lines

# What --check asks in a process of its own, under the same environment.
_CHECK = """
import ctypes, os, sys
try:
    stats = (ctypes.c_uint32 * 4).in_dll(ctypes.CDLL(None), "cuinterpose_stats")
except ValueError:
    sys.exit("the shim is not in the process: no cuinterpose_stats")
if stats[0] < 48 or stats[1] != 1:
    sys.exit(f"cuinterpose_stats has {stats[0]} bytes and ABI {stats[1]}, expected at least 48 and ABI 1")
if stats[2]:
    sys.exit("the shim is loaded and disabled (CUINTERPOSE_DISABLE=1)")
if os.environ.get("CUINTERPOSE_TRACK") == "1":
    tracked = (ctypes.c_uint32 * 14).in_dll(ctypes.CDLL(None), "cuinterpose_stats")
    if stats[0] < 56 or not tracked[12]:
        sys.exit("the shim is loaded and tracks nothing: its libcutrack.so is missing or of another version")
"""


class LaunchError(Exception):
    """Why a program would not run under the shim; one line, with the way out."""


def native_path(name: str) -> Path:
    """A native object of this package. LaunchError if the package was built without native parts."""
    path = Path(str(resources.files(__package__) / name))
    if not path.is_file():
        raise LaunchError(
            f"{name}: not built (a package for another platform, or NVPROXY_NATIVE=0); reinstall on Linux with glibc and gcc"
        )
    return path.resolve()


def shim_path(chosen: str | None = None) -> Path:
    """The shim: chosen, else $CUINTERPOSE_SHIM, else this package's. LaunchError if that is not a file."""
    named = chosen or os.environ.get("CUINTERPOSE_SHIM")
    if not named:
        return native_path(SHIM)
    path = Path(named)
    if not path.is_file():
        raise LaunchError(f"{named}: no such file; name a shim with CUINTERPOSE_SHIM or leave it unset")
    return path.resolve()


def _read_elf(path: Path, what: str) -> elf.Elf:
    try:
        return elf.read(path)
    except (OSError, elf.ElfError) as error:
        raise LaunchError(f"{path}: {what}: {getattr(error, 'strerror', None) or error}") from None


def _kernel_runs(program: Path) -> Path:
    """The ELF file that the kernel starts for a program: itself, or what its #! line leads to. Links are resolved."""
    for _ in range(_MOST_INTERPRETERS + 1):
        try:
            with program.open("rb") as file:
                start = file.read(256)
        except OSError as error:
            raise LaunchError(f"{program}: {error.strerror}") from None
        if not start.startswith(b"#!"):
            return Path(os.path.realpath(program))  # ld.so takes a path without a slash for a name to search
        words = start[2:].split(b"\n")[0].split()
        if not words:
            raise LaunchError(f"{program}: an empty #! line")
        program = Path(os.fsdecode(words[0]))
    raise LaunchError(f"{program}: more than {_MOST_INTERPRETERS} nested #! lines")


def _refuse_secure_execution(path: Path) -> None:
    status = path.stat()
    set_id = (status.st_mode & stat.S_ISUID and status.st_uid != os.getuid()) or (
        status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IXGRP and status.st_gid != os.getgid()
    )
    if set_id:
        raise LaunchError(f"{path}: set-user-ID or set-group-ID: ld.so ignores LD_PRELOAD for it; run it as its owner")
    try:
        capabilities = os.getxattr(path, "security.capability")
    except OSError:
        return
    if capabilities and os.getuid() != 0:
        raise LaunchError(f"{path}: has file capabilities: ld.so ignores LD_PRELOAD for it; run a copy without them")


def clean_path(shim: Path) -> Path:
    """A path to the shim without the characters at which ld.so splits LD_PRELOAD: itself, or a link in a private directory."""
    if not _SEPARATORS.search(str(shim)):
        return shim
    try:
        home = directory()
    except OSError:
        home = Path(tempfile.gettempdir()) / f"cuinterpose-{os.geteuid()}"
    if _SEPARATORS.search(str(home)):
        raise LaunchError(
            f"{shim}: a blank or ':' in the path, and in {home}; set CUINTERPOSE_DIR to a path without them"
        )
    try:
        home.mkdir(mode=0o700, exist_ok=True)
        os.close(open_directory(home))
        link = home / f"{hashlib.sha256(os.fsencode(shim)).hexdigest()[:16]}-{SHIM}"
        if not (link.is_symlink() and link.readlink() == shim):
            fresh = home / f"{link.name}.{os.getpid()}"
            fresh.symlink_to(shim)
            fresh.replace(link)
    except OSError as error:
        raise LaunchError(f"{home}: {error.strerror or error}: cannot hold a link to the shim") from None
    return link


def preload(shim: Path, existing: str | None) -> str:
    """LD_PRELOAD's value: the shim first and once, then every other entry that was there, in its order."""
    entries = [str(shim)]
    for entry in _SEPARATORS.split(existing or ""):
        same = "/" in entry and os.path.realpath(entry) == str(shim.resolve())
        if entry and not same and entry not in entries:
            entries.append(entry)
    return ":".join(entries)


def _ask_ld_so(
    program: Path, interpreter: str, environment: Mapping[str, str], *options: str
) -> subprocess.CompletedProcess[str]:
    """Asks the program's own dynamic loader what it would load; the program is not started."""
    try:
        return subprocess.run(
            [interpreter, *options, program],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise LaunchError(f"{interpreter}: {error.strerror}; the interpreter of {program}") from None


def _refuse_what_ld_so_drops(program: Path, interpreter: str, environment: Mapping[str, str], shim: Path) -> None:
    listed = _ask_ld_so(program, interpreter, environment, "--list")
    for line in listed.stderr.splitlines():
        if "cannot be preloaded" in line or "LD_PRELOAD" in line:
            raise LaunchError(f"{line.strip().removeprefix('ERROR: ld.so: ')}; correct LD_PRELOAD")
    if str(shim) not in listed.stdout:
        why = next(iter(listed.stderr.strip().splitlines()), f"{interpreter} --list does not name it")
        raise LaunchError(f"{shim}: would not be loaded into {program}: {why}")


def only_the_shims(
    program: Path, interpreter: str, environment: Mapping[str, str], shim: Path
) -> list[tuple[str, str]]:
    """References of a program and of what it is linked with that nothing but the shim satisfies: (file, symbol), sorted.

    Without the shim a weak one would be NULL, and a strong one would keep the program from starting; with it, a call
    returns CUDA_ERROR_NOT_FOUND. The program's own loader binds every reference twice, with the shim and without.
    """
    # as `ldd -r` asks: everything is bound, and nothing started
    debug = {"LD_TRACE_LOADED_OBJECTS": "1", "LD_WARN": "yes", "LD_BIND_NOW": "1", "LD_DEBUG": "bindings"}
    without = {**environment, **debug, "LD_PRELOAD": ":".join(environment["LD_PRELOAD"].split(":")[1:])}
    bound = set()
    for line in _ask_ld_so(program, interpreter, {**environment, **debug}).stderr.splitlines():
        if (found := _BINDING.search(line)) and found["file"] != found["target"] == str(shim):
            bound.add((found["file"], found["symbol"]))
    elsewhere = {
        (found["file"], found["symbol"])
        for line in _ask_ld_so(program, interpreter, without).stderr.splitlines()
        if (found := _BINDING.search(line))
    }
    return sorted(bound - elsewhere)


@dataclass(frozen=True)
class Launch:
    """A command that can be run under the shim.

    program: what to execute, as it was found. environment: what to execute it with. phantoms: see `only_the_shims`;
    looked for only when a check was asked for.
    """

    program: str
    environment: dict[str, str]
    phantoms: tuple[tuple[str, str], ...] = ()


def tracking(shim: Path) -> dict[str, str]:
    """The environment that makes the shim track. LaunchError if its endpoint has no place, or the tracker is missing."""
    from .ticket import ENDPOINT_MAX, IDENTITY_SIZE  # imports construct, which no other way of running needs

    if not (shim.parent / TRACKER).is_file():
        raise LaunchError(f"{shim.parent / TRACKER}: no such file; what tracks comes with the shim, beside it")
    try:
        where = Path(os.path.abspath(directory()))
        os.close(open_directory(where))
    except OSError as error:
        raise LaunchError(
            f"--track: {error.strerror or error}: set CUINTERPOSE_DIR to a directory of your own with mode 0700"
        ) from None
    longest = ENDPOINT_MAX - 1 - 2 * IDENTITY_SIZE
    if len(os.fsencode(where)) > longest:
        raise LaunchError(f"{where}: longer than {longest} bytes, so no socket fits; set CUINTERPOSE_DIR")
    return {"CUINTERPOSE_TRACK": "1", "CUINTERPOSE_DIR": str(where)}


def prepare(command: list[str], *, shim: Path | None = None, check: bool = False, track: bool = False) -> Launch:
    """How to run a command under the shim. LaunchError if it would run without the shim, or not at all."""
    shim = shim or shim_path()
    shim_elf = _read_elf(shim, "the shim")
    program = shutil.which(command[0])
    if not program:
        raise LaunchError(f"{command[0]}: no such program, or not executable")
    started = _kernel_runs(Path(program))
    program_elf = _read_elf(started, "not an executable that ld.so could load the shim into")
    if (program_elf.bits, program_elf.machine) != (shim_elf.bits, shim_elf.machine):
        raise LaunchError(f"{started}: {program_elf.kind}, and the shim is {shim_elf.kind}")
    if program_elf.interpreter is None:
        raise LaunchError(f"{started}: statically linked: nothing can be preloaded into it")
    _refuse_secure_execution(started)
    clean = clean_path(shim)
    environment = {**os.environ, "LD_PRELOAD": preload(clean, os.environ.get("LD_PRELOAD"))}
    if track:
        environment |= tracking(shim)
    _refuse_what_ld_so_drops(started, program_elf.interpreter, environment, clean)
    if not check:
        return Launch(program, environment)
    helper = subprocess.run(
        [sys.executable, "-c", _CHECK], env=environment, capture_output=True, text=True, errors="replace", check=False
    )
    if helper.returncode:
        raise LaunchError(f"{shim}: {(helper.stderr.strip().splitlines() or ['the check failed'])[-1]}")
    return Launch(program, environment, tuple(only_the_shims(started, program_elf.interpreter, environment, clean)))


def run(command: list[str], *, check: bool = False, track: bool = False) -> None:
    """Replaces this process by the command under the shim; LaunchError if that is not possible."""
    launch = prepare(command, check=check, track=track)
    for file, symbol in launch.phantoms:
        say(
            f"cuinterpose: warning: {file} refers to {symbol}, which no library but the shim defines: "
            "a call returns CUDA_ERROR_NOT_FOUND (500), where it would be NULL or not start without the shim",
            sys.stderr,
        )
    try:
        os.execve(launch.program, command, launch.environment)
    except OSError as error:
        raise LaunchError(f"{launch.program}: {error.strerror}") from None
