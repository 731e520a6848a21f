"""Plans of messages in host memory, which the native extension runs on the addresses that each call passes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from hpccoll.native import MemoryTable, MessageCall, Program
from hpccoll.runtime.arrays import BoundCall, ScratchPool, run_all
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.instructions import make_locate, make_rows
from hpccoll.runtime.messages.executable import MessageExecutable
from hpccoll.runtime.messages.mpi_functions import get_handle, get_mpi_functions
from hpccoll.runtime.native_plan import NativeExecutable, make_program
from hpccoll.runtime.plain_arrays import get_address
from hpccoll.runtime.plan_executable import BLOCKING_TAG, Context, PlanKind
from hpccoll.runtime.progress import InFlight
from hpccoll.runtime.queued_run import NativeRun
from hpccoll.selection import Selection


class NativeMessageExecutable(NativeExecutable):
    """A plan of messages on given host buffers; asynchronous runs have the tag `tag`."""

    __slots__ = ("_call_by_call", "_selection", "_tag")

    def __init__(self, context: Context, call: CollectiveCall, selection: Selection, tag: int = BLOCKING_TAG) -> None:
        super().__init__(context, call, selection)
        self._tag, self._selection, self._call_by_call = tag, selection, cast("MessageExecutable | None", None)

    @property
    def calls(self) -> tuple[BoundCall, ...]:
        """The calls of the plan in Python, to time one by one; they send the same messages in the same order."""
        if self._call_by_call is None:
            self._require_live()
            self._call_by_call = MessageExecutable(self._context, self._call, self._selection)
            self._call_by_call.bind()
        return self._call_by_call.calls

    def _find_native(self) -> MessageCall:
        """Return the native call of this kind."""
        return get_message_call(self._kind)

    def make_start(self) -> Callable[[int, int, object], InFlight]:
        """Return a function that does the local work before the plan and starts a run on the addresses of two buffers.

        `NativeExecutable.make_start` describes the function.
        """
        native = make_message_call(self._kind, ScratchPool())

        def start(source: int, result: int, keep: object) -> NativeRun:
            """Start a run at these addresses; its `advance` posts the messages."""
            run_all(self._before)
            return NativeRun(native.start(source, result, self._tag, keep))

        return start

    def free(self) -> None:
        """Free the executable; a later run raises UsageError."""
        super().free()
        if self._call_by_call is not None:
            self._call_by_call.free()


def get_message_call(kind: PlanKind) -> MessageCall:
    """Return the native call that runs plans of messages for calls of a kind; made once per kind."""
    return kind.context.get_native(kind.make_key("messages"), lambda: make_message_call(kind, kind.context.scratch))


def make_message_call(kind: PlanKind, pool: ScratchPool) -> MessageCall:
    """Return a native call for plans of a kind, with scratch memory from a pool; a kind's program is made only once."""
    context, lowered, progress = kind.context, kind.lower(), kind.context.progress
    scratch = pool.take(kind.call.module, kind.call.dtype, lowered.work + lowered.landing)
    return MessageCall(
        get_mpi_functions(),
        context.get_native(kind.make_key("program of messages"), partial(_make_program, kind)),
        MemoryTable([0, 0, get_address(scratch)], [], scratch),
        get_handle(context.comm),
        BLOCKING_TAG,
        *kind.get_entry(),
        progress.oversubscribed,
        progress.attend,
        progress.operations,
        progress.transfers,
    )


def _make_program(kind: PlanKind) -> Program:
    """Return the native program of a kind; its memories are input, output and scratch."""
    program, itemsize = kind.lower(), kind.call.dtype.itemsize
    rows, requests = make_rows(
        program.instructions, make_locate(program.work, itemsize), itemsize, program.round_starts
    )
    scratch = (program.work + program.landing) * itemsize
    return make_program(kind, rows, scratch, divides=True, requests=requests)
