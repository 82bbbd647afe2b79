"""cuinterpose run: what reaches the program, and everything that is refused because ld.so would let it go by."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuinterpose import elf, launcher
from tests.cuinterpose.shim_world import Command
from tests.effort import examples


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("cuinterpose: error: ")
    for word in words:
        assert word in done.stderr


@pytest.fixture
def true(tmp_path: Path) -> Path:
    """A copy of a small dynamic program, to be spoiled."""
    copy = tmp_path / "true"
    shutil.copy(os.path.realpath(shutil.which("true") or "/bin/true"), copy)
    return copy


def test_the_program_runs_under_the_shim(command: Command) -> None:
    done = command("run", "--", command.world.root / "cases", "versioned_stats", **driver(command))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok ")


def driver(command: Command) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(command.world.driver("13.1").parent), "CASE_DRIVER": "13010"}


def test_no_parent_stays_and_the_status_is_the_programs(command: Command) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "cuinterpose.cli", "run", "--check", "--", "sh", "-c", "echo $$; exit 7"],
        env=command.environment(),
        cwd=command.world.root,
        stdout=subprocess.PIPE,
        text=True,
    )
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (7, f"{process.pid}\n")


def test_existing_entries_stay_once_and_behind(command: Command) -> None:
    plugin = str(command.world.root / "objects" / "libdep.so")
    shim = str(command.world.shim)
    done = command("run", "sh", "-c", "echo $LD_PRELOAD", LD_PRELOAD=f"{plugin} {shim}:{plugin}")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{shim}:{plugin}\n", "")


def test_arguments_arrive_as_they_are(command: Command) -> None:
    done = command("run", "--", "printf", "%s|", "--check", "a b", "")
    assert done.stdout == "--check|a b||"


def test_script_by_its_interpreter(command: Command, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#! /usr/bin/env -S sh -e\necho $LD_PRELOAD\n")
    script.chmod(0o755)
    assert command("run", script).stdout == f"{command.world.shim}\n"


@pytest.mark.parametrize("name", ["with blank", "with:colon", "with both: of them"])
def test_unclean_path_to_the_shim(command: Command, tmp_path: Path, name: str) -> None:
    unclean = tmp_path / name / "shim.so"
    unclean.parent.mkdir()
    shutil.copy(command.world.shim, unclean)
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    for _ in range(2):  # the second time the link is there
        done = command(
            "run",
            "--check",
            "sh",
            "-c",
            "echo $LD_PRELOAD",
            CUINTERPOSE_SHIM=str(unclean),
            XDG_RUNTIME_DIR=str(runtime),
            CUINTERPOSE_DIR="",
        )
        assert done.stderr == ""
        link = Path(done.stdout.strip())
        assert link.parent == runtime / "cuinterpose"
        assert link.resolve() == unclean
    assert stat.S_IMODE(link.parent.stat().st_mode) == 0o700
    assert len(list(link.parent.iterdir())) == 1


@pytest.mark.parametrize("spelling", ["./{name}", "../{parent}/{name}", "{path}", "./link"])
def test_program_by_any_path(command: Command, true: Path, spelling: str) -> None:
    """ld.so, asked what it would load, takes a path without a slash for a name; ./prog is the commonest way to say one."""
    (true.parent / "link").symlink_to(true)
    said = spelling.format(name=true.name, parent=true.parent.name, path=true)
    done = subprocess.run(
        [sys.executable, "-m", "cuinterpose.cli", "run", "--check", "--", said],
        env=command.environment(),
        cwd=true.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_program_of_the_working_directory_by_path(command: Command, true: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cuinterpose.cli", "run", true.name],
        env={**command.environment(), "PATH": f":{os.environ['PATH']}"},
        cwd=true.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_check_names_what_only_the_shim_satisfies(command: Command) -> None:
    """A program linked with 13.1's stubs: on 12.2 its device-explicit calls would end in our wrapper, and nowhere else."""
    world = command.world
    for version, lacking in (("12.2", {"cuMulticastBindAddr_v2", "cuMulticastBindMem_v2"}), ("13.1", set())):
        path = ":".join(str(part) for part in (world.driver(version).parent, world.root / "objects"))
        done = command("run", "--check", "--", world.root / "direct", "no such case", LD_LIBRARY_PATH=path)
        warnings = [line for line in done.stderr.splitlines() if line.startswith("cuinterpose: warning: ")]
        assert {line.split(" refers to ")[1].split(",")[0] for line in warnings} == lacking
        assert all("/direct refers to" in line and "(500)" in line for line in warnings)


