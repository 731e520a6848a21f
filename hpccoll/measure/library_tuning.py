"""Measures the algorithms of the MPI library or of NCCL side by side, to write files of tuning rules for that library.

At every message size, all algorithms take turns on the same buffers, as in `hpccoll tune`. The fastest algorithm that
is proven faster than the library's default is measured once more, beside the default alone. An algorithm with a wrong
result is not selected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpccoll.arrays import ArrayModule, DType
from hpccoll.library_rules import DEFAULT, LibraryAlgorithm, SizeSamples, select_candidate
from hpccoll.measure.bandwidth import compute_count
from hpccoll.measure.contenders import prepare_peer
from hpccoll.measure.interleaved import Contender, InterleavedBenchmark, TimingOptions, find_least_median_us
from hpccoll.measure.results.collective_record import make_collective_record
from hpccoll.measure.workload import Workload, WorkloadSpec, list_places
from hpccoll.peers.forced_algorithms import AlgorithmLibrary, ForcedEngine
from hpccoll.plan import Operation
from hpccoll.records import CollectiveRecord, StopReason
from hpccoll.runtime import job
from hpccoll.statistics import is_interval_full, median_interval

if TYPE_CHECKING:
    from mpi4py import MPI


HOPELESS = 3.0  # stop an algorithm whose median is proven to be this many times that of the best


class ForcedBenchmark(InterleavedBenchmark):
    """Times the algorithms of another library in turns; the library is forced to use one algorithm in each turn."""

    library: AlgorithmLibrary
    engines: dict[str, ForcedEngine]  # the key is a contender's `algorithm`

    def warm_up(self, contender: Contender) -> None:
        """Run untimed iterations with the contender's algorithm, which the library is forced to use; collective."""
        with self.library.force(self.engines[contender.algorithm or ""]):
            super().warm_up(contender)

    def time_turn(self, contender: Contender) -> None:
        """Time several iterations while the library is forced to use the contender's algorithm. Collective."""
        with self.library.force(self.engines[contender.algorithm or ""]):
            super().time_turn(contender)

    def decide_stop(self, contender: Contender) -> StopReason | None:
        """Return the reason to stop timing an algorithm, or None; BUDGET if proven HOPELESS times as slow as the best.

        A few samples prove nothing, because a rank may have waited for its core in each of them.
        """
        samples, best = contender.samples_us, find_least_median_us(self.contenders)
        if samples and is_interval_full(samples) and median_interval(samples).low > HOPELESS * best:
            return StopReason.BUDGET
        return super().decide_stop(contender)


