"""Simulate tree and ring on Summit's 24,576 GPUs, as published with NCCL 2.4, and draw the maps of fastest algorithms.

This script needs neither MPI nor a GPU and gives the same results on every machine. docs/24576-ranks.md and
docs/which-algorithm.md show the script's pictures and tables and discuss its results.

    python bench/at_scale.py                    prints the tables of docs/24576-ranks.md
    python bench/at_scale.py docs/pictures      draws all pictures into a folder
    python bench/at_scale.py --write            writes the tables of both pages and all pictures; takes minutes
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marked_blocks import write_blocks
from winners import draw_maps, format_first_double_tree, format_winners, make_grids

from hpccoll.algorithms import Algorithm, chain, double_tree, get_algorithm, make_algorithm, make_hierarchical
from hpccoll.plan import Groups, IntArray, Link, Machine, Operation, Rounds, run_across_groups, run_in_groups
from hpccoll.predict.forecast import forecast
from hpccoll.predict.machine_catalogue import load_machine

PER_NODE, NODES = 6, 4096
NBYTES = 8192
RING_S, TREE_S = 180e-3, 1e-3  # the ratio that others quote from the published comparison, which says "up to 180x"
INK = "#222222"
DOCS = Path(__file__).parents[1] / "docs"


def nccl_tree(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Plan NCCL's tree: a chain within each node, the double tree across nodes, and the chain backwards."""
    groups = nodes or Groups((n,))
    up = run_in_groups(lambda slot, size: chain.reduce(slot, size, 0, 1), groups, rank)
    down = run_in_groups(lambda slot, size: chain.broadcast(slot, size, 0, 1), groups, rank)
    wide = run_across_groups(lambda node, size: double_tree.all_reduce(node, size, 1), groups, rank, 1)
    return up.scaled(wide.chunks) + wide + down.scaled(wide.chunks)


@dataclass(frozen=True, slots=True)
class Case:
    """An assumption on the latency of a hop in the ring and in the tree, within and across nodes."""

    name: str
    colour: str
    ring_us: tuple[float, float]
    tree_us: tuple[float, float]
    label_up: int = 0  # points by which the label is moved up, so that labels do not overlap

    def machine(self, hops_us: tuple[float, float]) -> Machine:
        """Return Summit with these latencies."""
        summit = load_machine("summit")

        def link(of: Link, us: float) -> Link:
            return replace(of, alpha_s=us * 1e-6, overhead_s=min(of.overhead_s, us * 1e-6))

        return replace(summit, within=link(summit.within, hops_us[0]), between=link(summit.between, hops_us[1]))


CASES = (
    Case("3.7 us for every hop", "#56B4E9", (3.7, 3.7), (3.7, 3.7)),
    Case("NCCL's cost table, protocol LL", "#009E73", (0.47, 2.7), (0.52, 5.0), 7),
    Case("NCCL's cost table, protocol Simple", "#D55E00", (3.4, 9.6), (28.0, 28.0), -5),
)


def contenders() -> dict[str, Algorithm]:
    """Return the algorithms of the comparison by their names in the output."""
    return {
        "ring": get_algorithm(Operation.ALL_REDUCE, "ring"),
        "2D ring": make_hierarchical("ring", "ring"),
        "double tree, flat": get_algorithm(Operation.ALL_REDUCE, "double_tree"),
        "tree as in NCCL": make_algorithm(Operation.ALL_REDUCE, "nccl_tree", nccl_tree, None),
    }


def seconds(case: Case, name: str, ranks: int) -> float:
    """Return the simulated time of a contender in seconds."""
    trees = name not in ("ring", "2D ring")
    machine = case.machine(case.tree_us if trees else case.ring_us)
    return forecast(contenders()[name], ranks, machine, NBYTES, chunks=1).seconds