def test_unclean_path_and_no_clean_place(command: Command, tmp_path: Path) -> None:
    unclean = tmp_path / "a b"
    unclean.mkdir(mode=0o700)
    shutil.copy(command.world.shim, unclean / "shim.so")
    shim = str(unclean / "shim.so")
    refused(command("run", "true", CUINTERPOSE_SHIM=shim, CUINTERPOSE_DIR=str(unclean)), "CUINTERPOSE_DIR")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    refused(command("run", "true", CUINTERPOSE_SHIM=shim, CUINTERPOSE_DIR=str(open_to_all)), "chmod 700")


def test_shim_that_is_none(command: Command, tmp_path: Path) -> None:
    refused(command("run", "true", CUINTERPOSE_SHIM=str(tmp_path / "none.so")), "no such file")
    (tmp_path / "text.so").write_text("text")
    refused(command("run", "true", CUINTERPOSE_SHIM=str(tmp_path / "text.so")), "not ELF")
    (tmp_path / "cut.so").write_bytes(command.world.shim.read_bytes()[:40])
    refused(command("run", "true", CUINTERPOSE_SHIM=str(tmp_path / "cut.so")), "truncated")


def test_damaged_shim(command: Command, tmp_path: Path) -> None:
    """Right class and machine, so only ld.so itself can tell: its word on stderr becomes our error."""
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(command.world.shim.read_bytes()[:2000])
    refused(command("run", "true", CUINTERPOSE_SHIM=str(damaged)), "damaged.so")


def test_another_shim_fails_the_check_alone(command: Command) -> None:
    other = str(command.world.root / "objects" / "libdep.so")
    assert command("run", "true", CUINTERPOSE_SHIM=other).returncode == 0
    refused(command("run", "--check", "true", CUINTERPOSE_SHIM=other), "no cuinterpose_stats")


def test_check_of_a_disabled_shim(command: Command) -> None:
    refused(command("run", "--check", "true", CUINTERPOSE_DISABLE="1"), "disabled")
    assert command("run", "true", CUINTERPOSE_DISABLE="1").returncode == 0


@pytest.mark.parametrize("entry", ["/nowhere/libx.so", "libnowhere-at-all.so"])
def test_preload_that_ld_so_would_drop(command: Command, entry: str) -> None:
    done = command("run", "true", LD_PRELOAD=entry)
    # the first line is ld.so's own, about the Python that runs the command
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith(
        f"cuinterpose: error: object '{entry}' from LD_PRELOAD cannot be preloaded"
    )


def test_no_program(command: Command, tmp_path: Path) -> None:
    refused(command("run"), "no command")
    refused(command("run", "--"), "no command")
    refused(command("run", "no-such-program"), "no-such-program")
    refused(command("run", tmp_path), str(tmp_path))
    data = tmp_path / "data"
    data.write_bytes(b"data")
    data.chmod(0o755)
    refused(command("run", data), "not ELF")
    data.write_text("#!\n")
    refused(command("run", data), "#!")
    data.write_text(f"#!{data}\n")
    refused(command("run", data), "nested")
    data.write_text("#!/nowhere/interpreter\n")
    refused(command("run", data), "/nowhere/interpreter")


def test_static_program(command: Command, tmp_path: Path) -> None:
    source = tmp_path / "static.c"
    source.write_text("int main(void) { return 0; }\n")
    try:
        subprocess.run(["gcc", "-static", source, "-o", tmp_path / "static"], check=True, capture_output=True)
    except subprocess.CalledProcessError:
        pytest.skip("no static C library here")
    refused(command("run", tmp_path / "static"), "statically linked")


