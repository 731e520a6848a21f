"""Runs the measurements of `hpccoll bench`: all engines and algorithms side by side, per operation and message size."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec.structs import replace as replace_fields

from hpccoll.algorithms import list_algorithm_names
from hpccoll.algorithms.registry import RATES_MARK
from hpccoll.arrays import ArrayModule, DType, Reduction
from hpccoll.measure.bandwidth import compute_count
from hpccoll.measure.buffers import PreallocatedModule
from hpccoll.measure.contenders import AUTO, OWN, prepare_contenders
from hpccoll.measure.data import PERIOD
from hpccoll.measure.interleaved import Contender, InterleavedBenchmark, TimingOptions
from hpccoll.measure.iteration_start import BarrierStarter
from hpccoll.measure.results.collective_record import make_collective_record
from hpccoll.measure.time_left import Block
from hpccoll.measure.workload import Workload, WorkloadSpec, list_places
from hpccoll.plan import Operation
from hpccoll.records import CaseKey, CollectiveCase, CollectiveRecord
from hpccoll.selection import MPI_LIBRARY, BufferKind
from hpccoll.selection.shortlist import shortlist_algorithms

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.communicator import Communicator
    from hpccoll.peers import LibraryEngine

ALL, SHORTLIST = "all", "shortlist"  # in `BenchmarkConfig.algorithms`: all algorithms; those that may be the fastest


@dataclass(frozen=True, slots=True)
class BenchmarkConfig:
    """What a benchmark measures on one kind of buffer: each operation, in each size, by each engine and algorithm."""

    operations: tuple[Operation, ...]  # the collectives
    sizes: tuple[int, ...]  # message sizes in bytes
    dtype: DType  # the element type
    redop: str  # the name of the reduction
    root: int  # the root of rooted operations
    places: tuple[bool, ...]  # the values of `in_place` to measure: True, False or both
    # Names of hpccoll's algorithms, `auto`, `mpi` (the MPI library's own collective, called by hpccoll), `ALL`, or
    # `SHORTLIST`
    algorithms: tuple[str, ...]
    buffer: str  # the kind of buffer: `host`, `symmetric` or `cuda`
    nodes: int  # the number of nodes of the job
    method: TimingOptions  # how calls are timed

    def list_algorithms(self, task: WorkloadSpec) -> list[str]:
        """Return the names of hpccoll's algorithms that are timed for a call, with `mpi` and `auto` last."""
        wanted = set(self.algorithms)
        if SHORTLIST in wanted:
            kind = BufferKind(self.buffer)
            wanted |= set(shortlist_algorithms(task.operation, kind, task.nbytes, task.ranks, self.nodes))
        known = list_algorithm_names(task.operation)
        named = [name for name in known if ALL in wanted or name in wanted]
        named += sorted(name for name in wanted if RATES_MARK in name and name.partition(RATES_MARK)[0] in known)
        return [*named, *(name for name in (MPI_LIBRARY, AUTO) if name in wanted)]

    def max_buffer_bytes(self, ranks: int) -> int:
        """Return an upper bound of the bytes that a rank allocates for one call's arrays, on `ranks` ranks."""
        largest = max(task.nbytes for task in self.list_workloads(0, ranks))
        return 2 * largest + min(largest, PERIOD * self.dtype.itemsize)

    def list_workloads(self, rank: int, ranks: int) -> list[WorkloadSpec]:
        """Return the arguments of all benchmarked calls, as rank `rank` of `ranks` passes them.

        Raises UsageError if `dtype` does not support `redop`.
        """
        for operation in self.operations:
            if operation.reduces:
                Reduction(self.redop, 1).require(self.dtype)
        workloads: dict[tuple[Operation, int, bool], WorkloadSpec] = {}
        for operation in self.operations:
            for size in self.sizes if operation is not Operation.BARRIER else self.sizes[:1]:
                count = compute_count(operation, size, self.dtype.itemsize, ranks)
                for place in list_places(operation, self.places):
                    workloads[operation, count, place] = WorkloadSpec(
                        operation, count, self.dtype, self.redop, self.root, place, rank, ranks, self.method.seed
                    )
        return list(workloads.values())


