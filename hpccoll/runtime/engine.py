"""Carries out collectives on one MPI communicator: lowers, binds, caches, runs, and keeps asynchronous ones going.

Who progresses an asynchronous operation: whoever waits or tests. There is no thread; each wait, each test and each
blocking call goes on with all operations that are under way on the communicator, so ranks may wait in different
orders.

Tags: blocking operations share one tag, since each ends before the next begins. An asynchronous one takes a lane, the
number of asynchronous calls so far modulo LANES: all ranks call in the same order, so all count alike (a count of
local compilations would not do: caches hit differently on different ranks). A lane is taken again only after its last
operation is done here.

Buffers seen for the first time are run without binding; when they come again they are bound, and the executable is
kept by address in a least-recently-used cache that frees what it drops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from mpi4py import MPI

from hpccoll.algorithms.registry import Algorithm
from hpccoll.errors import UsageError
from hpccoll.runtime.arrays import ArrayModule, BoundCall, FlatArray, ScratchPool
from hpccoll.runtime.binder import Binder
from hpccoll.runtime.cache import LeastRecent
from hpccoll.runtime.collective_call import CollectiveCall, as_unowned, bind_epilogue, bind_prologue
from hpccoll.runtime.cuda.executable import DeviceExecutable
from hpccoll.runtime.decider import Decider
from hpccoll.runtime.hierarchical.executable import MixedExecutable
from hpccoll.runtime.job import detect_layout
from hpccoll.runtime.lowering import Program, lower_plan
from hpccoll.runtime.messages.executable import Executable, Run, Setting
from hpccoll.runtime.messages.mpi_collectives import MpiCollectives, MpiExecutable
from hpccoll.runtime.shared_memory.executable import NodeExecutable
from hpccoll.runtime.shared_memory.node import Node
from hpccoll.selection import Selection

BLOCKING_TAG, FIRST_LANE, LANES = 1, 2, 4096
PROGRAMS, EXECUTABLES, SIGHTINGS = 256, 256, 1024


Bound: TypeAlias = Executable | NodeExecutable | DeviceExecutable | MixedExecutable | MpiExecutable


class UnderWay(Protocol):
    """An asynchronous operation; `advance` goes as far as it can, never blocks, and returns whether all is done."""

    def advance(self) -> bool:
        """See there."""


class Done:
    """An operation that was over before its handle was made."""

    def advance(self) -> bool:
        """All is done."""
        return True


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A job with its program and the steps before and after it."""

    program: Program
    setting: Setting
    before: tuple[BoundCall, ...]
    after: tuple[BoundCall, ...]

    def run(self) -> Run:
        """Return it under way, without binding."""
        return Run(self.program, self.setting, self.before, self.after)


