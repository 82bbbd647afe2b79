"""Constants and struct layouts of Go packages, read from their sources: no Go toolchain, and nothing is executed.

Only what an ABI package is made of is evaluated: constant expressions (with iota), and structs of fixed-size members,
laid out as gc does on amd64 and arm64. Whatever else stands where a constant or a struct was expected is reported in
:attr:`GoPackage.unread`, never passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from nvproxy_model.layout import Field, Layout

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["Constant", "GoPackage", "Nesting", "Unread", "Unreadable", "parse_file"]

MAX_DEPTH = 60
MAX_BITS = 512
MAX_LEAVES = 200_000

_BASIC: Mapping[str, tuple[int, str]] = {
    "bool": (1, "u8"),
    "byte": (1, "u8"),
    "uint8": (1, "u8"),
    "int8": (1, "s8"),
    "uint16": (2, "u16"),
    "int16": (2, "s16"),
    "uint32": (4, "u32"),
    "int32": (4, "s32"),
    "rune": (4, "s32"),
    "uint64": (8, "u64"),
    "int64": (8, "s64"),
    "uint": (8, "u64"),
    "int": (8, "s64"),
    "uintptr": (8, "ptr"),
    "float32": (4, "f32"),
    "float64": (8, "f64"),
}

_BINARY: Mapping[str, Callable[[int, int], int]] = {
    "+": int.__add__,
    "-": int.__sub__,
    "*": int.__mul__,
    "&": int.__and__,
    "|": int.__or__,
    "^": int.__xor__,
    "&^": lambda a, b: a & ~b,
}


class Unreadable(Exception):
    """A construct that the reader does not know; it becomes an :class:`Unread` where it was met."""


@dataclass(frozen=True, slots=True, order=True)
class Unread:
    """Something that could not be read: ``where`` is ``file:line``, ``what`` the declaration, ``why`` the reason."""

    where: str
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant's value; ``type`` is its Go type, or None while it is untyped."""

    value: int | str
    type: str | None = None


@dataclass(frozen=True, slots=True)
class _Spec:
    """A constant's declaration: the expression, its type and the iota it sees."""

    expression: Node | None
    type: str | None
    iota: int
    where: str


@cache
def _parser() -> Callable[[bytes], Node]:
    import tree_sitter_go
    from tree_sitter import Language, Parser

    parser = Parser(Language(tree_sitter_go.language()))
    return lambda data: parser.parse(data).root_node


def parse_file(data: bytes) -> Node:
    """The syntax tree of one Go file."""
    return _parser()(data)


def text(node: Node) -> str:
    """The node's source text; bytes that are not UTF-8 are kept visible."""
    return (node.text or b"").decode("utf-8", "backslashreplace")


def named(node: Node) -> list[Node]:
    """The node's children without punctuation and comments."""
    return [child for child in node.named_children if child.type != "comment"]


