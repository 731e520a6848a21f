"""`hpccoll train`: a small model trained over a mesh of ranks, with checkpoints that a requeued job goes on from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from hpccoll.cli.output import STDOUT, is_printing_rank, print_table
from hpccoll.cli.progress import show_progress
from hpccoll.cli.run_record import make_run_record
from hpccoll.errors import UsageError
from hpccoll.parallel.mesh import Mesh
from hpccoll.train.settings import ACTIVATIONS, DTYPES, MODELS, Mlp, Settings, require_torch

if TYPE_CHECKING:
    from hpccoll.measure.result_file import RecordWriter
    from hpccoll.train.checkpoint import Folder
    from hpccoll.train.loop import Start
    from hpccoll.train.record import TrainRecord, TrainSummary

STOPPED = 130  # steps are left; as `hpccoll bench` ends where rows are
LINES = 12  # of steps in the table for people
HEADINGS = ("step", "loss", "grad norm", "step ms", "comm ms", "bubble", "peak MiB")


@dataclass(frozen=True, slots=True)
class Files:
    """Where the run reads and writes."""

    checkpoint: str | None
    every: int
    stop_file: str | None
    json: str | None


@click.command(epilog="Example: mpirun -n 4 hpccoll train dp=2,tp=2 --check --checkpoint state --json train.jsonl")
@click.argument("strategy")
@click.option("--model", type=click.Choice(MODELS), default="mlp", show_default=True, help="What is trained.")
@click.option("--width", type=click.IntRange(1), default=64, show_default=True, help="Features between layers.")
@click.option("--layers", type=click.IntRange(1), default=4, show_default=True, help="Linear layers, all of them.")
@click.option("--activation", type=click.Choice(ACTIVATIONS), default="tanh", show_default=True)
@click.option("--steps", type=click.IntRange(0), default=200, show_default=True, help="In all, also when resumed.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the parameters and the data.")
@click.option("--batch", type=click.IntRange(1), default=64, show_default=True, help="Samples a step, over all ranks.")
@click.option("--microbatches", type=click.IntRange(1), help="Parts of a rank's samples; default 4 with pp, else 1.")
@click.option("--schedule", type=click.Choice(["1f1b", "gpipe"]), default="1f1b", show_default=True, help="Of pp.")
@click.option("--lr", type=click.FloatRange(0, min_open=True), default=0.5, show_default=True, help="Of plain SGD.")
@click.option("-d", "--dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="One GPU a rank.")
@click.option("-c", "--check", is_flag=True, help="Hold the first step's gradients against one process (status 1).")
@click.option("--checkpoint", metavar="DIR", help="Go on from the newest state there, and keep the state there.")
@click.option("--checkpoint-every", "every", type=click.IntRange(1), default=100, show_default=True, help="Steps.")
@click.option("--stop-file", metavar="FILE", help="Once this file is there, save and stop after the step (status 130).")
@click.option("--json", metavar="FILE", help="JSON Lines, written as steps finish; - for standard output.")
def train(
    strategy: str,
    checkpoint: str | None,
    every: int,
    stop_file: str | None,
    json: str | None,
    model: str,  # noqa: ARG001 - there is one so far
    width: int,
    layers: int,
    activation: str,
    **given: Any,
) -> int:
    """Train a model on handwritten digits over a mesh of MPI ranks.

    STRATEGY is dp (data), tp (tensor) or pp (pipeline parallelism) over all ranks, or a mesh such as dp=2,tp=2,pp=2.
    """
    files = Files(checkpoint, every, stop_file, json)
    return _run(strategy, Settings(Mlp(width, layers, activation), **given), files)


def _run(strategy: str, settings: Settings, files: Files) -> int:
    from hpccoll.runtime import job

    world = job.world()  # first of all: a foreign launcher must not look like wrong usage
    mesh = Mesh.parse(strategy, world.size)
    settings.require(mesh)
    if files.stop_file is not None and files.checkpoint is None:
        raise UsageError("--stop-file stops a run that can go on later; give --checkpoint DIR, too")
    folder = _writable(files) if world.rank == 0 else None
    require_torch()
    from hpccoll.communicator import Communicator
    from hpccoll.train.course import Wishes
    from hpccoll.train.course import run as run_course
    from hpccoll.train.loop import Trainer, begin, device_of, limit_threads

    limit_threads(os.environ)
    layout = job.layout(world)
    device = device_of(settings, layout.members[layout.node[world.rank]].index(world.rank))
    run = make_run_record(world)
    with Communicator(world) as comm:
        start, damaged = begin(comm, settings, folder)
        wishes = Wishes(files.checkpoint is not None, folder, files.every, files.stop_file)
        with _outputs(files, run, start, damaged, settings.steps) as outputs:
            trainer = Trainer(comm, mesh, settings, device, start)
            summary = run_course(trainer, start, wishes, outputs.add, outputs.warn)
            outputs.end(summary)
        trainer.close()
    return 1 if summary.wrong else STOPPED if summary.stop != "complete" else 0


def _writable(files: Files) -> Folder | None:
    """Find out whether results can be written before anything slow begins; return where checkpoints go, if anywhere."""
    from hpccoll.measure.output_file import require_writable
    from hpccoll.train.checkpoint import Folder

    if files.json not in (None, STDOUT):
        require_writable(str(files.json), "--json")
    return Folder(files.checkpoint) if files.checkpoint is not None else None


@contextmanager
def _outputs(files: Files, run: dict[str, Any], start: Start, damaged: list[str], steps: int) -> Iterator[_Outputs]:
    """Open where steps go; on other ranks than the one that prints, nowhere."""
    from hpccoll.measure.result_file import RecordWriter

    with ExitStack() as stack:
        journal = None
        if is_printing_rank() and files.json is not None:
            # A run that goes on adds to what it wrote before; one that begins anew overwrites, as `bench --json`.
            journal = stack.enter_context(RecordWriter(files.json, resume=start.resumed))
            journal.write(run)
        bar = stack.enter_context(show_progress("steps", max(steps - start.step, 0))) if is_printing_rank() else None
        outputs = _Outputs(files, journal, bar)
        for each in damaged:
            outputs.warn(each)
        if start.resumed and is_printing_rank():
            click.echo(f"# resumed after step {start.step} from {files.checkpoint}", err=True)
        stack.callback(outputs.show)  # also when the run is cut short
        yield outputs


class _Outputs:
    """Where steps go as they finish."""

    def __init__(self, files: Files, journal: RecordWriter | None, bar: Callable[[str], None] | None) -> None:
        self._files, self._journal, self._bar = files, journal, bar
        self._steps: list[TrainRecord] = []
        self._summary: TrainSummary | None = None

    def add(self, record: TrainRecord) -> None:
        """Keep a step, on disk first."""
        if self._journal is not None:
            self._journal.write(record.as_dict())
        self._steps.append(record)
        if self._bar is not None:
            self._bar(f"loss {record.loss:.4g}")

    def warn(self, sentence: str) -> None:
        """Say at once what is not as it should be."""
        if is_printing_rank():
            click.echo(f"# {sentence}", err=True)

    def end(self, summary: TrainSummary) -> None:
        """Keep the last record."""
        self._summary = summary
        if self._journal is not None:
            self._journal.write(summary.as_dict())

    def show(self) -> None:
        """Print some of the steps, evenly over the run, and what it came to."""
        if not is_printing_rank() or self._files.json == STDOUT:
            return
        if self._steps:
            shown = self._steps[: -1 : -(-len(self._steps) // LINES)] + self._steps[-1:]
            print_table("Steps", HEADINGS, [_row(step) for step in shown], numbers=HEADINGS)
        if self._summary is not None:
            print(_sentence(self._summary))


def _row(step: TrainRecord) -> list[str]:
    bubble = "-" if step.bubble is None else f"{step.bubble:.2f}"
    times = (f"{1e3 * step.step_s:.2f}", f"{1e3 * step.comm_s:.2f}", bubble)
    return [str(step.step), f"{step.loss:.5f}", f"{step.grad_norm:.4f}", *times, f"{step.peak_bytes / 2**20:.0f}"]


def _sentence(summary: TrainSummary) -> str:
    words = [f"{summary.mesh} on {summary.mesh.ranks} ranks: {summary.steps} steps"]
    if summary.median_step_s is not None:
        words.append(f"median step {1e3 * summary.median_step_s:.2f} ms")
    if summary.accuracy is not None:
        words.append(f"accuracy {100 * summary.accuracy:.1f} % on samples held out")
    if summary.wrong is not None:
        words.append(f"{summary.wrong} gradients wrong (largest relative error {summary.error:.1g})")
    if summary.checkpoint is not None:
        words.append(f"state in {summary.checkpoint}")
    if summary.stop != "complete":
        words.append("stopped; the same command goes on")
    return "; ".join(words)
