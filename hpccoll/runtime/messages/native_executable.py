"""Plans of messages in host memory, which the native extension runs on the addresses that each call passes."""

from __future__ import annotations

from functools import partial
from typing import Final, cast

import numpy as np

from hpccoll.native import MemoryTable, MessageCall, MessageRun, Program
from hpccoll.runtime.arrays import BoundCall, ScratchPool
from hpccoll.runtime.arrays.host_reducers import make_divider, make_reducer
from hpccoll.runtime.collective_call import CollectiveCall, call_in_order, describe_call
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
from hpccoll.runtime.lowering import Program as LoweredProgram
from hpccoll.runtime.messages.executable import MessageExecutable
from hpccoll.runtime.messages.mpi_functions import get_handle, get_mpi_functions
from hpccoll.runtime.plain_arrays import get_address
from hpccoll.runtime.plan_executable import Context, PlanExecutable
from hpccoll.runtime.progress import InFlight
from hpccoll.selection import Selection

_NUMBERS: Final = (SOURCE, RESULT, SCRATCH, SCRATCH)  # the numbers of memories, in the order of MemoryKind


class NativeMessageExecutable(PlanExecutable):
    """A plan of messages on given host buffers; see `Executable` and `PlanExecutable`."""

    __slots__ = ("_addresses", "_call_by_call", "_native", "_scratch_items", "_selection", "_tag")

    def __init__(
        self,
        context: Context,
        call: CollectiveCall,
        selection: Selection,
        scratch: ScratchPool | None = None,
        tag: int = 1,
    ) -> None:
        if call.operation.reduces:
            call.module.require_reduction(call.reduction.function, call.dtype)
        super().__init__(context, call, selection, scratch)
        self._after, self._tag = (), tag  # the program divides
        self._selection, self._call_by_call = selection, cast("MessageExecutable | None", None)
        call, program = self._call, self._lower()
        source, result = (buffer.address if buffer else 0 for buffer in (call.source, call.result))
        self._addresses = source, result
        self._scratch_items = program.work + program.landing
        self._native: MessageCall | None = self._make_native(program)
        self._set_function()

    @property
    def calls(self) -> tuple[BoundCall, ...]:
        """The calls to time one by one, which send the messages of the native program in the same order."""
        if self._call_by_call is None:
            self._require_live()
            self._call_by_call = MessageExecutable(self._context, self._call, self._selection, self._scratch, self._tag)
            self._call_by_call.bind()
        return self._call_by_call.calls

    def start(self) -> NativeMessageRun:
        """Do the local work before the plan, and return the run, which posts its messages as it advances."""
        self._require_live()
        for step in self._before:
            step()
        assert self._native is not None  # noqa: S101 - the executable is live
        return NativeMessageRun(self._native.start(*self._addresses, self._tag, self._call))

    def make_unbound(self) -> MessageCall | None:
        """Return the native call, which runs on any addresses; None if there is local work before the plan."""
        return None if self._before else self._native

    def free(self) -> None:
        """Free the executable; a later run raises UsageError."""
        super().free()
        self._native = None
        if self._call_by_call is not None:
            self._call_by_call.free()
        self._set_function()

    def abandon(self) -> None:
        """Refuse later runs and release nothing; for a forked child process, in which MPI cannot be used."""
        super().abandon()
        self.replace_function(self._require_live)

    def _set_function(self) -> None:
        """Let a call of the executable make the native call, after the local work before the plan."""
        if self._native is None:
            self.replace_function(self._require_live)
        elif self._before:
            self.replace_function(partial(call_in_order, (*self._before, partial(self._native, *self._addresses))))
        else:
            self.replace_function(partial(self._native, *self._addresses))

    def _make_native(self, program: LoweredProgram) -> MessageCall:
        """Return the native call of this kind of collective."""
        context, call, state = self._context, self._call, self._state
        scratch = self._take_scratch(self._scratch_items)
        progress = context.progress
        return MessageCall(
            get_mpi_functions(),
            context.get_native(self._get_program_key("messages"), partial(self._make_program, program)),
            MemoryTable([0, 0, get_address(scratch)], [], scratch),
            get_handle(context.comm),
            self._tag,
            state,
            state.recorder.take_entry,
            call.operation.value,
            describe_call(state, call, self._algorithm),
            progress.oversubscribed,
            progress.attend,
            progress.operations,
            progress.transfers,
        )

    def _make_program(self, program: LoweredProgram) -> Program:
        """Return the native program; its memories are input, output and scratch."""
        call, ranks = self._call, self._context.comm.size
        itemsize, work = call.dtype.itemsize, program.work

        def locate(place: MemoryRange) -> tuple[int, int]:
            """Return the number of the memory that contains a range, and the offset there in bytes."""
            start = place.start + work * (place.memory is MemoryKind.LANDING)
            return _NUMBERS[place.memory], start * itemsize

        rows, requests = make_rows(program.instructions, locate, itemsize, program.round_starts)
        source, result = (buffer.nbytes if buffer else 0 for buffer in (call.source, call.result))
        divider = None
        if call.reduction.divides and result:
            rows.append(divide_row(result))
            divider = make_divider(ranks, call.dtype)
        limits = np.array([source, result, self._scratch_items * itemsize], np.int64)
        reducer = make_reducer(call.reduction.function, call.dtype) if call.operation.reduces else None
        return Program(as_words(rows), limits, reducer, divider, TILE_BYTES, -1, requests, ranks)


class NativeMessageRun(InFlight):
    """A plan of messages in flight, which the progress thread of the extension advances, too."""

    __slots__ = ("_run",)

    def __init__(self, run: MessageRun) -> None:
        super().__init__()
        self._run = run

    def _advance(self) -> bool:
        return self._run.advance()

    def is_settled(self) -> bool:
        """Whether the messages that the run has begun to send are sent."""
        return self._run.is_sent()

    def abandon(self) -> None:
        """Take the run from the progress thread."""
        self._run.abandon()
