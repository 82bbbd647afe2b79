"""The recorded facts: their file, and cases that people met in the field, each with its right value."""

from __future__ import annotations

import json
import lzma
import os
import re
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvproxy_model.drivers import facts
from nvproxy_model.drivers.compare import history
from nvproxy_model.drivers.compare.findings import Comparison, _commands, compare_releases, entries
from nvproxy_model.drivers.facts import Facts, encode, encoding, load, nearest_names, recorded
from nvproxy_model.drivers.release import Wanted, control_struct
from nvproxy_model.drivers.sources import open_source
from nvproxy_model.drivers.sources.tables import whole
from nvproxy_model.errors import SourceError, UnknownDriverVersion
from nvproxy_model.tools import driver_differ, output
from tests.drivers import tinygrad_tables
from tests.drivers.driver_world import repository, tree
from tests.effort import examples

FACTS = load()


def compared(base: str, following: str) -> Comparison:
    return compare_releases(FACTS.release(base), FACTS.release(following))


def sizes(struct: str, *versions: str) -> list[int | None]:
    found = []
    for version in versions:
        layout = FACTS.release(version).structs.get(struct)
        found.append(None if layout is None else layout.size)
    return found


# The file.


def test_every_public_release_is_recorded_with_its_ancestry() -> None:
    assert len(FACTS.versions) == len(set(FACTS.versions)) == 207
    for position, version in enumerate(FACTS.versions):
        parent = FACTS.parent(version)
        assert parent is None or FACTS.versions.index(parent) < position
    assert [v for v in FACTS.versions if FACTS.parent(v) is None] == ["515.43.04"]
    assert facts.FACTS.stat().st_size < 1 << 19


def test_counts() -> None:
    release = FACTS.release("595.45.04")
    assert release.headers == 562
    assert len(release.structs) > 3000
    assert 11_000 < len(release.constants) < 18_000
    assert len(release.embedded) == 38
    assert len(list(release.structs)) == len(set(release.structs)) == len(release.structs)


