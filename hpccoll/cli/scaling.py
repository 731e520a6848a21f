"""`hpccoll scaling`: the results of several runs, side by side over the number of nodes.

The record of kind `scaling`, one per series: `op`, `nbytes`, `in_place`, `dtype`, `buffer`, `engine`, `algorithm`, and
`points`: `nodes`, `ranks`, `p50_us` with its interval, `busbw_GBps`, and `ratio` to the first point's median.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import click

from hpccoll.cli.output import STDOUT, is_printing_rank, open_json_lines, print_table
from hpccoll.errors import UsageError
from hpccoll.units import format_size

if TYPE_CHECKING:
    from hpccoll.records import ScalingRecord


@click.command(epilog="Example: hpccoll scaling results/sweep-1234")
@click.argument("paths", metavar="FILE|FOLDER...", nargs=-1, required=True)
@click.option("--json", "target", metavar="FILE", help="Write one JSON record per line; - for standard output.")
def scaling(paths: tuple[str, ...], target: str | None) -> None:
    """Compare result files of `hpccoll bench`: each row's time per number of nodes it was measured on.

    A folder stands for all .jsonl files in it and its subfolders, such as those of slurm/sweep.sh.
    """
    if not is_printing_rank():
        return
    from hpccoll.measure.scaling import find_result_files, make_scaling_records, read_measurements

    files = find_result_files(paths)
    found = make_scaling_records(read_measurements(files))
    if not found:
        raise UsageError(
            f"nothing to compare: no row of {', '.join(map(str, files[:4]))} was measured on two numbers of nodes; "
            "name results of runs on different numbers of nodes"
        )
    with open_json_lines(target) as lines:
        for each in found:
            lines.write(each.as_dict())
    if target != STDOUT:
        _print_tables(found)


def _print_tables(records: Sequence[ScalingRecord]) -> None:
    """Print a table per operation, place, dtype and kind of buffer, with a column per number of nodes."""
    for (op, in_place, dtype, buffer), group in groupby(sorted(records, key=_table_of), key=_table_of):
        members = list(group)
        places = sorted({(point.nodes, point.ranks) for record in members for point in record.points})
        counts = [
            f"{nodes} x {ranks // nodes}" if ranks % nodes == 0 else f"{ranks} on {nodes}" for nodes, ranks in places
        ]
        title = f"{op}, {dtype}, {buffer} memory, {'in' if in_place else 'out of'} place; us by nodes x ranks per node"
        rows = []
        for record in members:
            cells = {(point.nodes, point.ranks): f"{point.p50_us:.4g}" for point in record.points}
            name = f"{record.engine}/{record.algorithm}" if record.algorithm else record.engine
            times = [cells.get(place, "-") for place in places]
            rows.append([format_size(record.nbytes), name, *times, f"{record.points[-1].ratio:.2f}x"])
        columns = ("size", "contender", *counts, "last/first")
        print_table(title, columns, rows, ("size", *counts, "last/first"))
        click.echo()


def _table_of(record: ScalingRecord) -> tuple[str, bool, str, str]:
    """Return what the rows of one table have in common."""
    return record.op, record.in_place, record.dtype, record.buffer
