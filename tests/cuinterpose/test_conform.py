"""cuinterpose conform: the shim on every fake driver, on a real one where there is one, and shims that do not conform."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cuinterpose import surface
from tests import ROOT
from tests.cuinterpose.shim_world import DRIVERS, Command, World

REAL = "NVPROXY_LIBCUDA"

INERT = "int unrelated(void) { return 0; }"

# Offers what the driver does not have, by its own table of versions: BindMem_v2 at 13010 on every driver.
INVENTING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
int cuMulticastBindMem_v2(void) { return 1; }
int cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status)
{
	int (*real)(const char *, void **, int, uint64_t, int *) = dlvsym(RTLD_NEXT, "dlsym", DLSYM_VERSION);
	real = ((void *(*)(void *, const char *))real)(RTLD_NEXT, "cuGetProcAddress_v2");
	int result = real(symbol, pfn, version, flags, status);
	if (result == 0 && !strcmp(symbol, "cuMulticastBindMem") && version >= 13010)
		*pfn = (void *)cuMulticastBindMem_v2;
	return result;
}
void *dlsym(void *handle, const char *name)
{
	if (!strcmp(name, "cuGetProcAddress_v2"))
		return (void *)cuGetProcAddress_v2;
	return ((void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", DLSYM_VERSION))(handle, name);
}
"""

# Reads the status of a failed call, which need not be there.
CRASHING = INVENTING.replace("if (result == 0 &&", "if (*status >= -99 &&")


def conform(command: Command, libcuda: Path | str, *options: str | Path) -> tuple[int, dict[str, object]]:
    done = command("conform", "--json", "--libcuda", libcuda, *options)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def check_full_coverage(coverage: dict[str, dict[str, str]], lacking: set[str]) -> None:
    assert set(coverage) == set(surface.DRIVER)
    for name, routes in coverage.items():
        expected = {"phantom", "absent"} if name in lacking else {"covered"}
        assert set(routes.values()) <= expected | ({"absent"} if name == "cuGetProcAddress" else set()), name
        assert {"direct", "dlsym", "cuGetProcAddress", "cuGetProcAddress_v2"} <= set(routes)


@pytest.mark.parametrize("driver", DRIVERS)
def test_fake_drivers(command: Command, driver: str) -> None:
    status, found = conform(command, command.world.driver(driver))
    assert found["differences"] == []
    assert status == 0
    version = DRIVERS[driver]
    multicast = {name for name in surface.DRIVER if "Multicast" in name}
    lacking = {name for name in multicast if version < (13010 if name.endswith("_v2") else 12010)}
    check_full_coverage(found["coverage"], lacking)  # type: ignore[arg-type]
    assert int(str(found["substituted"])) > 2000


@pytest.mark.parametrize("soname", ["libcudart.so.11.0", "libcudart.so.12", "libcudart.so.13"])
def test_runtimes(command: Command, soname: str) -> None:
    driver = command.world.driver("13.0")
    status, found = conform(command, driver, "--libcudart", command.world.root / "runtimes" / soname)
    assert status == 0, found["differences"]
    coverage = found["coverage"]
    assert isinstance(coverage, dict)
    assert coverage["cuMemCreate"]["cudaGetDriverEntryPoint"] == "covered"
    assert coverage["cuMemMapArrayAsync_ptsz"]["cudaGetDriverEntryPoint_ptsz"] == "covered"


@pytest.mark.skipif(not os.environ.get(REAL), reason=f"no real libcuda: {REAL} names none (Debian's libcuda1 will do)")
def test_real_driver(command: Command) -> None:
    """Its resolvers answer without a GPU. Never a function that they return."""
    status, found = conform(command, os.environ[REAL])
    assert found["differences"] == []
    assert status == 0
    coverage = found["coverage"]
    assert isinstance(coverage, dict)
    assert set(coverage["cuMemCreate"].values()) == {"covered"}
    assert int(str(found["questions"])) > 10_000


