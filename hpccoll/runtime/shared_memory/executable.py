"""Collectives of loads, stores and fences in the host memory of one node, bound to buffers.

In a direct run, ranks access each other's buffers in place. A direct run needs buffers that are symmetric, or large and
accessible by cross-memory attach. At the start of a direct run, the ranks exchange the locations of their buffers. A
staged run copies chunks through slots (shared memory), segment by segment. If the buffers of only some ranks permit a
direct run, all ranks detect the difference at the start and run staged. The native extension executes both.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from hpccoll.native import REMOTE_TILE_BYTES, MemoryTable, Program, StagedCall
from hpccoll.runtime.address_space import USER_MEMORY
from hpccoll.runtime.arrays import BoundCall, ScratchPool
from hpccoll.runtime.arrays.host_reducers import make_divider, make_reducer
from hpccoll.runtime.collective_call import CollectiveCall, describe_call
from hpccoll.runtime.instructions import (
    FIRST_SHARED,
    RESULT,
    SCRATCH,
    SOURCE,
    TILE_BYTES,
    as_words,
    divide_row,
    make_rows,
)
from hpccoll.runtime.lowering import OWN, MemoryKind, MemoryRange
from hpccoll.runtime.node_memory.node import fingerprint_of
from hpccoll.runtime.node_memory.node_barrier import DIRECT, ENTRY_PAYLOAD_BYTES
from hpccoll.runtime.plan_executable import Context, PlanExecutable
from hpccoll.runtime.shared_memory.access import (
    can_access_in_place,
    count_elements,
    local_instructions,
    locate_peers,
)
from hpccoll.runtime.shared_memory.queued_run import QueuedPythonRun, QueuedRun, QueuedStagedRun
from hpccoll.runtime.shared_memory.staged import find_segments, get_address, make_staged_program, make_tables
from hpccoll.selection import Selection


class SharedMemoryExecutable(PlanExecutable):
    """A collective of loads and stores on host buffers of one node; see `Executable` and `PlanExecutable`."""

    __slots__ = (
        "_addresses", "_direct_program", "_divisor", "_entry", "_facts", "_location", "_locations", "_memories",
        "_runs", "_staged", "direct",
    )  # fmt: skip

    def __init__(
        self, context: Context, call: CollectiveCall, selection: Selection, scratch: ScratchPool | None = None
    ) -> None:
        super().__init__(context, call, selection, scratch)
        symmetric, call = context.node.symmetric, self._call
        self._divisor = context.comm.size if call.reduction.divides else 1
        self._after = ()  # the programs divide
        self._facts, self._runs = self._describe(), context.node.runs
        self._entry = fingerprint_of(self._facts)
        self.direct = can_access_in_place(context.node, self._lower(), call)
        self._location = symmetric.locate(call.source), symmetric.locate(call.result)
        source, result = (buffer.address if buffer else 0 for buffer in (call.source, call.result))
        self._addresses = source, result
        self._locations: tuple[int, ...] | None = None
        self._memories: MemoryTable | None = None  # of direct runs
        self._direct_program: Program | None = None
        self._staged: StagedCall | None = None

    @property
    def calls(self) -> tuple[BoundCall, ...]:
        """The calls to time one by one: only this executable, because one native call runs the whole program."""
        return (self,)

    def run(self) -> None:
        if not self.live:
            self._require_live()
        if self._runs:  # earlier asynchronous runs, which use the same barrier and slots
            self._context.progress.sleep_until(self._have_earlier_ended)
        for step in self._before:
            step()
        if not self.direct:
            self._get_staged()(*self._addresses)
            return
        place = self._begin()
        try:
            if not self._run_direct():
                self._get_staged().run_unrecorded(*self._addresses)
        except BaseException:
            self._state.fail(place)
            raise
        self._state.end(place)

    __call__ = run

    def _have_earlier_ended(self) -> bool:
        """Whether all asynchronous runs that were called before have ended."""
        return not self._runs

    def start(self, keep: object) -> QueuedRun:
        """Return a run in flight, which begins when earlier runs are done; `keep` is kept alive until its end."""
        self._require_live()
        run: QueuedRun
        if self.direct or self._before:
            run = QueuedPythonRun(self._run_in_steps, self._runs, keep, self._context.node.barrier.all_arrived)
        else:
            run = QueuedStagedRun(self._get_staged(), self._addresses, self._runs, keep)
        self.operation = run
        return run

    def free(self) -> None:
        """Free the executable; a later run raises UsageError. A run in flight goes on."""
        if self.in_flight:
            self.live = False
            return
        super().free()
        self._direct_program = self._memories = self._staged = None

    def make_unbound(self) -> StagedCall | None:
        """Return the call that runs this collective on any host arrays; None for a direct run."""
        return None if self.direct or self._before else self._get_staged()

    def _run_in_steps(self) -> Iterator[None]:
        """Run once without blocking; yield whenever the run has to wait for the node's ranks."""
        barrier = self._context.node.barrier
        for step in self._before:
            step()
        if self.direct:
            barrier.post(self._entry | DIRECT, *self._location)
            while not barrier.all_arrived():
                yield
            if self._is_alike(barrier.compare()):
                program, at = self._prepare_direct(), 0
                while (at := program.execute(self._get_memories(), *self._addresses, at)) < len(program):
                    at += 1
                    barrier.arrive()
                    while not barrier.all_arrived():
                        yield
                return
        staged = self._get_staged()
        at = staged.begin(*self._addresses)
        while at >= 0:
            while not barrier.all_arrived():
                yield
            at = staged.proceed(*self._addresses, at)

    def _run_direct(self) -> bool:
        """Run on all ranks' buffers in place; return False without running if some rank started a staged run."""
        barrier = self._context.node.barrier
        if not self._is_alike(barrier.enter(self._entry | DIRECT, *self._location)):
            return False
        self._prepare_direct().run(barrier, self._get_memories(), *self._addresses, 0)
        return True

    def _is_alike(self, alike: bool | None) -> bool:
        """Return whether all ranks start the same run; raise MismatchError if they call different collectives."""
        return self._context.node.raise_mismatch(self._facts) if alike is None else alike

    def _get_staged(self) -> StagedCall:
        """Return the staged call, which is made once."""
        if self._staged is None:
            self._staged = self._make_staged()
        return self._staged

    def _make_staged(self) -> StagedCall:
        """Return the call that runs this collective through the slots."""
        node, call, state = self._context.node, self._call, self._state
        segments, in_entry = find_segments(node, self._lower(), call)
        programs = [self._lower(segment.sizes, staged=True) for segment in segments]
        scratch = self._take_scratch(max(program.work + program.landing for program in programs))
        slot_bytes = ENTRY_PAYLOAD_BYTES if in_entry else node.slot_bytes
        return StagedCall(
            node.barrier,
            make_staged_program(call, node, programs, segments, slot_bytes, self._divisor),
            make_tables(node, scratch, in_entry=in_entry),
            len(segments),
            in_entry,
            self._entry,
            state,
            state.recorder.take_entry,
            call.operation.value,
            describe_call(state, call, self._algorithm),
            partial(node.raise_mismatch, self._facts),
        )

    def _prepare_direct(self) -> Program:
        """Return the program of direct runs, for the buffers that the ranks have published at the entry."""
        if self._direct_program is None:
            self._direct_program = self._make_direct_program()
        locations = self._context.node.barrier.locations()
        if locations != self._locations:
            self._memories, self._locations = self._make_direct_memories(locations), locations
        return self._direct_program

    def _get_memories(self) -> MemoryTable:
        """Return the memories of the direct run that has entered."""
        assert self._memories is not None  # noqa: S101 - `_prepare_direct` was called
        return self._memories

    def _make_direct_program(self) -> Program:
        """Return the native program of direct runs; the memories are scratch, and two buffers of each other rank."""
        node, call, program = self._context.node, self._call, self._lower()
        itemsize, work = call.dtype.itemsize, program.work

        def locate(place: MemoryRange) -> tuple[int, int]:
            """Return the number of the memory that contains a range, and the offset there in bytes."""
            number = (SOURCE, RESULT, SCRATCH, SCRATCH)[place.memory]
            if place.owner != OWN:
                number = FIRST_SHARED + 2 * node.others.index(place.owner) + USER_MEMORY.index(place.memory)
            return number, (place.start + work * (place.memory is MemoryKind.LANDING)) * itemsize

        rows = make_rows(local_instructions(program), locate, itemsize)
        own = [buffer.nbytes if buffer else 0 for buffer in (call.source, call.result)]
        used = -(-(work + program.landing) * itemsize // 16) * 16
        divider = None
        if self._divisor > 1 and own[RESULT]:
            rows.append(divide_row(own[RESULT]))
            divider = make_divider(self._divisor, call.dtype)
        peers = [size * itemsize for rank in node.others for size in count_elements(program.plan, rank, call.count)]
        limits = np.array([*own, used + 2 * REMOTE_TILE_BYTES, *peers], np.int64)
        reducer = make_reducer(call.reduction.function, call.dtype)
        return Program(as_words(rows), limits, reducer, divider, TILE_BYTES, used)

    def _make_direct_memories(self, locations: tuple[int, ...]) -> MemoryTable:
        """Return the memories of direct runs; the other ranks' buffers are at `locations`."""
        node, itemsize, program = self._context.node, self._call.dtype.itemsize, self._lower()
        elements = -(-(program.work + program.landing) * itemsize // 16) * 16 // itemsize
        scratch = self._take_scratch(elements + 2 * (REMOTE_TILE_BYTES // itemsize))
        peers, processes, keep = locate_peers(node, locations)
        addresses = [*self._addresses, get_address(scratch), *peers]
        return MemoryTable(addresses, [0, 0, 0, *processes] if any(processes) else [], (scratch, keep))
