"""Runs `hpccoll bench`: for each operation and size, all engines and algorithms side by side."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpccoll.algorithms.registry import list_algorithm_names
from hpccoll.measure.bandwidth import compute_count, compute_message_bytes
from hpccoll.measure.buffers import SharedMemoryModule
from hpccoll.measure.collective_record import make_collective_record
from hpccoll.measure.contenders import prepare_contenders
from hpccoll.measure.interleaved import Contender, InterleavedBenchmark, TimingOptions
from hpccoll.measure.workload import Workload, WorkloadSpec
from hpccoll.plan import Operation
from hpccoll.records import CaseKey, CollectiveCase, CollectiveRecord
from hpccoll.runtime.arrays import ArrayModule, DType, PreallocatedCupyModule, Reduction

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.communicator import Communicator
    from hpccoll.peers import LibraryEngine

# in_place of operations that have only one of in place and out of place
FIXED_PLACES = {Operation.BROADCAST: True, Operation.BARRIER: True}


@dataclass(frozen=True, slots=True)
class BenchmarkConfig:
    """The cases of a run. `algorithms` may contain `all`; `places` are values of in_place; sizes are nccl-tests' S."""

    operations: tuple[Operation, ...]
    sizes: tuple[int, ...]
    dtype: DType
    redop: str
    root: int
    places: tuple[bool, ...]
    algorithms: tuple[str, ...]
    buffer: str
    nodes: int
    method: TimingOptions

    def list_algorithms(self, operation: Operation) -> list[str]:
        """Return the algorithms to run for an operation, without those that it does not have."""
        known = list_algorithm_names(operation)
        wanted = known if "all" in self.algorithms else [name for name in known if name in self.algorithms]
        return [*wanted, *(["auto"] if "auto" in self.algorithms else [])]

    def max_buffer_bytes(self, ranks: int) -> int:
        """Return an upper bound of the bytes of input and output together, on one rank, over all workloads."""
        return (
            max(
                compute_message_bytes(task.operation, task.count, task.dtype.itemsize, ranks)
                for task in self.list_workloads(0, ranks)
            )
            * 2
        )

    def list_workloads(self, rank: int, ranks: int) -> list[WorkloadSpec]:
        """Return the workloads of a rank, by operation and size; raise UsageError if dtype has no such reduction."""
        for operation in self.operations:
            if operation.reduces:
                Reduction(self.redop, 1).require(self.dtype)
        found: dict[tuple[Operation, int, bool], WorkloadSpec] = {}
        for operation in self.operations:
            fixed = FIXED_PLACES.get(operation)
            for size in self.sizes if operation is not Operation.BARRIER else self.sizes[:1]:
                count = compute_count(operation, size, self.dtype.itemsize, ranks)
                for place in self.places if fixed is None else (fixed,):
                    found[operation, count, place] = WorkloadSpec(
                        operation, count, self.dtype, self.redop, self.root, place, rank, ranks, self.method.seed
                    )
        return list(found.values())


class BenchmarkSession:
    """A benchmark on the ranks of `world`. `refused` collects the reasons for contenders that could not run."""

    def __init__(
        self,
        suite: BenchmarkConfig,
        world: MPI.Intracomm,
        comm: Communicator,
        peers: list[LibraryEngine],
        module: ArrayModule,
        own: bool,
    ) -> None:
        self.suite, self.world, self.comm, self.peers, self.module = suite, world, comm, peers, module
        self.own = own  # whether hpccoll itself is a contender
        self.tasks = suite.list_workloads(world.rank, world.size)
        self.refused: list[str] = []

    @property
    def case_count(self) -> int:
        """The number of cases of a complete run."""
        return sum(len(self.peers) + len(self._algorithms(task)) for task in self.tasks)

    def share_budget(self, seconds: float) -> None:
        """Divide a budget of seconds among all cases; each still runs its minimum of iterations."""
        method = self.suite.method
        rule = replace(method.rule, budget_s=seconds / max(self.case_count, 1))
        self.suite = replace(self.suite, method=replace(method, rule=rule))

    def run(self, finished: Collection[CaseKey]) -> Generator[CollectiveRecord, None, None]:
        """Time all cases but those in `finished`; yield the record of each as soon as it is done. Collective."""
        for task in self.tasks:
            algorithms = [
                name for name in self._algorithms(task) if self._case(task, "hpccoll", name).key not in finished
            ]
            peers = [peer for peer in self.peers if self._case(task, peer.name, None).key not in finished]
            if not algorithms and not peers:
                continue
            if isinstance(self.module, SharedMemoryModule | PreallocatedCupyModule):
                self.module.rewind()
            workload = Workload(task, self.module)
            ready, refused = prepare_contenders(self.comm, peers, workload, algorithms)
            self.refused += [reason for reason in refused if reason not in self.refused]
            try:
                for contender in InterleavedBenchmark(self.world, workload, ready, self.suite.method).run():
                    yield self._record(task, contender)
            except GeneratorExit:  # all ranks stop early; after another error the job is aborted, so nothing is freed
                _free(ready)
                raise
            _free(ready)

    def _algorithms(self, task: WorkloadSpec) -> list[str]:
        return self.suite.list_algorithms(task.operation) if self.own else []

    def _case(self, task: WorkloadSpec, engine: str, algorithm: str | None) -> CollectiveCase:
        operation = task.operation
        return CollectiveCase(
            op=operation.value,
            engine=engine,
            algorithm=algorithm,
            buffer=self.suite.buffer,
            in_place=task.in_place,
            nbytes=compute_message_bytes(operation, task.count, task.dtype.itemsize, task.ranks),
            count=task.count,
            dtype=task.dtype.name,
            redop=task.redop if operation.reduces else None,
            root=task.root if operation.has_root else None,
            ranks=task.ranks,
            nodes=self.suite.nodes,
        )

    def _record(self, task: WorkloadSpec, contender: Contender) -> CollectiveRecord:
        wrong = None if contender.wrong is None else sum(self.world.allgather(contender.wrong))
        stop = contender.stop
        if stop is None:
            raise RuntimeError(f"{contender.name} has no stop reason: it is still running")
        case = self._case(task, contender.engine, contender.algorithm)
        return make_collective_record(case, contender.samples_us, stop, wrong, contender.staging, contender.stream_us)


def _free(contenders: Sequence[Contender]) -> None:
    for contender in contenders:
        contender.free()
