"""Runs the measurements of `hpccoll tune`: times all candidates side by side at every message size.

The candidates are all algorithms of an operation and the MPI library's own collective. As in calls without `out`,
`all_reduce` and `reduce` are timed in place and the other operations with a separate output. The timing of a candidate
ends early if it is far slower than the best after a few iterations. A wrong result keeps a candidate out of the tuning
table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpccoll.algorithms import get_algorithm
from hpccoll.arrays import DType
from hpccoll.measure.buffers import make_buffer_module
from hpccoll.measure.interleaved import Contender, InterleavedBenchmark, TimingOptions, find_least_median_us
from hpccoll.measure.session import ALL, BenchmarkConfig, BenchmarkSession, free_contenders, share_budget
from hpccoll.measure.stopping import StoppingRule
from hpccoll.measure.workload import WorkloadSpec
from hpccoll.peers import MpiEngine
from hpccoll.plan import Operation
from hpccoll.records import CollectiveRecord, StopReason
from hpccoll.selection.tuning_table import MPI_LIBRARY, BufferKind, CandidateTiming, TuningPoint, TuningSeries

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.communicator import Communicator

IN_PLACE = (Operation.ALL_REDUCE, Operation.REDUCE)  # operations that work in place unless a call passes `out`
HOPELESS, GLANCE = 3.0, 5  # stop a candidate this many times slower than the best after this many iterations
FEWEST, MOST = 9, 1000  # iterations per case; the 95 % interval of 9 samples excludes the smallest and the largest
TIGHT = 0.01


class PruningBenchmark(InterleavedBenchmark):
    """Times algorithms in turns; stops timing an algorithm early if it is HOPELESS times as slow as the best."""

    def decide_stop(self, contender: Contender) -> StopReason | None:
        """Return the reason to stop timing an algorithm; None to go on.

        After GLANCE iterations, an algorithm whose median is more than HOPELESS times the least median is stopped with
        the reason BUDGET, as if its time were used up.
        """
        best = find_least_median_us(self.contenders)
        if len(contender.samples_us) >= GLANCE and contender.median_us > HOPELESS * best:
            return StopReason.BUDGET
        return super().decide_stop(contender)


@dataclass(frozen=True, slots=True)
class TuningSweep:
    """What `hpccoll tune` measures: operations, message sizes in bytes (nccl-tests' S), element types, kinds of buffer.

    `nodes` is the number of nodes of the job. `seed` determines the data and the order of turns. `date` is the current
    date, which is written to the tuning table.
    """

    operations: tuple[Operation, ...]
    sizes: tuple[int, ...]
    dtypes: tuple[DType, ...]
    buffers: tuple[BufferKind, ...]
    nodes: int
    seed: int
    date: str

    def make_configs(self, buffer: BufferKind) -> list[BenchmarkConfig]:
        """Return the benchmarks on one kind of buffer: a configuration per element type and value of `in_place`.

        Barriers, which have no data, are timed with the first kind of buffer only.
        """
        method = TimingOptions(StoppingRule(FEWEST, MOST, TIGHT, 1.0), warmup=2, check=True, seed=self.seed)
        configs = []
        for dtype in self.dtypes:
            for place in (True, False):
                operations = tuple(
                    operation
                    for operation in self.operations
                    if (operation in IN_PLACE) is place
                    and (operation is not Operation.BARRIER or buffer is self.buffers[0])
                )
                if operations:
                    values = (operations, self.sizes, dtype, "sum", 0, (place,), (ALL,), str(buffer), self.nodes)
                    configs.append(BenchmarkConfig(*values, method))
        return configs


class TuningSession(BenchmarkSession):
    """Times all algorithms on one kind of buffer, for a tuning table; `measured` has the times so far.

    When all algorithms of a message size have been timed, the times of those with right results are appended to
    `measured`.
    """

    measured: tuple[TuningSeries, ...] = ()
    date = ""

    def run_candidates(self) -> Iterator[CollectiveRecord]:
        """Time all algorithms; yield the record of each as soon as its timing ends; extend `measured`. Collective."""
        for task in self.tasks:
            workload, ready = self._prepare(task, self.peers, self.list_algorithms(task))
            records = []
            for contender in PruningBenchmark(self.world, workload, ready, self.config.method).run():
                records.append(self._make_record(task, contender))
                yield records[-1]
            free_contenders(ready)
            self.measured += (self._make_series(task, records),)

    def list_algorithms(self, task: WorkloadSpec) -> list[str]:
        """Return the names of hpccoll's algorithms that can run the call on the session's kind of buffer and nodes."""
        known = [get_algorithm(task.operation, name) for name in super().list_algorithms(task)]
        host, alone = self.config.buffer != BufferKind.CUDA, self.config.nodes == 1
        return [
            algorithm.name
            for algorithm in known
            if not algorithm.uses_shared_memory or (host and (alone or algorithm.is_two_level))
        ]

    def _make_series(self, task: WorkloadSpec, records: Sequence[CollectiveRecord]) -> TuningSeries:
        """Return the times of one message size as a `TuningSeries`, without algorithms whose results were wrong."""
        timings = tuple(
            CandidateTiming(record.algorithm or MPI_LIBRARY, time.p50, time.p50_low, time.p50_high)
            for record, time in ((record, record.time_us) for record in records)
            if not record.wrong
        )
        point = TuningPoint(records[0].nbytes, self.date, timings)
        buffer = BufferKind.HOST if task.operation is Operation.BARRIER else BufferKind(self.config.buffer)
        return TuningSeries(task.operation, task.dtype.itemsize, buffer, (point,))


def make_tuning_sessions(
    sweep: TuningSweep, world: MPI.Intracomm, comm: Communicator, budget_s: float, row_s: float | None
) -> list[TuningSession]:
    """Return a `TuningSession` per kind of buffer, element type and value of `in_place`; measures nothing.

    The function allocates the buffers. Sessions without operations are left out.

    Collective over `world`; `comm` must contain all ranks of `world`. A benchmark case takes up to `row_s` seconds
    or, if `row_s` is None, up to an equal share of `budget_s`.
    """
    sessions: list[TuningSession] = []
    for buffer in sweep.buffers:
        configs = sweep.make_configs(buffer)
        if not configs:
            continue
        module = make_buffer_module(buffer, comm, max(config.max_buffer_bytes(world.size) for config in configs))
        sessions += [TuningSession(config, world, comm, [MpiEngine(world)], module, own=True) for config in configs]
    for session in sessions:
        session.date = sweep.date
    share_budget(sessions, row_s * sum(len(session.list_cases()) for session in sessions) if row_s else budget_s)
    return sessions
