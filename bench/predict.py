"""Fit a machine to half of the sizes of a bench record, predict the other half, and print the errors.

The input is a result file of `hpccoll bench`, of which only engine hpccoll is used. All algorithms of an operation are
fitted together. With --require, the exit status is 1 if the median error on the predicted sizes is above 15 %.

    mpirun -n 2 hpccoll bench all_reduce all_gather reduce_scatter --engine hpccoll --algorithm all -e 16M --json FILE
    python bench/predict.py FILE --json predict-2.jsonl
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from hpccoll.cli.machine_options import read_measured_rows
from hpccoll.errors import HpccollError
from hpccoll.measure.results.result_file import RecordWriter
from hpccoll.predict.fit import MachineFit, MeasuredRow, fit_machine
from hpccoll.records import SCHEMA
from hpccoll.units import format_size

MUST = 0.15


def group_by_operation(rows: list[MeasuredRow]) -> dict[str, list[MeasuredRow]]:
    """Return the rows of each operation."""
    found: dict[str, list[MeasuredRow]] = {}
    for row in rows:
        found.setdefault(row.plan.operation.value, []).append(row)
    return found


def format_fit(operation: str, found: MachineFit) -> str:
    """Return the fit of an operation as text: the machine, the errors, and one line per size."""
    machine, near = found.machine, found.machine.within
    betas = ", ".join(f"{1e-9 / beta:.2f}" for beta in (near.beta_s_per_byte, *(beta for _, beta in near.bands)))
    left_out = found.compute_median_error(fitted=False)
    lines = [
        f"{operation}: {len(found.rows)} rows; call {machine.call_s * 1e6:.2f} us, alpha {near.alpha_s * 1e6:.2f} us, "
        f"GB/s by band {betas}, reduce {1e-9 / machine.gamma_s_per_byte:.2f} GB/s",
        f"  median error {left_out:.1%} on sizes left out ({'holds' if left_out <= MUST else 'MISSED'}: at most "
        f"{MUST:.0%}), {found.compute_median_error(fitted=True):.1%} on those fitted",
    ]
    for nbytes in sorted({row.row.nbytes for row in found.rows}):
        here = [row for row in found.rows if row.row.nbytes == nbytes]
        error = float(np.median([row.error for row in here]))
        fitted = "fitted  " if here[0].fitted else "left out"
        lines.append(f"  {format_size(nbytes):>9}  {fitted}  {error:>6.1%} over {len(here)} rows")
    return "\n".join(lines)


def records(operation: str, found: MachineFit, path: str) -> Iterator[dict[str, Any]]:
    """Yield the records of kind `prediction`: one per row, then one with the machine and the median errors."""
    head = {"schema": SCHEMA, "kind": "prediction", "record": path, "op": operation}
    for row in found.rows:
        what = {"algorithm": row.row.algorithm.name, "ranks": row.row.plan.ranks, "nbytes": row.row.nbytes}
        times = {"measured_us": row.row.seconds * 1e6, "predicted_us": row.seconds * 1e6}
        yield head | what | times | {"fitted": row.fitted, "error": row.error}
    errors = {name: found.compute_median_error(fitted=name == "fitted") for name in ("fitted", "left_out")}
    yield head | {"median_error": errors, "must": MUST, "machine": asdict(found.machine)}


def main() -> int:
    """Fit and predict all operations, print the errors and write --json; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", help="JSON Lines of hpccoll bench")
    parser.add_argument("--json", metavar="FILE", help="JSON Lines; - for standard output")
    parser.add_argument("--require", action="store_true", help="exit 1 where the error is above 15 %%")
    options = parser.parse_args()
    missed = 0
    try:
        measured = group_by_operation(read_measured_rows(options.record, "record"))
        journal = RecordWriter(options.json) if options.json else None
        for operation, rows in measured.items():
            found = fit_machine(rows, options.record)
            missed += found.compute_median_error(fitted=False) > MUST
            if journal is not None:
                for record in records(operation, found, options.record):
                    journal.write(record)
            if options.json != "-":
                print(format_fit(operation, found))
        if journal is not None:
            journal.close()
    except HpccollError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_status
    return 1 if options.require and missed else 0


if __name__ == "__main__":
    sys.exit(main())
