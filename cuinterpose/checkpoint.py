"""Checkpoint and restore of a group of processes that share GPU memory.

The driver saves and restores each process; what one imported from another it cannot bring back. So importers let go
before, and import again after, at the same addresses. The state is in the processes and in the driver: this coordinator
may end at any step, and another one, or the processes themselves, go on from there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from . import inventory, preflight
from .checkpoint_driver import NOT_INITIALIZED, Checkpointer, DriverError, State, within
from .directory import open_directory
from .frame import Op, ProtocolError
from .inventory import Member
from .member import Conversation, Phase, StepError

LOCK_NAME = "coordinator.lock"
"""The file of a directory that its one coordinator holds a lock on."""
_AT_ONCE = 16
_PAUSE = 0.01


@dataclass(frozen=True)
class Limits:
    """Seconds.

    quiesce: for calls and the device to end. lock, driver: for the driver's steps. importing: for imports to come back.
    patience: that a process waits for a step before it puts everything back by itself.
    """

    quiesce: float = 10.0
    lock: float = 10.0
    driver: float = 600.0
    importing: float = 30.0
    patience: float = 30.0


@dataclass(frozen=True)
class Step:
    """One step with one process, or with none (pid None). why: empty if it succeeded. seconds: how long it took."""

    name: str
    pid: int | None
    why: str
    seconds: float

    @property
    def succeeded(self) -> bool:
        """Whether the step was done."""
        return not self.why


Outcome = Literal["done", "refused", "put back", "lost", "unclear"]
"""What became of a checkpoint or a restore. refused: nothing was changed; put back: it was, and all goes on."""


@dataclass
class Report:
    """What was done. lost: what did not come back, a sentence each."""

    command: str
    outcome: Outcome = "unclear"
    why: str = ""
    pids: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    preflight: preflight.Answer | None = None
    seconds: float = 0.0

    @property
    def status(self) -> int:
        """0 done, 1 not, 2 the outcome is not known."""
        if self.outcome == "refused" and self.preflight:
            return self.preflight.status or 1
        return {"done": 0, "unclear": 2}.get(self.outcome, 1)

    def as_json(self) -> dict[str, object]:
        """The document of schema cuinterpose.checkpoint/1."""
        return {
            "schema": "cuinterpose.checkpoint/1",
            "command": self.command,
            "outcome": self.outcome,
            "why": self.why,
            "members": self.pids,
            "seconds": round(self.seconds, 6),
            "lost": self.lost,
            "steps": [{**asdict(step), "seconds": round(step.seconds, 6)} for step in self.steps],
            "obstacles": [asdict(item) for item in self.preflight.obstacles] if self.preflight else [],
        }

    def lines(self, *, verbose: bool = False) -> list[str]:
        """For people. verbose: steps that succeeded too."""
        text = [f"{self.command}: {self.outcome}" + (f": {self.why}" if self.why else "")]
        if self.outcome == "refused" and self.preflight:
            text += [f"  {line.strip()}" for line in self.preflight.lines()[1:]]
        for step in self.steps:
            if verbose or not step.succeeded:
                who = f"process {step.pid}" if step.pid is not None else "the group"
                took = f"{step.seconds * 1000:.1f} ms"
                text.append(f"  {step.name:10} {who}: {step.why or 'ok'} ({took})")
        text += [f"  lost       {line}" for line in self.lost]
        text.append(f"  {len(self.pids)} processes, {self.seconds:.3f} s")
        return text


class Refused(Exception):
    """A step did not succeed and the rest must not follow; the report has it."""


class _Coordinator:
    """The steps over one group. Each is reported; `each` runs one in all its processes at once."""

    def __init__(
        self, driver: Checkpointer, limits: Limits, report: Report, on_step: Callable[[Step], None] | None
    ) -> None:
        self.driver = driver
        self.limits = limits
        self.report = report
        self.busy: dict[int, bool] = {}  # by pid: its last step failed since a creator does not answer for now
        self._on_step = on_step

    def note(self, name: str, pid: int | None, why: str, begun: float) -> bool:
        step = Step(name, pid, why, time.monotonic() - begun)
        self.report.steps.append(step)
        if self._on_step:
            self._on_step(step)
        return step.succeeded

    def ask(self, conversation: Conversation, op: Op, name: str, limit: float) -> str:
        """Why a process did not do a step, or nothing; reported."""
        begun = time.monotonic()
        try:
            conversation.step(op, limit, self.limits.patience)
            why = ""
        except (StepError, ProtocolError) as error:
            why = str(error)
            self.busy[conversation.pid] = isinstance(error, StepError) and error.waits_for_creator
        self.note(name, conversation.pid, why, begun)
        return why

    def each(self, conversations: list[Conversation], op: Op, name: str, limit: float = 10.0) -> dict[int, str]:
        """Why, by pid, of those that did not do a step."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            results = list(pool.map(lambda one: self.ask(one, op, name, limit), conversations))
        return {one.pid: why for one, why in zip(conversations, results, strict=True) if why}

    def drive(self, name: str, pid: int, function: Callable[[], None], limit: float) -> str:
        """Why the driver did not do a step with a process, or nothing; reported."""
        begun = time.monotonic()
        try:
            within(limit, name, function)
            why = ""
        except DriverError as error:
            why = str(error)
        self.note(name, pid, why, begun)
        return why

    def lock(self, pid: int) -> str:
        timeout = self.limits.lock
        return self.drive("lock", pid, lambda: self.driver.lock(pid, timeout), timeout + 30)

    def checkpoint(self, pid: int) -> str:
        return self.drive("checkpoint", pid, lambda: self.driver.checkpoint(pid), self.limits.driver)

    def restore(self, pid: int) -> str:
        return self.drive("restore", pid, lambda: self.driver.restore(pid), self.limits.driver)

    def unlock(self, pid: int) -> str:
        return self.drive("unlock", pid, lambda: self.driver.unlock(pid), self.limits.driver)

    def run_again(self, pid: int) -> str:
        """Whatever state the driver has a process in, back to running. Why not, or nothing."""
        try:
            state = self.driver.state(pid)
            if state is State.CHECKPOINTED:
                if why := self.restore(pid):
                    return why
                state = self.driver.state(pid)
            if state is State.LOCKED and (why := self.unlock(pid)):
                return why
            if state is State.FAILED:
                return "the driver says that its checkpoint failed"
        except DriverError as error:
            if error.code == NOT_INITIALIZED:
                return ""
            self.note("state", pid, str(error), time.monotonic())
            return str(error)
        return ""

    def talk(self, member: Member, deadline: float) -> Conversation | None:
        """A connection on which a process takes steps; it may still be busy with the end of another coordinator's."""
        assert member.holdings is not None
        begun = time.monotonic()
        while True:
            why = ""
            conversation: Conversation | None = None
            try:
                conversation = Conversation(member.endpoint, member.holdings.participant)
                conversation.step(Op.SERVE, 10.0, self.limits.patience)
            except StepError as error:
                why = str(error)
            except ProtocolError as error:
                why = str(error)
                if not inventory.started(member.pid):
                    why = "the process has ended"
                    deadline = 0
            if not why and conversation:
                self.note("serve", member.pid, "", begun)
                return conversation
            if conversation:
                conversation.close()
            if time.monotonic() >= deadline:
                self.note("serve", member.pid, why, begun)
                return None
            time.sleep(_PAUSE)

    def bring_back(self, members: list[Member]) -> None:
        """Descriptors are given again, imports come back, gates open; what does not is written down as lost."""
        deadline = time.monotonic() + self.limits.importing
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            talking = list(pool.map(lambda member: self.talk(member, deadline), members))
        conversations = [conversation for conversation in talking if conversation]
        with contextlib.ExitStack() as closing:
            for conversation in conversations:
                closing.callback(conversation.close)
            self.finish(conversations)
        for member, talked in zip(members, talking, strict=True):
            if not talked:
                self.report.lost.append(f"process {member.pid} does not take part any more")

    def finish(self, conversations: list[Conversation]) -> None:
        """Imports come back and gates open. Who waits for a creator that is busy is left to wait: its end is the creator's."""
        waiting = set()
        for pid, why in self.each(conversations, Op.IMPORT, "import", self.limits.importing).items():
            busy = self.busy.get(pid, False)
            waiting |= {pid} if busy else set()
            more = "; it waits until its creator is restored" if busy else ""
            self.report.lost.append(f"process {pid}: {why}{more}")
        conversations = [conversation for conversation in conversations if conversation.pid not in waiting]
        for pid, why in self.each(conversations, Op.OPEN_GATE, "open").items():
            self.report.lost.append(f"process {pid} did not open its gate: {why}")


