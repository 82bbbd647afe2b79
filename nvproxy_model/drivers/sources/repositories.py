"""Git repositories of the driver, read without trusting them.

git runs in a directory of our own that borrows the repository's objects and refs: its configuration, hooks, grafts,
replace refs, filters and remotes are never looked at, so nothing in it is executed and nothing is fetched.
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from nvproxy_model.drivers.parsing import scan
from nvproxy_model.drivers.release import Provenance
from nvproxy_model.drivers.sources.source import MAX_DEPTH, MAX_FILES, MAX_HEADER, MAX_HEADERS, Source, version_of
from nvproxy_model.errors import SourceError
from nvproxy_model.naming import natural

__all__ = ["Objects", "RepositorySource", "git_directory"]

MAX_TAGS = 20_000
MAX_COMMITS = 500_000
GIT_MEMORY = 4 << 30
GIT_SECONDS = 300
GIT_ANSWER = 120
"""Seconds of waiting for one answer."""
_HASH = re.compile(r"[0-9a-fA-F]{7,64}")
_SIGNATURE = re.compile(rb"^-----BEGIN (?:PGP|SSH) SIGNATURE-----$", re.MULTILINE)
_RELEASE = re.compile(r"\d+(?:\.\d+)+")
_HEX = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def git_directory(path: Path) -> Path | None:
    """The directory with the objects and refs of a repository, work tree or linked work tree; None if it is none."""
    candidate = path
    if os.path.lexists(path / ".git"):
        candidate = path / ".git"
        if candidate.is_symlink():
            raise SourceError("a symbolic link; links are not followed", candidate)
        if candidate.is_file():
            with candidate.open("rb") as file:
                text = file.read(4096).decode("utf-8", "replace")
            if not text.startswith("gitdir: "):
                raise SourceError("not a gitdir file", candidate)
            candidate = _linked_work_tree(path, path / text.removeprefix("gitdir: ").strip())
    if not (candidate / "HEAD").is_file() or not (candidate / "objects").is_dir():
        return None
    _stay_inside(candidate)
    return candidate


def _linked_work_tree(path: Path, directory: Path) -> Path:
    """The repository of a linked work tree (git-worktree(1)), which must name that work tree as its own.

    Otherwise a ``.git`` file could lead into any repository of the user's.
    """
    try:
        back = (directory / "gitdir").read_bytes()[:4096].decode("utf-8", "replace").strip()
        common = (directory / "commondir").read_bytes()[:4096].decode("utf-8", "replace").strip()
    except OSError:
        back = common = ""
    repository = (directory / common).resolve()
    if (
        not back
        or (directory / back).resolve() != (path / ".git").resolve()
        or repository not in directory.resolve().parents
    ):
        raise SourceError(
            f"its gitdir {directory} is not one of its linked work trees; name the repository itself", path
        )
    return repository


def _stay_inside(directory: Path) -> None:
    """Refuse a repository whose refs or objects are elsewhere: links, and objects borrowed from another repository."""
    for name in ("HEAD", "config", "packed-refs", "refs", "objects", "objects/info", "objects/pack", "shallow"):
        if (directory / name).is_symlink():
            raise SourceError("a symbolic link; links are not followed", directory / name)
    alternates = directory / "objects" / "info" / "alternates"
    if os.path.lexists(alternates):
        raise SourceError(
            "objects of another repository are borrowed (git repack -a -d, then remove this file)", alternates
        )
    count = 0
    for where, folders, files in os.walk(directory / "refs"):
        for name in (*folders, *files):
            count += 1
            if count > MAX_TAGS:
                raise SourceError(f"more than {MAX_TAGS} refs (git pack-refs --all)", directory / "refs")
            if os.path.islink(os.path.join(where, name)):
                raise SourceError("a symbolic link; links are not followed", Path(where, name))


def _limit() -> None:
    """Bound a git process: an object may unpack to more than any machine has."""
    resource.setrlimit(resource.RLIMIT_AS, (GIT_MEMORY, GIT_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (GIT_SECONDS, GIT_SECONDS))


@contextmanager
def _deadline(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a git process that neither answers nor ends: an object or a ref may be a fifo."""
    timer = threading.Timer(GIT_ANSWER, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # the next parser is forked without a thread beside it


class Objects:
    """Commits, trees and blobs of one repository."""

    def __init__(self, path: Path, directory: Path) -> None:
        self.path = path
        git = shutil.which("git")
        if git is None:
            raise SourceError(
                "a git repository, and there is no git on this machine; name a directory or an archive", path
            )
        self._git = git
        if (directory / "shallow").exists():
            raise SourceError(
                "a shallow clone: its tags and their ancestry are cut off (git fetch --unshallow --tags)", path
            )
        if (directory / "reftable").exists():
            raise SourceError("refs in reftable format are not supported (git refs migrate --ref-format=files)", path)
        self._home = tempfile.TemporaryDirectory(prefix="nvproxy-model-git-")
        home = Path(self._home.name)
        (home / "HEAD").write_text("ref: refs/heads/none\n")
        wide = self._wide(directory)
        (home / "config").write_text(
            f"[core]\n\trepositoryformatversion = {int(wide)}\n\tbare = true\n\tcommitGraph = false\n"
            "\tpackedGitWindowSize = 64m\n\tpackedGitLimit = 512m\n\tbigFileThreshold = 16m\n"
            + ("[extensions]\n\tobjectFormat = sha256\n" if wide else "")
        )
        (home / "refs").symlink_to((directory / "refs").resolve())
        if (directory / "packed-refs").exists():
            (home / "packed-refs").symlink_to((directory / "packed-refs").resolve())
        self._environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(home),
            "LC_ALL": "C",
            "GIT_DIR": str(home),
            "GIT_OBJECT_DIRECTORY": str((directory / "objects").resolve()),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_GRAFT_FILE": os.devnull,
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ALLOW_PROTOCOL": "",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
        }
        self._width = 32 if wide else 20
        self._hash = hashlib.sha256 if wide else hashlib.sha1
        self._batch: subprocess.Popen[bytes] | None = None

    @staticmethod
    def _wide(directory: Path) -> bool:
        """Whether the repository uses SHA-256, which its own configuration says; only this line of it is looked at."""
        if not (directory / "config").is_file():
            return False
        with (directory / "config").open("rb") as file:
            return re.search(rb"(?mi)^[ \t]*objectformat[ \t]*=[ \t]*sha256[ \t]*$", file.read(1 << 16)) is not None

    def close(self) -> None:
        if self._batch is not None:
            self._batch.kill()
            self._batch.communicate()
            self._batch = None
        self._home.cleanup()

    def run(self, *arguments: str, stdin: Iterable[str] = (), limit: int) -> Iterator[str]:
        """A git command's lines; more than ``limit`` of them is an error."""
        with tempfile.TemporaryFile() as questions, tempfile.TemporaryFile() as complaints:
            questions.writelines(f"{line}\n".encode("utf-8", "surrogateescape") for line in stdin)
            questions.seek(0)
            with (
                subprocess.Popen(
                    [self._git, *arguments],
                    stdin=questions,
                    stdout=subprocess.PIPE,
                    stderr=complaints,
                    env=self._environment,
                    preexec_fn=_limit,  # noqa: PLW1509  # no threads run here
                ) as process,
                _deadline(process),
            ):
                assert process.stdout is not None
                for count, line in enumerate(process.stdout):
                    if count >= limit:
                        process.kill()
                        raise SourceError(f"git {arguments[0]} answers more than {limit} lines", self.path)
                    yield line.decode("utf-8", "surrogateescape").rstrip("\n")
            if process.returncode:
                complaints.seek(0)
                said = complaints.read(4096).decode("utf-8", "replace").strip() or f"ended with {process.returncode}"
                raise SourceError(f"git {arguments[0]}: {said.splitlines()[0]}", self.path)

    def check(self, names: Iterable[str]) -> Iterator[tuple[str, str] | None]:
        """(object id, type) of each name, or None for one that is not there."""
        names = list(names)
        for line in self.run(
            "cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=names, limit=len(names) + 1
        ):
            oid, _, kind = line.partition(" ")
            yield (
                (oid, kind) if _HEX.fullmatch(oid) and kind.isalpha() and kind not in ("missing", "ambiguous") else None
            )

    def read(self, oids: Iterable[str], kind: str, limit: int = MAX_HEADER) -> dict[str, bytes]:
        """Contents of objects of one kind, each verified against its id."""
        wanted = list(dict.fromkeys(oids))
        found: dict[str, bytes] = {}
        for start in range(0, len(wanted), 256):  # a pipe holds 64 KiB: 256 questions of 41 or 65 bytes
            part = wanted[start : start + 256]
            reader, writer = self._process()
            assert self._batch is not None
            with _deadline(self._batch):
                try:
                    writer.write("".join(f"{oid}\n" for oid in part).encode())
                    writer.flush()
                except BrokenPipeError:
                    raise SourceError("git cat-file died: the repository is damaged", self.path) from None
                for oid in part:
                    found[oid] = self._one(reader, oid, kind, limit)
        return found

    def _process(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._batch is None:
            self._batch = subprocess.Popen(
                [self._git, "cat-file", "--batch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self._environment,
                preexec_fn=_limit,  # noqa: PLW1509  # no threads run here
            )
        assert self._batch.stdin is not None
        assert self._batch.stdout is not None
        return self._batch.stdout, self._batch.stdin

    def _one(self, reader: IO[bytes], oid: str, kind: str, limit: int) -> bytes:
        head = reader.readline().split()
        if len(head) == 2:
            raise SourceError(f"{kind} {oid} is missing (a partial clone? nothing is fetched)", self.path)
        if len(head) != 3:
            raise SourceError(f"{kind} {oid} cannot be read: the repository is damaged", self.path)
        if int(head[2]) > limit:
            raise SourceError(f"{kind} {oid} has {int(head[2])} bytes; at most {limit} are read", self.path)
        content = reader.read(int(head[2]))
        reader.read(1)
        if head[1].decode() != kind or self._hash(b"%b %d\0" % (head[1], len(content)) + content).hexdigest() != oid:
            raise SourceError(f"{kind} {oid} is not what its id says: the repository is damaged", self.path)
        return content

    def entries(self, tree: bytes) -> Iterator[tuple[str, bytes, str]]:
        """(name, mode, object id) of a tree object."""
        at = 0
        while at < len(tree):
            space = tree.index(b" ", at)
            nul = tree.index(b"\0", space)
            end = nul + 1 + self._width
            yield tree[space + 1 : nul].decode("utf-8", "surrogateescape"), tree[at:space], tree[nul + 1 : end].hex()
            at = end


class RepositorySource(Source):
    """A git repository whose tags are releases; ancestry between tags is ancestry between their commits."""

    ancestry = True

    def __init__(self, path: Path, directory: Path) -> None:
        super().__init__()
        self.path = path
        self._objects = Objects(path, directory)
        try:
            self._tag_objects: dict[str, str] = {}
            self._tags = self._read_tags()
            if not self._tags:
                raise SourceError("a git repository without tags; releases are its tags", path)
            self._parents: dict[str, str | None] | None = None
            self._trees: dict[tuple[str, str], dict[str, str]] = {}
            self._listings: dict[tuple[str, ...], Mapping[str, str]] = {}
            self._directories: dict[str, tuple[str, ...]] = {}
        except BaseException:
            self._objects.close()
            raise

    @property
    def versions(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self._ancestry())

    def close(self) -> None:
        self._objects.close()

    def _read_tags(self) -> dict[str, str]:
        """Tag -> commit id."""
        pattern = "--format=%(objectname) %(objecttype) %(*objectname) %(*objecttype) %(refname:strip=2)"
        tags: dict[str, str] = {}
        for line in self._objects.run("for-each-ref", pattern, "refs/tags", limit=MAX_TAGS):
            oid, kind, peeled, peeled_kind, name = line.split(" ", 4)
            if "commit" in (kind, peeled_kind):
                tags[name] = oid if kind == "commit" else peeled
                if kind == "tag":
                    self._tag_objects[name] = oid
        return tags

    def name(self, version: str, commit: str) -> None:
        """Take a commit that has no tag for a release. Raises SourceError unless its version.mk says the same."""
        if not _RELEASE.fullmatch(version):
            raise SourceError(f"{version!r} is not the name of a release", self.path)
        found = next(self._objects.check([f"{commit}^{{commit}}"]), None) if _HASH.fullmatch(commit) else None
        if found is None:
            raise SourceError(f"no commit {commit}", self.path)
        if self._tags.get(version, found[0]) != found[0]:
            raise SourceError(f"{version} is a tag already, of commit {self._tags[version][:12]}", self.path)
        written = next(self._objects.check([f"{found[0]}:version.mk"]), None)
        text = self._objects.read([written[0]], "blob")[written[0]] if written else b""
        if version_of(text, "") != version:
            raise SourceError(f"commit {commit} is {version_of(text, 'of no release')}, not {version}", self.path)
        self._tags[version] = found[0]
        self._parents = None
        self._directories = {}

    def provenance(self, version: str) -> Provenance:
        commit = self._commit(version)
        tag = self._tag_objects.get(version)
        if tag is None:
            return Provenance("commit", commit)
        signed = _SIGNATURE.search(self._objects.read([tag], "tag")[tag]) is not None
        return Provenance("signed tag" if signed else "tag", commit)

    def _commit(self, version: str) -> str:
        commit = self._tags.get(version)
        if commit is None:
            from difflib import get_close_matches

            near = get_close_matches(version, self._tags, 3, 0.5)
            raise SourceError(f"no tag {version}" + (f"; near it: {', '.join(near)}" if near else ""), self.path)
        return commit

    def _ancestry(self) -> dict[str, str | None]:
        """Release -> its nearest ancestor, parents first, branches in the order of their names."""
        if self._parents is not None:
            return self._parents
        named: dict[str, list[str]] = {}
        for tag, commit in self._tags.items():
            if _RELEASE.fullmatch(tag):
                named.setdefault(commit, []).append(tag)
        above: dict[str, list[str]] = {}
        order: list[str] = []
        for line in self._objects.run(
            "rev-list", "--topo-order", "--parents", "--stdin", stdin=named, limit=MAX_COMMITS
        ):
            commit, *parents = line.split()
            above[commit] = parents
            order.append(commit)
        nearest: dict[str, str | None] = {}
        own: dict[str, str | None] = {}
        for commit in reversed(order):
            inherited: str | None = next((near for p in above[commit] if (near := nearest.get(p)) is not None), None)
            for name in sorted(named.get(commit, ()), key=natural):
                own[name] = inherited
                inherited = name
            nearest[commit] = inherited
        children: dict[str | None, list[str]] = {}
        for tag, parent in own.items():
            children.setdefault(parent, []).append(tag)
        self._parents = {}
        stack: list[str] = sorted(children.get(None, ()), key=natural, reverse=True)
        while stack:
            tag = stack.pop()
            self._parents[tag] = own[tag]
            stack += sorted(children.get(tag, ()), key=natural, reverse=True)
        return self._parents

    def parent(self, version: str) -> str | None:
        return self._ancestry().get(version)

    def identities(self, versions: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Ids of the releases' ABI directories, asked for all of them at once."""
        commits = {version: self._commit(version) for version in versions}
        missing = [version for version in commits if version not in self._directories]
        names = (*scan.ABI_DIRECTORIES, scan.EMBEDDED)
        if missing:
            answers = self._objects.check(f"{commits[version]}:{name}" for version in missing for name in names)
            for version in missing:
                self._directories[version] = tuple(found[0] if (found := next(answers, None)) else "" for _ in names)
        return {version: self._directories[version] for version in commits}

    def files(self, version: str) -> Mapping[str, str]:
        ids = self.identities([version])[version]
        listing = self._listings.get(ids)
        if listing is None:
            found: dict[str, str] = {}
            for directory, oid in zip(scan.ABI_DIRECTORIES, ids, strict=False):
                found |= self._headers(directory, oid)
            if ids[-1]:
                found[scan.EMBEDDED] = ids[-1]
            if len(found) > MAX_FILES:
                raise SourceError(f"{version}: more than {MAX_FILES} headers", self.path)
            listing = self._listings[ids] = found
        return listing

    def select(self, version: str, places: Sequence[str], wanted: Callable[[str], bool]) -> Mapping[str, str]:
        commit = self._commit(version)
        found: dict[str, str] = {}
        level: dict[str, str] = {}
        for place, answer in zip(places, self._objects.check(f"{commit}:{place}" for place in places), strict=True):
            if answer is not None and answer[1] == "tree":
                level[f"{place}/"] = answer[0]
            elif answer is not None and wanted(place):
                found[place] = answer[0]
        depth = 0
        while level:
            depth += 1
            if depth > MAX_DEPTH or len(found) + len(level) > MAX_FILES:
                raise SourceError(f"{version}: more folders or files in {places[0]} than any driver has", self.path)
            trees = self._objects.read(level.values(), "tree")
            below: dict[str, str] = {}
            try:
                for prefix, oid in level.items():
                    for name, mode, child in self._objects.entries(trees[oid]):
                        if mode in (b"40000", b"040000"):
                            below[f"{prefix}{name}/"] = child
                        elif mode != b"120000" and wanted(f"{prefix}{name}"):
                            found[f"{prefix}{name}"] = child
            except ValueError:
                raise SourceError(f"{version}: a tree cannot be read: the repository is damaged", self.path) from None
            level = below
        return found

    def _headers(self, directory: str, oid: str) -> dict[str, str]:
        """Path -> blob id of the headers in one of the ABI directories, and below the SDK's."""
        known = self._trees.get((directory, oid))
        if known is not None or not oid:
            return known or {}
        found: dict[str, str] = {}
        level = {f"{directory}/": oid}
        depth = 0
        while level:
            if depth > MAX_DEPTH:
                raise SourceError(f"tree {oid} is deeper than {MAX_DEPTH} folders", self.path)
            depth += 1
            trees = self._objects.read(level.values(), "tree")
            level = {
                path: child
                for prefix, tree in level.items()
                for path, child in self._entries(prefix, tree, trees[tree], found)
            }
            if len(found) + len(level) > MAX_FILES:
                raise SourceError(f"tree {oid} has more than {MAX_FILES} files", self.path)
        self._trees[directory, oid] = found
        return found

    def _entries(self, prefix: str, oid: str, tree: bytes, found: dict[str, str]) -> Iterator[tuple[str, str]]:
        """Add a tree's headers to ``found``; the folders below it that may hold others, as (prefix, id)."""
        try:
            for name, mode, child in self._objects.entries(tree):
                if mode in (b"40000", b"040000"):
                    if prefix.startswith(scan.SDK + "/"):
                        yield f"{prefix}{name}/", child
                elif name.endswith(".h"):
                    if mode == b"120000":
                        raise SourceError(f"{prefix}{name} is a symbolic link; links are not followed", self.path)
                    found[f"{prefix}{name}"] = child
        except ValueError:
            raise SourceError(f"tree {oid} cannot be read: the repository is damaged", self.path) from None

    def read(self, blobs: Iterable[str]) -> dict[str, bytes]:
        found = self._objects.read(blobs, "blob")
        if sum(map(len, found.values())) > MAX_HEADERS:
            raise SourceError(f"more than {MAX_HEADERS >> 20} MiB of headers in one release", self.path)
        return found
