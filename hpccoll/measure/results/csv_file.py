"""Writes the file of `--csv`: one line per measurement, without samples, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hpccoll.atomic_files import write_atomically
from hpccoll.measure.results.measured_case import (
    Implementation,
    MeasuredCase,
    list_cases,
    list_implementations,
    pair_places,
)
from hpccoll.measure.results.output_file import explain_write_errors
from hpccoll.records import CollectiveCase, CollectiveRecord, TimeSummary

_TIMES = tuple(f"{name}_us" for name in TimeSummary.__struct_fields__)
_RATIO = ("ratio_to_mpi", "ratio_to_mpi_low", "ratio_to_mpi_high")
_RESULT = ("iterations", "stop", *_TIMES, "algbw_GBps", "busbw_GBps", "wrong", "bound_us", "staging")
COLUMNS = (*CollectiveCase.__struct_fields__, *_RESULT, *_RATIO)


def write_csv(records: Iterable[CollectiveRecord], path: str | Path) -> None:
    """Write a CSV file: a heading, then one line per record in the order of the printed table; None is an empty cell.

    Raises UsageError if the file cannot be written.
    """
    lines = [
        _flatten_record(name, case)
        for pair in pair_places(list_cases(records))
        for name in list_implementations(pair)
        for case in pair
        if name in case.records
    ]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    with explain_write_errors(path, "--csv"):
        write_atomically(path, text.getvalue())


def _flatten_record(name: Implementation, case: MeasuredCase) -> dict[str, Any]:
    """Return the CSV cells of the implementation `name` in a measured case, by column name.

    One cell is the ratio of the time of engine `mpi` to that of the implementation.
    """
    cells = case.records[name].as_dict()
    cells |= {f"{name}_us": value for name, value in cells["time_us"].items()}
    ratio = case.ratio_to_mpi(name)
    bounds = (ratio.value, ratio.low, ratio.high) if ratio else (None, None, None)
    cells |= dict(zip(_RATIO, bounds, strict=True))
    return {name: cells[name] for name in COLUMNS}
