"""Headers to layouts and constants: the ABI headers of one release as one translation unit, through libclang.

The headers come as bytes and are handed to clang as unsaved files below a directory that does not exist, so that no
path of this machine enters a result. System headers are the four stubs below with the typedefs that they stand for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nvproxy_model.drivers.parsing.scan import EMBEDDED, INCLUDE_PATH, SDK, roots
from nvproxy_model.drivers.release import Release, Wanted
from nvproxy_model.errors import SourceError
from nvproxy_model.layout import MAX_MEMBERS, Field, Layout, RecordKind

if TYPE_CHECKING:
    from clang.cindex import Cursor, TranslationUnit, Type

__all__ = ["EXTRACTION", "extract"]

EXTRACTION = "5"
"""Raise this when the same headers would yield other facts: it is part of every cache key."""

STUBS = {
    "stdint.h": "".join(
        f"typedef {c} int{n}_t;\ntypedef unsigned {c} uint{n}_t;\n"
        for c, n in (("char", 8), ("short", 16), ("int", 32), ("long", 64))
    ).replace("typedef char", "typedef signed char")
    + "typedef long intptr_t;\ntypedef unsigned long uintptr_t;\n",
    "stddef.h": "typedef unsigned long size_t;\n#define NULL ((void *)0)\n",
    "stdarg.h": "typedef __builtin_va_list va_list;\n",
    "stdbool.h": "#define bool _Bool\n#define true 1\n#define false 0\n",
    "inttypes.h": "#include <stdint.h>\n",
    "sys/types.h": "#include <stddef.h>\n",
    "linux/types.h": "#include <stdint.h>\n",
    "linux/ioctl.h": "",
}

HOME = "/nvproxy-model.abi/"
ARGUMENTS = (
    "-xc",
    "-std=gnu11",
    "--target=x86_64-linux-gnu",
    "-nostdinc",
    "-w",
    "-ferror-limit=0",
    "-fmacro-backtrace-limit=1",
    "-fbracket-depth=256",
    *(f"-I{HOME}{directory}" for directory in (*INCLUDE_PATH, "stubs")),
)

_DEFINE = re.compile(rb"#[ \t]*define[ \t]+(\w+)(?:[ \t]+([^\n]*))?$", re.MULTILINE)
_FINN = re.compile(
    rb"#[ \t]*define[ \t]+(\w+)[ \t]+\(?0x[0-9A-Fa-f]+U?\)?[ \t]*/\*[ \t]*finn:[^\n|]*\|[ \t]*(?:(\w+)_MESSAGE_ID\b)?"
)
_QUALIFIERS = re.compile(r"^(?:(?:const|volatile|struct|union) )*")
_NAME = re.compile(r"[A-Za-z_]\w*")
# A bit range (31:0), a string, a block or a cast is no integer; the probe would only be told so by an error.
_NO_INTEGER = re.compile(rb'^\s*(?:"|\{|[^?/]*:|//|/\*[^/]*$)|^\s*$')


def extract(files: Mapping[str, bytes], wanted: Wanted | None = None, starts: Sequence[str] | None = None) -> Release:
    """Parse one release. ``files`` maps a path in the tree to what ``prepare`` made of the file; ``wanted`` limits
    structs and constants; the parameter structs of wanted controls, as the headers name them, come along. ``starts``
    are the headers to begin with, by default all that declare the ABI.

    Raises SourceError naming file and line for a header that does not parse or cannot be found, and where ``starts`` are
    given for a wanted macro that they do not make a number: what it is made of may be declared elsewhere.
    """
    headers = {path: text for path, text in files.items() if path.endswith(".h")}
    params = {
        control.decode(): struct.decode()
        for path, text in headers.items()
        if path.startswith(f"{SDK}/ctrl/")
        for control, struct in _annotated(text)
    }
    if wanted is not None:
        params = {control: struct for control, struct in params.items() if control in wanted.constants}
        wanted = Wanted(wanted.structs | (set(params.values()) - {""}), wanted.constants)
    some = starts is not None
    if starts is None:
        starts = roots(headers, wanted is None or wanted.modeset)
    probe = (
        _Probe(starts, _macro_names(headers), ())
        if wanted is None
        else _Probe(starts, wanted.constants, wanted.structs)
    )
    unit = _parse(probe.text, headers)
    bad = probe.check(unit)
    if some and (unknown := [name for name, line in probe.lines.items() if line in bad]):
        raise SourceError(f"{unknown[0]}: no number here")
    walk = _Walk()
    structs = walk.all(unit) if wanted is None else walk.named(probe.struct_types(unit, bad))
    constants, enums = probe.constants(unit, bad)
    if wanted is None:
        for name, (value, enum) in walk.enumerators(unit).items():
            constants[name], enums[name] = value, enum
    return Release(
        "",
        len(starts),
        dict(sorted(structs.items())),
        dict(sorted(constants.items())),
        dict(sorted(enums.items())),
        dict(sorted(params.items())),
        _embedded(files.get(EMBEDDED, b"").decode("utf-8")),
        parsed=len(starts),
    )


def _annotated(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(control, struct or nothing) of each line that says how a control's number is made."""
    end = 0
    while (at := text.find(b"finn:", end)) >= 0:
        end = text.find(b"\n", at) % (len(text) + 1)
        yield from _FINN.findall(text, text.rfind(b"\n", 0, at) + 1, end)


