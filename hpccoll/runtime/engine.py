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
from dataclasses import dataclass, replace

from mpi4py import MPI

from hpccoll.collectives.choice import best_algorithm, best_chunks
from hpccoll.collectives.registry import Algorithm
from hpccoll.errors import BufferError
from hpccoll.plan.operation import Operation
from hpccoll.runtime.arrays import NUMPY, ArrayModule, Buffer, Flat, Step
from hpccoll.runtime.cache import LeastRecent
from hpccoll.runtime.dtypes import DType, dtype_named
from hpccoll.runtime.execute import Executable, Run, Setting
from hpccoll.runtime.job import layout
from hpccoll.runtime.lower import lower
from hpccoll.runtime.program import Program
from hpccoll.runtime.reductions import Reduction
from hpccoll.runtime.scratch import Scratch

BLOCKING_TAG, FIRST_LANE, LANES = 1, 2, 4096
PROGRAMS, EXECUTABLES, SIGHTINGS = 256, 256, 1024


@dataclass(frozen=True, slots=True)
class Job:
    """One collective as this rank sees it.

    `count` is the elements of the vector, or of one block; `source` and `result` are None where the operation gives
    this rank none; `algorithm` is None for the model's choice.
    """

    operation: Operation
    algorithm: Algorithm | None
    root: int
    reduction: Reduction
    source: Buffer | None
    result: Buffer | None
    count: int

    @property
    def dtype(self) -> DType:
        """The element type; bytes where there is no buffer at all (barrier)."""
        buffer = self.result or self.source
        return buffer.dtype if buffer else dtype_named("uint8")

    @property
    def module(self) -> ArrayModule:
        """The array module of the buffers."""
        buffer = self.result or self.source
        return buffer.module if buffer else NUMPY


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A job with its program and the steps before and after it."""

    program: Program
    setting: Setting
    before: tuple[Step, ...]
    after: tuple[Step, ...]


class Engine:
    """The runtime of one communicator."""

    def __init__(self, comm: MPI.Intracomm, takes_device_memory: Callable[[], bool]) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self._takes_device_memory = takes_device_memory
        self._scratch = Scratch()
        self._programs: LeastRecent[Program] = LeastRecent(PROGRAMS)
        self._seen: LeastRecent[bool] = LeastRecent(SIGHTINGS)
        self.executables: LeastRecent[Executable] = LeastRecent(EXECUTABLES, Executable.free)
        self._prepared: list[Executable] = []
        self._active: dict[int, Run] = {}
        self._asynchronous = 0
        # Found out here, where all ranks come together anyway: later it would block what is under way.
        node = layout(comm).node
        self._nodes = tuple(
            tuple(rank for rank in range(comm.size) if node[rank] == each) for each in sorted(set(node))
        )

    def run(self, job: Job) -> Executable | None:
        """Carry out a job; return its executable once it has one, for callers that remember their buffers."""
        key = self._key(job)
        executable = None if self._active else self.executables.get(key)
        if executable is None and not self._active and self._seen.get(key):
            executable = self.bind(borrowed(job))
            self.executables.put(key, executable)
        if executable is not None:
            executable()
            return executable
        self._seen.put(key, job.reduction.factor is None)
        run = self._run(self._prepare(job, BLOCKING_TAG, self._scratch))
        if self._active:
            while not run.advance():
                self.progress()
        else:
            run.finish()
        return None

    def start(self, job: Job) -> Run:
        """Begin a job and return at once; `progress` carries it on."""
        lane = FIRST_LANE + self._asynchronous % LANES
        self._asynchronous += 1
        while lane in self._active:
            self.progress()
        run = self._active[lane] = self._run(self._prepare(job, lane, Scratch()))
        self.progress()
        return run

    def progress(self) -> None:
        """Let every asynchronous operation go as far as it can; never blocks."""
        for lane, run in list(self._active.items()):
            if run.advance():
                del self._active[lane]

    def prepare(self, job: Job) -> Executable:
        """Bind a job to be run many times; freed with the engine."""
        executable = self.bind(job)
        self._prepared = [*(known for known in self._prepared if known.live), executable]
        return executable

    def bind(self, job: Job) -> Executable:
        """Make the persistent requests of a job."""
        prepared = self._prepare(job, BLOCKING_TAG, self._scratch)
        return Executable(
            prepared.program, prepared.setting, prepared.before, prepared.after, self._active, self.progress
        )

    def free(self) -> None:
        """Give all persistent requests back to MPI (it must not have ended)."""
        self.executables.clear()
        while self._prepared:
            self._prepared.pop().free()

    def stages(self, module: ArrayModule) -> bool:
        """Whether memory of this module goes through pinned host memory on its way to MPI."""
        return module.on_device and not self._takes_device_memory()

    @property
    def busy(self) -> bool:
        """Whether asynchronous operations are under way."""
        return bool(self._active)

    def choose(self, job: Job) -> tuple[Algorithm, int]:
        """Return the algorithm and the number of pipelined chunks for a job."""
        nbytes = job.count * job.dtype.itemsize * (self.size if job.operation.blocked else 1)
        algorithm = job.algorithm or best_algorithm(job.operation, self.size, nbytes)
        return algorithm, min(best_chunks(algorithm, self.size, nbytes), max(job.count, 1))

    def program(self, job: Job, in_place: bool) -> Program:
        """Return the lowered plan of a job, made once for its shape."""
        algorithm, chunks = self.choose(job)
        on_device = job.module.on_device
        key = (algorithm, chunks, job.root, job.count, job.dtype.itemsize, in_place, on_device)
        program = self._programs.get(key)
        if program is None:
            plan = algorithm.plan(self.size, job.root, chunks, self._nodes)
            program = lower(plan, self.rank, job.count, job.dtype.itemsize, in_place, on_device=on_device)
            self._programs.put(key, program)
        return program

    def _run(self, prepared: _Prepared) -> Run:
        return Run(prepared.program, prepared.setting, prepared.before, prepared.after)

    def _key(self, job: Job) -> tuple[object, ...]:
        addresses = tuple(buffer.address if buffer else 0 for buffer in (job.source, job.result))
        kind = (job.operation, job.algorithm, job.root, job.reduction.name, job.dtype.name, job.module.name)
        return (*kind, job.count, *addresses)

    def _prepare(self, job: Job, tag: int, scratch: Scratch) -> _Prepared:
        in_place = shares_memory(job, self.rank)
        before: tuple[Step, ...] = ()
        if job.reduction.name == "premul_sum" and job.source is not None:
            job, before, in_place = self._scaled(job, job.source)
        elif job.operation is Operation.ALL_TO_ALL and in_place and job.source is not None:
            job, before = self._snapshot(job, job.source)
        module, dtype = job.module, job.dtype
        program = self.program(job, in_place)
        empty = module.empty(0, dtype)
        spare = scratch.take(module, dtype, program.work + program.landing)
        memories: tuple[Flat, Flat, Flat, Flat] = (
            job.source.flat if job.source else empty,
            job.result.flat if job.result else empty,
            spare[: program.work],
            spare[program.work :],
        )
        staged = self.stages(module)
        setting = Setting(memories, module, job.reduction.function, dtype.itemsize, self.comm, tag, staged)
        averages = job.reduction.name == "avg" and job.result is not None
        after = (module.divide(job.result.flat, self.size),) if averages and job.result else ()
        return _Prepared(program, setting, before, after)

    def _scaled(self, job: Job, source: Buffer) -> tuple[Job, tuple[Step, ...], bool]:
        """premul_sum: scale into the output where it holds the whole vector, else into memory of its own."""
        whole = job.operation in (Operation.ALL_REDUCE, Operation.REDUCE) and job.result is not None
        target = job.result.flat if whole and job.result else job.module.empty(source.count, job.dtype)
        step = job.module.scale(target, source.flat, job.reduction.factor, source.shape)
        return replace(job, source=replace(source, flat=target)), (step,), whole

    def _snapshot(self, job: Job, source: Buffer) -> tuple[Job, tuple[Step, ...]]:
        target = job.module.empty(source.count, job.dtype)
        return replace(job, source=replace(source, flat=target)), (job.module.copy(target, source.flat),)


def borrowed(job: Job) -> Job:
    """Return the job on the same memory without keeping it alive.

    What is cached must not hold on to buffers that their owner has let go of. It is run only for buffers that lie
    where these lay, so the memory is there whenever it runs.
    """
    source, result = (
        buffer and replace(buffer, flat=buffer.module.borrow(buffer.flat)) for buffer in (job.source, job.result)
    )
    return replace(job, source=source, result=result)


def shares_memory(job: Job, rank: int) -> bool:
    """Return whether input and output are the same memory where a chunk is both brought and wanted.

    Raises:
        BufferError: they overlap in any other way.
    """
    source, result = job.source, job.result
    if source is None or result is None or not source.nbytes or not result.nbytes or not source.overlaps(result):
        return False
    offset = rank * job.count * job.dtype.itemsize
    shift = {
        Operation.ALL_GATHER: offset,
        Operation.GATHER: offset,
        Operation.REDUCE_SCATTER: -offset,
        Operation.SCATTER: -offset,
    }.get(job.operation, 0)
    if source.address != result.address + shift:
        raise BufferError(
            f"{job.operation.value}: x and out overlap on rank {rank} but are not the same chunk; "
            "pass separate memory, or for in place the rank's own block of the larger buffer"
        )
    return True
