"""What a gVisor checkout's nvproxy says: its ABI structs, its constants, and the tables of every driver version."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nvproxy_model.drivers.gvisor.gosource import GoPackage, Unread
from nvproxy_model.drivers.gvisor.tables import Version, versions
from nvproxy_model.drivers.sources.repositories import Objects, git_directory
from nvproxy_model.errors import SourceError

__all__ = ["Nvproxy", "read", "read_package_files"]

MAX_FILE = 4 << 20
MAX_FILES = 500
MAX_PACKAGE = 16 << 20
"""Bytes of one package's files; nvproxy's own has a quarter of a million."""

_NVGPU = "pkg/abi/nvgpu"
_NVPROXY = "pkg/sentry/devices/nvproxy"
_NVCONF = "pkg/sentry/devices/nvproxy/nvconf"


@dataclass(frozen=True)
class Nvproxy:
    """A whole checkout: ``versions`` in order of declaration, so that a parent precedes its children."""

    revision: str
    nvgpu: GoPackage
    nvproxy: GoPackage
    versions: Mapping[str, Version]
    unread: tuple[Unread, ...]


def read(path: Path, revision: str | None = None) -> Nvproxy:
    """Reads a gVisor checkout (a directory), or one revision of a git repository, bare or not. Nothing is checked out.

    Raises SourceError when the path is neither, the revision does not exist, or the packages of nvproxy are not there.
    """
    label, files, close = _open(path, revision)
    try:
        nvgpu_files, nvproxy_files = files(_NVGPU), files(_NVPROXY)
        try:
            nvconf_files = files(_NVCONF)
        except SourceError:  # before September 2024 there was no such package
            nvconf_files = {}
    finally:
        close()
    for what, package in ((_NVGPU, nvgpu_files), (_NVPROXY, nvproxy_files)):
        if not package:
            raise SourceError(f"no Go files in {what}: not a gVisor tree", label)
    nvgpu, nvconf = GoPackage("nvgpu", nvgpu_files), GoPackage("nvconf", nvconf_files)
    nvproxy = GoPackage("nvproxy", nvproxy_files, {"nvgpu": nvgpu, "nvconf": nvconf})
    nvgpu.read_all()
    found, unread = versions(nvproxy)
    everything = {*nvgpu.unread, *nvconf.unread, *nvproxy.unread, *unread}
    return Nvproxy(label, nvgpu, nvproxy, found, tuple(sorted(everything)))


# Files.

_Reader = Callable[[str], dict[str, bytes]]


def _open(path: Path, revision: str | None) -> tuple[str, _Reader, Callable[[], None]]:
    """A label, a function from a package's directory to its files, and a function that ends the reading."""
    if not path.is_dir():
        raise SourceError("not a directory", path)
    if revision is None and (path / _NVGPU).is_dir():
        return str(path), partial(_directory_files, path), lambda: None
    directory = git_directory(path)
    if directory is None:
        raise SourceError(f"neither a gVisor checkout ({_NVGPU} is not there) nor a git repository", path)
    objects = Objects(path, directory)
    try:
        commit = _commit(path, directory, objects, revision or "HEAD")
    except BaseException:
        objects.close()
        raise
    return f"{path}@{commit[:12]}", partial(_git_files, objects, commit), objects.close


def read_package_files(directory: Path) -> dict[str, bytes]:
    """The Go files of a package's directory, tests left out; only regular files are read.

    Raises SourceError when the directory cannot be read, or a file is not a regular one or is over 4 MiB.
    """
    try:
        names = sorted(name for name in os.listdir(directory) if is_source(name))
    except OSError as error:
        raise SourceError(f"{error.strerror or error}", directory) from error
    if len(names) > MAX_FILES:
        raise SourceError(f"{len(names)} Go files; a package of more than {MAX_FILES} is refused", directory)
    files: dict[str, bytes] = {}
    for name in names:
        files[name] = _read_regular(directory / name)
        refuse_large(str(directory), files.values())
    return files


def refuse_large(where: str, contents: Iterable[bytes]) -> None:
    """Raises SourceError for a package of more than MAX_PACKAGE bytes."""
    if sum(map(len, contents)) > MAX_PACKAGE:
        raise SourceError(f"more than {MAX_PACKAGE >> 20} MiB of Go files", where)


def is_source(name: str) -> bool:
    return name.endswith(".go") and not name.endswith("_test.go")


def _read_regular(path: Path) -> bytes:
    try:
        # A link or a FIFO under a source's name is not a source: never follow one, never block on one.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise SourceError(f"{error.strerror or error}", path) from error
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE:
            raise SourceError(f"not a regular file of at most {MAX_FILE >> 20} MiB", path)
        return stream.read(MAX_FILE)


def _directory_files(path: Path, directory: str) -> dict[str, bytes]:
    return {f"{directory}/{name}": data for name, data in read_package_files(path / directory).items()}


def _commit(path: Path, directory: Path, objects: Objects, revision: str) -> str:
    name = revision
    if name == "HEAD":
        with (directory / "HEAD").open("rb") as file:
            name = file.read(4096).decode("utf-8", "replace").strip().removeprefix("ref: ")
    found = next(objects.check([f"{name}^{{commit}}"])) if re.fullmatch(r"[\w./@+^~-]+", name) else None
    if found is None or found[1] != "commit":
        raise SourceError(f"no revision {revision!r}; name a commit, a branch or a tag of that repository", path)
    return found[0]


def _git_files(objects: Objects, commit: str, directory: str) -> dict[str, bytes]:
    found = next(objects.check([f"{commit}:{directory}"]))
    if found is None or found[1] != "tree":
        raise SourceError(f"{objects.path}@{commit[:12]}: {directory} is not there: not a gVisor tree")
    tree = objects.read([found[0]], "tree")[found[0]]
    blobs: dict[str, str] = {}
    for name, mode, oid in objects.entries(tree):
        if mode in (b"100644", b"100755") and is_source(name):
            blobs[name] = oid
        elif mode == b"120000" and is_source(name):
            raise SourceError(f"{objects.path}@{commit[:12]}: {directory}/{name} is a link")
    if len(blobs) > MAX_FILES:
        raise SourceError(f"{objects.path}@{commit[:12]}: {directory}: more than {MAX_FILES} files")
    contents: dict[str, bytes] = {}
    for oid in blobs.values():
        contents |= objects.read([oid], "blob", MAX_FILE)
        refuse_large(f"{objects.path}@{commit[:12]}: {directory}", contents.values())
    return {f"{directory}/{name}": contents[oid] for name, oid in sorted(blobs.items())}
