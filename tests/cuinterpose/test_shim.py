"""The shim among fake drivers and runtimes: every case is a process of its own, plain and sanitized."""

from __future__ import annotations

import re

import pytest

from tests.cuinterpose.shim_world import DRIVERS, World

NEWEST = "13.1"
WITHOUT_MULTICAST = "12.0"


def check(world: World, program: str, case: str, *, preload: str = "shim", **options: str) -> None:
    """preload: names of objects, and "shim", in LD_PRELOAD's order."""
    objects = [world.shim if name == "shim" else world.root / "objects" / f"lib{name}.so" for name in preload.split()]
    done = world.run(program, case, preload=objects, **options)
    assert (done.returncode, done.stderr) == (0, ""), f"{case}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    assert re.fullmatch(r"ok [1-9]\d* checks\n", done.stdout), done.stdout


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("case", ["dlsym_handle", "resolver", "abi_selection", "resolver_failure", "runtimes"])
def test_each_driver(world: World, driver: str, case: str) -> None:
    # a 13.0 driver refuses what a 13.1 runtime asks for, so "runtimes" are no newer than 13.0 but on 12.0 and 12.2
    check(world, "cases", case, driver=driver)


@pytest.mark.parametrize("binding", ["lazy", "now"])
@pytest.mark.parametrize("program", ["direct", "direct-no-pie"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_direct(world: World, driver: str, program: str, binding: str) -> None:
    """A program linked with 13.1's libcuda, on each driver: what that lacks answers CUDA_ERROR_NOT_FOUND."""
    now = {"LD_BIND_NOW": "1"} if binding == "now" else {}
    check(world, program, "direct", driver=driver, **now)


@pytest.mark.parametrize(
    "case",
    [
        "pending_dlerror",
        "closed_driver",
        "unused_driver",
        "repeated_next",
        "private_scopes",
        "own_handle",
        "versioned_stats",
        "page_end",
        "forked",
        "threads",
    ],
)
def test_with_the_newest_driver(world: World, case: str) -> None:
    check(world, "cases", case, driver=NEWEST)


@pytest.mark.parametrize("case", ["dependency_of_group", "dlvsym_bypass", "dlmopen_bypass", "weak_reference"])
def test_limits(world: World, case: str) -> None:
    """Where the shim is seen or passed by: pinned, and listed in docs/cuinterpose.md."""
    if case == "dlmopen_bypass" and world.before:
        pytest.skip("a second namespace would load a second sanitizer runtime, which refuses")
    check(world, "cases", case, driver="13.0" if case == "weak_reference" else NEWEST)


def test_deepbind_is_a_bypass(plain: World) -> None:
    """Plain only: AddressSanitizer refuses RTLD_DEEPBIND."""
    check(plain, "cases", "deepbind_bypass", driver=NEWEST)


def test_no_allocation(plain: World) -> None:
    """Plain only: the sanitizer's allocator keeps no count in mallinfo2."""
    check(plain, "cases", "no_allocation", driver=NEWEST)


def test_two_runtimes_in_one_process(world: World) -> None:
    check(world, "cases", "two_runtimes", driver=NEWEST, runtimes="runtimes-13.1")


def test_phantom_of_an_early_runtime_12(world: World) -> None:
    check(world, "cases", "phantom_runtime", driver=NEWEST, runtimes="runtimes-12.0")


def test_second_copy_of_the_driver(world: World) -> None:
    check(world, "cases", "second_copy", driver=NEWEST, CASE_OTHER_DRIVER=str(world.driver("12.2")))


def test_disabled(world: World) -> None:
    check(world, "cases", "disabled", driver=NEWEST, CUINTERPOSE_DISABLE="1")


@pytest.mark.parametrize("order", ["early shim", "shim early"])
@pytest.mark.parametrize("switch", [{}, {"CUINTERPOSE_DISABLE": "1"}], ids=["enabled", "disabled"])
def test_look_ups_before_main(world: World, order: str, switch: dict[str, str]) -> None:
    check(world, "cases", "early_lookup", preload=order, driver=NEWEST, **switch)


@pytest.mark.parametrize("switch", [{}, {"CUINTERPOSE_DISABLE": "1"}], ids=["enabled", "disabled"])
def test_look_up_before_the_environment(world: World, switch: dict[str, str]) -> None:
    done = world.run("preinit", driver=NEWEST, **switch)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("case", "order"),
    [
        ("interposer_before", "interposer shim"),
        ("interposer_after", "shim interposer"),
        ("dlsym_interposer", "dlsym shim"),
        ("dlsym_interposer", "shim dlsym"),
        ("errno_of_default", "shim dlopen"),
    ],
)
def test_chains(world: World, case: str, order: str) -> None:
    check(world, "cases", case, preload=order, driver=NEWEST)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("mode", ["absent", "local", "global", "runtime", "resolvers"])
def test_transcript_is_the_same_without_the_shim(world: World, mode: str, driver: str) -> None:
    """Every look-up from every scope, dlerror's words and errno included, against glibc alone."""
    plain, shimmed = (world.run("transcript", mode, driver=driver, preload=preload) for preload in ([], None))
    assert (plain.returncode, plain.stderr) == (shimmed.returncode, shimmed.stderr) == (0, "")
    assert len(plain.stdout.splitlines()) > 700
    # one deviation: where a covered name is missing, dlerror names the shim in place of the program
    program = f"{world.root / 'transcript'}: undefined symbol: cu"
    assert shimmed.stdout.replace(f"{world.shim}: undefined symbol: cu", program) == plain.stdout
