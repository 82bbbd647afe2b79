"""The version tree of gVisor's nvproxy: every driver version with its whole tables, evaluated from version.go.

The tables are written as Go functions that start from a parent's tables and edit them. `versions` runs the few
statements that such functions are made of -- assignments, map literals, ``delete`` -- over values that it knows, for
every shape that the file has had since 2024. A statement or expression of any other kind is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nvproxy_model.drivers.gvisor.gosource import GoPackage, Nesting, Unread, Unreadable, named, text
from nvproxy_model.drivers.gvisor.rows import Cell, Entry, RowReader
from nvproxy_model.errors import SourceError
from nvproxy_model.rules import TABLES

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["Version", "versions"]


MAX_STEPS = 2_000_000
"""Map cells copied or set while the version tree is evaluated; the real file needs about a tenth."""


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A row that only the handler tables or only the struct tables have."""

    table: str
    symbol: str
    handler: bool

    @property
    def detail(self) -> str:
        """Which of the two it has."""
        return "a handler, and no structs" if self.handler else "structs, and no handler"


@dataclass(frozen=True, slots=True)
class Version:
    """One driver version of the tree, with its whole tables (table -> number -> Entry)."""

    version: str
    parent: str | None
    supported: bool
    registered: bool
    """False for a step of the tree that no driver can be run at ("intermediate unqualified version")."""
    checksums: tuple[str, ...]
    tables: Mapping[str, Mapping[int, Entry]]
    unmatched: tuple[Unmatched, ...] = ()


def versions(nvproxy: GoPackage) -> tuple[dict[str, Version], list[Unread]]:
    """Every version that the package's Init() registers or steps through, and what could not be read.

    ``nvproxy`` must import the packages nvgpu and nvconf. Raises SourceError for a tree of absurd size.
    """
    interpreter = _Interpreter(nvproxy)
    return interpreter.versions(), interpreter.unread


# Values of the interpreter. Map cells keep their syntax: what a handler or a struct list means is decided at the end.


@dataclass
class _Record:
    """A ``driverABI`` or one of the structs of names: field name -> value; maps are dicts of Cell by number."""

    fields: dict[str, object]

    def copy(self) -> _Record:
        return _Record({name: dict(value) if isinstance(value, dict) else value for name, value in self.fields.items()})


@dataclass(eq=False)
class _Function:
    """A function literal with the variables that it sees; ``result`` caches its value, for they are all pure."""

    body: Node
    scope: dict[str, object]
    result: _Record | None = None
    parent: _Constructor | None = None


@dataclass(eq=False)
class _Constructor:
    """A function under a version's name: two versions may share one function."""

    version: str
    function: _Function
    parent: _Constructor | None
    registered: bool
    supported: bool
    checksums: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Known:
    """A value that is computed but not of interest (a checksum, a flag)."""

    value: object


_VARIABLE = re.compile(r"v(\d+)_(\d+)(?:_(\d+))?")
_ABIS = "abis"
_PACKAGE = "pkg/sentry/devices/nvproxy"


