"""Any call at all: nothing raises, nothing of the host's leaks, no refusal reaches the host, nothing is left behind."""

from __future__ import annotations

import gc
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvproxy_model import Policy, Result
from nvproxy_model.fields import CStruct
from nvproxy_model.structs.nvos import NVOS21_PARAMETERS, NVOS54_PARAMETERS, NVOS64_PARAMETERS
from nvproxy_model.testing.strategies import GuestCall, calls, garbage
from tests.effort import examples
from tests.session.session_world import ARG, END, PARAMS, SPARE, World, request

*OLDER, NEWEST = VERSIONS = ["535.104.05", "550.90.12", "580.159.04", "590.48.01", "620.06.00"]
CAPS = ["compute,utility", "all,profiling,rdma,fabric-imex-mgmt", "profiling", ""]
POINTERS = [SPARE, SPARE + 0x1000, END - 8, END - 1, END, 0xFFFFFFFFFFFFFFF8, 1]
"""Buffers, the last bytes of memory, and addresses that are not there."""
CALLS = examples(6700)
ROUNDS = (max(CALLS, 3000), CALLS, CALLS)
"""How many calls each has. The first fills what is kept for good: what the policy has compiled."""
HANDLES = [0xC1D00001, 0xC1D00002, 0x5C000001, 0x5C000002, 0x5C000003, 0xFFFFFFFF]


def _world(version: str, caps: str, profile: str) -> World:
    world = World(version, caps, profile=profile)
    for kind in ("frontend", "frontend", "uvm", "open-only", "dma-buf", "other"):
        world.open(kind)
    return world


@settings(max_examples=examples(150))
@given(st.sampled_from(VERSIONS), st.sampled_from(CAPS), st.sampled_from(["gvisor", "hardened"]), st.data())
def test_any_calls_in_any_order(version: str, caps: str, profile: str, data: st.DataObject) -> None:
    world = _world(version, caps, profile)
    whole = Policy.for_driver(version, CAPS[1], allow_unsupported=True)
    drawn = calls(whole, address=PARAMS, handles=HANDLES, fds=range(8), pointers=POINTERS)
    world.alloc(0, 0, 0, HANDLES[0], 0x41)
    for call in data.draw(st.lists(drawn | garbage(), max_size=12)):
        _make(world, call, data.draw(st.sampled_from([ARG, ARG, ARG, END - 8, 0])))
        world.check_graph()


def _make(world: World, call: GuestCall, address: int = ARG) -> None:
    fd = 2 if call.device == "uvm" else 0
    if len(call.argument) > PARAMS - ARG:
        address = ARG
    if call.params is not None:
        world.memory.write(PARAMS, call.params[: END - PARAMS])
    room = END - address if ARG <= address < END else 0
    world.memory.write(max(address, ARG), call.argument[:room] if address else b"")
    world.call(fd, call.request, address)


@pytest.mark.parametrize("profile", ["gvisor", pytest.param("hardened", marks=pytest.mark.slow)])
@pytest.mark.parametrize("version", [*(pytest.param(each, marks=pytest.mark.slow) for each in OLDER), NEWEST])
def test_every_length_of_every_argument(version: str, profile: str) -> None:
    """A request of any size for each frontend number, and for each command and class one byte more and less than its struct."""
    world = _world(version, CAPS[1], profile)
    world.alloc(0, 0, 0, HANDLES[0], 0x41)
    for number in (*world.policy.frontend, 0x00, 0xD3, 0xFF):
        for size in (0, 1, 4, 31, 32, 33, 47, 48, 49, 56, 184, 2600, 2608, 0x3FFF):
            world.memory.write(ARG, bytes(64))
            world.call(0, request(number, size), ARG)
    for table, rules in (("control", world.policy.control), ("alloc", world.policy.alloc)):
        for rule in list(rules.values()):
            of = rule.params_at(world.policy.version)
            size = of.sizeof() if of is not None else 0
            for length in {0, max(size - 1, 0), size + 1, 0xFFFFFFFF}:
                for address in (0, PARAMS, END - 4):
                    _command(world, table, rule.number, length, address, of)
    world.check_graph()


