"""The reader of nvproxy's version tree, on trees of our own in every shape that the file has had since 2024."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvproxy_model.drivers.gvisor.checkout import read
from nvproxy_model.drivers.gvisor.gosource import GoPackage
from nvproxy_model.drivers.gvisor.rows import NamedStruct
from nvproxy_model.drivers.gvisor.tables import Unmatched, versions
from nvproxy_model.errors import SourceError
from tests.drivers.gvisor.gvisor_trees import BARE, CAPS, MODERN, NVGPU, TAGGED, TAGGED_TYPES, write
from tests.effort import examples


def test_the_tree_of_today(tmp_path: Path) -> None:
    nvproxy = read(write(tmp_path))
    assert nvproxy.unread == ()
    tree = {v.version: (v.parent, v.supported, v.registered, v.checksums) for v in nvproxy.versions.values()}
    assert tree == {
        "535.104.05": (None, False, True, ()),
        "580.105.08": ("535.104.05", True, True, ("aa", "bb")),
        "590.44.01": ("580.105.08", False, True, ()),
        "590.48.01": ("590.44.01", True, True, ("cc", "NO_DRIVER")),
    }
    root, last = nvproxy.versions["535.104.05"].tables, nvproxy.versions["590.48.01"].tables
    assert {table: sorted(rows) for table, rows in root.items()} == {
        "frontend": [0x29, 0x4A, 201],
        "uvm": [34, 0x30000002],
        "control": [0x205, 0x80028B, 0x20800142],
        "alloc": [0x2080],
    }
    free = root["uvm"][34]
    assert (free.symbol, free.handler, free.handler_type, free.caps) == (
        "UVM_FREE",
        "uvmIoctlSimple",
        "UVM_FREE_PARAMS",
        ("compute", "utility"),
    )
    assert (free.name, free.structs) == ("UVM_FREE", (NamedStruct("UVM_FREE_PARAMS", "UVM_FREE_PARAMS"),))
    assert root["control"][0x20800142].caps == ("compute", "graphics", "utility")
    assert root["control"][0x80028B].name is None
    assert root["control"][0x80028B].structs == ()
    assert root["frontend"][201].structs == (NamedStruct("nv_ioctl_register_fd_t", "IoctlRegisterFD"),)
    assert last["uvm"][34].structs == (NamedStruct("UVM_FREE_PARAMS", "UVM_FREE_PARAMS_V590"),)
    assert 0x80028B not in last["control"]
    assert 0x80028B in nvproxy.versions["580.105.08"].tables["control"]  # a child's edit does not reach its parent


def test_the_tree_of_january_2024(tmp_path: Path) -> None:
    """Bare handlers, a checksum in a variable, steps that are only variables."""
    nvproxy = read(write(tmp_path, BARE, caps=None))
    assert nvproxy.unread == ()
    tree = {v.version: (v.parent, v.supported, v.registered, v.checksums) for v in nvproxy.versions.values()}
    assert tree == {
        "535.104.05": (None, True, True, ("aa",)),
        "535.113.01": ("535.104.05", False, False, ()),
        "545.23.06": ("535.113.01", False, False, ()),
        "550.54.14": ("545.23.06", True, True, ("bb",)),
        "535.129.03": ("535.113.01", True, True, ("cc",)),
    }
    rows = nvproxy.versions["550.54.14"].tables["control"]
    assert rows[0x20800142].symbol == "(nvgpu.NV20_SUBDEVICE_0<<16)|0x0142"
    assert rows[0x80028B].symbol == "0x80028b"
    assert (rows[0x205].caps, rows[0x205].name, rows[0x205].structs) == (None, None, None)
    assert 0x20800142 not in nvproxy.versions["535.129.03"].tables["control"]


def test_the_tree_of_august_2024(tmp_path: Path) -> None:
    """Names by struct tags, append(), a constant within a function, a handler that is a call."""
    nvproxy = read(write(tmp_path, TAGGED, more={"pkg/abi/nvgpu/tagged.go": TAGGED_TYPES}))
    assert nvproxy.unread == ()
    assert list(nvproxy.versions) == ["535.104.05", "535.104.12", "550.100"]
    free = nvproxy.versions["535.104.12"].tables["frontend"][0x29]
    assert free.structs == (NamedStruct("NVOS00_PARAMETERS", "Tagged"), NamedStruct("TaggedSame", "TaggedSame"))
    assert free.caps == ("compute", "utility")
    refused = nvproxy.versions["535.104.12"].tables["control"][0x80028B]
    assert (refused.handler, refused.structs) == ("ctrlFailureWithStatus(NV_ERR_NOT_SUPPORTED)", None)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("// CHANGES", "for _, c := range classes {\n}", "a statement of kind for_statement"),
        ("// CHANGES", "x, y := 1, 2", "an assignment of several values"),
        ("// CHANGES", "registerAll(v580_105_08)", "not a constant|not a conversion|not an integer type"),
        (
            "delete(abi.controlCmd, nvgpu.UNKNOWN_CONTROL_COMMAND_80028B)",
            "delete(abi.controlCmd, 0x1234)",
            "deletes 0x1234, which is not there",
        ),
        (
            "delete(abi.controlCmd, nvgpu.UNKNOWN_CONTROL_COMMAND_80028B)",
            "delete(abi.other, 1)",
            "other is not a table of abi",
        ),
        ("feHandler(rmFree, compUtil)", "feHandler(rmFree, Nonsense)", "no constant nvproxy.Nonsense"),
        ("feHandler(rmFree, compUtil)", "feHandler(rmFree, 0x8000)", "capabilities without a name in 0x8000"),
        ("feHandler(rmFree, compUtil)", "feHandler(func() {}, compUtil)", "not a handler"),
        ("feHandler(rmFree, compUtil)", "wrapped(rmFree)", "not a handler"),
        ('simpleIoctlInfo("UVM_DEINITIALIZE")', 'newStyle("UVM_DEINITIALIZE")', "not a list of structs"),
        ('simpleIoctlInfo("UVM_DEINITIALIZE")', "simpleIoctlInfo(42)", "neither a name nor a struct"),
        ("nvgpu.UVM_FREE:         uvmHandler", "nvgpu.UVM_GONE:         uvmHandler", "no constant nvgpu.UVM_GONE"),
        (
            "nvgpu.UVM_FREE:         uvmHandler",
            "nvgpu.UVM_DEINITIALIZE: uvmHandler",
            "the number of UVM_DEINITIALIZE too",
        ),
        ("addDriverABI(580, 105, 8,", "addDriverABI(580, 105,", "a registration that is not"),
        ("abi := v580_105_08()", "abi := v999_105_08()", "not"),
        ("590, 48, 01", "590, 44, 01", "registered twice"),
        ("func Init()", "func Other()", "the version tables cannot be read"),
        ("return abi\n", "return nil\n", "returns no table|not a constant"),
    ],
)
def test_what_cannot_be_read_is_listed(tmp_path: Path, old: str, new: str, what: str) -> None:
    assert old in MODERN
    nvproxy = read(write(tmp_path, MODERN.replace(old, new, 1)))
    assert nvproxy.unread
    assert any(re.search(what, f"{item.what} {item.why}") for item in nvproxy.unread), nvproxy.unread
    assert all(item.where.startswith("pkg/") for item in nvproxy.unread)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('simpleIoctlInfo("UVM_DEINITIALIZE")', "append(" * 20000 + "x" + ")" * 20000),
        ("return abi\n", "return " + "&" * 20000 + "abi\n"),
        ("// CHANGES", "once.Do(func() {\n" * 5000 + "})\n" * 5000),
        ("feHandler(rmFree, compUtil)", "feHandler(rmFree, " + "(" * 20000 + "1" + ")" * 20000 + ")"),
    ],
)
def test_deep_nesting_is_no_crash(tmp_path: Path, old: str, new: str) -> None:
    assert read(write(tmp_path, MODERN.replace(old, new, 1))).unread


def test_rows_of_one_side_are_told(tmp_path: Path) -> None:
    text = MODERN.replace('nvgpu.UVM_DEINITIALIZE: simpleIoctlInfo("UVM_DEINITIALIZE"),', "")
    nvproxy = read(write(tmp_path, text))
    assert nvproxy.versions["535.104.05"].unmatched == (Unmatched("uvm", "UVM_DEINITIALIZE", handler=True),)
    text = MODERN.replace("nvgpu.UVM_DEINITIALIZE: uvmHandler(uvmIoctlNoParams, compUtil),", "")
    nvproxy = read(write(tmp_path, text))
    assert nvproxy.versions["535.104.05"].unmatched == (Unmatched("uvm", "UVM_DEINITIALIZE", handler=False),)


def test_the_size_of_a_tree_is_bounded() -> None:
    """A chain of versions, each of which copies a large table."""
    rows = "\n".join(f"{n}: rmFree," for n in range(3000))
    chain = "\n".join(
        f"v1_{n}_1 := addDriverABI(1, {n}, 1, func() *driverABI {{\nabi := v1_{n - 1}_1()\nreturn abi\n}})"
        for n in range(1, 800)
    )
    text = (
        "package nvproxy\nfunc Init() {\nv1_0_1 := addDriverABI(1, 0, 1, func() *driverABI {\nreturn &driverABI{\n"
        f"frontendIoctl: map[uint32]frontendIoctlHandler{{\n{rows}\n}},\n}}\n}})\n{chain}\n}}\n"
    )
    with pytest.raises(SourceError, match="more than 2000000 steps"):
        versions(
            GoPackage(
                "nvproxy", {"v.go": text.encode()}, {"nvgpu": GoPackage("nvgpu", {}), "nvconf": GoPackage("nvconf", {})}
            )
        )


_LINES = MODERN.splitlines()


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.integers(0, len(_LINES) - 1), st.sampled_from(["drop", "twice", "cut"])), min_size=1, max_size=5
    )
)
def test_a_damaged_file_never_raises(edits: list[tuple[int, str]]) -> None:
    """Whatever is lost is either told of or was not needed: no row appears that the whole file does not have."""
    lines = list(_LINES)
    for index, how in edits:
        lines[index] = {
            "drop": "",
            "twice": lines[index] + "\n" + lines[index],
            "cut": lines[index][: len(lines[index]) // 2],
        }[how]
    nvgpu, nvconf = GoPackage("nvgpu", {"n.go": NVGPU.encode()}), GoPackage("nvconf", {"c.go": CAPS.encode()})
    files = {
        "v.go": "\n".join(lines).encode(),
        "f.go": b"package nvproxy\nconst compUtil = nvconf.CapCompute | nvconf.CapUtility",
    }
    found, _ = versions(GoPackage("nvproxy", files, {"nvgpu": nvgpu, "nvconf": nvconf}))
    numbers = {number for version in found.values() for rows in version.tables.values() for number in rows}
    assert numbers <= {0x29, 0x4A, 201, 34, 0x30000002, 0x205, 0x80028B, 0x20800142, 0x2080}


# Where trees come from.


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("SKIPPED, NOT TESTED: gVisor trees in git repositories; no git")
    root = tmp_path / "work"
    root.mkdir()

    def git(*arguments: str) -> None:
        identity = [
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@t",
            "-c",
            "commit.gpgsign=false",
            "-c",
            "init.defaultBranch=main",
        ]
        subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)

    git("init")
    write(root, BARE)
    git("add", ".")
    git("commit", "-qm", "old")
    git("tag", "release-2024")
    write(root)
    git("add", ".")
    git("commit", "-qm", "new")
    git("clone", "--bare", ".", "../bare.git")
    return root


def test_a_revision_of_a_repository(repository: Path) -> None:
    assert "590.48.01" in read(repository).versions
    assert "590.48.01" in read(repository, "main").versions
    assert "590.48.01" not in read(repository, "release-2024").versions
    assert "550.54.14" in read(repository.parent / "bare.git", "release-2024").versions
    assert "590.48.01" in read(repository.parent / "bare.git").versions
    with pytest.raises(SourceError, match="no revision 'nothing'"):
        read(repository, "nothing")
    with pytest.raises(SourceError, match="no revision"):
        read(repository, "--upload-pack=touch x")
    with pytest.raises(SourceError, match="no revision"):
        read(repository, "main\nmain")


def test_the_files_win_over_the_last_commit(repository: Path) -> None:
    write(repository, BARE)
    assert "590.48.01" not in read(repository).versions
    assert "590.48.01" in read(repository, "HEAD").versions


def test_what_is_no_tree(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="not a directory"):
        read(tmp_path / "missing")
    with pytest.raises(SourceError, match="neither a gVisor checkout"):
        read(tmp_path)
    (tmp_path / "pkg/abi/nvgpu").mkdir(parents=True)
    with pytest.raises(SourceError, match="nvproxy"):
        read(tmp_path)
    write(tmp_path)
    (tmp_path / "pkg/abi/nvgpu/nvgpu.go").unlink()
    with pytest.raises(SourceError, match="no Go files in pkg/abi/nvgpu"):
        read(tmp_path)