@dataclass
class GoPackage:
    """One package: ``files`` maps a file's name to its bytes, ``imports`` an import's name to its package.

    :meth:`constant` and :meth:`layout` evaluate on demand; :meth:`read_all` evaluates everything and fills ``unread``.
    """

    name: str
    files: Mapping[str, bytes]
    imports: Mapping[str, GoPackage] = field(default_factory=dict)
    unread: list[Unread] = field(default_factory=list)
    functions: dict[str, tuple[str, Node]] = field(default_factory=dict)
    tags: dict[str, list[str]] = field(default_factory=dict)
    """Struct type -> the texts of its own fields' tags, in order."""

    def __post_init__(self) -> None:
        self._specs: dict[str, _Spec] = {}
        self._types: dict[str, tuple[str, Node]] = {}
        self._constants: dict[str, Constant] = {}
        self._members: dict[str, Field] = {}
        self._leaves: dict[str, int] = {}
        self._active: list[str] = []
        self.nesting = Nesting()
        for name, data in sorted(self.files.items()):
            self._declare(name, parse_file(data))

    @property
    def constant_names(self) -> tuple[str, ...]:
        """Every declared constant, in order of file and line."""
        return tuple(self._specs)

    @property
    def struct_names(self) -> tuple[str, ...]:
        """Every declared struct type, in order of file and line."""
        return tuple(name for name, (_, node) in self._types.items() if node.type == "struct_type")

    def where(self, name: str) -> str:
        """``file:line`` of a declared type or constant."""
        if name in self._types:
            return f"{self._types[name][0]}:{self._types[name][1].start_point[0] + 1}"
        return self._specs[name].where

    def read_all(self) -> None:
        """Evaluates every constant and every struct; what fails is appended to ``unread``."""
        for name in self._specs:
            self._attempt(name, lambda name=name: self.constant(name))  # type: ignore[misc]
        for name in self.struct_names:
            self._attempt(name, lambda name=name: self.layout(name))  # type: ignore[misc]

    def _attempt(self, name: str, evaluate: Callable[[], object]) -> None:
        try:
            evaluate()
        except Unreadable as error:
            self.unread.append(Unread(self.where(name), name, str(error)))

    # Declarations.

    def _declare(self, file: str, root: Node) -> None:
        for node in errors(root):
            self.unread.append(
                Unread(f"{file}:{node.start_point[0] + 1}", text(node)[:60], "not Go that the grammar knows")
            )
        for node in named(root):
            if node.type == "const_declaration":
                self.declare_constants(file, node)
            elif node.type == "type_declaration":
                for spec in named(node):
                    self._declare_type(file, spec)
            elif node.type == "function_declaration" and (name := node.child_by_field_name("name")):
                self.functions[text(name)] = (file, node)

    def declare_constants(self, file: str, declaration: Node) -> None:
        """Adds the constants of a declaration, a function's own included."""
        values: list[Node] = []
        declared_type: str | None = None
        for iota, spec in enumerate(child for child in named(declaration) if child.type == "const_spec"):
            value, type_node = spec.child_by_field_name("value"), spec.child_by_field_name("type")
            if value is not None:  # else the previous expressions and type are repeated
                values = named(value)
                declared_type = text(type_node) if type_node else None
            where = f"{file}:{spec.start_point[0] + 1}"
            for index, name in enumerate(text(node) for node in spec.children_by_field_name("name") if node.is_named):
                if name == "_":
                    continue
                if name in self._specs:
                    self.unread.append(Unread(where, name, f"also declared at {self._specs[name].where}"))
                expression = values[index] if index < len(values) else None
                self._specs[name] = _Spec(expression, declared_type, iota, where)

    def _declare_type(self, file: str, spec: Node) -> None:
        name, body = spec.child_by_field_name("name"), spec.child_by_field_name("type")
        if name is None or body is None:
            return
        where = f"{file}:{body.start_point[0] + 1}"
        if text(name) in self._types:
            self.unread.append(Unread(where, text(name), f"also declared at {self.where(text(name))}"))
        self._types[text(name)] = (file, body)

    # Constants.

    def constant(self, name: str) -> Constant:
        """The value of a constant of this package. Raises Unreadable."""
        if name in self._constants:
            return self._constants[name]
        spec = self._specs.get(name)
        if spec is None:
            raise Unreadable(f"no constant {self.name}.{name}")
        if spec.expression is None:
            raise Unreadable("constant without a value")
        with self._entered(f"const {name}"):
            result = self.evaluate(spec.expression, spec.iota)
        self._constants[name] = Constant(result.value, spec.type or result.type)
        return self._constants[name]

    def evaluate(self, node: Node, iota: int | None = None) -> Constant:
        """A constant expression's value in this package. Raises Unreadable for anything that is not one."""
        with self.nesting:
            result = self._evaluate(node, iota)
        if isinstance(result.value, int) and result.value.bit_length() > MAX_BITS:
            raise Unreadable(f"constant of more than {MAX_BITS} bits")
        return result

    def _evaluate(self, node: Node, iota: int | None) -> Constant:
        match node.type:
            case "int_literal":
                return Constant(_int(text(node)))
            case "rune_literal":
                return Constant(_rune(text(node)), "rune")
            case "interpreted_string_literal" | "raw_string_literal":
                return Constant(_string(text(node)), "string")
            case "true" | "false":
                return Constant(int(node.type == "true"), "bool")
            case "iota" if iota is not None:
                return Constant(iota)
            case "identifier":
                return Constant(iota) if text(node) == "iota" and iota is not None else self.constant(text(node))
            case "parenthesized_expression" if len(named(node)) == 1:
                return self.evaluate(named(node)[0], iota)
            case "selector_expression":
                package, name = _selector(node)
                if package in self.imports:
                    return self.imports[package].constant(name)
            case "unary_expression":
                return self._unary(node, iota)
            case "binary_expression":
                return self._binary(node, iota)
            case "call_expression" | "type_conversion_expression":
                return self._conversion(node, iota)
        raise Unreadable(f"not a constant expression: {text(node)[:60]}")

    def _unary(self, node: Node, iota: int | None) -> Constant:
        operand = self.evaluate(_child(node, "operand"), iota)
        operator = text(_child(node, "operator"))
        if isinstance(operand.value, int):
            if operator == "-":
                return Constant(-operand.value, operand.type)
            if operator == "+":
                return operand
            if operator == "^":
                size, base = self._scalar(operand.type)
                mask = (1 << 8 * size) - 1 if base.startswith("u") else -1
                return Constant(~operand.value & mask if mask > 0 else ~operand.value, operand.type)
        raise Unreadable(f"operator {operator}")

    def _binary(self, node: Node, iota: int | None) -> Constant:
        left = self.evaluate(_child(node, "left"), iota)
        right = self.evaluate(_child(node, "right"), iota)
        operator = text(_child(node, "operator"))
        a, b = left.value, right.value
        if not isinstance(a, int) or not isinstance(b, int):
            raise Unreadable(f"operator {operator} on strings")
        if operator in ("<<", ">>"):
            if not 0 <= b <= MAX_BITS:
                raise Unreadable(f"shift by {b}")
            return Constant(a << b if operator == "<<" else a >> b, left.type)
        kind = left.type if left.type not in (None, "rune") else right.type or left.type
        if operator in ("/", "%"):
            if b == 0:
                raise Unreadable("division by zero")
            quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)  # Go truncates towards zero
            return Constant(quotient if operator == "/" else a - b * quotient, kind)
        if operator not in _BINARY:
            raise Unreadable(f"operator {operator}")
        return Constant(_BINARY[operator](a, b), kind)

    def _conversion(self, node: Node, iota: int | None) -> Constant:
        if node.type == "type_conversion_expression":
            target, arguments = text(_child(node, "type")), [_child(node, "operand")]
        else:
            target, arguments = text(_child(node, "function")), named(_child(node, "arguments"))
        if len(arguments) != 1:
            raise Unreadable(f"not a conversion: {text(node)[:60]}")
        size, base = self._scalar(target)
        value = self.evaluate(arguments[0], iota).value
        if isinstance(value, int) and base != "string":
            low, high = (-(1 << 8 * size - 1), 1 << 8 * size - 1) if base.startswith("s") else (0, 1 << 8 * size)
            if not low <= value < high:
                raise Unreadable(f"{value} does not fit {target}")
            return Constant(value, target)
        raise Unreadable(f"not an integer conversion: {text(node)[:60]}")

    def _scalar(self, name: str | None) -> tuple[int, str]:
        """Size and base of a named integer type, through any chain of definitions."""
        if name is None or name in ("untyped", "bool"):
            return 8, "s64"
        for _ in range(MAX_DEPTH):
            if name in _BASIC:
                return _BASIC[name]
            package, _, bare = name.rpartition(".")
            if package:
                if package not in self.imports:
                    break
                return self.imports[package]._scalar(bare)
            if name not in self._types:
                break
            name = text(self._types[name][1])
        raise Unreadable(f"{name} is not an integer type")

    # Types.

    def layout(self, name: str) -> Layout:
        """The layout of a struct type of this package. Raises Unreadable."""
        record = self._member(name).record
        if record is None:
            raise Unreadable(f"{name} is not a struct")
        return record

    def _member(self, name: str) -> Field:
        """A named type as an unnamed member at offset 0: its size, base, dimensions and record."""
        if name in self._members:
            return self._members[name]
        if name in _BASIC:
            size, base = _BASIC[name]
            return Field("", 0, size, name, base)
        package, _, bare = name.rpartition(".")
        if package:
            if package not in self.imports:
                raise Unreadable(f"type {name} of an unknown package")
            return self.imports[package]._member(bare)
        if name not in self._types:
            raise Unreadable(f"no type {name}")
        with self._entered(f"type {name}"):
            body = self._types[name][1]
            member = self._struct(name, body) if body.type == "struct_type" else self._type(body)
        if member.record is None:
            member = Field("", 0, member.size, name, "ptr" if name == "P64" else member.base, member.dims)
        self._members[name] = member
        return member

    def _type(self, node: Node) -> Field:
        with self.nesting:
            return self._type_of(node)

    def _type_of(self, node: Node) -> Field:
        match node.type:
            case "type_identifier" | "qualified_type":
                return self._member(text(node))
            case "parenthesized_type" if len(named(node)) == 1:
                return self._type(named(node)[0])
            case "pointer_type":
                return Field("", 0, 8, text(node), "ptr")
            case "array_type":
                length = self.evaluate(_child(node, "length")).value
                if not isinstance(length, int) or not 0 <= length < 1 << 32:
                    raise Unreadable(f"array length {length!r}")
                element = self._type(_child(node, "element"))
                dims = (length, *element.dims)
                return Field("", 0, length * element.size, element.type, element.base, dims, element.record)
            case "struct_type":
                return self._struct("", node)
        raise Unreadable(f"a member of type {text(node)[:40]} has no layout that a driver could share")

    def _struct(self, name: str, node: Node) -> Field:
        offset, align, leaves = 0, 1, 0
        fields: list[Field] = []
        tags = self.tags.setdefault(name, [])
        declarations = [child for child in named(named(node)[0]) if child.type == "field_declaration"]
        last = 0
        for declaration in declarations:
            type_node = _child(declaration, "type")
            if tag := declaration.child_by_field_name("tag"):
                tags.append(_string(text(tag)))
            if text(type_node) == "structs.HostLayout":  # a marker of no size: the layout is the host's C layout
                continue
            member = self._type(type_node)
            names = [text(child) for child in declaration.children_by_field_name("name")]
            for field_name in names or [text(type_node).rpartition(".")[2]]:
                member_align = alignment(member)
                offset = -(-offset // member_align) * member_align
                fields.append(
                    Field(field_name, offset, member.size, member.type, member.base, member.dims, member.record)
                )
                offset, align, last = offset + member.size, max(align, member_align), member.size
                leaves += self._leaves.get(member.type, 1) if member.record else 1
                if leaves > MAX_LEAVES:
                    raise Unreadable(f"more than {MAX_LEAVES} members")
        if fields and last == 0 and offset:  # gc keeps &x.last inside the object
            offset += 1
        size = -(-offset // align) * align
        self._leaves[name] = leaves
        layout = Layout(name, "struct", size, align, tuple(fields))
        if name == "Handle" and len(fields) == 1:
            # gVisor wraps NvHandle in a struct so that it does not convert to an integer; to C it is a scalar.
            return Field("", 0, size, name, fields[0].base, (), layout)
        return Field("", 0, size, name, "record", (), layout)

    def _entered(self, what: str) -> _Entered:
        return _Entered(self._active, what)


class Nesting:
    """Refuses what is nested deeper than MAX_DEPTH, long before Python would."""

    def __init__(self) -> None:
        self.depth = 0

    def __enter__(self) -> None:
        if self.depth >= MAX_DEPTH:
            raise Unreadable(f"nested deeper than {MAX_DEPTH}")
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


class _Entered:
    """Refuses a definition that needs itself, and chains deeper than MAX_DEPTH."""

    def __init__(self, active: list[str], what: str) -> None:
        self.active, self.what = active, what

    def __enter__(self) -> None:
        if self.what in self.active:
            raise Unreadable(f"{self.what} is defined by itself")
        if len(self.active) >= MAX_DEPTH:
            raise Unreadable(f"definitions nested deeper than {MAX_DEPTH}")
        self.active.append(self.what)

    def __exit__(self, *_: object) -> None:
        self.active.pop()


def alignment(member: Field) -> int:
    """gc's alignment of a member on amd64 and arm64."""
    if member.record is not None:
        return member.record.align
    count = 1
    for dim in member.dims:
        count *= dim
    if count == 0:  # an array of none still aligns as its element
        return next((size for size, base in _BASIC.values() if base == member.base), 1)
    return member.size // count


def errors(root: Node) -> Iterator[Node]:
    """The outermost nodes that the grammar could not place."""
    if not root.has_error:
        return
    stack = [root]
    while stack:
        node = stack.pop()
        if node.is_error or node.is_missing:
            yield node
        elif node.has_error:
            stack.extend(reversed(node.children))


def _child(node: Node, name: str) -> Node:
    child = node.child_by_field_name(name)
    if child is None:
        raise Unreadable(f"incomplete: {text(node)[:60]}")
    return child


def _selector(node: Node) -> tuple[str, str]:
    return text(_child(node, "operand")), text(_child(node, "field"))


def _int(literal: str) -> int:
    digits = literal.replace("_", "")
    if len(digits) > MAX_BITS:
        raise Unreadable("an integer of too many digits")
    if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit():
        digits = "0o" + digits[1:]
    try:
        return int(digits, 0)
    except ValueError:
        raise Unreadable(f"integer {literal[:40]}") from None


_ESCAPES = {"n": 10, "t": 9, "r": 13, "a": 7, "b": 8, "f": 12, "v": 11, "\\": 92, "'": 39, '"': 34}


def _rune(literal: str) -> int:
    body = literal[1:-1]
    if len(body) == 1:
        return ord(body)
    if len(body) == 2 and body[1] in _ESCAPES:
        return _ESCAPES[body[1]]
    raise Unreadable(f"rune {literal[:40]}")


def _string(literal: str) -> str:
    body = literal[1:-1]
    if literal.startswith('"') and "\\" in body:
        raise Unreadable(f"escapes in the string {literal[:40]}")
    return body
