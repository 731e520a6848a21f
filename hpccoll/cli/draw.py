"""`hpccoll draw`: one algorithm as a text grid, a picture, an animation or a trace, by the suffix of the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpccoll.cli.output import is_printing_rank
from hpccoll.errors import UsageError
from hpccoll.measure.output_file import describe_write_error, require_writable
from hpccoll.units import parse_size

if TYPE_CHECKING:
    from hpccoll.algorithms import Algorithm
    from hpccoll.plan import Machine, Plan
    from hpccoll.plan.drawing.history import PlanHistory

MOST_CHUNKS = 64
RANKS = 5


@dataclass(frozen=True, slots=True)
class DrawingRequest:
    """What is drawn: a plan, how many ranks each node has where nodes are to be shown, and what a trace is timed by."""

    plan: Plan
    nodes: tuple[int, ...]
    machine: Machine | None
    nbytes: int

    def history(self) -> PlanHistory:
        """The plan's frames."""
        from hpccoll.plan.drawing.history import record_history

        return record_history(self.plan, self.nodes)


@dataclass(frozen=True, slots=True)
class DrawingFormat:
    """A way to draw: what it is called, how many ranks it can show, and the bytes of its file."""

    name: str
    most_ranks: int
    draw: Callable[[DrawingRequest], bytes]


def _text(subject: DrawingRequest) -> bytes:
    from hpccoll.plan.drawing.text_grid import format_text_grid

    return format_text_grid(subject.history()).encode()


def _svg(subject: DrawingRequest) -> bytes:
    from hpccoll.plan.drawing.pages import lay_out_page
    from hpccoll.plan.drawing.svg import render_svg

    return render_svg(lay_out_page(subject.history())).encode()


def _png(subject: DrawingRequest) -> bytes:
    from hpccoll.plan.drawing.pages import lay_out_page
    from hpccoll.raster import render_png

    return render_png(lay_out_page(subject.history()))


def _gif(subject: DrawingRequest) -> bytes:
    from hpccoll.plan.drawing.pages import lay_out_animation
    from hpccoll.raster import render_gif

    return render_gif(lay_out_animation(subject.history()))


def _trace(subject: DrawingRequest) -> bytes:
    from hpccoll.plan.drawing.trace import format_trace_json
    from hpccoll.plan.simulation import build_round_timeline, build_simulated_timeline

    plan, machine = subject.plan, subject.machine
    if machine is None:
        return format_trace_json(build_round_timeline(plan)).encode()
    from hpccoll.predict.forecast import ITEMSIZE, count_elements

    count = count_elements(plan.operation, subject.nbytes, plan.ranks)
    return format_trace_json(build_simulated_timeline(plan, machine, count, ITEMSIZE)).encode()


FORMATS = {
    ".txt": DrawingFormat("a text grid", 64, _text),
    ".svg": DrawingFormat("a picture", 16, _svg),
    ".png": DrawingFormat("a picture", 16, _png),
    ".gif": DrawingFormat("an animation", 16, _gif),
    ".json": DrawingFormat("a trace", 1024, _trace),
}


@click.command(epilog="Example: hpccoll draw all_reduce/ring --ranks 5 -o ring.gif")
@click.argument("name", metavar="OP/ALGORITHM | FILE.py:FUNCTION")
@click.option("-o", "--output", required=True, metavar="FILE", help="Its suffix says how: .txt .svg .png .gif .json")
@click.option("--ranks", type=int, metavar="N", help=f"How many ranks; {RANKS} by default.")
@click.option("--root", default=0, show_default=True, metavar="R", help="The root, where there is one.")
@click.option("--chunks", default=1, show_default=True, metavar="K", help="Chunks, where the algorithm pipelines.")
@click.option("--nodes", metavar="M|A,B,...", help="Nodes with equally many ranks, or the ranks on each: 2, or 3,2.")
@click.option("--machine", metavar="NAME|FILE.toml", help="Time a .json trace by a simulation on this machine.")
@click.option("--measured", is_flag=True, help="Time a .json trace by a run on the ranks of this job (mpirun).")
@click.option("--size", default="1M", show_default=True, help="Message size of that simulation or run.")
def draw(
    name: str,
    output: str,
    ranks: int | None,
    root: int,
    chunks: int,
    nodes: str | None,
    machine: str | None,
    measured: bool,
    size: str,
) -> None:
    """Draw an algorithm: in each round who sends which chunks to whom, and what every rank holds then.

    \b
    .txt   a text grid
    .svg   all rounds on one page; .png the same as pixels
    .gif   the rounds one after the other
    .json  a trace for ui.perfetto.dev, in rounds of equal length, as simulated (--machine), or --measured
    """  # noqa: D301 - \b is click's, and keeps the lines apart
    if measured:
        _measure(name, output, ranks, root, parse_size(size))
        return
    ranks = RANKS if ranks is None else ranks
    kind = _kind(output, ranks, chunks)
    algorithm = _one(name)
    timed = _machine(output, machine)
    sizes = _nodes(nodes, ranks, timed)
    subject = DrawingRequest(_plan(algorithm, ranks, root, chunks, sizes), sizes, timed, parse_size(size))
    if not is_printing_rank():
        return
    require_writable(output, "-o")
    _write(output, kind.draw(subject), f"{kind.name} of {algorithm.full_name} on {ranks} ranks")


