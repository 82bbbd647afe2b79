"""What is kept of a header, which headers belong to a release, and cases that the random ones seldom make."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from nvproxy_model.drivers.parsing.headers import extract
from nvproxy_model.drivers.parsing.scan import EMBEDDED, SDK, closure, prepare, scan_includes
from nvproxy_model.drivers.release import Release, Wanted
from nvproxy_model.errors import SourceError
from nvproxy_model.layout import Layout
from tests.drivers.driver_world import TYPES

CC = shutil.which("gcc") or shutil.which("cc")

METHODS = b"#define NV0040_NOTIFY 0x00000104\n#define NV0040_NOTIFY_STYLE 31:0\n#define OTHER 4\n"


def release(text: str, **more: str) -> Release:
    files = {f"{SDK}/nvtypes.h": TYPES, f"{SDK}/nvos.h": f'#include "nvtypes.h"\n{text}'}
    return extract({path: content.encode() for path, content in {**files, **more}.items()})


def test_a_header_of_methods_keeps_its_other_lines_in_their_places() -> None:
    kept = prepare(f"{SDK}/class/cl0040.h", METHODS)
    assert kept.splitlines() == [b"", b"", b"#define OTHER 4"]
    assert prepare(f"{SDK}/ctrl/ctrl0040.h", METHODS) == METHODS
    assert prepare(f"{SDK}/class/cl0040.h", METHODS.replace(b"31:0", b"31")) == METHODS.replace(b"31:0", b"31")


def test_a_class_header_with_bit_ranges_and_a_struct_stays_whole() -> None:
    text = METHODS + b"typedef struct { NvU32 a; } NV0040_ALLOC_PARAMETERS;\n"
    assert prepare(f"{SDK}/class/cl0040.h", text) == text


def test_angle_brackets_look_only_in_the_include_path() -> None:
    texts = {
        f"{SDK}/nvos.h": b'#include <beside.h>\n#include "class/quoted.h"\n#include <class/angle.h>\n',
        f"{SDK}/class/quoted.h": b'#include "twin.h"\n#include <lost.h>\n',
        f"{SDK}/class/twin.h": b"",
        f"{SDK}/class/lost.h": b"",
        f"{SDK}/class/angle.h": b"",
        f"{SDK}/beside.h": b"",
    }
    found = closure(texts, [f"{SDK}/nvos.h"], lambda paths: {path: scan_includes(texts[path]) for path in paths})
    assert f"{SDK}/class/lost.h" not in found
    assert set(found) == set(texts) - {f"{SDK}/class/lost.h"}


def test_a_typedef_and_a_tag_of_one_name_are_two_types() -> None:
    found = release("struct S { NvU64 b; };\ntypedef struct { NvU8 a; } S;\nstruct U { NvU16 c; };\n").structs
    assert [(f.name, f.size) for f in found["S"].fields] == [("a", 1)]
    assert found["U"].size == 2


def test_the_sign_of_a_plain_char_is_this_machine_s() -> None:
    bases = {
        f.name: f.base
        for f in release("typedef struct { char a; signed char b; unsigned char c; } S;").structs["S"].fields
    }
    assert (bases["b"], bases["c"]) == ("s8", "u8")
    if CC is not None:
        macros = subprocess.run([CC, "-dM", "-E", "-x", "c", "/dev/null"], check=True, capture_output=True, text=True)
        assert bases["a"] == ("u8" if "__CHAR_UNSIGNED__" in macros.stdout else "s8")


FIELDS = {
    "a": ("NvU32", 3),
    "b": ("NvU32", 7),
    "c": ("NvU32", 30),
    "d": ("NvU8", 2),
    "e": ("NvU64", 33),
    "f": ("NvU16", 16),
}


@pytest.mark.skipif(CC is None, reason="SKIPPED, NOT PROVED: no C compiler on this machine")
def test_a_bit_field_lies_in_the_bytes_that_the_compiler_writes(tmp_path: Path) -> None:
    """offsetof() takes no bit field, so each is set to all ones, and the bytes that change are its bytes."""
    body = "".join(f"{kind} {name} : {width}; " for name, (kind, width) in FIELDS.items())
    source = f"#include <stdio.h>\n#include <string.h>\n{TYPES}\ntypedef struct {{ {body}}} S;\n"
    source += (
        "static S s;\nstatic void show(void) {\n  const unsigned char *p = (void *)&s;\n  int first = -1, last = -1;\n"
    )
    source += "  for (int n = 0; n < (int)sizeof s; n++) if (p[n]) { if (first < 0) first = n; last = n; }\n"
    source += '  printf("%d %d\\n", first, last - first + 1);\n  memset(&s, 0, sizeof s);\n}\n'
    source += (
        "int main(void) {\n"
        + "".join(f"  s.{name} = -1; show();\n" for name in FIELDS)
        + '  printf("%zu", sizeof s);\n}\n'
    )
    (tmp_path / "bits.c").write_text(source)
    subprocess.run([CC or "", "-w", "-o", tmp_path / "bits", tmp_path / "bits.c"], check=True)
    *places, size = subprocess.run([tmp_path / "bits"], check=True, capture_output=True, text=True).stdout.splitlines()
    layout = release(f"typedef struct {{ {body}}} S;").structs["S"]
    assert isinstance(layout, Layout)
    assert layout.size == int(size)
    assert [(field.offset, field.size) for field in layout.fields] == [
        tuple(map(int, place.split())) for place in places
    ]


COPIES = """\
static NV_STATUS _helper(A *paramCopies, B *p) { RMAPI_PARAM_COPY_INIT(paramCopies[0], ((H*)x)->pHelped, y); }
NV_STATUS embeddedParamCopyIn(A *paramCopies, B *p) {
    switch (c) {
        case C0:
        case C1: { RMAPI_PARAM_COPY_INIT(paramCopies[0], ((S*)x)->pList, y); break; }
        case C2: { _helper(paramCopies, p); break; }
        case C3: /* case C4: */ break;
        case C5:
            RMAPI_PARAM_COPY_INIT(paramCopies[0], ((S*)x)->a.pOne, y);
            RMAPI_PARAM_COPY_INIT(paramCopies[1], ((S*)x)->pTwo, y);
            break;
    }
}
"""


def test_labels_that_share_their_code_share_its_pointers() -> None:
    assert dict(release("", **{EMBEDDED: COPIES}).embedded) == {
        "C0": ("pList",),
        "C1": ("pList",),
        "C2": ("pHelped",),
        "C5": ("a.pOne", "pTwo"),
    }


@pytest.mark.parametrize(
    "text", ["struct S { int a;\n", "typedef int", "enum { A,\n", "void f(void) {\n", "int a[3\n", "struct S"]
)
def test_a_last_header_that_does_not_end_is_no_answer(text: str) -> None:
    """The compiler notices where the lines begin that ask for names, or where they end."""
    path = f"{SDK}/nvos.h"
    with pytest.raises(SourceError, match=path):
        extract({path: text.encode()}, Wanted(frozenset({"S"}), frozenset({"A"})))
