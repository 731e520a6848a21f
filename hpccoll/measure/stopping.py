"""When a row has been measured enough: its median is known well, or time or iterations ran out.

The decision is a function of numbers alone (samples that are already the maximum over ranks, and elapsed seconds), so
rank 0 takes it and broadcasts it, and no rank is left waiting in a collective that the others have given up.

Looking again after every batch, and stopping as soon as the interval is tight, favours samples that agree by luck: the
interval of a row that stopped by itself covers a little less than the 95 % it states: 93 % of simulated rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpccoll.errors import UsageError
from hpccoll.measure.statistics import CONFIDENCE, Samples, median_interval
from hpccoll.records import StopReason


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """At least `min_iterations`, at most `max_iterations`; between them until tight enough or over budget.

    A fixed number of iterations is a rule whose two bounds are equal.

    Args:
        min_iterations: iterations that are made whatever they cost; below 6 there is no 95 % interval to converge.
        max_iterations: iterations that are never exceeded.
        rel_halfwidth: half the width of the median's 95 % interval over the median, at which it is tight enough.
        budget_s: seconds for the row, warm-up not counted.

    Raises:
        UsageError: bounds that contradict each other or are not positive.
    """

    min_iterations: int
    max_iterations: int
    rel_halfwidth: float
    budget_s: float

    def __post_init__(self) -> None:
        if not 1 <= self.min_iterations <= self.max_iterations:
            raise UsageError(
                f"{self.min_iterations} to {self.max_iterations} iterations cannot be made; "
                "--iterations takes a number of at least 1"
            )
        if not (self.rel_halfwidth > 0 and self.budget_s > 0):
            raise UsageError(
                f"an interval of {self.rel_halfwidth} of the median within {self.budget_s} s cannot be reached; "
                "--budget takes seconds above 0"
            )

    def decide(self, samples_us: Samples, elapsed_s: float) -> StopReason | None:
        """Return why to stop now, or None to go on.

        Args:
            samples_us: every timing of the row so far, each the maximum over ranks.
            elapsed_s: seconds that the row has taken so far, on the clock of the rank that decides.
        """
        made = len(samples_us)
        if made < self.min_iterations:
            return None
        if made >= self.max_iterations:
            return StopReason.ITERATIONS
        if self._tight(samples_us):
            return StopReason.CONVERGED
        return StopReason.BUDGET if elapsed_s >= self.budget_s else None

    def _tight(self, samples_us: Samples) -> bool:
        median = median_interval(samples_us)
        return median.coverage >= CONFIDENCE and median.halfwidth <= self.rel_halfwidth * median.value
