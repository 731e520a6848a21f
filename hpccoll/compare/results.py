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
    """The result of a comparison of two sets of runs, A (the baseline) and B.

    Args:
        rows: the compared cases (operation, size, engine, algorithm).
        operations: the compared operations, each with all of its cases; empty if no operation has two cases.
        doubts: the different reasons why operations, or else cases, allow no verdict.
        tolerance: the fraction up to which a slowdown is no regression.
        controls: cases that show the speed of the machine, and are not compared.
        only_a: names of cases that only A measured.
        only_b: names of cases that only B measured.
        wrong: names of cases with wrong results, which are not compared.
        runs: the numbers of runs of A and of B.
        paired: whether the k-th runs of A and B were measured one after the other.
        control: the kind of `controls`.
        drift: the change of the machine's speed (B / A) that was removed, as the median over cases.
        drift_doubt: why no drift was removed; empty if it was.
        noise: estimated standard deviation of the ratio of two runs of the same software, for one case.
        disturbed: operations that other programs interrupted, with the number of runs, and the speed of the machine if
            it changed between two runs.
        unreliable: the sides with runs whose times are unreliable.
        differences: the differences between the machines and software of A and B.
        plan: further measurements that would show smaller changes.
    """

    rows: tuple[ComparedRowRecord, ...]
    operations: tuple[ComparedOperationRecord, ...]
    doubts: tuple[str, ...]
    tolerance: float
    controls: tuple[CaseKey, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    wrong: tuple[str, ...]
    runs: tuple[int, int]
    paired: bool
    control: Control
    drift: float
    drift_doubt: str
    noise: float
    disturbed: tuple[str, ...]
    unreliable: tuple[str, ...]
    differences: tuple[str, ...]
    plan: MeasurementPlan

    @property
    def records(self) -> tuple[ComparedOperationRecord | ComparedRowRecord, ...]:
        """The records of all compared operations, then those of all compared cases."""
        return (*self.operations, *self.rows)

    @property
    def widest_interval(self) -> tuple[float, float]:
        """The smallest and the largest ratio B / A in the intervals of all operations, or else of all cases."""
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
            stop: whether all rounds were run.
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
