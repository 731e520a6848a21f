"""Time the sides of a case side by side, and make the records of the comparison; used by all scripts of this folder.

A case is one task, such as an operation at a size. The sides of a case are implementations of the task on the same
buffers. The first side is the baseline. The second side is another instance of the baseline, and the ratio of the two
is the noise (the A/A row). A round times every side once, in a new random order. A sample is the time of `batch` calls
back to back after a barrier, divided by `batch`, as the maximum over the ranks. No sample is removed.

A ratio is median(baseline) / median(side), so a ratio above 1 means that the side is faster. A side counts as slower
only if the 95 % interval of its ratio is entirely below 1 and below the noise (the A/A row's interval or its inverse).

Other programs distort a comparison, so every case records how many cores they kept busy (`others_cores`). `--patience
N` repeats a case, up to N times, while `others_cores` is more than QUIET, and keeps the repetition with the fewest.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import psutil
from mpi4py import MPI
from numpy.typing import NDArray

from hpccoll.records import SCHEMA
from hpccoll.statistics import Interval, ratio_of_medians, summarize

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator

Floats = NDArray[np.float32]
FEWEST, MOST = 15, 2000  # rounds per case
PILOT, WARM_UP = 3, 5
QUIET, PAUSE_S = 0.1, 5.0  # cores that other programs may keep busy; seconds before a case is repeated


@dataclass(frozen=True, slots=True)
class Must:
    """A requirement that a side be no slower than the side `against`, up to noise.

    `share` or `us` also allow a median that is larger by this fraction or by this many microseconds; with `both_ways`,
    the median must not be smaller by more either. With `times`, the side must be at least this many times as fast.
    """

    text: str
    against: str
    share: float = 0.0
    us: float = 0.0
    times: float = 0.0
    both_ways: bool = False


@dataclass(slots=True)
class Side:
    """One implementation of a case. `seconds`, if given, times one call itself and returns this rank's seconds.

    `checked` is False for sides that only move memory, because they have no result.
    """

    name: str
    call: Callable[[], object]
    musts: tuple[Must, ...] = ()
    checked: bool = True
    seconds: Callable[[], float] | None = None
    samples_us: list[float] = field(default_factory=list)
    wrong: int | None = None


@dataclass(slots=True)
class Case:
    """A task and its sides, the implementations to compare on the same buffers.

    `before` runs before each sample, untimed. `check` runs a side on known data and returns the number of wrong
    elements on this rank. `late` runs after timing and returns a side's name and its number of wrong timed elements.
    """

    name: str
    nbytes: int
    batch: int
    sides: list[Side]
    before: Callable[[], object] | None = None
    check: Callable[[Callable[[], object]], int] | None = None
    late: Callable[[], tuple[str, int]] | None = None
    others_cores: float = float("inf")

    def side(self, name: str) -> Side:
        """Return the side of that name."""
        return next(side for side in self.sides if side.name == name)

    def ratio(self, side: Side, against: str | None = None) -> Interval:
        """Return median(baseline, or `against`) / median(side) with its interval."""
        return ratio_of_medians(self.side(against or self.sides[0].name).samples_us, side.samples_us)

    def holds(self, side: Side, must: Must) -> bool:
        """Whether the side meets a requirement."""
        if must.times:
            return self.ratio(side, must.against).value >= must.times
        if must.share or must.us:
            other = np.median(self.side(must.against).samples_us)
            more = np.median(side.samples_us) - other
            return bool((abs(more) if must.both_ways else more) <= max(must.share * other, must.us))
        noise = self.ratio(self.sides[1])
        return self.ratio(side, must.against).high >= min(1.0, noise.low, 1 / noise.high)


@dataclass(frozen=True, slots=True)
class Bench:
    """The ranks of a script (`comm`), hpccoll's communicator on them (`own`), and the script's options."""

    script: str
    comm: MPI.Intracomm
    own: Communicator
    sizes: tuple[int, ...]
    seconds: float
    patience: int
    seed: int
    link_mbit: float = 0.0
    finished: frozenset[tuple[str, int]] = frozenset()  # name and bytes of cases that an earlier run has measured
    deadline: float = float("inf")  # no case begins after this time of time.monotonic

    def is_due(self, name: str, nbytes: int) -> bool:
        """Whether a case is to be measured: no earlier run has measured it, and the time is not up. Collective."""
        return (name, nbytes) not in self.finished and bool(self.comm.bcast(time.monotonic() < self.deadline))

    def run(self, case: Case) -> Case:
        """Check the results of every side, time the sides in turns, and store the samples in the case; collective."""
        for side in case.sides:
            if case.check is not None and side.checked:
                side.wrong = self.comm.allreduce(case.check(side.call))
        for attempt in range(1 + self.patience):
            time.sleep(PAUSE_S if attempt else 0)
            samples, others = self._time_case(case)
            if others < case.others_cores:
                case.others_cores = others
                for side, column in zip(case.sides, samples.T, strict=True):
                    side.samples_us = [round(float(sample) * 1e6, 3) for sample in column]
            if case.others_cores <= QUIET:
                break
        if case.late is not None:
            name, wrong = case.late()
            case.side(name).wrong = self.comm.allreduce(wrong)
        return case

    def _time_case(self, case: Case) -> tuple[NDArray[np.float64], float]:
        """Warm up and time all sides; return seconds per call, shape (rounds, sides), and cores kept busy by others."""
        order = random.Random(self.seed)  # noqa: S311 - the same order on every rank, not a secret
        for _ in range(WARM_UP):
            for side in case.sides:
                side.call()
        begin = time.perf_counter()
        self._time_rounds(case, PILOT, order)
        round_s = (time.perf_counter() - begin) / PILOT
        count = self.comm.bcast(int(min(max(self.seconds / round_s, FEWEST), MOST)))
        busy, begin = self._sum_busy_s(), time.perf_counter()
        samples = self._time_rounds(case, count, order)
        others = (self._sum_busy_s() - busy) / (time.perf_counter() - begin)
        return samples, max(0.0, round(self.comm.bcast(others), 3))

    def _time_rounds(self, case: Case, count: int, order: random.Random) -> NDArray[np.float64]:
        """Time every side once per round; return the maximum over ranks, shape (count, sides). Collective."""
        taken = np.empty((count, len(case.sides)))
        for row in taken:
            for i in order.sample(range(len(case.sides)), len(case.sides)):
                side = case.sides[i]
                row[i] = side.seconds() if side.seconds else self._time_batch(case, side.call)
        self.comm.Allreduce(MPI.IN_PLACE, taken, MPI.MAX)
        return taken

    def _time_batch(self, case: Case, call: Callable[[], object]) -> float:
        """Return this rank's seconds per call, over `batch` calls after a barrier."""
        turns = itertools.repeat(None, case.batch)
        if case.before is not None:
            case.before()
        self.comm.Barrier()
        begin = time.perf_counter()
        for _ in turns:
            call()
        return (time.perf_counter() - begin) / case.batch

    def _sum_busy_s(self) -> float:
        """Return the CPU seconds of this machine since it booted, minus those of all ranks; collective."""
        mine = psutil.Process().cpu_times()
        ranks = self.comm.allreduce(mine.user + mine.system)
        spent = psutil.cpu_times()
        return float(sum(spent) - spent.idle - getattr(spent, "iowait", 0.0) - getattr(spent, "guest", 0.0) - ranks)

    def records(self, case: Case) -> list[dict[str, Any]]:
        """Return the records of a case: one of kind `comparison` per side (see README.md)."""
        head = {"schema": SCHEMA, "kind": "comparison", "script": self.script, "case": case.name}
        workload = {"ranks": self.comm.size, "nbytes": case.nbytes, "batch": case.batch}
        return [head | {"side": side.name} | workload | _summarize_side(case, side) for side in case.sides]


