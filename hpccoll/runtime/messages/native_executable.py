"""Plans of messages in host memory, which the native extension runs on the addresses that each call passes."""

from __future__ import annotations

from functools import partial
from typing import Final, cast

import numpy as np

from hpccoll.native import MemoryTable, MessageCall, MessageRun, Program
from hpccoll.runtime.arrays import BoundCall, ScratchPool
from hpccoll.runtime.arrays.host_reducers import make_reducer
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.instructions import (
    RESULT,
    SCRATCH,
    SOURCE,
    TILE_BYTES,
    as_words,
    divide_row,
    make_rows,
)
from hpccoll.runtime.lowering import MemoryKind, MemoryRange
from hpccoll.runtime.messages.executable import BLOCKING_TAG, MessageExecutable
from hpccoll.runtime.messages.mpi_functions import get_handle, get_mpi_functions
from hpccoll.runtime.plain_arrays import get_address
from hpccoll.runtime.plan_executable import Context, PlanExecutable, PlanKind
from hpccoll.runtime.progress import InFlight
from hpccoll.selection import Selection

_NUMBERS: Final = (SOURCE, RESULT, SCRATCH, SCRATCH)  # the numbers of memories, in the order of MemoryKind


class NativeMessageExecutable(PlanExecutable):
    """A plan of messages on given host buffers; see `Executable` and `PlanExecutable`."""

    __slots__ = ("_addresses", "_call_by_call", "_selection", "_tag")

    def __init__(self, context: Context, call: CollectiveCall, selection: Selection, tag: int = BLOCKING_TAG) -> None:
        super().__init__(context, call, selection, None)
        self._after, self._tag = (), tag  # the program divides
        self._selection, self._call_by_call = selection, cast("MessageExecutable | None", None)
        source, result = (buffer.address if buffer else 0 for buffer in (self._call.source, self._call.result))
        self._addresses = source, result

    @property
    def calls(self) -> tuple[BoundCall, ...]:
        """The calls of the plan in Python, to time one by one; they send the same messages in the same order."""
        if self._call_by_call is None:
            self._require_live()
            self._call_by_call = MessageExecutable(self._context, self._call, self._selection)
            self._call_by_call.bind()
        return self._call_by_call.calls

    def run(self) -> None:
        """The function that runs the collective once on this executable's buffers."""
        self._require_live()
        for step in self._before:
            step()
        get_message_call(self._kind)(*self._addresses)

    def start(self) -> NativeMessageRun:
        """Do the local work before the plan, and return the run in flight, whose `advance` posts its messages."""
        self._require_live()
        for step in self._before:
            step()
        native = make_message_call(self._kind, ScratchPool())
        return NativeMessageRun(native.start(*self._addresses, self._tag, self._call))

    def get_native(self) -> MessageCall | None:
        """Return the native call, which runs on any addresses; None if there is local work before the plan."""
        return None if self._before else get_message_call(self._kind)

    def free(self) -> None:
        """Free the executable; a later run raises UsageError."""
        super().free()
        if self._call_by_call is not None:
            self._call_by_call.free()


def get_message_call(kind: PlanKind) -> MessageCall:
    """Return the native call that runs plans of messages for calls of a kind; made once per kind."""
    return kind.context.get_native(kind.make_key("messages"), lambda: make_message_call(kind, kind.context.scratch))


def make_message_call(kind: PlanKind, pool: ScratchPool) -> MessageCall:
    """Return a native call of a kind with scratch memory from a pool; the program of a kind is made once.

    Raises:
        ReductionError: the array module does not know the reduction for this dtype.
    """
    context, call = kind.context, kind.call
    if call.operation.reduces:
        call.module.require_reduction(call.reduction.function, call.dtype)
    lowered, progress = kind.lower(), context.progress
    scratch = pool.take(call.module, call.dtype, lowered.work + lowered.landing)
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
    call, program, ranks = kind.call, kind.lower(), kind.context.comm.size
    itemsize, work = call.dtype.itemsize, program.work

    def locate(place: MemoryRange) -> tuple[int, int]:
        """Return the number of the memory that contains a range, and the offset there in bytes."""
        start = place.start + work * (place.memory is MemoryKind.LANDING)
        return _NUMBERS[place.memory], start * itemsize

    rows, requests = make_rows(program.instructions, locate, itemsize, program.round_starts)
    source, result = kind.nbytes
    divider = None
    if call.reduction.divides and result:
        rows.append(divide_row(result))
        divider = make_reducer("divide", call.dtype, ranks)
    limits = np.array([source, result, (work + program.landing) * itemsize], np.int64)
    reducer = make_reducer(call.reduction.function, call.dtype) if call.operation.reduces else None
    return Program(as_words(rows), limits, reducer, divider, TILE_BYTES, -1, requests, ranks)


class NativeMessageRun(InFlight):
    """A plan of messages in flight, which the progress thread of the extension advances, too."""

    __slots__ = ("_run",)

    def __init__(self, run: MessageRun) -> None:
        super().__init__()
        self._run = run

    def _advance(self) -> bool:
        """Advance the native run without blocking; return whether it is complete."""
        return self._run.advance()

    def is_settled(self) -> bool:
        """Whether the messages that the run has begun to send are sent."""
        return self._run.is_sent()

    def abandon(self) -> None:
        """Take the run from the progress thread."""
        self._run.abandon()
