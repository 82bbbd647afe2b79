"""Pins: other people's expectations against every recorded release."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nvproxy_model.drivers import facts
from nvproxy_model.drivers.compare import pins
from nvproxy_model.drivers.compare.pins import Pin, PinError
from nvproxy_model.drivers.release import Release
from nvproxy_model.layout import Field, Layout
from nvproxy_model.tools.driver_differ import main
from tests.drivers import driver_world
from tests.effort import examples
from tests.schemas import document

FACTS = facts.load()

VAAPI = """\
pin: 1
structs:
  NV_MEMORY_ALLOCATION_PARAMS:
    size: 120
"""


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["pin", *arguments])
    return status, capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["pin", *arguments])
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_the_struct_that_grew_at_545(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A video driver kept 120 bytes of NV_MEMORY_ALLOCATION_PARAMS; 545.23.06 reads and writes 128."""
    status, text = run(capsys, write(tmp_path / "p.yaml", VAAPI))
    assert status == 1
    assert (
        f"broken  NV_MEMORY_ALLOCATION_PARAMS size = 120: 119 of {len(FACTS.versions)} releases, first 545.23.06 (128)"
        in text
    )
    assert text.splitlines()[-1] == "verdict: different: 1 of 1 pins broken, first at 545.23.06"


def test_unknown_names_are_reported_after_the_rest_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = "pin: 1\nconstants: {NV01_MEMORY_SYSTM: 62, NV01_ROOT: 0}\nstructs: {NVOS64_PARAMETERS: {offsets: {hRoott: 0}}}\n"
    path = write(tmp_path / "p.yaml", unknown)
    status, text = run(capsys, path)
    lines = text.splitlines()
    assert status == 2
    assert lines[0].startswith("holds   NV01_ROOT value = 0x0: all ")
    assert (
        lines[1]
        == f"unknown NVOS64_PARAMETERS.hRoott offset: none of {len(FACTS.versions)} releases has it; did you mean hRoot?"
    )
    assert lines[2].endswith("did you mean NV01_MEMORY_SYSTEM?")
    assert lines[-1] == "verdict: could not tell: 0 of 3 pins broken; 2 of names that no release has"
    status, text = run(capsys, path, "--quiet")
    assert (status, [line.split()[0] for line in text.splitlines()]) == (2, ["unknown", "unknown", "verdict:"])
    assert run(capsys, write(tmp_path / "q.yaml", unknown.replace("NV01_ROOT: 0", "NV01_ROOT: 9")))[0] == 1


@pytest.mark.parametrize("form", ["markdown", "sarif"])
def test_pins_for_a_pull_request(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "p.yaml", VAAPI + "constants:\n  NV01_MEMORY_SYSTM: 62\n")
    status, text = run(capsys, path, "--format", form)
    assert status == 1
    assert "545.23.06" in text
    assert "NV01_MEMORY_SYSTEM" in text
    if form == "sarif":
        results = json.loads(text)["runs"][0]["results"]
        assert [result["ruleId"] for result in results] == ["pin-broken", "pin-unknown"]
        assert {result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in results} == {path}


def test_modeset_structs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NvKmsAllocDeviceParams has 1488 bytes at 570.86.15 and 1512 at 575.51.02."""
    text = "pin: 1\nstructs:\n  NvKmsAllocDeviceParams: {size: 1488}\n"
    status, out = run(capsys, write(tmp_path / "p.yaml", text), "--since", "570.86.15", "--json")
    report = document(out)
    assert (status, report["schema"], report["status"]) == (1, "nvproxy-differ/pin/1", "different")
    assert report["pins"][0]["first"] == [{"version": "575.51.02", "actual": 1512}]
    assert report["first"] == ["575.51.02"]
    assert "570.86.15" in report["satisfied"]
    status, out = run(capsys, write(tmp_path / "p.yaml", text), "--branch", "570")
    assert (status, out.splitlines()[-1]) == (0, "verdict: same: 0 of 1 pins broken")


def test_a_line_of_the_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A release with its ancestors: the side branches of 535 and 550 have no part in it."""
    status, out = run(capsys, write(tmp_path / "p.yaml", VAAPI), "--branch", "545.29.06", "--json")
    report = document(out)
    assert status == 1
    assert report["pins"][0]["broken"][-1] == {"version": "545.29.06", "actual": 128}
    assert "535.129.03" not in report["satisfied"]
    assert "535.43.02" in report["satisfied"]


