"""What a user of the library gets wrong is said; what it gives can be kept, sent and compared."""

from __future__ import annotations

import ast
import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, get_args

import pytest

import nvproxy_model
from nvproxy_model import Caps, Decision, FdTable, File, Files, Policy, Session, abi, caps, versions
from nvproxy_model.drivers import authority
from nvproxy_model.drivers.compare import findings
from nvproxy_model.drivers.gvisor import layouts, parity
from nvproxy_model.fields import CStruct
from nvproxy_model.structs.nv_ioctl import nv_ioctl_export_to_dma_buf_fd_t
from nvproxy_model.structs.nvos import NVOS64_PARAMETERS
from nvproxy_model.testing import FakeDriver, GuestCall, Memory, apply
from nvproxy_model.trace.judge import groups, verdict
from tests import ROOT

ALL = "all,profiling,rdma,fabric-imex-mgmt"
LAZY = ["", ".abi", ".drivers.compare", ".drivers.facts", ".drivers.sources", ".live", ".policy", ".session"]
FDS = {7: File("frontend", host_fd=1042)}


def _typed(package: Any) -> set[str]:
    """The names that a type checker sees in a package: those of its TYPE_CHECKING block."""
    tree = ast.parse(Path(package.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    assert "lazy" in ast.unparse(block.orelse[0])
    return {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}


def test_the_lazy_packages_are_all_here() -> None:
    found = [path for path in (ROOT / "nvproxy_model").rglob("__init__.py") if " = lazy(" in path.read_text()]
    assert {import_module(f"nvproxy_model{name}").__file__ for name in LAZY} == {str(path) for path in found}


@pytest.mark.parametrize("name", LAZY)
def test_a_type_checker_sees_the_names_that_there_are(name: str) -> None:
    """So that `from nvproxy_model import Polcy` is an error: without the block's else, a module's __getattr__ has any name."""
    package = import_module(f"nvproxy_model{name}")
    assert _typed(package) == set(package.__all__) == set(dir(package))
    for each in package.__all__:
        assert getattr(package, each) is not None
    with pytest.raises(AttributeError, match="Polcy"):
        _ = package.Polcy


@pytest.mark.parametrize(
    ("meanings", "words"),
    [
        (findings.CLASSES, findings.Class),
        (parity.KINDS, layouts.Kind),
        (authority.WORDS, authority.State),
        (groups.GROUPS, groups.Group),
        (verdict.EXITS, verdict.Word),
    ],
)
def test_every_word_that_a_type_checker_knows_has_its_meaning(meanings: dict[str, Any], words: Any) -> None:
    assert set(meanings) == set(get_args(words))


def test_the_version_is_the_distribution_s() -> None:
    assert nvproxy_model.__version__ == metadata.version("nvproxy-model")


def _decisions() -> list[Decision]:
    """Every entry of every table under two policies, and answers to bytes with descriptors, buffers and facts."""
    found = []
    for policy in (Policy.for_driver("580.126.20", ALL), Policy.for_driver("latest", "utility", profile="hardened")):
        for table, rules in policy.rules.items():
            for number in [*rules, 0xFFFF]:
                entry = policy.entry(table, number)
                found.append(entry.decision)
                if entry.decide is not None and entry.rule is not None:
                    of = entry.rule.params_at(policy.version)
                    size = of.sizeof() if isinstance(of, CStruct) else 4
                    found += [entry.decide(bytes([byte]) * size, FDS) for byte in (0, 7)]
    return found


def test_decisions_are_values() -> None:
    decisions = _decisions()
    assert len({decision.why for decision in decisions}) > 8
    assert any(decision.copies for decision in decisions)
    for other in (copy.deepcopy(decisions), pickle.loads(pickle.dumps(decisions))):
        assert other == decisions
        assert [decision.reason for decision in other] == [decision.reason for decision in decisions]
        assert all(mine.rule is rule.rule for mine, rule in zip(other, decisions, strict=True))
    assert len(set(decisions)) > 1000


def test_a_row_is_known_by_what_is_pickled() -> None:
    for rows in abi.TABLES.values():
        assert len({(row.number, row.name, row.since, row.until) for row in rows}) == len(rows)


def test_a_decision_is_the_same_in_another_process() -> None:
    decision = Policy.for_driver("580.126.20", ALL).decide_frontend(0xC00446C9, (7).to_bytes(4, "little"), FDS)
    program = f"""
import pickle
from nvproxy_model import File, Policy
there = pickle.loads({pickle.dumps(decision)!r})
policy = pickle.loads({pickle.dumps(Policy.for_driver("580.126.20", ALL))!r})
assert there == policy.decide_frontend(0xC00446C9, (7).to_bytes(4, "little"), {{7: File("frontend", 1042)}})
assert policy == Policy.for_driver("580.126.20", {ALL!r})
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=True)


def test_policies_compare_by_what_they_answer() -> None:
    made: list[dict[str, Any]] = [
        {"version": "580.126.20"},
        {"version": "570.133.20"},
        {"version": "580.126.20", "caps": "compute"},
        {"version": "580.126.20", "profile": "hardened"},
        {"version": "580.126.20", "windows": "deny"},
        {"version": "580.126.20", "windows": [0x20810110]},
        {"version": "580.126.20", "pending": True},
    ]
    policies = [Policy.for_driver(**options) for options in made]
    assert len(set(policies)) == len(policies)
    for policy, options in zip(policies, made, strict=True):
        for other in (Policy.for_driver(**options), copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
            assert other == policy
            assert hash(other) == hash(policy)
        assert policy != options


def test_results_are_values() -> None:
    session = Session(Policy.for_driver("latest"), Memory(0, 4096), Files(FDS), FakeDriver())
    for result in (session.ioctl(7, 0xC030462B, 0), session.ioctl(7, 0xC0FF4601, 0), session.ioctl(9, 0, 0)):
        assert copy.deepcopy(result) == pickle.loads(pickle.dumps(result)) == result


@pytest.mark.parametrize(
    "given",
    [
        "compute,video",
        ["compute", "video"],
        {"video", "compute"},
        ("compute,video",),
        frozenset({Caps.COMPUTE, Caps.VIDEO}),
        [Caps.COMPUTE, "video"],
        Caps.COMPUTE | Caps.VIDEO,
        iter(["compute", "video"]),
        {"compute": 1, "video": 2}.keys(),
    ],
)
def test_capabilities_in_any_form(given: Any) -> None:
    assert Policy.for_driver("latest", given).caps == Caps.COMPUTE | Caps.VIDEO


def test_all_in_a_list_is_all() -> None:
    assert caps.resolve(["all", "profiling"]) == caps.ALL_CONTAINER | Caps.PROFILING
    assert caps.resolve([]) == caps.resolve("") == Caps(0)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (["compute", "vidoe"], ValueError, "'vidoe' is not a driver capability; known: all, compute"),
        ({"ngx"}, ValueError, "does not support ngx"),
        (1 << 20, ValueError, "0x100000 has no driver capability; known: compute,display"),
        (None, TypeError, "caps: None is of type NoneType; want names"),
        (b"compute", TypeError, "type bytes"),
        ([True], TypeError, "type bool"),
        ([["compute"]], TypeError, "type list"),
    ],
)
def test_capabilities_that_are_none(given: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Policy.for_driver("latest", given)


class Table:
    """An FdTable whose get answers what it likes."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def get(self, fd: int) -> Any:
        return self.answer

    install = remove = get


POLICY = Policy.for_driver("580.126.20", ALL)
EVENT = (7).to_bytes(4, "little")


def _session(fds: FdTable | None = None) -> Session:
    return Session(POLICY, Memory(0, 4096), Files(FDS) if fds is None else fds, FakeDriver())


WRONG: list[tuple[Callable[[Any], object], type[Exception], str]] = [
    (lambda _: File("fronted", 3), ValueError, "kind='fronted'.*want one of frontend, uvm, uvm-tools"),
    (lambda _: File(3, "frontend"), ValueError, "kind=3"),
    (lambda _: File("uvm", -1), ValueError, r"File\(host_fd=-1\): want a descriptor, 0 to 2147483647"),
    (lambda _: File("uvm", 1 << 31), ValueError, "host_fd=2147483648"),
    (lambda _: File("uvm", "3"), TypeError, r"host_fd='3'\): want a descriptor, an int; got an object of type str"),
    (lambda _: File("uvm", File("uvm", 3)), TypeError, "want a descriptor, an int; got an object of type File"),
    (lambda _: File("uvm", True), TypeError, "type bool"),
    (lambda _: Files({7: 1042}), TypeError, r"Files\[7\] = 1042: want a File"),
    (lambda _: Files({-1: FDS[7]}), ValueError, r"Files\[-1\]: want a descriptor"),
    (lambda _: Files([("7", FDS[7])]), TypeError, r"Files\['7'\]: want a descriptor"),
    (lambda _: Files().update({7: None}), TypeError, r"Files\[7\] = None: want a File"),
    (lambda _: Files().install(7), TypeError, "want a File"),
    (lambda _: Session(POLICY, b"", Files(), FakeDriver()), TypeError, r"memory=.*bytes has no read\(\)"),
    (
        lambda _: Session(POLICY, Memory(0, 1), {}, FakeDriver()),
        TypeError,
        r"fds=.*dict has no install\(\); want.*get\(\)",
    ),
    (lambda _: Session(POLICY, Memory(0, 1), Files(), 5), TypeError, r"host=.*int has no ioctl\(\)"),
    (lambda _: Session(POLICY, FakeDriver(), Files(), Memory(0, 1)), TypeError, r"memory=.*FakeDriver has no read\(\)"),
    (lambda s: s.ioctl(FDS[7], 0, 0), TypeError, r"Session.ioctl\(File.*want a descriptor, an int"),
    (lambda s: s.ioctl(None, 0, 0), TypeError, r"Session.ioctl\(None"),
    (lambda s: s.close(FDS[7]), TypeError, r"Session.close\(File"),
    (lambda s: s.mmap(FDS[7], 4096), TypeError, r"Session.mmap\(File"),
    (lambda s: s.munmap(7), TypeError, r"Session.munmap\(file\): want a File; got 7, an object of type int"),
    (lambda _: _session(Table(1042)).close(7), TypeError, r"fds.remove\(fd\): want a File; got 1042"),
    (lambda _: _session(Table(1042)).mmap(7, 1), TypeError, r"fds.get\(fd\): want a File; got 1042"),
    (lambda _: _session(Table(1042)).ioctl(7, 0, 0), TypeError, r"fds.get\(7\) gave 1042: want a File, or None"),
    (lambda _: POLICY.decide_frontend(0xC00446C9, EVENT, {7: 1042}), TypeError, "must have kind and host_fd"),
    (lambda _: POLICY.decide_frontend(0xC00446C9, EVENT, 1042), TypeError, "want a dict of descriptors and Files"),
]


@pytest.mark.parametrize(("call", "error", "says"), WRONG)
def test_a_mistake_is_said_where_it_is_made(call: Callable[[Any], object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as raised:
        call(_session())
    assert "\n" not in str(raised.value)


def test_errors_of_an_embedder_s_own_table_are_its_own() -> None:
    class Broken(Table):
        def get(self, fd: int) -> Any:
            raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        _session(Broken(None)).ioctl(7, 0, 0)


def test_releases_are_read_once_whoever_asks() -> None:
    assert versions.load() is versions.load(None)


def test_a_table_that_gives_no_number() -> None:
    """For a dma-buf that the driver has made."""

    class Forgetful(Files):
        def install(self, file: File) -> Any:
            super().install(file)

    session = _session(Forgetful(FDS))
    client = apply(GuestCall("frontend", 0xC030462B, NVOS64_PARAMETERS.make(hClass=0x41), address=0x100), session)
    assert client.errno == 0
    export = nv_ioctl_export_to_dma_buf_fd_t.make(
        driver=POLICY.version, fd=-1, hClient=0xC1D00001, totalObjects=1, numObjects=1, totalSize=4096
    )
    with pytest.raises(TypeError, match=r"fds.install\(...\) gave None: want a descriptor"):
        apply(GuestCall("frontend", 0xC00046D9 | len(export) << 16, export, address=0x100), session)


class OwnFile:
    """What an embedder has in place of `File`."""

    kind, host_fd, control_device, mapping, references = "frontend", 5, True, None, 1

    def __init__(self) -> None:
        self.pins: list[tuple[int, int]] = []


class OwnTable(dict[int, OwnFile]):
    def install(self, file: OwnFile) -> int:
        self[9] = file
        return 9

    def remove(self, fd: int) -> OwnFile | None:
        return self.pop(fd, None)


def test_an_embedder_s_own_files_do_for_every_call() -> None:
    fds: Any = OwnTable({3: OwnFile()})
    session = Session(Policy.for_driver("580.159.04"), Memory(0, 0x2000), fds, FakeDriver())
    assert session.ioctl(3, 0, 0x1000).ret == -1
    assert session.mmap(3, 4096).ret == -1
    assert session.close(3)[::4] == (0, (5,))