@contextlib.contextmanager
def _alone(where: Path) -> Iterator[None]:
    """One coordinator at a time in a directory; the kernel frees it when its process ends. BlockingIOError if there is one."""
    directory = open_directory(where)
    try:
        fd = os.open(LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
    finally:
        os.close(directory)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def _quiesce(
    coordinator: _Coordinator,
    where: Path,
    members: list[Member],
    conversations: list[Conversation],
    accepted: set[str],
) -> None:
    """Gates closed, devices idle, imports let go of, for good. Refused if a process could not."""
    limits = coordinator.limits
    if coordinator.each(conversations, Op.CLOSE, "close", limits.quiesce):
        raise Refused("not every process came to rest")
    # What is shared can no longer change, so this answer stands.
    begun = time.monotonic()
    now = inventory.collect(where, [member.pid for member in members])
    new = [item for item in preflight.shared(now) if item.code not in accepted]
    if new or any(not member.holdings for member in now.members if member.pid in {c.pid for c in conversations}):
        why = "; ".join(f"process {item.pid}: {item.what}" for item in new) or "a process could not be asked any more"
        coordinator.note("look again", None, why, begun)
        raise Refused("what is shared has changed meanwhile")
    coordinator.note("look again", None, "", begun)
    if coordinator.each(conversations, Op.LET_GO, "let go", limits.quiesce):
        raise Refused("not every import could be let go of")
    if coordinator.each(conversations, Op.HOLD, "hold"):
        raise Refused("a process did not wait for the next step")


def _put_back(
    coordinator: _Coordinator, members: list[Member], conversations: list[Conversation], pids: list[int]
) -> None:
    """After a failure before the checkpoint, or in the middle of it: everything as it was."""
    stuck = {pid: why for pid in pids if (why := coordinator.run_again(pid))}
    running = [conversation for conversation in conversations if conversation.pid not in stuck]
    for conversation in conversations:
        if conversation.pid in stuck:
            conversation.close()
    silent = coordinator.each(running, Op.SERVE, "serve")
    coordinator.finish([conversation for conversation in running if conversation.pid not in silent])
    for pid, why in {**stuck, **silent}.items():
        if not inventory.started(pid):
            coordinator.report.lost.append(f"process {pid} has ended")
        else:
            coordinator.report.lost.append(f"process {pid}: {why}")


def _checkpoint(coordinator: _Coordinator, where: Path, answer: preflight.Answer) -> bool:
    """True: every process of the group is checkpointed. False: the report says why not."""
    report = coordinator.report
    members = [member for member in answer.group.members if member.holdings]
    pids = [member.pid for member in answer.group.members if member.pid not in answer.left_out]
    report.pids = pids
    with contextlib.ExitStack() as closing:
        conversations: list[Conversation] = []
        try:
            for member in members:
                assert member.holdings is not None
                begun = time.monotonic()
                try:
                    conversations.append(Conversation(member.endpoint, member.holdings.participant))
                    closing.callback(conversations[-1].close)
                except ProtocolError as error:
                    coordinator.note("connect", member.pid, str(error), begun)
                    raise Refused("a process does not answer any more") from None
            _quiesce(coordinator, where, members, conversations, {item.code for item in answer.accepted})
            for pid in pids:
                if coordinator.lock(pid):
                    raise Refused("not every process could be locked")
            if coordinator.each(conversations, Op.LOCK, "locked"):
                raise Refused("a process did not wait for the next step")
            for pid in pids:
                if coordinator.checkpoint(pid):
                    raise Refused("not every process could be checkpointed")
        except Refused as refusal:
            report.why = str(refusal)
            _put_back(coordinator, members, conversations, pids)
            report.outcome = "lost" if report.lost else "put back"
            return False
        except BaseException:
            # An interrupt, say. The processes heal by themselves once they run: see to that.
            _put_back(coordinator, members, conversations, pids)
            raise
    return True


def _restore(coordinator: _Coordinator, where: Path, pids: list[int] | None) -> None:
    """Every process of the group runs, has its imports and an open gate; or the report says what is lost."""
    report = coordinator.report
    group = inventory.collect(where, pids)
    report.pids = group.pids
    stuck = {}
    for pid in group.pids:
        if why := coordinator.run_again(pid):
            stuck[pid] = why
            gone = " (it has ended)" if not inventory.started(pid) else ""
            report.lost.append(f"process {pid}: {why}{gone}")
    members = [
        member
        for member in group.members
        if member.holdings and member.pid not in stuck and member.holdings.phase is not Phase.OPEN
    ]
    for member in group.members:
        if not member.holdings and not member.tracked and member.pid not in stuck and member.why != "no such process":
            report.lost.append(f"process {member.pid}: whether it has its imports is not known: {member.why}")
    coordinator.bring_back(members)
    # what an earlier end of a coordinator left lost is in the inventory; say it once more
    for member in inventory.collect(where, group.pids).members:
        for item in member.holdings.imports if member.holdings else ():
            line = f"process {member.pid}: import {item.resource.hex() if item.resource else '?'}: {item.lost}"
            if item.lost and not any(f"process {member.pid}:" in said for said in report.lost):
                report.lost.append(line)
    report.outcome = "lost" if report.lost else "done"


def _begin(
    command: str,
    where: Path,
    pids: list[int] | None,
    driver: Checkpointer,
    accept: Iterable[str],
) -> tuple[Report, preflight.Answer]:
    answer = preflight.judge(inventory.collect(where, pids), driver, accept=accept)
    report = Report(command, pids=answer.group.pids, preflight=answer)
    if answer.status:
        report.outcome = "refused"
        report.why = "nothing was changed"
    return report, answer


def checkpoint(
    where: Path,
    pids: list[int] | None,
    driver: Checkpointer,
    limits: Limits | None = None,
    *,
    accept: Iterable[str] = (),
    on_step: Callable[[Step], None] | None = None,
) -> Report:
    """Leaves every process of the group checkpointed, or all as they were.

    where: the directory of their endpoints; pids None: all that are there. accept: see `preflight.judge`.
    BlockingIOError if another coordinator is at work there; OSError if the directory cannot be trusted.
    """
    begun = time.monotonic()
    with _alone(where):
        report, answer = _begin("checkpoint", where, pids, driver, accept)
        if report.outcome != "refused" and _checkpoint(
            _Coordinator(driver, limits or Limits(), report, on_step), where, answer
        ):
            report.outcome = "done"
    report.seconds = time.monotonic() - begun
    return report


def restore(
    where: Path,
    pids: list[int] | None,
    driver: Checkpointer,
    limits: Limits | None = None,
    *,
    on_step: Callable[[Step], None] | None = None,
) -> Report:
    """Has every process of the group run again with its imports, from whatever step a coordinator left it in."""
    begun = time.monotonic()
    report = Report("restore")
    with _alone(where):
        _restore(_Coordinator(driver, limits or Limits(), report, on_step), where, pids)
    report.seconds = time.monotonic() - begun
    return report


def cycle(
    where: Path,
    pids: list[int] | None,
    driver: Checkpointer,
    limits: Limits | None = None,
    *,
    accept: Iterable[str] = (),
    between: Callable[[], None] | None = None,
    on_step: Callable[[Step], None] | None = None,
) -> Report:
    """Checkpoint and restore at once. between: called while no process of the group has GPU memory."""
    begun = time.monotonic()
    with _alone(where):
        report, answer = _begin("cycle", where, pids, driver, accept)
        coordinator = _Coordinator(driver, limits or Limits(), report, on_step)
        if report.outcome != "refused" and _checkpoint(coordinator, where, answer):
            checkpointed = report.pids
            try:
                if between:
                    between()
            finally:
                _restore(coordinator, where, checkpointed)
    report.seconds = time.monotonic() - begun
    return report
