"""The native parts: plain shared objects that know nothing of Python, one compiler call each; the commands' pages; the version.

NVPROXY_NATIVE=0 leaves the native parts out: the package is then pure, and the commands that need them say so.
The same files give the same distributions, byte for byte: SOURCE_DATE_EPOCH is the time in them.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import platform
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
from distutils.command.install_data import install_data  # setuptools' own, once it is imported
from email.parser import Parser
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))
from nvproxy_model._version import UNTAGGED  # noqa: E402

TIME = int(os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800"))  # 1980-01-01, the earliest that a wheel can say
os.umask(0o022)  # a wheel keeps the rights of its files

SHIM = "cuinterpose/src/"
RECORDER = "nvproxy_model/trace/record/recorder/"
MACHINE = sysconfig.get_platform().removeprefix("linux-")  # another's with _PYTHON_HOST_PLATFORM and CC
WARNINGS = ["-Wall", "-Wextra", "-Wshadow"]
# Branch protection holds for a process only if every object in it is marked, the linker's start files included, and
# Debian 12's are not: hence no start files, and on aarch64 no atomics helper of libgcc either.
PROTECTION = {
    "x86_64": ["-fcf-protection"],
    "aarch64": ["-mbranch-protection=standard", "-mno-outline-atomics"],
}.get(MACHINE, [])
COMPILE = ["-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-semantic-interposition", *WARNINGS, *PROTECTION]
LINK = ["-Wl,-z,relro,-z,now,-z,noexecstack"]
SHARING = ("ticket", "frame", "peer", "endpoint")
TRACKING = ("gate", "ledger", "contexts", "vmm", "watch", "share", "cycle", "inventory")
HEADERS = tuple(
    SHIM + f"{name}.h"
    for name in ("bytes", "owned", "shim", "surface", "track", "tracker", "real", *SHARING, *TRACKING[:3])
)


def shared_object(name: str, sources: list[str], *link: str, depends: tuple[str, ...] = ()) -> Extension:
    return Extension(
        name, sources, depends=list(depends), extra_compile_args=COMPILE, extra_link_args=[*LINK, *link, "-ldl"]
    )


NATIVE = [
    shared_object(
        "cuinterpose.libcuinterpose",
        [SHIM + name for name in ("shim.c", "names.c", "loader.c", "lookup.c", "dlsym.S")],
        "-nostartfiles",
        f"-Wl,-z,defs,-z,nodelete,-soname,libcuinterpose.so,--version-script={SHIM}shim.map",
        depends=tuple(SHIM + name for name in ("glibc.h", "shim.h", "surface.h", "track.h", "shim.map")),
    ),
    # Loaded by the shim with CUINTERPOSE_TRACK=1, so that a program that is not tracked has nothing of it.
    shared_object(
        "cuinterpose.libcutrack",
        [SHIM + f"{name}.c" for name in (*SHARING, *TRACKING)],
        "-Wl,-z,defs,-z,nodelete,-soname,libcutrack.so",
        "-pthread",
        depends=HEADERS,
    ),
    shared_object(
        "cuinterpose.libcucheckpoint",
        [SHIM + f"{name}.c" for name in ("cucheckpoint", "ticket", "frame", "peer")],
        "-Wl,-z,defs,-soname,libcucheckpoint.so",
        depends=("cuinterpose/cucheckpoint.h", *HEADERS),
    ),
    shared_object("cuinterpose.libcuprobe", [SHIM + "probe.c"]),
    shared_object(
        "nvproxy_model.trace.record.librecorder",
        [RECORDER + f"{name}.c" for name in ("calls", "look", "programs", "spool")],
        "-Wl,-z,defs",
        depends=tuple(RECORDER + f"{name}.h" for name in ("look", "programs", "real", "spool")),
    ),
]


class BuildNative(build_ext):
    """One call of $CC (or cc) makes one plain NAME.so."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext: Extension) -> None:
        output = Path(self.get_ext_fullpath(ext.name))
        output.parent.mkdir(parents=True, exist_ok=True)
        command = [
            *shlex.split(os.environ.get("CC", "cc")),
            *ext.extra_compile_args,
            *shlex.split(os.environ.get("CFLAGS", "")),
            "-shared",
            *ext.sources,
            "-o",
            str(output),
            *ext.extra_link_args,
        ]
        print(shlex.join(command))
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(
                f"error: {output.name}: {shlex.join(command[:1])} failed ({error.__class__.__name__}); "
                "install gcc or clang (or name one with CC), or set NVPROXY_NATIVE=0 for a package without native parts"
            ) from error


class PlatformWheel(bdist_wheel):
    """Any Python, no Python ABI, this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, plat = super().get_tag()
        return ("py3", "none", plat) if self.distribution.has_ext_modules() else (python, abi, plat)


class Pages(install_data):
    """Manual pages and shell completions, written from the commands' declarations, which need no dependency."""

    def run(self) -> None:
        from cuinterpose import cli
        from nvproxy_model.tools import pages
        from nvproxy_model.tools.described import described

        programs = (*pages.PROGRAMS, described(cli.parser(), cli.EXAMPLES))
        written = pages.write(Path(self.install_dir), self.distribution.get_version(), programs)
        self.outfiles = [str(path) for path in written]


class SourceDistribution(sdist):
    """A tar file in which neither who built it nor when nor in what order makes a difference."""

    def make_archive(self, base_name: str, format: str, root_dir=None, base_dir=None, owner=None, group=None) -> str:
        def impersonal(entry: tarfile.TarInfo) -> tarfile.TarInfo:
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = TIME
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            return entry

        path = f"{base_name}.tar.gz"
        with (
            open(path, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=TIME) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for entry in [Path(base_dir), *sorted(Path(base_dir).rglob("*"))]:
                archive.add(entry, recursive=False, filter=impersonal)
        return path


def version() -> str:
    """That of the tag vX.Y.Z which is checked out; after it, a development release of the one that comes next.

    A source distribution says its own. UNTAGGED where there is neither git nor a tag.
    """
    if (ROOT / "PKG-INFO").exists():
        return Parser().parsestr((ROOT / "PKG-INFO").read_text("utf-8"))["Version"]
    described = ""
    if (ROOT / ".git").exists():
        command = ["git", "-C", str(ROOT), "describe", "--tags", "--long", "--match", "v[0-9]*"]
        with contextlib.suppress(FileNotFoundError):
            described = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if not described:
        return UNTAGGED
    found = re.fullmatch(r"v(\d+\.\d+\.)(\d+)-(\d+)-(g[0-9a-f]+)", described)
    if found is None:
        raise SystemExit(f"error: a release's tag is vX.Y.Z, and git describes this tree as {described}")
    branch, patch, commits, commit = found.groups()
    return f"{branch}{patch}" if commits == "0" else f"{branch}{int(patch) + 1}.dev{commits}+{commit}"


native = (
    os.environ.get("NVPROXY_NATIVE", "1") != "0"
    and sys.platform == "linux"
    and platform.libc_ver()[0] == "glibc"
    and MACHINE in ("x86_64", "aarch64")
)
setup(
    version=version(),
    ext_modules=NATIVE if native else [],
    cmdclass={
        "build_ext": BuildNative,
        "bdist_wheel": PlatformWheel,
        "install_data": Pages,
        "sdist": SourceDistribution,
    },
    data_files=[("share", [])],  # what install_data is run for
)
