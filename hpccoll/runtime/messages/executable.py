"""Running a program: bound once to persistent requests and called many times, or stepped through without binding.

Both ways take the same steps from one generator. An `Executable` has collected them into a flat tuple of ready
callables, so that a call does nothing but run them. A `Run` posts each message as it comes to it: buffers seen for
the first time and asynchronous operations take that way, and nothing is compiled for them.

Device memory: kernels and copies are queued on the current stream, which MPI knows nothing of. Before any message is
started while work is queued, the stream is synchronised: a send must find its data written, and a receive must not
land in memory that a queued kernel still reads. Where MPI cannot take device memory, messages go through pinned host
memory, which is reused as soon as no message is in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from mpi4py import MPI

from hpccoll.errors import UsageError
from hpccoll.runtime.arrays import ArrayModule, BoundCall, FlatArray
from hpccoll.runtime.lowering import Copy, MemoryRange, Program, Receive, Reduce, Send, Wait


@dataclass(frozen=True, slots=True)
class Setting:
    """What a program runs on: four memories (in the order of `MemoryKind`), how to combine, and the wire."""

    memories: tuple[FlatArray, FlatArray, FlatArray, FlatArray]
    module: ArrayModule
    function: str
    itemsize: int
    comm: MPI.Intracomm
    tag: int
    staged: bool  # device memory goes through pinned host memory

    def view(self, place: MemoryRange) -> FlatArray:
        """The elements of a place."""
        return self.memories[place.memory][place.start : place.stop]


class Posting(Protocol):
    """How a message is started: prepared for later, or at once."""

    def receive(self, message: Any, peer: int) -> tuple[MPI.Request, BoundCall | None]:
        """Return the request and what starts it; None when it has started."""

    def send(self, message: Any, peer: int) -> tuple[MPI.Request, BoundCall | None]:
        """Return the request and what starts it; None when it has started."""


@dataclass(frozen=True, slots=True)
class Persistent:
    """Requests made once and started in every call."""

    comm: MPI.Intracomm
    tag: int

    def receive(self, message: Any, peer: int) -> tuple[MPI.Request, BoundCall | None]:
        request = self.comm.Recv_init([message, MPI.BYTE], peer, self.tag)
        return request, request.Start

    def send(self, message: Any, peer: int) -> tuple[MPI.Request, BoundCall | None]:
        request = self.comm.Send_init([message, MPI.BYTE], peer, self.tag)
        return request, request.Start


@dataclass(frozen=True, slots=True)
class Immediate:
    """Messages that start as soon as they are posted."""

    comm: MPI.Intracomm
    tag: int

    def receive(self, message: Any, peer: int) -> tuple[MPI.Request, BoundCall | None]:
        return self.comm.Irecv([message, MPI.BYTE], peer, self.tag), None

    def send(self, message: Any, peer: int) -> tuple[MPI.Request, BoundCall | None]:
        return self.comm.Isend([message, MPI.BYTE], peer, self.tag), None


class _Pinned:
    """Pinned host memory for the messages in flight; from its beginning again whenever none is."""

    def __init__(self, module: ArrayModule) -> None:
        self._module, self._memory, self._used, self._flying = module, module.empty_pinned(0), 0, 0

    def take(self, nbytes: int) -> Any:
        if self._used + nbytes > len(self._memory):
            # Messages in flight keep the old memory alive.
            self._memory, self._used = self._module.empty_pinned(max(nbytes, 2 * len(self._memory))), 0
        self._flying += 1
        self._used += nbytes
        return self._memory[self._used - nbytes : self._used]

    def release(self) -> None:
        self._flying -= 1
        if not self._flying:
            self._used = 0


def steps(program: Program, setting: Setting, posting: Posting) -> Iterator[tuple[BoundCall, MPI.Request | None]]:
    """Yield what to call, in order; with a wait comes its request, so that it can be tested instead."""
    module, pinned = setting.module, _Pinned(setting.module) if setting.staged else None
    queued = module.on_device  # the user's own kernels may still be writing the input
    flying: dict[int, tuple[MPI.Request, Any, FlatArray | None]] = {}
    for index, step in enumerate(program.instructions):
        match step:
            case Receive(peer, place) | Send(peer, place):
                view, sends = setting.view(place), isinstance(step, Send)
                host = pinned.take(place.count * setting.itemsize) if pinned else None
                if sends and host is not None and place.count:
                    yield module.bind_copy_to_host(host, view), None
                    queued = module.on_device
                if queued:
                    yield module.synchronize, None
                    queued = False
                message = module.as_bytes(view) if host is None else host
                request, start = (posting.send if sends else posting.receive)(message, peer)
                flying[index] = request, host, None if sends or host is None else view
                if start is not None:
                    yield start, None
            case Wait(start_index):
                request, host, view = flying.pop(start_index)
                yield request.Wait, request
                if view is not None and len(view):
                    yield module.bind_copy_from_host(view, host), None
                    queued = module.on_device
                if pinned:
                    pinned.release()
            case Reduce(left, right, out):
                yield module.bind_reduce(setting.function, *map(setting.view, (left, right, out))), None
                queued = module.on_device
            case Copy(source, out):
                yield module.bind_copy(setting.view(out), setting.view(source)), None
                queued = module.on_device


class Executable:
    """A program bound to buffers: call it as often as you like; free it before MPI ends.

    `others` are the operations under way on the communicator, and `progress` carries them on: while there are any,
    waiting for a message here must not let them stand still, since another rank may wait for them first.
    """

    __slots__ = ("_memories", "_others", "_progress", "_waits", "live", "plan", "steps")

    def __init__(
        self,
        program: Program,
        setting: Setting,
        before: tuple[BoundCall, ...],
        after: tuple[BoundCall, ...],
        others: Sized,
        progress: BoundCall,
    ) -> None:
        bound = list(steps(program, setting, Persistent(setting.comm, setting.tag)))
        self.steps = (*before, *(step for step, _ in bound), *after)
        self._waits = {i: request for i, (_, request) in enumerate(bound, len(before)) if request is not None}
        self._memories: tuple[FlatArray, ...] = setting.memories  # kept alive: requests know only addresses
        self._others, self._progress = others, progress
        self.plan = program.plan
        self.live = True

    def __call__(self) -> None:
        """Run once; blocks until this rank's part is done."""
        if self._others:
            self._run_beside()
            return
        for step in self.steps:
            step()

    def _run_beside(self) -> None:
        for i, step in enumerate(self.steps):
            request = self._waits.get(i)
            if request is None:
                step()
            else:
                while not request.Test():
                    self._progress()

    def free(self) -> None:
        """Give the requests back to MPI; the executable cannot run after."""
        self.steps, self.live, self._memories = (freed,), False, ()
        while self._waits:
            self._waits.popitem()[1].Free()


