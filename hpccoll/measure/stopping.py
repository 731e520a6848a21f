"""Decides when a case has enough samples: its median is known well, or time or iterations ran out.

Rank 0 decides from the samples (each already the maximum over ranks) and the elapsed seconds, and broadcasts it.

Testing after every turn and stopping as soon as the interval is tight favours samples that agree by chance: the 95 %
interval of a case that stopped by itself contains the true median in 93 % of simulated cases.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpccoll.errors import UsageError
from hpccoll.measure.statistics import CONFIDENCE, Samples, median_interval
from hpccoll.records import StopReason


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """Stops between `min_iterations` and `max_iterations`, when the interval is tight or the budget is spent.

    A fixed number of iterations is a rule whose two bounds are equal.

    Args:
        min_iterations: iterations that always run; fewer than 6 have no 95 % interval.
        max_iterations: most iterations.
        rel_halfwidth: stop when half the width of the median's 95 % interval is at most this fraction of the median.
        budget_s: seconds for the case, without warm-up.

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
            samples_us: all samples of the case so far.
            elapsed_s: seconds that the case has taken so far, by the clock of rank 0.
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
