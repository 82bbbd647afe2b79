"""What the processes of a group hold and share: asked of each over its endpoint, on a live job, with nothing changed."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from . import coordinator, doctor, frame, ticket
from .frame import ProtocolError
from .member import Allocation, Holdings, Import, holdings

TICKET_LINK = "/memfd:cuinterpose-ticket"
"""What /proc/PID/fd shows for a ticket begins with it."""
LARGE_SHARED = 512 << 20
"""Bytes. An H200's driver (580.159.04) that sees two devices refuses to export an allocation of this size or more once
its creator was restored (CUDA_ERROR_INVALID_VALUE); it exported 510 MiB. docs/checkpoint.md has the table."""
GPUS = Path("/proc/driver/nvidia/gpus")
"""The folder with a directory for each GPU that the kernel's driver has."""
_ELSEWHERE = "its endpoint is not in this directory; name its CUINTERPOSE_DIR with --directory"
NOTES = {
    "ipc_memory_opened": "legacy IPC memory that is open (cuIpcOpenMemHandle)",
    "ipc_event_opened": "events of other processes (cuIpcOpenEventHandle)",
    "pool_imported": "memory pools of other processes (cuMemPoolImportFromShareableHandle)",
    "endpoint_imported": "logical endpoints of other processes (cuLogicalEndpointImport)",
    "external_memory": "external memory (cuImportExternalMemory)",
    "external_semaphore": "external semaphores (cuImportExternalSemaphore)",
    "multicast": "multicast objects (cuMulticastCreate)",
    "untracked": "imports that could not be written down: no memory was left",
    "ipc_memory_given": "legacy IPC handles given away (cuIpcGetMemHandle)",
    "ipc_event_given": "events given away (cuIpcGetEventHandle)",
    "pool_given": "memory pools given away (cuMemPoolExportToShareableHandle)",
    "fabric_given": "handles given away that are not file descriptors (fabric)",
    "descriptor_given": "the driver's own descriptors given away, not tickets",
    "dma_buf_given": "dma-buf descriptors given away (cuMemGetHandleForAddressRange)",
    "endpoint_given": "logical endpoints given away (cuLogicalEndpointExport)",
}
"""What each note of src/ledger.h is, as people say it, in the order of the report."""


@dataclass(frozen=True)
class OpenTicket:
    """A descriptor of a process that is a ticket. It keeps its meaning across a checkpoint."""

    fd: int
    participant: bytes
    resource: bytes


@dataclass(frozen=True)
class Member:
    """One process of the group.

    holdings: None if it could not be asked, and why says so. tracked: None if that is not known either. A tracked
    process without an endpoint has shared nothing yet.
    """

    pid: int
    endpoint: str
    holdings: Holdings | None
    tracked: bool | None
    why: str
    tickets: tuple[OpenTicket, ...] = ()

    @property
    def asked(self) -> bool:
        """Whether the process said what it holds."""
        return self.holdings is not None


@dataclass(frozen=True)
class Group:
    """members: what was asked for. others: tracked processes of the same directory that were not."""

    members: tuple[Member, ...]
    others: tuple[Member, ...]

    def by_participant(self, participant: bytes | None) -> Member | None:
        """The member or other of an identity."""
        for member in (*self.members, *self.others):
            if participant and member.holdings and member.holdings.participant == participant:
                return member
        return None

    @property
    def pids(self) -> list[int]:
        """Of the members, in their order."""
        return [member.pid for member in self.members]

    def importers(self, resource: bytes | None) -> list[int]:
        """The members that have memory imported, by its identity, and have not lost it."""
        return [
            member.pid
            for member in self.members
            if resource and member.holdings
            if any(item.resource == resource and not item.lost for item in member.holdings.imports)
        ]


