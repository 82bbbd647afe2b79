"""Would a checkpoint of a group succeed, and if not, what stands in the way: an answer before anything is touched.

Each obstacle is certain, or something that could not be found out; the worst of them is the verdict.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from . import doctor, inventory
from .checkpoint_driver import NOT_INITIALIZED, Checkpointer, DriverError, State
from .inventory import NOTES, Group, Member
from .member import Import, Phase

IDLE = ("bypass", "bypass-unknown")
"""What no longer matters if the programs launch nothing meanwhile."""
# Notes that stop a checkpoint: the process holds what only another process has. The rest was given away, and who holds
# it is not known.
_HELD = (
    "ipc_memory_opened",
    "pool_imported",
    "endpoint_imported",
    "external_memory",
    "external_semaphore",
    "multicast",
    "untracked",
)
# The driver keeps them between processes that are all checkpointed; it is not known what becomes of them otherwise.
_EVENTS = ("ipc_event_given", "ipc_event_opened")


@dataclass(frozen=True)
class Obstacle:
    """code: a word for programs. pid: which process, or None for the group. certain: False if it could not be found out."""

    code: str
    pid: int | None
    what: str
    way_out: str
    certain: bool = True


Verdict = Literal["ready", "refused", "cannot tell"]
"""Whether a checkpoint would succeed."""
_VERDICTS: tuple[Verdict, ...] = get_args(Verdict)  # by status


@dataclass(frozen=True)
class Answer:
    """driver: what would checkpoint, or None. left_out: processes of the group that have nothing to checkpoint.

    accepted: obstacles that the caller takes upon themselves; they do not count.
    """

    group: Group
    driver: str | None
    obstacles: tuple[Obstacle, ...]
    left_out: tuple[int, ...]
    accepted: tuple[Obstacle, ...] = ()

    @property
    def status(self) -> int:
        """0 a checkpoint would succeed, 1 it would not, 2 could not tell."""
        if any(obstacle.certain for obstacle in self.obstacles):
            return 1
        return 2 if self.obstacles else 0

    @property
    def verdict(self) -> Verdict:
        """The status in words."""
        return _VERDICTS[self.status]

    def as_json(self) -> dict[str, object]:
        """The document of schema cuinterpose.preflight/1."""
        return {
            "schema": "cuinterpose.preflight/1",
            "verdict": self.verdict,
            "driver": self.driver,
            "members": self.group.pids,
            "left_out": list(self.left_out),
            "obstacles": [asdict(obstacle) for obstacle in self.obstacles],
            "accepted": [asdict(obstacle) for obstacle in self.accepted],
        }

    def lines(self) -> list[str]:
        """For people."""
        number = len(self.group.members)
        of = "this process" if number == 1 else f"these {number} processes"
        sentence = {
            0: f"ready: a checkpoint of {of} would succeed",
            1: f"refused: a checkpoint of {of} would not succeed",
            2: f"cannot tell whether a checkpoint of {of} would succeed",
        }[self.status]
        text = [sentence] if number else ["refused: there is no process to checkpoint"]
        for obstacle in self.obstacles:
            who = f"process {obstacle.pid}" if obstacle.pid is not None else "the group"
            text.append(f"  {'refused' if obstacle.certain else 'unknown'}  {who}: {obstacle.what}")
            if obstacle.way_out:
                text.append(f"           {obstacle.way_out}")
        text += [f"  accepted  process {item.pid}: {item.what}" for item in self.accepted]
        text += [f"  left out  process {pid}: it does not use CUDA" for pid in self.left_out]
        if self.driver:
            text.append(f"  with      {self.driver}")
        return text


def _of_driver(group: Group, driver: Checkpointer) -> tuple[list[Obstacle], list[int]]:
    obstacles, left_out = [], []
    for pid in group.pids:
        try:
            state = driver.state(pid)
        except DriverError as error:
            if error.code == NOT_INITIALIZED:
                left_out.append(pid)
            else:
                obstacles.append(Obstacle("driver", pid, str(error), "", certain=error.code >= 0))
            continue
        if state is State.FAILED:
            obstacles.append(
                Obstacle("failed", pid, "the driver says that its checkpoint failed", "it must be restarted")
            )
        elif state is not State.RUNNING:
            way = "restore it first: cuinterpose restore"
            obstacles.append(Obstacle("not-running", pid, f"the driver says that it is {state.name.lower()}", way))
    return obstacles, left_out


def _traced(pid: int) -> Obstacle | None:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            tracer = next((int(line.split()[1]) for line in file if line.startswith("TracerPid:")), 0)
    except (OSError, ValueError, IndexError):
        return None
    if not tracer:
        return None
    return Obstacle(
        "traced", pid, f"process {tracer} traces it, as a debugger does", "detach it: one tracer is allowed"
    )


def _route(member: Member) -> Obstacle | None:
    """Launches that pass the gate by cannot be held back while imports are away."""
    if not (member.holdings and member.holdings.imports):
        return None
    way = "stop its work yourself and say so with --assume-idle"
    try:
        found = doctor.diagnose(member.pid)
        if found.verdict == "unclear":  # what a live process unmaps meanwhile cannot be read
            found = doctor.diagnose(member.pid)
    except OSError as error:
        what = f"whether calls pass the shim by cannot be read: {error.strerror or error}"
        return Obstacle("bypass-unknown", member.pid, what, way, certain=False)
    if found.verdict == "covered":
        return None
    what = f"its launches may pass the shim by: {found.why}"
    certain = found.verdict == "bypassed"
    return Obstacle("bypass" if certain else "bypass-unknown", member.pid, what, way, certain)


def _kept(group: Group, item: Import) -> bool:
    """Whether the creator of an import still has the memory, as far as it could be asked."""
    creator = group.by_participant(item.participant)
    return not (creator and creator.holdings) or any(a.resource == item.resource for a in creator.holdings.allocations)


def _of_imports(group: Group, member: Member) -> list[Obstacle]:
    obstacles = []
    members = {other.holdings.participant for other in group.members if other.holdings}
    held = member.holdings
    assert held is not None
    for item in held.imports:
        name = item.resource.hex() if item.resource else "?"
        if item.lost:
            continue  # it has nothing of it any more, which the inventory says
        if item.foreign:
            what = "it imported a descriptor of the driver, not a ticket: nobody can be asked for it again"
            obstacles.append(
                Obstacle("foreign", member.pid, what, "start the process that exported it with --track as well")
            )
        elif item.entangled:
            what = f"its import {name} is bound to a multicast object or in a sparse array"
            obstacles.append(Obstacle("entangled", member.pid, what, "release that first"))
        elif item.participant not in members:
            creator = group.by_participant(item.participant)
            of = f"process {creator.pid}" if creator else "a process that cannot be found here"
            what = f"it imported {name} of {of}, which is not in the group"
            way = f"add process {creator.pid} to the group" if creator else "add its creator to the group"
            obstacles.append(Obstacle("creator-outside", member.pid, what, way))
        elif not _kept(group, item):
            what = f"it alone keeps {name}, which its creator has released: nobody could give it back"
            obstacles.append(
                Obstacle("creator-released", member.pid, what, "release it here as well, or keep it there")
            )
    return obstacles


def _of_importers(group: Group, member: Member) -> list[Obstacle]:
    """The driver would give the creator new memory, and importers that are not let go of would keep the old, silently."""
    obstacles = []
    held = member.holdings
    assert held is not None
    inside = set(group.pids)
    others = {other.pid: other for other in group.others}
    for allocation in held.allocations:
        if not allocation.resource:
            continue
        name = allocation.resource.hex()
        holders = {
            other.pid
            for other in group.others
            if other.holdings and any(i.resource == allocation.resource and not i.lost for i in other.holdings.imports)
        }
        for pid in sorted(holders):
            what = f"process {pid} imported its {name} and is not in the group: the two would silently stop sharing"
            obstacles.append(Obstacle("importer-outside", member.pid, what, f"add process {pid} to the group"))
        for importer in allocation.importers:
            known = importer.pid in inside or importer.pid in holders
            if known or (importer.pid in others and others[importer.pid].asked):
                continue
            if importer.started and inventory.started(importer.pid) != importer.started:
                continue  # it has ended
            what = f"process {importer.pid} was given its {name}, and cannot be asked whether it still has it"
            way = f"add process {importer.pid} to the group, started with --track"
            obstacles.append(Obstacle("importer-unknown", member.pid, what, way, certain=False))
    return obstacles


def _of_large(group: Group, member: Member) -> list[Obstacle]:
    """The importer would lose it after the point of no return: the driver does not export it again."""
    held = member.holdings
    assert held is not None
    way = f"share pieces of less than {inventory.size_text(inventory.LARGE_SHARED)}, or release the import first"
    obstacles = []
    for allocation in held.allocations:
        pids = group.importers(allocation.resource)
        ends = inventory.large_shared(held, allocation)
        if not pids or ends is False:
            continue
        assert allocation.resource is not None
        name, size = allocation.resource.hex(), inventory.size_text(allocation.size)
        who = f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids))}"
        if ends:
            what = f"its driver sees {held.devices} devices and would not share {name} ({size}) again after a restore"
            what += f": {who} would lose it"
        else:
            seen = "sees one device of several" if held.devices else "has not said how many devices it sees"
            what = f"its driver {seen}: whether {who} would get {name} ({size}) back after a restore is not known"
        obstacles.append(Obstacle("large-shared", member.pid, what, way, certain=bool(ends)))
    return obstacles


def _of_sharing(group: Group, member: Member) -> list[Obstacle]:
    return _of_imports(group, member) + _of_importers(group, member) + _of_large(group, member)


def _of_member(group: Group, member: Member) -> list[Obstacle]:
    held = member.holdings
    obstacles = []
    if not held:
        if member.tracked:
            return []
        gone = member.why == "no such process"
        code = "gone" if gone else "untracked" if member.tracked is False else "unread"
        what = member.why if gone else f"what it shares is not known: {member.why}"
        return [Obstacle(code, member.pid, what, "", certain=gone)]
    if held.phase is not Phase.OPEN:
        way = "let it finish, or bring it back: cuinterpose restore"
        obstacles.append(Obstacle("phase", member.pid, f"a checkpoint of it is under way ({held.phase.word})", way))
    if held.captures > 0:
        what = f"{held.captures} streams are being captured"
        obstacles.append(Obstacle("capture", member.pid, what, "ask again when the capture has ended"))
    for note in NOTES:
        if note in _EVENTS and not group.others:
            continue
        if count := held.notes.get(note, 0):
            what = f"{count} {NOTES[note]}"
            if note in _HELD:
                obstacles.append(Obstacle(note.replace("_", "-"), member.pid, what, "a checkpoint cannot keep that"))
            else:
                way = "whether a process still holds it is not known"
                obstacles.append(Obstacle(note.replace("_", "-"), member.pid, what, way, certain=False))
    obstacles += _of_sharing(group, member)
    if route := _route(member):
        obstacles.append(route)
    return obstacles


def _mps() -> bool:
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and Path(f"/proc/{name}/comm").read_text(errors="replace").startswith("nvidia-cuda-mps"):
                return True
        except OSError:
            continue
    return False


def shared(group: Group) -> list[Obstacle]:
    """What of the sharing alone stands in the way: asked again once the gates are closed, when it can no longer change."""
    return [obstacle for member in group.members if member.holdings for obstacle in _of_sharing(group, member)]


def judge(
    group: Group,
    driver: Checkpointer | None,
    why_no_driver: str = "",
    *,
    accept: Iterable[str] = (),
    mps: Callable[[], bool] = _mps,
) -> Answer:
    """The answer for a group that was just collected.

    driver None: nothing here can checkpoint, for this reason. accept: codes of obstacles not to count.
    """
    obstacles: list[Obstacle] = []
    left_out: list[int] = []
    if driver is None:
        way = "a driver of 570 or later, or its cuda-checkpoint command, is needed"
        obstacles.append(Obstacle("no-driver", None, why_no_driver or "nothing here can checkpoint a process", way))
    else:
        obstacles, left_out = _of_driver(group, driver)
    if not group.members:
        obstacles.append(Obstacle("empty", None, "no process is in it", "name processes, or start them with --track"))
    if mps():
        what = "the multi-process service (MPS) runs on this machine, and its clients' contexts are in its server"
        obstacles.append(
            Obstacle("mps", None, what, "stop it, or see that no process of the group uses it", certain=False)
        )
    for member in group.members:
        if member.pid in left_out and not member.holdings:
            continue
        obstacles += _of_member(group, member)
        if traced := _traced(member.pid):
            obstacles.append(traced)
    taken = set(accept)
    return Answer(
        group,
        driver.name if driver else None,
        tuple(obstacle for obstacle in obstacles if obstacle.code not in taken),
        tuple(left_out),
        tuple(obstacle for obstacle in obstacles if obstacle.code in taken),
    )
