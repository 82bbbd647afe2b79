"""The bundle: a reader that knows the document alone gives the policy's decisions; the same bytes each time; the schema."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from nvproxy_model import File, Policy, abi, versions
from nvproxy_model.abi.constants import NVOS32_FUNCTION_ALLOC_SIZE
from nvproxy_model.abi.escapes import NV_ESC_RM_ALLOC, NV_ESC_RM_CONTROL
from nvproxy_model.ioctl import request
from nvproxy_model.policy.bundle import SESSION, bundle, encode
from nvproxy_model.policy.decision import Decision
from nvproxy_model.policy.handlers import HANDLERS
from nvproxy_model.session import alloc, escapes
from nvproxy_model.testing.conform import load
from nvproxy_model.tools.output import versions as versions_of
from tests import DATA, ROOT
from tests.policy.bundle_reader import Answer, Bundle
from tests.schemas import validate

TREE = versions.load()
RELEASES = ["535.104.05", "550.90.12", "570.195.03", "580.126.20", "610.43.02", "610.57.04", "620.51.00"]
EVERY = "compute,graphics,utility,video,fabric-imex-mgmt,profiling,rdma"
CAPS = [EVERY, EVERY, "compute,utility", "graphics", "compute,utility,profiling", ""]
FILES = {3: "frontend", 4: "frontend", 5: "uvm", 6: "open-only", 7: "dma-buf", 8: "cgroup", 9: "other", 10: "uvm-tools"}
FDS = {number: File(kind, host_fd=1000 + number) for number, kind in FILES.items()}  # type: ignore[arg-type]
PLAIN = {number: (kind, 1000 + number) for number, kind in FILES.items()}
OPT_IN = {row.number for rows in abi.TABLES.values() for row in rows if row.opt_in}
TABLES = ("frontend", "uvm", "control", "alloc")
VALUES = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    11,
    255,
    256,
    4096,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    1 << 32 | 3,
    0xDEADB000,
    1 << 63,
)


@pytest.fixture(scope="module")
def document() -> Any:
    return json.loads(encode(bundle([TREE[name] for name in RELEASES])))


def _same(decision: Decision, data: bytes | None) -> Answer:
    copies = tuple((c.offset, c.address, c.size, c.copy_in, c.late, c.pinned, c.writable) for c in decision.copies)
    params = None if not decision.allowed else data if decision.params is None else decision.params
    return Answer(decision.verdict.value, decision.errno, decision.status, params, decision.depends, copies)


def _ask(policy: Policy, table: str, number: int, data: bytes | None) -> Answer:
    decide: Any = getattr(policy, f"decide_{table}")
    return _same(decide(number, data, FDS), data)


def _bytes(rng: random.Random, size: int, fields: list[Any], short: bool) -> bytes:
    """Zeros or noise, with telling values where the fields and their counts are."""
    data = bytearray(rng.choice((bytes(size), rng.randbytes(size))))
    for field in fields:
        for at in (field, field.get("count"), field.get("bytes_of"), *field.get("when", ())):
            if not isinstance(at, dict) or rng.random() < 0.15:
                continue
            wanted = [n for n, kind in FILES.items() if kind == field.get("file")] if at is field else []
            given = rng.choice([*VALUES, *(wanted * 20), *((field.get("in") or at.get("in") or [])[:6] * 4)])
            data[at["offset"] : at["offset"] + at["width"]] = (given & (1 << 8 * at["width"]) - 1).to_bytes(
                at["width"], "little"
            )
    return bytes(data[: rng.randrange(size)] if short and size else data)


def calls(document: Any, count: int, seed: int) -> Iterator[tuple[Policy, Bundle, str, int, bytes | None]]:
    """Random calls of several releases and capability sets: known and unknown numbers, bytes that are whole, cut or not there."""
    rng = random.Random(seed)
    releases = [entry["release"] for entry in document["releases"]]
    sides: dict[tuple[str, str, bool], tuple[Policy, Bundle]] = {}
    telling = {
        table: [row for row in of["rows"] if row.get("exact") or "refuse" in row]
        for table, of in document["tables"].items()
    }
    for _ in range(count):
        key = release, caps, pending = rng.choice(releases), rng.choice(CAPS), rng.random() < 0.5
        if key not in sides:
            more: dict[str, Any] = {"extra": OPT_IN if pending else (), "pending": pending}
            policy = Policy.for_driver(release, caps, allow_unsupported=True, **more)
            sides[key] = policy, Bundle(document, release, [name for name in caps.split(",") if name], **more)
        policy, side = sides[key]
        table = rng.choice(TABLES)
        row = rng.choice(telling[table] if rng.random() < 0.7 and telling[table] else document["tables"][table]["rows"])
        row = side.rows[table].get(row["number"], row)
        number, size = row["number"], row.get("size", rng.choice((0, 4, 64)))
        fields = document["layouts"][row["layout"]]["fields"] if "layout" in row else []
        data = None if rng.random() < 0.03 else _bytes(rng, size, fields, rng.random() < 0.05)
        if rng.random() < 0.04:
            number = rng.choice((number ^ 1 << rng.randrange(32), rng.randrange(1 << 32), 5))
        if table == "frontend":
            inner = row.get("inner")
            if inner is not None and data is not None and len(data) >= size and rng.random() < 0.95:
                data = data[: rng.choice(inner["sizes"])]
                known = rng.choice(document["tables"][inner["table"]]["rows"])["number"].to_bytes(4, "little")
                data = data[: inner["offset"]] + known + data[inner["offset"] + 4 :]
            length = size if data is None or rng.random() < 0.03 else len(data)
            number = request(number & 0xFF, length & 0x3FFF)
        yield policy, side, table, number, data


def compare(document: Any, count: int, seed: int) -> dict[str, int]:
    """How often each verdict was given by both sides."""
    seen: dict[str, int] = {}
    for policy, side, table, number, data in calls(document, count, seed):
        wanted = _ask(policy, table, number, data)
        assert side.decide(table, number, data, PLAIN) == wanted, (policy, table, hex(number), data and data.hex())
        seen[wanted.verdict] = seen.get(wanted.verdict, 0) + 1
        for what in ("depends", "copies"):
            seen[what] = seen.get(what, 0) + bool(getattr(wanted, what))
    return seen


def test_a_reader_of_the_bundle_decides_as_the_policy_does(document: Any) -> None:
    seen = compare(document, 2_000, 20261201)
    assert set(seen) == {"allow", "translate", "reject", "depends", "copies"}
    assert min(seen.values()) > 40, seen


@pytest.mark.parametrize("pending", [False, True])
def test_every_row_of_a_release(document: Any, pending: bool) -> None:
    """No bytes, zeros and ones; rows that must be asked for are asked for with the pending ones."""
    more: dict[str, Any] = {"extra": OPT_IN if pending else (), "pending": pending}
    policy = Policy.for_driver("620.51.00", EVERY, allow_unsupported=True, **more)
    side = Bundle(document, "620.51.00", EVERY.split(","), **more)
    for table, rows in side.rows.items():
        assert rows.keys() == policy.rules[table].keys()  # type: ignore[index]
        for number, row in rows.items():
            size = row.get("size", 4)
            asked = request(number, size) if table == "frontend" else number
            for data in (None, bytes(size), b"\xff" * size):
                assert side.decide(table, asked, data, PLAIN) == _ask(policy, table, asked, data), row["name"]


@pytest.mark.slow
def test_a_reader_of_all_releases_decides_as_the_policy_does() -> None:
    document = json.loads(encode(bundle(list(TREE.values()))))
    assert [entry["release"] for entry in document["releases"]] == list(TREE)
    validate(document | {"produced_by": dict(versions_of())})
    seen = compare(document, 10_000, 20261202)
    assert min(seen.values()) > 200, seen


def test_the_bypass_windows_and_long_parameters(document: Any) -> None:
    for caps in ("compute,utility", ""):
        policy = Policy.for_driver("580.126.20", caps)
        side = Bundle(document, "580.126.20", [name for name in caps.split(",") if name])
        for number in (0x20808001, 0x20810001, 0x2081FFFF, 0x20800102, 0x8000, 0x7FFF, 0x90CD0101):
            for length in (0, 4, 1 << 20, (1 << 20) + 1):
                data = bytes(length)
                assert side.decide("control", number, data, PLAIN) == _ask(policy, "control", number, data)


def test_what_handlers_do_is_in_the_bundle(document: Any) -> None:
    """Every branch of the handlers that decide by bytes, by calls made for it."""
    policy = Policy.for_driver("620.51.00", EVERY, allow_unsupported=True, pending=True)
    side = Bundle(document, "620.51.00", EVERY.split(","), pending=True)
    seen: dict[str, set[Any]] = {}

    def ask(table: str, name: str, **values: int) -> None:
        row = next(row for row in side.rows[table].values() if row["name"] == name)
        of: Any = policy.rules[table][row["number"]].params_at(policy.version)  # type: ignore[index]
        places = {path: (at, member.size) for path, at, member in of.walk()}
        data = bytearray(row["size"])
        for path, value in values.items():
            at, width = places[path.replace("__", ".")]
            data[at : at + width] = value.to_bytes(width, "little")
        number = request(row["number"], row["size"]) if table == "frontend" else row["number"]
        wanted = _ask(policy, table, number, bytes(data))
        assert side.decide(table, number, bytes(data), PLAIN) == wanted, (name, values)
        seen.setdefault(name, set()).add((wanted.verdict, wanted.errno, wanted.status, len(wanted.copies)))

    for hclass in (0x3E, 0x3F, 0x40, 0x71, 0x72):
        for memory in (0, 0x1000, 0x1001, (1 << 64) - 0x1000):
            for limit in (0, 0xFFF, (1 << 64) - 1, (1 << 64) - 2, 0x10000):
                for flags in (0, 1 << 21, 0xFFFFFFFF):
                    more = {"params__pMemory": memory, "params__limit": limit, "params__flags": flags, "fd": 3}
                    ask("frontend", "NV_ESC_RM_ALLOC_MEMORY", params__hClass=hclass, **more)
    for name in ("UVM_TOOLS_INIT_EVENT_TRACKER", "UVM_TOOLS_INIT_EVENT_TRACKER_V2"):
        for count in (0, 1, 2, 3, 1 << 12, 1 << 31, 1 << 32):
            for queue in (0, 0x1000, 0x1001, (1 << 64) - 0x1000):
                for control in (0, 0x2000, 0x2001, (1 << 64) - 0x1000):
                    for fd in (5, 3):
                        ask("uvm", name, queueBufferSize=count, queueBuffer=queue, controlBuffer=control, uvmFd=fd)
    for function in (0, NVOS32_FUNCTION_ALLOC_SIZE, 99):
        ask("frontend", "NV_ESC_RM_VID_HEAP_CONTROL", function=function)
    for flags in (0, 1, 2, 0xFF):
        ask("uvm", "UVM_INITIALIZE", flags=flags)
    for strings in range(8):
        for size in (0, 1, 255, 256, 257, 1 << 20):
            names = ("pDriverVersionBuffer", "pVersionBuffer", "pTitleBuffer")
            pointers = {name: 0x1000 for bit, name in enumerate(names) if strings >> bit & 1}
            ask("control", "NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION", sizeOfStrings=size, **pointers)
    assert {name: len(outcomes) for name, outcomes in seen.items()} == {
        "NV_ESC_RM_ALLOC_MEMORY": 6,
        "UVM_TOOLS_INIT_EVENT_TRACKER": 5,
        "UVM_TOOLS_INIT_EVENT_TRACKER_V2": 5,
        "NV_ESC_RM_VID_HEAP_CONTROL": 2,
        "UVM_INITIALIZE": 1,
        "NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION": 4,
    }


KINDS = {"ctl": "frontend", "dev0": "frontend", "evt": "frontend", "uvm": "uvm", "cap": "open-only", "reg": "dma-buf"}


def _recorded(document: Any) -> Iterator[tuple[Any, Policy, Bundle, str, int, bytes | None]]:
    """nvproxy's recorded calls as questions: each argument, and what a control or an allocation names in it."""
    sides: dict[tuple[str, str], tuple[Policy, Bundle]] = {}
    for vector in load(DATA / "nvproxy_vectors.json.xz")["vectors"]:
        release, caps = vector["version"], vector["caps"]
        if (release, caps) not in sides:
            policy = Policy.for_driver(release, caps, allow_unsupported=True)
            sides[release, caps] = policy, Bundle(document, policy.version.name, policy.caps.names)
        policy, side = sides[release, caps]
        memory = {int(at, 16): bytes.fromhex(data) for at, data in vector["mem"].items()}

        def read(at: int, size: int, memory: dict[int, bytes] = memory) -> bytes:
            found = bytearray(size)
            for start, data in memory.items():
                low, high = max(at, start), min(at + size, start + len(data))
                if low < high:
                    found[low - at : high - at] = data[low - start : high - start]
            return bytes(found)

        number, data = int(vector["cmd"], 16), bytes.fromhex(vector["in"])
        table = "uvm" if vector["device"] == "uvm" else "frontend"
        yield vector, policy, side, table, number, data
        word = functools.partial(int.from_bytes, byteorder="little")
        if table == "frontend" and number & 0xFF == NV_ESC_RM_CONTROL and len(data) == 32:
            at, size = word(data[16:24]), word(data[24:28])
            yield vector, policy, side, "control", word(data[8:12]), read(at, size) if at else None
        if table == "frontend" and number & 0xFF == NV_ESC_RM_ALLOC and len(data) in (32, 48):
            hclass, at = word(data[12:16]), word(data[16:24])
            real = word(read(at + 8, 4)) if hclass == 5 else hclass
            size = side.rows["alloc"].get(real, {}).get("size", 0)
            yield vector, policy, side, "alloc", hclass, read(at, size) if at else None


