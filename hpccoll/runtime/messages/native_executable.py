"""Plans of messages in host memory, which the native extension runs on the addresses that each call passes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from hpccoll.arrays import BoundCall, Scratch, run_all, take_scratch
from hpccoll.lowering.native_rows import make_locate, make_rows
from hpccoll.native import MemoryTable, MessageCall, Program
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.messages.executable import MessageExecutable
from hpccoll.runtime.messages.mpi_functions import get_handle, get_mpi_functions
from hpccoll.runtime.native_plan import NativeExecutable, make_program
from hpccoll.runtime.plain_arrays import get_address
from hpccoll.runtime.plan_executable import BLOCKING_TAG, PlanContext
from hpccoll.runtime.progress import InFlight
from hpccoll.runtime.queued_run import NativeRun


class NativeMessageExecutable(NativeExecutable):
    """A plan of messages on given host buffers; asynchronous runs have the tag `tag`."""

    __slots__ = ("_call_by_call", "_tag")

    def __init__(self, context: PlanContext, call: CollectiveCall, tag: int = BLOCKING_TAG) -> None:
        super().__init__(context, call)
        self._tag, self._call_by_call = tag, cast("MessageExecutable | None", None)

    @property
    def calls(self) -> tuple[BoundCall, ...]:
        """The plan's calls made from Python, for timing one by one; they send the same messages as the native call."""
        if self._call_by_call is None:
            self._require_live()
            self._call_by_call = MessageExecutable(self._context, self._call)
            self._call_by_call.bind()
        return self._call_by_call.calls

    def _find_native(self) -> MessageCall:
        """Return the native call (C code) for calls of this executable's kind."""
        make = partial(make_message_call, self._context, self._call_without_arrays, self._context.scratch)
        return self._context.get_native(("messages", self._call_without_arrays.plan_key), make)

    def make_start(self) -> Callable[[int, int, object], InFlight]:
        """Return a function that does the local work before the plan and starts a run on the addresses of two buffers.

        `NativeExecutable.make_start` describes the function.
        """
        native = make_message_call(self._context, self._call_without_arrays, {})

        def start(source: int, result: int, keep: object) -> NativeRun:
            """Do the local work before the plan, and return a run on buffers at two addresses.

            The run posts its first messages when its `advance` is called. `keep` is an object that owns the buffers'
            memory until the run is done.
            """
            run_all(self._before)
            return NativeRun(native.start(source, result, self._tag, keep))

        return start

    def free(self) -> None:
        """Free the executable; a later run raises UsageError."""
        super().free()
        if self._call_by_call is not None:
            self._call_by_call.free()


def make_message_call(context: PlanContext, call: CollectiveCall, pool: Scratch) -> MessageCall:
    """Return a native call for calls like `call`, with scratch memory from `pool`; its program is cached."""
    lowered, progress = context.lower(call), context.progress
    scratch = take_scratch(pool, call.module, call.dtype, lowered.work + lowered.landing)
    return MessageCall(
        get_mpi_functions(),
        context.get_native(("program of messages", call.plan_key), partial(_make_program, context, call)),
        MemoryTable([0, 0, get_address(scratch)], [], scratch),
        get_handle(context.comm),
        BLOCKING_TAG,
        *context.get_recorder_arguments(call),
        progress.oversubscribed,
        progress.attend,
        progress.operations,
        progress.transfers,
    )


def _make_program(context: PlanContext, call: CollectiveCall) -> Program:
    """Return the native program for calls like `call`; its memories are input, output and scratch."""
    program, itemsize = context.lower(call), call.dtype.itemsize
    rows, requests = make_rows(
        program.instructions, make_locate(program.work, itemsize), itemsize, program.round_starts
    )
    scratch = (program.work + program.landing) * itemsize
    return make_program(context, call, rows, scratch, divides=True, requests=requests)
