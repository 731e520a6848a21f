"""The fastest all-reduce in simulation by machine, rank count and message size: maps, and tables of the same results.

docs/which-algorithm.md shows the maps and tables; at_scale.py writes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from hpccoll.algorithms import get_algorithm, list_algorithm_names
from hpccoll.plan import Operation
from hpccoll.predict.forecast_grid import ForecastGrid, forecast_grid, list_rank_counts
from hpccoll.predict.machine_catalogue import load_machine
from hpccoll.predict.winner_map import draw_winner_map
from hpccoll.units import format_size

MACHINES = {"summit": 1536, "dgx-h100": 1024, "workstation": 1024}  # with the largest number of ranks
CONTENDERS = ("ring", "tree", "double_tree")
RULE_RANKS = (32, 512)  # "tree below 32 GPUs, double tree above 512"
SIZES = [8 * 4**k for k in range(14)]


def make_grids() -> dict[str, dict[str, ForecastGrid]]:
    """Return simulated times by kind and machine: kind `rule` has three algorithms, kind `all` has every algorithm."""
    kinds = {"rule": list(CONTENDERS), "all": list_algorithm_names(Operation.ALL_REDUCE)}
    return {
        kind: {machine: _simulate(machine, most, names) for machine, most in MACHINES.items()}
        for kind, names in kinds.items()
    }


def _simulate(name: str, most: int, algorithms: list[str]) -> ForecastGrid:
    """Return the simulated times of algorithms on a machine of up to `most` ranks."""
    machine = load_machine(name)
    chosen = [get_algorithm(Operation.ALL_REDUCE, algorithm) for algorithm in algorithms]
    return forecast_grid(chosen, machine, list_rank_counts(most, machine), SIZES)


def draw_maps(grids: dict[str, dict[str, ForecastGrid]], folder: Path) -> None:
    """Write one map per kind (`rule` or `all`) and machine into a folder."""
    for kind, by_machine in grids.items():
        for machine, grid in by_machine.items():
            marks = RULE_RANKS if kind == "rule" else ()
            draw_winner_map(grid, marks).savefig(folder / f"winners-{kind}-{machine}.png", dpi=130)


def format_winners(by_machine: dict[str, ForecastGrid]) -> str:
    """Return a Markdown table with the fastest algorithm of each range of sizes, for some rank counts per machine."""
    return "\n".join(_format_rows(by_machine))


def _format_rows(by_machine: dict[str, ForecastGrid]) -> Iterator[str]:
    yield "| machine | ranks | fastest, by message size |\n|---|---|---|"
    for grid in by_machine.values():
        for ranks in _pick_ranks(grid):
            winners = [(grid.find_winner(ranks, nbytes).name, nbytes) for nbytes in grid.sizes]
            runs = [(name, [nbytes for _, nbytes in run]) for name, run in groupby(winners, key=lambda pair: pair[0])]
            cells = [
                f"`{name}` {format_size(run[0])}" + (f" to {format_size(run[-1])}" if len(run) > 1 else "")
                for name, run in runs
            ]
            yield f"| {grid.machine.name} | {ranks:,} | {'; '.join(cells)} |"


def _pick_ranks(grid: ForecastGrid) -> list[int]:
    """Return the ranks of one node, the largest count up to 32, a middle one, the first above 511, and the largest."""
    low, high = RULE_RANKS
    counts = [n for n in grid.ranks if n >= grid.machine.ranks_per_node]
    few, many = [n for n in counts if n <= low], [n for n in counts if n >= high]
    between = [n for n in counts if low < n < high]
    return list(dict.fromkeys([few[0], few[-1], between[len(between) // 2], many[0], many[-1]]))


def format_first_double_tree(by_machine: dict[str, ForecastGrid]) -> str:
    """Return a Markdown table with the rank counts from which the double tree wins at some size below 16 MiB."""
    lines = ["| machine | ranks per node | double tree wins below 16 MiB from |", "|---|---|---|"]
    sizes = [nbytes for nbytes in SIZES if nbytes < 16 << 20]
    for grid in by_machine.values():
        per_node = grid.machine.ranks_per_node
        winning = [
            n
            for n in grid.ranks
            if n > per_node and any(grid.find_winner(n, nbytes).name == "double_tree" for nbytes in sizes)
        ]
        lines.append(f"| {grid.machine.name} | {per_node} | {min(winning):,} ranks |")
    return "\n".join(lines)
