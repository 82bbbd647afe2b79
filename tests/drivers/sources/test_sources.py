"""Sources: the same facts from a repository, a directory and an archive, and a clear answer for everything hostile."""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvproxy_model.drivers.parsing import processes as parsing
from nvproxy_model.drivers.parsing import reading
from nvproxy_model.drivers.parsing.scan import EMBEDDED, SDK
from nvproxy_model.drivers.parsing.units import Unit
from nvproxy_model.drivers.release import Release, Wanted
from nvproxy_model.drivers.sources import archives, open_source, repositories
from nvproxy_model.drivers.sources import source as sources
from nvproxy_model.errors import SourceError
from tests.drivers.driver_world import archive, git, repository, tree, write
from tests.effort import examples

CONTROL = "#define NV0000_CTRL_CMD_X (0x101U) /* finn: | NV0000_CTRL_X_PARAMS_MESSAGE_ID */\n"
EMBEDDED_LIST = """\
NV_STATUS embeddedParamCopyIn(A *paramCopies, B *p) {
    switch (c) {
        case C: { RMAPI_PARAM_COPY_INIT(paramCopies[0], ((S*)x)->p, y); break; }
    }
}
"""
NVOS = "typedef struct { NvU32 a; NvP64 p; union { NvU8 x; NvU16 y; }; } S;\n#define N 7\n"


def facts(release: Release) -> tuple[object, ...]:
    return release.headers, dict(release.structs), dict(release.constants), dict(release.params), dict(release.embedded)


def refused(path: Path | str, *, version: str | None = None) -> str:
    """The message of the SourceError that reading a source raises: one line that names the path."""
    with pytest.raises(SourceError) as caught, open_source(path) as source:
        source.release(version or source.versions[0], cache=False)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_one_tree_is_the_same_from_every_kind_of_source(tmp_path: Path) -> None:
    files = tree(NVOS, "1.2.3", ctrl__ctrl0000_h=CONTROL)
    files[EMBEDDED] = EMBEDDED_LIST
    single = write(tmp_path / "any-name", files)
    write(tmp_path / "many" / "1.2.3", files)
    write(tmp_path / "many" / "1.2.4", tree(NVOS, "1.2.4"))
    repo = repository(tmp_path / "repo", {"1.2.3": files, "1.2.4": tree(NVOS)})
    git(repo, "clone", "-q", "--bare", ".", str(tmp_path / "bare"))
    places = [single, tmp_path / "many", repo, tmp_path / "bare"]
    places += [
        archive(tmp_path / f"a{mode[2:] or '0'}.tar", files, mode=mode) for mode in ("w:", "w:gz", "w:bz2", "w:xz")
    ]
    found = []
    for place in places:
        with open_source(place) as source:
            assert "1.2.3" in source.versions
            found.append(facts(source.release("1.2.3", cache=False)))
    assert all(one == found[0] for one in found)
    headers, structs, constants, params, embedded = found[0]
    assert headers == 4
    assert constants["N"] == 7  # type: ignore[index]
    assert params == {"NV0000_CTRL_CMD_X": "NV0000_CTRL_X_PARAMS"}
    assert embedded == {"C": ("p",)}
    assert [f.name for f in structs["S"].fields] == ["a", "p", "<union@16>"]  # type: ignore[index]


def test_a_wanted_control_brings_its_parameter_struct(tmp_path: Path) -> None:
    control = CONTROL + "typedef struct { int a; } NV0000_CTRL_X_PARAMS; typedef NV0000_CTRL_X_PARAMS ALIAS;\n"
    path = write(tmp_path / "t", tree(NVOS, "1.1", ctrl__ctrl0000_h=control))
    with open_source(path) as source:
        release = source.release("1.1", Wanted(frozenset({"ALIAS"}), frozenset({"NV0000_CTRL_CMD_X"})))
    assert sorted(release.structs) == ["ALIAS", "NV0000_CTRL_X_PARAMS"]
    assert release.structs["ALIAS"] == release.structs["NV0000_CTRL_X_PARAMS"]


