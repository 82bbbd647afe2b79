#!/usr/bin/env python3
"""Breaks a module on purpose, one small change at a time, and counts how many of the breaks its tests notice.

    python benchmarks/mutants.py cuinterpose/frame.py --tests tests/cuinterpose/test_share_exchange.py --seed 1 --count 30

MODULE is a Python or a C file. Mutants are drawn with a fixed seed from all that there are: comparisons and boolean
operators turned around, arithmetic exchanged, numbers off by one, conditions negated, results and statements dropped.
Each is written into a copy of the working tree, and the tests run there until the first that fails. A C mutant that the
compiler refuses is not one, and another is drawn.

A survivor that no test can kill is named in tests/data/equivalent_mutants.yaml with the reason, and not counted. Exit
status: 0 at least nine tenths of the others are killed, 1 fewer are, 2 the tests fail without a mutant, or do not load
the module at all.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
EQUIVALENT = ROOT / "tests" / "data" / "equivalent_mutants.yaml"
BOUND = 0.9


@dataclass(frozen=True)
class Mutant:
    """One change of a file's text: text[start:end] becomes new."""

    start: int
    end: int
    new: str

    def apply(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]

    def lines(self, text: str) -> tuple[str, str]:
        """The lines that it touches, before and after, blanks collapsed: what the data file knows it by."""
        first = text.rfind("\n", 0, self.start) + 1
        last = text.find("\n", self.end)
        last = len(text) if last < 0 else last
        after = text[first : self.start] + self.new + text[self.end : last]
        return " ".join(text[first:last].split()), " ".join(after.split())


# ---- Python

_COMPARE = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_BINARY = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}


