"""Times contenders (engines and algorithms) on the same buffers, in turns whose order is random in every round.

A sample is the maximum over ranks of one iteration's time. All ranks start an iteration together, at a time of a global
clock or after a barrier (see `iteration_start`). Before an iteration of a library that communicates in threads of its
own (Gloo), early ranks sleep until all ranks have arrived. If ranks waited in an MPI barrier instead, they would keep
their cores, and Gloo's threads would wait for a core for milliseconds. The ranks then pass Gloo's own barrier, which
wakes Gloo's threads: without this barrier, an all_reduce of 4 MiB takes 1.2 times as long as in a loop of
torch.distributed.

Rank 0 decides how many iterations a turn has and when to stop, and broadcasts both, so that all ranks call the same
collectives.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccoll.measure.data import HostArray
from hpccoll.measure.iteration_start import BarrierStarter, WindowStarter
from hpccoll.measure.stopping import StoppingRule
from hpccoll.measure.workload import IDENTICAL_RESULTS, Workload
from hpccoll.records import Staging, StartMethod, StopReason

if TYPE_CHECKING:
    from mpi4py import MPI

TURN_S, MOST_A_TURN = 2e-3, 20
MOST_DISCARDED, SHARE_DISCARDED = 50, 0.8  # start windows do not work if more rounds, and a larger share, miss them
FAR_BEHIND, SHARE_BEHIND = 2.0, 0.3  # a contender FAR_BEHIND times slower than the best gets SHARE_BEHIND of its budget


@dataclass(slots=True)
class Contender:
    """A collective of one library and algorithm, which is timed beside others, with its times so far."""

    engine: str  # the library, such as `mpi`, or `hpccoll`
    algorithm: str | None  # None for another library's own choice
    call: Callable[[], object]  # runs the collective once
    free: Callable[[], None]
    staging: Staging = None  # how MPI accesses device memory; None for host memory
    works_in_threads: bool = False  # whether the call needs cores for threads of its own
    wake_threads: Callable[[], object] | None = None  # the library's barrier, called before each timed call
    selected: str | None = None  # what `auto` selected: an algorithm, or `mpi`
    oracle: Callable[[], HostArray] | None = None  # returns the exact bits that this rank's output must have
    samples_us: list[float] = field(default_factory=list)
    stream_us: list[float] = field(default_factory=list)  # samples by CUDA events; empty for host memory
    spent_s: float = 0.0
    wrong: int | None = None
    stop: StopReason | None = None
    start: StartMethod = StartMethod.BARRIER
    discarded: int = 0  # rounds in which a rank missed the start window
    clock_residual_us: float | None = None

    @property
    def name(self) -> str:
        """The contender's name, `ENGINE/ALGORITHM`, such as `hpccoll/ring`; `mpi/-` if the engine chooses."""
        return f"{self.engine}/{self.algorithm or '-'}"

    @property
    def median_us(self) -> float:
        """The median of the samples so far in microseconds; infinite if there are none."""
        return float(np.median(self.samples_us)) if self.samples_us else float("inf")


class IterationTime(NamedTuple):
    """One iteration on this rank: its duration by two clocks, whether it began late, and when the rank was ready."""

    seconds: float  # duration by the host's clock
    stream_s: float  # duration by CUDA events; 0 for host memory
    late: bool  # whether this rank started the iteration too late
    delay_s: float  # from the announcement of the start until this rank was ready


@dataclass(frozen=True, slots=True)
class TimingOptions:
    """How a collective is timed: `warmup` untimed iterations, then timed ones until `rule` stops them.

    If `check` is set, all results are compared with expected ones; `seed` determines the data and the order of turns.
    """

    rule: StoppingRule
    warmup: int
    check: bool
    seed: int


