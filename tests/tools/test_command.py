"""What holds of every subcommand because it is declared: help at any width, --version, JSON, closed pipes."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nvproxy_model import __version__, versions
from nvproxy_model.tools.command import Command, OneOf, Program, programs
from tests import ROOT, schemas

PROGRAMS = programs()
SUBCOMMANDS = [
    pytest.param(program, command, id=f"{program.package}-{command.name}")
    for program in PROGRAMS
    for command in program.commands
]
TRACE = "tests/data/traces/event-buffer-chain.jsonl.gz"


def shown(capsys: pytest.CaptureFixture[str], program: Program, *argv: str) -> tuple[int, str]:
    try:
        status = program.main(argv)
    except SystemExit as stop:
        status = int(stop.code or 0)
    return status, capsys.readouterr().out


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize(("program", "command"), SUBCOMMANDS)
def test_help_fits_the_terminal(
    program: Program,
    command: Command,
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for argv in ((command.name, "--help"), ("help", command.name), ("--help",), ("help",), ()):
        status, text = shown(capsys, program, *argv)
        assert status == (0 if argv else 2)
        assert [line for line in text.splitlines() if len(line) > columns] == []
        assert "examples:" in text
        assert "exit status:" in text


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The release of a driver that this machine seems to have loaded."""
    proc = tmp_path / "version"
    proc.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.211.01  Wed\n")
    monkeypatch.setattr(versions.host, "__defaults__", (proc,))
    return "570.211.01"


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(("program", "command"), SUBCOMMANDS)
def test_every_argument_is_described_and_every_example_is_one(program: Program, command: Command) -> None:
    assert all(one.options.get("help") for one in command.each())
    assert command.examples
    assert command.failure in command.exits
    parser = program.parser()
    own = [shlex.split(example.line) for example in command.examples if example.line.startswith("nvproxy-")]
    assert any(words[:2] == [program.name, command.name] for words in own)
    for words in own:
        _, *arguments = words[: words.index(">") if ">" in words else words.index("|") if "|" in words else None]
        assert parser.parse_args(arguments).command == command.name


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: str(program.package))
def test_examples_of_a_program_parse(program: Program) -> None:
    for example in program.examples:
        assert program.parser().parse_args(shlex.split(example.line)[1:]).command


def test_a_wrapped_example_is_the_same_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for program in PROGRAMS:
        for command in program.commands:
            text = shown(capsys, program, command.name, "--help")[1].partition("\nexamples:\n")[2]
            lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
            wrapped = [shlex.split(line) for line in lines.replace("\\\n", " ").splitlines()]
            assert wrapped == [shlex.split(example.line) for example in command.examples]


def test_host_and_latest_are_drivers_everywhere(loaded: str) -> None:
    tried = 0
    for program in PROGRAMS:
        for command in program.commands:
            if not any("--driver" in one.names for one in command.each()):
                continue
            names = [one for one in command.each() if one.positional and one.options.get("nargs") not in ("?", "*")]
            required = [word for one in command.each() if one.options.get("required") for word in (one.names[0], "x")]
            for word, wanted in (("host", loaded), ("latest", versions.load().latest.name), ("1.2", "1.2")):
                args = program.parser().parse_args([command.name, "--driver", word, *required, *["x" for _ in names]])
                assert args.driver == wanted
            tried += 1
    assert tried > 10


def test_json_and_format_mean_the_same_everywhere() -> None:
    meaning = set()
    for program in PROGRAMS:
        for command in program.commands:
            groups = [item for item in command.arguments if isinstance(item, OneOf)]
            named = {name for one in command.each() for name in one.names}
            # With --report the document goes to a file: standard output is the watched program's.
            assert ("--json" in named) == ("--format" in named) == (bool(command.schemas) and "--report" not in named)
            for group in groups:
                for one in group.arguments:
                    if "--json" in one.names:
                        meaning.add((one.options["dest"], one.options["const"], one.options["action"]))
    assert meaning == {("format", "json", "store_const")}


