"""Small driver trees for tests: as files, as git repositories, as archives."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

from nvproxy_model.drivers.parsing.scan import SDK, UVM
from tests import ROOT

ENVIRONMENT = {"NVPROXY_CACHE_DIR": "", "PYTHONPATH": str(ROOT)}
"""For a command in a process of its own: this checkout, and no cache."""

TYPES = """\
#ifndef T
#define T
typedef unsigned char NvU8; typedef unsigned short NvU16; typedef unsigned int NvU32; typedef unsigned long long NvU64;
typedef signed char NvS8; typedef short NvS16; typedef int NvS32; typedef long long NvS64;
typedef NvU8 NvBool; typedef NvU32 NvHandle; typedef NvU32 NvV32; typedef void *NvP64;
#define NV_ALIGN_BYTES(n) __attribute__((aligned(n)))
#endif
"""


def tree(nvos: str = "", version: str = "", **more: str) -> dict[str, str]:
    """A tree's files: an SDK of nvtypes.h and nvos.h, and others by path (``__`` for ``/``, ``_h`` for ``.h``)."""
    files = {
        f"{SDK}/nvtypes.h": TYPES,
        f"{SDK}/nvos.h": f'#include "nvtypes.h"\n{nvos}\n',
        f"{UVM}/uvm_ioctl.h": '#include "nvtypes.h"\ntypedef struct { NvU32 rmStatus; } UVM_PARAMS;\n',
    }
    if version:
        files["version.mk"] = f"NVIDIA_VERSION = {version}\n"
    for name, text in more.items():
        files[f"{SDK}/{name.replace('__', '/').removesuffix('_h')}.h"] = text
    return files


def write(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write a tree's files below a directory."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def git(repository: Path, *arguments: str, **environment: str) -> str:
    """Run git in a repository as a test's author would."""
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@example.org",
        "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
        "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    done = subprocess.run(
        ["git", *arguments],
        cwd=repository,
        env={**os.environ, **identity, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def repository(root: Path, releases: Mapping[str, Mapping[str, str]], parents: Mapping[str, str] | None = None) -> Path:
    """A repository with one commit a release, tagged; each descends from the one before it unless ``parents`` says another."""
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "-q", "-b", "main")
    for version, files in releases.items():
        if parents and version in parents:
            git(root, "checkout", "-q", "--detach", parents[version])
        for entry in root.iterdir():
            if entry.name != ".git":
                subprocess.run(["rm", "-rf", str(entry)], check=True)
        write(root, files)
        git(root, "add", "-A")
        git(root, "commit", "-q", "--allow-empty", "-m", version)
        git(root, "tag", version)
    return root


def archive(
    path: Path, files: Mapping[str, str | bytes], prefix: str = "open-gpu-kernel-modules/", mode: str = "w:gz"
) -> Path:
    """A tar archive of a tree."""
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(prefix + name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path