def test_other_machine_and_class(command: Command, true: Path) -> None:
    data = bytearray(true.read_bytes())
    data[18:20] = (183 if data[18] == 62 else 62).to_bytes(2, "little")
    true.write_bytes(data)
    refused(command("run", true), "x86-64", "aarch64")
    ident = bytearray(64)
    ident[:7] = b"\x7fELF\1\1\1"
    ident[16:20] = b"\2\0\3\0"
    ident[42:44] = (32).to_bytes(2, "little")  # e_phentsize
    true.write_bytes(ident)
    refused(command("run", true), "32-bit i386")


def test_set_user_id(command: Command, true: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root, to give a program away")
    os.chown(true, 65534, 65534)
    true.chmod(0o4755)
    refused(command("run", true), "set-user-ID")
    true.chmod(0o2755)
    refused(command("run", true), "set-group-ID")
    true.chmod(0o755)
    assert command("run", true).returncode == 0


def test_secure_execution_is_measured(command: Command, true: Path) -> None:
    """What ld.so does with it, which is why it is refused: exit 0, and no shim."""
    if os.getuid() != 0:
        pytest.skip("needs root, to give a program away")
    shutil.copy(os.path.realpath(shutil.which("env") or "/usr/bin/env"), true)
    os.chown(true, 65534, 65534)
    true.chmod(0o4755)
    done = subprocess.run(
        [true], env={"LD_PRELOAD": str(command.world.shim)}, capture_output=True, text=True, check=False
    )
    if "LD_PRELOAD" in done.stdout:
        pytest.skip("a file system mounted nosuid")
    assert (done.returncode, done.stderr) == (0, "")


def test_file_capabilities(command: Command, true: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # vfs_cap_data, revision 2, with CAP_NET_RAW permitted and the effective bit
    value = (0x02000001).to_bytes(4, "little") + (1 << 13).to_bytes(4, "little") + bytes(12)
    try:
        os.setxattr(true, "security.capability", value)
    except OSError:
        pytest.skip("no right, or no place, for file capabilities")
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setenv("CUINTERPOSE_SHIM", str(command.world.shim))
    true_owner = true.stat()
    assert not true_owner.st_mode & stat.S_ISUID
    with pytest.raises(launcher.LaunchError, match="file capabilities"):
        launcher.prepare([str(true)])


def test_missing_native_parts(command: Command, tmp_path: Path) -> None:
    """A pure package: the commands that need native parts say so and exit 2."""
    package = tmp_path / "cuinterpose"
    package.mkdir()
    for module in (command.world.root / "cuinterpose").glob("*.py"):
        shutil.copy(module, package)
    pure = {"PYTHONPATH": str(tmp_path)}
    for arguments in (["run", "true"], ["conform", "--libcuda", str(command.world.driver("13.1"))]):
        done = subprocess.run(
            [sys.executable, "-m", "cuinterpose.cli", *arguments],
            env={**command.environment(), **pure},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        refused(done, "NVPROXY_NATIVE=0")


names = st.text("abc/.", min_size=1, max_size=6).map(lambda text: f"/lib/{text}.so")


@settings(max_examples=examples(100))
@given(entries=st.lists(names), separators=st.lists(st.sampled_from([" ", ":", "  ", ": "]), min_size=1))
def test_preload_value(entries: list[str], separators: list[str]) -> None:
    existing = "".join(entry + separators[i % len(separators)] for i, entry in enumerate(entries))
    value = launcher.preload(Path("/opt/shim.so"), existing).split(":")
    assert value[0] == "/opt/shim.so"
    assert value[1:] == list(dict.fromkeys(entries))


@settings(max_examples=examples(40))
@given(data=st.binary(max_size=300))
def test_elf_reader_takes_anything(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "elf"
    for head in (b"", b"\x7fELF\2\1\1" + bytes(9), b"\x7fELF\1\1\1" + bytes(9)):
        path.write_bytes(head + data)
        with contextlib.suppress(elf.ElfError):
            elf.read(path)


def test_help_and_usage(command: Command) -> None:
    done = command("--help")
    assert done.returncode == 0
    for word in ("examples:", "run", "doctor", "ticket", "conform", "peers", "exit status"):
        assert word in done.stdout
    assert command().returncode == 2