def started(pid: int) -> int:
    """When a process started, as field 22 of /proc/PID/stat has it; 0 if it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            rest = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(rest[19]) if len(rest) > 19 and rest[0] not in (b"Z", b"X") else 0


def open_tickets(pid: int) -> tuple[OpenTicket, ...]:
    """Every descriptor of a process that is a ticket. OSError if its table cannot be read."""
    found = []
    for name in sorted(os.listdir(f"/proc/{pid}/fd"), key=int):
        path = f"/proc/{pid}/fd/{name}"
        try:
            if not os.readlink(path).startswith(TICKET_LINK):
                continue
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue  # closed meanwhile
        try:
            verdict = ticket.classify(fd)
        finally:
            os.close(fd)
        if verdict.ticket:
            found.append(OpenTicket(int(name), verdict.ticket.participant, verdict.ticket.resource))
    return tuple(found)


def _tickets(pid: int) -> tuple[OpenTicket, ...]:
    try:
        return open_tickets(pid)
    except OSError:
        return ()


def _asked(endpoint: str, participant: bytes, pid: int, timeout: float) -> Member:
    try:
        found = holdings(endpoint, participant, timeout)
    except ProtocolError as error:
        return Member(pid, endpoint, None, None, f"its endpoint gave no inventory: {error}")
    return Member(pid, endpoint, found, True, "", _tickets(pid))


def _silent(found: coordinator.Member) -> Member | None:
    """A process that listens and does not answer: stopped, or in a call of a locked driver. None: nobody listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.setblocking(False)
        try:
            connection.connect(found.endpoint)
        except BlockingIOError:
            return Member(
                0,
                found.endpoint,
                None,
                None,
                f"its endpoint is overrun, and which process that is is not known: {found.why}",
            )
        except OSError:
            return None
        pid = frame.peer(connection)[0]
    return Member(pid, found.endpoint, None, None, f"its endpoint does not answer: {found.why}")


def _without_endpoint(pid: int) -> Member:
    """A process that listens nowhere: is it tracked and has nothing to say, or is it not tracked?"""
    if not started(pid):
        return Member(pid, "", None, False, "no such process")
    try:
        found = doctor.diagnose(pid)
    except (PermissionError, ProcessLookupError, FileNotFoundError, OSError) as error:
        return Member(pid, "", None, None, f"cannot be read: {error.strerror or error}")
    if not found.shim:
        return Member(pid, "", None, False, "the shim is not loaded; start it with: cuinterpose run --track -- COMMAND")
    tracked = (found.stats or {}).get("tracked", 0)
    if tracked > 1:
        words = {
            2: _ELSEWHERE,
            3: "its CUINTERPOSE_DIR could not be used, so it has no endpoint that could be asked",
        }
        return Member(pid, "", None, None, words.get(tracked, "tracked by another version"))
    if not tracked:
        return Member(pid, "", None, False, "not tracked; start it with: cuinterpose run --track -- COMMAND")
    return Member(
        pid, "", None, True, "tracked, and has shared or created nothing that needs an endpoint in this directory"
    )


def _present(where: Path, timeout: float) -> list[Member]:
    """Every process that listens in a directory, whether it answers or not."""
    present = []
    for found in coordinator.discover(where, timeout):
        if found.state == "alive" and found.pid:
            present.append(_asked(found.endpoint, bytes.fromhex(found.participant), found.pid, timeout))
        elif silent := _silent(found):
            present.append(silent)
    return sorted(present, key=lambda member: member.pid)


def collect(where: Path, pids: list[int] | None = None, timeout: float = 5.0) -> Group:
    """The processes pids, or all with an endpoint in the directory where. OSError if that cannot be trusted or read."""
    present = _present(where, timeout)
    if pids is None:
        return Group(tuple(present), ())
    wanted = set(pids)
    elsewhere = [_without_endpoint(pid) for pid in sorted(wanted - {member.pid for member in present})]
    if any(member.why == _ELSEWHERE for member in elsewhere):  # or it has been made since we looked
        present = _present(where, timeout)
        listening = {member.pid for member in present}
        elsewhere = [member for member in elsewhere if member.pid not in listening]
    members = [*(member for member in present if member.pid in wanted), *elsewhere]
    return Group(tuple(members), tuple(member for member in present if member.pid not in wanted))


def _gpus() -> int:
    try:
        return len(os.listdir(GPUS))
    except OSError:
        return 0


def large_shared(creator: Holdings, allocation: Allocation) -> bool | None:
    """Whether the creator's driver would refuse to share an allocation again after a restore: LARGE_SHARED.

    None: not known. Its devices were not counted, or it sees one of several, which was not measured.
    """
    if allocation.size < LARGE_SHARED or (creator.devices == 1 and _gpus() <= 1):
        return False
    return True if creator.devices > 1 else None


