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
    from hpccoll.measure.scaling import Scaling


@click.command(epilog="Example: hpccoll scaling results/sweep-1234")
@click.argument("paths", metavar="FILE|FOLDER...", nargs=-1, required=True)
@click.option("--json", "target", metavar="FILE", help="Write one JSON record per line; - for standard output.")
def scaling(paths: tuple[str, ...], target: str | None) -> None:
    """Compare result files of `hpccoll bench`: each row's time per number of nodes it was measured on.

    A folder stands for all .jsonl files in it and its subfolders, such as those of slurm/sweep.sh.
    """
    if not is_printing_rank():
        return
    from hpccoll.measure.scaling import find_result_files, read_measurements, scalings

    files = find_result_files(paths)
    found = scalings(read_measurements(files))
    if not found:
        raise UsageError(
            f"nothing to compare: no row of {', '.join(map(str, files[:4]))} was measured on two numbers of nodes; "
            "name results of runs on different numbers of nodes"
        )
    with open_json_lines(target) as lines:
        for each in found:
            lines.write(each.record())
    if target != STDOUT:
        _print_tables(found)


def _print_tables(found: Sequence[Scaling]) -> None:
    """Print a table per operation, place, dtype and kind of buffer, with a column per number of nodes."""

    def group_key(each: Scaling) -> tuple[str, bool, str, str]:
        return each.series.op, each.series.in_place, each.series.dtype, each.series.buffer

    for (op, in_place, dtype, buffer), group in groupby(sorted(found, key=group_key), key=group_key):
        members = list(group)
        places = sorted({point.place for each in members for point in each.points})
        counts = [
            f"{nodes} x {ranks // nodes}" if ranks % nodes == 0 else f"{ranks} on {nodes}" for nodes, ranks in places
        ]
        title = f"{op}, {dtype}, {buffer} memory, {'in' if in_place else 'out of'} place; us by nodes x ranks per node"
        rows = []
        for each in members:
            cells = {point.place: f"{point.time_us.p50:.4g}" for point in each.points}
            name = f"{each.series.engine}/{each.series.algorithm}" if each.series.algorithm else each.series.engine
            times = [cells.get(place, "-") for place in places]
            rows.append([format_size(each.series.nbytes), name, *times, f"{each.ratios[-1]:.2f}x"])
        columns = ("size", "contender", *counts, "last/first")
        print_table(title, columns, rows, ("size", *counts, "last/first"))
        click.echo()