def test_ancestry_is_the_commits_and_not_the_numbers(tmp_path: Path) -> None:
    releases = {v: tree(f"#define N {n}") for n, v in enumerate(["570.1", "570.2", "570.10", "575.1", "570.3"])}
    repo = repository(tmp_path / "r", releases, {"575.1": "570.1", "570.3": "570.2"})
    git(repo, "tag", "not-a-release")
    with open_source(repo) as source:
        assert source.versions == ("570.1", "570.2", "570.3", "570.10", "575.1")
        assert [source.parent(v) for v in source.versions] == [None, "570.1", "570.2", "570.2", "570.1"]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The releases that a unit is parsed for, as they come."""
    jobs: list[str] = []
    original = parsing.parse

    def parse(source: parsing.Readable, units: Iterator[Unit]) -> object:
        return original(source, (jobs.append(unit.version) or unit for unit in units))  # type: ignore[func-returns-value]

    monkeypatch.setattr(reading, "parse", parse)
    return jobs


def test_equal_headers_are_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same, other = tree("#define N 1"), tree("#define N 2")
    unrelated = same | {"kernel-open/nvidia-uvm/uvm_va_block.h": "not even C"}
    repo = repository(tmp_path / "r", {"1.1": same, "1.2": unrelated, "1.3": other, "1.4": same})
    jobs = counted(monkeypatch)
    with open_source(repo) as source:
        values = [release.constants["N"] for release in source.releases(["1.1", "1.2", "1.3", "1.4"])]
    assert values == [1, 1, 2, 1]
    assert jobs == ["1.1", "1.3"]
    with open_source(repo) as source:
        assert [release.constants["N"] for release in source.releases(source.versions)] == [1, 1, 2, 1]
    assert len(jobs) == 2


# Mistakes and hostile inputs: (how to make it, what the message must say).


def _plain(root: Path) -> Path:
    return write(root / "t", tree(NVOS, "1.1"))


def _bad_header(root: Path) -> Path:
    return write(root / "t", tree("\n\ntypedef struct { Missing a; } S;", "1.1"))


def _not_utf8(root: Path) -> Path:
    return write(root / "t", {**tree(NVOS, "1.1"), f"{SDK}/bad.h": b"\n// \xe9\n"})


def _no_sdk(root: Path) -> Path:
    return write(root / "t", {"README": "x"})


def _half_sdk(root: Path) -> Path:
    return write(root / "t", {f"{SDK}/nvtypes.h": ""})


def _link(root: Path) -> Path:
    _plain(root)
    (root / "l").symlink_to(root / "t")
    return root / "l"


def _inner_link(root: Path) -> Path:
    path = _plain(root)
    (path / SDK / "z.h").symlink_to("/etc/passwd")
    return path


def _linked_directory(root: Path) -> Path:
    path = _plain(root)
    os.rename(path / SDK, root / "elsewhere")
    (path / SDK).symlink_to(root / "elsewhere")
    return path


def _fifo(root: Path) -> Path:
    path = _plain(root)
    os.mkfifo(path / SDK / "z.h")
    return path


def _zero(root: Path) -> Path:
    return write(root / "t", tree('#include "/dev/zero"', "1.1"))


def _computed(root: Path) -> Path:
    return write(root / "t", tree("#define F </etc/passwd>\n#include F", "1.1"))


def _dotted(root: Path) -> Path:
    return write(root / "t", tree('#include "../../../../../../../../../../etc/passwd"', "1.1"))


def _missing_include(root: Path) -> Path:
    return write(root / "t", tree("#include <linux/kernel.h>", "1.1"))


def _endless(root: Path) -> Path:
    lines = ["#define A0 int a;"] + [f"#define A{n} A{n - 1} A{n - 1}" for n in range(1, 60)]
    return write(root / "t", tree("\n".join([*lines, "typedef struct { A59 } S;"]), "1.1"))


def _recursive(root: Path) -> Path:
    return write(root / "t", tree('#include "nvos.h"\n#undef X', "1.1"))


def _nested(root: Path) -> Path:
    return write(root / "t", tree(f"int x[{'(' * 100_000}1{')' * 100_000}];", "1.1"))


def _huge(root: Path) -> Path:
    path = _plain(root)
    with (path / SDK / "z.h").open("wb") as file:
        file.truncate(1 << 34)
    return path


def _many(root: Path) -> Path:
    path = _plain(root)
    for n in range(60):
        (path / SDK / f"x{n}.h").touch()
    return path


def _deep(root: Path) -> Path:
    path = _plain(root)
    at = path / SDK
    for _ in range(20):
        at = at / "d"
    write(at, {"x.h": ""})
    return path


def _no_tags(root: Path) -> Path:
    repo = repository(root / "r", {"1.1": tree(NVOS)})
    git(repo, "tag", "-d", "1.1")
    return repo


def _shallow(root: Path) -> Path:
    repo = repository(root / "r", {"1.1": tree("#define N 1"), "1.2": tree("#define N 2")})
    git(root, "clone", "-q", "--depth", "1", "--branch", "1.2", repo.as_uri(), str(root / "s"))
    return root / "s"


def _partial(root: Path) -> Path:
    repo = repository(root / "r", {"1.1": tree(NVOS)})
    git(repo, "config", "uploadpack.allowFilter", "true")
    git(root, "clone", "-q", "--bare", "--filter=blob:none", repo.as_uri(), str(root / "p"))
    return root / "p"


def _damaged(root: Path) -> Path:
    repo = repository(root / "r", {"1.1": tree(NVOS)})
    blob = git(repo, "rev-parse", f"1.1:{SDK}/nvos.h")
    path = repo / ".git" / "objects" / blob[:2] / blob[2:]
    path.chmod(0o600)
    other = git(repo, "rev-parse", f"1.1:{SDK}/nvtypes.h")
    path.write_bytes((repo / ".git" / "objects" / other[:2] / other[2:]).read_bytes())
    return repo


def _fifo_object(root: Path) -> Path:
    repo = repository(root / "r", {"1.1": tree(NVOS)})
    blob = git(repo, "rev-parse", f"1.1:{SDK}/nvos.h")
    (repo / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    os.mkfifo(repo / ".git" / "objects" / blob[:2] / blob[2:])
    return repo


def _fifo_refs(root: Path) -> Path:
    repo = repository(root / "r", {"1.1": tree(NVOS)})
    os.mkfifo(repo / ".git" / "packed-refs")
    return repo


def _linked_header(root: Path) -> Path:
    repo = repository(root / "r", {"1.1": tree(NVOS)})
    (repo / SDK / "z.h").symlink_to("/etc/passwd")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "x")
    git(repo, "tag", "-f", "1.1")
    return repo


def _truncated(root: Path) -> Path:
    path = archive(root / "a.tar.gz", {f"{n}": os.urandom(2000) for n in range(50)} | tree(NVOS))
    path.write_bytes(path.read_bytes()[:-4000])
    return path


def _truncated_plain(root: Path) -> Path:
    path = archive(root / "a.tar", tree(NVOS), mode="w:")
    data = path.read_bytes().rstrip(b"\0")
    path.write_bytes(data + bytes(-len(data) % 512))
    return path


def _not_an_archive(root: Path) -> Path:
    path = root / "a.tar"
    path.write_bytes(b"hello" * 1000)
    return path


def _empty_file(root: Path) -> Path:
    path = root / "a.tar"
    path.touch()
    return path


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        path = root / "a.tar"
        with tarfile.open(path, "w") as tar:
            for each, content in tree(NVOS).items():
                member = tarfile.TarInfo("t/" + each)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content.encode()))
            odd = tarfile.TarInfo(name)
            odd.type, odd.linkname = kind, link
            tar.addfile(odd)
        return path

    return make


def _extended(*headers: tuple[bytes, bytes, int]) -> Callable[[Path], Path]:
    """An archive of members, each after an extended header: (type, attribute, how many)."""

    def make(root: Path) -> Path:
        path = root / "a.tar"
        blocks = []
        for kind, value, times in headers:
            length = len(value) + len(" c=\n")
            record = b"%d c=%s\n" % (length + len(str(length + len(str(length)))), value)
            assert record.startswith(b"%d " % len(record))
            head = tarfile.TarInfo("x")
            head.type, head.size = kind, len(record)
            blocks += [head.tobuf(tarfile.USTAR_FORMAT), record + bytes(-len(record) % 512)] * times
        path.write_bytes(b"".join(blocks) + tarfile.TarInfo("f").tobuf() + bytes(1024))
        return path

    return make


def _sparse(root: Path) -> Path:
    path = root / "a.tar"
    odd = tarfile.TarInfo("s")
    odd.type = tarfile.GNUTYPE_SPARSE
    block = bytearray(odd.tobuf(tarfile.GNU_FORMAT))
    block[482] = 1  # an extension block follows
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    path.write_bytes(bytes(block) + bytes(4096))
    return path


def _linked_into(name: str) -> Callable[[Path], Path]:
    """A repository whose part of this name is a link to another's, or to a file of the user's."""

    def make(root: Path) -> Path:
        other = repository(root / "other", {"1.1": tree(NVOS)}) / ".git"
        git(other.parent, "pack-refs", "--all")
        repo = repository(root / "r", {"1.1": tree(NVOS)}) / ".git"
        target = repo / name
        if target.is_dir():
            target.rename(root / "moved")
        target.unlink(missing_ok=True)
        target.symlink_to("/etc/passwd" if name == "packed-refs" else other / name)
        return repo.parent

    return make


def _alternates(root: Path) -> Path:
    other = repository(root / "other", {"1.1": tree(NVOS)})
    git(root, "clone", "-q", "--shared", str(other), str(root / "r"))
    return root / "r"


def _foreign_gitdir(root: Path) -> Path:
    repository(root / "other", {"1.1": tree(NVOS)})
    (root / "r").mkdir()
    (root / "r" / ".git").write_text(f"gitdir: {root / 'other' / '.git'}\n")
    return root / "r"


def _doubling(root: Path) -> Path:
    chain = "typedef struct { NvU32 a; } C0;\n"
    chain += "".join(f"typedef struct {{ C{n} a, b; }} C{n + 1};\n" for n in range(24))
    return write(root / "t", tree(chain, "1.1"))


def _bomb(root: Path) -> Path:
    return archive(root / "a.tar.xz", {**tree(NVOS), "zeros": bytes(3 << 20)}, mode="w:xz")


def _long_name(root: Path) -> Path:
    path = root / "a.tar"
    odd = tarfile.TarInfo("x")
    odd.type, odd.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    path.write_bytes(odd.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    return path


def _twins(root: Path) -> Path:
    write(root / "m" / "a", tree(NVOS, "1.1"))
    write(root / "m" / "b", tree(NVOS, "1.1"))
    return root / "m"


HOSTILE: list[tuple[Callable[[Path], Path], str]] = [
    (_bad_header, r"1\.1: .*nvos\.h:4: unknown type name 'Missing'"),
    (_not_utf8, r"bad\.h:2: not UTF-8 \(byte 0xe9\)"),
    (_no_sdk, "not a driver source tree"),
    (_half_sdk, r"no .*nvos\.h: not an open-gpu-kernel-modules tree"),
    (_link, "a symbolic link"),
    (_inner_link, r"z\.h: a symbolic link"),
    (_linked_directory, "through a symbolic link"),
    (_fifo, "not a regular file"),
    (_zero, r"nvos\.h:2: '/dev/zero' file not found"),
    (_computed, r"'/etc/passwd' file not found"),
    (_dotted, "file not found"),
    (_missing_include, r"'linux/kernel\.h' file not found"),
    # Whichever of the parser's limits comes first: the process is ended, or libclang says that it cannot go on.
    (_endless, "the parser gave up|could not read the headers at all"),
    (_recursive, r"nvos\.h:2: #include nested too deeply"),
    (_nested, "bracket nesting level exceeded"),
    (_huge, "a header has at most"),
    (_many, "more than"),
    (_deep, "deeper than"),
    (_no_tags, "without tags"),
    (_shallow, "a shallow clone"),
    (_partial, "is missing"),
    (_damaged, "not what its id says|cannot be read|died"),
    (_fifo_object, "is missing|cannot be read|died"),
    (_fifo_refs, "git for-each-ref: ended with -9|without tags"),
    (_linked_header, "a symbolic link"),
    (_truncated, "truncated"),
    (_truncated_plain, "truncated"),
    (_not_an_archive, "truncated or not a tar archive"),
    (_empty_file, "truncated or not a tar archive"),
    (_member("../x"), "outside the archive's root"),
    (_member("/etc/x"), "outside the archive's root"),
    (_member("t/l.h", tarfile.SYMTYPE, "/etc/passwd"), "is a link"),
    (_member("t/l.h", tarfile.LNKTYPE, "t/x"), "is a link"),
    (_member("t/d", tarfile.CHRTYPE), "neither a file nor a directory"),
    (_bomb, "unpacks to more than"),
    (_long_name, "an extended header of"),
    (_extended((tarfile.XHDTYPE, b"v" * 100_000, 1)), "an extended header of"),
    (_extended((tarfile.XGLTYPE, b"v" * 3000, 2)), "global headers of more than"),
    (_extended((tarfile.XHDTYPE, b"v" * 60_000, 30)), "extended headers of more than"),
    (_sparse, "a sparse member"),
    (_linked_into("packed-refs"), "packed-refs: a symbolic link"),
    (_linked_into("refs/tags"), "tags: a symbolic link"),
    (_linked_into("refs"), "refs: a symbolic link"),
    (_linked_into("objects"), "objects: a symbolic link"),
    (_alternates, "objects of another repository are borrowed"),
    (_foreign_gitdir, "not one of its linked work trees"),
    (_doubling, r"C\d+: \d+ members with those of its members"),
    (_twins, r"two trees of 1\.1"),
    (lambda root: root / "absent", "No such file"),
    (lambda _: Path("/dev/null"), "neither a directory nor a file"),
]


@pytest.mark.parametrize(("make", "message"), HOSTILE, ids=[getattr(make, "__name__", "x") for make, _ in HOSTILE])
def test_hostile_sources_are_one_line_errors(
    make: Callable[[Path], Path], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import re

    monkeypatch.setattr(repositories, "GIT_ANSWER", 2)
    monkeypatch.setattr(archives, "MAX_UNPACKED", 2 << 20)
    monkeypatch.setattr(archives, "MAX_EXTENSIONS", 1 << 20)
    monkeypatch.setattr(sources, "MAX_FILES", 50)
    monkeypatch.setattr(parsing, "CPU_SECONDS", 1)
    monkeypatch.setattr(parsing, "MEMORY", 1 << 30)
    text = refused(make(tmp_path))
    assert re.search(message, text), text


HOSTILE_CONFIG = """\
[core]
    repositoryformatversion = 1
    bare = false
    fsmonitor = {script}
    pager = {script}
    hooksPath = {folder}
    sshCommand = {script}
    gitProxy = {script}
    alternateRefsCommand = {script}
    worktree = /
    attributesFile = /dev/zero
