"""nvproxy-differ as its users run it: exit statuses, schemas, one-line errors, pipes."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nvproxy_model import versions
from nvproxy_model.drivers import evidence, facts
from nvproxy_model.drivers.compare.check import CheckedRelease, CheckReport
from nvproxy_model.drivers.render.text import check_lines
from nvproxy_model.tools import driver_differ
from tests.drivers.driver_world import ENVIRONMENT, git, repository, tree, write
from tests.schemas import document


def differ(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nvproxy_model.tools.driver_differ", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT, **environment},
        check=False,
    )


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The command in this process: (status, output, errors)."""
    try:
        status = driver_differ.main(arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else -1
    output, errors = capsys.readouterr()
    return status, output, errors


def test_check_of_the_recorded_facts(capsys: pytest.CaptureFixture[str]) -> None:
    status, output, errors = run(capsys, "check", "--json")
    report = document(output)
    assert (status, errors) == (0, "")
    known, compared = len(versions.load()), sum(name in facts.load() for name in versions.load())
    agree = sum(name in evidence.independent() for name in versions.load())
    assert report["summary"] == {
        "compared": compared,
        "same": compared,
        "different": 0,
        "agrees": agree,
        "not-checkable": known - compared - agree,
        "findings": 0,
    }
    assert all(r["reason"] for r in report["releases"] if r["status"] == "not-checkable")
    status, output, _ = run(capsys, "check")
    lines = output.splitlines()
    assert lines[0].split() == [
        "release",
        "model",
        "read",
        "structs",
        "constants",
        "taken",
        "from",
        "verdict",
    ]
    assert len(lines) == len(versions.load()) + 2 + agree
    weaker = f"{agree} agree with an independent table, {known - compared - agree} not checkable"
    counts = f"{compared} same, 0 different; {weaker}"
    assert lines[-1] == f"{compared} of {known} releases compared: {counts}"


def test_check_counts_the_parsed_where_any_was() -> None:
    some = CheckedRelease("1.1", "1.1", "same", headers=9, structs=3, constants=2, parsed=4)
    for releases in ((some,), (some, some._replace(parsed=None))):
        head, row, *_ = check_lines(CheckReport("here", releases))
        assert head.split()[2:5] == ["read", "parsed", "structs"]
        assert row.split()[2:5] == ["9", "4", "3"]


def test_check_of_a_release_outside_the_table_names_its_model(capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = run(capsys, "check", "570.211.01", "--json")
    (release,) = document(output)["releases"]
    assert (status, release["status"], release["model"]) == (0, "same", "570.195.03")


def test_check_that_compares_nothing_is_not_green(capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = run(capsys, "check", "620.06.00", "--json")
    assert status == 2
    assert document(output)["releases"][0]["status"] == "not-checkable"


def test_diff_of_patch_releases(capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = run(capsys, "diff", "570.195.03", "570.211.01", "--json")
    report = document(output)
    assert (status, report["verdict"], report["change"], report["findings"]) == (0, "same", "none", [])
    assert report["compared"]["headers"] > 500
    assert report["compared"]["structs"] > 300
    assert report["compared"]["constants"] > 400


def test_diff_of_all_names(capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = run(capsys, "diff", "580.105.08", "590.44.01", "--all", "--json")
    report = document(output)
    assert (status, report["verdict"]) == (1, "different")
    found = [f for f in report["findings"] if f["name"].split(".")[0] == "NV00FD_ALLOCATION_PARAMETERS"]
    assert [(f["kind"], f["name"].split(".")[1], f["base"], f["next"]) for f in found] == [
        ("field-resized", "pageSize", 4, 8),
        ("field-moved", "allocFlags", 60, 64),
        ("field-moved", "numGpus", 64, 68),
    ]
    again = run(capsys, "diff", "580.105.08", "590.44.01", "--all", "--json")[1]
    assert again == output


def test_compat_place_history_layout_audit(capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = run(capsys, "compat", "535.161.07", "535.161.08")
    assert status == 0
    assert output.startswith("yes: 535.161.07 and 535.161.08: no ABI change in what nvproxy interprets\n")
    assert run(capsys, "compat", "580.105.08", "590.44.01")[0] == 1
    status, output, _ = run(capsys, "place", "570.211.01")
    assert status == 0
    assert '"570.211.01": {parent: "570.195.03", supported: false}' in output
    status, output, _ = run(capsys, "history", "NV_CHANNEL_ALLOC_PARAMS", "NVOS64_PARAMETERS", "--json")
    channel, alloc = document(output)["histories"]
    assert [s["size"] for s in channel["states"]] == [304, 360, 368, 376]
    assert [(c["release"], c["to"]) for c in alloc["changes"]] == [
        ("515.43.04", "A"),
        ("525.53", "B"),
        ("535.43.02", "C"),
    ]
    status, output, _ = run(capsys, "layout", "NV00F8_ALLOCATION_PARAMETERS", "--driver", "595.45.04")
    assert "28     4  (hole)" in output
    status, output, _ = run(capsys, "audit", "--driver", "580.105.08", "--json")
    assert status == 0
    assert document(output)["summary"]["problems"] == 0


NVOS = (
    "typedef struct { NvHandle hRoot; NvHandle hObjectParent; NvHandle hObjectOld; NvV32 status; } NVOS00_PARAMETERS;\n"
)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    releases = {
        "570.195.03": tree(NVOS),
        "570.211.01": tree(NVOS + "\n// comment\n"),
        "575.51.02": tree(NVOS.replace("NvV32 status", "NvU64 status")),
        "580.1.1": tree("typedef struct { Missing x; } NVOS64_PARAMETERS;"),
    }
    return repository(tmp_path / "repo", releases)


def test_diff_of_a_repository(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = ("--source", str(repo))
    status, output, _ = run(capsys, "diff", "570.195.03", "570.211.01", *source, "--json")
    assert (status, document(output)["compared"]["structs"]) == (0, 1)
    status, output, _ = run(capsys, "diff", "570.211.01", "575.51.02", *source)
    assert status == 1
    assert "field-resized" in output
    assert output.splitlines()[-1] == "verdict: different (breaking), scope model"
    status, output, _ = run(capsys, "check", "570.195.03", *source)
    assert status == 1
    assert "struct-removed" in output


def test_check_of_a_tree_outside_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t", tree(NVOS, "555.58.02"))
    status, output, _ = run(capsys, "check", "--source", str(path), "--json")
    releases = {r["version"]: r for r in document(output)["releases"]}
    assert status == 1
    assert (releases["555.58.02"]["status"], releases["555.58.02"]["model"]) == ("different", "555.42.02")
    assert releases["570.195.03"]["status"] == "not-checkable"


def test_record_of_a_repository(tmp_path: Path, repo: Path, capsys: pytest.CaptureFixture[str]) -> None:

    git(repo, "tag", "-d", "580.1.1")
    for name in ("a.xz", "b.xz"):
        status, _, _ = run(capsys, "record", "--source", str(repo), "--output", str(tmp_path / name))
        assert status == 0
    assert (tmp_path / "a.xz").read_bytes() == (tmp_path / "b.xz").read_bytes()


MISTAKES: list[tuple[list[str], str]] = [
    (["diff", "570.195.03", "570.195.03"], "BASE and NEXT are the same release"),
    (["diff", "570.195.03", "570.999"], r"570\.999: .*nearest: 570\."),
    (["diff", "", "570.195.03"], "an empty name"),
    (["check", "570.195.03", "570.195.03"], "named twice"),
    (["check", ""], "an empty name"),
    (["check", "999.99.99"], r"999\.99\.99: neither in .* nearest known"),
    (["check", "570.\n195\x1b[31m"], r"570\.\\n195\\x1b\[31m: neither"),
    (["check", "515.43.04"], "no ancestor of it is in driver_versions.yaml"),
    (["check", "--source", ""], "an empty path"),
    (["check", "--source", "/nonexistent"], "/nonexistent: No such file"),
    (["check", "--source", "/dev/null"], "neither a directory nor a file"),
    (["check", "--sour", "x"], r"unrecognized arguments: --sour x? ?\(see nvproxy-differ check --help\)"),
    (["check", "--source", "https://example.com/tree"], "https://example.com/tree: an address is not read; clone it"),
    (["frobnicate"], "invalid choice"),
    (["history", "NV_NO_SUCH_THING"], "NV_NO_SUCH_THING: in none of 207 releases"),
    (["history", "NV_CHANNEL_ALLOC_PARAM"], "did you mean NV_CHANNEL_ALLOC_PARAMS"),
    (["history", "NVOS64_PARAMETERS", "--since", "1.2.3"], "--since 1.2.3: no such release"),
    (["history", "NVOS64_PARAMETERS", "--branch", "999"], "--branch 999"),
    (["layout", "NVOS64_PARAMETER"], "did you mean NVOS64_PARAMETERS"),
    (["layout", "NVOS64_PARAMETERS", "--driver", "1.2"], r"1\.2: not a recorded release"),
    (["place", "1.2.3"], r"1\.2\.3: not a recorded release"),
    (["place", "515.43.04"], "no ancestor of it"),
    (["record", "--source", "REPO", "--output", "/nonexistent/x"], r"580\.1\.1: .*unknown type name 'Missing'"),
    (["check", "580.1.1", "--source", "REPO"], r"580\.1\.1: .*nvos\.h:2: unknown type name 'Missing'"),
    (["diff", "570.195.03", "580.1.1", "--source", "REPO"], r"nvos\.h:2"),
    (["diff", "570.195.03", "570.1", "--source", "REPO"], r"no tag 570\.1"),
    (["diff", "--", "--upload-pack=x", "570.195.03", "--source", "REPO"], "unrecognized|no such|not a recorded"),
    (["check", "--source", "TREE-WITHOUT-SDK"], "not a driver source tree"),
]


PAIRS = [
    ("570.195.03", "570.211.01", 0),
    ("590.48.01", "595.45.04", 1),
    ("590.48.01", "595.44.02", 1),
]


@pytest.mark.parametrize(("base", "following", "status"), PAIRS)
def test_four_commands_agree_on_a_pair(
    base: str, following: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each second release is not in the table, and its nearest listed ancestor is the first."""
    compat, text, _ = run(capsys, "compat", base, following, "--json")
    diff, differences, _ = run(capsys, "diff", base, following, "--scope", "interpreted", "--json")
    check, checked, _ = run(capsys, "check", following, "--json")
    place, placed, _ = run(capsys, "place", following, "--json")
    assert (compat, diff, check, place) == (status,) * 4
    (release,) = document(checked)["releases"]
    assert release["model"] == document(placed)["listed"] == base
    deciding = {finding["name"] for finding in document(text)["deciding"]}
    assert deciding == {finding["name"] for finding in document(differences)["findings"]}
    assert {f["name"] for f in release["findings"]} == {f["name"] for f in document(placed)["findings"]}
    if following == "595.45.04":
        assert deciding == {finding["name"] for finding in release["findings"]} == {"NV_MEMORY_EXTENDED_USER"}


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=[" ".join(a) or "nothing" for a, _ in MISTAKES])
def test_mistakes_are_one_line_on_standard_error(
    arguments: list[str], message: str, repo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    places = {"REPO": str(repo), "TREE-WITHOUT-SDK": str(tmp_path / "empty")}
    status, _, errors = run(capsys, *(places.get(a, a) for a in arguments))
    assert status == 2
    assert len(errors.splitlines()) == 1
    assert errors.startswith("nvproxy-differ: error: ")
    assert re.search(message, errors), errors
    assert "\x1b" not in errors


def test_a_closed_pipe_is_no_traceback() -> None:
    command = (
        f"{sys.executable} -m nvproxy_model.tools.driver_differ diff 515.43.04 595.45.04 --all; echo status $? >&2"
    )
    done = subprocess.run(
        ["bash", "-c", f"({command}) | head -1"],
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.stderr == "status 2\n"


def on_terminal(*arguments: str) -> tuple[str, int]:
    """What a terminal shows while the command runs, and its exit status."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(ENVIRONMENT, TERM="xterm", COLUMNS="100", PAGER="cat")
        os.execv(sys.executable, [sys.executable, "-m", "nvproxy_model.tools.driver_differ", *arguments])
    shown = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(terminal)
    return shown.decode(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_terminal_has_progress_and_colour_and_a_pipe_has_neither(repo: Path) -> None:
    command = ("history", "NVOS00_PARAMETERS", "--branch", "570", "--source", str(repo))
    shown, status = on_terminal(*command)
    assert status == 0
    assert "NVOS00_PARAMETERS: struct" in shown
    shown, status = on_terminal("check", "570.195.03", "--source", str(repo))
    assert (status, "\x1b[31mdifferent" in shown) == (1, True)
    shown, _ = on_terminal("check", "570.195.03", "570.211.01", "575.51.02", "--source", str(repo))
    assert "3/3" in shown
    done = differ("check", "570.195.03", "570.211.01", "575.51.02", "--source", str(repo))
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stderr == ""


def test_place_of_a_release_that_differs(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = run(capsys, "place", "575.51.02", "--source", str(repo), "--json")
    report = document(output)
    assert (status, report["listed"], report["verdict"]) == (1, "570.133.20", "different")
    assert report["yaml"] is None
    status, output, _ = run(capsys, "place", "570.211.01", "--source", str(repo), "--json")
    report = document(output)
    assert (report["parent"], report["listed"], report["children"]) == ("570.195.03", "570.195.03", [])
    assert report["yaml"] == '"570.211.01": {parent: "570.195.03", supported: false}'


def test_place_prints_members_and_rows_to_paste(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = NVOS.replace("NvV32 status", "NvU32 added[2]; NvV32 status")
    numbers = "#define NV_ESC_RM_FREE 0x99\n"
    repo = repository(tmp_path / "r", {"570.195.03": tree(NVOS), "570.999.01": tree(changed + numbers)})
    status, output, _ = run(capsys, "place", "570.999.01", "--source", str(repo), "--json")
    report = document(output)
    assert status == 1
    assert '    since("570.999.01", "added" / NvU32[2]),  # after status' in report["members"]
    assert (
        'frontend(0x99, "NV_ESC_RM_FREE", COMPUTE | UTILITY, "nvos.NVOS00_PARAMETERS", since="570.999.01"),'
        in report["rows"]
    )


def test_without_git_on_the_machine(repo: Path, tmp_path: Path) -> None:
    done = differ("check", "--source", str(repo), PATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "no git on this machine" in done.stderr


def test_help_of_every_subcommand_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for name in (command.name for command in driver_differ.PROGRAM.commands):
        status, output, _ = run(capsys, name, "--help")
        assert status == 0
        assert f"nvproxy-differ {name}" in output.partition("examples:")[2], name


def test_facts_are_answered_without_libclang_and_rich() -> None:
    block = "import sys\nfor m in ('clang', 'rich', 'git'): sys.modules[m] = None\n"
    program = (
        block + "from nvproxy_model.tools.driver_differ import main\nraise SystemExit(main(['check', '580.105.08']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env={**os.environ, **ENVIRONMENT}
    )
    assert done.returncode == 0, done.stderr


def test_what_the_table_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grown = tree(NVOS.replace("NvV32 status", "NvU64 status"))
    releases = {"570.195.03": tree(NVOS), "570.207": tree(NVOS), "570.211.01": grown}
    repo = repository(tmp_path / "r", releases)
    status, output, _ = run(capsys, "check", "--unlisted", "--source", str(repo), "--json")
    report = document(output)
    answers = {release["version"]: release for release in report["releases"]}
    assert list(answers) == ["570.207", "570.211.01"]
    assert (status, report["scope"]) == (1, "unlisted")
    for version, line in report["yaml"].items():
        placed = document(run(capsys, "place", version, "--source", str(repo), "--json")[1])
        assert (placed["yaml"], placed["listed"]) == (line, answers[version]["model"])
        assert (placed["verdict"] == "same") == (answers[version]["status"] == "same")
    listed = write(tmp_path / "570.195.03", tree("", "570.195.03"))
    status, output, _ = run(capsys, "check", "--unlisted", "--source", str(listed))
    assert (status, output) == (0, f"driver_versions.yaml lists every release of {listed}\n")