class InterleavedBenchmark:
    """Times libraries and algorithms (contenders) in turns on the same buffers.

    All public methods except `count_iterations` and `decide_stop` are collective.

    Args:
        comm: the communicator of the ranks.
        workload: the operation with its buffers.
        contenders: the calls that are timed.
        method: how to time the contenders.
        starter: lets all ranks start an iteration together; None: every iteration starts after a barrier.
        on_round: called after each round of turns with the share of the timing that is done, from 0 to 1.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        workload: Workload,
        contenders: list[Contender],
        method: TimingOptions,
        starter: BarrierStarter | None = None,
        on_round: Callable[[float], None] | None = None,
    ) -> None:
        self.comm, self.workload, self.method, self.on_round = comm, workload, method, on_round
        self.contenders, self.running = contenders, list(contenders)
        self.barrier = BarrierStarter(comm)
        self.starter = starter or self.barrier
        for contender in contenders:
            contender.start = self.starter.method if contender.wake_threads is None else StartMethod.BARRIER
        self._random = random.Random(method.seed)  # noqa: S311 - the same order on every rank, not a secret

    def run(self) -> Iterator[Contender]:
        """Warm up and time all contenders; yield each when the stopping rule ends its timing. Collective."""
        for contender in self.running:
            self.warm_up(contender)
        while self.running:
            for contender in self._random.sample(self.running, len(self.running)):
                self.time_turn(contender)
            decides = self.comm.rank == 0
            stops = self.comm.bcast([self.decide_stop(contender) for contender in self.running] if decides else None)
            residual = self.starter.measure_residual() if any(stops) else None
            for contender, stop in zip(list(self.running), stops, strict=True):
                if stop is not None:
                    contender.stop = stop
                    if residual is not None and contender.start is self.starter.method:
                        contender.clock_residual_us = residual.offset_us
                    self.running.remove(contender)
                    yield contender
            if self.on_round is not None:
                self.on_round(sum(map(self._compute_share, self.contenders)) / len(self.contenders))

    def _compute_share(self, contender: Contender) -> float:
        """Return how much of a contender's timing is done, from 0 to 1, by the limit that ends the timing first."""
        rule, samples = self.method.rule, len(contender.samples_us)
        if contender.stop is not None:
            return 1.0
        spent = max(samples / rule.max_iterations, contender.spent_s / self._find_budget(contender))
        return min(samples / rule.min_iterations, spent, 1.0)

    def warm_up(self, contender: Contender) -> None:
        """Run untimed iterations; if results are checked, set `contender.wrong`, the number of wrong elements.

        Results are compared with expected values, with the exact bits of `contender.oracle`, and with other ranks'
        checksums. Collective.
        """
        wrong = 0
        for _ in range(max(self.method.warmup, 1 if self.method.check else 0)):
            self.workload.reset()
            self.barrier.wait(contender.works_in_threads)
            contender.call()
            self.workload.module.synchronize()
            if self.method.check:
                wrong += self.workload.count_wrong()
        if self.method.check:
            if contender.oracle is not None and self.workload.result is not None:
                wrong += count_different_elements(self.workload.read_output(), contender.oracle())
            differ = len(set(self.comm.allgather(self.workload.checksum_output()))) > 1
            contender.wrong = wrong + (differ and self.workload.task.operation in IDENTICAL_RESULTS)

    def time_turn(self, contender: Contender) -> None:
        """Time several iterations; append the time of each on its slowest rank to the contender's samples. Collective.

        Iterations that any rank started too late are counted in `discarded`, and their times are dropped.
        """
        begin = time.perf_counter()
        self.starter.refresh()
        if contender.start is StartMethod.WINDOW and self.starter.method is StartMethod.BARRIER:
            _start_by_barrier(contender)
            contender.discarded = 0  # a count above zero would mean that ranks missed most start windows
        count = self.comm.bcast(self.count_iterations(contender))
        local = np.array([self.time_iteration(contender) for _ in range(count)])
        seconds, stream_s, late, delays_s = np.max(self.comm.allgather(local), axis=0).T
        kept = late == 0
        contender.samples_us += (seconds[kept] * 1e6).tolist()
        if self.workload.module.on_device:
            contender.stream_us += (stream_s[kept] * 1e6).tolist()
        contender.discarded += int(np.count_nonzero(late))
        if contender.start is StartMethod.WINDOW:
            self._adapt_window(contender, delays_s)
        contender.spent_s += time.perf_counter() - begin

    def _adapt_window(self, contender: Contender, delays_s: NDArray[np.float64]) -> None:
        """Adapt the time between announcement and start of iterations; if ranks miss most starts, use a barrier.

        `delays_s` has, for each iteration of the turn, the time that the slowest rank needed to be ready. Collective.
        Raises UsageError if the start window that the user fixed by --window is too short.
        """
        self.starter.adapt(delays_s)
        rounds = contender.discarded + len(contender.samples_us)
        if contender.discarded > max(MOST_DISCARDED, SHARE_DISCARDED * rounds):
            if isinstance(self.starter, WindowStarter) and self.starter.fixed:
                raise self.starter.explain_misses(contender.discarded, rounds, delays_s)
            _start_by_barrier(contender)

    def count_iterations(self, contender: Contender) -> int:
        """Return how many iterations of a contender fit into a turn of TURN_S seconds: from 1 to MOST_A_TURN; local."""
        median_s = max(contender.median_us / 1e6, 1e-7)
        fitting = 1 if not contender.samples_us else max(1, min(MOST_A_TURN, int(TURN_S / median_s)))
        return min(fitting, max(self.method.rule.max_iterations - len(contender.samples_us), 1))

    def time_iteration(self, contender: Contender) -> IterationTime:
        """Run one iteration that all ranks start together, and return its `IterationTime` on this rank.

        If results are checked, the wrong elements are added to `contender.wrong`. Collective.
        """
        workload = self.workload
        timer = workload.module.make_stream_timer()
        if self.method.check:
            workload.reset()
        starter = self.starter if contender.start is self.starter.method else self.barrier
        start = starter.wait(contender.works_in_threads)
        if contender.wake_threads is not None:
            contender.wake_threads()
        begin = time.perf_counter()
        if timer is not None:
            timer[0]()
        contender.call()
        if timer is not None:
            timer[1]()
        workload.module.synchronize()
        seconds = time.perf_counter() - begin
        if self.method.check and contender.wrong is not None:
            contender.wrong += workload.count_wrong()
        stream_s = timer[2]() if timer is not None else 0.0
        return IterationTime(seconds, stream_s, start.is_late(begin, seconds), start.delay_s)

    def decide_stop(self, contender: Contender) -> StopReason | None:
        """Return the reason to stop timing a contender, or None to go on; local, for rank 0."""
        share = contender.spent_s / self._find_budget(contender)
        return self.method.rule.decide(contender.samples_us, share * self.method.rule.budget_s)

    def _find_budget(self, contender: Contender) -> float:
        """Return the seconds that timing a contender may take: fewer if a contender that still runs is much faster."""
        behind = contender.median_us > FAR_BEHIND * find_least_median_us(self.running)
        return self.method.rule.budget_s * (SHARE_BEHIND if behind else 1.0)


def _start_by_barrier(contender: Contender) -> None:
    """Start a contender's later iterations by barriers, and drop its samples, which began in start windows."""
    contender.start = StartMethod.BARRIER
    contender.samples_us, contender.stream_us = [], []


def find_least_median_us(contenders: Iterable[Contender]) -> float:
    """Return the least median time of contenders without wrong results on this rank; infinity if there is none."""
    return min((contender.median_us for contender in contenders if not contender.wrong), default=float("inf"))


def count_different_elements(found: HostArray, exact: HostArray) -> int:
    """Return the number of elements whose bits differ between two arrays of equal length; two NaNs count as equal."""
    shape = len(found), found.itemsize  # -1 in place of the size of an element cannot be computed without elements
    differ = found.view(np.uint8).reshape(shape) != exact.view(np.uint8).reshape(shape)
    nan = np.isnan(found) & np.isnan(exact) if found.dtype.kind in "fcV" else np.zeros(len(found), np.bool_)
    return int(np.count_nonzero(differ.any(axis=1) & ~nan))
