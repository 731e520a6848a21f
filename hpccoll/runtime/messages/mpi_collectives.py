"""Collectives of the MPI library itself, the only executables that do not run a plan of hpccoll.

MPI matches blocking, non-blocking and persistent collectives only with their own kind (MPI 4.1, 6.12 and 6.13), so all
ranks must choose the same form. The choice of form therefore depends on nothing that may differ between ranks, such as
whether a buffer was used before or whether an asynchronous operation is still in flight.

Until the first asynchronous operation of a communicator, all ranks use the blocking form. From the first asynchronous
operation on, all ranks use the non-blocking form, tested in turn with other operations. Collectives in `PERSISTENT` use
the persistent form if the call was prepared (as by `all_reduce_init`), which all ranks do together. Plans in flight on
other communicators do not change the form, because only some ranks may have them. While plans are in flight, the
blocking form runs in a thread (`Progress.call`), and the calling thread advances the plans. Collectives on device
memory always use the blocking form.

Cost: a bound call is one C call, on buffer specifications that are made once, in a function that records the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakSet

from mpi4py import MPI

from hpccoll.errors import UnavailableError
from hpccoll.plan import Operation
from hpccoll.runtime.agreement import gather_or_raise, wait_for_ranks
from hpccoll.runtime.arrays import ArrayModule, BoundCall, FlatArray, run_all
from hpccoll.runtime.collective_call import CollectiveCall, bind_epilogue, bind_prologue, describe_call
from hpccoll.runtime.executable import ReplaceablePartial, raise_freed
from hpccoll.runtime.job import has_persistent_collectives
from hpccoll.runtime.messages.mpi_calls import (
    UserOps,
    find_own_block,
    get_method,
    has_same_semantics,
    order_arguments,
    specify_buffers,
    specify_counts,
)
from hpccoll.runtime.progress import NEVER, Progress, settle
from hpccoll.runtime.recorder.call_recorder import Begin, CallRecorder
from hpccoll.runtime.work import MpiTransfer, raise_explained

# Operations whose persistent form was no slower than the blocking form, for 8 bytes and 64 KiB on two ranks of a host.
# Open MPI's persistent Reduce of 64 KiB takes three times as long as the blocking one (bench/call_overhead.py).
PERSISTENT = {"MPICH": (Operation.BARRIER,), "Open MPI": (Operation.GATHER, Operation.SCATTER, Operation.ALL_TO_ALL)}
MOST_ELEMENTS = 2**31 - 1  # largest count before MPI 4


class MpiExecutable(ReplaceablePartial):
    """A collective of the MPI library, bound to buffers; to be freed before MPI is finalized.

    The function that records the call and calls MPI's function is replaced when the executable is freed or the first
    asynchronous operation begins.
    """

    plan = None
    live = True
    in_flight = False
    blocking: BoundCall  # blocking form beside plans in flight, called until the first asynchronous operation
    non_blocking: BoundCall  # non-blocking form (for host memory), called from the first asynchronous operation on
    request: MPI.Prequest | None = None
    memories: tuple[FlatArray, ...] = ()  # kept alive: buffer specifications hold only addresses

    @property
    def calls(self) -> tuple[BoundCall, ...]:
        """The calls to time one by one: only this executable, because MPI runs a collective in one call."""
        return (self,)

    def free(self) -> None:
        """Free the persistent request, if any; a later call raises UsageError."""
        self.abandon()
        self.memories = ()
        if self.request is not None:
            self.request.Free()
            self.request = None

    def abandon(self) -> None:
        """Refuse later runs and release nothing; for a forked child process, in which MPI cannot be used."""
        self.live = False
        self.blocking = self.non_blocking = raise_freed
        self.replace_function(raise_freed)


@dataclass(frozen=True, slots=True)
class _MpiCall:
    """A collective as mpi4py's method and arguments, the calls before and after it, and the memory it uses."""

    method: str
    arguments: tuple[Any, ...]
    prologue: tuple[BoundCall, ...]
    epilogue: tuple[BoundCall, ...]
    memories: tuple[FlatArray, ...]
    module: ArrayModule

    def surround(self, call: BoundCall) -> tuple[BoundCall, ...]:
        """Return the calls of the prologue, then `call`, then the calls of the epilogue."""
        return (*self.prologue, call, *self.epilogue)