def format_tables() -> dict[str, str]:
    """Simulate 24,576 ranks; return the tables of docs/24576-ranks.md by the names of their blocks."""
    tables = {"setup": _setup_rows(), "costs": _cost_rows(), "times": _time_rows(), "hops": _hop_rows()}
    return {name: "\n".join(rows) for name, rows in tables.items()}


def _setup_rows() -> Iterator[str]:
    n = PER_NODE * NODES
    ring = forecast(contenders()["ring"], n, load_machine("summit"), NBYTES, chunks=1)
    yield "| quantity | value |\n|---|---|"
    yield f"| ranks (GPUs) | {n:,} |"
    yield f"| nodes, GPUs per node | {NODES:,}, {PER_NODE} |"
    yield f"| message | {NBYTES // 1024} KiB of float32, {NBYTES // 4:,} elements |"
    yield f"| ranks of the ring that are simulated and stand for all | {ring.simulated_ranks} |"
    yield "| published times | NCCL 2.4 |"
    yield "| cost table | `hwLat` in `src/graph/tuning.cc` of NCCL 2.17 |"


def _cost_rows() -> Iterator[str]:
    yield "| cost of a hop | ring, within a node | ring, between nodes | ring, mean | tree, within | tree, between |"
    yield "|---|---|---|---|---|---|"
    for case in CASES:
        within, between = case.ring_us
        mean = ((PER_NODE - 1) * within + between) / PER_NODE
        cells = " | ".join(f"{us:g} us" for us in (within, between, float(f"{mean:.2g}"), *case.tree_us))
        yield f"| {case.name} | {cells} |"


def _time_rows() -> Iterator[str]:
    names = list(contenders())
    yield f"| cost of a hop | {' | '.join(names)} | ring / 2D ring | ring / tree |"
    yield "|---|" + "---|" * (len(names) + 2)
    for case in CASES:
        found = {name: seconds(case, name, PER_NODE * NODES) * 1e3 for name in names}
        times = " | ".join(f"{ms:.1f} ms" if ms > 1.5 else f"{ms:.3f} ms" for ms in found.values())
        ratios = [found["ring"] / found[name] for name in ("2D ring", "tree as in NCCL")]
        yield f"| {case.name} | {times} | {ratios[0]:.1f}x | {ratios[1]:,.0f}x |"
    yield f"| published | {RING_S * 1e3:.0f} ms | | | {TREE_S * 1e3:.0f} ms | | up to {RING_S / TREE_S:.0f}x |"


def _hop_rows() -> Iterator[str]:
    n, levels = PER_NODE * NODES, (NODES - 1).bit_length()
    crossing = sum(hop % PER_NODE == PER_NODE - 1 for hop in range(2 * (n - 1)))
    hops = {
        "ring": (2 * (n - 1) - crossing, crossing, RING_S),
        "2D ring": (2 * (PER_NODE - 1), 2 * (NODES - 1), None),
        "tree as in NCCL": (2 * (PER_NODE - 1), 2 * levels, TREE_S),
    }
    yield "| algorithm | hops in a row | within nodes | between nodes | published time | published time per hop |"
    yield "|---|---|---|---|---|---|"
    for name, (within, between, published) in hops.items():
        times = f"{published * 1e3:.0f} ms | {published / (within + between) * 1e6:.3g} us" if published else " | "
        yield f"| {name} | {within + between:,} | {within:,} | {between:,} | {times} |"
    yield f"| double tree, flat | {2 * (n - 1).bit_length()} | | | | |"