DOCUMENTS = {
    "differ-check": ["check", "580.126.20"],
    "differ-diff": ["diff", "580.126.18", "580.126.20"],
    "differ-history": ["history", "NVOS00_PARAMETERS", "--branch", "580.65.06"],
    "differ-layout": ["layout", "NVOS00_PARAMETERS"],
    "differ-audit": ["audit", "--driver", "580.126.20"],
    "differ-coverage": ["coverage", "--driver", "580.126.20"],
    "differ-place": ["place", "580.126.20"],
    "differ-compat": ["compat", "570.195.03", "570.211.01"],
    "policy-explain": ["explain", "0xc020462a"],
    "policy-table": ["table", "latest", "--caps", "rdma"],
    "policy-conform": ["conform", "tests/data/nvproxy_vectors.json.xz"],
    "policy-seccomp": ["seccomp", "latest"],
    "policy-bundle": ["bundle"],
    "policy-caps": ["caps", "compute"],
    "policy-audit": ["audit"],
    "policy-restorable": ["restorable", TRACE],
    "policy-drivers": ["drivers"],
    "trace-decode": ["decode", TRACE],
    "trace-check": ["check", TRACE, "--driver", "580.126.20"],
    "trace-compare": ["compare", TRACE, "tests/data/traces/nvidia-smi.jsonl.gz"],
    "trace-stats": ["stats", TRACE],
    "trace-census": ["census", TRACE],
    "trace-replay": ["replay", TRACE, "--driver", "580.126.20"],
}
ELSEWHERE = {"differ-gvisor", "differ-pin", "policy-run"}
"""Their JSON is tested where their inputs are made: tests/drivers, tests/live."""


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_name_their_schema_and_what_made_them(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    package, _, subcommand = name.partition("-")
    program = next(program for program in PROGRAMS if program.package == package)
    program.main([*DOCUMENTS[name], "--json"])
    out = capfd.readouterr().out
    document, *lines = map(json.loads, out.splitlines() if subcommand == "decode" else [out])
    schemas.validate(document)
    for line in lines:
        schemas.validate(line, document["schema"])
    assert document["schema"] in program.command(subcommand).schemas
    made = document["produced_by"]
    assert set(made) == {"nvproxy_model", "gvisor_commit", "gvisor_change", "newest_release"}
    assert made["nvproxy_model"] == __version__
    status, text = 0, ""
    with pytest.raises(SystemExit) as stop:
        program.main([subcommand, "--version"])
    status, text = int(stop.value.code or 0), capfd.readouterr().out
    assert status == 0
    assert all(value in text for value in made.values())


def test_every_subcommand_with_json_is_tried() -> None:
    declared = {f"{p.package}-{c.name}" for p in PROGRAMS for c in p.commands if c.schemas}
    assert declared == set(DOCUMENTS) | ELSEWHERE


def test_the_kinds_of_log_are_those_that_are_read() -> None:
    from nvproxy_model.trace.logs import NAMES
    from nvproxy_model.trace.logs.kinds import KINDS

    assert set(KINDS) == set(NAMES)


def test_declarations_need_nothing_but_python() -> None:
    """What a build needs to write the manual pages: the package's dependencies are not there."""
    program = (
        "import cuinterpose.cli as cli, nvproxy_model.tools.described as described, nvproxy_model.tools.pages as pages\n"
        "assert list(pages.files(of=[*pages.PROGRAMS, described.described(cli.parser(), cli.EXAMPLES)]))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


OWN = ("dataclasses",) if sys.version_info < (3, 14) else ()
"""From Python 3.14 on, argparse itself imports some of these."""


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["explain", "--help"], []])
@pytest.mark.parametrize("package", ["policy", "differ", "trace"])
def test_help_and_version_import_no_construct(package: str, arguments: list[str]) -> None:
    if package != "policy" and "explain" in arguments:
        arguments = ["check", "--help"]
    program = (
        f"import sys; sys.modules |= dict.fromkeys(('construct', *{OWN}))\n"
        f"from nvproxy_model.tools.{package} import PROGRAM\n"
        f"raise SystemExit(PROGRAM.main({arguments!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0 if arguments else 2, "")


@pytest.mark.parametrize(
    ("call", "more"),
    [
        ("nvproxy_model.tools.policy.PROGRAM.main(['explain', '0x90cd'])", ()),
        ("nvproxy_model.tools.policy.PROGRAM.main(['caps', 'compute'])", OWN),
        ("nvproxy_model.tools.differ.PROGRAM.main(['check', '580.159.04'])", OWN),
        ("nvproxy_model.tools.differ.PROGRAM.main(['compat', '570.195.03', '570.211.01'])", ()),
        ("nvproxy_model.tools.differ.PROGRAM.main(['history', 'NVOS64_PARAMETERS'])", ()),
        (f"nvproxy_model.tools.trace.PROGRAM.main(['stats', {TRACE!r}])", ()),
        ("nvproxy_model.Policy.for_driver('580.126.20').decide_alloc(0x90CD, bytes(72), {})", ()),
    ],
)
def test_answers_import_neither_construct_nor_yaml(call: str, more: tuple[str, ...]) -> None:
    program = (
        f"import sys; sys.modules |= dict.fromkeys(('construct', 'yaml', *{more}))\n"
        f"import nvproxy_model.tools.policy, nvproxy_model.tools.differ, nvproxy_model.tools.trace\n{call}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", ["--help", "check --help", "--version"])
def test_help_into_a_closed_pipe_is_silent(arguments: str, tmp_path: Path) -> None:
    fifo = tmp_path / "closed"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(fifo, os.O_WRONLY)
    os.close(reader)
    command = [sys.executable, "-m", "nvproxy_model.tools.trace", *arguments.split()]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    os.close(writer)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("driver_differ", ("history",)),
        ("driver_differ", ("compat", "570.195.03")),
        ("policy", ("explain",)),
        ("policy", ("drivers",)),
        ("policy", ("conform",)),
        ("trace", ("check",)),
        ("trace", ()),
    ],
)
def test_a_mistake_shows_nothing_that_a_terminal_acts_on(
    module: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module(f"nvproxy_model.tools.{module}").main
    with pytest.raises(SystemExit) as stopped:
        main([*words, "x\x1b[31m\x85\u202e\u2028\u200f"])
    assert stopped.value.code == 2
    text = capsys.readouterr().err
    assert text.endswith("\n")
    assert text[:-1].isprintable(), ascii(text)
