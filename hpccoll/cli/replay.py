"""`hpccoll replay`: run the recorded communication of a program as a benchmark."""

from __future__ import annotations

from pathlib import Path

import click

from hpccoll.cli.output import is_printing_rank, print_table, print_text
from hpccoll.errors import UsageError


@click.command(epilog="Example: mpirun -n 4 hpccoll replay job.hpccoll --engine mpi,hpccoll")
@click.argument("recording")
@click.option(
    "--engine",
    "engines",
    default="mpi,hpccoll",
    show_default=True,
    help="Engines to run, joined by commas: mpi, hpccoll, gloo, or hpccoll with a named algorithm (all_reduce/ring).",
)
@click.option("--spin", is_flag=True, help="Spin instead of sleeping where the program computed.")
@click.option("--no-compute", is_flag=True, help="Neither sleep nor spin where the program computed.")
@click.option("-n", "--iterations", type=click.IntRange(1), default=3, show_default=True, help="Runs of each engine.")
@click.option(
    "--save", is_flag=True, help="Keep the run times in RECORDING, where hpccoll profile --what-if reads them."
)
@click.option(
    "--anonymous", metavar="DIR", help="Only write a copy without names of files, functions and hosts; run nothing."
)
def replay(
    recording: str, engines: str, spin: bool, no_compute: bool, iterations: int, save: bool, anonymous: str | None
) -> int:
    """Run the communication of a recorded job with several engines, in turns, and print the run time of each engine.

    RECORDING is a directory that `hpccoll profile -o` wrote, a GOAL schedule (.goal), the Chakra execution traces
    NAME.RANK.et, given as NAME.et, or the traces of liballprof, of a job with as many ranks as this one. Where the
    program computed, ranks sleep for the recorded time. The engines carry out the collectives; messages between two
    ranks go through MPI.
    """
    if anonymous is not None:
        from hpccoll.profile.anonymous import write_anonymous

        if is_printing_rank():
            write_anonymous(recording, anonymous)
            print_text(f"{anonymous}: {recording} without names of files, functions and hosts")
        return 0
    from hpccoll.profile import read_recording
    from hpccoll.profile.benchmark import ReplayBenchmark
    from hpccoll.profile.dependencies import build_graph
    from hpccoll.profile.replay_times import write_replays

    if save:
        _require_useful_times(recording, iterations, no_compute)
    if spin and no_compute:
        raise UsageError("--spin and --no-compute exclude each other; leave one of them out")
    graph = build_graph(read_recording(recording))
    benchmark = ReplayBenchmark(graph, engines.split(","), spins=spin, computes=not no_compute)
    times = benchmark.run(iterations)
    benchmark.close()
    if save and is_printing_rank():
        write_replays(recording, times)
    rows = [("recorded", f"{graph.run_s:.4g} s", "", "")]
    for timed in times:
        bounds = f"{min(timed.seconds):.4g} to {max(timed.seconds):.4g} s"
        rows.append((timed.engine, f"{timed.median_s:.4g} s", bounds, f"{times[0].median_s / timed.median_s:.2f}"))
    headings = ("engine", "median", "range", f"times as fast as {times[0].engine}")
    print_table(f"{recording}: {iterations} runs of each engine, in turns", headings, rows, headings[1:])
    return 0


def _require_useful_times(recording: str, iterations: int, no_compute: bool) -> None:
    """Raise UsageError if predictions cannot use the times of a replay, which --save would write to `recording`."""
    from hpccoll.measure.results.output_file import require_writable
    from hpccoll.profile.replay_times import FEWEST_TURNS, FILE

    if no_compute:
        raise UsageError("--save and --no-compute exclude each other, as predictions need the pauses; leave one out")
    if not Path(recording).is_dir():
        raise UsageError(f"--save: {recording} is no directory of hpccoll profile; record the job, or leave --save out")
    if iterations < FEWEST_TURNS:
        raise UsageError(f"--save: a prediction needs at least {FEWEST_TURNS} runs of each engine; add -n 12")
    if is_printing_rank():
        require_writable(Path(recording) / FILE, "--save")
