"""Runs an unmodified program whose driver calls a Session decides and performs: nvproxy's filter without gVisor.

The kernel stops the program at open(2) and ioctl(2) of a device. A thread of ours takes a duplicate of the file, lets the Session
decide on one copy of the bytes, calls the driver with that copy, and answers with the result: the program's own call never runs.
The exceptions run in the program (`nvproxy_model.live.in_place`). It is a compatibility tool and a test bench, not a sandbox.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from nvproxy_model import task_memory as memory
from nvproxy_model.errors import MemoryFault, NvproxyError
from nvproxy_model.live import questions
from nvproxy_model.live.files import OpenFile, OpenFiles
from nvproxy_model.live.filter import ROOTS
from nvproxy_model.live.guardian import Tree
from nvproxy_model.live.host import Driver
from nvproxy_model.live.in_place import IN_PLACE, Place, find, looks_at_descriptors
from nvproxy_model.live.nodes import DeviceNodes, Node, Nodes
from nvproxy_model.live.program import Call, EndedError, InPlaceError, Program
from nvproxy_model.live.report import Report
from nvproxy_model.live.tally import Tally
from nvproxy_model.live.tasks import Tasks
from nvproxy_model.live.turns import Turns
from nvproxy_model.notification import FOREIGN, Request
from nvproxy_model.policy.policy import Policy
from nvproxy_model.rules import Table
from nvproxy_model.session.objects import Graph, Object, State
from nvproxy_model.session.ports import Buffer, File, Host, Result
from nvproxy_model.session.session import Session

__all__ = ["Broker", "Recorder"]

NV_ESC_RM_ALLOC_MEMORY, NV_ESC_RM_FREE, NV_ESC_RM_CONTROL, NV_ESC_RM_ALLOC = 0x27, 0x29, 0x2A, 0x2B
NV_ERR_INVALID_CLASS, NV_ERR_NOT_SUPPORTED = 0x22, 0x56

_OBSERVED: Final = Place("", None, "calls are only observed")
_OTHER_CREDENTIALS: Final = Place("", None, "the caller has other credentials than the broker")
_ROOTS: Final = (0x0, 0x1, 0x41)
_HANDLES: Final = struct.Struct("<IIII")
"""hRoot, hObjectParent, hObjectNew, hClass: how NVOS64_PARAMETERS and NVOS02_PARAMETERS begin."""
_STATUS: Final[dict[int, tuple[Table, int, int]]] = {
    NV_ESC_RM_CONTROL: ("control", 8, 28),
    NV_ESC_RM_ALLOC: ("alloc", 12, 40),
}
"""Escape -> table, offset of the number inside, offset of the status, in the form that a host is given."""
_THREADS: Final = 512


Read = Callable[[int, int], bytes | None]
"""(address, size) -> bytes of the caller's; None where it has none."""


class Recorder(Protocol):
    """Writes a trace of the run. Called from several threads. One that raises is not asked again."""

    def opened(self, request: Request, path: str, flags: int, error: int | None, /) -> None: ...

    def before(self, request: Request, path: str, read: Read, /) -> Any:
        """A call as it is made. What this answers is handed to one of the others, once."""
        ...

    def after(self, token: Any, read: Read, ret: int, error: int, /) -> None: ...

    def in_place(self, token: Any, /) -> None:
        """The call runs in the program: how it ends is not seen."""
        ...

    def learned(self, token: Any, client: int, hclass: int, /) -> None:
        """The call made this client, as the driver says."""
        ...


class _Objects(Graph):
    """The tree's graph. It learns of clients that were made in place when they are named, and counts what is not restorable."""

    def __init__(self, named: Callable[[int, bool], bool], lost: Counter[int]) -> None:
        super().__init__()
        self._named = named
        self._lost = lost

    def has_client(self, client: int) -> bool:
        return self._named(client, super().has_client(client))

    def add(self, client: int, handle: int, hclass: int, parent: int, *more: Any, **options: Any) -> Object | None:
        obj = super().add(client, handle, hclass, parent, *more, **options)
        if obj is not None and not obj.restorable:
            self._lost[hclass] += 1
        return obj