def _summarize_side(case: Case, side: Side) -> dict[str, Any]:
    """Return the part of a side's record that follows from its samples."""
    musts = [
        {"text": must.text, "ratio": asdict(case.ratio(side, must.against)), "holds": case.holds(side, must)}
        for must in side.musts
    ]
    return {
        "iterations": len(side.samples_us),
        "time_us": msgspec.structs.asdict(summarize(side.samples_us)),
        "baseline": case.sides[0].name,
        "ratio": None if side is case.sides[0] else asdict(case.ratio(side)),
        "musts": musts,
        "wrong": side.wrong,
        "others_cores": case.others_cores,
        "samples_us": side.samples_us,
    }


def all_reduce_check(comm: MPI.Intracomm, x: Floats) -> Callable[[Callable[[], object]], int]:
    """Return a function that checks an in-place sum of `x` and then zeroes `x`, so that timed sums stay finite."""
    pattern = np.arange(len(x), dtype=np.float32) % 7

    def check(call: Callable[[], object]) -> int:
        np.add(pattern, comm.rank, out=x)
        call()
        wrong = int(np.count_nonzero(x != comm.size * pattern + comm.size * (comm.size - 1) / 2))
        x[:] = 0
        return wrong

    return check


def summary_of(seconds: Sequence[float]) -> dict[str, float | None]:
    """Return the summary, in microseconds, of times given in seconds."""
    return msgspec.structs.asdict(summarize([round(each * 1e6, 3) for each in seconds]))