def test_a_layout_that_returns_breaks_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NVLINK_GET_PLATFORM_INFO had 39 bytes at 580, 38 at 590 and 39 again at 595, with another last member."""
    text = "pin: 1\nstructs:\n  NV2080_CTRL_NVLINK_GET_PLATFORM_INFO_PARAMS:\n    size: 39\n    offsets: {linksPerSpigot: 38}\n"
    _, out = run(capsys, write(tmp_path / "p.yaml", text), "--since", "580.65.06", "--json")
    size, offset = document(out)["pins"]
    assert [first["version"] for first in size["first"]] == ["590.44.01"]
    assert {broken["version"]: broken["actual"] for broken in offset["broken"]}["580.65.06"] is None
    assert "595.45.04" in size["holds"]
    assert "595.45.04" in offset["holds"]


def test_init_holds_where_it_was_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [
        "NVOS64_PARAMETERS",
        "NVOS32_PARAMETERS",
        "NvKmsAllocDeviceParams",
        "NV01_MEMORY_SYSTEM",
        "UVM_MIGRATE_PARAMS",
    ]
    assert main(["pin", "--init", *names, "--driver", "570.86.15"]) == 0
    text = capsys.readouterr().out
    loaded = yaml.safe_load(text)
    assert (loaded["driver"], loaded["constants"]) == ("570.86.15", {"NV01_MEMORY_SYSTEM": 0x3E})
    assert loaded["structs"]["NVOS64_PARAMETERS"]["offsets"]["pRightsRequested"] == 24
    file = write(tmp_path / "p.yaml", text)
    status, _ = run(capsys, file, "--since", "570.86.15", "--branch", "570")
    assert status == 0
    status, out = run(capsys, file)
    assert status == 1
    assert "515.43.04" in out


def test_init_takes_the_newest_release(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pin", "--init", "NVOS64_PARAMETERS"]) == 0
    assert 'driver: "610.57.04"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the file: want `name: value` lines"),
        ("pin: 1\n", "nothing is pinned"),
        ("pin: 2\n", "pin: 2"),
        ("structs: {A: {size: 1}}\n", "pin: None"),
        ("pin: 1\nstruct: {}\n", "unknown key struct; did you mean structs?"),
        ("pin: 1\nstructs: {A: {sise: 1}}\n", "A: unknown key sise; did you mean size?"),
        ("pin: 1\nstructs: {A: 5}\n", "A: want `name: value` lines, not 5"),
        ("pin: 1\nstructs: {A: {size: big}}\n", "A: size: want a number, not 'big'"),
        ("pin: 1\nstructs: {A: {size: true}}\n", "A: size: want a number, not True"),
        ("pin: 1\nconstants: {A: 1.5}\n", "A: want a number, not 1.5"),
        ("pin: 1\nconstants: {A: 1, A: 2}\n", "line 2: A stands there twice"),
        ("pin: 1\nconstants: {1: 1}\n", "p.yaml: line 2: a key is not a name"),
        ("pin: 1\nstructs: {A: {size: 1}\n", "line"),
        ("pin: 1\nx: !!python/object/apply:os.system [id]\n", "could not determine a constructor"),
        (b"\xff\xfe\x00", "not YAML"),
        (b"pin: 1: 2", "line 1: not YAML: mapping values"),
        (b"pin: \x01", "characters are not allowed"),
        ("pin: 1\nconstants: {NV01_ROOT: 1:0:1}\n", "want a number"),
        ("pin: 1\nconstants: {NV01_ROOT: " + "9" * 30_000 + "}\n", "want a number"),
        ("pin: 1\nconstants: {NV01_ROOT: " + "1:2" * 10_000 + "}\n", "want a number"),
        (
            "pin: 1\nstructs: {S: &s {offsets: {"
            + ", ".join(f"a{n}: 1" for n in range(9000))
            + "}}, "
            + ", ".join(f"S{n}: *s" for n in range(40))
            + "}\n",
            "more than 100000 pins",
        ),
        (
            "a: &a [x]\n" + "\n".join(f"{c}: &{c} [*{p}, *{p}]" for p, c in zip("abcdefghi", "bcdefghij", strict=True)),
            "unknown key a",
        ),
    ],
)
def test_files_that_are_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | bytes, complaint: str
) -> None:
    file = write(tmp_path / "p.yaml", text)
    told = refused(capsys, file)
    assert file in told
    assert complaint in told


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["/nonexistent.yaml"], "/nonexistent.yaml: no such file; --init"),
        (["/dev/zero"], "/dev/zero: no such file"),
        (["a", "b"], "one FILE at a time; did you mean --init a b?"),
        (["--init", "NVOS64_PARAMETER"], "did you mean NVOS64_PARAMETERS?"),
        (["--init", "NVOS64_PARAMETERS", "--driver", "9.9"], "9.9"),
        (["--init", "NVOS64_PARAMETERS", "--json"], "--init"),
        (["{file}", "--driver", "570.86.15"], "--driver: belongs to --init"),
        (["{file}", "--since", "1.2.3"], "--since 1.2.3: no such release; nearest: "),
        (["{file}", "--branch", "1"], "--branch 1: no release of that branch"),
    ],
)
def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str) -> None:
    file = write(tmp_path / "p.yaml", VAAPI)
    assert complaint in refused(capsys, *(argument.format(file=file) for argument in arguments))


def test_a_file_over_the_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "over 1 MiB" in refused(capsys, write(tmp_path / "p.yaml", "#" * (1 << 20) + "\npin: 1\n"))


def test_driver_sources_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"1.0": "NvU32 a;", "1.1": "NvU32 a; NvU32 b;", "1.2": "NvU32 a; NvU32 b;"}
    trees = {version: driver_world.tree(f"typedef struct {{ {body} }} S;", version) for version, body in sizes.items()}
    source = driver_world.repository(tmp_path / "driver", trees)
    file = write(tmp_path / "p.yaml", "pin: 1\nstructs:\n  S: {size: 4}\n")
    status, out = run(capsys, file, "--source", str(source))
    assert status == 1
    assert "broken  S size = 4: 2 of 3 releases, first 1.1 (8)" in out
    assert main(["pin", "--init", "S", "--source", str(source)]) == 0
    assert "size: 8" in capsys.readouterr().out


# The library.


def release(version: str, size: int) -> Release:
    inner = Layout("<union>", "union", 8, 8, (Field("ptr", 0, 8, "NvP64", "ptr"), Field("fd", 0, 4, "NvS32", "s32")))
    fields = (Field("a", 0, 4, "NvU32", "u32"), Field("<union@8>", 8, 8, "<union>", "record", (), inner))
    return Release(version, 1, {"S": Layout("S", "struct", size, 8, fields)}, {"N": 5})


def test_first_breaks_follow_ancestry() -> None:
    """1 -> 2 -> 3 and 1 -> 4: both branches break, 3 only goes on being broken."""
    releases = {"1": release("1", 16), "2": release("2", 24), "3": release("3", 24), "4": release("4", 32)}
    parents = {"1": None, "2": "1", "3": "2", "4": "1"}
    (report,) = pins.check([Pin("S", "size", "", 16)], releases, parents.__getitem__)
    assert [(b.version, b.actual) for b in report.first] == [("2", 24), ("4", 32)]
    del releases["2"]  # not checked: 3 is the first that is known to be broken
    (report,) = pins.check([Pin("S", "size", "", 16)], releases, parents.__getitem__)
    assert [b.version for b in report.first] == ["3", "4"]


def test_anonymous_members_are_left_out_of_paths() -> None:
    text = pins.dump(["S", "N"], release("1", 16))
    assert yaml.safe_load(text)["structs"]["S"]["offsets"] == {"a": 0, "ptr": 8, "fd": 8}
    loaded = pins.load(text.encode())
    assert {str(pin): pin.actual(release("1", 16)) for pin in loaded} == {
        "S size": 16,
        "S.a offset": 0,
        "S.ptr offset": 8,
        "S.fd offset": 8,
        "N value": 5,
    }


def test_a_union_can_be_pinned_by_either_path() -> None:
    layout = facts.load().release("580.105.08").structs["NVOS32_PARAMETERS"]
    paths = dict(pins.offsets(layout))
    assert paths["data.AllocSize.numaNode"] == 152


@given(st.binary(max_size=200))
def test_any_bytes_are_pins_or_a_pin_error(data: bytes) -> None:
    assert "\n" not in complaint(data)


def complaint(data: bytes) -> str:
    """What is wrong with a file, or nothing."""
    try:
        assert pins.load(data)
    except PinError as error:
        return str(error)
    return ""


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["size", "offsets", "A", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=examples(150))
@given(st.dictionaries(st.sampled_from(["pin", "driver", "structs", "constants"]), _json | st.just(1)))
def test_any_yaml_is_pins_or_a_pin_error(data: dict[str, object]) -> None:
    assert "\n" not in complaint(yaml.safe_dump({"pin": 1, **data}).encode())