class Broker:
    """A program, its tree, and what they have of the driver. One `run` each.

    ``host`` performs calls (the machine's driver), from several threads at once; ``nodes`` knows device nodes; ``in_place`` is what
    runs in the program. ``observe``: everything does, and refusals are only reported. ``expose`` names nodes to show that nvproxy
    hides. ``harmless`` is (table, number), or ("open", path), of refusals that programs are known to live with; at the first other
    one ``fail_fast`` ends the tree. ``refused`` is called with each of those once, ``say`` with what went wrong here, ``closed``
    with the host's number of each file that has ended.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        host: Host | None = None,
        nodes: Nodes | None = None,
        in_place: tuple[Place, ...] = IN_PLACE,
        observe: bool = False,
        expose: Collection[str] = (),
        harmless: Collection[tuple[str, Any]] = (),
        fail_fast: bool = False,
        verify: bool = False,
        recorder: Recorder | None = None,
        closed: Callable[[int], None] | None = None,
        say: Callable[[str], None] = lambda line: None,
        refused: Callable[[str], None] | None = None,
    ) -> None:
        self.policy = policy
        self.observe = observe
        self.tally = Tally(policy, harmless)
        self.failed_fast: str | None = None
        """The first refusal that is not known as harmless, where ``fail_fast`` ended the tree for it."""
        self._host: Host = Driver() if host is None else host
        self._nodes: Nodes = DeviceNodes() if nodes is None else nodes
        self._in_place = in_place
        self._expose = frozenset(expose)
        self._fail_fast = fail_fast
        self._verify = verify
        self._recorder = recorder
        self._closed = closed
        self._say = say
        self._refused = refused
        program = Program(self)
        self.session = Session(policy, program, program, self)
        self.graph = _Objects(self._named, self.tally.lost)
        self.session.graph = self.graph
        self.graph_lock = threading.Lock()
        """Held around deciding and recording, never around the driver or the program's memory."""
        self._here = threading.local()
        self._pending: dict[int, list[tuple[int, int, int, int]]] = {}
        """Client -> (thread, handle, class, parent) of objects that were let through and are not known to exist."""
        self._asked: list[tuple[int, int]] = []
        """(client, handle) that --verify has asked about and that stood for something then."""
        self._flying = 0
        self._turns = Turns(self._serve, _THREADS)

    # The run

    def run(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Report:
        """Run a program until the last process of its tree has ended. Call it before the process has other threads.

        Raises NotifyError where the kernel, a container or a sandbox forbids it, StartError for a program that cannot be started.
        """
        return self.answer(Tree(command, environment))

    def answer(self, tree: Tree) -> Report:
        """As `run`, for a program that is held, or that was started and has been waiting for answers since."""
        self.tree = tree
        self.listener = tree.listener
        with self.listener:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if soft != hard:  # one number for each file of the tree; the program was started with its own limit
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            self.tasks = Tasks()
            self.files = OpenFiles(self._nodes)
            self._turns.start()
            tree.start()
            try:
                status = tree.wait()
            finally:
                self._turns.join()
                self._sweep()
                self.tasks.close()
                self.files.close()
        seconds = time.monotonic() - tree.began
        return Report(self.tally, list(tree.command), status, self.observe, seconds=seconds)

    def _serve(self) -> None:
        while self._turns.take():
            ours = True
            while ours:
                request = self._receive()
                if request is None:
                    self._turns.end()
                    return
                turn = self._turns.begin(request.pid)
                try:
                    self._handle(request)
                except Exception as error:
                    # A program must not hang for a mistake of ours.
                    self._failed(error)
                    with contextlib.suppress(OSError):
                        self.listener.answer(request, error=errno.EIO)
                ours = self._turns.finish(turn)

    def _receive(self) -> Request | None:
        try:
            return self.listener.receive()
        except OSError as error:
            # Without it every call of the tree would wait for ever.
            self._failed(error)
            self.tree.kill()
            return None

    def _failed(self, error: Exception) -> None:
        text = str(error) if isinstance(error, OSError | NvproxyError) else f"{type(error).__name__}: {error}"
        if not self.tally.failures[text]:
            self._say(f"a call could not be answered: {text}")
        self.tally.failures[text] += 1

    def _handle(self, request: Request) -> None:
        name, args = request.name, request.args
        if name == "ioctl":
            self._ioctl(request)
        elif name == "open":
            self._open(request, -100, args[0], args[1])
        elif name in ("openat", "openat2"):
            self._open(request, _int(args[0]), args[1], args[2] if name == "openat" else 0)
        elif name in ROOTS:
            self.tasks.forget_roots()
            self.listener.proceed(request)
        else:
            # int 0x80, x32 and io_uring could reach a device past us; gVisor has none of them by default.
            self.tally.count("other ABI" if name in (FOREIGN, "io_uring_setup") else name)
            self.listener.answer(request, error=errno.ENOSYS)

    # open(2)

    def _open(self, request: Request, directory: int, address: int, flags: int) -> None:
        node = None
        self.tally.count("opens")
        # What cannot be read or does not exist is the kernel's to answer.
        with contextlib.suppress(OSError, MemoryFault, ValueError):
            path = memory.text(request.pid, address)
            node = self._nodes(self.tasks.stat(request.pid, directory, path))
        if node is None or not self.listener.valid(request):
            self.listener.proceed(request)
            return
        self.tally.count("opens of devices")
        hidden = not self._exposed(node)
        self._record("opened", request, node.path, flags & 0xFFFFFFFF, errno.ENOENT if hidden else None)
        if not hidden:
            self.listener.proceed(request)
            return
        if self.tally.hidden(node.path) and self._ended_at(f"open of {node.path}: ENOENT"):
            return
        if self.observe:
            self.listener.proceed(request)
        else:
            self.listener.answer(request, error=errno.ENOENT)

    def _exposed(self, node: Node) -> bool:
        if node.path in self._expose or node.kind in ("frontend", "uvm"):
            return True
        return node.path.startswith("/dev/nvidia-caps-imex-channels/")

    # ioctl(2)

    @property
    def call(self) -> Call:
        """The call that the asking thread answers."""
        call: Call = self._here.call
        return call

    def _ioctl(self, request: Request) -> None:
        began = time.perf_counter_ns()
        call = self._here.call = Call(request)
        try:
            result = self._judge(call)
        except EndedError:
            self.tally.count("ended")
            return
        except PermissionError:
            self.tally.count("unseen")
            result = None
        finally:
            # Before the answer: when the program goes on, none of its files has a duplicate here. What is closed may be the last
            # reference to a driver's file, and slow; no lock is held meanwhile.
            for file, taken in call.taken:
                if file is not None:
                    self.files.release(file)
                os.close(taken)
        if call.performed:
            self.tally.spent(call.driver_ns, time.perf_counter_ns() - began - call.driver_ns)
        if result is None or self.observe:
            self.listener.proceed(request)
        else:
            self.listener.answer(request, 0 if result.errno else result.ret, result.errno)

    def _judge(self, call: Call) -> Result | None:
        """What the program gets back; None for a call that runs in it."""
        request = call.request
        fd, number, address = _int(request.args[0]), request.args[1] & 0xFFFFFFFF, request.args[2]
        file = self.file_of(fd)
        if not isinstance(file, OpenFile) or file.kind not in ("frontend", "uvm", "open-only"):
            self.tally.count("not judged" if isinstance(file, OpenFile) and file.node is not None else "not ours")
            return None
        call.file = file
        others = self.tasks.others.get(request.pid)
        if others is not None:
            self.tally.others.add(others)
        token = None
        if self._recorder is not None and file.node is not None:
            token = self._record("before", request, file.node.path, self._reader(request))
        try:
            with self.graph_lock:
                self._flying += 1
                try:
                    if file.fresh:
                        # Perhaps it took the place of one that has ended.
                        file.fresh = False
                        self._sweep()
                    result = self.session.ioctl(fd, number, address)
                finally:
                    self._flying -= 1
        except InPlaceError as through:
            if not self._let_through(call, through, token) and token is not None:
                self._record("in_place", token)
            return None
        for made in result.close:
            os.close(made)
        if result.decision is not None and not result.decision.allowed:
            self.tally.count("refused")
        if self.tally.call(result.decision) and result.decision is not None and self._ended_at(result.decision.reason):
            raise EndedError
        if token is not None:
            self._record("after", token, self._reader(request), result.ret, result.errno)
        if self._verify and call.performed and number & 0xFF == NV_ESC_RM_FREE:
            self._ask_all(call)
        return result

    def _ended_at(self, text: str) -> bool:
        """Whether the tree ends at this refusal. The call then gets no answer, so the program does not go on from it."""
        if self._refused is not None:
            self._refused(text)
        if not self._fail_fast:
            return False
        if self.failed_fast is None:
            self.failed_fast = text
        self.tree.kill()
        return True

    def _record(self, what: str, *arguments: Any) -> Any:
        """A recorder that fails is let go, once, and the program goes on."""
        recorder = self._recorder
        if recorder is None:
            return None
        try:
            return getattr(recorder, what)(*arguments)
        except Exception as error:  # whatever it is, the program waits for our answer
            self._recorder = None
            why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            self._failed(NvproxyError(f"the trace ends here: {why}"))
            return None

    def _reader(self, request: Request) -> Read:
        def read(address: int, size: int) -> bytes | None:
            try:
                return memory.read(request.pid, address, size)
            except (OSError, MemoryFault, ValueError):
                return None

        return read

    def file_of(self, fd: int) -> File | None:
        """The open file behind a descriptor of the caller's, to be used until the call is over."""
        call = self.call
        if fd not in call.found:
            call.found[fd] = self._take(call, fd)
        return call.found[fd]

    def _take(self, call: Call, fd: int) -> File | None:
        try:
            taken = self.tasks.take(call.request.pid, fd)
        except OSError as error:
            if error.errno == errno.EBADF:
                return None
            if error.errno == errno.ESRCH:
                raise EndedError from None
            raise
        call.taken.append((None, taken))
        file = self.files.find(call.request.pid, fd, taken)
        if file is None:
            return File("other", taken)
        call.taken[-1] = (file, taken)
        return file

    def _sweep(self) -> None:
        """Files that have ended take their clients with them."""
        for file in self.files.gone():
            self.session.munmap(file)
            for token in filter(None, file.clients):
                self._record("in_place", token)
            if self._closed is not None:
                self._closed(file.host_fd)

    # Host, as the session sees it

    def ioctl(self, host_fd: int, request: int, arg: Buffer | None, /) -> int:
        """The driver's answer, or out of the session's hands where the call runs in the program. The graph's lock is held."""
        call = self.call
        assert call.file is not None
        place = _OBSERVED if self.observe else find(self._in_place, call.file.kind, request, arg)
        if place is None and call.request.pid in self.tasks.others:
            place = _OTHER_CREDENTIALS
        if place is not None:
            raise InPlaceError(place, request, arg)
        if looks_at_descriptors(request, arg):
            self._take_gpus(call)
        error = self._driver(call, host_fd, request, arg)
        call.performed = True
        self.tally.count("performed")
        self._note_answer(request, arg, error)
        return error

    def _take_gpus(self, call: Call) -> None:
        """Have what the caller has open of each GPU's node, for as long as the call lasts."""
        seen = set()
        for fd, status in self.tasks.descriptors(call.request.pid):
            node = self._nodes(status)
            if node is not None and node.kind == "frontend" and node.path != "/dev/nvidiactl" and node.path not in seen:
                with contextlib.suppress(OSError):
                    call.taken.append((None, self.tasks.take(call.request.pid, fd)))
                    seen.add(node.path)

    def _driver(self, call: Call, host_fd: int, request: int, arg: Buffer | None) -> int:
        self.graph_lock.release()
        try:
            if not self.listener.valid(call.request):
                raise EndedError
            began = time.perf_counter_ns()
            try:
                return self._host.ioctl(host_fd, request, arg)
            finally:
                call.driver_ns += time.perf_counter_ns() - began
        finally:
            self.graph_lock.acquire()

    def _note_answer(self, request: int, arg: Buffer | None, error: int) -> None:
        places = _STATUS.get(request & 0xFF)
        if error or arg is None or places is None:
            return
        table, number, status = places
        if len(arg.data) >= status + 4:
            answer = int.from_bytes(arg.data[status : status + 4], "little")
            if answer in (NV_ERR_INVALID_CLASS, NV_ERR_NOT_SUPPORTED):
                self.tally.driver_refused(table, int.from_bytes(arg.data[number : number + 4], "little"), answer)

    # What was let through, and what the driver says of it

    def _let_through(self, call: Call, through: InPlaceError, token: Any) -> bool:
        """Count it, and remember what it may make; whether its record waits until that is known."""
        arg, nr = through.arg, through.request & 0xFF
        assert call.file is not None
        table: Table = "frontend"
        number = nr
        if call.file.kind == "uvm":
            table, number = "uvm", through.request
        elif arg is not None and nr in _STATUS:
            table, at, _ = _STATUS[nr]
            number = int.from_bytes(arg.data[at : at + 4], "little")
        self.tally.place(table, number, through.place)
        if (
            self.observe
            or arg is None
            or ((table, number) != ("frontend", NV_ESC_RM_ALLOC_MEMORY) and table != "alloc")
        ):
            return False
        client, parent, handle, hclass = _HANDLES.unpack_from(arg.data)
        with self.graph_lock:
            if table == "alloc" and hclass in _ROOTS:
                call.file.clients.append(token)
                return True
            if handle:
                self._pending.setdefault(client, []).append((call.request.pid, handle, hclass, parent))
        return False

    def _named(self, client: int, known: bool) -> bool:
        """Whether a client that a call names is one. The driver is asked, on the call's file, about what nobody saw being made."""
        if self.observe:
            return True
        call = self.call
        assert call.file is not None
        if not known:
            if not call.file.clients:
                return False
            answer = self._ask(call, client, client)
            if answer is None or answer.hclass not in _ROOTS:
                return False
            if self.graph.get(client, client) is None:
                token = call.file.clients.pop(0)
                if token is not None:
                    self._record("learned", token, client, answer.hclass)
                self.graph.add_client(client, answer.hclass, call.file)
        self._settle(call, client)
        return True

    def _ask(self, call: Call, client: int, handle: int) -> questions.Answer | None:
        file = call.file
        assert file is not None
        return questions.ask(lambda request, arg: self._driver(call, file.host_fd, request, arg), client, handle)

    def _settle(self, call: Call, client: int) -> None:
        """Objects of the client that this thread allocated in place: they exist by now, or failed."""
        waiting = self._pending.get(client)
        root = self.graph.get(client, client)
        if not waiting or root is None or root.owner is not call.file:
            return
        mine = [entry for entry in waiting if entry[0] == call.request.pid]
        self._pending[client] = [entry for entry in waiting if entry[0] != call.request.pid]
        for _, handle, hclass, parent in mine:
            answer = self._ask(call, client, handle)
            if answer is not None:
                self.graph.add(client, handle, hclass, answer.parent or parent, restorable=False)

    # --verify

    def _ask_all(self, call: Call) -> None:
        """After a free, while nothing else is under way: the driver has this file's clients as the graph has them."""
        with self.graph_lock:
            if self._flying:
                return
            self._flying += 1
            try:
                for client, handle in self._known_of(call.file):
                    answer = self._ask(call, client, handle)
                    self.tally.questions += 1
                    difference = self._difference(client, handle, answer)
                    if difference is not None:
                        self.tally.findings.append(f"{client:#x}:{handle:#x}: {difference}")
            finally:
                self._flying -= 1

    def _known_of(self, file: OpenFile | None) -> list[tuple[int, int]]:
        """The handles of the file's clients that stand for something, or did when the driver was last asked."""
        clients = {obj.client for obj in self.graph if obj.client == obj.handle and obj.owner is file}
        now = [(obj.client, obj.handle) for obj in self.graph if obj.client in clients]
        now += [key for key in self.graph.invalidated() if key[0] in clients]
        before = [key for key in self._asked if key[0] in clients and key not in set(now)]
        self._asked = [key for key in self._asked if key[0] not in clients] + now
        return now + before

    def _difference(self, client: int, handle: int, answer: questions.Answer | None) -> str | None:
        """What the driver says otherwise than the graph, as it is by now."""
        obj, state = self.graph.get(client, handle), self.graph.state(client, handle)
        if state is State.FREE:
            return None if answer is None else f"freed, and class {answer.hclass:#x} in the driver"
        if answer is None:
            return f"{state.value}, and the driver has no such handle"
        if obj is not None and obj.client != obj.handle and answer.parent != obj.parent:
            return f"its parent is {obj.parent:#x}, and {answer.parent:#x} in the driver"
        if obj is not None and answer.hclass != obj.hclass:
            return f"its class is {obj.hclass:#x}, and {answer.hclass:#x} in the driver"
        return None


def _int(value: int) -> int:
    """A C int in a register."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
