"""gVisor's own tree against facts that were evaluated from it with Go: every entry, struct and constant.

NVPROXY_GVISOR_TREE names a git repository of google/gvisor that has the commit below; the history tests also need the two
years before it.
"""

from __future__ import annotations

import json
import lzma
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvproxy_model.drivers import facts
from nvproxy_model.drivers.gvisor.against_model import compare_with_model
from nvproxy_model.drivers.gvisor.checkout import Nvproxy, read
from nvproxy_model.drivers.gvisor.known import load, without
from nvproxy_model.drivers.gvisor.parity import compare, release_name
from nvproxy_model.errors import SourceError
from nvproxy_model.layout import Layout
from tests import DATA, ROOT

COMMIT = "3c5eee17dc45659fb86843531074f38e78e0cc35"
TREE = os.environ.get("NVPROXY_GVISOR_TREE", "")
VERSION_GO = "pkg/sentry/devices/nvproxy/version.go"


@pytest.fixture(scope="module")
def nvproxy() -> Nvproxy:
    if not TREE:
        pytest.skip(
            "SKIPPED, NOT TESTED: the reader on gVisor's own tree; set NVPROXY_GVISOR_TREE to a clone of google/gvisor"
        )
    try:
        return read(Path(TREE), COMMIT)
    except SourceError as error:
        pytest.skip(f"SKIPPED, NOT TESTED: the reader on gVisor's own tree; {error}")


def data(name: str) -> dict[str, Any]:
    path = DATA / name
    loaded: dict[str, Any] = json.loads(lzma.decompress(path.read_bytes()))
    return loaded


def test_every_entry_of_every_version(nvproxy: Nvproxy) -> None:
    """13,417 entries over 39 versions: name, handler, capabilities, struct and its size."""
    evaluated = data("nvproxy_abi.json.xz")
    assert nvproxy.unread == ()
    assert [[version.version, version.parent] for version in nvproxy.versions.values()] == evaluated["nodes"]
    assert not any(version.unmatched for version in nvproxy.versions.values())
    names = list(nvproxy.versions)
    compared = 0
    for table, number, name, caps, struct, size, handler, nodes in evaluated["rows"]:
        if (table, number) in EVENT_BUFFER:
            continue
        for index in nodes:
            entry = nvproxy.versions[names[index]].tables[table][number]
            compared += 1
            assert name in (entry.name, entry.symbol)
            assert (entry.handler, ",".join(sorted(entry.caps or ()))) == (handler, caps)
            structs = {item.name: item.go_type for item in entry.structs or ()}
            assert struct in structs if struct else not structs
            if size is not None:
                go_type = structs[struct]
                assert go_type is not None
                assert nvproxy.nvgpu.layout(go_type).size == size
    assert (
        compared == sum(len(rows) for version in nvproxy.versions.values() for rows in version.tables.values()) == 13417
    )


EVENT_BUFFER = {
    ("alloc", 0x90CD),
    ("alloc", 0x90CE),
    *(("control", number) for number in (0x20801231, 0x20800309, 0x90CD0101, 0x90CD0102, 0x90CD0104)),
}
"""Rows of the recorded table that come from a change which this revision does not have."""


def test_every_struct(nvproxy: Nvproxy) -> None:
    evaluated = data("nvproxy_structs.json.xz")["structs"]
    assert set(evaluated) <= set(nvproxy.nvgpu.struct_names) | {"NV_EVENT_BUFFER_ALLOC_PARAMETERS"}
    compared = 0
    for name in set(evaluated) & set(nvproxy.nvgpu.struct_names):
        expected, layout = evaluated[name], nvproxy.nvgpu.layout(name)
        assert (layout.size, layout.align) == (expected["size"], expected["align"])
        compared += 1
        assert [
            leaf for leaf in _leaves(layout) if not leaf[0].rpartition(".")[2].lower().startswith(("pad", "_"))
        ] == expected["leaves"]
    assert compared >= 147