def _command(world: World, table: str, number: int, length: int, address: int, of: object) -> None:
    if table == "control":
        fields = NVOS54_PARAMETERS.parse(bytes(32))
        fields.hClient = fields.hObject = HANDLES[0]
        fields.cmd, fields.params, fields.paramsSize = number, address, length
        world.memory.write(ARG, NVOS54_PARAMETERS.build(fields))
        world.call(0, request(0x2A, 32), ARG)
        return
    for form in (NVOS21_PARAMETERS, NVOS64_PARAMETERS):
        fields = form.parse(bytes(form.sizeof()))
        fields.hRoot = fields.hObjectParent = HANDLES[0]
        fields.hClass, fields.pAllocParms, fields.paramsSize = number, address, length
        world.memory.write(ARG, form.build(fields))
        world.call(0, request(0x2B, form.sizeof()), ARG)


def _random_calls(world: World, rng: random.Random, count: int) -> None:
    tables = [(name, list(getattr(world.policy, name).values())) for name in ("frontend", "uvm", "control", "alloc")]
    for _ in range(count):
        name, rules = rng.choice(tables)
        rule = rng.choice(rules)
        of = rule.params_at(world.policy.version)
        body = bytearray(rng.randbytes(of.sizeof() if isinstance(of, CStruct) else rng.randrange(64)))
        for at in range(0, len(body) - 3, 4):
            if rng.random() < 0.5:
                body[at : at + 4] = rng.choice([*HANDLES, 0, 0, 1, 2, PARAMS, SPARE]).to_bytes(4, "little")
        if rng.random() < 0.02:
            name, number = "garbage", rng.getrandbits(32)
        if name == "garbage":
            _make(world, GuestCall(rng.choice(["frontend", "uvm"]), number, bytes(body)))
        elif name == "uvm":
            _make(world, GuestCall("uvm", rule.number, bytes(body)))
        elif name == "frontend":
            _make(world, GuestCall("frontend", request(rule.number, len(body)), bytes(body)))
        else:
            world.memory.write(PARAMS, bytes(body[: END - PARAMS]))
            number = rng.getrandbits(32) if rng.random() < 0.02 else rule.number
            _command(world, name, number, len(body), rng.choice([PARAMS, PARAMS, 0, END - 4]), of)
        if rng.random() < 0.01:
            for fd in (0, 1):
                world.free(fd, rng.choice(HANDLES), rng.choice(HANDLES))


def _settle(world: World) -> None:
    """Free every client that is left, and all that the process opened since."""
    for obj in world.session.objects():
        if obj.handle == obj.client:
            world.free(0, obj.client, obj.client)
    for fd in [fd for fd in world.files if fd > 5]:
        world.close(fd)
    for file in world.files.values():
        file.mapping = None
    world.driver.log.clear()
    world.driver.os_events.clear()


@pytest.mark.slow
def test_many_random_calls_leave_nothing_behind() -> None:
    """The last of three rounds leaves no object, no file and no memory behind."""
    world = _world("580.159.04", CAPS[1], "gvisor")
    rng = random.Random(22)
    for number in range(
        0x77000000, 0x77000000 + 2000
    ):  # what the policy remembers of unknown numbers is bounded: fill it
        for table in ("frontend", "uvm", "control", "alloc"):
            world.policy.entry(table, number)
    world.session.passed.update(dict.fromkeys(range(1 << 32, (1 << 32) + 5000), Result(0, 0)))  # and the session's of commands
    blocks = []
    for count in ROUNDS:
        _random_calls(world, rng, count)
        _settle(world)
        assert world.session.objects() == ()
        assert sorted(world.files) == [0, 1, 2, 3, 4, 5]
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    assert blocks[2] - blocks[1] < 100, blocks


def test_unknown_numbers_are_not_all_remembered() -> None:
    """A guest that tries every number does not fill the policy's tables."""
    policy = Policy.for_driver("580.159.04", CAPS[1])
    gc.collect()
    before = sys.getallocatedblocks()
    for number in range(0x77000000, 0x77000000 + 20_000):
        assert not policy.decide_control(number, None, {}).allowed or number & 0x8000
        assert not policy.decide_alloc(number, None, {}).allowed
        assert not policy.decide_uvm(number, None, {}).allowed
    gc.collect()
    assert sys.getallocatedblocks() - before < 20_000
