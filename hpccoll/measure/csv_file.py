"""`--csv`: one line a measurement, flat columns, for spreadsheets and data frames; samples are left out."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from hpccoll.measure.comparison import Case, compare_engines
from hpccoll.measure.output_file import unwritable
from hpccoll.measure.record import CollectiveRecord, Row
from hpccoll.measure.statistics import TimeSummary

_ROW = tuple(field.name for field in fields(Row))
_TIMES = tuple(f"{field.name}_us" for field in fields(TimeSummary))
_RATIO = ("ratio_to_mpi", "ratio_to_mpi_low", "ratio_to_mpi_high")
_RESULT = ("iterations", "stop", *_TIMES, "algbw_GBps", "busbw_GBps", "wrong", "bound_us", "staging")
COLUMNS = (*_ROW, *_RESULT, *_RATIO)


def write_csv(records: Iterable[CollectiveRecord], path: str | Path, option: str = "--csv") -> None:
    """Write a heading and one line a record, in the order of the table; what is null in a record is empty here.

    Raises:
        UsageError: the file cannot be written.
    """
    lines = [
        line(record, case) for case in compare_engines(records) for entry in case.entries for record in entry.records
    ]
    try:
        with Path(path).open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
    except OSError as error:
        raise unwritable(path, option, error) from error


def line(record: CollectiveRecord, case: Case) -> dict[str, Any]:
    """Return one line of the sheet by column."""
    written = record.as_dict()
    flat = {name: written[name] for name in (*_ROW, *_RESULT) if name in written}
    flat |= {f"{name}_us": value for name, value in asdict(record.time_us).items()}
    ratio = case.ratio(record)
    bounds = (ratio.value, ratio.low, ratio.high) if ratio else (None, None, None)
    return flat | dict(zip(_RATIO, bounds, strict=True))