[extensions]
    partialClone = origin
    unheardOf = 1
[remote "origin"]
    url = ext::{script}
    promisor = true
    partialclonefilter = blob:none
[include]
    path = /dev/zero
[filter "x"]
    smudge = {script}
[protocol "ext"]
    allow = always
"""


def test_a_repository_executes_and_configures_nothing(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", {"1.1": tree("#define N 1"), "1.2": tree("#define N 2")})
    trap = tmp_path / "trap"
    script = tmp_path / "evil"
    script.write_text(f"#!/bin/sh\ntouch {trap}\nexit 1\n")
    script.chmod(0o755)
    for hook in ("post-checkout", "reference-transaction", "pre-auto-gc", "fsmonitor-watchman"):
        shutil.copy(script, repo / ".git" / "hooks" / hook)
    (repo / ".git" / "config").write_text(HOSTILE_CONFIG.format(script=script, folder=tmp_path))
    (repo / ".gitattributes").write_text("* filter=x diff=x\n")
    with open_source(repo) as source:
        assert [release.constants["N"] for release in source.releases(["1.1", "1.2"])] == [1, 2]
    blob = git(tmp_path, "hash-object", str(repo / SDK / "nvos.h"))
    (repo / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    assert "is missing" in refused(repo, version="1.2")
    assert not trap.exists()


def test_grafts_and_replace_refs_change_nothing(tmp_path: Path) -> None:
    repo = repository(
        tmp_path / "r", {"1.1": tree("#define N 1"), "1.2": tree("#define N 2"), "1.3": tree("#define N 3")}
    )
    one, two, three = (git(repo, "rev-parse", v) for v in ("1.1", "1.2", "1.3"))
    git(repo, "replace", two, one)
    (repo / ".git" / "info").mkdir(exist_ok=True)
    (repo / ".git" / "info" / "grafts").write_text(f"{three}\n")
    assert "shallow" not in os.listdir(repo / ".git")
    with open_source(repo) as source:
        assert [source.parent(v) for v in source.versions] == [None, "1.1", "1.2"]
        assert source.release("1.2").constants["N"] == 2


def test_odd_tags(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", {"1.1": tree("#define N 1")})
    git(repo, "update-ref", "refs/tags/--upload-pack=touch", "HEAD")
    git(repo, "tag", "-a", "-m", "annotated", "1.2")
    git(repo, "update-ref", "refs/tags/9.9", git(repo, "hash-object", "-w", str(repo / SDK / "nvos.h")))
    with open_source(repo) as source:
        assert source.versions == ("1.1", "1.2")
        assert source.release("--upload-pack=touch").constants["N"] == 1
        assert source.release("1.2").constants["N"] == 1
        for name in ("9.9", "1.1\n1.2", "", "HEAD", "1.1^{tree}", "../../HEAD"):
            with pytest.raises(SourceError, match="no tag"):
                source.release(name)


def test_linked_work_trees_and_sha256(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", {"1.1": tree("#define N 1")})
    git(repo, "worktree", "add", "-q", "--detach", str(tmp_path / "w"))
    with open_source(tmp_path / "w") as source:
        assert source.release("1.1").constants["N"] == 1
    wide = tmp_path / "wide"
    wide.mkdir()
    git(wide, "init", "-q", "--object-format=sha256", "-b", "main")
    write(wide, tree("#define N 5"))
    git(wide, "add", "-A")
    git(wide, "commit", "-q", "-m", "x")
    git(wide, "tag", "1.1")
    with open_source(wide) as source:
        assert source.release("1.1").constants["N"] == 5


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository(tmp_path / "r", {"1.1": tree(NVOS)})
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no git on this machine" in refused(repo)


def test_the_parser_opens_no_file(tmp_path: Path) -> None:
    """A header that names a file of this machine finds nothing, although the file is there and readable."""
    secret = tmp_path / "secret.h"
    secret.write_text("#define N 99\n")
    path = write(
        tmp_path / "t", tree(f'#if __has_include("{secret}")\n#include "{secret}"\n#endif\n#define M 1', "1.1")
    )
    with open_source(path) as source:
        try:
            release = source.release("1.1", Wanted(frozenset(), frozenset({"N", "M"})))
        except SourceError as error:
            message = str(error)
        else:
            message, found = "", dict(release.constants)
    assert "file not found" in message or found == {"M": 1}


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    path = _plain(tmp_path)
    (path / SDK / "z.h").write_text("")
    (path / SDK / "z.h").chmod(0)
    if os.access(path / SDK / "z.h", os.R_OK):
        pytest.skip("SKIPPED, NOT PROVED: this user reads everything")
    assert "z.h: Permission denied" in refused(path)


def test_source_trees_are_left_alone(tmp_path: Path) -> None:
    path = _plain(tmp_path)
    before = {p: (p.stat().st_mtime_ns, stat.S_IMODE(p.stat().st_mode)) for p in path.rglob("*")}
    with open_source(path) as source:
        source.release("1.1")
    assert {p: (p.stat().st_mtime_ns, stat.S_IMODE(p.stat().st_mode)) for p in path.rglob("*")} == before


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=4000), keep=st.integers(0, 20_000), flip=st.integers(0, 20_000))
def test_damaged_archives_never_raise_anything_else(data: bytes, keep: int, flip: int, tmp_path: Path) -> None:
    whole = archive(tmp_path / "whole.tar", tree(NVOS, "1.1"), mode="w:").read_bytes()
    damaged = bytearray(whole[:keep] + data)
    if damaged:
        damaged[flip % len(damaged)] ^= 0x55
    path = tmp_path / "a.tar"
    path.write_bytes(bytes(damaged))
    message = ""
    try:
        with open_source(path) as source:
            assert source.versions
    except SourceError as error:
        message = str(error)
    assert "\n" not in message


def test_processes_are_gone_after_an_error(tmp_path: Path) -> None:
    refused(_bad_header(tmp_path))
    children = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    assert "git" not in [Path("/proc", pid, "comm").read_text().strip() for pid in children]