def _macro_names(headers: Mapping[str, bytes]) -> list[str]:
    """Object-like macros whose body may be an integer, sorted."""
    names = {name for text in headers.values() for name, body in _DEFINE.findall(text) if not _NO_INTEGER.match(body)}
    return sorted(name.decode() for name in names)


def _parse(text: str, headers: Mapping[str, bytes]) -> TranslationUnit:
    from clang.cindex import Index, TranslationUnitLoadError

    unsaved: list[tuple[str, Any]] = [(HOME + path, text_) for path, text_ in headers.items()]
    unsaved += [(f"{HOME}stubs/{name}", stub) for name, stub in STUBS.items()]
    unsaved.append((HOME + "unit.c", text))
    try:
        return Index.create().parse(HOME + "unit.c", args=list(ARGUMENTS), unsaved_files=unsaved)
    except TranslationUnitLoadError:
        raise SourceError("libclang could not read the headers at all") from None


class _Probe:
    """The unit's text: the includes, then a line per wanted struct and five lines per wanted constant.

    A line that clang refuses (no such type, no integer) is an absent name, not an error; ``check`` tells which lines.
    """

    def __init__(self, starts: Sequence[str], constants: Collection[str], structs: Collection[str]) -> None:
        lines = [f'#include "{HOME}{path}"' for path in starts]
        self.first = len(lines) + 1
        lines.append("struct nvproxy_model_begin;")  # refused if what a header declares has no end
        lines.append("struct nvproxy_model_structs {")
        self.structs: dict[int, str] = {}
        for name in sorted(filter(_NAME.fullmatch, structs)):
            for spelling in (name, f"struct {name}"):
                self.structs[len(lines) + 1] = name
                lines.append(f"{spelling} *p{len(lines)};")
        lines.append("};")
        lines.append("enum nvproxy_model_constants {")
        self.values = len(lines)
        self.lines: dict[str, int] = {}
        names = sorted(filter(_NAME.fullmatch, constants))
        for name in names:
            self.lines[name] = len(lines) + 2
            lines += [f"#ifdef {name}", f"C_{name} = ({name}),", "#else", f"E_{name} = ({name}),", "#endif"]
        lines.append("C_ = 0x7fffffffffffffff };")  # so that every value is kept in 64 bits
        lines.append("enum nvproxy_model_signs {")
        self.signs = len(lines)
        for name in names:
            lines += ["", f"S_{name} = ({name}) < 0,", "", "", ""]
        lines.append("S_ };")
        self.ends = starts[-1] if starts else ""
        self.text = "\n".join(lines) + "\n"

    def check(self, unit: TranslationUnit) -> set[int]:
        """Lines of the probe that clang refused. Raises SourceError for an error in a header."""
        from clang.cindex import Diagnostic

        bad: set[int] = set()
        for diagnostic in unit.diagnostics:
            severity = diagnostic.severity
            if severity < Diagnostic.Error:
                continue
            location = diagnostic.location
            name = location.file.name if location.file else ""
            if name == HOME + "unit.c" and location.line > self.first and severity == Diagnostic.Error:
                notes = [note for note in diagnostic.children if note.spelling.startswith("to match this ")]
                opened = [note.location for note in notes if note.location.file.name != name]
                if opened:
                    where = f"{opened[0].file.name.removeprefix(HOME)}:{opened[0].line}"
                    raise SourceError(f"{where}: what begins here has no end: {diagnostic.spelling}")
                bad.add(location.line)
                continue
            if name == HOME + "unit.c" and location.line == self.first:
                raise SourceError(f"{self.ends}: its end is missing: {diagnostic.spelling}")
            where = f"{name.removeprefix(HOME)}:{location.line}: " if name else ""
            raise SourceError(f"{where}{diagnostic.spelling}")
        return bad

    def struct_types(self, unit: TranslationUnit, bad: set[int]) -> dict[str, Type]:
        """Wanted name -> its record type; a typedef wins over a tag."""
        from clang.cindex import CursorKind

        types: dict[str, Type] = {}
        if not self.structs:
            return types
        for child in self._cursor(unit, self.first + 1, len("struct ")).get_children():
            if child.kind == CursorKind.FIELD_DECL:
                line = child.location.line
                if line in self.structs and line not in bad:
                    pointee = child.type.get_pointee()
                    if pointee.get_size() >= 0:
                        types.setdefault(self.structs[line], pointee)
        # "struct X" is refused where X is the tag of a union, which no release has without a typedef.
        unions = {
            name for line, name in self.structs.items() if line in bad and line - 1 in self.structs
        } - types.keys()
        if unions:
            for cursor in unit.cursor.get_children():
                if cursor.kind == CursorKind.UNION_DECL and cursor.spelling in unions and cursor.is_definition():
                    types[cursor.spelling] = cursor.type
        return types

    def constants(self, unit: TranslationUnit, bad: set[int]) -> tuple[dict[str, int], dict[str, str]]:
        """Name -> value as C evaluates it, and enumerator -> the name of its enum."""
        from clang.cindex import CursorKind, conf

        values: dict[str, int] = {}
        enums: dict[str, str] = {}
        value_of = conf.lib.clang_getEnumConstantDeclValue
        for child in self._cursor(unit, self.values, len("enum ")).get_children():
            spelling = child.spelling
            name = spelling[2:]
            line = self.lines.get(name)
            if line is None or child.kind != CursorKind.ENUM_CONSTANT_DECL:
                continue
            named = spelling[0] == "E"
            if line + 2 * named in bad:
                continue
            value = value_of(child)
            if value < 0:
                # The probe's enum holds values of both signs: ask the constant itself.
                sign = self._cursor(unit, self.signs + line - self.values, 0)
                if not value_of(sign):
                    value += 1 << 64
            values[name] = value
            if named:
                enums[name] = next((enum for node in child.walk_preorder() if (enum := _enum_of(node)) is not None), "")
        return values, enums

    @staticmethod
    def _cursor(unit: TranslationUnit, line: int, column: int) -> Cursor:
        from clang.cindex import Cursor, SourceLocation

        location = SourceLocation.from_position(unit, unit.get_file(HOME + "unit.c"), line, column + 1)
        return Cursor.from_location(unit, location)


