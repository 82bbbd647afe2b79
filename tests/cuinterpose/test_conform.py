"""cuinterpose conform: the shim on every fake driver, on a real one where there is one, and shims that do not conform."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuinterpose import cli, elf, launcher, surface
from cuinterpose import conform as module
from tests import ROOT
from tests.builds import made_once
from tests.cuinterpose.shim_world import DRIVERS, NATIVE, Command, World
from tests.schemas import document

REAL = "NVPROXY_LIBCUDA"

slow = functools.partial(pytest.param, marks=pytest.mark.slow)

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

# A name outside the surface, at versions at which the driver does not have it.
OWN_EXPORT = INVENTING.replace("cuMulticastBindMem_v2", "cuMemMapOther").replace(
    '"cuMulticastBindMem") && version >= 13010', '"cuMemMapOther")'
)

# One name by one route.
PARTIAL = "int cuMemCreate(void) { return 1; }"

# No answer to one question.
HANGING = INVENTING.replace("#include <string.h>", "#include <string.h>\n#include <unistd.h>").replace(
    '"cuMulticastBindMem") && version >= 13010)', '"cuMemMap") && version == 12000)\n\t\tfor (;;) pause();\n\tif (0)'
)

# Reads the status of a failed call, which need not be there.
CRASHING = INVENTING.replace("if (result == 0 &&", "if (*status >= -99 &&")


SHIMS = {
    "inert": INERT,
    "inventing": INVENTING,
    "crashing": CRASHING,
    "own_export": OWN_EXPORT,
    "partial": PARTIAL,
    "hanging": HANGING,
}


Answers = tuple[str, str, str]
_parsed = functools.cache(module._parse)
Conform = Callable[..., tuple[int, dict[str, object]]]

@functools.cache
def _answers(probe: Callable[..., Answers], *arguments: Any, environment: tuple[str | None, ...]) -> Answers:
    """What the probe says; ``environment``: of what changes the answers."""
    return probe(*arguments)


@pytest.fixture
def here(plain: World, monkeypatch: pytest.MonkeyPatch) -> Callable[..., module.Conformance]:
    """The comparison in this process, of a driver by its version. What was asked once is not asked again by other tests."""
    probe = module._probe

    def remembered(*arguments: Any) -> Answers:
        environment = tuple(map(os.environ.get, ("FAKE_RUNTIME_FAILS", "CUINTERPOSE_DISABLE")))
        *others, names = arguments
        return _answers(probe, *others, tuple(names), environment=environment)

    monkeypatch.setattr(module, "_probe", remembered)
    monkeypatch.setattr(module, "_parse", _parsed)
    monkeypatch.setattr(launcher, "native_path", lambda name: plain.root / "cuinterpose" / name)
    return lambda driver, shim, *more: module.compare(str(plain.driver(driver)), shim, *more)


@pytest.fixture
def conform(here: Callable[..., module.Conformance], capsys: pytest.CaptureFixture[str]) -> Conform:
    """``conform(LIBCUDA, OPTION...)``: the command in this process, its exit status and its document."""

    def run(libcuda: Path | str, *options: str | Path) -> tuple[int, dict[str, object]]:
        status = cli.main(["conform", "--json", "--libcuda", str(libcuda), *map(str, options)])
        shown, errors = capsys.readouterr()
        assert errors == ""
        return status, document(shown)

    return run


def check_full_coverage(coverage: dict[str, dict[str, str]], lacking: set[str]) -> None:
    assert set(coverage) == set(surface.DRIVER)
    for name, routes in coverage.items():
        expected = {"phantom", "absent"} if name in lacking else {"covered"}
        assert set(routes.values()) <= expected | ({"absent"} if name == "cuGetProcAddress" else set()), name
        assert {"direct", "dlsym", "cuGetProcAddress", "cuGetProcAddress_v2"} <= set(routes)


@pytest.mark.parametrize("driver", [slow("12.0"), slow("12.2"), slow("13.0"), "13.1"])
def test_fake_drivers(plain: World, conform: Conform, driver: str) -> None:
    status, found = conform(plain.driver(driver))
    assert found["differences"] == []
    assert status == 0
    version = DRIVERS[driver]
    multicast = {name for name in surface.DRIVER if "Multicast" in name}
    lacking = {name for name in multicast if version < (13010 if name.endswith("_v2") else 12010)}
    lacking |= set(surface.WATCHED) - set(faked_of_the_watched())
    check_full_coverage(found["coverage"], lacking)  # type: ignore[arg-type]
    assert int(str(found["substituted"])) > 2000


@pytest.mark.parametrize("soname", [slow("libcudart.so.11.0"), slow("libcudart.so.12"), "libcudart.so.13"])
def test_runtimes(plain: World, conform: Conform, soname: str) -> None:
    driver = plain.driver("13.0")
    status, found = conform(driver, "--libcudart", plain.root / "runtimes" / soname)
    assert status == 0, found["differences"]
    coverage = found["coverage"]
    assert isinstance(coverage, dict)
    assert coverage["cuMemCreate"]["cudaGetDriverEntryPoint"] == "covered"
    assert coverage["cuMemMapArrayAsync_ptsz"]["cudaGetDriverEntryPoint_ptsz"] == "covered"


@pytest.mark.skipif(not os.environ.get(REAL), reason=f"no real libcuda: {REAL} names none (Debian's libcuda1 will do)")
def test_real_driver(conform: Conform) -> None:
    """Its resolvers answer without a GPU. Never a function that they return."""
    status, found = conform(os.environ[REAL])
    assert found["differences"] == []
    assert status == 0
    coverage = found["coverage"]
    assert isinstance(coverage, dict)
    assert set(coverage["cuMemCreate"].values()) == {"covered"}
    assert int(str(found["questions"])) > 10_000


@pytest.fixture(scope="module")
def other_shims(plain: World) -> dict[str, Path]:
    version = f'-DDLSYM_VERSION="{"GLIBC_2.2.5" if plain.tools.machine == "x86_64" else "GLIBC_2.17"}"'

    def make(root: Path) -> None:
        root.mkdir(exist_ok=True)
        for name, text in SHIMS.items():
            source = root / f"{name}.c"
            source.write_text(text)
            plain.tools.shared(root / f"lib{name}.so", [source], "-w", version, "-ldl")

    root = made_once(plain.root / "others", make)
    return {name: root / f"lib{name}.so" for name in SHIMS}


def test_inert_shim(plain: World, conform: Conform, other_shims: dict[str, Path]) -> None:
    status, found = conform(plain.driver("12.2"), "--shim", other_shims["inert"])
    assert (status, found["differences"], found["substituted"]) == (1, [], 0)
    assert found["why"] == "it substitutes nothing"


@pytest.mark.slow
def test_disabled_shim_is_not_probed_disabled(
    plain: World, here: Callable[..., module.Conformance], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUINTERPOSE_DISABLE", "1")
    assert here("12.2", plain.shim).conforms


def test_inventing_shim(plain: World, conform: Conform, other_shims: dict[str, Path]) -> None:
    status, found = conform(plain.driver("12.2"), "--shim", other_shims["inventing"])
    assert status == 1
    differences = found["differences"]
    assert isinstance(differences, list)
    assert {(item["route"], item["asked"].split()[0]) for item in differences} == {
        ("cuGetProcAddress_v2", "cuMulticastBindMem")
    }


@pytest.mark.slow
def test_what_is_invented_on_one_driver_is_right_on_another(
    plain: World, conform: Conform, other_shims: dict[str, Path]
) -> None:
    _, found = conform(plain.driver("13.1"), "--shim", other_shims["inventing"])
    assert found["differences"] == []
    assert found["substituted"]


def test_talkative_shim(plain: World, conform: Conform, tmp_path: Path) -> None:
    """A shim that prints on stdout, in the midst of the probe's lines, is judged by what it answers."""
    source = tmp_path / "talk.c"
    source.write_text(
        "#include <stdio.h>\n__attribute__((constructor)) static void talk(void)"
        ' { puts("[shim] loaded\\xff"); fflush(stdout); }\n'
    )
    talk = plain.tools.shared(tmp_path / "talk.so", [source])
    status, found = conform(plain.driver("12.2"), "--shim", talk)
    assert (status, found["differences"], found["substituted"]) == (1, [], 0)