@pytest.fixture(scope="module")
def other_shims(plain: World) -> dict[str, Path]:
    version = f'-DDLSYM_VERSION="{"GLIBC_2.2.5" if plain.tools.machine == "x86_64" else "GLIBC_2.17"}"'
    built = {}
    for name, text in {"inert": INERT, "inventing": INVENTING, "crashing": CRASHING}.items():
        source = plain.root / f"{name}.c"
        source.write_text(text)
        built[name] = plain.tools.shared(plain.root / f"lib{name}.so", [source], "-w", version, "-ldl")
    return built


def test_inert_shim(command: Command, other_shims: dict[str, Path]) -> None:
    status, found = conform(command, command.world.driver("12.2"), "--shim", other_shims["inert"])
    assert (status, found["differences"], found["substituted"]) == (1, [], 0)
    assert (
        "substitutes nothing"
        in command("conform", "--libcuda", command.world.driver("12.2"), "--shim", other_shims["inert"]).stdout
    )


def test_disabled_shim_is_not_probed_disabled(command: Command) -> None:
    done = command("conform", "--libcuda", command.world.driver("12.2"), CUINTERPOSE_DISABLE="1")
    assert done.returncode == 0


def test_inventing_shim(command: Command, other_shims: dict[str, Path]) -> None:
    status, found = conform(command, command.world.driver("12.2"), "--shim", other_shims["inventing"])
    assert status == 1
    differences = found["differences"]
    assert isinstance(differences, list)
    assert {(item["route"], item["asked"].split()[0]) for item in differences} == {
        ("cuGetProcAddress_v2", "cuMulticastBindMem")
    }
    # on a driver that has it, the same answers are right
    status, found = conform(command, command.world.driver("13.1"), "--shim", other_shims["inventing"])
    assert found["differences"] == []
    assert found["substituted"]


def test_talkative_shim(command: Command, tmp_path: Path) -> None:
    """A shim that prints on stdout, in the midst of the probe's lines, is judged by what it answers."""
    source = tmp_path / "talk.c"
    source.write_text(
        "#include <stdio.h>\n__attribute__((constructor)) static void talk(void)"
        ' { puts("[shim] loaded\\xff"); fflush(stdout); }\n'
    )
    talk = command.world.tools.shared(tmp_path / "talk.so", [source])
    status, found = conform(command, command.world.driver("12.2"), "--shim", talk)
    assert (status, found["differences"], found["substituted"]) == (1, [], 0)


def test_crashing_shim(command: Command, other_shims: dict[str, Path]) -> None:
    done = command("conform", "--libcuda", command.world.driver("12.2"), "--shim", other_shims["crashing"])
    assert done.returncode == 1
    assert "SIGSEGV" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--libcuda", "/nowhere/libcuda.so.1"], "/nowhere/libcuda.so.1"),
        (["--libcuda", "/dev/null"], "/dev/null"),
        (["--libcuda", "libm.so.6"], "exports no cuGetProcAddress"),
        (["--shim", "/nowhere/shim.so"], "no such file"),
    ],
)
def test_could_not_tell(command: Command, options: list[str], message: str) -> None:
    if options[0] == "--shim":
        options = [*options, "--libcuda", str(command.world.driver("12.2"))]
    done = command("conform", *options)
    assert done.returncode == 2, done.stdout
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("cuinterpose: error: ")
    assert message in done.stderr


def test_shim_that_ld_so_drops(command: Command, tmp_path: Path) -> None:
    bad = tmp_path / "bad.so"
    bad.write_bytes(b"not ELF")
    done = command("conform", "--libcuda", command.world.driver("12.2"), "--shim", bad)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be preloaded" in done.stderr


def test_text_output(command: Command) -> None:
    done = command("conform", "--libcuda", command.world.driver("13.0"))
    assert done.returncode == 0
    assert "cuMulticastBindMem_v2                   phantom" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(" 0 different")


def test_surface_is_the_shims(plain: World) -> None:
    header = (ROOT / "cuinterpose" / "src" / "surface.h").read_text()
    for name in (*surface.DRIVER, *surface.RUNTIME):
        assert f"X({name}," in header
    assert list(surface.DRIVER) == sorted(surface.DRIVER)
    assert sorted((*surface.DRIVER, *surface.RUNTIME)) == [*surface.DRIVER, *surface.RUNTIME]
    assert header.count("X(cu") == len(surface.DRIVER) + 2 + 4
