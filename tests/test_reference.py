"""Every public name is documented: the modules of docs/reference, read as source, as the site's generator reads them."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import ROOT

REFERENCE = ROOT / "docs" / "reference"
MODULES = sorted(
    name for page in REFERENCE.glob("*.md") for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
)
IMPORT = re.compile(r"^ *from ((?:nvproxy_model|cuinterpose)[\w.]*) import ([\w, ]+)", re.MULTILINE)
FOR_CONTRIBUTORS = {"adding-a-command.md", "adding-a-driver.md", "adding-a-subcommand.md"}


@cache
def statements(module: str) -> tuple[ast.stmt, ...]:
    """The top level of a module, what stands under ``if TYPE_CHECKING`` included."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None, module
    body = ast.parse(Path(spec.origin).read_text()).body
    return tuple(one for node in body for one in (node.body if isinstance(node, ast.If) else [node]))


def defined(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def public(module: str) -> list[str]:
    """``__all__``, or what the module defines without an underscore."""
    body = statements(module)
    for node in body:
        if defined(node) == ["__all__"] and isinstance(node, ast.Assign):
            return [name for name in ast.literal_eval(node.value) if name != "__version__"]
    return [name for node in body for name in defined(node) if not name.startswith("_")]


def documented(module: str, name: str) -> bool:
    """A docstring, of the definition or of the class or function that the name is imported from."""
    body = statements(module)
    for node, after in zip(body, (*body[1:], None), strict=True):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    package = ".".join(module.split(".")[: -node.level]) if node.level else ""
                    return documented(f"{package}.{node.module}".lstrip("."), alias.name)
        elif name in defined(node):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                return bool(ast.get_docstring(node))
            return isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    return False


def undocumented_methods(module: str) -> Iterator[str]:
    for node in statements(module):
        if isinstance(node, ast.ClassDef) and node.name in public(module):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name[0] != "_" and not ast.get_docstring(method):
                    yield f"{node.name}.{method.name}"


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_documented(module: str) -> None:
    assert [name for name in public(module) if not documented(module, name)] == []
    assert list(undocumented_methods(module)) == []


def test_what_the_documents_import_is_public() -> None:
    """A module that a page, the README or an example imports from is in the reference, or its names are."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name not in FOR_CONTRIBUTORS]
    known = {f"{module}.{name}" for module in MODULES for name in public(module)}
    for path in [ROOT / "README.md", *pages, *(ROOT / "examples").rglob("*.py")]:
        for module, names in IMPORT.findall(path.read_text()):
            if module.startswith("nvproxy_model.structs."):
                continue  # NVIDIA's layouts under NVIDIA's names: `nvproxy-differ layout` shows them
            for name in re.findall(r"\w+", names):
                whole = f"{module}.{name}"
                assert module in MODULES or whole in MODULES or whole in known, f"{path.name}: {whole}"
