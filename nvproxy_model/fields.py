"""C structs, with what each field means.

A `CStruct` is written like the header: members in order, no padding (it is computed as a C compiler for LP64
does), a role around a field whose value a proxy must understand, and `since`/`until` around members that came
or went::

NV_EXAMPLE_PARAMETERS = CStruct( "NV_EXAMPLE_PARAMETERS", "hObject" / Handle(depends=True), "fd" / Fd(),
since("550.40.07", "list" / UserPointer(NvU32, count="listCount"), "listCount" / NvU32), )

``make``, ``read`` and ``edit`` go from names to bytes and back (`nvproxy_model.values`). What can be asked of a construct can
be asked of it, ``parse`` and ``build`` first, and it can stand wherever a construct can: it makes one when it is first asked.
``NvU8[4][8]`` composes from the inside, so it is C's ``NvU8 x[8][4]``.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from math import prod
from struct import calcsize
from typing import Any, Literal, NamedTuple, get_args

from nvproxy_model.errors import DefinitionError
from nvproxy_model.layout import Field, Layout, RecordKind
from nvproxy_model.lifetime import Lineage, Releases, alive, releases
from nvproxy_model.values import Values

__all__ = [
    "CStruct",
    "CType",
    "CUnion",
    "Empty",
    "Fd",
    "FileKind",
    "Handle",
    "Member",
    "Mode",
    "Null",
    "NvBool",
    "NvHandle",
    "NvP64",
    "NvS8",
    "NvS16",
    "NvS32",
    "NvS64",
    "NvU8",
    "NvU16",
    "NvU32",
    "NvU64",
    "NvV32",
    "OpaquePointer",
    "Role",
    "Scalar",
    "Status",
    "UserPointer",
    "c_int",
    "char",
    "enum",
    "renamed_type",
    "since",
    "typedef",
    "unsigned_int",
    "until",
]


class CType:
    """What can stand in a declaration: a scalar, a record, or one of them under a name, in an array or with a role.

    To construct it is a construct, of the class that `construct` has: it goes into `construct.Struct` and `construct.Array`.
    """

    _like = "Construct"
    """construct's own class that this one stands for."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # construct asks isinstance(), which asks this. Where construct was never imported, nobody can ask.
        return getattr(sys.modules.get("construct"), self._like, type(self))

    def __rtruediv__(self, name: str) -> _Named:
        return _Named(name, self)

    def __getitem__(self, count: int) -> _Array:
        return _Array(count, self)

    @cached_property
    def construct(self) -> Any:
        """The same as a `construct.Construct`, made when it is first asked for: few programs parse or build with one."""
        return self._construct()

    def parse(self, data: bytes, **context: Any) -> Any:
        """Ask the construct: a Container, a ListContainer or a number. Raises construct's StreamError for too few bytes."""
        return self.construct.parse(data, **context)

    def build(self, obj: Any, **context: Any) -> bytes:
        """Ask the construct: the bytes of what `parse` gives."""
        built: bytes = self.construct.build(obj, **context)
        return built

    def __rshift__(self, other: Any) -> Any:
        return self.construct >> other

    def __add__(self, other: Any) -> Any:
        return self.construct + other

    def __getattr__(self, name: str) -> Any:
        if name == "construct" or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.construct, name)

    def _construct(self) -> Any:
        raise NotImplementedError


class Scalar(CType):
    """A little-endian machine scalar under the name that NVIDIA gives its type."""

    _like = "FormatField"

    def __init__(self, ctype: str, format: str, base: str) -> None:
        self.ctype = ctype
        self.base = base
        self.fmtstr = f"<{format}"
        self.size = self.align = calcsize(self.fmtstr)

    def sizeof(self) -> int:
        """Bytes."""
        return self.size

    def _construct(self) -> Any:
        from construct import FormatField

        return FormatField("<", self.fmtstr[1])


