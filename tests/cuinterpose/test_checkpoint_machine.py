"""Any history of calls in up to three processes, with cycles in between, against a model of what each would see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from cuinterpose import preflight
from tests.cuinterpose.checkpoint_world import Stage, Worker
from tests.effort import examples

PROCESSES = 3
SIZES = st.integers(1, 3)


@dataclass
class Memory:
    """One allocation: what every byte of it is, who made it, and how many references and mappings its creator has."""

    granules: int
    byte: int
    creator: int
    ticket: tuple[int, int] | None = None  # (process, descriptor)


@dataclass
class Held:
    """A handle of a process: its memory and how often it must be released."""

    memory: Memory
    references: int = 1


@dataclass
class Process:
    worker: Worker
    handles: dict[int, Held] = field(default_factory=dict)
    maps: dict[int, tuple[Memory, int, int]] = field(default_factory=dict)  # by slot: memory, address, access
    next_slot: int = 1
    churning: bool = False

    def slot(self) -> int:
        self.next_slot += 1
        return self.next_slot - 1

    def keeps(self, memory: Memory) -> bool:
        return any(held.memory is memory for held in self.handles.values()) or any(
            mapped is memory for mapped, _, _ in self.maps.values()
        )


class Machine(RuleBasedStateMachine):
    make_stage: Callable[[], Stage]

    def __init__(self) -> None:
        super().__init__()
        self.stage = type(self).make_stage()
        self.processes = [Process(self.stage.start()) for _ in range(PROCESSES)]
        self.memories: list[Memory] = []

    def teardown(self) -> None:
        for process in self.processes:
            if process.churning:
                self.stop(process)
            for slot, (memory, _, _) in process.maps.items():
                process.worker.do(f"unmap {slot} 0 {memory.granules}")
                process.worker.do(f"free {slot}")
            for slot, held in process.handles.items():
                for _ in range(held.references):
                    process.worker.do(f"release {slot}")
            assert process.worker.do("left") == "0 0"
        assert self.stage.end() == [0] * PROCESSES

    def stop(self, process: Process) -> None:
        process.churning = False
        assert process.worker.do("churned").split()[1] == "0"

    @initialize()
    def something_is_shared(self) -> None:
        self.create(0, 2)
        self.import_it(1, 0)
        self.map_it(1, 0)

    @rule(who=st.integers(0, PROCESSES - 1), granules=SIZES)
    def create(self, who: int, granules: int) -> None:
        process = self.processes[who]
        slot = process.slot()
        memory = Memory(granules, 0, who)
        process.worker.do(f"create {slot} {granules} 1")
        memory.ticket = who, process.worker.number(f"export {slot}")
        process.handles[slot] = Held(memory)
        self.memories.append(memory)

    @precondition(lambda self: self.memories)
    @rule(who=st.integers(0, PROCESSES - 1), which=st.integers(0, 99))
    def import_it(self, who: int, which: int) -> None:
        """From the descriptor that its creator still has: works as long as the creator keeps the memory."""
        memory = self.memories[which % len(self.memories)]
        assert memory.ticket
        process, slot = self.processes[who], self.processes[who].slot()
        holder, fd = memory.ticket
        own = process.worker.number(f"take {self.processes[holder].worker.pid} {fd}")
        if self.processes[memory.creator].keeps(memory):
            process.worker.do(f"import {slot} {own}")
            process.handles[slot] = Held(memory)
        else:
            assert process.worker.fails(f"import {slot} {own}") == 400
        process.worker.do(f"close {own}")

    def pick(self, who: int, which: int, of: str) -> tuple[Process, int] | None:
        process = self.processes[who]
        slots = sorted(getattr(process, of))
        return (process, slots[which % len(slots)]) if slots else None

    @rule(who=st.integers(0, PROCESSES - 1), which=st.integers(0, 99), readable=st.booleans())
    def map_it(self, who: int, which: int, readable: bool = True) -> None:
        if not (picked := self.pick(who, which, "handles")):
            return
        process, handle = picked
        memory, slot = process.handles[handle].memory, process.slot()
        process.worker.do(f"reserve {slot} {memory.granules}")
        process.worker.do(f"map {handle} {slot} 0 {memory.granules} 0")
        if readable:
            process.worker.do(f"access {slot} 0 {memory.granules} 3 0")
        process.maps[slot] = (memory, process.worker.number(f"address {slot}"), 3 if readable else 0)

    @rule(who=st.integers(0, PROCESSES - 1), which=st.integers(0, 99), flags=st.sampled_from([0, 1, 3]))
    def access(self, who: int, which: int, flags: int) -> None:
        if picked := self.pick(who, which, "maps"):
            process, slot = picked
            memory, address, _ = process.maps[slot]
            process.worker.do(f"access {slot} 0 {memory.granules} {flags} 0")
            process.maps[slot] = (memory, address, flags)

    @rule(who=st.integers(0, PROCESSES - 1), which=st.integers(0, 99))
    def unmap(self, who: int, which: int) -> None:
        if picked := self.pick(who, which, "maps"):
            process, slot = picked
            process.worker.do(f"unmap {slot} 0 {process.maps.pop(slot)[0].granules}")
            process.worker.do(f"free {slot}")

    @rule(who=st.integers(0, PROCESSES - 1), which=st.integers(0, 99))
    def release(self, who: int, which: int) -> None:
        if picked := self.pick(who, which, "handles"):
            process, slot = picked
            process.worker.do(f"release {slot}")
            process.handles[slot].references -= 1
            if not process.handles[slot].references:
                del process.handles[slot]

    @rule(who=st.integers(0, PROCESSES - 1), which=st.integers(0, 99))
    def retain(self, who: int, which: int) -> None:
        if picked := self.pick(who, which, "maps"):
            process, mapped = picked
            slot = process.slot()
            process.worker.do(f"retain {slot} {mapped} 0")
            process.handles[slot] = Held(process.maps[mapped][0])

    @rule(who=st.integers(0, PROCESSES - 1), which=st.integers(0, 99), byte=st.integers(1, 255))
    def write(self, who: int, which: int, byte: int) -> None:
        if picked := self.pick(who, which, "maps"):
            process, slot = picked
            memory, _, flags = process.maps[slot]
            command = f"write {slot} 0 {memory.granules} {byte}"
            if flags == 3:
                process.worker.do(command)
                memory.byte = byte
            else:
                assert process.worker.fails(command) == 1

    @rule(who=st.integers(0, PROCESSES - 1))
    def allocate_meanwhile(self, who: int) -> None:
        process = self.processes[who]
        if process.churning:
            self.stop(process)
        else:
            process.worker.do("churn")
            process.churning = True

    @rule()
    def cycle(self) -> None:
        report = self.stage.cycle(accept=preflight.IDLE)  # as threads allocate: see test_checkpoint
        orphaned = any(
            not self.processes[memory.creator].keeps(memory)
            for process in self.processes
            for memory in (*(h.memory for h in process.handles.values()), *(m for m, _, _ in process.maps.values()))
        )
        expected = "refused" if orphaned else "done"
        assert (report.outcome, report.lost) == (expected, []), report.lines(verbose=True)
        self.all_see_what_they_would()

    def all_see_what_they_would(self) -> None:
        for process in self.processes:
            for slot, (memory, address, flags) in process.maps.items():
                assert process.worker.number(f"address {slot}") == address
                assert process.worker.number(f"getaccess {slot} 0") == flags
                if flags:
                    assert process.worker.do(f"read {slot} 0 {memory.granules}") == str(memory.byte)
            for slot in process.handles:
                process.worker.do(f"props {slot}")


def test_histories(scenes: Callable[[str], Stage]) -> None:
    Machine.make_stage = staticmethod(lambda: scenes("plain"))  # type: ignore[method-assign,assignment]
    limits = settings(max_examples=examples(12), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Machine, settings=limits)  # type: ignore[no-untyped-call]


def test_the_machine_can_fail(scenes: Callable[[str], Stage], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without letting go, the same machine finds the driver's own answer."""
    from cuinterpose import checkpoint

    def by_the_driver_alone(stage: Stage, **_: object) -> checkpoint.Report:
        driver = stage.library()
        for worker in stage.workers:
            driver.lock(worker.pid, 5)
            driver.checkpoint(worker.pid)
        for worker in stage.workers:
            driver.restore(worker.pid)
            driver.unlock(worker.pid)
        return checkpoint.Report("cycle", "done")

    monkeypatch.setattr(Stage, "cycle", by_the_driver_alone)
    Machine.make_stage = staticmethod(lambda: scenes("plain"))  # type: ignore[method-assign,assignment]
    machine = Machine()
    machine.something_is_shared()
    with pytest.raises(Exception, match="801"):
        machine.cycle()
