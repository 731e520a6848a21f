"""The curves of a report: which measurements belong into one picture, and into one line of it.

A picture holds one operation on one number of ranks (compare_engines's setting) in one place. A line is one engine and
algorithm; where the files hold runs on several MPI libraries it is one of these as well, since their times are not the
same thing measured twice. A row that was measured several times is drawn as it was last; the findings compare them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hpccoll.measure.bandwidth import compute_busbw, find_timed_operation
from hpccoll.measure.comparison import TableKey, engine_order
from hpccoll.measure.record import CollectiveRecord
from hpccoll.measure.table import PLACES
from hpccoll.report.load import MeasuredRow


class Implementation(NamedTuple):
    """Who carried it out; `library` is empty where all runs are on one MPI library."""

    engine: str
    algorithm: str | None
    library: str = ""

    @property
    def label(self) -> str:
        """As shown: `ring`, `mpi`, `mpi (Open MPI 5.0.11)`."""
        own = self.algorithm if self.engine == "hpccoll" and self.algorithm else self.engine
        own = f"{self.engine} {self.algorithm}" if self.algorithm and self.engine != "hpccoll" else own
        return f"{own} ({self.library})" if self.library else own

    @property
    def sort_key(self) -> tuple[int, str, str, str]:
        """Peers first, then by name."""
        return *engine_order((self.engine, self.algorithm)), self.library


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: its measurements by size, above 0 bytes or not."""

    implementation: Implementation
    rows: tuple[MeasuredRow, ...]

    @property
    def records(self) -> tuple[CollectiveRecord, ...]:
        """The measurements, by size."""
        return tuple(row.record for row in self.rows)

    def record_at(self, nbytes: int) -> CollectiveRecord | None:
        """Return the measurement of a size, or None."""
        return next((record for record in self.records if record.row.nbytes == nbytes), None)


@dataclass(frozen=True, slots=True)
class CurveGroup:
    """What is drawn together: a setting in one place, all its lines."""

    setting: TableKey
    in_place: bool
    curves: tuple[Curve, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every size that some line has, ascending."""
        return tuple(sorted({record.row.nbytes for curve in self.curves for record in curve.records}))

    @property
    def place(self) -> str:
        """`in-place` or `out-of-place`."""
        return PLACES[self.in_place]

    def find_fastest(self, nbytes: int) -> tuple[Implementation, CollectiveRecord] | None:
        """Return who is fastest at a size, of those whose results were not found wrong."""
        found = [
            (curve.implementation, record)
            for curve in self.curves
            if (record := curve.record_at(nbytes)) and not record.wrong
        ]
        return min(found, key=lambda each: each[1].time_us.p50, default=None)

    def find_mpi_record(self, nbytes: int, library: str) -> CollectiveRecord | None:
        """Return what the MPI library itself takes at a size."""
        for curve in self.curves:
            if curve.implementation.engine == "mpi" and curve.implementation.library == library:
                return curve.record_at(nbytes)
        return None


def group_curves(rows: Iterable[MeasuredRow]) -> list[CurveGroup]:
    """Return the pictures: settings in order of appearance, in place before out of place."""
    kept = list(rows)
    several = len({row.run.mpi for row in kept}) > 1
    found: dict[TableKey, dict[bool, dict[Implementation, dict[int, MeasuredRow]]]] = {}
    for row in kept:
        what = row.record.row
        setting = TableKey(*(getattr(what, name) for name in TableKey._fields))
        name = Implementation(what.engine, what.algorithm, row.run.mpi if several else "")
        places = found.setdefault(setting, {})
        places.setdefault(what.in_place, {}).setdefault(name, {})[what.nbytes] = row
    return [
        CurveGroup(
            setting, place, tuple(_curve(name, lines[name]) for name in sorted(lines, key=lambda each: each.sort_key))
        )
        for setting, places in found.items()
        for place, lines in sorted(places.items(), reverse=True)
    ]


def _curve(name: Implementation, sizes: dict[int, MeasuredRow]) -> Curve:
    return Curve(name, tuple(sizes[nbytes] for nbytes in sorted(sizes)))


def get_time_interval_s(record: CollectiveRecord) -> tuple[float, float, float]:
    """Return the median and its interval's ends, in seconds."""
    time = record.time_us
    return time.p50 * 1e-6, time.p50_low * 1e-6, time.p50_high * 1e-6


def compute_busbw_interval(record: CollectiveRecord) -> tuple[float, float, float]:
    """Return the bus bandwidth at the median and at its interval's ends, the lower one first, in bytes/s."""
    op, row = find_timed_operation(record.row.op), record.row
    middle, high, low = (compute_busbw(op, row.nbytes, each, row.ranks) * 1e9 for each in get_time_interval_s(record))
    return middle, low, high