class _Wrapper(CType):
    """A type with something around it."""

    def __init__(self, subcon: Any) -> None:
        self.subcon = subcon

    def around(self, subcon: Any) -> Any:
        """The same around another type."""
        wrapped = copy.copy(self)
        wrapped.subcon = subcon
        wrapped.__dict__.pop("construct", None)
        return wrapped

    def sizeof(self) -> int:
        """Bytes."""
        return int(self.subcon.sizeof())

    def _construct(self) -> Any:
        return self.subcon.construct


class _Named(_Wrapper):
    def __init__(self, name: str, subcon: Any) -> None:
        super().__init__(subcon)
        self.name = name

    def _construct(self) -> Any:
        return self.name / self.subcon.construct


class _Array(_Wrapper):
    def __init__(self, count: int, subcon: Any) -> None:
        super().__init__(subcon)
        self.count = count

    def sizeof(self) -> int:
        """Bytes of all elements."""
        return self.count * super().sizeof()

    def _construct(self) -> Any:
        return self.subcon.construct[self.count]


NvU8 = Scalar("NvU8", "B", "u8")
"""1 byte, unsigned."""
NvU16 = Scalar("NvU16", "H", "u16")
"""2 bytes, unsigned."""
NvU32 = Scalar("NvU32", "L", "u32")
"""4 bytes, unsigned."""
NvU64 = Scalar("NvU64", "Q", "u64")
"""8 bytes, unsigned."""
NvS8 = Scalar("NvS8", "b", "s8")
"""1 byte, signed."""
NvS16 = Scalar("NvS16", "h", "s16")
"""2 bytes, signed."""
NvS32 = Scalar("NvS32", "l", "s32")
"""4 bytes, signed."""
NvS64 = Scalar("NvS64", "q", "s64")
"""8 bytes, signed."""
NvBool = Scalar("NvBool", "B", "u8")
"""1 byte; any value but 0 is true."""
NvV32 = Scalar("NvV32", "L", "u32")
"""4 bytes that the driver gives no type of its own."""
NvHandle = Scalar("NvHandle", "L", "u32")
"""4 bytes: the name of an object in its client."""
NvP64 = Scalar("NvP64", "Q", "ptr")
"""8 bytes: an address in the caller's memory."""
char = Scalar("char", "b", "s8")
"""1 byte, signed."""
c_int = Scalar("int", "l", "s32")
"""C's int, 4 bytes."""
unsigned_int = Scalar("unsigned int", "L", "u32")
"""C's unsigned int, 4 bytes."""


def typedef(ctype: str, of: Scalar) -> Scalar:
    """`of` under another name, for typedefs that headers use (``NvProcessorUuid`` is a struct; ``NV_STATUS``
    is one of these)."""
    return Scalar(ctype, of.fmtstr[1], of.base)


def enum(ctype: str) -> Scalar:
    """A C enum: four bytes, unsigned as gcc and clang choose when no enumerator is negative."""
    return Scalar(ctype, "L", "u32")


FileKind = Literal["frontend", "uvm", "uvm-tools", "open-only", "dma-buf", "cgroup", "other"]
"""What an open file of the guest is: nvidiactl or nvidiaN, nvidia-uvm, nvidia-uvm-tools, nvidia-caps or an IMEX
channel, a dma-buf that a session made, a directory of cgroup v2, anything else."""
Mode = Literal["inout", "out"]
"""The ``mode`` of a `UserPointer`."""
Null = Literal["copy", "forward", "judge"]
"""The ``null`` of a `UserPointer`."""
Empty = Literal["refuse", "forward"]
"""The ``empty`` of a `UserPointer`."""


class Role(_Wrapper):
    """What a field means, wrapped transparently around its type: bytes, size and parsed value are the type's
    own."""


def _known(parameter: str, value: object, kind: Any) -> None:
    if value not in get_args(kind):
        raise DefinitionError(f"{parameter}={value!r}: want one of {', '.join(get_args(kind))}")