@dataclass
class _Interpreter:
    package: GoPackage
    unread: list[Unread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.constructors: list[_Constructor] = []
        self.file = ""
        self.steps = 0
        self.nesting = Nesting()
        self.rows = RowReader(self.package, self.unread)

    def versions(self) -> dict[str, Version]:
        """Runs Init() and returns every version. Nothing found is an unread item, not an empty tree."""
        declared = self.package.functions.get("Init")
        if declared is None:
            self.unread.append(Unread(_PACKAGE, "func Init", "not found: the version tables cannot be read"))
            return {}
        self.file, function = declared
        body = function.child_by_field_name("body")
        if body is not None:
            self._block(body, {})
        result: dict[str, Version] = {}
        for constructor in self.constructors:
            if constructor.version in result:
                self.unread.append(Unread(self.file, constructor.version, "registered twice"))
                continue
            result[constructor.version] = self._version(constructor)
        if not result:
            self.unread.append(Unread(self.file, "func Init", "no driver version found in it"))
        return result

    def _note(self, node: Node, why: str) -> None:
        self.unread.append(Unread(f"{self.file}:{node.start_point[0] + 1}", " ".join(text(node).split())[:80], why))

    # Statements.

    def _block(self, block: Node, scope: dict[str, object]) -> object:
        statements = named(block)
        if len(statements) == 1 and statements[0].type == "statement_list":  # newer grammars wrap a block's statements
            statements = named(statements[0])
        for statement in statements:
            try:
                if statement.type == "return_statement":
                    values = named(statement)
                    return self._value(named(values[0])[0], scope) if values else None
                with self.nesting:
                    self._statement(statement, scope)
            except Unreadable as error:
                self._note(statement, str(error))
        return None

    def _statement(self, statement: Node, scope: dict[str, object]) -> None:
        match statement.type:
            case "short_var_declaration" | "assignment_statement":
                left, right = statement.child_by_field_name("left"), statement.child_by_field_name("right")
                if left is None or right is None or len(named(left)) != 1 or len(named(right)) != 1:
                    raise Unreadable("an assignment of several values")
                operator = statement.child_by_field_name("operator")
                if operator is not None and text(operator) != "=":
                    raise Unreadable(f"assignment by {text(operator)}")
                self._assign(named(left)[0], named(right)[0], scope)
            case "expression_statement" if len(named(statement)) == 1:
                self._call_statement(named(statement)[0], scope)
            case "const_declaration":
                self.package.declare_constants(self.file, statement)
            case "empty_statement":
                pass
            case kind:
                raise Unreadable(f"a statement of kind {kind}")

    def _assign(self, target: Node, source: Node, scope: dict[str, object]) -> None:
        if target.type == "identifier":
            name = text(target)
            if name == _ABIS:  # the registry itself
                return
            value = self._value(source, scope)
            scope[name] = self._named_version(name, value)
        elif target.type == "selector_expression":
            record, name = self._field(target, scope)
            record.fields[name] = self._value(source, scope)
        elif target.type == "index_expression":
            cells, number, symbol = self._element(target, scope)
            cells[number] = Cell(symbol, source, f"{self.file}:{target.start_point[0] + 1}")
        else:
            raise Unreadable("assignment to something unknown")

    def _named_version(self, name: str, value: object) -> object:
        """``v545_23_06 := func() ...``, ``v535_113_01 := v535_104_05``: a step that only its variable names."""
        match = _VARIABLE.fullmatch(name)
        if match is None or not isinstance(value, _Function | _Constructor):
            return value
        version = ".".join(part for part in match.groups() if part)
        if isinstance(value, _Constructor):
            if _same_version(value.version, version):
                return value
            constructor = _Constructor(version, value.function, value, False, False, ())
        else:
            constructor = _Constructor(version, value, None, False, False, ())
        self.constructors.append(constructor)
        return constructor

    def _call_statement(self, call: Node, scope: dict[str, object]) -> None:
        if call.type != "call_expression":
            raise Unreadable("a statement that is not a call")
        function, arguments = call.child_by_field_name("function"), call.child_by_field_name("arguments")
        if function is None or arguments is None:
            raise Unreadable("incomplete")
        if text(function) == "delete" and len(named(arguments)) == 2:
            table, index = named(arguments)
            cells, number, symbol = self._key(table, index, scope)
            if cells.pop(number, None) is None:
                raise Unreadable(f"deletes {symbol}, which is not there")
        elif (
            text(function).endswith(".Do") and len(named(arguments)) == 1 and named(arguments)[0].type == "func_literal"
        ):
            body = named(arguments)[0].child_by_field_name("body")
            if body is not None:
                self._block(body, scope)
        else:
            self._value(call, scope)

    def _field(self, node: Node, scope: dict[str, object]) -> tuple[_Record, str]:
        operand, name = node.child_by_field_name("operand"), node.child_by_field_name("field")
        record = scope.get(text(operand)) if operand is not None else None
        if name is None or not isinstance(record, _Record):
            raise Unreadable(f"{text(node)[:60]} is not a field of a known value")
        return record, text(name)

    def _element(self, node: Node, scope: dict[str, object]) -> tuple[dict[int, Cell], int, str]:
        operand, index = node.child_by_field_name("operand"), node.child_by_field_name("index")
        if operand is None or index is None:
            raise Unreadable("incomplete")
        return self._key(operand, index, scope)

    def _key(self, operand: Node, index: Node, scope: dict[str, object]) -> tuple[dict[int, Cell], int, str]:
        if operand.type != "selector_expression":
            raise Unreadable(f"{text(operand)[:60]} is not a table")
        record, name = self._field(operand, scope)
        cells = record.fields.get(name)
        if not isinstance(cells, dict):
            raise Unreadable(f"{name} is not a table of {text(operand)[:40]}")
        number, symbol = self._number(index)
        self._step(1)
        return cells, number, symbol

    def _number(self, node: Node) -> tuple[int, str]:
        value = self.package.evaluate(node).value
        if not isinstance(value, int) or not 0 <= value < 1 << 32:
            raise Unreadable(f"{text(node)[:60]} is not a 32-bit number")
        written = text(node)
        return value, written.rpartition(".")[2] if re.fullmatch(r"(\w+\.)?\w+", written) else written

    def _step(self, count: int) -> None:
        self.steps += count
        if self.steps > MAX_STEPS:
            raise SourceError(f"the version tree needs more than {MAX_STEPS} steps", self.file)

    # Expressions.

    def _value(self, node: Node, scope: dict[str, object]) -> object:
        with self.nesting:
            return self._value_of(node, scope)

    def _value_of(self, node: Node, scope: dict[str, object]) -> object:
        match node.type:
            case "func_literal":
                body = node.child_by_field_name("body")
                if body is None:
                    raise Unreadable("a function without a body")
                return _Function(body, dict(scope))
            case "identifier" if text(node) in scope:
                return scope[text(node)]
            case "selector_expression":
                operand = node.child_by_field_name("operand")
                if operand is not None and isinstance(scope.get(text(operand)), _Record):
                    record, name = self._field(node, scope)
                    if name in record.fields:
                        return record.fields[name]
            case "unary_expression" if text(node).startswith("&"):
                operand = node.child_by_field_name("operand")
                if operand is not None:
                    return self._value(operand, scope)
            case "composite_literal":
                return self._composite(node, scope)
            case "call_expression":
                return self._call(node, scope)
        return _Known(self.package.evaluate(node).value)

    def _composite(self, node: Node, scope: dict[str, object]) -> object:
        kind, body = node.child_by_field_name("type"), node.child_by_field_name("body")
        if kind is None or body is None:
            raise Unreadable("incomplete")
        if kind.type == "map_type":
            cells: dict[int, Cell] = {}
            for key, value in self._elements(body):
                try:
                    number, symbol = self._number(key)
                except Unreadable as error:
                    self._note(key, str(error))
                    continue
                if number in cells:
                    self._note(key, f"the number of {cells[number].symbol} too")
                cells[number] = Cell(symbol, value, f"{self.file}:{key.start_point[0] + 1}")
            self._step(len(cells))
            return cells
        fields: dict[str, object] = {}
        for key, value in self._elements(body):
            try:
                fields[text(key)] = self._value(value, scope)
            except Unreadable as error:
                self._note(value, str(error))
        return _Record(fields)

    def _elements(self, body: Node) -> Iterator[tuple[Node, Node]]:
        for element in named(body):
            parts = named(element)
            if element.type != "keyed_element" or len(parts) != 2:
                self._note(element, "an element without a key")
                continue
            key, value = (named(part)[0] if part.type == "literal_element" and named(part) else part for part in parts)
            yield key, value

    def _call(self, node: Node, scope: dict[str, object]) -> object:
        function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        if function is None or arguments is None:
            raise Unreadable("incomplete")
        callee, values = text(function), named(arguments)
        if callee in ("addDriverABI", "addUnsupportedDriverABI"):
            return self._register(callee, values, scope)
        target = scope.get(callee)
        if isinstance(target, _Function | _Constructor) and not values:
            return self._invoke(target, scope)
        return _Known(self.package.evaluate(node).value)

    def _register(self, callee: str, arguments: list[Node], scope: dict[str, object]) -> _Constructor:
        numbers: list[int] = []
        checksums: list[str] = []
        source: object = None
        for argument in arguments:
            value = self._value(argument, scope)
            if isinstance(value, _Function | _Constructor):
                source = value
            elif isinstance(value, _Known) and isinstance(value.value, int):
                numbers.append(value.value)
            elif isinstance(value, _Known) and isinstance(value.value, str):
                checksums.append(value.value)
        if len(numbers) != 3 or not isinstance(source, _Function | _Constructor):
            raise Unreadable("a registration that is not (major, minor, patch, checksums, function)")
        version = "{}.{:02}.{:02}".format(*numbers)
        supported = "Unsupported" not in callee
        function = source.function if isinstance(source, _Constructor) else source
        for known in self.constructors:  # v550_90_07 := func() ...; addDriverABI(550, 90, 7, ..., v550_90_07)
            if known.function is function and not known.registered and _same_version(known.version, version):
                known.registered, known.supported, known.checksums = True, supported, tuple(checksums)
                return known
        parent = source if isinstance(source, _Constructor) else None
        constructor = _Constructor(version, function, parent, True, supported, tuple(checksums))
        self.constructors.append(constructor)
        return constructor

    def _invoke(self, target: _Function | _Constructor, caller: dict[str, object]) -> _Record:
        """Calls a function of no arguments; its value is computed once and copied for each caller."""
        function = target.function if isinstance(target, _Constructor) else target
        if isinstance(target, _Constructor):
            caller.setdefault("<parent>", target)
        if function.result is None:
            scope = dict(function.scope)
            scope.pop("<parent>", None)
            value = self._block(function.body, scope)
            parent = scope.get("<parent>")
            function.parent = parent if isinstance(parent, _Constructor) else None
            if not isinstance(value, _Record):
                raise Unreadable("a function that returns no table")
            function.result = value
        self._step(sum(len(value) for value in function.result.fields.values() if isinstance(value, dict)))
        return function.result.copy()

    # From the evaluated maps to entries.

    def _version(self, constructor: _Constructor) -> Version:
        tables: dict[str, dict[int, Entry]] = {table: {} for table in TABLES}
        unmatched: list[Unmatched] = []
        try:
            record = self._invoke(constructor, {})
            handlers, names = _by_table(record), self._names(record)
        except Unreadable as error:
            self.unread.append(Unread(self.file, constructor.version, str(error)))
            handlers, names = {}, None
        for table in TABLES:
            cells = handlers.get(table, {})
            infos = names.get(table, {}) if names is not None else None
            for number, cell in sorted(cells.items()):
                info = infos.get(number) if infos is not None else None
                if infos is not None and info is None:
                    unmatched.append(Unmatched(table, cell.symbol, handler=True))
                entry = self.rows.entry(table, number, cell, info)
                if entry is not None:
                    tables[table][number] = entry
            for number in sorted((infos or {}).keys() - cells.keys()):
                unmatched.append(Unmatched(table, (infos or {})[number].symbol, handler=False))
        parent = constructor.parent or constructor.function.parent
        return Version(
            constructor.version,
            parent.version if parent else None,
            constructor.supported,
            constructor.registered,
            constructor.checksums,
            tables,
            tuple(unmatched),
        )

    def _names(self, record: _Record) -> Mapping[str, dict[int, Cell]] | None:
        """The maps of names and structs, whichever way the revision spells them; None before it had any."""
        for value in record.fields.values():
            if isinstance(value, _Function):
                return _by_table(self._invoke(value, {}))
        return None


def _by_table(record: _Record) -> dict[str, dict[int, Cell]]:
    found: dict[str, dict[int, Cell]] = {}
    for name, value in record.fields.items():
        if isinstance(value, dict):
            table = next((table for table in TABLES if name.lower().startswith(table)), None)
            if table is None:
                raise Unreadable(f"a table of unknown kind: {name}")
            found[table] = value
    return found


def _same_version(left: str, right: str) -> bool:
    return [int(part) for part in left.split(".")] == [int(part) for part in right.split(".")]