@dataclass(frozen=True, slots=True)
class LibraryTuning:
    """A measurement of another library's algorithms, for operations and message sizes in bytes (nccl-tests' S).

    `module` allocates the buffers, `method` is how calls are timed, and all calls together are timed for `budget_s`
    seconds. `run` is collective over `world`.
    """

    world: MPI.Intracomm
    library: AlgorithmLibrary
    operations: tuple[Operation, ...]
    sizes: tuple[int, ...]
    dtype: DType
    module: ArrayModule
    method: TimingOptions
    budget_s: float  # of all cases together

    def list_tasks(self) -> list[WorkloadSpec]:
        """Return the benchmarked calls, one per operation and size, with a separate output if the operation has one."""
        tasks: dict[tuple[Operation, int], WorkloadSpec] = {}
        for operation in self.operations:
            for size in self.sizes if operation is not Operation.BARRIER else (0,):
                count = compute_count(operation, size, self.dtype.itemsize, self.world.size)
                place = list_places(operation, (False,))[0]
                values = (self.dtype, "sum", 0, place, self.world.rank, self.world.size, self.method.seed)
                tasks[operation, count] = WorkloadSpec(operation, count, *values)
        return list(tasks.values())

    def count_cases(self) -> int:
        """Return the number of timings: one per operation, message size and algorithm. Collective."""
        return sum(len(self.library.list_engines(task.operation)) for task in self.list_tasks())

    def compute_case_budget_s(self) -> float:
        """Return the seconds for timing one algorithm at one size; two per size may be timed once more. Collective."""
        shares = self.count_cases() + 2 * len(self.list_tasks())
        return self.budget_s / max(shares, 1)

    def run(self, note_record: Callable[[CollectiveRecord], None]) -> Iterator[SizeSamples]:
        """Time all algorithms; yield their times per operation and size, and pass each record to `note_record`.

        Collective.
        """
        method = replace(self.method, rule=replace(self.method.rule, budget_s=self.compute_case_budget_s()))
        previous, operation = DEFAULT, None
        for task in self.list_tasks():
            if task.operation is not operation:
                previous, operation = DEFAULT, task.operation
            measured = self._measure(task, self.library.list_engines(task.operation), previous, method, note_record)
            previous = measured.selected
            yield measured

    def _measure(
        self,
        task: WorkloadSpec,
        engines: Sequence[ForcedEngine],
        previous: LibraryAlgorithm,
        method: TimingOptions,
        note_record: Callable[[CollectiveRecord], None],
    ) -> SizeSamples:
        """Return the times of all algorithms for one operation and size, and the selected algorithm. Collective.

        If the selected algorithm is not the library's default, both are timed once more.

        Args:
            task: the operation and size.
            engines: the algorithms.
            previous: the algorithm selected for the next smaller size.
            method: how to time the algorithms.
            note_record: is called with the record of each algorithm.
        """
        workload = Workload(task, self.module)
        usable = [engine for engine in engines if engine.algorithm == DEFAULT or self._can_run(workload, engine)]
        contenders = self._time(workload, usable, method)
        for contender in contenders:
            note_record(self._make_record(task, contender))
        samples = _collect_samples(usable, contenders)
        selected = self.world.bcast(select_candidate(samples, previous))
        repeated = {}
        if selected != DEFAULT:
            both = [engine for engine in usable if engine.algorithm in (DEFAULT, selected)]
            repeated = _collect_samples(both, self._time(workload, both, method))
        return SizeSamples(task.operation, task.nbytes, selected, samples, repeated)

    def _can_run(self, workload: Workload, engine: ForcedEngine) -> bool:
        """Whether the library carries out the call with the algorithm of `engine` on all ranks. Collective."""
        works = True
        try:
            with self.library.force(engine, strict=True):
                prepare_peer(engine.engine, workload).call()
        except job.load_mpi().Exception:
            works = False
        return all(self.world.allgather(works))

    def _time(self, workload: Workload, engines: Sequence[ForcedEngine], method: TimingOptions) -> list[Contender]:
        """Time the algorithms of `engines` in turns; return a `Contender` with the times of each. Collective."""
        contenders = [
            replace(prepare_peer(engine.engine, workload), algorithm=engine.algorithm.label) for engine in engines
        ]
        benchmark = ForcedBenchmark(self.world, workload, contenders, method)
        benchmark.library, benchmark.engines = self.library, {engine.algorithm.label: engine for engine in engines}
        for _ in benchmark.run():
            pass
        for contender in contenders:
            contender.wrong = sum(self.world.allgather(contender.wrong or 0))
        return contenders

    def _make_record(self, task: WorkloadSpec, contender: Contender) -> CollectiveRecord:
        """Return the record of a timed algorithm (`contender`) for the call `task`. Collective."""
        nodes = job.detect_layout(self.world).nodes
        case = task.make_case(contender.engine, contender.algorithm, self.library.buffer, nodes)
        if contender.stop is None:
            raise RuntimeError(f"{contender.name} has no stop reason: it is still running")
        return make_collective_record(case, contender.samples_us, contender.stop, contender.wrong)


def _collect_samples(
    engines: Sequence[ForcedEngine], contenders: Sequence[Contender]
) -> dict[LibraryAlgorithm, list[float]]:
    """Return the times in us of each algorithm without wrong results, and of the library's default in any case."""
    pairs = zip(engines, contenders, strict=True)
    return {
        engine.algorithm: contender.samples_us
        for engine, contender in pairs
        if engine.algorithm == DEFAULT or not contender.wrong
    }
