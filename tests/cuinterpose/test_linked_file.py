"""What readelf says of the shim as it is linked: exports, needs, protection notes, and what it imports."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cuinterpose import surface
from tests import ROOT
from tests.cuinterpose.shim_world import World, build_shim

EXPORTS_OF_RUNTIME = {
    f"cudaGetDriverEntryPoint{form}@libcudart.so.{generation}"
    for generation in ("11.0", "12", "13")
    for form in ("", "_ptsz", "ByVersion", "ByVersion_ptsz")
    if generation != "11.0" or "ByVersion" not in form
}
BASE = {"x86_64": "GLIBC_2.2.5", "aarch64": "GLIBC_2.17"}
PROTECTION = {"x86_64": "x86 feature: IBT, SHSTK", "aarch64": "AArch64 feature: BTI, PAC"}


def readelf(path: Path, *options: str) -> str:
    if not shutil.which("readelf"):
        pytest.skip("no readelf here")
    return subprocess.run(["readelf", "-W", *options, path], capture_output=True, text=True, check=True).stdout


def symbols(path: Path) -> tuple[set[str], set[str]]:
    """(what it defines and exports, what it needs), versions included."""
    defined, needed = set(), set()
    for line in readelf(path, "--dyn-syms").splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[0].rstrip(":").isdigit() and fields[4] in ("GLOBAL", "WEAK"):
            (needed if fields[6] == "UND" else defined).add(fields[7])
    return defined, needed


def check_linked_file(path: Path, machine: str) -> None:
    defined, needed = symbols(path)
    versions = {"GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.34", *surface.RUNTIME_SONAMES}
    base = BASE[machine]
    hooks = {f"{name}@{base}" for name in ("dlsym", "dlclose")} | {
        f"{name}@@GLIBC_2.34" for name in ("dlsym", "dlclose")
    }
    assert len(EXPORTS_OF_RUNTIME) == 10
    assert defined - versions == {*surface.DRIVER, *EXPORTS_OF_RUNTIME, *hooks, "cuinterpose_stats"}
    # nothing private of the C library, which vanishes between releases, and none of the locks or allocators
    assert {name.split("@")[0] for name in needed} <= {
        *("dlopen", "dlvsym", "dladdr1", "dlinfo", "dl_iterate_phdr", "strcmp", "getenv", "write", "_exit"),
        *("realpath", "strrchr", "strcpy", "memcpy"),  # the tracker's path
        *("environ", "__environ", "__errno_location"),
    }
    assert not [name for name in needed if "PRIVATE" in name]
    dynamic = readelf(path, "-d")
    libraries = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    assert libraries <= {"libc.so.6", "libdl.so.2"}
    assert "[libcuinterpose.so]" in dynamic
    assert "NODELETE" in dynamic
    assert "NOW" in dynamic
    assert "TEXTREL" not in dynamic
    assert PROTECTION[machine] in readelf(path, "-n")
    headers = readelf(path, "-l")
    assert re.search(r"GNU_STACK .* RW ", headers)
    assert "GNU_RELRO" in headers
    assert not re.search(r"^\s+TLS ", headers, re.M)


def test_linked_file(plain: World) -> None:
    check_linked_file(plain.shim, platform.machine())


@pytest.mark.slow
def test_linked_file_of_aarch64(aarch64: World) -> None:
    check_linked_file(aarch64.shim, "aarch64")


def test_built_by_clang(tmp_path: Path, plain: World) -> None:
    if not shutil.which("clang"):
        pytest.skip("no clang here")
    build_shim(tmp_path, type(plain.tools)("clang"))
    check_linked_file(tmp_path / "cuinterpose" / "libcuinterpose.so", platform.machine())


def test_a_forwarded_call_is_one_jump(tmp_path: Path, plain: World) -> None:
    """As installed, at -O2: a load and a jump, with no lock, call or thread-local access to be seen."""
    if platform.machine() != "x86_64" or not shutil.which("objdump"):
        pytest.skip("the check reads x86-64 code with objdump")
    for name in surface.DRIVER:
        if name.startswith("cuGetProcAddress"):
            continue
        listing = subprocess.run(
            ["objdump", "-d", "--no-show-raw-insn", f"--disassemble={name}", plain.shim],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        code = [
            line.split("\t")[1].split("#")[0].split()[0] for line in listing.splitlines() if line.startswith("    ")
        ]
        assert code == ["endbr64", "jmp"], (name, listing)


def test_prototypes_against_the_real_headers(tmp_path: Path) -> None:
    """Every cuda.h that a CUDA wheel put beside this Python: the same functions, or none in that release."""
    import site

    headers = [path for root in site.getsitepackages() for path in Path(root).glob("nvidia/**/include/cuda.h")]
    if not headers:
        pytest.skip("no cuda.h here: pip install nvidia-cuda-runtime nvidia-cuda-runtime-cu12 to check against theirs")
    for header in headers:
        check_prototypes(header, tmp_path)


def check_prototypes(header: Path, where: Path) -> None:
    version = int(re.findall(r"#define CUDA_VERSION (\d+)", header.read_text(errors="replace"))[0])
    declared = set(re.findall(r"CUresult CUDAAPI (\w+)\(", header.read_text(errors="replace")))
    if version >= 12000:  # a macro for _v2 there; the header of 11 has the function
        declared.discard("cuGetProcAddress")
    lines = ["#define CUI_TYPES_FROM_CUDA_H", "#include <cuda.h>"]
    # cuda.h 11 has neither multicast types nor the five-argument resolver's
    if version < 12000:
        lines.append("typedef int CUdriverProcAddressQueryResult;")
    if version < 12010:
        lines.append(
            "typedef struct CUmulticastObjectProp_st CUmulticastObjectProp; typedef int CUmulticastGranularity_flags;"
        )
    lines += ["#undef cuGetProcAddress", f'#include "{ROOT}/cuinterpose/src/surface.h"']
    lines.append("#define X(name, params, args) typedef CUresult type_of_##name params;\nCUI_TYPED(X)\n#undef X")
    lines += [
        f'_Static_assert(__builtin_types_compatible_p(__typeof__({name}), type_of_{name}), "{name}");'
        for name in surface.TYPED
        if name in declared
    ]
    source = where / f"prototypes-{version}.c"
    source.write_text("\n".join(lines) + "\n")
    checked = sum(name in declared for name in surface.TYPED)
    assert checked >= 15, (header, checked)
    check_parameter_counts(header)
    subprocess.run(["gcc", "-fsyntax-only", "-I", str(header.parent), str(source)], check=True)


def check_parameter_counts(header: Path) -> None:
    """What is forwarded by its number of parameters has that number. _ptds and _ptsz take what their base takes."""
    text = header.read_text(errors="replace")
    declared = {
        name: 0 if parameters.strip() in ("", "void") else parameters.count(",") + 1
        for name, parameters in re.findall(r"CUresult CUDAAPI (\w+)\(([^;]*?)\);", text, re.S)
    }
    found = 0
    for name, count in surface.WATCHED.items():
        spelled = name if name in declared else re.sub(r"_pt[ds][sz]$", "", name)
        if spelled in declared:
            assert declared[spelled] == count, (header, name, declared[spelled], count)
            found += 1
    assert found >= 60, (header, found)