def _write(output: str, drawn: bytes, what: str) -> None:
    try:
        Path(output).write_bytes(drawn)
    except OSError as error:
        raise describe_write_error(output, "-o", error) from error
    click.echo(f"{output}: {what}, {len(drawn):,} bytes")


def _measure(name: str, output: str, ranks: int | None, root: int, nbytes: int) -> None:
    """Trace a run; every rank of the job takes part, rank 0 writes."""
    from hpccoll.measure.step_timeline import measure_steps
    from hpccoll.plan.drawing.trace import format_trace_json
    from hpccoll.predict.forecast import count_elements
    from hpccoll.runtime import job

    world = job.get_world()
    size = world.size
    kind, algorithm = _kind(output, size, 1), _one(name)
    if kind is not FORMATS[".json"] or ranks not in (None, size):
        raise UsageError(f"--measured times a .json trace of the {size} ranks of this job; leave --ranks out")
    _plan(algorithm, size, root, 1, ())
    if world.rank == 0:
        require_writable(output, "-o")
    timeline = measure_steps(world, algorithm, count_elements(algorithm.operation, nbytes, size), root)
    if timeline is not None:
        _write(output, format_trace_json(timeline).encode(), f"a trace of {timeline.name}")


def _kind(output: str, ranks: int, chunks: int) -> DrawingFormat:
    """Return how to draw, or say why it cannot be drawn like that."""
    kind = FORMATS.get(Path(output).suffix.lower())
    if kind is None:
        raise UsageError(f"-o {output}: the suffix says how to draw; use one of {' '.join(FORMATS)}")
    if ranks < 1 or chunks < 1:
        raise UsageError(f"--ranks {ranks} --chunks {chunks}: there is nothing to draw; need at least 1 of each")
    if ranks > kind.most_ranks:
        more = [f"{suffix} (up to {each.most_ranks})" for suffix, each in FORMATS.items() if each.most_ranks >= ranks]
        instead = f", or write {' or '.join(more)}" if more else ""
        raise UsageError(
            f"--ranks {ranks}: {kind.name} is legible up to {kind.most_ranks} ranks; take fewer{instead}. "
            "`hpccoll simulate` takes any number"
        )
    if chunks > MOST_CHUNKS:
        raise UsageError(f"--chunks {chunks}: a drawing is legible up to {MOST_CHUNKS} chunks; take fewer")
    return kind


def _one(name: str) -> Algorithm:
    from hpccoll.cli.verify import resolve_algorithms

    found = resolve_algorithms([name])
    if len(found) != 1:
        names = ", ".join(each.full_name for each in found)
        raise UsageError(f"{name} names {len(found)} algorithms; draw one of them: {names}")
    return found[0]


def _plan(algorithm: Algorithm, ranks: int, root: int, chunks: int, sizes: tuple[int, ...]) -> Plan:
    """Return the plan to draw; a user's own algorithm is proven first."""
    from hpccoll.algorithms import loader

    if not 0 <= root < ranks:
        raise UsageError(f"--root {root} is not a rank of 0..{ranks - 1}")
    plan = algorithm.plan(ranks, root, chunks, sizes or None)
    if loader.is_user_defined(algorithm):
        loader.prove_algorithm(algorithm, ranks, root, chunks)
    return plan


def _machine(output: str, name: str | None) -> Machine | None:
    if name is None:
        return None
    if Path(output).suffix.lower() != ".json":
        raise UsageError(f"--machine {name} times a trace, and -o {output} is none; write a .json file")
    from hpccoll.predict.machine_catalogue import load_machine

    return load_machine(name)


def _nodes(nodes: str | None, ranks: int, machine: Machine | None) -> tuple[int, ...]:
    """Return how many ranks each node has, where anything is said about nodes."""
    if nodes is not None:
        return _sizes(nodes, ranks)
    if machine is None:
        return ()
    from hpccoll.predict.forecast import fill_nodes

    return fill_nodes(ranks, machine)


def _sizes(nodes: str, ranks: int) -> tuple[int, ...]:
    """Return how many ranks each node has: `nodes` is a number of nodes, or these numbers themselves."""
    words = [word.strip() for word in nodes.split(",")]
    if all(word.isdecimal() for word in words):
        sizes = tuple(map(int, words))
        if len(sizes) == 1 and 1 <= sizes[0] <= ranks:
            count = sizes[0]
            return tuple(ranks // count + (node < ranks % count) for node in range(count))
        if len(sizes) > 1 and sum(sizes) == ranks and min(sizes) >= 1:
            return sizes
    raise UsageError(
        f"--nodes {nodes} does not divide {ranks} ranks; write the number of nodes (1 to {ranks}), "
        f"or the ranks on each of them, joined by commas, {ranks} in all"
    )