def test_crashing_shim(plain: World, conform: Conform, other_shims: dict[str, Path]) -> None:
    """The signal, the question, and what was answered before it."""
    status, found = conform(plain.driver("12.2"), "--shim", other_shims["crashing"])
    assert (status, found["verdict"], found["ended"]) == (1, "does not conform", "SIGSEGV")
    assert re.search(
        r" SIGSEGV at question \d+ of \d+, cuGetProcAddress_v2\('.*', version 0, flags 0, no status\)",
        str(found["why"]),
    )
    assert found["last_question"] == {"route": "cuGetProcAddress_v2", "asked": "cuGetProcAddress 0 0 no status"}
    assert 0 < int(str(found["answered"])) < int(str(found["questions"]))
    assert found["differences"] == []


def test_shim_that_crashes_at_once(command: Command, tmp_path: Path) -> None:
    source = tmp_path / "abort.c"
    source.write_text("#include <stdlib.h>\n__attribute__((constructor)) static void start(void) { abort(); }\n")
    shim = command.world.tools.shared(tmp_path / "abort.so", [source])
    done = command("conform", "--libcuda", command.world.driver("12.2"), "--shim", shim)
    assert done.returncode == 1
    assert " SIGABRT before the first question" in done.stdout.splitlines()[0]


def test_hanging_shim(
    here: Callable[..., module.Conformance], other_shims: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module._probe

    def probe(libcuda: str, probe: Path, shim: Path | None, *more: Any) -> tuple[str, str, str]:
        monkeypatch.setattr(module, "_TIMEOUT_S", 5 if shim else 120)
        return real(libcuda, probe, shim, *more)

    monkeypatch.setattr(module, "_probe", probe)
    found = here("12.2", other_shims["hanging"])
    assert (found.verdict, found.ended) == ("does not conform", "a time-out of 5 s")
    assert found.last_question == ("cuGetProcAddress_v2", "cuMemMap 12000 0")


def test_own_exports_are_asked_too(here: Callable[..., module.Conformance], other_shims: dict[str, Path]) -> None:
    """A name that is not of the surface: exported, and given out where the driver refuses."""
    found = here("12.2", other_shims["own_export"])
    assert found.verdict == "does not conform"
    count = len(found.differences)
    assert {key[1].split()[0] for key, _, _ in found.differences} == {"cuMemMapOther"}
    assert "cuMemMapOther" in found.coverage
    lines = found.lines()
    assert f"{count} of " in lines[0]
    at = next(index for index, line in enumerate(lines) if line.startswith("different: "))
    # one group, though dozens of versions and flags were asked, with a status and without
    assert sum(line.startswith("different: ") for line in lines) == 1
    assert lines[at].startswith(f"different: cuGetProcAddress_v2('cuMemMapOther'): {count} answers, ")
    assert lines[at].endswith(", flags 0 1 2 3")
    assert lines[at + 1 : at + 3] == ["  without the shim  NULL", "  with the shim     a wrapper of cuMemMapOther"]


def test_partial_shim_is_counted(
    plain: World, here: Callable[..., module.Conformance], conform: Conform, other_shims: dict[str, Path]
) -> None:
    found = here("13.1", other_shims["partial"])
    assert found.conforms
    answer, advice = found.lines()[:2]
    given = len(surface.TYPED) + len(faked_of_the_watched())
    assert answer.endswith(f": it covers 0 of {given} names on every route, and every name on 0 of 4 routes")
    assert " conforms on " in answer
    assert "--require all" in advice
    required = dataclasses.replace(found, required=("dlsym", "cuGetProcAddress_v2"))
    assert required.verdict == "does not conform"
    assert "it does not cover dlsym cuGetProcAddress_v2, which --require names" in required.lines()[0]
    assert conform(plain.driver("13.1"), "--shim", other_shims["partial"], "--require", "all")[0] == 1


def test_required_routes_that_are_covered(plain: World, conform: Conform) -> None:
    required = "direct,dlsym,cuGetProcAddress,cuGetProcAddress_v2"
    status, found = conform(plain.driver("13.1"), "--require", required)
    assert (status, found["verdict"]) == (0, "conforms")
    routes = found["routes"]
    assert isinstance(routes, dict)
    assert routes["covered"] == routes["asked"] == routes["required"]
    names = found["names"]
    assert isinstance(names, dict)
    assert names["covered"] == names["given"]
    assert set(names["given"]) == {*surface.TYPED, *faked_of_the_watched()}


def test_required_routes_that_are_not_asked(
    plain: World, here: Callable[..., module.Conformance], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["conform", "--libcuda", str(plain.driver("13.1")), "--require"]
    assert cli.main([*arguments, "cudaGetDriverEntryPoint"]) == 2
    shown, errors = capsys.readouterr()
    assert shown == ""
    assert "--libcudart" in errors
    assert cli.main([*arguments, "direct,nonsense"]) == 2
    assert "no route 'nonsense'" in capsys.readouterr().err


def test_runtime_that_refuses_everything(
    plain: World, here: Callable[..., module.Conformance], conform: Conform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As every runtime does without a GPU: nothing was compared, so nothing can be said of it."""
    runtime = str(plain.root / "runtimes" / "libcudart.so.13")
    monkeypatch.setenv("FAKE_RUNTIME_FAILS", "1")
    found = here("13.0", plain.shim, runtime)
    assert found.verdict == "cannot tell"
    assert "the runtime refused every question (100: no device)" in found.lines()[0]
    assert dataclasses.replace(found, required=("cudaGetDriverEntryPoint",)).verdict == "cannot tell"
    status, answer = conform(plain.driver("13.0"), "--libcudart", runtime)
    assert (status, answer["verdict"]) == (2, "cannot tell")
    monkeypatch.delenv("FAKE_RUNTIME_FAILS")
    assert conform(plain.driver("13.0"), "--libcudart", runtime, "--require", "all")[0] == 0


def test_exported_names_are_readelfs(plain: World) -> None:
    if not shutil.which("readelf"):
        pytest.skip("no readelf here")
    for path in (plain.shim, plain.driver("13.1"), plain.root / "runtimes" / "libcudart.so.12"):
        listed = subprocess.run(["readelf", "-W", "--dyn-syms", path], capture_output=True, text=True, check=True)
        rows = [line.split() for line in listed.stdout.splitlines()]
        wanted = {
            row[7].split("@")[0]
            for row in rows
            if len(row) >= 8 and row[3] == "FUNC" and row[4] in ("GLOBAL", "WEAK") and row[6] != "UND"
        }
        assert set(elf.exports(path)) == wanted
        assert wanted


@given(data=st.binary(max_size=400), at=st.integers(0, 4000))
def test_exports_of_anything(plain: World, tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int) -> None:
    path = tmp_path_factory.getbasetemp() / "exports"
    good = plain.driver("13.1").read_bytes()
    path.write_bytes(good[:at] + data + good[at + len(data) :])
    with contextlib.suppress(elf.ElfError):
        assert isinstance(elf.exports(path), list)


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


@pytest.mark.slow
def test_text_output(command: Command) -> None:
    driver = command.world.driver("13.0")
    done = command("conform", "--libcuda", driver)
    assert done.returncode == 0
    answer, counts, table = done.stdout.splitlines()[:3]
    given = len(surface.TYPED) - 2 + len(faked_of_the_watched())
    covers = f"it covers {given} of {given} names on every route, and every name on 4 of 4 routes"
    assert answer == f"{command.world.shim} conforms on {driver}: {covers}"
    assert re.fullmatch(r"  \d+ questions, \d+ answers substituted, 0 different", counts)
    assert table.split() == ["direct", "dlsym", "cuGetProcAddress", "cuGetProcAddress_v2"]
    assert re.search("cuMulticastBindMem_v2 +phantom", done.stdout)


def faked_of_the_watched() -> list[str]:
    text = (NATIVE / "fake.h").read_text()
    return re.findall(r"F\((\w+),", text[text.index("#define FAKE_WATCHED") : text.index("#define FAKE_MULTICAST")])


def test_surface_is_the_shims(plain: World) -> None:
    header = (ROOT / "cuinterpose" / "src" / "surface.h").read_text()
    for name in (*surface.TYPED, *surface.RUNTIME):
        assert f"X({name}," in header
    assert header.count("X(cu") == len(surface.TYPED) + 2 + 4
    assert re.findall(r"\t[GN]\((\w+),", header) == list(surface.WATCHED)
    for names in (surface.TYPED, tuple(surface.WATCHED), surface.RUNTIME):
        assert list(names) == sorted(names)