def test_the_recorded_calls_are_decided_alike(document: Any) -> None:
    """The policy, the reader and nvproxy itself: whom nvproxy let through to the host, both do, apart from the objects."""
    seen = dict.fromkeys(TABLES, 0)
    for vector, policy, side, table, number, data in _recorded(document):
        files = {fd: File(KINDS.get(role, "other"), host_fd=1000 + fd) for role, fd in vector["fds"].items()}  # type: ignore[arg-type]
        decide: Any = getattr(policy, f"decide_{table}")
        decision = decide(number, data, files)
        plain = {fd: (str(file.kind), file.host_fd) for fd, file in files.items()}
        assert side.decide(table, number, data, plain) == _same(decision, data), vector["name"]
        assert decision.allowed or not vector["host"], vector["name"]
        seen[table] += 1
    assert seen["frontend"] + seen["uvm"] == 118
    assert min(seen.values()) >= 10, seen


def test_one_release_and_all_of_them_say_the_same(document: Any) -> None:
    for release in ("535.104.05", "620.51.00"):
        one, every = json.loads(encode(bundle([TREE[release]]))), Bundle(document, release, ())
        assert one["releases"] == [entry for entry in document["releases"] if entry["release"] == release]
        for table, of in one["tables"].items():
            got = {row["number"]: _resolved(row, one) for row in of["rows"]}
            assert got == {number: _resolved(row, document) for number, row in every.rows[table].items()}