def freed() -> NoReturn:
    """Say that an executable was freed."""
    raise UsageError("this prepared operation was freed, or its communicator closed; prepare it again")


class Run:
    """A program under way without binding; `advance` goes as far as it can."""

    __slots__ = ("_after", "_pending", "_steps", "done")

    def __init__(
        self, program: Program, setting: Setting, before: tuple[BoundCall, ...], after: tuple[BoundCall, ...]
    ) -> None:
        for step in before:
            step()
        self._steps = steps(program, setting, Immediate(setting.comm, setting.tag))
        self._pending: Callable[[], Any] | None = None
        self._after = after
        self.done = False

    def advance(self) -> bool:
        """Go on until a message is waited for that has not come; return whether all is done. Never blocks."""
        while not self.done:
            if self._pending is not None:
                if not self._pending():
                    return False
                self._pending = None
            following = next(self._steps, None)
            if following is None:
                self._finish()
            elif following[1] is not None:
                self._pending = following[1].Test
            else:
                following[0]()
        return True

    def finish(self) -> None:
        """Go on to the end, blocking in each wait."""
        if self._pending is not None:
            while not self._pending():
                pass
            self._pending = None
        for step, _ in self._steps:
            step()
        if not self.done:
            self._finish()

    def _finish(self) -> None:
        for step in self._after:
            step()
        self.done = True
