"""Plans of messages on given buffers in device memory: run once, or bound to persistent requests and run many times.

Bound and unbound runs take the same calls from one generator, `message_calls`. A bound executable has collected the
calls into a tuple, so a run only makes them. First calls on new arrays and asynchronous operations are not bound: a
`MessageRun` posts each message when the run reaches it.

Kernels and copies on device memory are queued on the current stream, which MPI does not know. If work is queued, the
stream is synchronised before a message starts, because queued kernels may still write the data to send or read the
memory to receive into. Where MPI cannot take device memory, messages pass through pinned host memory, which is reused
as soon as no message is in flight. A run ends with a synchronisation, so its result is complete on every stream, and
its pinned and scratch memory is free for other runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from mpi4py import MPI

from hpccoll.runtime.address_space import AddressSpace
from hpccoll.runtime.arrays import ArrayModule, BoundCall, FlatArray, ScratchPool, run_all
from hpccoll.runtime.collective_call import CollectiveCall, describe_call
from hpccoll.runtime.executable import raise_freed
from hpccoll.runtime.lowering import Copy, Program, Receive, Reduce, Send, Wait
from hpccoll.runtime.plan_executable import Context, PlanExecutable
from hpccoll.runtime.progress import InFlight
from hpccoll.runtime.recorder.call_recorder import NO_MARKS
from hpccoll.runtime.work import raise_explained
from hpccoll.selection import Selection

BLOCKING_TAG: Final = 1  # blocking operations end one before the next begins, so they share a tag


class PinnedMemory:
    """Pinned host memory for the messages in flight; reused from its start when no message is in flight."""

    def __init__(self, module: ArrayModule) -> None:
        self._module, self._used, self._messages = module, 0, 0
        self._memories = [module.empty_pinned(0)]  # the latest is in use; queued copies may still read the others

    def take(self, nbytes: int) -> Any:
        """Return `nbytes` bytes for a message; allocates new memory if too little is left."""
        size = len(self._memories[-1])
        if self._used + nbytes > size:
            self._memories.append(self._module.empty_pinned(max(nbytes, 2 * size)))
            self._used = 0
        self._messages += 1
        self._used += nbytes
        return self._memories[-1][self._used - nbytes : self._used]

    def release(self) -> None:
        """Record that one message is complete."""
        self._messages -= 1
        if not self._messages:
            self._used = 0


def message_calls(
    program: Program, space: AddressSpace, comm: MPI.Intracomm, tag: int, *, persistent: bool, pinned: bool
) -> Iterator[tuple[int, BoundCall, MPI.Request | None]]:
    """Yield (instruction number, call, request) for each call; the request is None unless the call waits for it.

    Messages are posted, or sent by persistent requests that the calls start; if `pinned`, through pinned host memory.
    """
    module, staging = space.module, PinnedMemory(space.module) if pinned else None
    send, receive = (comm.Send_init, comm.Recv_init) if persistent else (comm.Isend, comm.Irecv)
    queued = module.on_device  # the user's own kernels may still be writing the input
    in_flight: dict[int, tuple[MPI.Request, Any, FlatArray | None]] = {}
    for index, step in enumerate(program.instructions):
        match step:
            case Receive(peer, place) | Send(peer, place):
                view, sends = space.own_view(place), isinstance(step, Send)
                host = staging.take(place.count * space.itemsize) if staging else None
                if copies := sends and host is not None and place.count > 0:
                    yield index, module.bind_copy_to_host(host, view), None
                if queued or copies:
                    yield index, module.synchronize, None
                    queued = False
                message = module.as_bytes(view) if host is None else host
                request = (send if sends else receive)([message, MPI.BYTE], peer, tag)
                in_flight[index] = request, host, None if sends or host is None else view
                if persistent:
                    yield index, request.Start, None  # type: ignore[attr-defined]
            case Wait(start):
                request, host, view = in_flight.pop(start)
                yield index, request.Wait, request
                if view is not None and len(view):
                    yield index, module.bind_copy_from_host(view, host), None
                    queued = module.on_device
                if staging:
                    staging.release()
            case Reduce() | Copy():
                yield index, bind_local(step, space), None
                queued = module.on_device
    if queued:  # queued work must be done before its pinned and scratch memory is used again or given back
        yield len(program.instructions), module.synchronize, None


def add_round_marks(
    calls: Iterator[tuple[int, BoundCall, MPI.Request | None]], marks: Mapping[int, BoundCall], end: int
) -> Iterator[tuple[BoundCall, MPI.Request | None]]:
    """Yield (call, request) for `calls` of `message_calls`, with each mark before the calls of its instruction.

    `marks` is the result of `CallRecorder.bind_rounds`; `end` is the number of instructions, and the last mark's key.
    """
    passed = 0
    for index, call, request in calls:
        for mark in range(passed, index + 1) if marks else ():
            if mark in marks:
                yield marks[mark], None
        passed = index + 1
        yield call, request
    if passed <= end in marks:
        yield marks[end], None


def bind_local(step: Reduce | Copy, space: AddressSpace) -> BoundCall:
    """Return the call that carries out a reduce or copy on this rank's memory."""
    if isinstance(step, Copy):
        return space.module.bind_copy(space.own_view(step.out), space.own_view(step.source))
    return space.module.bind_reduce(space.reduce_function, *map(space.own_view, (step.left, step.right, step.out)))