def test_record_and_load_are_inverse_and_deterministic(tmp_path: Path) -> None:
    repo = repository(
        tmp_path / "r",
        {
            "1.1": tree("typedef struct { NvU32 a; struct { NvP64 p; } b[2]; } S; enum E { X = 3 };\n#define N -1\n"),
            "1.2": tree("typedef struct { NvU32 a; } S;\n#define M 2\n"),
            "1.3": tree("typedef struct { NvU32 a; struct { NvP64 p; } b[2]; } S; enum E { X = 4 };\n#define N -1\n"),
        },
        {"1.3": "1.1"},
    )
    with open_source(repo) as source:
        parents = {v: source.parent(v) for v in source.versions}
        parsed = list(source.releases(source.versions))
        content = encode(whole(source, parsed), parents)
        assert content == encode(whole(source, source.releases(source.versions)), parents)
        known_as = {version: source.provenance(version) for version in source.versions}
    (tmp_path / "f.xz").write_bytes(content)
    loaded = load(tmp_path / "f.xz")
    assert loaded.versions == ("1.1", "1.2", "1.3")
    assert [loaded.parent(v) for v in loaded.versions] == [None, "1.1", "1.1"]
    for release in parsed:
        again = loaded.release(release.version)
        for name in ("headers", "structs", "constants", "enums", "params", "embedded"):
            one, two = getattr(release, name), getattr(again, name)
            assert two == one if name == "headers" else dict(two) == dict(one), name
        assert loaded.provenance(release.version) == known_as[release.version]
        assert loaded.privileges(release.version) is None
    assert "M" not in loaded.release("1.1").constants
    assert loaded.release("1.1").structs["S"] is loaded.release("1.3").structs["S"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b"{}\n",
        b"[]\n",
        b'{"schema": "other"}\n',
        b'{"schema": "nvproxy-model/facts/3"}\n',
        lzma.compress(b'{"schema": "nvproxy-model/facts/2"}\n'),
        recorded.FACTS.read_bytes()[:-1],
        recorded.FACTS.read_bytes() + b"x",
    ],
)
def test_a_file_that_holds_no_facts(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "f.xz"
    path.write_bytes(content)
    with pytest.raises(SourceError, match="not a file of recorded facts"):
        load(path)


@settings(max_examples=examples(12), deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_an_error_or_changes_nothing(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of a table, only what was asked for is unpacked, and the damage is found then."""
    content = bytearray(recorded.FACTS.read_bytes())
    at = data.draw(st.integers(content.index(b"\n") + 1, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("facts") / "f"
    path.write_bytes(content)
    with pytest.raises(SourceError, match="not a file of recorded facts"):
        load(path)
    damaged = Facts(encoding.read(path)).release("590.48.01")
    columns = ("structs", "constants", "enums", "params", "embedded")
    broken = []
    for name in columns:
        try:
            assert len(getattr(damaged, name)) == len(getattr(FACTS.release("590.48.01"), name))
        except SourceError as error:
            broken.append(str(error))
    assert len(broken) <= 1
    assert all("not a file of recorded facts" in error for error in broken)


HEAD = {
    "schema": "nvproxy-model/facts/3",
    "versions": ["999.1"],
    "parents": [-1],
    "above": [None],
    "headers": [1],
    "kinds": ["tree"],
    "commits": [""],
}
HOSTILE: dict[str, dict[str, object]] = {
    "no JSON": {"constants": b'"A":[0,'},
    "deep": {"constants": b'"A":' + b"[" * 100_000},
    "no runs": {"constants": b'"A":{"a":1}'},
    "a release that is none": {"constants": b'"A":[1,2]'},
    "no number": {"constants": b'"A":[0,"y"]'},
    "out of order": {"constants": b'"B":[0,1]\n"A":[0,1]'},
    "no row": {"structs": b'"S":[0,0]'},
    "no layout": {"rows": b'"a"'},
    "no kind of record": {"rows": b'"S\\tclass\\t4\\t4"'},
    "nobody's control": {"exports": b'"1":[0,"root\\t\\tA"]'},
    "nobody's class": {"classes": b'"1":[0,"A\\troot\\t\\t\\tB\\t\\t-"]'},
    "a row in itself": {"rows": b'"S\\tstruct\\t4\\t4\\na\\t0\\t4\\tS\\trecord\\t\\t0"'},
    "a bomb": {"rows": b"\n" * (1 << 22)},
    "a large bomb": {"structs": bytes(1 << 25)},
    "a version that is none": {"versions": [5]},
    "a version with a colour": {"versions": ["999.1\x1b[31m"]},
    "a parent that is none": {"parents": [7]},
    "its own parent": {"parents": [0]},
    "each other's parents": {
        "versions": ["999.1", "999.2"],
        "parents": [1, 0],
        "above": [None, None],
        "headers": [1, 1],
        "kinds": ["tree", "tree"],
        "commits": ["", ""],
    },
    "no text": {"kinds": [{}]},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_file_that_nobody_recorded_is_an_error(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a user's own file is looked at, so that no answer comes from half of it."""
    packed = {name: zlib.compress(HOSTILE[what].get(name, b"")) for name in encoding.TABLES}  # type: ignore[arg-type]
    head = HEAD | {name: HOSTILE[what].get(name, value) for name, value in HEAD.items()}
    head["tables"] = {name: len(content) for name, content in packed.items()}
    path = tmp_path / "f"
    path.write_bytes(json.dumps(head).encode() + b"\n" + b"".join(packed.values()))
    monkeypatch.setenv("NVPROXY_FACTS", str(path))
    with pytest.raises(SourceError, match=r"not a file of recorded facts: [ -~]+$"):
        load()


def test_a_file_that_an_earlier_version_kept_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NVPROXY_FACTS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    old = tmp_path / "nvproxy-model" / "facts.json.xz"
    old.parent.mkdir()
    old.write_bytes(lzma.compress(b'{"schema": "nvproxy-model/facts/2"}\n'))
    said = f"^{re.escape(str(old))}: an earlier version wrote it; .*: nvproxy-differ record --add VERSION --source REPOSITORY$"
    for ask in (load, facts.newest):
        with pytest.raises(SourceError, match=said):
            ask()
    monkeypatch.setenv("NVPROXY_FACTS", str(old))
    for ask in (load, facts.newest):
        with pytest.raises(SourceError, match="an earlier version wrote it"):
            ask()
    old.unlink()
    monkeypatch.delenv("NVPROXY_FACTS")
    assert load().versions == load(recorded.FACTS).versions


@pytest.mark.parametrize(
    "content",
    [b"", b"hello\n", b"[1]\n", b"[" * 100_000 + b"\n", lzma.compress(b"{}\n")],
    ids=["empty", "text", "list", "deep", "an older form"],
)
def test_a_file_of_another_kind_is_one_line(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    monkeypatch.setenv("NVPROXY_FACTS", str(path))
    output.versions.cache_clear()
    for arguments in (["--version"], ["check"]):
        try:
            status: object = driver_differ.main(arguments)
        except SystemExit as ended:
            status = ended.code
        assert status == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("nvproxy-differ: ")
        assert err.count("\n") == 1
        assert str(path) in err


def test_a_name_is_found_without_parsing_the_others() -> None:
    """Looked up one by one, a table says what it says as a whole."""
    whole, single = (encoding.read(recorded.FACTS).table("constants") for _ in range(2))
    names = [*whole][::50]
    assert [single.get(name) for name in names] == [dict(whole.items())[name] for name in names]
    assert [single.get(name) for name in ("", "A", "NV", "ZZZ", "~", 'NV"', "NV0\ud800")] == [None] * 7


def test_unknown_releases_name_their_neighbours() -> None:
    with pytest.raises(UnknownDriverVersion, match=r"570\.211\.02.*nearest: 570\.211\.01"):
        FACTS.release("570.211.02")
    assert nearest_names("581.1", FACTS.versions, 1)[0].startswith("580.")
    assert nearest_names("no-version", FACTS.versions)


# Field reports: what changed between two releases, as people found out by hand.


def test_a13_patch_releases_are_equal() -> None:
    for base, following in (("570.195.03", "570.211.01"), ("535.161.07", "535.161.08")):
        old, new = FACTS.release(base), FACTS.release(following)
        commands = [name for name in {**old.params, **new.params} if "_CTRL_CMD_" in name]
        assert len(commands) > 1000
        assert [n for n in commands if old.constants.get(n) != new.constants.get(n)] == []
        names = {n for n in {*old.structs, *new.structs} if not n.startswith("NvKms")}
        assert len(names) > 1890
        assert [n for n in names if old.structs.get(n) != new.structs.get(n)] == []


def test_a14_ancestry_not_numbers() -> None:
    line = history.select(FACTS.versions, FACTS.parent, None, "575.51.02")
    assert "570.133.20" in line
    assert "570.195.03" not in line
    assert "535.183.06" not in history.select(FACTS.versions, FACTS.parent, None, "545.23.06")
    assert FACTS.versions.index("570.211.01") < FACTS.versions.index("575.51.02")


def test_b1_moved_at_the_same_size() -> None:
    found = {
        f.name: f for f in compared("580.105.08", "590.44.01").findings if f.struct == "NV00FD_ALLOCATION_PARAMETERS"
    }
    assert {name: (f.kind, f.base, f.next) for name, f in found.items()} == {
        "NV00FD_ALLOCATION_PARAMETERS.pageSize": ("field-resized", 4, 8),
        "NV00FD_ALLOCATION_PARAMETERS.allocFlags": ("field-moved", 60, 64),
        "NV00FD_ALLOCATION_PARAMETERS.numGpus": ("field-moved", 64, 68),
    }
    assert sizes("NV00FD_ALLOCATION_PARAMETERS", "545.23.06", "580.105.08", "590.44.01") == [80, 80, 80]


def test_b3_a_tail_byte_with_a_new_meaning() -> None:
    struct = "NV2080_CTRL_NVLINK_GET_PLATFORM_INFO_PARAMS"
    assert sizes(struct, "560.28.03", "580.65.06", "590.44.01", "595.44.02") == [37, 39, 38, 39]
    renamed = [
        f for f in compared("580.105.08", "595.45.04").findings if f.kind == "field-renamed" and f.struct == struct
    ]
    assert [(f.base, f.next, f.class_) for f in renamed] == [("lanesPerLink", "linksPerSpigot", "renamed")]


def test_b6_numbers_move_and_are_reused() -> None:
    found = {f.name: f for f in compared("570.211.01", "575.51.02").findings if f.kind.startswith("constant-")}
    inforom = found["NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_INFOROM_SUPPORT"]
    assert (inforom.base, inforom.next, inforom.class_) == (0x20801358, 0x20801357, "number-reused")
    status = found["NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_STATUS"]
    assert (status.base, status.next, status.class_) == (0x20801359, 0x20801358, "number-reused")
    old, new = FACTS.release("570.211.01"), FACTS.release("575.51.02")
    renumbered = [
        n for n in old.params if n in new.constants and old.constants[n] != new.constants[n] and "_CTRL_CMD_" in n
    ]
    assert sorted(renumbered) == sorted([inforom.name, status.name])
    names = FACTS.having(0x20801358)
    follow = history.follow(history.parse_query("0x20801358"), FACTS.releases(FACTS.versions), FACTS.parent, names)
    begins = {c.version: follow.states[c.state] for c in follow.changes if c.state >= 0}
    assert begins == {
        "570.86.15": ("NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_INFOROM_SUPPORT",),
        "575.51.02": ("NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_STATUS",),
    }


def test_b6_thirty_five_renumbered_at_once() -> None:
    old, new = FACTS.release("550.54.15"), FACTS.release("555.42.02")
    moved = [n for n in old.params if "_CTRL_CMD_" in n and n in new.params and old.constants[n] != new.constants[n]]
    assert len(moved) == 35
    assert sum(old.constants[n] >> 16 == 0x73 for n in moved) == 32


def test_b7_a_header_that_does_not_stand_alone_is_not_dropped() -> None:
    for version in ("575.57.08", "595.45.04"):
        assert "NV00FD_CTRL_GET_INFO_PARAMS" in FACTS.release(version).structs


def test_b8_typedefs_of_anonymous_structs_are_there() -> None:
    assert sizes("NVOS46_PARAMETERS", "575.64.05", "580.65.06") == [56, 64]
    assert sizes("NV_VASPACE_ALLOCATION_PARAMETERS", "575.64.05", "580.65.06") == [48, 56]
    assert sizes("NVOS47_PARAMETERS", "545.29.06", "550.40.07") == [40, 48]
    assert sizes("UVM_FREE_PARAMS", "580.105.08", "590.44.01") == [24, 16]
    assert sizes("UVM_UNREGISTER_CHANNEL_PARAMS", "580.105.08", "590.44.01") == [28, 12]


def test_b9_the_name_rule_finds_real_structs() -> None:
    release = FACTS.release("550.54.14")
    assert "NV0080_CTRL_GR_GET_CAPS_PARAMS_V2" not in release.structs
    assert control_struct(release, "NV0080_CTRL_CMD_GR_GET_CAPS_V2") == "NV0080_CTRL_GR_GET_CAPS_V2_PARAMS"


def test_b10_pointers_come_and_go() -> None:
    found = {f.name: f for f in compared("535.113.01", "545.23.06").findings}
    lost = [f for f in found.values() if f.struct == "NV2080_CTRL_GR_GFX_POOL_INITIALIZE_PARAMS"]
    assert [f.class_ for f in lost if f.class_.startswith("pointer")] == ["pointer-lost"]
    assert sizes("NV2080_CTRL_GR_GFX_POOL_INITIALIZE_PARAMS", "535.113.01", "545.23.06") == [16, 16]
    gained = [
        f for f in compared("545.29.06", "550.40.07").findings if f.name.endswith("GET_P2P_CAPS_PARAMS.busEgmPeerIds")
    ]
    assert [(f.kind, f.class_) for f in gained] == [("field-added", "pointer-gained")]
    assert sizes("NV0000_CTRL_SYSTEM_GET_P2P_CAPS_PARAMS", "545.29.06", "550.40.07") == [168, 176]
    entry = history.find_entry(
        FACTS.release("550.40.07").structs["NV0000_CTRL_SYSTEM_GET_P2P_CAPS_PARAMS"], "busEgmPeerIds"
    )
    assert entry is not None
    assert entry.offset == 168


def test_b11_other_consumers_and_modeset() -> None:
    assert sizes("NV_MEMORY_ALLOCATION_PARAMS", "535.113.01", "545.23.06") == [120, 128]
    assert sizes("NvKmsAllocDeviceParams", "570.86.15", "575.51.02") == [1488, 1512]


def test_f3_anonymous_members_are_keyed_by_offset() -> None:
    for version in FACTS.versions:
        for layout in FACTS.release(version).structs.values():
            for field in layout.fields:
                assert "(" not in field.name
                assert "/" not in field.name
                assert field.offset >= 0


def test_the_dma_buf_bool_in_padding_and_the_era_of_its_request() -> None:
    struct = "nv_ioctl_export_to_dma_buf_fd_t"
    assert sizes(struct, "565.57.01", "570.86.15", "580.65.06") == [2600, 2608, 2608]
    found = [f for f in compared("575.64.05", "580.65.06").findings if f.struct == struct]
    assert [(f.name, f.class_) for f in found] == [(f"{struct}.bAllowMmap", "added-in-padding")]


def test_the_event_buffer_family_never_changes() -> None:
    first = FACTS.release("535.104.05")
    names = [n for n in first.structs if n.startswith("NV_EVENT_BUFFER")]
    assert len(names) > 8
    for name in names:
        assert len({value for _, value in FACTS.runs("structs", name)} - {-1}) == 1, name


def test_the_union_that_leaves_cannot_see() -> None:
    old, new = (
        FACTS.release("545.29.06").structs["NVOS32_PARAMETERS"],
        FACTS.release("550.40.07").structs["NVOS32_PARAMETERS"],
    )
    sizes_of = [{e.path: e.field.size for e in entries(layout)} for layout in (old, new)]
    assert [(table["data"], table["data.AllocSize"]) for table in sizes_of] == [(144, 112), (144, 120)]
    grown = [f for f in compared("545.29.06", "550.40.07").findings if f.name == "NVOS32_PARAMETERS.data.AllocSize"]
    assert [(f.kind, f.class_, f.base, f.next) for f in grown] == [("field-resized", "union-grown", 112, 120)]


# Ground truth, measured by others.


@pytest.mark.parametrize(
    ("base", "following", "renumbered"),
    [
        ("535.113.01", "545.23.06", 1),
        ("545.29.06", "550.40.07", 0),
        ("550.54.15", "555.42.02", 35),
        ("565.57.01", "570.86.15", 1),
        ("570.195.03", "570.211.01", 0),
        ("570.211.01", "575.51.02", 2),
        ("575.57.08", "580.65.06", 1),
        ("580.126.20", "590.44.01", 2),  # a third annotated name, NV906F_CTRL_CMD_..._FAKE_ERROR, is no command
        ("590.48.01", "595.44.02", 1),
        ("595.44.02", "595.45.04", 0),
    ],
)
def test_commands_renumbered_between_neighbours(base: str, following: str, renumbered: int) -> None:
    """The counting rule: _CTRL_CMD_ defines that both releases annotate with the interface and message they are made of."""
    old, new = FACTS.release(base), FACTS.release(following)
    names = [n for n in old.params if "_CTRL_CMD_" in n and n in new.params]
    assert sum(old.constants[n] != new.constants[n] for n in names) == renumbered


# An independent table.


def test_facts_agree_with_tinygrads_tables() -> None:
    tables = json.loads(lzma.decompress(tinygrad_tables.EXTRACT.read_bytes()))
    checked = 0
    for version in ("570.86.16", "580.105.08"):
        release = FACTS.release(version)
        for name, (size, offsets) in tables[version]["structs"].items():
            layout = release.structs[name]
            assert layout.size == size, name
            known = {field.name: field.offset for field in layout.fields}
            assert {path: known.get(path, offset) for path, offset in offsets.items()} == offsets, name
            checked += 1
        for name, value in tables[version]["constants"].items():
            assert release.constants[name] == value, name
            checked += 1
    assert checked > 900


def test_a_whole_wheel_agrees() -> None:
    wheel = os.environ.get("NVPROXY_TINYGRAD_WHEEL")
    if not wheel:
        pytest.skip("SKIPPED, NOT PROVED: NVPROXY_TINYGRAD_WHEEL names no wheel of tinygrad")
    for version, (structs, constants) in tinygrad_tables.read(Path(wheel)).items():
        if version not in FACTS:
            continue
        release = FACTS.release(version)
        both = [name for name in structs if name in release.structs]
        assert len(both) > 1000
        assert {n: release.structs[n].size for n in both} == {n: structs[n][0] for n in both}
        named = {n: v for n, v in constants.items() if n in release.constants}
        assert {n: release.constants[n] for n in named} == named


def test_facts_is_the_type_that_load_gives() -> None:
    assert isinstance(FACTS, Facts)


def test_what_is_wanted_of_all_releases_is_what_each_says() -> None:
    """Looked up for all of them at once, or one by one; absence included."""
    recorded = facts.load()
    wanted = Wanted(
        frozenset({"NVOS64_PARAMETERS", "NV_CHANNEL_ALLOC_PARAMS", "NO_SUCH"}),
        frozenset({"NV2080_CTRL_CMD_GR_GET_SM_ISSUE_THROTTLE_CTRL", "NV_EVENT_BUFFER", "NO_SUCH"}),
    )
    versions = list(recorded.versions)[::-1]
    for version, release in zip(versions, recorded.releases(versions, wanted), strict=True):
        alone = recorded.release(version)
        for name in (*wanted.structs, "UVM_MIGRATE_PARAMS"):
            assert release.structs.get(name) is alone.structs.get(name)
        for name in (*wanted.constants, "NVOS_STATUS"):
            assert release.constants.get(name, "absent") == alone.constants.get(name, "absent")


def test_a_number_s_commands_are_found_without_reading_all() -> None:
    recorded = facts.load()
    for version in ("515.43.04", "550.40.07", recorded.versions[-1]):
        release = recorded.release(version)
        assert release.commands is not None
        every = _commands(release._replace(commands=None))
        numbers = {value for name in release.params if (value := release.constants.get(name)) is not None}
        assert len(numbers) > 500
        assert all(list(release.commands(number)) == list(every(number)) for number in (*numbers, 0, -1))
