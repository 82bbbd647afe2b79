"""Where a tree has its ABI, and what its headers say to a reader that compiles nothing: includes, and words."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from nvproxy_model.errors import SourceError

__all__ = [
    "ABI_DIRECTORIES",
    "EMBEDDED",
    "FIRST",
    "INCLUDE_PATH",
    "SDK",
    "UVM",
    "Headers",
    "Said",
    "closure",
    "is_class",
    "prepare",
    "roots",
    "said",
    "scan_includes",
]

SDK = "src/common/sdk/nvidia/inc"
UNIX = "src/nvidia/arch/nvalloc/unix/include"
KERNEL = "kernel-open/common/inc"
UVM = "kernel-open/nvidia-uvm"
MODESET = "src/nvidia-modeset/interface"
INCLUDE_PATH = (
    SDK,
    UNIX,
    "src/common/shared/inc",
    KERNEL,
    UVM,
    MODESET,
    "src/common/unix/common/inc",
    "src/common/inc",
)
EMBEDDED = "src/nvidia/src/kernel/rmapi/embedded_param_copy.c"

ABI_DIRECTORIES = INCLUDE_PATH
"""The directories of a tree that hold headers which the ABI headers include; the SDK's has folders below it."""

ROOT_FILES = (
    f"{UNIX}/nv_escape.h",
    f"{UNIX}/nv-ioctl.h",
    f"{UNIX}/nv-ioctl-numbers.h",
    f"{UNIX}/nv-ioctl-numa.h",
    f"{UNIX}/nv-ioctl-lockless-diag.h",
    f"{UNIX}/nv-unix-nvos-params-wrappers.h",
    f"{KERNEL}/nv-ioctl.h",
    f"{KERNEL}/nv-ioctl-numbers.h",
    f"{KERNEL}/nv-ioctl-numa.h",
    f"{KERNEL}/nv-ioctl-lockless-diag.h",
    f"{UVM}/uvm_ioctl.h",
    f"{UVM}/uvm_linux_ioctl.h",
)

# nvstatuscodes.h is a list of macro calls that nvstatus.h includes inside an enum.
NOT_ALONE = {f"{SDK}/nvstatuscodes.h"}

TYPES, STATUS = f"{SDK}/nvtypes.h", f"{SDK}/nvstatus.h"
# Some headers (ctrl00fd.h of 575.57.08 and later) use NV_STATUS and do not include what declares it.
FIRST = {TYPES, STATUS}

_INCLUDE = re.compile(rb'#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]')
_BIT_RANGE = re.compile(rb"#[ \t]*define[ \t]+NV[0-9A-F]{4}_\w+[ \t]+\(?\d+:\d+")
_RECORD = re.compile(rb"^(?:typedef )?struct\b", re.MULTILINE)
_METHOD = re.compile(rb"^[ \t]*#[ \t]*define[ \t]+NV[0-9A-F]{4}_[^\n]*(?<![\\\r])$", re.MULTILINE)
# What has no end goes on to the end of the file, or of the line: so each is looked at once.
_NO_CODE = re.compile(
    rb"/\*[^*]*(?:\*+[^/*][^*]*)*(?:\*+/?)?|//[^\n]*|\"(?:[^\"\\\n]|\\.)*\"?|'(?:[^'\\\n]|\\.)'"
)
_SPLICE = re.compile(rb"\\[ \t\r]*\n")
_WORD = re.compile(rb"[A-Za-z_]\w*")
_DIRECTIVE = re.compile(rb"^[ \t]*#[^\n]*", re.MULTILINE)
_PASTES = re.compile(rb"^[ \t]*#[ \t]*define[ \t]+(\w+)[^\n]*##", re.MULTILINE)
_LONGEST = 256  # bytes of a name, and of what is between it and its parenthesis
_STATUS = re.compile(rb"\bNV_(?:STATUS|OK|ERR_|WARN_)")
_STATUSES = (b"NV_STATUS", b"NV_OK", b"NV_ERR_", b"NV_WARN_")  # looked for first, at a tenth of the cost
_IF, _ENDIF = re.compile(rb"#[ \t]*if"), re.compile(rb"#[ \t]*endif")


def roots(paths: Collection[str], modeset: bool = True) -> list[str]:
    """The headers of a tree that declare its ABI, in the order in which the unit includes them."""
    sdk = sorted(p for p in paths if p.startswith(SDK + "/") and p.endswith(".h") and p not in NOT_ALONE)
    sdk.sort(key=lambda path: path not in FIRST)
    display = sorted(p for p in paths if p.startswith(MODESET + "/") and p.endswith(".h")) if modeset else []
    return [*sdk, *(p for p in ROOT_FILES if p in paths), *display]


