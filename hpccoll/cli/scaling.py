"""`hpccoll scaling`: compares the results of runs on different numbers of nodes; writes `ScalingRecord`s."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpccoll.cli.output import STDOUT, is_printing_rank, json_option, open_json_lines, print_table
from hpccoll.errors import UsageError
from hpccoll.units import format_size

if TYPE_CHECKING:
    from hpccoll.records import ScalingRecord


@click.command(epilog="Example: hpccoll scaling results/sweep-1234")
@click.argument("paths", metavar="FILE|FOLDER...", nargs=-1, required=True)
@json_option()
def scaling(paths: tuple[str, ...], json_file: str | None) -> None:
    """Compare result files of `hpccoll bench`: print each algorithm's time on each number of nodes.

    For a folder, all .jsonl files in it and its subfolders are read, such as those of slurm/sweep.sh.
    """
    if not is_printing_rank():
        return
    from hpccoll.measure.results.result_file import find_result_files
    from hpccoll.measure.results.scaling import make_scaling_records, read_measurements

    files = [file for path in paths for file in find_result_files(Path(path))]
    records = make_scaling_records(read_measurements(files))
    if not records:
        raise UsageError(
            f"nothing to compare: no row of {', '.join(map(str, files[:4]))} was measured on two numbers of nodes; "
            "name results of runs on different numbers of nodes"
        )
    with open_json_lines(json_file) as lines:
        for record in records:
            lines.write(record.as_dict())
    if json_file != STDOUT:
        _print_tables(records)


def _print_tables(records: Sequence[ScalingRecord]) -> None:
    """Print tables of times with a column per number of nodes and ranks, and a row per size and algorithm.

    Each combination of operation, reduction, root, dtype, kind of buffer, and in or out of place has a table.
    """
    get_key = attrgetter("op", "redop", "root", "in_place", "dtype", "buffer")
    for (op, redop, root, in_place, dtype, buffer), group in groupby(
        sorted(records, key=lambda record: tuple(map(str, get_key(record)))), key=get_key
    ):
        members = list(group)
        places = sorted({(point.nodes, point.ranks) for record in members for point in record.points})
        counts = [
            f"{nodes} x {ranks // nodes}" if ranks % nodes == 0 else f"{ranks} on {nodes}" for nodes, ranks in places
        ]
        case = [op, dtype, redop or "", "" if root is None else f"root {root}", f"{buffer} memory"]
        place = f"{'in' if in_place else 'out of'} place; us by nodes x ranks per node"
        title = ", ".join([*filter(None, case), place])
        rows = []
        for record in members:
            cells = {(point.nodes, point.ranks): f"{point.p50_us:.4g}" for point in record.points}
            name = f"{record.engine}/{record.algorithm}" if record.algorithm else record.engine
            times = [cells.get(place, "-") for place in places]
            rows.append([format_size(record.nbytes), name, *times, f"{record.points[-1].ratio:.2f}x"])
        columns = ("size", "contender", *counts, "last/first")
        print_table(title, columns, rows, ("size", *counts, "last/first"))
        click.echo()