class _Python(ast.NodeVisitor):
    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.lines = text.splitlines()
        self.found: list[Mutant] = []
        self.visit(ast.parse(text))

    def span(self, node: ast.AST) -> tuple[int, int]:
        def at(line: int, column: int) -> int:  # columns are of UTF-8 bytes
            return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)

    def add(self, start: int, end: int, new: str) -> None:
        self.found.append(Mutant(start, end, new))

    def operator(self, left: ast.AST, right: ast.AST, old: str, new: str) -> None:
        start, end = self.span(left)[1], self.span(right)[0]
        gap = re.search(r"\s+".join(map(re.escape, old.split())), self.text[start:end])
        if gap:
            self.add(start + gap.start(), start + gap.end(), new)

    def negate(self, test: ast.expr) -> None:
        start, end = self.span(test)
        self.add(start, end, f"(not ({self.text[start:end]}))")

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, kind, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            self.operator(left, right, *_COMPARE[type(kind)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.operator(left, right, old, new)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _BINARY:
            self.operator(node.left, node.right, *_BINARY[type(node.op)])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start, end = self.span(node)
            inner = self.span(node.operand)
            self.add(start, end, self.text[inner[0] : inner[1]])
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        start, end = self.span(node)
        if isinstance(node.value, bool):
            self.add(start, end, str(not node.value))
        elif isinstance(node.value, int):
            self.add(start, end, str(node.value + 1))
        elif isinstance(node.value, bytes) and node.value:
            self.add(start, end, repr(node.value[:-1]))

    def visit_If(self, node: ast.If | ast.While | ast.IfExp) -> None:
        self.negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self.visit_If(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit_If(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self.add(*self.span(node.value), "None")
        self.generic_visit(node)

    def drop(self, node: ast.stmt) -> None:
        self.add(*self.span(node), "pass")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.drop(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.drop(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        self.drop(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.drop(node)

    def visit_Break(self, node: ast.Break) -> None:
        self.add(*self.span(node), "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self.add(*self.span(node), "break")

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in node.body:
            self.visit(part)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for part in [*node.args.defaults, *(d for d in node.args.kw_defaults if d), *node.body]:
            self.visit(part)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Texts for people."""


# ---- C

_C_RULES = [
    (r"==", "!="),
    (r"!=", "=="),
    (r"&&", "||"),
    (r"\|\|", "&&"),
    (r"<<", ">>"),
    (r"(?<!-)>>(?!=)", "<<"),
    (r"(?<![<-])<=", "<"),
    (r"(?<![>-])>=", ">"),
    (r" < ", " <= "),
    (r" > ", " >= "),
    (r"!(?!=)", ""),
    (r" \+ ", " - "),
    (r" - ", " + "),
    (r" & ", " | "),
    (r" \| ", " & "),
    (r"\bcontinue;", "break;"),
    (r"\bbreak;", "continue;"),
]


def _c(text: str) -> Iterator[Mutant]:
    """By tokens, outside of comments, strings and preprocessor lines."""
    code = re.sub(
        r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|^[ \t]*#(?:\\\n|[^\n])*",
        lambda found: re.sub(r"[^\n]", "\x01", found[0]),
        text,
        flags=re.S | re.M,
    )
    for pattern, new in _C_RULES:
        for found in re.finditer(pattern, code):
            yield Mutant(found.start(), found.end(), new)
    for found in re.finditer(r"\b(0x[0-9a-fA-F]+|\d+)([uUlL]*)\b", code):
        yield Mutant(found.start(), found.end(), f"{int(found[1], 0) + 1}{found[2]}")
    for found in re.finditer(r"\breturn\s+([^;]+);", code):
        yield Mutant(found.start(1), found.end(1), "1" if found[1].strip() in ("0", "false", "NULL") else "0")
    for found in re.finditer(r"\b(if|while) \(", code):
        depth, at = 1, found.end()
        while depth and at < len(code):
            depth += {"(": 1, ")": -1}.get(code[at], 0)
            at += 1
        yield Mutant(found.end(), at - 1, f"!({text[found.end() : at - 1]})")
    # a call or an assignment that is a statement of its own
    for found in re.finditer(
        r"(?<=[;{}\n])([ \t]+)((?!return\b|goto\b|typedef\b)[a-z_][\w>.\[\]+ -]*(?:\([^;{}]*\)|[|&]?= [^;{}]*);)", code
    ):
        if not re.match(
            r"(?:static|const|struct|enum|u?int\d*_t|unsigned|size_t|ssize_t|bool|long|int|char)\b", found[2]
        ):
            yield Mutant(found.start(2), found.end(2), ";")


def mutants(path: Path) -> list[Mutant]:
    """All of them, in the order of the file; each once."""
    text = path.read_text()
    found = _Python(text).found if path.suffix == ".py" else list(_c(text))
    return sorted(set(found), key=lambda mutant: (mutant.start, mutant.end, mutant.new))


# ---- running


def copy_of_the_tree(where: Path) -> None:
    """What git knows and does not ignore, and the native parts that are built in place."""
    listed = subprocess.run(
        ["git", "ls-files", "-zco", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    built = [
        str(path.relative_to(ROOT)) for top in ("cuinterpose", "nvproxy_model") for path in (ROOT / top).rglob("*.so")
    ]
    for name in [*filter(None, listed.split("\0")), *built]:
        source, target = ROOT / name, where / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


def passes(tree: Path, tests: list[str], timeout: float) -> bool:
    """Whether the tests pass there; an end that does not come is a failure."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]
    with tempfile.TemporaryDirectory() as temporary:
        environment = {
            "HYPOTHESIS_PROFILE": "ci",
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": temporary,
        }
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return False
    if process.returncode == 5:
        raise SystemExit(f"mutants: pytest found no tests in {' '.join(tests)}\n{output.decode()}")
    return process.returncode == 0


def compiles(path: Path) -> bool:
    command = [
        "cc",
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Wshadow",
        "-Werror",
        "-fsyntax-only",
        "-I",
        str(path.parent),
        str(path),
    ]
    return path.suffix != ".c" or subprocess.run(command, capture_output=True, check=False).returncode == 0


def run(module: str, arguments: argparse.Namespace) -> int:
    """The exit status for one module; prints as it goes."""
    text = (ROOT / module).read_text()
    everything = mutants(ROOT / module)
    listed = yaml.safe_load(EQUIVALENT.read_text()) if EQUIVALENT.exists() else {}
    reasons = {(entry["is"], entry["becomes"]): entry["because"] for entry in (listed or {}).get(module, [])}
    for stale in reasons.keys() - {mutant.lines(text) for mutant in everything}:
        print(f"{module}: no such mutant (any more): {stale[0]}  ->  {stale[1]}")
    if arguments.list:
        for mutant in everything:
            print("{}:{}: {}  ->  {}".format(module, text.count("\n", 0, mutant.start) + 1, *mutant.lines(text)))
        return 0
    random.Random(arguments.seed).shuffle(everything)
    killed, equivalent, survived = 0, 0, 0
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary)
        copy_of_the_tree(tree)
        file = tree / module
        file.write_text(("#error" if file.suffix == ".c" else "raise SystemError") + "\n")
        loaded = not passes(tree, arguments.tests, arguments.timeout)
        file.write_text(text)
        if not loaded or not passes(tree, arguments.tests, arguments.timeout):
            print(f"{module}: the tests {'fail as they are' if loaded else 'do not load it'}", file=sys.stderr)
            return 2
        for mutant in everything:
            if killed + equivalent + survived == arguments.count:
                break
            file.write_text(mutant.apply(text))
            if not compiles(file):
                continue
            if not passes(tree, arguments.tests, arguments.timeout):
                killed += 1
                continue
            before, after = mutant.lines(text)
            reason = reasons.get((before, after))
            equivalent += reason is not None
            survived += reason is None
            word = "survived" if reason is None else "equivalent"
            print(f"{module}:{text.count(chr(10), 0, mutant.start) + 1}: {word}: {before}  ->  {after}", flush=True)
    alive = killed + survived
    print(f"{module}: seed {arguments.seed}: {killed} killed, {survived} survived, {equivalent} equivalent", flush=True)
    return 0 if alive and killed >= BOUND * alive else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+", metavar="MODULE", help="a .py or .c file, from the repository's root")
    parser.add_argument("--tests", nargs="+", default=["tests"], metavar="PATH", help="what pytest runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=30, help="mutants of each module (%(default)s)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one run of the tests (%(default)s)")
    parser.add_argument("--list", action="store_true", help="print all mutants and run none")
    arguments = parser.parse_args()
    return max(run(module, arguments) for module in arguments.modules)


if __name__ == "__main__":
    sys.exit(main())
