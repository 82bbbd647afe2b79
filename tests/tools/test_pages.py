"""Manual pages and completions by the programs that read them, and the documents' tables."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cuinterpose import cli
from nvproxy_model.tools import pages
from nvproxy_model.tools.described import described
from tests import ROOT

BASH = "share/bash-completion/completions"
PROGRAMS = (*pages.PROGRAMS, described(cli.parser(), cli.EXAMPLES))
"""As setup.py has them."""


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prefix")
    pages.write(folder, of=PROGRAMS)
    return folder


def _needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"no {program} on this machine")


def test_every_subcommand_has_a_manual_page_that_groff_accepts(prefix: Path) -> None:
    _needs("groff")
    found = sorted(path.name for path in (prefix / "share/man/man1").iterdir())
    wanted = [p.name for p in PROGRAMS] + [f"{p.name}-{c.name}" for p in PROGRAMS for c in p.commands]
    assert found == sorted(f"{name}.1" for name in wanted)
    for name in found:
        path = prefix / "share/man/man1" / name
        done = subprocess.run(["groff", "-man", "-Tascii", "-ww", path], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), name
        assert "EXIT STATUS" in re.sub(r".\x08|\x1b\[\d*m", "", done.stdout)


def test_a_parser_is_described_as_a_declaration_is() -> None:
    program = PROGRAMS[-1]
    assert program.exits == {0: "yes", 1: "no", 2: "could not tell"}
    assert program.command("peers").exits == {
        0: "all that are there",
        1: "not all",
        2: "the directory cannot be read or trusted",
    }
    assert program.command("doctor").description.endswith("changes nothing.")
    assert program.command("run").exits == program.exits
    assert [one.names for one in program.command("doctor").each()] == [("pid",), ("--verbose",), ("--json",)]
    assert program.command("ticket").arguments[0].options["help"] == "show: what a descriptor of a process is"
    assert all(command.examples for command in program.commands)


def test_a_leading_dot_or_backslash_is_text() -> None:
    assert pages._roff(".so /etc/passwd\n'x \\fB-") == "\\&.so /etc/passwd\n\\&'x \\efB\\-"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("nvproxy-policy ex", ["explain"]),
        ("nvproxy-policy explain --kind co", ["control"]),
        ("nvproxy-policy explain --allow", ["--allow-unsupported"]),
        ("nvproxy-policy explain --form", ["--format"]),
        ("nvproxy-policy caps --kind", []),
        ("nvproxy-policy table README", []),
        ("cuinterpose pre", ["preflight"]),
        ("cuinterpose conform --lib", ["--libcuda", "--libcudart"]),
        ("cuinterpose doctor --col", []),
        ("cuinterpose peers --timeout", ["--timeout"]),
    ],
)
def test_bash_completes(prefix: Path, line: str, wanted: list[str]) -> None:
    words = line.split()
    script = (
        f"source {prefix / BASH / words[0]}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
        f"_{words[0].replace('-', '_')}; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == (wanted, "")


def test_bash_is_told_every_subcommand_and_flag(prefix: Path) -> None:
    for program in PROGRAMS:
        text = (prefix / "share/bash-completion/completions" / program.name).read_text()
        for command in program.commands:
            assert all(flag in text for one in command.each() if not one.positional for flag in one.names)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("nvproxy-policy ex", "explain"),
        ("nvproxy-policy explain --kind al", "alloc"),
        ("nvproxy-trace replay --pro", "--profile"),
    ],
)
def test_fish_completes(prefix: Path, line: str, wanted: str, tmp_path: Path) -> None:
    _needs("fish")
    source = prefix / "share/fish/vendor_completions.d" / f"{line.partition(' ')[0]}.fish"
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {source}; complete -C '{line}'"],
        capture_output=True,
        text=True,
        check=True,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert [answer.split("\t")[0] for answer in done.stdout.splitlines()] == [wanted]


@pytest.mark.parametrize("name", [program.name for program in PROGRAMS])
def test_zsh_reads_its_completions(prefix: Path, name: str) -> None:
    _needs("zsh")
    path = prefix / "share/zsh/site-functions" / f"_{name}"
    assert path.read_text().startswith(f"#compdef {name}\n")
    done = subprocess.run(["zsh", "-f", "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_zsh_completes(prefix: Path, tmp_path: Path) -> None:
    _needs("zsh")
    # A terminal of its own: zsh completes in its line editor only.
    script = f"""
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "PS1=; fpath=({prefix}/share/zsh/site-functions \\$fpath); autoload -Uz compinit; compinit -u -d {tmp_path}/dump"
zpty -w z "bindkey '^I' complete-word; print ready"
zpty -r -m z seen '*ready*ready*'
zpty -n -w z $'nvproxy-policy expl\\t--allow\\t; print done\\n'
zpty -r -m z seen '*--allow-unsupported*'
print -r -- $seen
"""
    done = subprocess.run(["zsh", "-f", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert "explain" in done.stdout  # "expl" and "--allow" were typed
    assert "--allow-unsupported" in done.stdout


@pytest.mark.parametrize("name", pages.TABLES)
def test_the_documents_tables_are_the_declarations(name: str) -> None:
    text = (ROOT / name).read_text()
    assert pages.updated(text, pages.TABLES[name]) == text, (
        "python3 -m nvproxy_model.tools.pages --docs brings it up to date"
    )


def test_a_document_without_a_place_for_the_table() -> None:
    with pytest.raises(ValueError, match="around the table"):
        pages.updated("<!-- subcommands -->\n", pages.PROGRAMS[0])


def test_the_readme_s_figures_are_the_command_s() -> None:
    text = (ROOT / "README.md").read_text()
    assert pages.refreshed(text) == text, "python3 -m nvproxy_model.tools.pages --docs brings it up to date"
    assert pages.refreshed(text.replace(" same\n", " other\n", 1)) == text
