"""Plans of messages on given buffers in device memory: run once, or bound to persistent requests and run many times.

Bound and unbound runs take the same calls from one generator, `message_calls`. A bound executable keeps its calls in a
tuple, so a run only makes these calls. Calls on new arrays and asynchronous operations are not bound: they post each
message when the run reaches it.

Kernels and copies on device memory are queued on the current stream, which MPI does not know. If work is queued, the
stream is synchronised before a message starts, because queued kernels may still write the data to send or read the
memory to receive into. Where MPI cannot take device memory, messages pass through pinned host memory, which is reused
as soon as no message is in flight. A run ends with a synchronisation, so its result is complete on every stream, and
its pinned and scratch memory is free for other runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from mpi4py import MPI

from hpccoll.arrays import ArrayModule, BoundCall, FlatArray, Scratch, run_all
from hpccoll.lowering import Copy, Program, Receive, Reduce, Send, Wait
from hpccoll.runtime.address_space import AddressSpace
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.plan_executable import BLOCKING_TAG, PlanContext, PlanExecutable
from hpccoll.runtime.progress import InFlight
from hpccoll.runtime.work import explain_mpi_error

# The number of an instruction, a call that carries out a part of it, and the request for which the call waits or None.
MessageStep: TypeAlias = tuple[int, BoundCall, MPI.Request | None]


class PinnedMemory:
    """Pinned host memory for the messages in flight; reused from its start when no message is in flight."""

    def __init__(self, module: ArrayModule) -> None:
        self._module, self._used, self._messages = module, 0, 0
        self._memories = [module.empty_pinned(0)]  # the latest is in use; queued copies may still read the others

    def take(self, nbytes: int) -> Any:
        """Return an array of `nbytes` bytes of pinned memory for a message; allocate more if too little is left."""
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
) -> Iterator[MessageStep]:
    """Yield the calls of a program as tuples: the instruction's number, a function, a request to wait for or None.

    If `persistent`, the calls can be repeated; else each must be made at once. If `pinned`, messages use pinned memory.
    """
    module, staging = space.module, PinnedMemory(space.module) if pinned else None
    send, receive = (comm.Send_init, comm.Recv_init) if persistent else (comm.Isend, comm.Irecv)
    queued = module.on_device  # the user's own kernels may still be writing the input
    in_flight: dict[int, tuple[MPI.Request, Any, FlatArray | None]] = {}
    for index, step in enumerate(program.instructions):
        match step:
            case Receive(peer, place) | Send(peer, place):
                view, sends = space.view(place), isinstance(step, Send)
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


def bind_local(step: Reduce | Copy, space: AddressSpace) -> BoundCall:
    """Return a function that carries out a reduce or copy on this rank's memory."""
    if isinstance(step, Copy):
        return space.module.bind_copy(space.view(step.out), space.view(step.source))
    return space.module.bind_reduce(space.reduce_function, *map(space.view, (step.left, step.right, step.out)))


class MessageExecutable(PlanExecutable):
    """A plan of messages on given buffers, with one MPI tag; runs use persistent requests after `bind`."""

    __slots__ = ("_bound", "_program", "_space", "_tag")

    def __init__(
        self,
        context: PlanContext,
        call: CollectiveCall,
        scratch: Scratch | None = None,
        tag: int = BLOCKING_TAG,
    ) -> None:
        module = call.module
        if call.operation.reduces:
            module.require_reduction(call.reduction.function, call.dtype)
        super().__init__(context, call, scratch)
        if module.on_device and self._after:
            self._after = (*self._after, module.synchronize)
        self._program = program = self._find_program()
        self._space = AddressSpace(self._call, program, self._take_scratch(program.work + program.landing))
        self._tag = tag
        self._bound: tuple[MessageStep, ...] = ()

    @property
    def calls(self) -> tuple[BoundCall, ...]:
        """The functions that a run calls after `bind`, for timing one by one."""
        return (*self._before, *(call for _, call, _ in self._bound), *self._after)

    def bind(self) -> None:
        """Create persistent requests without starting them, and collect the calls that every later run makes."""
        self._bound = tuple(self._message_calls(persistent=True))

    def run(self) -> None:
        """Run the collective once, and record it; operations in flight advance during every wait for a message."""
        self._require_live()
        try:
            with self._state.record(self._begin):
                run_all(self._before)
                self._run_steps(self._bound or self._message_calls(persistent=False))
                run_all(self._after)
        except MPI.Exception as error:
            raise explain_mpi_error(error, self._call.operation.value) from None

    def _run_steps(self, steps: Iterable[MessageStep]) -> None:
        """Make the calls of a run, and record how many of the plan's rounds are complete."""
        progress, starts, begun = self._context.progress, self._program.round_starts, 0
        for index, call, request in steps:
            while begun < len(starts) > 1 and starts[begun] <= index:
                self._state.record_round(begun, len(starts))
                begun += 1
            if request is not None and progress.operations:
                progress.wait_until(request.Test)
            else:
                call()
        self._state.record_round(0, 0)

    def start(self) -> MessageRun:
        """Do the local work before the plan, and return the run, which posts its messages as it advances."""
        self._require_live()
        run_all(self._before)
        return MessageRun(self._message_calls(persistent=False), self._after, self._call.module)

    def free(self) -> None:
        """Free the executable and its persistent requests; a later run raises UsageError."""
        if self.live:
            del self._space
        super().free()
        steps, self._bound = self._bound, ()
        for _, _, request in steps:
            if request is not None:
                request.Free()

    def _message_calls(self, *, persistent: bool) -> Iterator[MessageStep]:
        """Return the generator `message_calls` for this program and memory."""
        context, module = self._context, self._call.module
        pinned = module.on_device and not context.takes_device_memory()
        return message_calls(self._program, self._space, context.comm, self._tag, persistent=persistent, pinned=pinned)


class MessageRun(InFlight):
    """A run in flight of a plan of messages, without persistent requests.

    Each part of a run is ordered after the previous part, even if the user has changed the CUDA stream in between.

    Args:
        steps: the calls of the run, from `message_calls`.
        after: functions to call at the end of the run.
        module: the array module of the memory.
    """

    __slots__ = ("_after", "_module", "_steps", "_stream", "_test")

    def __init__(self, steps: Iterator[MessageStep], after: tuple[BoundCall, ...], module: ArrayModule) -> None:
        super().__init__()
        self._steps, self._after = steps, after
        self._module, self._stream = module, module.join_stream(None)
        self._test: Callable[[], Any] | None = None

    def _advance(self) -> bool:
        """Make calls until one would wait for a message; return whether the run is complete. Never blocks."""
        if self._module.on_device:
            self._stream = self._module.join_stream(self._stream)
        while self._test is None or self._test():
            _, call, request = next(self._steps, (0, None, None))
            self._test = None if request is None else request.Test
            if call is None:
                run_all(self._after)
                return True
            if request is None:
                call()
        return False
