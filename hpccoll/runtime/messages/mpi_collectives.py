"""Collectives of the MPI library itself, the only executables that do not run a plan of hpccoll.

MPI matches blocking and non-blocking collectives only with their own kind (MPI 4.1, 6.12), so all ranks must choose the
same form. The choice of form therefore depends on nothing that may differ between ranks, such as whether a buffer was
used before or whether an asynchronous operation is still in flight.

Until the first asynchronous operation of a communicator, all ranks use the blocking form. From the first asynchronous
operation on, all ranks use the non-blocking form, tested in turn with other operations. Plans in flight on other
communicators do not change the form, because only some ranks may have them. While plans are in flight, the blocking
form runs in a thread (`Progress.call`), and the calling thread advances the plans. Collectives on device memory always
use the blocking form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mpi4py import MPI

from hpccoll.errors import UnavailableError
from hpccoll.plan import Operation
from hpccoll.runtime.agreement import gather_or_raise, wait_for_ranks
from hpccoll.runtime.arrays import ArrayModule, BoundCall, FlatArray, run_all
from hpccoll.runtime.backoff import settle
from hpccoll.runtime.collective_call import CollectiveCall, bind_epilogue, bind_prologue, describe_call
from hpccoll.runtime.executable import Executable
from hpccoll.runtime.messages.entry_check import EntryCheck
from hpccoll.runtime.messages.mpi_calls import (
    UserOps,
    explain_refusal,
    find_own_block,
    get_method,
    order_arguments,
    specify_buffers,
    specify_counts,
)
from hpccoll.runtime.node_memory.node import NodeMemory
from hpccoll.runtime.progress import NEVER, Progress
from hpccoll.runtime.recorder.call_recorder import Begin, CallRecorder
from hpccoll.runtime.work import MpiTransfer

MOST_ELEMENTS = 2**31 - 1  # largest count before MPI 4


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


class LibraryExecutable(Executable):
    """A collective of the MPI library on given buffers."""

    __slots__ = ("_run",)

    def __init__(self, library: MpiCollectives, call: CollectiveCall) -> None:
        super().__init__()
        self._run: BoundCall = library.bind_run(call)

    def run(self) -> None:
        """Run the collective once, and return when this rank's part is done."""
        self._require_live()
        self._run()

    def free(self) -> None:
        """Release the references to the buffers; a later run raises UsageError."""
        super().free()
        self._run = bool


