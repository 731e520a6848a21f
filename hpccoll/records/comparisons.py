"""Records of `hpccoll compare`: kinds `compared_row`, `compared_operation`, `guideline` and `compare_summary`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from hpccoll.records.collective import CaseKey
from hpccoll.records.record import Amount, Natural, Positive, Record, about

StopCause = Literal["complete", "interrupted", "failed"]


class Verdict(StrEnum):
    """Whether B is faster than the baseline A (better), slower (worse), or neither has been shown."""

    BETTER = "better"
    WORSE = "worse"
    NO_EVIDENCE = "no evidence"


class GuidelineVerdict(StrEnum):
    """Whether a guideline such as all_reduce <= reduce + broadcast holds, is violated, or neither has been shown."""

    HOLDS = "holds"
    VIOLATED = "violated"
    NO_EVIDENCE = "no evidence"  # the ratio is above 1, but perhaps by chance or within the tolerance


class ComparedTimesRecord(Record, frozen=True):
    """Base class of two records of `hpccoll compare`: the ratio of B's times to A's, with its interval and p-value."""

    ratio: Annotated[Amount, about("Time of B over time of A, without common drift; above 1 means that B is slower.")]
    ratio_low: Annotated[Amount, about("Lower end of the ratio's interval.")]
    ratio_high: Annotated[Amount, about("Upper end of the ratio's interval.")]
    confidence: Annotated[Amount, about("Confidence of the interval, corrected for the number of tests.")]
    p_value: Annotated[Amount, about("p-value, corrected for the number of tests (Holm).")]
    verdict: Annotated[Verdict, about("Whether B is faster (better), slower (worse), or neither is shown.")]
    regression: Annotated[bool, about("Whether the whole interval is above 1 plus the tolerance.")]
    slower_rounds: Annotated[Natural | None, about("Rounds in which B was slower; null unless runs are paired.")]


class ComparedRowRecord(ComparedTimesRecord, frozen=True, kw_only=True):
    """The compared times of A and B in one case: operation, size, dtype, engine, algorithm (`hpccoll compare A B`)."""

    kind: ClassVar[str] = "compared_row"

    op: str
    engine: str
    algorithm: str | None
    buffer: str
    in_place: bool
    nbytes: Annotated[Natural, about("nccl-tests' S.")]
    dtype: str
    redop: Annotated[str | None, about("null if the operation does not reduce.")]
    root: Annotated[Natural | None, about("null if the operation has no root.")]
    ranks: Positive
    nodes: Positive
    runs_a: Annotated[Positive, about("Runs of A with this row.")]
    runs_b: Annotated[Positive, about("Runs of B with this row.")]
    samples_a: Annotated[Positive, about("Timed iterations of A in all runs.")]
    samples_b: Annotated[Positive, about("Timed iterations of B in all runs.")]
    p50_a_us: Annotated[Amount, about("Median time of A as measured, mean over runs.")]
    p50_b_us: Annotated[Amount, about("Median time of B as measured, mean over runs.")]
    slower_probability: Annotated[Amount, about("Probability that a sample of B is above a sample of A (no drift).")]
    cliffs_delta: Annotated[float, about("Effect size: 2 slower_probability - 1.")]

    @property
    def key(self) -> CaseKey:
        """The fields that identify the compared case, equal in all runs that measure it."""
        return CaseKey(*(getattr(self, name) for name in CaseKey._fields))

    @property
    def name(self) -> str:
        """The compared case's name, such as `all_reduce 64 KiB hpccoll/ring`."""
        return self.key.name


class ComparedOperationRecord(ComparedTimesRecord, frozen=True, kw_only=True):
    """The compared times of A and B in all cases of one operation: the median of the ratios (`hpccoll compare A B`)."""

    kind: ClassVar[str] = "compared_operation"

    op: str
    buffer: str
    dtype: str
    ranks: Positive
    nodes: Positive
    rows: Annotated[Positive, about("Number of rows.")]

    @property
    def name(self) -> str:
        """The operation's name, such as `all_reduce`."""
        return self.op


class GuidelineRecord(Record, frozen=True):
    """Whether an engine's times at one message size satisfy a relation such as all_reduce <= reduce + broadcast."""

    kind: ClassVar[str] = "guideline"

    guideline: Annotated[str, about("The expected relation of times, such as all_reduce <= reduce + broadcast.")]
    engine: str
    algorithm: str | None
    buffer: str
    in_place: bool
    nbytes: Annotated[Natural, about("nccl-tests' S of the left side.")]
    dtype: str
    redop: Annotated[str | None, about("null if no operation reduces.")]
    ranks: Positive
    nodes: Positive
    left_us: Annotated[Amount, about("Median time of the left side.")]
    right_us: Annotated[Amount, about("Median time of the right side, the sum over its operations.")]
    ratio: Annotated[Amount, about("Left over right; above 1 means that the guideline is violated.")]
    ratio_low: Annotated[Amount, about("Lower end of the ratio's interval.")]
    ratio_high: Annotated[Amount, about("Upper end of the ratio's interval.")]
    confidence: Annotated[Amount, about("Confidence of the interval, corrected for the number of guidelines.")]
    p_value: Annotated[Amount, about("One-sided p-value, corrected for the number of guidelines (Holm).")]
    verdict: Annotated[GuidelineVerdict, about("No evidence: above 1, but by chance.")]


class CompareSummaryRecord(Record, frozen=True):
    """The overall result of `hpccoll compare A B`, such as the slower operations; the last record of its output."""

    kind: ClassVar[str] = "compare_summary"

    a: Annotated[tuple[str, ...], about("Files or the command of the baseline.")]
    b: Annotated[tuple[str, ...], about("Files or the command that is compared with the baseline.")]
    runs_a: Annotated[Positive, about("Runs of A.")]
    runs_b: Annotated[Positive, about("Runs of B.")]
    paired: Annotated[bool, about("Whether runs of A and B were measured in turns.")]
    control: Annotated[Literal["mpi", "rows", "none"], about("Rows whose common change was removed.")]
    drift: Annotated[Amount, about("Common change that was removed, B over A, median over rows.")]
    noise: Annotated[Amount, about("Standard deviation of the ratio of two runs of the same software, for one row.")]
    tolerance: Annotated[Amount, about("Slowdown that is no regression, as a fraction.")]
    worse: Annotated[tuple[str, ...], about("Operations and rows in which B is slower.")]
    better: Annotated[tuple[str, ...], about("Operations and rows in which B is faster.")]
    regressions: Annotated[tuple[str, ...], about("Operations and rows in which B is slower beyond the tolerance.")]
    only_a: Annotated[tuple[str, ...], about("Rows that only A has.")]
    only_b: Annotated[tuple[str, ...], about("Rows that only B has.")]
    wrong: Annotated[tuple[str, ...], about("Rows with wrong results, which are not compared.")]
    disturbed: Annotated[
        tuple[str, ...], about("What other programs disturbed: operations, or the speed of the machine.")
    ]
    differences: Annotated[tuple[str, ...], about("Fields of machine, versions and ranks in which A and B differ.")]
    stop: Annotated[StopCause, about("How the rounds ended: complete, interrupted or failed.")]
    doubts: Annotated[tuple[str, ...], about("Why the runs allow no verdict on operations, or else on rows.")] = ()
    rounds: Annotated[
        Positive | None, about("Rounds in turns that show a smaller change; null if none are asked for or too many.")
    ] = None
