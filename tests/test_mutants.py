"""benchmarks/mutants.py: what it changes, and that its figures can be trusted."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests import DATA, ROOT


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "benchmarks" / "mutants.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


PYTHON = '''
def f(a: int = 3, b: bool = True) -> "int | None":
    """A docstring: 5 == 5."""
    if a < 2 and not b:
        g("é", a + 1)
        return None
    raise ValueError(f"{a} + 1")
'''

C = """
/* a == b */
static int f(int a)
{
	if (a < 2 && g("x == y"))
		return 0;
	g(a + 1);
	return h(a);
}
"""


def changes(tool: ModuleType, tmp_path: Path, name: str, text: str) -> set[tuple[str, str]]:
    path = tmp_path / name
    path.write_text(text)
    found = set()
    for mutant in tool.mutants(path):
        changed = mutant.apply(text)
        assert changed != text
        if name.endswith(".py"):
            compile(changed, name, "exec")
        found.add(mutant.lines(text))
    return found


def test_mutants_of_python(tool: ModuleType, tmp_path: Path) -> None:
    found = changes(tool, tmp_path, "module.py", PYTHON)
    condition = "if a < 2 and not b:"
    assert {after for before, after in found if before == condition} == {
        "if a <= 2 and not b:",
        "if a < 3 and not b:",
        "if a < 2 or not b:",
        "if a < 2 and b:",
        "if (not (a < 2 and not b)):",
    }
    assert ('g("é", a + 1)', 'g("é", a - 1)') in found
    assert ('g("é", a + 1)', "pass") in found
    assert ('raise ValueError(f"{a} + 1")', "pass") in found
    assert not [before for before, _ in found if "docstring" in before or before == "return None"]


def test_mutants_of_c(tool: ModuleType, tmp_path: Path) -> None:
    found = changes(tool, tmp_path, "module.c", C)
    condition = 'if (a < 2 && g("x == y"))'
    assert {after for before, after in found if before == condition} == {
        'if (a <= 2 && g("x == y"))',
        'if (a < 3 && g("x == y"))',
        'if (a < 2 || g("x == y"))',
        'if (!(a < 2 && g("x == y")))',
    }
    assert {
        ("g(a + 1);", "g(a - 1);"),
        ("g(a + 1);", ";"),
        ("return h(a);", "return 0;"),
        ("return 0;", "return 1;"),
    } <= found
    assert not [before for before, _ in found if "/*" in before]


def test_listed_equivalents_exist(tool: ModuleType) -> None:
    """Each names a mutant that the module still has, and says why; a stale one would hide nothing and mislead."""
    listed = yaml.safe_load((DATA / "equivalent_mutants.yaml").read_text())
    for module, entries in listed.items():
        text = (ROOT / module).read_text()
        there = {mutant.lines(text) for mutant in tool.mutants(ROOT / module)}
        for entry in entries:
            assert entry.keys() == {"is", "becomes", "because"}
            assert (entry["is"], entry["becomes"]) in there, f"{module}: {entry['is']}"


class Tree:
    """A repository of one module, and its tests: one looks at f, one at nothing, one is red."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "module.py").write_text("def f(a):\n    return a + 1\n\n\ndef unseen(a):\n    return a - 2\n")
        (folder / "test_it.py").write_text("import module\n\ndef test_f():\n    assert module.f(3) == 4\n")
        (folder / "test_other.py").write_text("def test_nothing():\n    pass\n")
        (folder / "test_red.py").write_text("import module\n\ndef test_red():\n    assert False\n")
        subprocess.run(["git", "init", "-q", str(folder)], check=True)

    @staticmethod
    def passes(tree: Path, tests: list[str], timeout: float) -> bool:
        """What pytest would say of test_it.py, at no cost."""
        assert (tests, timeout) == (["test_it.py"], 60)
        found: dict[str, Any] = {}
        try:
            exec((tree / "module.py").read_text(), found)
            return found["f"](3) == 4  # type: ignore[no-any-return]
        except Exception:
            return False


@pytest.fixture
def tree(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "EQUIVALENT", tmp_path / "equivalent.yaml")
    return Tree(tmp_path)


def arguments(*tests: str) -> argparse.Namespace:
    return argparse.Namespace(tests=list(tests), seed=1, count=100, timeout=60, list=False)


def test_figures(
    tool: ModuleType, tree: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the test looks at is killed, and the rest survives."""
    monkeypatch.setattr(tool, "passes", tree.passes)
    assert tool.run("module.py", arguments("test_it.py")) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "module.py: seed 1: 3 killed, 3 survived, 0 equivalent"
    (tree.folder / "equivalent.yaml").write_text(
        "module.py:\n"
        "  - {is: return a - 2, becomes: return a + 2, because: nothing calls it}\n"
        "  - {is: return a - 2, becomes: return a - 3, because: nothing calls it}\n"
        "  - {is: return a - 2, becomes: return None, because: nothing calls it}\n"
        "  - {is: return a, becomes: return b, because: it is gone}\n"
    )
    assert tool.run("module.py", arguments("test_it.py")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "module.py: no such mutant (any more): return a  ->  return b"
    assert lines[-1] == "module.py: seed 1: 3 killed, 0 survived, 3 equivalent"


@pytest.mark.slow
def test_what_pytest_says(tool: ModuleType, tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.passes(tree.folder, ["test_it.py"], 60)
    for tests, why in (("test_other.py", "do not load it"), ("test_red.py", "fail as they are")):
        assert tool.run("module.py", arguments(tests)) == 2
        assert why in capsys.readouterr().err
