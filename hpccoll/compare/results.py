"""The results of a comparison: ratios of times with intervals, and verdicts on rows and operations."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hpccoll.compare.drift import Control
from hpccoll.compare.evidence import DEFAULT_CHANGE, MeasurementPlan
from hpccoll.compare.hypothesis_tests import SampleOrder
from hpccoll.compare.measured_runs import RowKey


class Verdict(StrEnum):
    """Whether B is faster than A (better), slower than A (worse), or neither has been shown."""

    BETTER = "better"
    WORSE = "worse"
    NO_EVIDENCE = "no evidence"


@dataclass(frozen=True, slots=True)
class ComparedTimes:
    """The ratio of the times of B and A with its interval, and the verdict on one row or operation."""

    ratio: float
    low: float
    high: float
    confidence: float
    p_corrected: float
    verdict: Verdict
    slower_rounds: int | None  # the number of pairs of runs in which B was slower; None unless paired
    doubt: str = ""  # why the runs allow no verdict, as a clause; empty if they do

    def is_regression(self, tolerance: float) -> bool:
        """Whether B is slower than A by more than the fraction `tolerance`: the whole interval is above it."""
        return self.verdict is Verdict.WORSE and self.low > 1 + tolerance


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A row that both sides have: medians in microseconds (means over runs), and the comparison without drift."""

    key: RowKey
    a_us: float
    b_us: float
    runs: tuple[int, int]
    samples: tuple[int, int]
    order: SampleOrder
    times: ComparedTimes


@dataclass(frozen=True, slots=True)
class OperationGroup:
    """The fields that all rows of a `ComparedOperation` share."""

    op: str
    buffer: str
    dtype: str
    ranks: int
    nodes: int


@dataclass(frozen=True, slots=True)
class ComparedOperation:
    """All compared rows of an operation together: the median of their ratios."""

    group: OperationGroup
    rows: int
    times: ComparedTimes


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison of two sides, each with one or more runs.

    `controls` are the rows that show the speed of the machine and are not compared, `wrong` those with a wrong result.
    `drift` is the ratio B / A that was removed, as the median over rows; `drift_doubt` tells why none was removed.
    `noise` is the estimated standard deviation of the ratio of two runs of the same software, for one row. `disturbed`
    names the operations that other programs interrupted, with the number of runs, and the speed of the machine if it
    changed between two runs. `unreliable` names the sides with runs whose times are unreliable. `plan` tells what to
    measure to see smaller changes.
    """

    rows: tuple[ComparedRow, ...]
    operations: tuple[ComparedOperation, ...]
    controls: tuple[RowKey, ...]
    only_a: tuple[RowKey, ...]
    only_b: tuple[RowKey, ...]
    wrong: tuple[RowKey, ...]
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
    def compared(self) -> tuple[ComparedOperation | ComparedRow, ...]:
        """What a comparison as a whole is judged by: the operations, or the rows if there are no operations."""
        return self.operations or self.rows

    @property
    def doubts(self) -> tuple[str, ...]:
        """The different reasons why operations, or else rows, allow no verdict."""
        return tuple(dict.fromkeys(each.times.doubt for each in self.compared if each.times.doubt))

    @property
    def widest_interval(self) -> tuple[float, float]:
        """The smallest and the largest ratio B / A that the intervals contain."""
        times = [each.times for each in self.compared]
        return min(each.low for each in times), max(each.high for each in times)

    def lacks_evidence(self, tolerance: float) -> bool:
        """Whether nothing became better or worse, and a change beyond the tolerance may still have happened.

        `tolerance` is a fraction; 0 stands for DEFAULT_CHANGE.
        """
        if any(self.list_names(verdict) for verdict in (Verdict.BETTER, Verdict.WORSE)):
            return False
        (low, high), change = self.widest_interval, tolerance or DEFAULT_CHANGE
        return bool(self.doubts) or low < 1 / (1 + change) or high > 1 + change

    def list_names(self, verdict: Verdict) -> list[str]:
        """Return the names of the operations and rows that have a verdict."""
        operations = [each.group.op for each in self.operations if each.times.verdict is verdict]
        return operations + [each.key.name for each in self.rows if each.times.verdict is verdict]

    def list_regressions(self, tolerance: float) -> list[str]:
        """Return the names of the operations and rows in which B is slower by more than the fraction `tolerance`."""
        operations = [each.group.op for each in self.operations if each.times.is_regression(tolerance)]
        return operations + [each.key.name for each in self.rows if each.times.is_regression(tolerance)]
