"""Times as a function of the number of nodes, from result files of benchmark runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from hpccoll.measure.results.result_file import read_records
from hpccoll.records import CollectiveRecord, ScalingPoint, ScalingRecord

_SERIES_FIELDS = ("op", "nbytes", "in_place", "dtype", "buffer", "engine", "algorithm", "redop", "root")


def read_measurements(files: Iterable[Path]) -> list[CollectiveRecord]:
    """Return the last record of each benchmark case in each result file; damaged lines are left out.

    Raises UsageError if a file was not written by hpccoll, or has an invalid record.
    """
    return [record for file in files for record in read_records(file, "FILE").collectives()]


def make_scaling_records(records: Iterable[CollectiveRecord]) -> list[ScalingRecord]:
    """Return one record per operation, message size and algorithm that was measured in jobs of at least two sizes.

    A record has one point per job size (nodes and ranks), sorted by nodes, then ranks. If a measurement was repeated,
    the last one is used.
    """
    series: dict[tuple[object, ...], dict[tuple[int, int], CollectiveRecord]] = {}
    for record in records:
        key = tuple(getattr(record, name) for name in _SERIES_FIELDS)
        series.setdefault(key, {})[record.nodes, record.ranks] = record
    made = [
        _make_record([by_ranks[key] for key in sorted(by_ranks)]) for by_ranks in series.values() if len(by_ranks) > 1
    ]
    return sorted(  # engine `mpi` comes first
        made,
        key=lambda r: (
            *(r.op, r.redop or "", r.root or 0, r.nbytes, r.in_place, r.dtype, r.buffer),
            *(r.engine != "mpi", r.algorithm or ""),
        ),
    )


def _make_record(records: Sequence[CollectiveRecord]) -> ScalingRecord:
    """Return one record of measurements that differ only in nodes and ranks, with a point per measurement.

    The ratio of a point is its time divided by that of the first point.
    """
    first = records[0]
    points = tuple(
        ScalingPoint(r.nodes, r.ranks, t.p50, t.p50_low, t.p50_high, r.busbw, t.p50 / first.time_us.p50)
        for r, t in ((record, record.time_us) for record in records)
    )
    return ScalingRecord(**{name: getattr(first, name) for name in _SERIES_FIELDS}, points=points)
