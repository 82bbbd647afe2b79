"""Who may import whom, and what an embedder pays for the import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "nvproxy_model"

# A unit is a module of the package or one of its folders. `errors` may be imported by all.
ARROWS: dict[str, set[str]] = {
    "abi": {"caps", "fields", "rules", "structs"},
    "caps": set(),
    "decide": {"decision", "fields"},
    "decision": {"rules"},
    "drivers": {"abi", "fields", "layout", "rules", "structs", "versions", "caps"},
    "effects": {"abi", "decide", "decision", "handlers", "objects", "ports", "session", "structs"},
    "errors": set(),
    "fields": {"layout"},
    "handlers": {"abi", "decide", "decision", "fields", "structs"},
    "hardened": {"abi", "caps", "decide", "decision", "fields", "objects", "structs", "versions"},
    "layout": set(),
    "live": {"decide", "decision", "policy", "ports", "session", "trace", "versions", "caps"},
    "objects": set(),
    "policy": {"abi", "caps", "decide", "decision", "fields", "handlers", "hardened", "rules", "structs", "versions"},
    "ports": {"decision"},
    "rules": {"caps", "fields"},
    "seccomp": {"abi", "caps", "decide", "decision", "fields", "policy", "rules", "versions"},
    "session": {
        "effects",
        "abi",
        "decide",
        "decision",
        "fields",
        "handlers",
        "hardened",
        "objects",
        "policy",
        "ports",
        "rules",
        "structs",
    },
    "structs": {"fields"},
    "testing": {
        "abi",
        "caps",
        "decide",
        "decision",
        "fields",
        "objects",
        "policy",
        "ports",
        "rules",
        "session",
        "structs",
        "versions",
    },
    "trace": {
        "abi",
        "caps",
        "decide",
        "decision",
        "drivers",
        "fields",
        "layout",
        "objects",
        "policy",
        "ports",
        "rules",
        "session",
        "structs",
        "versions",
    },
    "versions": set(),
}


def _unit(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if _unit(path) not in ("tools", "__init__")]


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_import_is_a_drawn_arrow(path: Path) -> None:
    unit = _unit(path)
    units = {name.split(".")[1] for name in _imports(path) if name.startswith("nvproxy_model.")}
    units = {name for name in units if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()}
    assert units - ARROWS[unit] - {unit, "errors"} == set()
    outside = {name.split(".")[0] for name in _imports(path)} - set(sys.stdlib_module_names) - {"nvproxy_model"}
    assert not outside & {"structs", "tools", "tests"}
    if unit not in ("drivers", "trace", "testing", "live"):
        assert outside <= {"construct", "yaml"}


def test_the_arrows_name_what_there_is() -> None:
    assert {_unit(path) for path in _modules()} <= set(ARROWS)


def test_the_policy_library_needs_only_construct_and_pyyaml() -> None:
    """An embedder imports, decides, and runs a session with everything else absent."""
    program = """
import sys

ABSENT = "clang rich jinja2 markupsafe tree_sitter tree_sitter_go orjson zstandard hypothesis pytest".split()

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
from nvproxy_model import Policy, Session, Verdict

policy = Policy.for_driver("580.126.20", caps="compute,utility,profiling")
assert policy.decide_alloc(0x90CD, bytes(72), {}).verdict is Verdict.REJECT
assert policy.decide_control(0x90CD0104, None, {}).allowed
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