def draw_curve(path: Path) -> None:
    """Draw latency over ranks for each assumption, and the ratio of ring to tree."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 5.2), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    counts = [PER_NODE << k for k in range(13)]
    for case in CASES:
        times = {name: [seconds(case, name, n) for n in counts] for name in ("ring", "tree as in NCCL", "2D ring")}
        shapes = {"ring": ("-", "o"), "tree as in NCCL": ("--", "^")}
        if case is CASES[-1]:
            shapes["2D ring"] = (":", "s")
        for name, (line, marker) in shapes.items():
            milliseconds = [each * 1e3 for each in times[name]]
            left.plot(counts, milliseconds, line, marker=marker, color=case.colour, markersize=4.5, linewidth=1.6)
        ratio = [ring / tree for ring, tree in zip(times["ring"], times["tree as in NCCL"], strict=True)]
        right.plot(counts, ratio, "-", marker="D", color=case.colour, markersize=4.5, linewidth=1.6)
        place: dict[str, Any] = {"xytext": (9, case.label_up), "textcoords": "offset points", "va": "center"}
        right.annotate(f"{ratio[-1]:,.0f}x", (counts[-1], ratio[-1]), color=case.colour, fontsize=9.5, **place)
    _published(left, right)
    for axes, title in ((left, "Latency (ms)"), (right, "Ring / tree")):
        _format_axes(axes, title, counts)
    _draw_legends(left, right)
    figure.suptitle("All-reduce of 8 KiB on 6 to 24,576 GPUs of Summit, simulated", x=0.01, ha="left", fontsize=13,
                    fontweight="bold", color=INK)  # fmt: skip
    figure.savefig(path, dpi=130)


def _published(left: Any, right: Any) -> None:
    """Draw the published times and their ratio as stars."""
    n = PER_NODE * NODES
    star = {"marker": "*", "markersize": 15, "color": "black", "linestyle": "none", "zorder": 5}
    left.plot([n, n], [RING_S * 1e3, TREE_S * 1e3], **star)
    right.plot([n], [RING_S / TREE_S], **star)
    place: dict[str, Any] = {"xytext": (9, -16), "textcoords": "offset points", "va": "center"}
    right.annotate(f"{RING_S / TREE_S:.0f}x", (n, RING_S / TREE_S), color=INK, fontsize=9.5, **place)


def _format_axes(axes: Any, title: str, counts: list[int]) -> None:
    """Set title, scales, ticks and grid of a panel."""
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(counts[::2], [f"{n:,}" for n in counts[::2]])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.set_xlabel("ranks, 6 per node", color=INK)
    axes.grid(visible=True, which="major", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9)
    axes.margins(x=0.09)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _draw_legends(left: Any, right: Any) -> None:
    """Draw the legends: algorithms on the left, assumptions on the right."""
    from matplotlib.lines import Line2D

    looks: list[tuple[Any, str, str]] = [("-", "o", "ring"), (":", "s", "2D ring"), ("--", "^", "tree as in NCCL")]
    shapes = [Line2D([], [], linestyle=line, marker=m, color=INK, markersize=5, label=name) for line, m, name in looks]
    shapes.append(Line2D([], [], linestyle="none", marker="*", color="black", markersize=12, label="published"))
    left.legend(handles=shapes, loc="upper left", frameon=False, fontsize=9.5, labelcolor=INK, handlelength=3.2)
    colours = [Line2D([], [], color=case.colour, linewidth=3, label=case.name) for case in CASES]
    right.legend(handles=colours, loc="upper left", frameon=False, fontsize=9.5, labelcolor=INK,
                 title="what a hop costs", title_fontsize=9.5, alignment="left")  # fmt: skip


def main() -> int:
    """Print the tables, or write pictures and pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="where the pictures go; none: no pictures")
    parser.add_argument("--write", action="store_true", help="write the pages of docs/, and their pictures")
    options = parser.parse_args()
    begin = time.perf_counter()
    tables = format_tables()
    print("\n\n".join(tables.values()))
    folder = DOCS / "pictures" if options.write else options.folder
    if folder is not None:
        draw_curve(folder / "24576-ranks.png")
        grids = make_grids()
        draw_maps(grids, folder)
        if options.write:
            write_blocks(DOCS / "24576-ranks.md", tables)
            winners = {kind: format_winners(by_machine) for kind, by_machine in grids.items()}
            blocks = {**winners, "double tree": format_first_double_tree(grids["rule"])}
            write_blocks(DOCS / "which-algorithm.md", blocks)
    print(f"\n{time.perf_counter() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