class BenchmarkSession:
    """A benchmark of collectives on one kind of buffer; `run_workload` times one call by all engines and algorithms.

    The attribute `refused` has a sentence for each algorithm that cannot run.

    Args:
        config: what is measured.
        world: the MPI communicator of the ranks.
        comm: hpccoll's communicator of the same ranks.
        peers: the other libraries, already started.
        module: allocates the buffers.
        own: whether hpccoll's own algorithms are measured.
    """

    def __init__(
        self,
        config: BenchmarkConfig,
        world: MPI.Intracomm,
        comm: Communicator,
        peers: list[LibraryEngine],
        module: ArrayModule,
        own: bool,
    ) -> None:
        self.config, self.world, self.comm, self.peers, self.module = config, world, comm, peers, module
        self.starter: BarrierStarter | None = None  # None: iterations start after a barrier
        self.on_round: Callable[[float], None] | None = None  # called with the share of a workload's iterations
        self.own = own
        self.tasks = config.list_workloads(world.rank, world.size)
        self.refused: list[str] = []
        self.refused_count = 0  # cases so far whose engine or algorithm cannot run

    def list_cases(self) -> list[CaseKey]:
        """Return the keys of all records of a complete run, including those whose algorithm may be unable to run."""
        return [key for task in self.tasks for key in self._list_task_cases(task)]

    def make_block(self, task: WorkloadSpec, finished: Collection[CaseKey]) -> Block:
        """Return the message size of a call and the number of its records that are not in `finished`, as a `Block`."""
        return Block(task.nbytes, sum(key not in finished for key in self._list_task_cases(task)))

    def _list_task_cases(self, task: WorkloadSpec) -> list[CaseKey]:
        """Return the keys of the records of one call: one per engine and algorithm."""
        engines = [(OWN, name) for name in self.list_algorithms(task)] + [(peer.name, None) for peer in self.peers]
        return [self._make_case(task, engine, algorithm).key for engine, algorithm in engines]

    def set_case_budget(self, seconds: float) -> None:
        """Set the seconds for timing each record; the rule's `min_iterations` are run even if they take longer."""
        method = self.config.method
        rule = replace(method.rule, budget_s=seconds)
        self.config = replace(self.config, method=replace(method, rule=rule))

    def run_workload(
        self, task: WorkloadSpec, finished: Collection[CaseKey]
    ) -> Generator[CollectiveRecord, None, None]:
        """Time a call by all engines and algorithms, in turns; yield each record when its timing ends.

        Records whose key is in `finished` are left out. Collective. To stop early, all ranks close the generator.
        """
        algorithms = [
            name for name in self.list_algorithms(task) if self._make_case(task, OWN, name).key not in finished
        ]
        peers = [peer for peer in self.peers if self._make_case(task, peer.name, None).key not in finished]
        if not algorithms and not peers:
            return
        workload, ready = self._prepare(task, peers, algorithms)
        try:
            for contender in self._make_benchmark(workload, ready).run():
                yield self._make_record(task, contender)
        except GeneratorExit:  # all ranks stop early; after another error the job is aborted, so nothing is freed
            free_contenders(ready)
            raise
        free_contenders(ready)

    def _make_benchmark(self, workload: Workload, contenders: list[Contender]) -> InterleavedBenchmark:
        """Return the object that times `contenders` in turns on the buffers of `workload`."""
        method = self.config.method
        return InterleavedBenchmark(self.world, workload, contenders, method, self.starter, self.on_round)

    def _prepare(
        self, task: WorkloadSpec, peers: Sequence[LibraryEngine], algorithms: Sequence[str]
    ) -> tuple[Workload, list[Contender]]:
        """Allocate a call's buffers, reusing the previous call's memory, and bind engines and algorithms to them.

        Returns the call with its buffers, and the bound engines and algorithms that can run. Collective.
        """
        if isinstance(self.module, PreallocatedModule):
            self.module.rewind()
        workload = Workload(task, self.module)
        ready, refused = prepare_contenders(self.comm, peers, workload, algorithms)
        self.refused += [reason for reason in refused if reason not in self.refused]
        self.refused_count += len(refused)
        return workload, ready

    def list_algorithms(self, task: WorkloadSpec) -> list[str]:
        """Return the names of hpccoll's algorithms that are timed for a call; empty if hpccoll is not measured."""
        return self.config.list_algorithms(task) if self.own else []

    def _make_case(self, task: WorkloadSpec, engine: str, algorithm: str | None) -> CollectiveCase:
        """Return the case of a call on this session's kind of buffer and number of nodes."""
        return task.make_case(engine, algorithm, self.config.buffer, self.config.nodes)

    def _make_record(self, task: WorkloadSpec, contender: Contender) -> CollectiveRecord:
        """Return the record of a timed engine and algorithm, with wrong elements summed over all ranks; collective."""
        wrong = None if contender.wrong is None else sum(self.world.allgather(contender.wrong))
        stop = contender.stop
        if stop is None:
            raise RuntimeError(f"{contender.name} has no stop reason: it is still running")
        case = self._make_case(task, contender.engine, contender.algorithm)
        times = contender.samples_us, stop, wrong, contender.staging, contender.stream_us
        made = make_collective_record(case, *times, contender.selected)
        residual_us = contender.clock_residual_us
        return replace_fields(
            made,
            start=contender.start,
            discarded=contender.discarded,
            clock_residual_us=None if residual_us is None else round(residual_us, 3),
        )


def share_budget(sessions: Sequence[BenchmarkSession], seconds: float) -> None:
    """Give the measurement of each record of all sessions an equal share of `seconds`."""
    cases = sum(len(session.list_cases()) for session in sessions)
    for session in sessions:
        session.set_case_budget(seconds / max(cases, 1))


def run_workloads(
    sessions: Sequence[BenchmarkSession], finished: Collection[CaseKey]
) -> Iterator[Generator[CollectiveRecord, None, None]]:
    """Yield a generator (`BenchmarkSession.run_workload`) per benchmarked call, which times it and yields its records.

    Records whose key is in `finished` are left out. Collective.
    """
    for session, task in _order_workloads(sessions):
        yield session.run_workload(task, finished)


def list_blocks(sessions: Sequence[BenchmarkSession], finished: Collection[CaseKey]) -> list[Block]:
    """Return a `Block` per benchmarked call: its message size, and its number of records that are not in `finished`."""
    return [session.make_block(task, finished) for session, task in _order_workloads(sessions)]


def _order_workloads(sessions: Sequence[BenchmarkSession]) -> list[tuple[BenchmarkSession, WorkloadSpec]]:
    """Return all benchmarked calls, each with its session; those that differ only in kind of buffer are adjacent."""
    by_workload: dict[tuple[Operation, int, bool], list[tuple[BenchmarkSession, WorkloadSpec]]] = {}
    for session in sessions:
        for task in session.tasks:
            by_workload.setdefault((task.operation, task.count, task.in_place), []).append((session, task))
    return [pair for members in by_workload.values() for pair in members]


def free_contenders(contenders: Sequence[Contender]) -> None:
    """Free the bound calls of all contenders, which must not be called afterwards; collective."""
    for contender in contenders:
        contender.free()
