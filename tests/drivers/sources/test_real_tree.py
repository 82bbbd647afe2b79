"""A real driver tree: $NVPROXY_DRIVER_TREE names a tarball (Debian's source package), a directory or a repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from nvproxy_model.drivers import facts
from nvproxy_model.drivers.compare import model
from nvproxy_model.drivers.compare.check import check_release, model_release
from nvproxy_model.drivers.compare.findings import compare_releases, entries
from nvproxy_model.drivers.parsing import headers, scan
from nvproxy_model.drivers.release import Release
from nvproxy_model.drivers.sources import Source, open_source

TREE = os.environ.get("NVPROXY_DRIVER_TREE", "")
pytestmark = pytest.mark.skipif(not TREE, reason="SKIPPED, NOT PROVED: NVPROXY_DRIVER_TREE names no driver tree")
FACTS = facts.load()


@pytest.fixture(scope="module")
def source() -> Source:
    return open_source(TREE)


@pytest.fixture(scope="module")
def release(source: Source) -> Release:
    version = next(version for version in reversed(source.versions) if version in FACTS)
    return source.release(version, cache=False)


def test_the_recorded_facts_are_what_is_in_the_tree(release: Release) -> None:
    recorded = FACTS.release(release.version)
    assert release.headers == recorded.headers
    for table in ("structs", "constants", "enums", "params", "embedded"):
        assert dict(getattr(release, table)) == dict(getattr(recorded, table)), table
    compared = compare_releases(release, recorded)
    assert (compared.verdict, compared.structs) == ("none", len(release.structs))


def test_reading_only_what_the_model_names_gives_the_same(source: Source, release: Release) -> None:
    wanted = model.names()
    some = source.release(release.version, wanted, cache=False)
    asked = wanted.structs | set(some.params.values())
    assert dict(some.structs) == {n: release.structs[n] for n in sorted(asked) if n in release.structs}
    listed = model_release(release.version, FACTS.parent)
    assert listed is not None
    assert check_release(some, listed).findings == ()
    assert dict(some.constants) == {n: release.constants[n] for n in sorted(wanted.constants) if n in release.constants}


def test_the_model_is_the_same(release: Release) -> None:
    listed = model_release(release.version, FACTS.parent)
    assert listed is not None
    assert check_release(release, listed).findings == ()


def test_a_directory_gives_the_same_as_the_archive(release: Release, tmp_path: Path) -> None:
    if not tarfile.is_tarfile(TREE):
        pytest.skip("the tree is no archive")
    with tarfile.open(TREE) as archive:
        for member in archive:
            if member.name.endswith((".h", "version.mk", "embedded_param_copy.c")):
                content = archive.extractfile(member)
                assert content is not None
                (tmp_path / member.name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / member.name).write_bytes(content.read())
    with open_source(next(tmp_path.iterdir())) as directory:
        again = directory.release(release.version, cache=False)
    assert dict(again.structs) == dict(release.structs)
    assert dict(again.constants) == dict(release.constants)


def test_a_compiler_agrees_with_every_size_offset_and_constant(
    source: Source, release: Release, tmp_path: Path
) -> None:
    """The real headers, compiled by another compiler with one assertion for each fact."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("SKIPPED, NOT PROVED: no gcc on this machine")
    files = source.closure(source.files(release.version), True).files
    contents = source.read(files.values())
    for path, blob in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(contents[blob])
    for name, stub in headers.STUBS.items():
        (tmp_path / "stubs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "stubs" / name).write_text(stub)
    text = b"".join(contents[blob] for path, blob in files.items() if path.endswith(".h")).decode()
    lines = [f'#include "{tmp_path}/{path}"' for path in scan.roots(files)]
    # nv_dpy_id.h hides its members behind these.
    lines += ["#undef opaqueDpyId", "#undef opaqueDpyIdList"]
    typedefs = _typedefs(text)
    for name, layout in release.structs.items():
        subject = name if name in typedefs else f"{layout.kind} {name}"
        lines.append(
            f'_Static_assert(sizeof({subject}) == {layout.size} && _Alignof({subject}) == {layout.align}, "{name}");'
        )
        for entry in entries(layout):
            member = entry.key.replace("[]", "[0]")
            if ":" not in entry.field.type and entry.field.size:
                where = f"__builtin_offsetof({subject}, {member}) == {entry.offset}"
                size = f"sizeof((({subject} *)0)->{member}) == {entry.field.size}"
                lines.append(f'_Static_assert({where} && {size}, "{name}.{member}");')
    lowest = "(-9223372036854775807LL - 1)"
    for name, value in release.constants.items():
        literal = lowest if value == -(2**63) else f"{value}ULL" if value >= 2**63 else f"({value}LL)"
        lines.append(f'_Static_assert(({name}) == {literal}, "{name}");')
    (tmp_path / "unit.c").write_text("\n".join(lines) + "\n")
    include = [f"-I{tmp_path / directory}" for directory in (*scan.INCLUDE_PATH, "stubs")]
    arguments = [compiler, "-std=gnu11", "-w", "-fsyntax-only", "-nostdinc", *include, str(tmp_path / "unit.c")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    assert len(lines) > 20_000


def _typedefs(text: str) -> set[str]:
    import re

    after_brace = {word for names in re.findall(r"\}([^;{}]*);", text) for word in re.findall(r"\w+", names)}
    return after_brace | set(re.findall(r"typedef[^;{]*?\b(\w+)\s*;", text))