def scan_includes(text: bytes) -> list[tuple[bool, str]]:
    """(quoted?, name) for every literal #include, live or not."""
    return [(mark == b'"', name.decode("utf-8", "replace").strip()) for mark, name in _INCLUDE.findall(text)]


def closure(
    paths: Collection[str], starts: Iterable[str], includes: Callable[[list[str]], Mapping[str, list[tuple[bool, str]]]]
) -> dict[str, tuple[str, ...]]:
    """Every path that the starting headers can include, sorted -> the paths that it includes itself.

    ``includes`` answers for a batch of paths.
    """
    known = set(paths)
    found: dict[str, tuple[str, ...]] = {}
    batch = sorted(set(starts))
    while batch:
        found |= {path: tuple(_included(path, names, known)) for path, names in includes(batch).items()}
        batch = sorted({inner for path in batch for inner in found[path] if inner not in found})
    return dict(sorted(found.items()))


def _included(path: str, names: Iterable[tuple[bool, str]], known: Collection[str]) -> Iterator[str]:
    own = path.rpartition("/")[0]
    for quoted, name in names:
        for directory in (own, *INCLUDE_PATH) if quoted else INCLUDE_PATH:
            candidate = f"{directory}/{name}"
            if candidate in known:
                yield candidate
                break


class Said(NamedTuple):
    """What can be read off a header without compiling it."""

    includes: list[tuple[bool, str]]
    words: frozenset[bytes]
    """The words of its code. What it declares is among them, but for a name that a macro makes of parts."""
    pastes: frozenset[bytes]
    """The macros that it defines with ##."""
    calls: frozenset[bytes]
    """The words before a parenthesis where no macro is defined. A macro that pastes and is used there may declare any name."""
    uses_status: bool
    """Whether its code names NV_STATUS or one of its values."""
    finished: bool
    """Whether each brace, comment and condition that it opens is closed. A header can be cut short and
    pass this test, and conditions may open a brace twice: only a compiler can tell for certain."""


class Headers(NamedTuple):
    """The headers of a release that its ABI is made of."""

    files: dict[str, str]
    """Path -> blob, and `EMBEDDED`."""
    includes: dict[str, tuple[str, ...]]
    """Path -> the paths that it includes."""


def said(path: str, text: bytes) -> Said:
    """Read a header's text."""
    code = _NO_CODE.sub(b" ", _SPLICE.sub(b"", _without_methods(path, text)))
    return Said(
        scan_includes(text),
        frozenset(_WORD.findall(code)),
        frozenset(_PASTES.findall(code)) if b"##" in code else frozenset(),
        frozenset(_calls(code)),
        any(name in code for name in _STATUSES) and _STATUS.search(code) is not None,
        code.count(b"{") == code.count(b"}")
        and len(_IF.findall(code)) == len(_ENDIF.findall(code))
        and text.rfind(b"/*") <= text.rfind(b"*/"),
    )


def _calls(code: bytes) -> Iterator[bytes]:
    for piece in _DIRECTIVE.sub(b"", code).split(b"(")[:-1]:
        for last in piece[-_LONGEST:].split()[-1:]:
            yield from _WORD.findall(last)[-1:]


def is_class(path: str) -> bool:
    """Whether a header is one of a class, which may describe an engine's methods."""
    return path.startswith(f"{SDK}/class/")


def _describes_methods(path: str, text: bytes) -> bool:
    # Most headers without records have no "struct" at all, and to find that out takes a tenth of the time.
    return (
        is_class(path)
        and _BIT_RANGE.search(text) is not None
        and not (b"struct" in text and _RECORD.search(text) is not None)
    )


def prepare(path: str, text: bytes) -> bytes:
    """A file as ``extract`` reads it. Raises SourceError if it is not UTF-8.

    A class header with bit ranges and without a parameter struct describes an engine's methods, which travel in push
    buffers and not in ioctls: six sevenths of all macros and two thirds of all text. Of it only the lines that do not
    define NV<class>_ names are kept, in their places.
    """
    try:
        text.isascii() or text.decode("utf-8")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise SourceError(f"{path}:{line}: not UTF-8 (byte {text[error.start]:#04x})") from None
    return _without_methods(path, text)


def _without_methods(path: str, text: bytes) -> bytes:
    return _METHOD.sub(b"", text) if _describes_methods(path, text) else text
