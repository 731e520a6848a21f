"""Decides which tests of a comparison can give a verdict, and recommends further measurements for the other tests.

Two runs of the same software can differ by any factor on a machine whose cores they share with other programs, and
nothing within the two runs shows by how much. A verdict on a comparison needs:

- runs whose times `hpccoll bench` did not call unreliable, and which other programs did not interrupt often.
- for a row (the measurements of one case), at least MIN_RUNS runs per side, whose spread shows the noise between runs.
- for an operation, at least MIN_RUNS runs per side, or one run per side whose ranks had cores of their own, with a
  reliably measured drift and at least MIN_ROWS rows of MIN_WORKLOADS workloads.
- if ranks share cores or other programs are busy, at least MIN_SHARED_ROUNDS rounds of a run of A and a run of B. The
  random order within a round makes a slow phase of the machine as likely for A as for B.

The recommended number of rounds follows from the spread of the measured rounds, by the usual formula for a t test of
given power, as in Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM'13.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccoll.compare.measured_runs import MeasuredRun
from hpccoll.units import format_count

MIN_RUNS = 3
MIN_SHARED_ROUNDS = 6
MIN_ROWS, MIN_WORKLOADS = 5, 3  # rows and workloads of an operation that a verdict on single runs needs
PILOT_ROUNDS = 8  # recommended number of rounds if the noise between runs is unknown
MAX_ROUNDS = 300  # the largest number of rounds that is recommended
POWER = 0.95  # probability that a change of the size asked for is found
DEFAULT_CHANGE = 0.05  # the change (5 %) that the recommended number of rounds would show
_VALUED = ("--json", "--csv", "--plot", "--resume", "--stop-file")  # options of a run that name its files
_FLAGS = ("--overwrite", "--report-hint", "--no-report-hint")


@dataclass(frozen=True, slots=True)
class VerdictConditions:
    """How the runs of a comparison were measured: whether in pairs, and what made their times uncertain.

    The conditions decide whether the runs of a comparison allow a verdict.
    """

    paired: bool  # whether run k of A and run k of B were measured in succession
    contention: str  # why ranks had no cores of their own; empty if they had
    doubt: str  # why the change of the machine's speed between runs (drift) is not known; empty if it is

    @property
    def min_runs(self) -> int:
        """The number of undisturbed runs per side that a verdict needs."""
        return MIN_SHARED_ROUNDS if self.contention else MIN_RUNS

    def find_doubt(self, usable: NDArray[np.bool_], split: int, workloads: int = 0) -> str:
        """Return why the measurements of a case or an operation allow no verdict, as a clause; empty if they do.

        Args:
            usable: whether each measurement is neither missing nor disturbed, shape (runs, cases), first the runs of A.
            split: the number of runs of A.
            workloads: the number of workloads (operation and size) of an operation; 0 for a single case.
        """
        counts = [int(np.count_nonzero(side.any(axis=1))) for side in (usable[:split], usable[split:])]
        fewest = min(counts)
        if not fewest:
            return "no run of a side is reliable and undisturbed"
        if self.contention and not self.paired:
            return f"{self.contention}, so runs must alternate"
        if fewest >= self.min_runs:
            return ""
        if self.contention:
            return f"{self.contention}: {self.min_runs} undisturbed rounds are needed, {fewest} here"
        if not workloads:
            return f"a row needs {self.min_runs} undisturbed runs per side, {fewest} here"
        if self.doubt:
            return f"single runs whose drift is not established ({self.doubt})"
        if usable.shape[1] < MIN_ROWS or workloads < MIN_WORKLOADS:
            few = f"{format_count(usable.shape[1], 'row')} of {format_count(workloads, 'workload')}"
            return f"single runs with {few}: {MIN_ROWS} rows of {MIN_WORKLOADS} workloads are needed"
        return ""


@dataclass(frozen=True, slots=True)
class MeasurementPlan:
    """Further measurements that would show smaller changes: the commands of A and B, which are to run in turns.

    `compute_rounds` computes the number of rounds from the variance of the runs so far.
    """

    commands: tuple[str, str]  # the commands of A and B
    variance: float  # variance of log(time of B / time of A) over the rounds; 0 if unknown
    significance: float  # significance level of the test of one operation

    def compute_rounds(self, change: float) -> int | None:
        """Return how many rounds would show that B is slower by the fraction `change`; None if over MAX_ROUNDS.

        The number is at least PILOT_ROUNDS, and is PILOT_ROUNDS if the noise between runs is unknown.
        """
        if not self.variance:
            return PILOT_ROUNDS
        rounds = compute_rounds(self.variance, self.significance, change)
        return None if rounds is None else max(rounds, PILOT_ROUNDS)

    def format_command(self, rounds: int) -> str:
        """Return the command `hpccoll compare ...` that measures both sides in turns for a number of rounds."""
        a, b = self.commands
        return shlex.join(["hpccoll", "compare", "--rounds", str(rounds), "--against", a, "--run", b])


def make_plan(
    sides: Sequence[Sequence[MeasuredRun]], paired: bool, variance: float, significance: float
) -> MeasurementPlan:
    """Return a plan of further measurements: the command of each side, and the expected noise.

    If the times of some runs are unreliable, the commands of the plan measure each case longer.

    Args:
        sides: the runs of A and of B.
        paired: whether run k of A and run k of B were measured in succession.
        variance: the variance of log(time of B / time of A) in one round; ignored if it comes from few rounds.
        significance: the significance level of the test of one operation.
    """
    longer = any(run.is_unreliable for runs in sides for run in runs)
    a, b = (_make_run_command(runs[0], longer) for runs in sides)
    known = paired and min(len(runs) for runs in sides) >= MIN_RUNS
    return MeasurementPlan((a, b), variance if known else 0.0, significance)


def describe_contention(runs: Sequence[MeasuredRun]) -> str:
    """Return why ranks had no cores of their own in the first run with this problem; "" if no run has it."""
    return next((run.contention for run in runs if run.contention), "")


def describe_unreliable(sides: Sequence[Sequence[MeasuredRun]]) -> tuple[str, ...]:
    """Return a string per side with unreliable runs (by the verdict of `hpccoll bench`), as `1 of 8 runs of B`."""
    counts = [(sum(run.is_unreliable for run in runs), len(runs)) for runs in sides]
    return tuple(
        f"{bad} of {format_count(count, 'run')} of {name}"
        for name, (bad, count) in zip("AB", counts, strict=True)
        if bad
    )


def compute_rounds(variance: float, significance: float, change: float) -> int | None:
    """Return how many rounds (a run of A and one of B each) a t test needs to show a change with probability POWER.

    Args:
        variance: the variance of log(time of B / time of A) in one round.
        significance: the significance level of the two-sided test.
        change: the change to show, as a fraction such as 0.05.

    Returns:
        The number of rounds; None if it is above MAX_ROUNDS.
    """
    from scipy.special import stdtrit

    rounds = np.arange(MIN_RUNS, MAX_ROUNDS + 1)
    quantiles = stdtrit(rounds - 1, 1 - significance / 2) + stdtrit(rounds - 1, POWER)
    enough = quantiles * np.sqrt(variance / rounds) <= np.log1p(change)
    return int(rounds[enough.argmax()]) if enough.any() else None


def _make_run_command(run: MeasuredRun, longer: bool) -> str:
    """Return the command that repeats a run, with mpirun and without the options that name its output files.

    With `longer`, the command measures each case longer.
    """
    words = shlex.split(str(run.environment.get("command") or "hpccoll bench"))
    kept: list[str] = []
    skip = False
    for word in words:
        name = word.partition("=")[0]
        if not skip and name not in (*_VALUED, *_FLAGS):
            kept.append(word)
        skip = not skip and word in _VALUED
    if longer:
        kept = _lengthen(kept)
    return shlex.join(["mpirun", "-n", str(run.environment.get("ranks") or 2), *kept])


def _lengthen(words: list[str]) -> list[str]:
    """Return the words of an `hpccoll bench` command that measures three times as long as `words`, or 3 s per case."""
    for option in ("--budget", "-n", "-i", "--iterations", "--iters"):
        if option in words[:-1]:
            at = words.index(option) + 1
            return [*words[:at], f"{3 * float(words[at]):g}", *words[at + 1 :]]
    return [*words, "--budget", "3"]
