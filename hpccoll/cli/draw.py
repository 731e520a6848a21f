"""`hpccoll draw`: draws one algorithm as a text grid, picture, animation or trace, by the suffix of the output file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpccoll.cli.completion import complete_plans
from hpccoll.cli.options import argument, declare, option, take_options
from hpccoll.cli.output import is_printing_rank, list_given_options
from hpccoll.cli.schedules import (
    ScheduleOptions,
    add_schedule_options,
    are_schedules,
    get_single_schedule,
    render_schedule,
)
from hpccoll.errors import UsageError
from hpccoll.measure.results.output_file import explain_write_errors, require_writable
from hpccoll.processes import joint_failure
from hpccoll.units import format_count, parse_size

if TYPE_CHECKING:
    from hpccoll.algorithms import Algorithm
    from hpccoll.plan import Machine, Plan

MOST_CHUNKS = 64
DEFAULT_RANKS = 5
PRINTED = "-.txt"  # instead of an output file: print a text grid


@dataclass(frozen=True, slots=True)
class DrawingFormat:
    """A file format of `hpccoll draw`: its name in messages, and the most ranks that a legible drawing can have."""

    name: str
    most_ranks: int


FORMATS = {
    ".txt": DrawingFormat("a text grid", 64),
    ".svg": DrawingFormat("a picture", 16),
    ".png": DrawingFormat("a picture", 16),
    ".gif": DrawingFormat("an animation", 16),
    ".json": DrawingFormat("a trace", 1024),
}


def _render(plan: Plan, nodes: tuple[int, ...], suffix: str) -> list[bytes]:
    """Return the drawing of a plan as the contents of one file per page.

    Args:
        nodes: the number of ranks on each node; empty to draw no nodes.
        suffix: the format: .txt, .svg, .png or .gif. Only .svg and .png can have several pages.
    """
    from hpccoll.plan import drawing

    history = drawing.record_history(plan, nodes)
    if suffix == ".txt":
        return [drawing.format_text_grid(history).encode()]
    if suffix == ".svg":
        return [drawing.render_svg(page).encode() for page in drawing.lay_out_pages(history)]
    from hpccoll import raster

    if suffix == ".png":
        return [raster.render_png(page) for page in drawing.lay_out_pages(history)]
    return [raster.render_gif(drawing.lay_out_animation(history))]


def _render_trace(plan: Plan, machine: Machine | None, nbytes: int) -> bytes:
    """Return a JSON trace of the plan for ui.perfetto.dev, with simulated times.

    Args:
        machine: the machine model to simulate; None gives all rounds the same duration, and ignores `nbytes`.
        nbytes: the message size in bytes.
    """
    from hpccoll.plan.drawing import format_trace_json
    from hpccoll.plan.simulation import build_round_timeline, build_simulated_timeline

    if machine is None:
        return format_trace_json(build_round_timeline(plan)).encode()
    from hpccoll.predict.forecast import ITEMSIZE

    count = plan.operation.count_elements(nbytes, ITEMSIZE, plan.ranks)
    return format_trace_json(build_simulated_timeline(plan, machine, count, ITEMSIZE)).encode()


@dataclass(frozen=True, slots=True)
class DrawOptions:
    """Argument and options of `hpccoll draw`, which this class declares for click and whose values it holds."""

    name: str = argument(
        metavar="OP/ALGORITHM | FILE.py:FUNCTION | SCHEDULE | FILE.csv | FILE.xml | FILE.json",
        shell_complete=complete_plans,
    )
    output: str | None = option(
        "-o",
        "--output",
        metavar="FILE",
        help="Output file; its suffix is the format: .txt .svg .png .gif .json. Without it, text is printed.",
    )
    ranks: int | None = option("--ranks", type=int, metavar="N", help=f"Number of ranks; {DEFAULT_RANKS} by default.")
    root: int = option("--root", default=0, show_default=True, metavar="R", help="Root rank of a rooted operation.")
    chunks: int = option(
        "--chunks", default=1, show_default=True, metavar="K", help="Number of chunks of a pipelined algorithm."
    )
    nodes: str | None = option(
        "--nodes", metavar="M|A,B,...", help="Number of nodes, or the number of ranks on each: 2, or 3,2."
    )
    machine: str | None = option(
        "--machine", metavar="NAME|FILE.toml", help="Times of a .json trace: simulate this machine."
    )
    measured: bool = option(
        "--measured", is_flag=True, help="Times of a .json trace: measure on the ranks of this job (mpirun)."
    )
    size: str = option("--size", default="1M", show_default=True, help="Message size of the simulation or measurement.")
    schedule_options: ScheduleOptions = declare(lambda _: add_schedule_options("4", "8"))

    @property
    def file(self) -> str:
        """The path of the output file; without -o, `-.txt` (PRINTED), which stands for printing text."""
        return PRINTED if self.output is None else self.output


@click.command(epilog="Example: hpccoll draw all_reduce/ring --ranks 5 -o ring.gif")
@take_options(DrawOptions)
def draw(options: DrawOptions) -> None:
    """Draw an algorithm: the messages of each round, and the data of every rank after the round; as text without -o.

    FILE.xml and FILE.json are published schedules, as in `hpccoll verify`, drawn on their own number of ranks.
    A pipeline schedule, such as 1f1b, or its CSV file is drawn as a chart: a line per rank, and time to the right.

    \b
    .txt   a text grid
    .svg   all rounds; .png the same as pixels; a long drawing has a file per page, such as FILE-1.svg
    .gif   an animation, one round after the other
    .json  a trace for ui.perfetto.dev; times are simulated (--machine), measured (--measured) or equal for all rounds
    """  # noqa: D301 - \b tells click not to rewrap the lines
    if are_schedules([options.name], "ranks", "root", "chunks", "nodes", "machine", "measured", "size"):
        _draw_schedule(options)
        return
    _reject_unused_options(options)
    nbytes = parse_size(options.size)
    _measure(options, nbytes) if options.measured else _draw_plan(options, nbytes)


def _draw_plan(options: DrawOptions, nbytes: int) -> None:
    """Draw a collective algorithm into the output file, or print it; `nbytes` is the message size of --size."""
    algorithm, output = _get_algorithm(options.name), options.file
    ranks = options.ranks if options.ranks is not None else algorithm.only_ranks or DEFAULT_RANKS
    drawing_format = _get_format(output, ranks, options.chunks)
    machine = _load_machine(output, options.machine)
    sizes = _find_node_sizes(options.nodes, ranks, machine)
    plan = _make_plan(algorithm, ranks, options.root, options.chunks, sizes)
    if not is_printing_rank():
        return
    if output != PRINTED:
        require_writable(output, "-o")
    suffix = Path(output).suffix.lower()
    pages = [_render_trace(plan, machine, nbytes)] if suffix == ".json" else _render(plan, sizes, suffix)
    _write_pages(output, pages, f"{drawing_format.name} of {algorithm.full_name} on {format_count(ranks, 'rank')}")


def _draw_schedule(options: DrawOptions) -> None:
    """Draw a pipeline schedule (built in, or a CSV file) into the output file, or print it."""
    schedule, output = get_single_schedule(options.name, options.schedule_options), options.file
    if not is_printing_rank():
        return
    if output != PRINTED:
        require_writable(output, "-o")
    chart = render_schedule(schedule, options.schedule_options.times, output)
    _write(output, chart, f"a chart of {schedule.name} on {format_count(schedule.ranks, 'rank')}")


def _reject_unused_options(options: DrawOptions) -> None:
    """Raise UsageError if the user gave an option that the other options make useless.

    The options --machine, --measured and --size are useless without -o; --chunks, --nodes and --machine are useless
    with --measured; and --size is useless without --measured and --machine.
    """
    unused = list_given_options("machine", "measured", "size") if options.output is None else []
    if unused:
        raise UsageError(f"{' and '.join(unused)}: only for traces; add -o FILE.json, or leave the option out")
    unused = list_given_options("chunks", "nodes", "machine") if options.measured else []
    if unused:
        raise UsageError(f"--measured runs one chunk on the nodes of this job; leave {' and '.join(unused)} out")
    if not options.measured and options.machine is None and list_given_options("size"):
        raise UsageError("--size is for traces with times; add --machine or --measured, or leave --size out")


def _write_pages(output: str, pages: Sequence[bytes], description: str) -> None:
    """Write one page to the file `output`, or several pages to files with a number before the suffix, such as -01.

    `description` names the drawing in the line that is printed per file.
    """
    if len(pages) == 1:
        _write(output, pages[0], description)
        return
    path, digits = Path(output), len(str(len(pages)))
    for number, page in enumerate(pages, 1):
        name = path.with_stem(f"{path.stem}-{number:0{digits}}")
        _write(str(name), page, f"{description}, page {number} of {len(pages)}")


def _write(output: str, drawing: bytes, description: str) -> None:
    """Write `drawing` to the file `output`, and print a line with the file's name, its `description` and its size.

    If `output` is PRINTED, print the drawing instead.
    """
    if output == PRINTED:
        click.echo(drawing.decode().rstrip("\n"))
        return
    with explain_write_errors(output, "-o"):
        Path(output).write_bytes(drawing)
    click.echo(f"{output}: {description}, {len(drawing):,} bytes")


def _measure(options: DrawOptions, nbytes: int) -> None:
    """Run the algorithm on all ranks of the job; rank 0 writes a trace of the measured times. Collective.

    `nbytes` is the message size of --size. Raises UsageError if --ranks is not the number of ranks of the job.
    """
    from hpccoll.runtime import job

    world = job.get_world()  # before other imports load MPI, as in `hpccoll bench`
    from hpccoll.measure.step_timeline import measure_steps
    from hpccoll.plan.drawing import format_trace_json
    from hpccoll.predict.forecast import ITEMSIZE

    size, output = world.size, options.file
    drawing_format, algorithm = _get_format(output, size, 1), _get_algorithm(options.name)
    if drawing_format is not FORMATS[".json"] or options.ranks not in (None, size):
        raise UsageError(
            f"--measured times a .json trace of the {format_count(size, 'rank')} of this job; leave --ranks out"
        )
    _make_plan(algorithm, size, options.root, 1, ())  # raises for a wrong root; proves a user's own algorithm
    joint_failure.run_on_first_rank(world, lambda: require_writable(output, "-o"))
    count = algorithm.operation.count_elements(nbytes, ITEMSIZE, size)
    timeline = measure_steps(world, algorithm, count, options.root)
    if timeline is not None:
        _write(output, format_trace_json(timeline).encode(), f"a trace of {timeline.name}")


def _get_format(output: str, ranks: int, chunks: int) -> DrawingFormat:
    """Return the file format for the suffix of the file name `output`.

    Raises UsageError for an unknown suffix, or if a drawing of so many `ranks` or `chunks` would not be legible.
    """
    drawing_format = FORMATS.get(Path(output).suffix.lower())
    if drawing_format is None:
        raise UsageError(f"-o {output}: the suffix is the format; use one of {' '.join(FORMATS)}")
    if ranks < 1 or chunks < 1:
        raise UsageError(f"--ranks {ranks} --chunks {chunks}: there is nothing to draw; need at least 1 of each")
    if ranks > drawing_format.most_ranks:
        larger = [(suffix, known.most_ranks) for suffix, known in FORMATS.items() if known.most_ranks >= ranks]
        instead = f", or write {' or '.join(f'{suffix} (up to {most})' for suffix, most in larger)}" if larger else ""
        raise UsageError(
            f"--ranks {ranks}: {drawing_format.name} is legible up to {drawing_format.most_ranks} ranks; "
            f"take fewer{instead}. `hpccoll simulate` takes any number"
        )
    if chunks > MOST_CHUNKS:
        raise UsageError(f"--chunks {chunks}: a drawing is legible up to {MOST_CHUNKS} chunks; take fewer")
    return drawing_format


def _get_algorithm(name: str) -> Algorithm:
    """Return the algorithm `name` (OP/ALGORITHM, FILE.py:FUNCTION or a plan's file), executing FILE.py.

    Raises UsageError if `name` selects several algorithms, as OP alone does.
    """
    from hpccoll.cli.verify import resolve_algorithms

    algorithms = resolve_algorithms([name])
    if len(algorithms) != 1:
        names = ", ".join(algorithm.full_name for algorithm in algorithms)
        raise UsageError(f"{name} names {len(algorithms)} algorithms; draw one of them: {names}")
    return algorithms[0]


def _make_plan(algorithm: Algorithm, ranks: int, root: int, chunks: int, sizes: tuple[int, ...]) -> Plan:
    """Return the plan to draw, proven if a user wrote the algorithm; `sizes` has the ranks per node, or is empty."""
    from hpccoll.algorithms import loader

    if not 0 <= root < ranks:
        raise UsageError(f"--root {root} is not a rank of 0..{ranks - 1}")
    plan = algorithm.plan(ranks, root, chunks, sizes or None)
    if loader.is_user_defined(algorithm):
        loader.prove_algorithm(algorithm, ranks, root, chunks)
    return plan


def _load_machine(output: str, name: str | None) -> Machine | None:
    """Return the machine model `name`, the value of --machine; None if `name` is None.

    Raises UsageError if --machine is given and `output` does not end in .json, because only traces have times.
    """
    if name is None:
        return None
    if Path(output).suffix.lower() != ".json":
        raise UsageError(f"--machine {name} is for traces, and -o {output} is not one; write to a .json file")
    from hpccoll.predict.machine_catalogue import load_machine

    return load_machine(name)


def _find_node_sizes(nodes: str | None, ranks: int, machine: Machine | None) -> tuple[int, ...]:
    """Return the number of ranks on each node: from `nodes` (--nodes), else from `machine`; () if both are None."""
    if nodes is not None:
        return _parse_nodes(nodes, ranks)
    if machine is None:
        return ()
    from hpccoll.predict.forecast import fill_nodes

    return fill_nodes(ranks, machine)


def _parse_nodes(nodes: str, ranks: int) -> tuple[int, ...]:
    """Return the number of ranks on each node.

    `nodes` is the value of --nodes: a number of nodes such as `2`, or the ranks on each node, such as `3,2`.
    """
    words = [word.strip() for word in nodes.split(",")]
    if all(word.isdecimal() for word in words):
        sizes = tuple(map(int, words))
        if len(sizes) == 1 and 1 <= sizes[0] <= ranks:
            count = sizes[0]
            return tuple(ranks // count + (node < ranks % count) for node in range(count))
        if len(sizes) > 1 and sum(sizes) == ranks and min(sizes) >= 1:
            return sizes
    raise UsageError(
        f"--nodes {nodes} does not divide {format_count(ranks, 'rank')}; write the number of nodes (1 to {ranks}), "
        f"or the number of ranks on each node, separated by commas, {ranks} in all"
    )
