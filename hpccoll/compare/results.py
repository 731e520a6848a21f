"""The result of a comparison of two sets of runs: records of cases and operations, and facts about all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpccoll.compare.drift import Control
from hpccoll.compare.evidence import DEFAULT_CHANGE, MeasurementPlan
from hpccoll.records import (
    CaseKey,
    ComparedOperationRecord,
    ComparedRowRecord,
    CompareSummaryRecord,
    StopCause,
    Verdict,
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison of two sets of runs, A (the baseline) and B."""

    rows: tuple[ComparedRowRecord, ...]  # the compared cases (operation, size, engine, algorithm)
    # The compared operations, each with all of its cases; empty if no operation has two cases
    operations: tuple[ComparedOperationRecord, ...]
    doubts: tuple[str, ...]  # the reasons why operations (or cases, if there are no operations) allow no verdict
    tolerance: float  # the fraction up to which a slowdown is no regression
    controls: tuple[CaseKey, ...]  # cases that show the speed of the machine, and are not compared
    only_a: tuple[str, ...]  # names of cases that only A measured
    only_b: tuple[str, ...]  # names of cases that only B measured
    wrong: tuple[str, ...]  # names of cases with wrong results, which are not compared
    runs: tuple[int, int]  # the numbers of runs of A and of B
    paired: bool  # whether run k of A and run k of B were measured in succession
    control: Control  # the kind of `controls`
    drift: float  # the change of the machine's speed (B / A) that was removed, as the median over cases
    drift_doubt: str  # why no drift was removed; empty if it was
    noise: float  # estimated standard deviation of the ratio of two runs of the same software, for one case
    # Descriptions of the operations that other programs interrupted in some runs, and of a change of the machine's
    # speed between two runs
    disturbed: tuple[str, ...]
    unreliable: tuple[str, ...]  # the sides with runs whose times are unreliable
    differences: tuple[str, ...]  # the differences between the machines and software of A and B
    plan: MeasurementPlan  # further measurements that would show smaller changes

    @property
    def records(self) -> tuple[ComparedOperationRecord | ComparedRowRecord, ...]:
        """The records of all compared operations, then those of all compared cases."""
        return (*self.operations, *self.rows)

    @property
    def widest_interval(self) -> tuple[float, float]:
        """The smallest and the largest ratio B / A in the intervals of all operations (of cases if there are none)."""
        compared = self.operations or self.rows
        return min(record.ratio_low for record in compared), max(record.ratio_high for record in compared)

    @property
    def lacks_evidence(self) -> bool:
        """Whether nothing became better or worse, and a change beyond the tolerance may still have happened.

        A tolerance of 0 stands for DEFAULT_CHANGE.
        """
        if any(record.verdict is not Verdict.NO_EVIDENCE for record in self.records):
            return False
        (low, high), change = self.widest_interval, self.tolerance or DEFAULT_CHANGE
        return bool(self.doubts) or low < 1 / (1 + change) or high > 1 + change

    def list_names(self, verdict: Verdict) -> list[str]:
        """Return the names of the operations and cases with a given verdict."""
        return [record.name for record in self.records if record.verdict is verdict]

    def list_regressions(self) -> list[str]:
        """Return the names of the operations and cases in which B is slower than A by more than the tolerance."""
        return [record.name for record in self.records if record.regression]

    def make_summary(self, a: Sequence[str], b: Sequence[str], stop: StopCause) -> CompareSummaryRecord:
        """Return the record that summarizes the comparison.

        Args:
            a: the files or the command of A.
            b: the files or the command of B.
            stop: how the rounds ended: `complete`, `interrupted` or `failed`.
        """
        rounds = self.plan.compute_rounds(self.tolerance or DEFAULT_CHANGE) if self.lacks_evidence else None
        shared = {name: getattr(self, name) for name in CompareSummaryRecord.__struct_fields__ if hasattr(self, name)}
        return CompareSummaryRecord(
            **shared,
            a=tuple(a),
            b=tuple(b),
            runs_a=self.runs[0],
            runs_b=self.runs[1],
            worse=tuple(self.list_names(Verdict.WORSE)),
            better=tuple(self.list_names(Verdict.BETTER)),
            regressions=tuple(self.list_regressions()),
            stop=stop,
            rounds=rounds,
        )
