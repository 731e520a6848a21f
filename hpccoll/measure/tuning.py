"""Runs `hpccoll tune`: times every candidate at every size side by side, and makes the tuning table's points.

The candidates are all algorithms of an operation and the MPI library's own collective. Each is measured as a plain call
runs it: in place where `comm.all_reduce(x)` works in place, else with a separate `out`. A candidate that is far slower
than the best after a few iterations is stopped; one with a wrong result does not enter the table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psutil

from hpccoll.algorithms.registry import get_algorithm
from hpccoll.measure.buffers import SharedMemoryModule, make_buffer_module
from hpccoll.measure.contenders import prepare_contenders
from hpccoll.measure.interleaved import Contender, InterleavedBenchmark, TimingOptions
from hpccoll.measure.session import BenchmarkConfig, BenchmarkSession
from hpccoll.measure.stopping import StoppingRule
from hpccoll.measure.workload import Workload, WorkloadSpec
from hpccoll.peers import MpiEngine
from hpccoll.plan import Operation
from hpccoll.records import CollectiveRecord, StopReason
from hpccoll.runtime.arrays import DType, PreallocatedCupyModule
from hpccoll.selection.tuning_table import MPI_LIBRARY, BufferKind, CandidateTiming, TuningPoint, TuningSeries

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.communicator import Communicator

IN_PLACE = (Operation.ALL_REDUCE, Operation.REDUCE)  # operations that work in place by default
HOPELESS, GLANCE = 3.0, 5  # stop a candidate this many times slower than the best after this many iterations
FEWEST, MOST = 9, 1000  # iterations per case; 9 have a 95 % interval without their extremes
TIGHT = 0.01
BUSY = 0.2  # busy cores of other programs above which measurements are doubtful


class PruningBenchmark(InterleavedBenchmark):
    """Stops contenders that are far slower than the best early."""

    def __init__(
        self, comm: MPI.Intracomm, workload: Workload, contenders: list[Contender], method: TimingOptions
    ) -> None:
        super().__init__(comm, workload, contenders, method)
        self._all = list(contenders)

    def decide_stop(self, contender: Contender) -> StopReason | None:
        """Return why to stop timing a contender, or None to continue; BUDGET for one far slower than the best."""
        best = min(each.median_us for each in self._all)
        if len(contender.samples_us) >= GLANCE and contender.median_us > HOPELESS * best:
            return StopReason.BUDGET
        return super().decide_stop(contender)


@dataclass(frozen=True, slots=True)
class TuningSweep:
    """The operations, sizes (nccl-tests' S), element types and kinds of buffers to tune."""

    operations: tuple[Operation, ...]
    sizes: tuple[int, ...]
    dtypes: tuple[DType, ...]
    buffers: tuple[BufferKind, ...]
    nodes: int
    seed: int
    date: str

    def make_configs(self, buffer: BufferKind) -> list[BenchmarkConfig]:
        """Return the benchmarks in one kind of buffer; a barrier, which has none, is in those of the first kind."""
        method = TimingOptions(StoppingRule(FEWEST, MOST, TIGHT, 1.0), warmup=2, check=True, seed=self.seed)
        suites = []
        for dtype in self.dtypes:
            for place in (True, False):
                operations = tuple(
                    each
                    for each in self.operations
                    if (each in IN_PLACE) is place and (each is not Operation.BARRIER or buffer is self.buffers[0])
                )
                if operations:
                    facts = (operations, self.sizes, dtype, "sum", 0, (place,), ("all",), str(buffer), self.nodes)
                    suites.append(BenchmarkConfig(*facts, method))
        return suites


class TuningSession(BenchmarkSession):
    """Times the cases of one benchmark; `found` grows by a series of one point with each finished size."""

    found: tuple[TuningSeries, ...] = ()
    date = ""

    def run_candidates(self) -> Iterator[CollectiveRecord]:
        """Time all candidates; yield the record of each as soon as it is done. Collective."""
        for task in self.tasks:
            if isinstance(self.module, SharedMemoryModule | PreallocatedCupyModule):
                self.module.rewind()
            workload = Workload(task, self.module)
            ready, refused = prepare_contenders(self.comm, self.peers, workload, self._algorithms(task))
            self.refused += [reason for reason in refused if reason not in self.refused]
            records = []
            for contender in PruningBenchmark(self.world, workload, ready, self.suite.method).run():
                records.append(self._record(task, contender))
                yield records[-1]
            for contender in ready:
                contender.free()
            self.found += (self._series(task, records),)

    def _algorithms(self, task: WorkloadSpec) -> list[str]:
        known = [get_algorithm(task.operation, name) for name in super()._algorithms(task)]
        host, alone = self.suite.buffer != BufferKind.CUDA, self.suite.nodes == 1
        return [each.name for each in known if not each.uses_shared_memory or (host and (alone or each.is_hybrid))]

    def _series(self, task: WorkloadSpec, records: Sequence[CollectiveRecord]) -> TuningSeries:
        timings = tuple(
            CandidateTiming(
                each.algorithm or MPI_LIBRARY, each.time_us.p50, each.time_us.p50_low, each.time_us.p50_high
            )
            for each in records
            if not each.wrong
        )
        point = TuningPoint(records[0].nbytes, self.date, timings)
        buffer = BufferKind.HOST if task.operation is Operation.BARRIER else BufferKind(self.suite.buffer)
        return TuningSeries(task.operation, task.dtype.itemsize, buffer, (point,))


class OtherProcessLoad:
    """Measures the cores of this node that other programs keep busy, since its creation; for jobs on one node."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm, self._begin, self._busy = comm, time.perf_counter(), self._busy_s(comm)

    def measure_busy_cores(self) -> float:
        """Return the mean number of cores that other programs kept busy; collective."""
        busy = self._busy_s(self._comm) - self._busy
        return max(0.0, float(self._comm.bcast(busy / (time.perf_counter() - self._begin))))

    @staticmethod
    def _busy_s(comm: MPI.Intracomm) -> float:
        mine, spent = psutil.Process().cpu_times(), psutil.cpu_times()
        ranks = comm.allreduce(mine.user + mine.system)
        return float(sum(spent) - spent.idle - getattr(spent, "iowait", 0.0) - getattr(spent, "guest", 0.0) - ranks)


def make_tuning_sessions(
    sweep: TuningSweep, world: MPI.Intracomm, comm: Communicator, budget_s: float, row_s: float | None
) -> list[TuningSession]:
    """Return the sessions that measure a sweep, with buffers allocated; collective.

    Args:
        sweep: what to tune.
        world: the ranks.
        comm: hpccoll's communicator on them.
        budget_s: seconds for all cases together.
        row_s: seconds for each case instead; None for an equal share of `budget_s`.
    """
    ready: list[TuningSession] = []
    for buffer in sweep.buffers:
        suites = sweep.make_configs(buffer)
        if not suites:
            continue
        module = make_buffer_module(buffer, comm, max(suite.max_buffer_bytes(world.size) for suite in suites))
        ready += [TuningSession(suite, world, comm, [MpiEngine(world)], module, own=True) for suite in suites]
    rows = sum(trial.case_count for trial in ready)
    for trial in ready:
        trial.date = sweep.date
        method = trial.suite.method
        rule = replace(method.rule, budget_s=row_s or budget_s / max(rows, 1))
        trial.suite = replace(trial.suite, method=replace(method, rule=rule))
    return ready