class MpiCollectives:
    """The MPI library's collectives on `comm`, which is not duplicated; waits advance the operations in `progress`.

    `state` records the calls. `takes_device_memory` returns whether this MPI accepts device memory; it is called only
    for device buffers.
    """

    def __init__(
        self, comm: MPI.Intracomm, progress: Progress, state: CallRecorder, takes_device_memory: Callable[[], bool]
    ) -> None:
        self._comm, self._progress, self.state = comm, progress, state
        self._takes_device_memory = takes_device_memory
        self._works_on_device: bool | None = None  # whether all ranks take device memory; None if not agreed on yet
        self._persistent = PERSISTENT.get(MPI.get_vendor()[0], ()) if has_persistent_collectives() else ()
        self._has_large_counts = MPI.Get_version()[0] >= 4
        self.uses_non_blocking = self._expects_plans = False  # the form changes once, at the first asynchronous call
        self._bound: WeakSet[MpiExecutable] = WeakSet()
        self.ops = UserOps()
        progress.notify(self)

    def can_run(self, call: CollectiveCall, *, asynchronous: bool = False) -> bool:
        """Whether the library can run a call with the result that hpccoll promises; the same on every rank.

        `can_run` returns false for asynchronous calls on device memory, because Open MPI lacks non-blocking reductions
        of device memory. With a blocking call on device memory, `can_run` starts probe processes when first called, and
        waits for them and for the other ranks. Collective.
        """
        if not has_same_semantics(call.operation, call.dtype, call.reduction):
            return False
        has_limit = not self._has_large_counts and not call.is_uneven_exchange
        if has_limit and call.operation.message_bytes(call.count, 1, self._comm.size) > MOST_ELEMENTS:
            return False
        if not call.module.on_device:
            return True
        if call.operation.reduces and call.reduction.combine is not None:  # MPI would call it on device memory
            return False
        if self._works_on_device is None and not asynchronous:
            wait_for_ranks(self._comm, self._progress)
            self._works_on_device = all(gather_or_raise(self._comm, self._takes_device_memory, UnavailableError))
        return bool(self._works_on_device) and not asynchronous

    def bind(self, call: CollectiveCall, *, on_all_ranks: bool = False) -> MpiExecutable:
        """Return an executable that runs a collective any number of times. `can_run(call)` must be true.

        `on_all_ranks` states that all ranks bind this call now, in the same order; only then can the form be
        persistent.
        """
        mpi = self._translate(call)
        request, start, blocking = None, self._bind_non_blocking(mpi), self._bind_blocking(mpi)
        if on_all_ranks and call.operation in self._persistent and not mpi.module.on_device:
            wait_for_ranks(self._comm, self._progress)
            request = getattr(self._comm, f"{mpi.method}_init")(*mpi.arguments)
            start, blocking = partial(_start, request), _bind_start_and_wait(request)
        name, description = call.operation.value, describe_call(self.state, call, None)
        record = partial(self.state.surround, name, description, explain=partial(raise_explained, name))
        bound = MpiExecutable()
        bound.replace_function(record(mpi.surround(blocking)))
        bound.blocking = record(mpi.surround(partial(self._progress.call, blocking)))
        bound.non_blocking = bound.blocking
        if not mpi.module.on_device:
            bound.non_blocking = record(mpi.surround(partial(self._complete, start)))
        bound.request, bound.memories = request, mpi.memories
        self._set_form(bound)
        self._bound.add(bound)
        return bound

    def run(self, call: CollectiveCall) -> None:
        """Run a collective once and return when this rank's part is done; `can_run(call)` must be true."""
        mpi = self._translate(call)
        with self.state.record(self.bind_begin(call)):
            if self.uses_non_blocking and not mpi.module.on_device:
                run_all(mpi.surround(partial(self._complete, self._bind_non_blocking(mpi))))
            else:
                run_all(mpi.surround(partial(self._progress.call, self._bind_blocking(mpi))))

    def bind_begin(self, call: CollectiveCall) -> Begin:
        """Return a function that records the beginning of a blocking call of the library."""
        return self.state.bind(call.operation.value, describe_call(self.state, call, None))

    def call(self, begin: Begin, method: str, arguments: Sequence[Any]) -> None:
        """Call mpi4py's `method`, or its non-blocking form, on host memory; wait for its end.

        `begin` records the beginning of the call.
        """
        place = begin()
        try:
            if self.uses_non_blocking:
                self._complete(partial(self.start_request, method, arguments))
            elif self._progress.operations:
                self._progress.call(partial(getattr(self._comm, method), *arguments))
            else:
                getattr(self._comm, method)(*arguments)
        except BaseException:
            self.state.fail(place)
            raise
        self.state.end(place)

    def get_blocking_method(self, method: str) -> Callable[..., object] | None:
        """Return mpi4py's blocking `method`, or None if calls on this communicator use the non-blocking form."""
        return None if self.uses_non_blocking else getattr(self._comm, method)

    def start(self, call: CollectiveCall) -> MpiTransfer:
        """Start a collective and return at once; `can_run(call)` must be true."""
        self.use_non_blocking()
        mpi = self._translate(call)
        run_all(mpi.prologue)
        description = f"rank {self._comm.rank}: MPI's {call.operation.value}"
        return MpiTransfer(description, [self._bind_non_blocking(mpi)()], list(mpi.epilogue), keep=mpi.memories)

    def start_request(self, method: str, arguments: Sequence[Any]) -> MPI.Request:
        """Start the non-blocking form of mpi4py's `method` on host memory, and return its request."""
        request: MPI.Request = getattr(self._comm, f"I{method.lower()}")(*arguments)
        return request

    def use_non_blocking(self) -> None:
        """Use the non-blocking form from now on, also in bound calls, as asynchronous operations may be in flight."""
        if not self.uses_non_blocking:
            self.uses_non_blocking = True
            for bound in self._bound:
                self._set_form(bound)

    def expect_plans_in_flight(self) -> None:
        """Advance plans in flight during bound calls from now on, also plans of other communicators."""
        self._expects_plans = True
        for bound in self._bound:
            self._set_form(bound)

    def _set_form(self, bound: MpiExecutable) -> None:
        """Let a bound collective call the form that this communicator uses now."""
        if self.uses_non_blocking or (self._expects_plans and bound.request is not None):
            bound.replace_function(bound.non_blocking)
        elif self._expects_plans:
            bound.replace_function(bound.blocking)

    def _complete(self, start: Callable[[], MPI.Request]) -> None:
        """Start a request and block until it is complete; meanwhile advance the operations in flight."""
        request = start()
        try:
            if self._progress or self._progress.deadline != NEVER:
                self._progress.wait_until(request.Test)
            else:
                request.Wait()
        except BaseException:
            settle([request.Test])
            raise

    def _bind_blocking(self, mpi: _MpiCall) -> BoundCall:
        """Return a call that runs the collective in its blocking form; runs nothing itself."""
        return mpi.module.bind_device(partial(getattr(self._comm, mpi.method), *mpi.arguments))

    def _bind_non_blocking(self, mpi: _MpiCall) -> Callable[[], MPI.Request]:
        """Return a call that starts the collective and returns its MPI request; starts nothing itself."""
        return partial(getattr(self._comm, f"I{mpi.method.lower()}"), *mpi.arguments)

    def _translate(self, call: CollectiveCall) -> _MpiCall:
        """Return a call as mpi4py's method and arguments; allocates memory if MPI cannot use the user's memory."""
        call, prologue, in_place = bind_prologue(call, self._comm.rank)
        epilogue = bind_epilogue(call, self._comm.size)
        module, source, result = call.module, call.source, call.result
        if call.operation is Operation.REDUCE_SCATTER and in_place and source and result:
            # `block` receives it, because MPI's reduce_scatter in place would write it to the front of the input.
            block = module.empty(result.count, call.dtype)
            epilogue = (module.bind_copy(result.flat, block), *epilogue)
            result, in_place = replace(result, flat=block, address=module.get_address(block)), False
        is_apart = call.is_uneven_exchange and not call.library  # the library copies the block if it is asked for
        own = find_own_block(call.count, call.dtype.itemsize, self._comm.rank) if is_apart else None
        if own is not None and source and result:
            prologue = (*prologue, module.bind_copy(result.flat[own[1]], source.flat[own[0]]))
        if module.on_device:
            prologue = (*prologue, module.synchronize)
        counts = specify_counts(call.operation, call.count, self._comm.rank, skips_own=own is not None)
        specified = specify_buffers(call, source, result, counts)
        op = self.ops.get(call.dtype, call.reduction) if call.operation.reduces else None
        arguments = order_arguments(call.operation, *specified, op, call.root, in_place, call.count)
        memories = tuple(buffer.flat for buffer in (source, result) if buffer)
        return _MpiCall(get_method(call.operation, call.count), arguments, prologue, epilogue, memories, module)


def _bind_start_and_wait(request: MPI.Prequest) -> BoundCall:
    """Return a call that starts a persistent request and waits for it."""
    start, wait = request.Start, request.Wait

    def start_and_wait() -> None:
        """Start the request, then block until it is complete."""
        start()
        wait()

    return start_and_wait


def _start(request: MPI.Prequest) -> MPI.Request:
    """Start a persistent request and return it."""
    request.Start()
    return request
