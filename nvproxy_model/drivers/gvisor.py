"""What a gVisor checkout's nvproxy says: its ABI structs, its constants, and the tables of every driver version."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nvproxy_model.drivers.gosource import (
    MAX_FILE,
    MAX_FILES,
    GoPackage,
    Unread,
    is_source,
    read_package_files,
    refuse_large,
)
from nvproxy_model.drivers.gvisor_tables import Version, versions
from nvproxy_model.drivers.repositories import Objects, git_directory
from nvproxy_model.errors import SourceError

__all__ = ["Nvproxy", "read"]

_NVGPU = "pkg/abi/nvgpu"
_NVPROXY = "pkg/sentry/devices/nvproxy"
_NVCONF = "pkg/sentry/devices/nvproxy/nvconf"


@dataclass(frozen=True)
class Nvproxy:
    """A whole checkout: ``versions`` in order of declaration, so that a parent precedes its children."""

    revision: str
    nvgpu: GoPackage
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
        except SourceError:  # before December 2024 the capabilities were declared in nvproxy itself, or not at all
            nvconf_files = {}
    finally:
        close()
    for what, package in ((_NVGPU, nvgpu_files), (_NVPROXY, nvproxy_files)):
        if not package:
            raise SourceError(f"{label}: no Go files in {what}: not a gVisor tree")
    nvgpu, nvconf = GoPackage("nvgpu", nvgpu_files), GoPackage("nvconf", nvconf_files)
    nvproxy = GoPackage("nvproxy", nvproxy_files, {"nvgpu": nvgpu, "nvconf": nvconf})
    nvgpu.read_all()
    found, unread = versions(nvproxy)
    everything = {*nvgpu.unread, *nvconf.unread, *nvproxy.unread, *unread}
    return Nvproxy(label, nvgpu, found, tuple(sorted(everything)))


# Files.

_Reader = Callable[[str], dict[str, bytes]]


def _open(path: Path, revision: str | None) -> tuple[str, _Reader, Callable[[], None]]:
    """A label, a function from a package's directory to its files, and a function that ends the reading."""
    if not path.is_dir():
        raise SourceError(f"{path}: not a directory")
    if revision is None and (path / _NVGPU).is_dir():
        return str(path), partial(_directory_files, path), lambda: None
    directory = git_directory(path)
    if directory is None:
        raise SourceError(f"{path}: neither a gVisor checkout ({_NVGPU} is not there) nor a git repository")
    objects = Objects(path, directory)
    try:
        commit = _commit(path, directory, objects, revision or "HEAD")
    except BaseException:
        objects.close()
        raise
    return f"{path}@{commit[:12]}", partial(_git_files, objects, commit), objects.close


def _directory_files(path: Path, directory: str) -> dict[str, bytes]:
    return {f"{directory}/{name}": data for name, data in read_package_files(path / directory).items()}


def _commit(path: Path, directory: Path, objects: Objects, revision: str) -> str:
    name = revision
    if name == "HEAD":
        with (directory / "HEAD").open("rb") as file:
            name = file.read(4096).decode("utf-8", "replace").strip().removeprefix("ref: ")
    found = next(objects.check([f"{name}^{{commit}}"])) if re.fullmatch(r"[\w./@+^~-]+", name) else None
    if found is None or found[1] != "commit":
        raise SourceError(f"{path}: no revision {revision!r}; name a commit, a branch or a tag of that repository")
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