class Engine:
    """The runtime of one communicator."""

    def __init__(self, comm: MPI.Intracomm, takes_device_memory: Callable[[], bool]) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self._takes_device_memory = takes_device_memory
        self._scratch = ScratchPool()
        self._programs: LeastRecent[Program] = LeastRecent(PROGRAMS)
        self._seen: LeastRecent[bool] = LeastRecent(SIGHTINGS)
        self.executables: LeastRecent[Bound] = LeastRecent(EXECUTABLES, lambda dropped: dropped.free())
        self._prepared: list[Bound] = []
        self._active: dict[int, UnderWay] = {}
        self._asynchronous = 0
        # Found out here, where all ranks come together anyway: later it would block what is under way.
        where = detect_layout(comm)
        self._nodes = where.members
        self.node = Node(comm, where, self._active, self.progress)
        self.library = MpiCollectives(comm, self._active, self.progress, takes_device_memory)
        self._binder = Binder(comm, self.node, self._nodes, self.program, self._scratch, self._active, self.progress)
        self._decider = Decider(comm, where, self.node, self.library)

    def run(self, job: CollectiveCall) -> Bound | None:
        """Carry out a job; return its executable once it has one, for callers that remember their buffers."""
        key = self._key(job)
        executable = self.executables.get(key)
        if executable is not None and not executable.live:  # its symmetric buffer was freed
            executable = None
        if executable is None and self._seen.get(key) and not self._active:
            executable = self.bind(as_unowned(job))
            self.executables.put(key, executable)
        if executable is not None and not (self._active and isinstance(executable, Executable)):
            executable()
            return executable
        self._seen.put(key, job.reduction.factor is None)
        algorithm = self.choose(job).algorithm
        if algorithm is None:
            self.library.run(job)
        elif algorithm.uses_shared_memory:
            self.bind(job)()
        else:
            run = self._prepare(job, BLOCKING_TAG, self._scratch).run()
            while self._active and not run.advance():
                self.progress()
            run.finish()
        return None

    def start(self, job: CollectiveCall) -> UnderWay:
        """Begin a job and return at once; `progress` carries it on.

        By loads and stores alone it is carried out here and now.
        """
        algorithm = self.choose(job).algorithm
        begun: UnderWay | None = None
        if algorithm is not None and algorithm.uses_shared_memory:
            begun = self._binder.begin(job, algorithm)
            if begun is None:
                return Done()
        self.library.use_non_blocking()
        lane = FIRST_LANE + self._asynchronous % LANES
        self._asynchronous += 1
        while lane in self._active:
            self.progress()
        run = begun or (self.library.start(job) if algorithm is None else self._prepare(job, lane, ScratchPool()).run())
        self._active[lane] = run
        self.progress()
        return run

    def progress(self) -> None:
        """Let every asynchronous operation go as far as it can; never blocks."""
        for lane, run in list(self._active.items()):
            if run.advance():
                del self._active[lane]

    def prepare(self, job: CollectiveCall) -> Bound:
        """Bind a job to be run many times; all ranks do so together. Freed with the engine."""
        executable = self.bind(job, together=True)
        self._prepared = [*(known for known in self._prepared if known.live), executable]
        return executable

    def bind(self, job: CollectiveCall, *, together: bool = False) -> Bound:
        """Make the persistent requests of a job, or what it takes to run it in shared memory.

        Args:
            job: the collective.
            together: whether all ranks bind it now, in the same order.
        """
        choice = self.choose(job)
        if choice.algorithm is None:
            return self.library.bind(job, together=together)
        if choice.algorithm.uses_shared_memory:
            return self._binder.bind(job, choice.algorithm, choice.chunks)
        prepared = self._prepare(job, BLOCKING_TAG, self._scratch)
        return Executable(
            prepared.program, prepared.setting, prepared.before, prepared.after, self._active, self.progress
        )

    def free(self) -> None:
        """Give all persistent requests back to MPI (it must not have ended)."""
        self.executables.clear()
        while self._prepared:
            self._prepared.pop().free()
        self.node.free()

    def stages(self, module: ArrayModule) -> bool:
        """Whether memory of this module goes through pinned host memory on its way to MPI."""
        return module.on_device and not self._takes_device_memory()

    @property
    def busy(self) -> bool:
        """Whether asynchronous operations are under way."""
        return bool(self._active)

    def choose(self, job: CollectiveCall) -> Selection:
        """Return what carries out a job; see there."""
        return self._decider.choose(job)

    def program(
        self,
        job: CollectiveCall,
        algorithm: Algorithm,
        chunks: int,
        in_place: bool,
        *,
        staged: bool = False,
        sizes: tuple[int, ...] | None = None,
    ) -> Program:
        """Return the lowered plan of a job, made once for its shape.

        Args:
            job: the collective.
            algorithm: what carries it out.
            chunks: in how many chunks its messages follow each other.
            in_place: whether input and output share memory.
            staged: whether loads and stores go through the arena.
            sizes: the elements of each chunk, where only part of each is run.
        """
        on_device = job.module.on_device
        shape = job.count if sizes is None else sizes
        key = (algorithm, chunks, job.root, shape, job.dtype.itemsize, in_place, on_device, staged)
        program = self._programs.get(key)
        if program is None:
            plan = algorithm.plan(self.size, job.root, chunks, self._nodes)
            program = lower_plan(
                plan,
                self.rank,
                job.count,
                job.dtype.itemsize,
                in_place,
                on_device=on_device,
                staged=staged,
                sizes=None if sizes is None else np.array(sizes, np.int64),
            )
            self._programs.put(key, program)
        return program

    def _key(self, job: CollectiveCall) -> tuple[object, ...]:
        addresses = tuple(buffer.address if buffer else 0 for buffer in (job.source, job.result))
        kind = (
            job.operation,
            job.algorithm,
            job.library,
            job.root,
            job.reduction.name,
            job.dtype.name,
            job.module.name,
        )
        return (*kind, job.count, *addresses)

    def _prepare(self, job: CollectiveCall, tag: int, scratch: ScratchPool) -> _Prepared:
        choice = self.choose(job)
        algorithm, chunks = choice.algorithm, choice.chunks
        if algorithm is None:
            raise UsageError(f"{job.operation.value} by the MPI library is no plan")
        job, before, in_place = bind_prologue(job, self.rank)
        module, dtype = job.module, job.dtype
        program = self.program(job, algorithm, chunks, in_place)
        empty = module.empty(0, dtype)
        spare = scratch.take(module, dtype, program.work + program.landing)
        memories: tuple[FlatArray, FlatArray, FlatArray, FlatArray] = (
            job.source.flat if job.source else empty,
            job.result.flat if job.result else empty,
            spare[: program.work],
            spare[program.work :],
        )
        staged = self.stages(module)
        setting = Setting(memories, module, job.reduction.function, dtype.itemsize, self.comm, tag, staged)
        return _Prepared(program, setting, before, bind_epilogue(job, self.size))
