"""Groups measurements into the cases that are drawn and compared together: those of one operation and job size.

If the runs used several MPI libraries, the same algorithm over two libraries counts as two implementations. If a case
was measured several times, the last measurement is drawn, and findings/noise.py compares the repetitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from hpccoll.measure.bandwidth import compute_busbw, find_timed_operation
from hpccoll.measure.display.table import PLACES
from hpccoll.measure.results.measured_case import (
    Implementation,
    MeasuredCase,
    TableKey,
    list_implementations,
    make_cases,
)
from hpccoll.records import CollectiveRecord
from hpccoll.report.load import RunMeasurement


@dataclass(frozen=True, slots=True)
class CurveGroup:
    """The measurements of one operation on one job size, in place or out of place, which are drawn in one chart.

    Each implementation (engine and algorithm) has a curve of times against the message size. `cases` has one element
    per message size, in ascending order, with the records of all implementations.
    """

    cases: tuple[MeasuredCase, ...]

    @property
    def setting(self) -> TableKey:
        """The fields that all records of the group share, such as operation, dtype and ranks."""
        return self.cases[0].setting

    @property
    def place(self) -> str:
        """The string `in-place` if results overwrite the inputs, else `out-of-place`."""
        return PLACES[self.cases[0].in_place]

    @property
    def implementations(self) -> list[Implementation]:
        """The implementations (engine and algorithm) with measurements in this group, sorted."""
        return list_implementations(self.cases)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The message sizes of all curves in bytes, in ascending order."""
        return tuple(case.nbytes for case in self.cases)

    def list_curve(self, name: Implementation) -> list[CollectiveRecord]:
        """Return the records of an implementation, in order of message size."""
        return [case.records[name] for case in self.cases if name in case.records]


def group_curves(rows: Iterable[RunMeasurement]) -> list[CurveGroup]:
    """Return the measurements grouped by operation, type, memory, job size and place: one group per chart.

    Groups are in the order in which their operation, type, memory and job size first appear in `rows`. Of two groups
    that differ only in whether results overwrite inputs, the in-place group comes first.
    """
    kept = list(rows)
    has_several_libraries = len({row.run.mpi for row in kept}) > 1
    cases = make_cases(
        (Implementation(row.record.engine, row.record.algorithm, row.run.mpi * has_several_libraries), row.record)
        for row in kept
    )
    return [CurveGroup(tuple(members)) for _, members in groupby(cases, key=lambda case: (case.setting, case.in_place))]


def get_time_interval_s(record: CollectiveRecord) -> tuple[float, float, float]:
    """Return the median time and the low and high end of its confidence interval, in seconds."""
    time = record.time_us
    return time.p50 * 1e-6, time.p50_low * 1e-6, time.p50_high * 1e-6


def compute_busbw_interval(record: CollectiveRecord) -> tuple[float, float, float]:
    """Return the bus bandwidth at the median time, and the low and high end of its confidence interval, in bytes/s."""
    op, row = find_timed_operation(record.op), record
    middle, high, low = (compute_busbw(op, row.nbytes, time, row.ranks) * 1e9 for time in get_time_interval_s(record))
    return middle, low, high