class MessageExecutable(PlanExecutable):
    """A plan of messages on given buffers; all messages have the same MPI tag. See `Executable` and `PlanExecutable`.

    It can be called after `bind`.
    """

    __slots__ = ("_calls", "_function", "_program", "_requests", "_space", "_tag")

    def __init__(
        self,
        context: Context,
        call: CollectiveCall,
        selection: Selection,
        scratch: ScratchPool | None = None,
        tag: int = BLOCKING_TAG,
    ) -> None:
        module = call.module
        if call.operation.reduces:
            module.require_reduction(call.reduction.function, call.dtype)
        super().__init__(context, call, selection, scratch)
        if module.on_device and self._after:
            self._after = (*self._after, module.synchronize)
        self._program = program = self._lower()
        self._space = AddressSpace(self._call, program, self._take_scratch(program.work + program.landing))
        self._tag = tag
        self._calls: tuple[BoundCall, ...] | None = None
        self._function: BoundCall = raise_freed
        self._requests: dict[int, MPI.Request] = {}

    @property
    def calls(self) -> tuple[BoundCall, ...]:
        """The calls of a bound run; empty before `bind`."""
        return self._calls or ()

    def bind(self) -> None:
        """Create persistent requests without starting them, and collect the calls that every later run makes."""
        bound = list(self._message_calls(persistent=True, round_marks=self._bind_rounds()))
        self._calls = (*self._before, *(call for call, _ in bound), *self._after)
        first = len(self._before)
        self._requests = {at: request for at, (_, request) in enumerate(bound, first) if request is not None}
        self._replace_calls(*self._calls)
        self._context.progress.notify(self)

    def expect_plans_in_flight(self) -> None:
        """Advance plans in flight during every wait from now on."""
        if self.live:
            self._replace_calls(self._run_beside_others)

    def run(self) -> None:
        """Make the calls of a bound run."""
        self._function()

    def run_once(self) -> None:
        """Run once without persistent requests."""
        with self._state.record(self._begin):
            run, progress = self._start(self._bind_rounds()), self._context.progress
            if progress:
                progress.wait_until(run.advance)
                run.raise_error()
            run.complete()

    def start(self) -> MessageRun:
        """Do the local work before the plan, and return the run, which posts its messages as it advances."""
        return self._start(NO_MARKS)

    def _bind_rounds(self) -> Mapping[int, BoundCall]:
        """Return functions that record the completed rounds, by number of the instruction that each one precedes."""
        return self._state.bind_rounds(self._program.round_starts, len(self._program.instructions))

    def _start(self, round_marks: Mapping[int, BoundCall]) -> MessageRun:
        """Return a run in flight, as `start` does; `round_marks` are those of `message_calls`."""
        self._require_live()
        for call in self._before:
            call()
        calls = self._message_calls(persistent=False, round_marks=round_marks)
        return MessageRun(calls, self._after, self._call.module)

    def free(self) -> None:
        """Free the executable and its persistent requests; a later run raises UsageError."""
        if self.live:
            del self._space
        super().free()
        self._function = raise_freed
        self._calls = ()
        while self._requests:
            self._requests.popitem()[1].Free()

    def abandon(self) -> None:
        """Refuse later runs and release nothing; for a forked child process, in which MPI cannot be used."""
        super().abandon()
        self._function = raise_freed

    def _message_calls(
        self, *, persistent: bool, round_marks: Mapping[int, BoundCall] = NO_MARKS
    ) -> Iterator[tuple[BoundCall, MPI.Request | None]]:
        """Return the generator `message_calls` for this program and memory."""
        context, module = self._context, self._call.module
        pinned = module.on_device and not context.takes_device_memory()
        program, comm = self._program, context.comm
        calls = message_calls(program, self._space, comm, self._tag, persistent=persistent, pinned=pinned)
        return add_round_marks(calls, round_marks, len(program.instructions))

    def _replace_calls(self, *calls: BoundCall) -> None:
        """Let later runs make these calls, and the flight recorder record these runs."""
        name, description = self._call.operation.value, describe_call(self._state, self._call, self._algorithm)
        self._function = self._state.surround(name, description, calls, partial(raise_explained, name))

    def _run_beside_others(self) -> None:
        """Run once; operations in flight advance during every wait for a message of this run."""
        progress = self._context.progress
        if not progress.operations:
            run_all(self.calls)
            return
        for at, call in enumerate(self.calls):
            request = self._requests.get(at)
            if request is None:
                call()
            else:
                progress.wait_until(request.Test)


class MessageRun(InFlight):
    """One run of a plan of messages in flight, without persistent requests; ends with the calls in `after`.

    `module` is the array module of the memory. Each part of a run is ordered after the previous part, even if the user
    has changed the CUDA stream in between.
    """

    __slots__ = ("_after", "_calls", "_module", "_stream", "_test")

    def __init__(
        self, calls: Iterator[tuple[BoundCall, MPI.Request | None]], after: tuple[BoundCall, ...], module: ArrayModule
    ) -> None:
        super().__init__()
        self._calls, self._after = calls, after
        self._module, self._stream = module, module.join_stream(None)
        self._test: Callable[[], Any] | None = None

    def _advance(self) -> bool:
        """Make calls until one would wait for a message; return whether the run is complete. Never blocks."""
        if self._module.on_device:
            self._stream = self._module.join_stream(self._stream)
        while not self.done:
            if self._test is not None:
                if not self._test():
                    return False
                self._test = None
            call, request = next(self._calls, (None, None))
            if call is None:
                self._finish()
            elif request is not None:
                self._test = request.Test
            else:
                call()
        return True

    def complete(self) -> None:
        """Make the remaining calls, blocking in each wait."""
        if self._test is not None:
            while not self._test():
                pass
            self._test = None
        for call, _ in self._calls:
            call()
        if not self.done:
            self._finish()

    def _finish(self) -> None:
        """Do the local work after the plan, such as the division of `avg`."""
        for call in self._after:
            call()
        self.done = True