class MpiCollectives:
    """The MPI library's collectives on `comm`, which is not duplicated; waits advance the operations in `progress`.

    `state` records the calls, and the ranks of `node`, if given, compare them. `takes_device_memory` returns whether
    this MPI accepts device memory; it is called only for device buffers.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        progress: Progress,
        state: CallRecorder,
        takes_device_memory: Callable[[], bool],
        node: NodeMemory | None = None,
    ) -> None:
        self.comm, self.progress, self.state = comm, progress, state
        self._takes_device_memory = takes_device_memory
        self._works_on_device: bool | None = None  # whether all ranks take device memory; None if not agreed on yet
        self._has_large_counts = MPI.Get_version()[0] >= 4
        self.uses_non_blocking = False  # the form changes once, at the first asynchronous call
        self.ops, self.check = UserOps(), EntryCheck(node, comm.size)

    def can_run(self, call: CollectiveCall, *, asynchronous: bool = False) -> bool:
        """Whether the library can run a call with the result that hpccoll promises; see `explain_refusal`."""
        return not self.explain_refusal(call, asynchronous=asynchronous)

    def explain_refusal(self, call: CollectiveCall, *, asynchronous: bool = False) -> str:
        """Return why the library cannot run a call with the result that hpccoll promises; the same on every rank.

        The reason is empty if the library can. Asynchronous calls on device memory are refused, because Open MPI lacks
        non-blocking reductions of device memory. A blocking call on device memory starts probe processes when first
        asked about, and waits for them and for the other ranks. Collective.
        """
        if self.state.survives:  # seen with Open MPI 5.0.11: MPI_Allgather without an error, and with wrong data
            return "MPI's collectives may return wrong data without an error when a rank dies"
        reason = explain_refusal(call.operation, call.dtype, call.reduction)
        if reason:
            return reason
        has_limit = not self._has_large_counts and not call.is_uneven_exchange
        if has_limit and call.operation.message_bytes(call.count, 1, self.comm.size) > MOST_ELEMENTS:
            return f"MPI before version 4 counts at most {MOST_ELEMENTS} elements"
        if not call.module.on_device:
            return ""
        if call.operation.reduces and call.reduction.combine is not None:
            return "MPI would call the reduction's function on device memory"
        if self._works_on_device is None and not asynchronous:
            wait_for_ranks(self.comm, self.progress)
            self._works_on_device = all(gather_or_raise(self.comm, self._takes_device_memory, UnavailableError))
        if not self._works_on_device:
            return "it does not take device memory here"
        return "it has no asynchronous collectives on device memory" if asynchronous else ""

    def bind(self, call: CollectiveCall) -> LibraryExecutable:
        """Return an executable that runs a collective any number of times; `can_run(call)` must be true."""
        return LibraryExecutable(self, call)

    def run(self, call: CollectiveCall) -> None:
        """Run a collective once and return when this rank's part is done; `can_run(call)` must be true."""
        self.bind_run(call)()

    def bind_run(self, call: CollectiveCall) -> BoundCall:
        """Return a function that runs a collective; `can_run(call)` must be true."""
        mpi, check, begin = self._translate(call), self._bind_check(call), self.bind_begin(call)
        blocking, start = self._bind_blocking(mpi), self._bind_non_blocking(mpi)
        in_blocking_form = (*check, *mpi.surround(partial(self.progress.call, blocking)))
        in_other_form = mpi.surround(partial(self._complete, start))

        def run() -> None:
            """Record the call, and run the collective."""
            with self.state.record(begin):
                is_blocking = mpi.module.on_device or not self.uses_non_blocking
                run_all(in_blocking_form if is_blocking else in_other_form)

        return run

    def bind_begin(self, call: CollectiveCall) -> Begin:
        """Return a function that records the beginning of a blocking call of the library."""
        return self.state.bind(call.operation.value, describe_call(self.state, call, None))

    def start(self, call: CollectiveCall) -> MpiTransfer:
        """Start a collective and return at once; `can_run(call)` must be true."""
        self.use_non_blocking()
        mpi = self._translate(call)
        run_all(mpi.prologue)
        description = f"rank {self.comm.rank}: MPI's {call.operation.value}"
        return MpiTransfer(description, [self._bind_non_blocking(mpi)()], list(mpi.epilogue), keep=mpi.memories)

    def get_non_blocking_method(self, method: str) -> Callable[..., MPI.Request]:
        """Return the non-blocking form of mpi4py's `method`, which starts the collective and returns its request."""
        start: Callable[..., MPI.Request] = getattr(self.comm, f"I{method.lower()}")
        return start

    def use_non_blocking(self) -> None:
        """Use the non-blocking form from now on, as asynchronous operations may be in flight."""
        self.uses_non_blocking = True

    def _complete(self, start: Callable[..., MPI.Request], *arguments: Any) -> None:
        """Start a request and block until it is complete; meanwhile advance the operations in flight."""
        request: MPI.Request | None = None
        try:
            request = start(*arguments)
            if self.progress.operations or self.progress.deadline != NEVER:
                self.progress.wait_until(request.Test)
            else:
                request.Wait()
        except BaseException:
            # If `request` is None, a signal handler may have raised after MPI had started the operation.
            settle([self.progress.poll_mpi if request is None else request.Test])
            raise

    def _bind_check(self, call: CollectiveCall) -> tuple[BoundCall, ...]:
        """Return the calls that compare the ranks' calls before the blocking form."""
        if call.module.on_device or call.is_uneven_exchange:
            return ()
        dtype = call.dtype
        return self.check.bind(call.operation, call.root, call.count, dtype.name, dtype.itemsize, call.reduction.name)

    def _bind_blocking(self, mpi: _MpiCall) -> BoundCall:
        """Return a call that runs the collective in its blocking form; runs nothing itself."""
        return mpi.module.bind_device(partial(getattr(self.comm, mpi.method), *mpi.arguments))

    def _bind_non_blocking(self, mpi: _MpiCall) -> Callable[[], MPI.Request]:
        """Return a call that starts the collective and returns its MPI request; starts nothing itself."""
        return partial(self.get_non_blocking_method(mpi.method), *mpi.arguments)

    def _translate(self, call: CollectiveCall) -> _MpiCall:
        """Return a call as mpi4py's method and arguments; allocates memory if MPI cannot use the user's memory."""
        call, prologue, in_place = bind_prologue(call, self.comm.rank)
        epilogue = bind_epilogue(call, self.comm.size)
        module, source, result = call.module, call.source, call.result
        if call.operation is Operation.REDUCE_SCATTER and in_place and source and result:
            # `block` receives it, because MPI's reduce_scatter in place would write it to the front of the input.
            block = module.empty(result.count, call.dtype)
            epilogue = (module.bind_copy(result.flat, block), *epilogue)
            result, in_place = replace(result, flat=block, address=module.get_address(block)), False
        is_apart = call.is_uneven_exchange and not call.library  # the library copies the block if it is asked for
        own = find_own_block(call.count, call.dtype.itemsize, self.comm.rank) if is_apart else None
        if own is not None and source and result:
            prologue = (*prologue, module.bind_copy(result.flat[own[1]], source.flat[own[0]]))
        if module.on_device:
            prologue = (*prologue, module.synchronize)
        counts = specify_counts(call.operation, call.count, self.comm.rank, skips_own=own is not None)
        specified = specify_buffers(call, source, result, counts)
        op = self.ops.get(call.dtype, call.reduction) if call.operation.reduces else None
        arguments = order_arguments(call.operation, *specified, op, call.root, in_place, call.count)
        memories = tuple(buffer.flat for buffer in (source, result) if buffer)
        return _MpiCall(get_method(call.operation, call.count), arguments, prologue, epilogue, memories, module)