class Fd(Role):
    """A file descriptor of the calling process.

    ``file`` is the kind of guest file that is accepted. A value equal to ``null`` means "none" and passes
    untouched, as does any negative one if ``negative`` is true. The number is looked up as an int32 whatever
    the field's width, as nvproxy and the driver do. A refusal is EINVAL, or the NV status ``refuse``. ``host``
    is a number that the host is given in place of any other, whatever the guest's stands for. Raises
    DefinitionError for a ``file`` that is not a FileKind.
    """

    def __init__(
        self,
        of: Scalar = NvS32,
        *,
        null: int | None = None,
        file: FileKind = "frontend",
        negative: bool = False,
        refuse: int | None = None,
        host: int | None = None,
    ) -> None:
        _known("file", file, FileKind)
        super().__init__(of)
        self.null = null
        self.file = file
        self.negative = negative
        self.host = host
        self.refuse = refuse


class Handle(Role):
    """An RM object handle.

    ``depends``: an object allocated with this field depends on the named one and is freed with it; values in
    ``null`` name nothing. ``required``: nvproxy refuses 0 with EINVAL before the host is called.
    """

    def __init__(self, *, depends: bool = False, required: bool = False, null: tuple[int, ...] = (0,)) -> None:
        super().__init__(NvHandle)
        self.depends = depends
        self.required = required
        self.null = null


class UserPointer(Role):
    """A buffer of the calling process that a proxy copies: ``count`` elements of ``to``.

    ``count`` is a sibling field's name, a number, or ``("square", name)``. ``limit`` is in bytes, inclusive.
    ``mode`` is ``inout`` (copied in, copied out) or ``out`` (zeroed for the host, copied out). ``null`` says
    what a NULL pointer does: ``copy`` (it is treated like any other), ``forward`` (the host sees NULL, the
    count is not looked at) or ``judge`` (the same, once the count is found in bounds). ``empty`` says what a
    count of 0 does: ``forward`` (NULL) or ``refuse``. A refusal answers the NV status ``refuse``, or EINVAL
    when that is None. ``late`` buffers are copied out after the struct that points at them, others before.
    Raises DefinitionError for a mode, null, empty or count that is none of these.
    """

    def __init__(
        self,
        to: Any,
        count: str | int | tuple[Literal["square"], str] = 1,
        *,
        limit: int = 1 << 20,
        mode: Mode = "inout",
        null: Null = "copy",
        empty: Empty = "refuse",
        refuse: int | None = None,
        late: bool = False,
        of: Scalar = NvP64,
    ) -> None:
        _known("mode", mode, Mode)
        _known("null", null, Null)
        _known("empty", empty, Empty)
        if isinstance(count, tuple) and (len(count) != 2 or count[0] != "square"):
            raise DefinitionError(f"count={count!r}: want a number, a field's name or ('square', name)")
        super().__init__(of)
        self.to = to
        self.count = count
        self.limit = limit
        self.mode = mode
        self.null = null
        self.empty = empty
        self.refuse = refuse
        self.late = late


class OpaquePointer(Role):
    """A pointer that a proxy must not follow: written by the driver, or meaningful to the GPU or the caller
    alone.

    ``null_only``: anything but NULL is EINVAL. ``cleared``: the host sees NULL, and the guest what the host
    leaves there.
    """

    def __init__(self, of: Scalar = NvP64, *, null_only: bool = False, cleared: bool = False) -> None:
        super().__init__(of)
        self.null_only = null_only
        self.cleared = cleared


class Status(Role):
    """The NV status that the driver, or a refusal, writes."""

    def __init__(self, of: Scalar = NvU32) -> None:
        super().__init__(of)


class _Versioned(NamedTuple):
    members: tuple[Any, ...]
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()

    def active(self, version: Lineage | None) -> bool:
        return alive(self.first, self.last, version)


def _spread(declared: tuple[Any, ...], version: Lineage | None) -> Iterator[Any]:
    """The members that are there at a release. One that came and went is ``since(a, until(b, member))``."""
    for item in declared:
        if not isinstance(item, _Versioned):
            yield item
        elif item.active(version):
            yield from _spread(item.members, version)


def since(version: Releases, *members: Any) -> _Versioned:
    """Members that exist at ``version`` (several for backports) and in its descendants."""
    return _Versioned(members, first=releases(version))