def size_text(size: int) -> str:
    """Bytes as people say them."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024 or size % 1024:
            return f"{size} {unit}"
        size //= 1024
    return f"{size} GiB"


def _allocation_json(allocation: Allocation) -> dict[str, object]:
    return {
        **{name: getattr(allocation, name) for name in ("size", "device", "handle_types", "multicast", "references")},
        "resource": allocation.resource.hex() if allocation.resource else None,
        "importers": [vars(importer) for importer in allocation.importers],
        "mappings": _mappings_json(allocation),
    }


def _mappings_json(item: Allocation | Import) -> list[dict[str, object]]:
    return [
        {
            **{name: getattr(mapping, name) for name in ("address", "size", "offset", "away")},
            "access": [vars(access) for access in mapping.access],
        }
        for mapping in item.mappings
    ]


def _import_json(item: Import, group: Group) -> dict[str, object]:
    creator = group.by_participant(item.participant)
    return {
        **{name: getattr(item, name) for name in ("foreign", "entangled", "references", "lost")},
        "participant": item.participant.hex() if item.participant else None,
        "resource": item.resource.hex() if item.resource else None,
        "creator_pid": creator.pid if creator else None,
        "mappings": _mappings_json(item),
    }


def _member_json(member: Member, group: Group) -> dict[str, object]:
    held = member.holdings
    return {
        "pid": member.pid,
        "tracked": member.tracked,
        "why": member.why,
        "endpoint": member.endpoint or None,
        "participant": held.participant.hex() if held else None,
        "phase": held.phase.word if held else None,
        "captures": held.captures if held else None,
        "contexts": held.contexts if held else None,
        "devices": held.devices if held else None,
        "allocations": [_allocation_json(item) for item in held.allocations] if held else [],
        "imports": [_import_json(item, group) for item in held.imports] if held else [],
        "reservations": [{"address": at, "size": size} for at, size in held.reservations] if held else [],
        "notes": {name: count for name, count in held.notes.items() if count} if held else {},
        "tickets": [
            {"fd": item.fd, "participant": item.participant.hex(), "resource": item.resource.hex()}
            for item in member.tickets
        ],
    }


def as_json(group: Group) -> dict[str, object]:
    """The document of schema cuinterpose.inventory/1."""
    return {"schema": "cuinterpose.inventory/1", "members": [_member_json(member, group) for member in group.members]}


def _member_lines(member: Member, group: Group) -> list[str]:
    held = member.holdings
    if not held:
        return [f"process {member.pid}: {member.why}"]
    total = sum(allocation.size for allocation in held.allocations)
    lines = [
        f"process {member.pid}: {held.phase.word}; {len(held.allocations)} allocations of its own ({size_text(total)}), "
        f"{len(held.imports)} imports, {len(held.reservations)} reservations"
    ]
    for allocation in held.allocations:
        if not allocation.resource:
            continue
        pids = sorted({importer.pid for importer in allocation.importers})
        by = "imported by " + ", ".join(map(str, pids)) if pids else "imported by nobody"
        ends = {True: "; a restore would end the sharing", None: "; a restore may end the sharing", False: ""}
        place = f"{size_text(allocation.size)} on device {allocation.device}"
        lines.append(f"  shares  {allocation.resource.hex()}  {place}, {by}{ends[large_shared(held, allocation)]}")
    for item in held.imports:
        creator = group.by_participant(item.participant)
        if item.foreign:
            source = "from the driver's own descriptor: foreign"
        else:
            source = f"of process {creator.pid}" if creator else "of a process that cannot be found here"
        where = ", ".join(f"{mapping.address:#x}+{size_text(mapping.size)}" for mapping in item.mappings) or "nowhere"
        lost = f"; lost: {item.lost}" if item.lost else ""
        name = item.resource.hex() if item.resource else "-" * 32
        lines.append(f"  imports {name}  {source}, mapped at {where}{lost}")
    for item_ticket in member.tickets:
        lines.append(f"  ticket  {item_ticket.resource.hex()}  descriptor {item_ticket.fd}")
    lines += [f"  note    {held.notes[name]} {words}" for name, words in NOTES.items() if held.notes.get(name)]
    return lines


def lines(group: Group) -> list[str]:
    """For people."""
    text = [line for member in group.members for line in _member_lines(member, group)]
    return text or ["no tracked process has an endpoint here"]
