"""Collectives of the MPI library itself, the only executables that do not run a plan of hpccoll.

MPI matches blocking and non-blocking collectives only with their own kind (MPI 4.1, 6.12), so all ranks must choose the
same form. The choice between the blocking and the non-blocking form depends on nothing that may differ between ranks,
such as whether a buffer was used before or whether an asynchronous operation is still in flight.

Until the first asynchronous operation of a communicator, all ranks use the blocking form. From the first asynchronous
operation on, all ranks use the non-blocking form, and test its request in turn with the requests of other operations.
Plans in flight on other communicators do not change the form, because only some ranks may have them. While plans are in
flight, the blocking form runs in a thread (`Progress.call`), and the calling thread advances the plans. Collectives on
device memory always use the blocking form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from mpi4py import MPI

from hpccoll.arrays import BoundCall, run_all
from hpccoll.errors import UnavailableError
from hpccoll.plan import Operation
from hpccoll.runtime.agreement import gather_or_raise, wait_for_ranks
from hpccoll.runtime.collective_call import CollectiveCall, bind_epilogue, bind_prologue
from hpccoll.runtime.executable import Executable
from hpccoll.runtime.messages.library_call import MOST_ELEMENTS, LibraryCall
from hpccoll.runtime.messages.mpi_calls import UserOps, explain_refusal
from hpccoll.runtime.node_memory.node import NodeMemory
from hpccoll.runtime.progress import Progress
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.work import MpiTransfer

# A call with the buffers that MPI gets, its `LibraryCall`, addresses of input and output, functions before and after.
TranslatedCall: TypeAlias = tuple[
    CollectiveCall, LibraryCall, tuple[int, int], tuple[BoundCall, ...], tuple[BoundCall, ...]
]


class LibraryExecutable(Executable):
    """A collective of the MPI library on given buffers."""

    __slots__ = ("_run",)

    def __init__(self, run: BoundCall) -> None:
        super().__init__()
        self._run = run

    def run(self) -> None:
        """Run the collective once, and return when this rank's part is done."""
        if not self.live:
            self._require_live()
        self._run()

    def free(self) -> None:
        """Release the references to the buffers; a later run raises UsageError."""
        super().free()
        self._run = bool


class MpiCollectives:
    """The MPI library's collectives on `comm`, which is not duplicated; waits advance the operations in `progress`.

    `state` records the calls, and if `node` is given, its ranks check that they make the same calls.
    `takes_device_memory` returns whether this MPI accepts device memory; it is called only for device buffers.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        progress: Progress,
        state: CallRecorder,
        takes_device_memory: Callable[[], bool],
        node: NodeMemory | None = None,
    ) -> None:
        self.comm, self.progress, self.state, self.node = comm, progress, state, node
        self._takes_device_memory = takes_device_memory
        self._works_on_device: bool | None = None  # whether all ranks take device memory; None if not agreed on yet
        self._has_large_counts = MPI.Get_version()[0] >= 4
        self.uses_non_blocking = False  # the form changes once, at the first asynchronous call
        self.ops = UserOps()

    def can_run(self, call: CollectiveCall, *, asynchronous: bool = False) -> bool:
        """Whether the MPI library can run a call with the result that hpccoll promises; see `explain_refusal`."""
        return not self.explain_refusal(call, asynchronous=asynchronous)

    def explain_refusal(self, call: CollectiveCall, *, asynchronous: bool = False) -> str:
        """Return why the MPI library cannot run a call with the result that hpccoll promises; the same on every rank.

        An empty string means that the library can run the call. Asynchronous calls on device memory are refused,
        because Open MPI lacks non-blocking reductions of device memory. When this method is first asked about a
        blocking call on device memory, it starts processes that test the MPI library, and waits for them and for the
        other ranks. Collective.
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
        """Return an executable that runs a collective any number of times, and keeps its buffers alive.

        `can_run(call)` must be true.
        """
        return LibraryExecutable(partial(self._run, self._translate(call)))

    def run(self, call: CollectiveCall) -> None:
        """Run a collective once and return when this rank's part is done; `can_run(call)` must be true."""
        self._run(self._translate(call))

    def _run(self, translated: TranslatedCall) -> None:
        """Run a collective and the local work before and after it."""
        call, kind, addresses, before, after = translated
        for step in before:
            step()
        is_nonblocking = self.uses_non_blocking and not call.module.on_device
        is_recorded = is_nonblocking or not self.progress.operations
        native = kind.get_native(is_nonblocking=is_nonblocking, is_recorded=is_recorded)
        function = call.module.bind_device(partial(native, *addresses))
        if is_recorded:
            function()
        else:  # in another thread, whose end must not change what this thread records after an exception
            with self.state.record(partial(self.state.begin, kind.name, kind.description)):
                self.progress.call(function)
        for step in after:
            step()

    def start(self, call: CollectiveCall) -> MpiTransfer:
        """Start a collective and return the operation in flight; `can_run(call)` must be true."""
        self.use_non_blocking()
        call, kind, addresses, before, after = self._translate(call)
        run_all(before)
        return kind.start_at(*addresses, after, (call,))

    def use_non_blocking(self) -> None:
        """Use the non-blocking form from now on, as asynchronous operations may be in flight."""
        self.uses_non_blocking = True

    def _translate(self, call: CollectiveCall) -> TranslatedCall:
        """Return the `TranslatedCall` that carries out a call; allocate memory if MPI cannot use the user's memory."""
        call, before = bind_prologue(call)
        after, module, source, result = bind_epilogue(call, self.comm.size), call.module, call.source, call.result
        if call.operation is Operation.REDUCE_SCATTER and call.in_place and source and result:
            # `block` receives the result, which MPI's reduce_scatter in place would write to the front of the input.
            block = module.empty(result.count, call.dtype)
            after = (module.bind_copy(result.flat, block), *after)
            result = replace(result, flat=block, address=module.get_address(block))
            call = replace(call, result=result, in_place=False)
        if module.on_device:
            before = (*before, module.synchronize)
        return call, LibraryCall(self, call), call.addresses, before, after