def _resolved(row: Any, document: Any) -> Any:
    layout = document["layouts"][row["layout"]] if "layout" in row else None
    return {key: value for key, value in row.items() if key not in ("in", "layout")} | {"fields": layout}


def test_the_same_bytes_each_time() -> None:
    nodes = [TREE["570.195.03"], TREE["580.126.20"]]
    text = encode(bundle(nodes))
    assert encode(bundle(nodes)) == text
    assert encode(json.loads(text)) == text
    assert max(map(len, text.splitlines())) < 4096
    assert len(encode(bundle([TREE["580.126.20"]]))) < 95_000


def test_handlers_are_described_and_the_objects_counted(document: Any) -> None:
    assert set(SESSION) == set(HANDLERS)
    asks = {name for name, handler in escapes.HANDLERS.items() if handler.before is not None}
    hardened = {"os_event"}  # only the hardened profile looks at the session there
    assert {name for name, (objects, _) in SESSION.items() if objects} == asks - hardened
    assert {name for name, handler in alloc._HANDLERS.items() if handler.before is not None} == {""}
    for release in RELEASES:  # docs/bundle.md counts them
        rows = [row for of in Bundle(document, release, ()).rows.values() for row in of.values()]
        found = [row for row in rows if SESSION.get(row.get("handler", ""), (False, ""))[0]]
        assert sum("pending" not in row for row in found) == 7
        assert {row["name"] for row in found if "pending" in row} <= {
            "UVM_TOOLS_INIT_EVENT_TRACKER",
            "UVM_TOOLS_INIT_EVENT_TRACKER_V2",
        }


def test_the_reader_is_its_own() -> None:
    text = (ROOT / "tests/policy/bundle_reader.py").read_text()
    assert "import nvproxy_model" not in text
    assert "from nvproxy_model" not in text
    assert len(text.splitlines()) <= 250
