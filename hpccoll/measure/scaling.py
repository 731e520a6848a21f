"""Times over numbers of nodes, from the result files of several runs such as the tasks of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from hpccoll.errors import UsageError
from hpccoll.measure.result_file import read_records
from hpccoll.records import CollectiveRecord, ScalingPoint, ScalingRecord

_SERIES_FIELDS = ("op", "nbytes", "in_place", "dtype", "buffer", "engine", "algorithm")


def find_result_files(paths: Sequence[str]) -> list[Path]:
    """Return the result files that `paths` name; a folder stands for all `.jsonl` files below it.

    Raises:
        UsageError: a path does not exist, or a folder contains no such file.
    """
    found: list[Path] = []
    for name in paths:
        path = Path(name)
        if not path.exists():
            raise UsageError(f"{name}: no such file or folder; name a file that `hpccoll bench --json` wrote")
        files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
        if not files:
            raise UsageError(f"{name}: no .jsonl file in this folder; name files that `hpccoll bench --json` wrote")
        found += files
    return found


def read_measurements(files: Iterable[Path]) -> list[CollectiveRecord]:
    """Return the measurements in result files; an incomplete last line is left out.

    Raises:
        UsageError: a file is not one of hpccoll's, or holds an invalid record.
    """
    return [record for file in files for record in read_records(file, "FILE").collectives()]


def make_scaling_records(records: Iterable[CollectiveRecord]) -> list[ScalingRecord]:
    """Return one record per engine, algorithm, size and place that was measured on two numbers of ranks or more.

    Its points are in order of nodes and ranks. Of several measurements of a point the last one counts.
    """
    series: dict[tuple[object, ...], dict[tuple[int, int], CollectiveRecord]] = {}
    for record in records:
        key = tuple(getattr(record, name) for name in _SERIES_FIELDS)
        series.setdefault(key, {})[record.nodes, record.ranks] = record
    made = [
        _make_record([by_ranks[at] for at in sorted(by_ranks)]) for by_ranks in series.values() if len(by_ranks) > 1
    ]
    return sorted(made, key=_sort_key)


def _make_record(records: Sequence[CollectiveRecord]) -> ScalingRecord:
    first = records[0]
    points = tuple(
        ScalingPoint(
            record.nodes,
            record.ranks,
            record.time_us.p50,
            record.time_us.p50_low,
            record.time_us.p50_high,
            record.busbw,
            record.time_us.p50 / first.time_us.p50,
        )
        for record in records
    )
    return ScalingRecord(**{name: getattr(first, name) for name in _SERIES_FIELDS}, points=points)


def _sort_key(record: ScalingRecord) -> tuple[object, ...]:
    """Sort by what was measured, then the MPI library first."""
    what = (record.op, record.nbytes, record.in_place, record.dtype, record.buffer)
    return (*what, record.engine != "mpi", record.algorithm or "")
