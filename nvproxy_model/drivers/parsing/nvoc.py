"""Who may call what: the driver's own tables of exported controls, classes and chips, read as text.

The tables are generated and have one form in every public release, so nothing is compiled. Each carries a count of its
own, and a reading that does not agree with it is an error: an entry is never skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from nvproxy_model.drivers.privileges import (
    ADMINISTRATOR,
    INTERNAL,
    KERNEL,
    PRIVILEGES,
    UNSAID,
    USER,
    ClassEntry,
    Export,
    Privilege,
    Privileges,
)
from nvproxy_model.errors import SourceError

__all__ = ["COPYING", "PLACES", "copies_user_memory", "is_table", "parse"]

GENERATED = "src/nvidia/generated"
CLASS_LIST = f"{GENERATED}/g_gpu_class_list.c"
CLASS_NUMBERS = f"{GENERATED}/g_allclasses.h"
CONTROL_FLAGS = "src/nvidia/inc/kernel/rmapi/control.h"
RESOURCES = "src/nvidia/src/kernel/rmapi/resource_list.h"
DEPRECATED = "src/nvidia/interface/deprecated/rmapi_deprecated_control.c"
PLACES = (GENERATED, CONTROL_FLAGS, RESOURCES, DEPRECATED)
"""Where a tree has the tables: one folder, three files."""
COPYING = ("src/nvidia/src", "src/nvidia/arch/nvalloc/unix/src", "src/nvidia/interface")
"""The folders whose C files make up the resource manager, as opposed to the kernel module around it."""

_ALLOC_FLAGS: Mapping[str, Privilege] = {
    "RS_FLAGS_ALLOC_KERNEL_PRIVILEGED": KERNEL,
    "RS_FLAGS_ALLOC_PRIVILEGED": ADMINISTRATOR,
    "RS_FLAGS_ALLOC_NON_PRIVILEGED": USER,
}
_TABLE = re.compile(r"__nvoc_exported_method_def_(\w+)\[\] *=\s*\{\n")
_COUNT = re.compile(r"__nvoc_export_info__?(\w+) *=\s*\{\s*(?:/\*numEntries=\*/|\.numEntries *=) *(\d+),")
_MARK = re.compile(r"\{ */\* +\[(\d+)\] \*/")
_METHOD = re.compile(
    r"/\*flags=\*/ *(0x[0-9a-f]+)u?,\s*/\*accessRight=\*/ *0x[0-9a-f]+u?,\s*/\*methodId=\*/ *(0x[0-9a-f]+)u?,"
    r"\s*/\*paramSize=\*/ *(?:sizeof\(([\w ]+)\)|0(?: /\*[^*]*\*/)?),"
)
_FLAG = re.compile(r"^#define +RMCTRL_FLAGS_((?:NON_)?PRIVILEGED|INTERNAL) +\(?(0x[0-9a-fA-F]+)", re.MULTILINE)
_RESOURCE = re.compile(r"^RS_ENTRY\(", re.MULTILINE)
_LABEL = re.compile(r"/\* ([A-Z][\w -]{1,40}?) *\*/")
_CLASS_LIST = re.compile(r"^gpuGet(\w*?)Class(?:Descriptor)?List_(\w+)\([^{}]*\{[^{}]*\[\] = \{\n", re.MULTILINE)
_LISTED = re.compile(r"^ +(?:(\w+)|\{ *(\w+), *\w+(?:\(\w+\))? *\}),$", re.MULTILINE)
_LIST_COUNT = re.compile(r"\n    \};\s*\*\w+ = (\d+);")
_NUMBER = re.compile(r"^ *#define +(\w+) +\(?(0x[0-9a-fA-F]+)", re.MULTILINE)
_CONVERTER = re.compile(r"\{ *(NV\w+_CTRL_CMD_\w+) *,")
_WORD = re.compile(r"\w+")
_COPY = re.compile(
    rb"\b(?:portMemExCopy(?:From|To)User|os_memcpy_(?:from|to)_user|rmapiParams(?:Acquire|Release))[ \t]*\("
)


def is_table(path: str) -> bool:
    """Whether ``parse`` reads this file of a tree."""
    if path.startswith(GENERATED + "/"):
        return path.endswith("_nvoc.c") or path in (CLASS_LIST, CLASS_NUMBERS)
    return path in PLACES[1:]


def copies_user_memory(text: bytes) -> bool:
    """Whether a C file calls a primitive that copies user memory, or acquires a parameter block from it."""
    return _COPY.search(text) is not None


def parse(files: Mapping[str, bytes], copying: Iterable[str] = ()) -> Privileges:
    """The tables among these files, by path. Raises SourceError, naming the file, for one that is not of the known form."""
    for path in (CLASS_LIST, CLASS_NUMBERS, CONTROL_FLAGS, RESOURCES, DEPRECATED):
        if path not in files:
            raise SourceError(f"no {path}: the tree lacks the tables of who may call what")
    text = {path: content.decode("utf-8", "replace") for path, content in files.items()}
    flags = {name: int(value, 16) for name, value in _FLAG.findall(text[CONTROL_FLAGS])}
    if len(flags) != 3:
        raise SourceError(f"{CONTROL_FLAGS}: the flags that decide who may call a control are not all there")
    exports: dict[int, Export] = {}
    for path in sorted(text):
        if path.endswith("_nvoc.c"):
            for number, export in _exports(path, text[path], flags):
                known = exports.get(number)
                exports[number] = export if known is None else _merged(path, number, known, export)
    chips, on = _chips(text[CLASS_LIST])
    classes = dict(_classes(text[RESOURCES], text[CLASS_NUMBERS], on))
    table = text[DEPRECATED].partition("rmDeprecatedControlTable[]")[2].partition("};")[0]
    deprecated = frozenset(_CONVERTER.findall(table))
    if not deprecated or len(deprecated) != len(re.findall(r"^ +\{", table, re.MULTILINE)) - 1:
        raise SourceError(f"{DEPRECATED}: its table has an entry of an unknown form")
    return Privileges(flags, dict(sorted(exports.items())), deprecated, classes, chips, frozenset(copying))


def privilege(flags: int, numbering: Mapping[str, int]) -> Privilege:
    """Who may call a control with these flags (control.c: rmControlValidateClientPrivilegeAccess(),
    serverControl_ValidateCookie())."""
    if flags & numbering["INTERNAL"]:
        return INTERNAL
    if flags & numbering["PRIVILEGED"]:
        return ADMINISTRATOR
    return USER if flags & numbering["NON_PRIVILEGED"] else KERNEL


def _blocks(path: str, text: str, start: re.Pattern[str], end: str) -> Iterator[tuple[re.Match[str], str, int]]:
    """(what ``start`` found, the text up to ``end``, where that is); one that never ends is an error, found once."""
    at = 0
    while (found := start.search(text, at)) is not None:
        at = text.find(end, found.end() - 1)
        if at < 0:
            raise SourceError(f"{path}: {found[0].split()[0]} does not end")
        yield found, text[found.end() : at], at


def _exports(path: str, text: str, flags: Mapping[str, int]) -> Iterator[tuple[int, Export]]:
    counts = dict(_COUNT.findall(text))
    for table, body, _ in _blocks(path, text, _TABLE, "\n};"):
        owner = table[1]
        methods = _METHOD.findall(body)
        if not len(methods) == len(_MARK.findall(body)) == int(counts.get(owner, -1)):
            raise SourceError(
                f"{path}: {owner} says that it exports {counts.get(owner, 'an unknown number of')} methods; "
                f"{len(methods)} of {len(_MARK.findall(body))} could be read"
            )
        for bits, number, struct in methods:
            yield int(number, 16), Export(privilege(int(bits, 16), flags), struct or None, owner)


def _merged(path: str, number: int, one: Export, other: Export) -> Export:
    """A number that two classes export: whoever may call either may call it."""
    if one.struct != other.struct:
        raise SourceError(f"{path}: {number:#x} is exported with {one.struct} and with {other.struct}")
    least = min(one.privilege, other.privilege, key=PRIVILEGES.index)
    return Export(least, one.struct, f"{one.handle}+{other.handle}")


def _chips(text: str) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]] | None]:
    """The chips, and for each class those that list it; nothing for a release without a list of generic classes."""
    on: dict[str, dict[str, None]] = {}
    chips: dict[str, None] = {}
    generic = False
    lists = list(_blocks(CLASS_LIST, text, _CLASS_LIST, "\n    };"))
    if not lists or len(lists) != text.count("\ngpuGet"):
        raise SourceError(f"{CLASS_LIST}: {len(lists)} of {text.count(chr(10) + 'gpuGet')} lists could be read")
    for found, body, end in lists:
        kind, chip = found.groups()
        count = _LIST_COUNT.match(text, end)
        names = [one or other for one, other in _LISTED.findall(body)]
        said = int(count[1]) if count else body.count("\n") + 1
        if len(names) != said:
            raise SourceError(f"{CLASS_LIST}: {chip} has {said} classes; {len(names)} could be read")
        if kind == "Generic":
            generic, chip = True, "all"
        else:
            chips[chip] = None
        for name in names:
            on.setdefault(name, {})[chip] = None
    if not generic:
        return (), None
    return tuple(chips), {name: ("all",) if "all" in listed else tuple(listed) for name, listed in on.items()}


def _classes(text: str, numbers: str, on: Mapping[str, tuple[str, ...]] | None) -> Iterator[tuple[int, ClassEntry]]:
    known = {name: int(value, 16) for name, value in _NUMBER.findall(numbers)}
    said = "RS_FLAGS_ALLOC_NON_PRIVILEGED" in text
    for _, entry, _ in _blocks(RESOURCES, text, _RESOURCE, "\n)"):
        words = _LABEL.split(entry)
        parts = {
            name: " ".join(value.rstrip(" ,\n").split()) for name, value in zip(words[1::2], words[2::2], strict=True)
        }
        try:
            name, internal = parts["External Class"], parts["Internal Class"]
            parents, params, flags = parts["Parents"], parts["Alloc Param Info"], parts["Flags"].split(" | ")
        except KeyError as error:
            raise SourceError(f"{RESOURCES}: an entry without {error}") from None
        if name not in known:
            raise SourceError(f"{RESOURCES}: {name}: {CLASS_NUMBERS} has no number for it")
        who: Privilege
        if "RS_FLAGS_INTERNAL_ONLY" in flags:
            who = INTERNAL
        elif parents == "RS_ROOT_OBJECT":  # a client is made by serverAllocClient(), which asks for no privilege
            who = USER
        elif not said:
            who = UNSAID
        else:
            who = next((_ALLOC_FLAGS[flag] for flag in _ALLOC_FLAGS if flag in flags), KERNEL)
        how, _, struct = params.rstrip(")").partition("(")
        above = tuple(word for word in _WORD.findall(parents) if word not in ("RS_LIST", "classId"))
        chips = None if on is None else on.get(name, ())
        yield known[name], ClassEntry(name, who, struct or None, how == "RS_REQUIRED", internal, above, chips)
