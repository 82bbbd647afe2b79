"""What is parsed for the names that somebody asks for: no more than is needed, and with the answers of reading everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvproxy_model.drivers.parsing import reading, scan
from nvproxy_model.drivers.parsing.processes import parse
from nvproxy_model.drivers.parsing.scan import SDK
from nvproxy_model.drivers.parsing.units import Unit
from nvproxy_model.drivers.release import Release, Wanted
from nvproxy_model.drivers.sources import open_source
from nvproxy_model.errors import SourceError
from tests.drivers.driver_world import repository, tree, write

STATUS = (
    '#include "nvtypes.h"\nenum {\n#define NV_STATUS_CODE(name, code) name = (code),\n#include "nvstatuscodes.h"\n};\n'
)
CONTROLS = """
#define NV0000_CTRL_CMD_X (0x101) /* finn: Evaluated from "(NV0000_X << 8) | NV0000_CTRL_X_PARAMS_MESSAGE_ID" */
#define NV0000_CTRL_X_PARAMS_MESSAGE_ID (0x1U)
typedef struct NV0000_CTRL_X_PARAMS { struct INNER inner; NvU32 status; } NV0000_CTRL_X_PARAMS;
"""
HEADERS = tree(
    "#ifndef N\n#define N\n#define LIMIT 4\nstruct INNER { NvU32 a[LIMIT]; };\nstruct UNUSED { NvU8 x; };\n#endif",
    nvstatus=STATUS,
    nvstatuscodes="NV_STATUS_CODE(NV_OK, 0)\nNV_STATUS_CODE(NV_ERR_ODD, 7)\n",
    class__cl0001='#include "nvos.h"\ntypedef struct INNER ONE, *ONE_POINTER;\ntypedef union { NvU8 a; NvU64 b; } BOTH;',
    class__cl0002="#define NV0002_WIDTH 7:0\n#define NV0002_METHOD 0x1\n#define TWO_CLASS 0x2\n",
    class__cl0003="enum KIND { KIND_A = 3, KIND_B };\nenum { KIND_C = KIND_B + LIMIT };",
    ctrl__ctrl0000='#include "nvos.h"\n' + CONTROLS,
)
ASKED = Wanted(
    frozenset({"INNER", "ONE", "BOTH", "NV0000_CTRL_X_PARAMS", "MISSING"}),
    frozenset({"LIMIT", "NV_OK", "NV_ERR_ODD", "TWO_CLASS", "NV0002_METHOD", "KIND_B", "KIND_C", "NV0000_CTRL_CMD_X"}),
)


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> list[Unit]:
    """What is parsed, as it comes."""
    seen: list[Unit] = []

    def noting(source: object, planned: object) -> object:
        for unit, answer in parse(source, planned):  # type: ignore[arg-type]
            seen.append(unit)
            yield unit, answer

    monkeypatch.setattr(reading, "parse", noting)
    return seen


def restricted(release: Release) -> tuple[object, ...]:
    """What a release says of the names asked for."""
    return (
        {name: release.structs[name] for name in ASKED.structs if name in release.structs},
        {name: release.constants[name] for name in ASKED.constants if name in release.constants},
        {name: enum for name, enum in release.enums.items() if name in ASKED.constants},
        dict(release.params),
        release.headers,
    )


def test_the_answers_are_those_of_reading_everything(tmp_path: Path) -> None:
    with open_source(write(tmp_path / "t", HEADERS | {"version.mk": "NVIDIA_VERSION = 1.1\n"})) as source:
        some, whole = source.release("1.1", ASKED), source.release("1.1")
    assert restricted(some) == restricted(whole)
    assert some.constants["KIND_C"] == 8
    assert some.constants["NV_ERR_ODD"] == 7
    assert "NV0002_METHOD" not in some.constants
    assert len(some.structs) == 4


def test_a_release_costs_what_is_new_in_it(tmp_path: Path, units: list[Unit]) -> None:
    path = f"{SDK}/class/cl0001.h"
    changed = HEADERS | {path: HEADERS[path].replace("NvU8 a", "NvU32 a[9]")}
    unasked = changed | {f"{SDK}/class/cl0009.h": "struct NOBODY_ASKS {};"}
    repo = repository(tmp_path / "r", {"1.1": HEADERS, "1.2": changed, "1.3": unasked, "1.4": HEADERS})
    with open_source(repo) as source:
        releases = list(source.releases(source.versions, ASKED, cache=False))
        alone = [source.release(version, ASKED, cache=False) for version in source.versions]
    assert [restricted(one) for one in releases] == [restricted(one) for one in alone]
    assert [release.structs["BOTH"].size for release in releases] == [8, 40, 40, 8]
    together = {unit.version: unit.starts for unit in units[: -len(alone)]}
    assert together.keys() == {"1.1", "1.2"}
    assert path in (together["1.2"] or ())
    assert f"{SDK}/class/cl0002.h" not in (together["1.2"] or ())
    assert [release.parsed for release in releases] == [release.parsed for release in alone]
    assert all(0 < (release.parsed or 0) <= release.headers for release in releases)


def test_a_header_that_relies_on_others_is_read_after_them(tmp_path: Path) -> None:
    """cl0002.h takes a type that only cl0001.h has, which it does not include and which declares nothing asked for."""
    files = tree(
        class__cl0001='#include "nvtypes.h"\ntypedef NvU16 NARROW;',
        class__cl0002="struct S { NARROW n; };",
        version="1.1",
    )
    with open_source(write(tmp_path / "t", files)) as source:
        assert source.release("1.1", Wanted(frozenset({"S"}), frozenset())).structs["S"].size == 2


def test_a_control_whose_struct_is_in_another_header(tmp_path: Path) -> None:
    files = tree(
        ctrl__ctrl0000=CONTROLS.split("typedef", maxsplit=1)[0],
        class__cl0001="struct NV0000_CTRL_X_PARAMS { char c; };",
        version="1.1",
    )
    with open_source(write(tmp_path / "t", files)) as source:
        release = source.release("1.1", Wanted(frozenset(), frozenset({"NV0000_CTRL_CMD_X"})))
    assert release.structs["NV0000_CTRL_X_PARAMS"].size == 1


def test_what_is_wrong_in_a_header_counts_where_it_declares_what_is_asked_for(tmp_path: Path) -> None:
    files = tree("#define N 1", class__cl0001="typedef struct { Missing m; } BROKEN;", version="1.1")
    with open_source(write(tmp_path / "t", files)) as source:
        assert source.release("1.1", Wanted(frozenset(), frozenset({"N"}))).constants == {"N": 1}
        with pytest.raises(SourceError, match=r"cl0001\.h:1: unknown type name 'Missing'"):
            source.release("1.1", Wanted(frozenset({"BROKEN"}), frozenset({"N"})))


DECLARED = {
    "an attribute before a tag": "struct __attribute__((packed)) WANTED { char a; short b; };",
    "a comment with a semicolon before the name": "typedef struct { char a; } /* x; */ WANTED;",
    "a comment with a brace in an enum": "enum { A, /* } */ B, WANTED };",
    "a comment with a semicolon before an enum's body": "enum // x;\n{ A, WANTED };",
    "a spliced name": "struct WAN\\\nTED { char a; };",
    "a string that looks like a comment": '#define A "/*"\n#define WANTED 5\n#define B "*/"',
    "a character that is a quote": "#define A '\"'\n#define WANTED 6 /* \" */",
    "a struct of a class with methods": "#define NV0003_A 7:0\ntypedef volatile struct tag { NvU32 a; } WANTED;",
    "an enumerator of a class with methods": "#define NV0003_A 7:0\nenum { WANTED = 2 };",
    "a struct that a macro names": "#define S(a) struct WAN##a { char c; }\nS ( TED );",
    "an enumerator that a macro of many lines names": "#define E(a, b) \\\n  a##b\nenum { A,E(WAN, TED) };",
}


@pytest.mark.parametrize("how", DECLARED)
def test_a_declaration_is_seen_however_it_is_written(how: str, tmp_path: Path) -> None:
    files = tree(class__cl0003='#include "nvtypes.h"\n' + DECLARED[how] + "\n", version="1.1")
    asked = Wanted(frozenset({"WANTED"}), frozenset({"WANTED"}))
    with open_source(write(tmp_path / "t", files)) as source:
        some, whole = source.release("1.1", asked, cache=False), source.release("1.1", cache=False)
    assert "WANTED" in {*whole.structs, *whole.constants}
    assert some.structs.get("WANTED") == whole.structs.get("WANTED")
    assert some.constants.get("WANTED") == whole.constants.get("WANTED")


def test_a_name_that_another_header_s_macro_makes(tmp_path: Path) -> None:
    files = tree(
        class__cl0001="#define S(a) typedef struct { char c; } WAN##a",
        class__cl0002='#include "cl0001.h"\nS(TED);',
        version="1.1",
    )
    with open_source(write(tmp_path / "t", files)) as source:
        assert source.release("1.1", Wanted(frozenset({"WANTED"}), frozenset())).structs["WANTED"].size == 1


def test_a_number_made_of_what_another_header_defines(tmp_path: Path) -> None:
    """cl0002.h does not include cl0001.h, as whoever includes both need not mind."""
    files = tree(class__cl0001="#define BASE 0x100\n", class__cl0002="#define WANTED (BASE + 1)\n", version="1.1")
    with open_source(write(tmp_path / "t", files)) as source:
        assert source.release("1.1", Wanted(frozenset(), frozenset({"WANTED"}))).constants == {"WANTED": 0x101}


@pytest.mark.parametrize("rest", ["struct S { NvU32 a;\n", "#ifndef G\n", "/* begins\n", "#ifdef X\nenum { A\n"])
def test_a_header_cut_short_before_what_is_asked_for_is_no_answer(rest: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t", tree(class__cl0003=rest, version="1.1"))
    with open_source(path) as source, pytest.raises(SourceError, match=r"1\.1: \S+\.h:"):
        source.release("1.1", Wanted(frozenset({"LOST"}), frozenset()))


def test_a_status_in_a_comment_is_none() -> None:
    assert not scan.said("x.h", b"/* NV_ERR_X\n * returns NV_OK */\n  // NV_STATUS\n").uses_status
    assert scan.said("x.h", b"/* what */ NV_STATUS status;\n").uses_status
    assert scan.said("x.h", b"#define X NV_ERR_ODD\n").uses_status