class _Walk:
    """Layouts of record types; equal spellings of one unit are one record, so each is read once."""

    def __init__(self) -> None:
        self._memo: dict[str, Layout] = {}
        self._members: dict[int, int] = {}
        """Layout's id -> its members with those of its members; `_memo` keeps the layouts alive."""
        self._types: dict[str, tuple[str, int, str, tuple[int, ...], Layout | None]] = {}

    def named(self, types: Mapping[str, Type]) -> dict[str, Layout]:
        """Layouts of the given types that are records."""
        return {name: layout for name, type_ in types.items() if (layout := self.record(type_, name)) is not None}

    def all(self, unit: TranslationUnit) -> dict[str, Layout]:
        """Every record of the unit that has a name, by tag and by typedef; a typedef wins."""
        from clang.cindex import CursorKind

        structs: dict[str, Layout] = {}
        tags: dict[str, Layout] = {}
        for cursor in unit.cursor.get_children():
            name = cursor.spelling
            if cursor.kind == CursorKind.TYPEDEF_DECL:
                layout = self.record(cursor.underlying_typedef_type, name)
                if layout is not None:
                    structs[name] = layout
            elif (
                cursor.kind in (CursorKind.STRUCT_DECL, CursorKind.UNION_DECL)
                and cursor.is_definition()
                and not cursor.is_anonymous()
                and "(" not in name
                and not name.startswith("nvproxy_model_")
            ):
                layout = self.record(cursor.type, name)
                if layout is not None:
                    tags[name] = layout
        return tags | structs

    def enumerators(self, unit: TranslationUnit) -> dict[str, tuple[int, str]]:
        """Enumerator -> (value, name of its enum) for every enum at file scope."""
        from clang.cindex import CursorKind

        return {
            child.spelling: (child.enum_value, _enum_name(cursor))
            for cursor in unit.cursor.get_children()
            if cursor.kind == CursorKind.ENUM_DECL and not cursor.spelling.startswith("nvproxy_model_")
            for child in cursor.get_children()
            if child.kind == CursorKind.ENUM_CONSTANT_DECL
        }

    def record(self, type_: Type, name: str = "") -> Layout | None:
        """The layout of a complete struct or union, else None. ``name`` names one that has no tag."""
        from clang.cindex import CursorKind, TypeKind

        canonical = type_.get_canonical()
        if canonical.kind != TypeKind.RECORD:
            return None
        spelling = canonical.spelling
        known = self._memo.get(spelling)
        if known is not None:
            return known
        size = canonical.get_size()
        if size < 0:
            return None
        kind: RecordKind = "union" if canonical.get_declaration().kind == CursorKind.UNION_DECL else "struct"
        own = _QUALIFIERS.sub("", spelling)
        fields = tuple(self._field(cursor) for cursor in canonical.get_fields())
        members = sum(1 + (self._members[id(field.record)] if field.record else 0) for field in fields)
        if members > MAX_MEMBERS:
            raise SourceError(f"{own}: {members} members with those of its members; at most {MAX_MEMBERS}")
        layout = Layout(name or f"<{kind}>" if "(" in own else own, kind, size, canonical.get_align(), fields)
        self._memo[spelling] = layout
        self._members[id(layout)] = members
        return layout

    def _field(self, cursor: Cursor) -> Field:
        type_ = cursor.type
        spelling = type_.spelling
        known = self._types.get(spelling)
        if known is None:
            known = self._type(type_)
            if "(" not in spelling:
                self._types[spelling] = known
        spelling, size, base, dims, record = known
        bit = cursor.get_field_offsetof()
        if bit < 0 or size < 0:
            where = cursor.location
            raise SourceError(f"{where.file.name.removeprefix(HOME)}:{where.line}: a field without an offset")
        name = cursor.spelling
        if record is not None and (not name or "(" in name):
            name = f"<{record.kind}@{bit // 8}>"
        if cursor.is_bitfield():
            width = cursor.get_bitfield_width()
            spelling, size = f"{spelling}:{width}@{bit % 8}", (bit % 8 + width + 7) // 8
        return Field(name, bit // 8, size, spelling, base, dims, record)

    def _type(self, type_: Type) -> tuple[str, int, str, tuple[int, ...], Layout | None]:
        """A member's element type as spelled, its whole size, its base, its dimensions and its own layout."""
        from clang.cindex import TypeKind

        arrays = (TypeKind.CONSTANTARRAY, TypeKind.INCOMPLETEARRAY)
        element, size = type_, type_.get_size()
        dims: list[int] = []
        while (canonical := element.get_canonical()).kind in arrays:
            if canonical.kind == TypeKind.CONSTANTARRAY:
                dims.append(canonical.element_count)
            else:
                dims.append(0)
                size = 0
            element = element.element_type if element.kind in arrays else canonical.element_type
        spelling = element.spelling
        record = self.record(element)
        if record is not None and "(" in spelling:
            spelling = f"<{record.kind}>"
        elif "(unnamed" in spelling:
            spelling = "<enum>"
        return spelling, size, "record" if record else _base(element), tuple(dims), record


def _base(type_: Type) -> str:
    """What the machine sees of a scalar."""
    from clang.cindex import TypeKind

    canonical = type_.get_canonical()
    if canonical.kind == TypeKind.ENUM:
        canonical = canonical.get_declaration().enum_type.get_canonical()
    kind = canonical.kind
    if kind in (TypeKind.POINTER, TypeKind.BLOCKPOINTER) or type_.spelling == "NvP64":
        return "ptr"
    bits = 8 * canonical.get_size()
    if kind in (TypeKind.HALF, TypeKind.FLOAT, TypeKind.DOUBLE, TypeKind.LONGDOUBLE, TypeKind.FLOAT128):
        return f"f{bits}"
    signed = {
        TypeKind.CHAR_S,
        TypeKind.SCHAR,
        TypeKind.SHORT,
        TypeKind.INT,
        TypeKind.LONG,
        TypeKind.LONGLONG,
        TypeKind.INT128,
    }
    return f"{'s' if kind in signed else 'u'}{bits}"


def _enum_of(node: Cursor) -> str | None:
    """The name of the enum whose enumerator this expression names, if it names one."""
    from clang.cindex import CursorKind

    if node.kind != CursorKind.DECL_REF_EXPR or node.referenced is None:
        return None
    return _enum_name(node.referenced.semantic_parent)


def _enum_name(enum: Cursor) -> str:
    """An enum's tag, or the typedef that names one without a tag, or ``""``."""
    spelling: str = enum.type.spelling
    return "" if "(" in spelling else spelling.removeprefix("enum ")


_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_EVENT = re.compile(
    r"^(?:static\s+)?\w+\s+(?P<function>\w+)\s*\([^;{]*\)\s*\{"
    r"|\bcase\s+(?P<case>\w+)\s*:"
    r"|\bRMAPI_PARAM_COPY_INIT\s*\(\s*paramCopies\s*\[\s*\w+\s*\]\s*,\s*(?P<arg>[^,]+),"
    r"|\b(?P<call>\w+)\s*\(\s*(?:\w+\s*,\s*)*paramCopies\b"
    r"|(?P<end>\bbreak\s*;)",
    re.MULTILINE,
)


def _embedded(text: str) -> dict[str, tuple[str, ...]]:
    """Control -> its user pointers, from embeddedParamCopyIn() and the helpers that it calls."""
    helpers: dict[str, list[str]] = {}
    controls: dict[str, list[str]] = {}
    calls: list[tuple[str, str]] = []
    function, cases, open_case = "", [""], False
    for event in _EVENT.finditer(_COMMENT.sub(" ", text)):
        if event["function"]:
            function, cases, open_case = event["function"], [], False
        elif event["case"]:
            cases = [*cases, event["case"]] if open_case else [event["case"]]
            open_case = True
            if function == "embeddedParamCopyIn":
                controls.setdefault(event["case"], [])
        elif event["arg"]:
            open_case = False
            path = event["arg"].rpartition("->")[2].strip()
            if function != "embeddedParamCopyIn":
                helpers.setdefault(function, []).append(path)
            else:
                for case in cases:
                    controls[case].append(path)
        elif event["call"] and function == "embeddedParamCopyIn":
            open_case = False
            calls += [(case, event["call"]) for case in cases]
        elif event["end"]:
            open_case = False
    for case, helper in calls:
        controls[case] += helpers.get(helper, [])
    found = {name: tuple(dict.fromkeys(paths)) for name, paths in controls.items()}
    return {name: paths for name, paths in sorted(found.items()) if paths}