def until(version: Releases, *members: Any) -> _Versioned:
    """Members that are gone at ``version`` and in its descendants."""
    return _Versioned(members, last=releases(version))


class Member(NamedTuple):
    """One placed member of a resolved record; ``dims`` are C's, outermost first."""

    name: str
    offset: int
    size: int
    dims: tuple[int, ...]
    element: Any
    role: Role | None
    subcon: Any


def _unwrap(subcon: Any) -> tuple[str | None, Role | None, tuple[int, ...], Any]:
    name, role, dims = None, None, []
    while True:
        if isinstance(subcon, _Named):
            name = subcon.name
        elif isinstance(subcon, Role):
            role = subcon
        elif isinstance(subcon, _Array):
            dims.append(subcon.count)
        else:
            return name, role, tuple(dims), subcon
        subcon = subcon.subcon


def _place(ctype: str | None, subcons: Iterable[Any], union: bool) -> tuple[list[Member], int, int]:
    """Offsets as the System V x86-64 and AAPCS64 rules give them: each member on its own alignment, size
    rounded up."""
    members: list[Member] = []
    names: set[str] = set()
    end, align = 0, 1
    for subcon in subcons:
        name, role, dims, element = _unwrap(subcon)
        if not isinstance(element, (Scalar, CStruct, CUnion)):
            raise DefinitionError(f"{ctype}.{name}: {element!r} is not a C type")
        own = element.align
        offset = 0 if union else -(-end // own) * own
        size = element.size * prod(dims)
        if name is None:
            if not isinstance(element, (CStruct, CUnion)):
                raise DefinitionError(f"{ctype}: a scalar member at {offset} has no name")
            name = f"<{element.kind}@{offset}>"
            subcon = name / subcon
        if name in names:
            raise DefinitionError(f"{ctype}.{name}: named twice in one release")
        names.add(name)
        members.append(Member(name, offset, size, dims, element, role, subcon))
        end, align = max(end, offset + size), max(align, own)
    return members, -(-end // align) * align, align


class _Record(Values, CType):
    """What CStruct and CUnion share: versions, layout, names."""

    kind: RecordKind
    ctype: str | None
    members: list[Member]
    size: int
    align: int
    lifetime: _Versioned
    _declared: tuple[Any, ...]
    _renamed: Mapping[str, str]
    _turns: frozenset[str]
    """The releases at which it may become another: where a member comes or goes, or a name."""
    _at: dict[Lineage, Any]
    _variants: dict[tuple[Any, ...], Any]
    _resolved: dict[tuple[int, int], Any]

    def __init__(
        self,
        ctype: str | None,
        *declared: Any,
        renamed: Mapping[str, str] | None = None,
        since: str | tuple[str, ...] = (),
        until: str | tuple[str, ...] = (),
    ) -> None:
        self.ctype = ctype
        self._origin = self
        self.lifetime = _Versioned((), releases(since), releases(until))
        self._declared = declared
        self._renamed = dict(renamed or {})
        self._turns = frozenset(self._renamed).union(*map(_turns, declared))
        self._at = {}
        self._variants = {}
        self._resolved = {}
        self.members, self.size, self.align = _place(ctype, self._active(None), union=self.kind == "union")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ctype}>"

    def sizeof(self) -> int:
        return self.size

    def _active(self, version: Lineage | None) -> Iterator[Any]:
        return _spread(self._declared, version)

    def exists(self, version: Lineage) -> bool:
        """Whether the driver's headers define this record in that release."""
        return self.lifetime.active(version)

    def ctype_at(self, version: Lineage | None) -> str | None:
        """The struct's name in this release, for the few that NVIDIA renamed."""
        for first, name in self._renamed.items():
            if version is None or version.descends_from(first):
                return name
        return self.ctype

    @property
    def ctypes(self) -> tuple[str | None, ...]:
        """Every name that this struct has had, the first one first."""
        return (self.ctype, *self._renamed.values())

    def at(self, version: Lineage) -> Any:
        """This record as it is in one release; equal variants are the same object."""
        if not self._turns:
            return self
        known = self._at.get(version)
        if known is None:
            known = self._at.setdefault(version, self._variant(version))
        return known

    def _variant(self, version: Lineage) -> Any:
        subcons = tuple(self._resolve(subcon, version) for subcon in self._active(version))
        ctype = self.ctype_at(version)
        key = (ctype, *map(id, subcons))
        variant = self._variants.get(key)
        if variant is None:
            same = ctype == self.ctype and subcons == self._declared
            variant = self if same else type(self)(ctype, *subcons)
            variant._origin = self._origin
            variant = self._variants.setdefault(key, variant)
        return variant

    def _resolve(self, subcon: Any, version: Lineage) -> Any:
        if not _turns(subcon):
            return subcon
        if isinstance(subcon, (CStruct, CUnion)):
            return subcon.at(version)
        if not isinstance(subcon, _Wrapper):
            return subcon
        inner = self._resolve(subcon.subcon, version)
        if inner is subcon.subcon:
            return subcon
        # Keyed by both ends so that one variant of an inner record gives one wrapper: `at` interns by identity.
        return self._resolved.setdefault((id(subcon), id(inner)), subcon.around(inner))

    def field(self, name: str) -> Member:
        """The member of that name. Raises KeyError."""
        for member in self.members:
            if member.name == name:
                return member
        raise KeyError(f"{self.ctype} has no field {name!r}")

    def walk(self, prefix: str = "", base: int = 0) -> Iterator[tuple[str, int, Member]]:
        """Every leaf member with its dotted path and absolute offset; an array of records at its first
        element only."""
        for member in self.members:
            path, offset = prefix + member.name, base + member.offset
            if isinstance(member.element, (CStruct, CUnion)):
                yield from member.element.walk(path + "[]" * len(member.dims) + ".", offset)
            else:
                yield path, offset, member

    def layout(self) -> Layout:
        """The layout as `nvproxy_model.drivers` states it for a header's struct, so that the two can be
        compared."""
        name = self.ctype or f"<{self.kind}>"
        return Layout(name, self.kind, self.sizeof(), self.align, tuple(map(_field, self.members)))


def _turns(declared: Any) -> frozenset[str]:
    """The releases at which a member, or what is in it, comes, goes or changes."""
    if isinstance(declared, _Versioned):
        return frozenset(declared.first + declared.last).union(*map(_turns, declared.members))
    while isinstance(declared, _Wrapper):
        declared = declared.subcon
    return declared._turns if isinstance(declared, (CStruct, CUnion)) else frozenset()


def _field(member: Member) -> Field:
    element = member.element
    if isinstance(element, (CStruct, CUnion)):
        layout = element.layout()
        return Field(member.name, member.offset, member.size, layout.name, "record", member.dims, layout)
    return Field(member.name, member.offset, member.size, element.ctype, element.base, member.dims)


class CStruct(_Record):
    """A C struct. Used without `at`, it is the newest layout. Padding is kept, as hidden ``_pad`` bytes,
    through parse and build.

    ``since`` and ``until`` bound the releases that define it; ``renamed`` maps a release to the name it has
    from there on.
    """

    kind = "struct"
    _like = "Struct"

    def _construct(self) -> Any:
        import construct

        def pad(end: int, offset: int) -> list[Any]:
            gap = offset - end
            return [f"_pad{end}" / construct.Default(construct.Bytes(gap), bytes(gap))] if gap else []

        subcons, end = [], 0
        for member in self.members:
            subcons += [*pad(end, member.offset), member.subcon.construct]
            end = member.offset + member.size
        return construct.Struct(*subcons, *pad(end, self.size))


class CUnion(_Record):
    """A C union: parsing yields every member; building starts from the parsed bytes and lays changed members
    over them."""

    kind = "union"

    def _construct(self) -> Any:
        from nvproxy_model.overlay import Overlay

        return Overlay(self.size, {member.name: member.subcon.construct for member in self.members})


def renamed_type(of: CStruct, ctype: str) -> CStruct:
    """A second C type with the same members, as ``typedef struct A B`` makes one."""
    return CStruct(ctype, *of._declared)