def _leaves(layout: Layout, prefix: str = "", base: int = 0) -> Iterator[list[Any]]:
    for field in layout.fields:
        if field.base != "record" or field.dims:
            dims = field.dims[:-1] if field.type == "NvUUID" else field.dims  # [16]uint8 by definition
            shown = "".join(f"[{length}]" for length in dims) + field.type
            yield [prefix + field.name, base + field.offset, field.size, shown]
        elif field.record is not None:
            yield from _leaves(field.record, f"{prefix}{field.name}.", base + field.offset)


def test_every_constant(nvproxy: Nvproxy) -> None:
    found = {name: nvproxy.nvgpu.constant(name).value for name in nvproxy.nvgpu.constant_names}
    evaluated = data("nvproxy_constants.json.xz")["constants"]
    assert len(found) == 445
    assert {name: value for name, value in evaluated.items() if name in found} == found


def test_the_findings_against_the_drivers(nvproxy: Nvproxy) -> None:
    recorded = facts.load()
    tags = {tag for version in nvproxy.versions if (tag := release_name(version, recorded.versions))}
    parity = compare(nvproxy, {tag: recorded.release(tag) for tag in tags})
    assert parity.compared == 35
    assert [
        (f.kind, f.name, f.base, f.next, f.versions[0], f.versions[-1], len(f.versions)) for f in parity.findings
    ] == [
        ("name-missing", "alloc GF100_SUBDEVICE_INFOROM", 0x90E7, None, "535.104.05", "535.113.01", 2),
        (
            "name-missing",
            "control NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_KEY_ROTATION_STATE",
            0xCB33010C,
            None,
            "555.42.02",
            "555.42.02",
            1,
        ),
        (
            "struct-missing",
            "control NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_KEY_ROTATION_STATE",
            None,
            None,
            "555.42.02",
            "555.42.02",
            1,
        ),
        ("union-member-differs", "NVOS32AllocSize", None, 112, "550.40.07", "610.57.04", 25),
        ("union-member-differs", "NVOS32AllocSize", 112, 120, "550.40.07", "610.57.04", 25),
        ("constant-differs", "UVM_MAX_GPUS", 32, 256, "555.42.02", "610.57.04", 21),
    ]


def test_the_model_says_the_same_but_for_what_is_newer(nvproxy: Nvproxy) -> None:
    """What gVisor gained after this revision is one group; its rows that the driver contradicts are another; nothing is left."""
    parity = compare_with_model(nvproxy)
    assert parity.compared == 39
    assert parity.findings == ()
    newer = {f.name for f in parity.notes if f.kind == "newer"}
    assert {"alloc AMPERE_B", "alloc MAXWELL_PROFILER_CONTEXT", "alloc KEPLER_CHANNEL_GROUP_A"} <= newer
    assert {f.name for f in parity.notes if f.kind == "contradicted"} == {
        "alloc GF100_SUBDEVICE_INFOROM",
        "control NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_KEY_ROTATION_STATE",
    }


def test_two_years_of_revisions(nvproxy: Nvproxy) -> None:
    """Every twelfth revision of the tables since 2024, and the newest: nothing is left unread."""
    command = ["git", "-C", TREE, "rev-list", "--since=2024-01-01", COMMIT, "--", VERSION_GO]
    revisions = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    if len(revisions) < 24:
        pytest.skip("SKIPPED, NOT TESTED: gVisor's history; NVPROXY_GVISOR_TREE has none")
    for revision in revisions[::12]:
        old = read(Path(TREE), revision)
        assert old.unread == (), revision
        assert len(old.versions) >= 5
        assert all(sum(map(len, version.tables.values())) > 100 for version in old.versions.values())


def test_the_known_findings_are_all_that_there_are(nvproxy: Nvproxy) -> None:
    recorded = facts.load()
    tags = [tag for version in nvproxy.versions if (tag := release_name(version, recorded.versions)) is not None]
    found = compare(nvproxy, {tag: recorded.release(tag) for tag in tags})
    left, known, unused = without(found, load((ROOT / "examples/gvisor-known.yaml").read_bytes()))
    assert (left.findings, unused) == ((), ())
    assert len(known) == len(found.findings)
