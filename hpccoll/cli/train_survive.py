"""`hpccoll train --survive`: training that continues with the other ranks after the death of a rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from hpccoll.cli.train_output import TrainOutput
from hpccoll.communicator import survivors
from hpccoll.processes.joint_failure import run_on_first_rank
from hpccoll.train.checkpoint import CheckpointDirectory
from hpccoll.train.options import CheckpointOptions, TrainOptions
from hpccoll.train.start import TrainingStart, load_start
from hpccoll.train.survival import SurvivingTraining
from hpccoll.train.training_run import run_training

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator
    from hpccoll.parallel.mesh import Mesh
    from hpccoll.records import TrainStepRecord, TrainSummaryRecord


def train_surviving(
    mesh: Mesh,
    options: TrainOptions,
    device: str,
    spares: int,
    checkpoints: CheckpointOptions,
    directory: CheckpointDirectory | None,
    json_file: str | None,
    run: Mapping[str, Any],
) -> TrainSummaryRecord | None:
    """Train until the last step; after the death of ranks, go on with the others; collective.

    Args:
        mesh: the mesh of all ranks but the spares.
        device: `cpu`, or the GPU of this rank.
        spares: the number of ranks that wait to replace dead ones.
        checkpoints: when and where checkpoints are written.
        directory: the directory for checkpoints on rank 0; None on other ranks, or without checkpoints.
        run: the record of kind `run`.

    Returns:
        The summary; None on a rank that the last mesh does not need.
    """
    summary = None
    with ExitStack() as stack:
        make_output = partial(TrainOutput, stack, json_file, dict(run), options=options)
        program = _Program(mesh, options, device, checkpoints, directory, make_output)
        for comm in survivors(spares=spares):
            with comm, program.training.watch_deaths(comm):
                summary = program.run(comm)
    return summary


class _Program:
    """The training of this rank on one mesh after another, as ranks die; the first rank of a mesh writes and prints.

    Args:
        make_output: makes a `TrainOutput` from its arguments `start`, `appends` and `prints`.
    """

    def __init__(
        self,
        mesh: Mesh,
        options: TrainOptions,
        device: str,
        checkpoints: CheckpointOptions,
        directory: CheckpointDirectory | None,
        make_output: Callable[..., TrainOutput],
    ) -> None:
        self.training = SurvivingTraining(mesh, options, device, self._load)
        self._options, self._checkpoints, self._directory = options, checkpoints, directory
        self._make_output = make_output
        self._output: TrainOutput | None = None
        self._warnings: list[str] = []

    def run(self, comm: Communicator) -> TrainSummaryRecord | None:
        """Train on the ranks of `comm`; return the summary, None on a rank that the mesh does not need; collective."""
        self._directory = run_on_first_rank(comm, self._open_directory)
        begun = self.training.start(comm)
        output = self._open_output(comm, begun.start, is_first=begun.recovery is None)
        if begun.last is not None:
            output.complete_steps(begun.last)
        if begun.recovery is not None:
            output.add_recovery(begun.recovery)
        if begun.trainer is None:
            return None

        def add_step(record: TrainStepRecord) -> None:
            """Keep the record of a step for a later recovery, and write it."""
            self.training.add_step(record)
            output.add_step(record)

        summary = run_training(
            begun.trainer,
            begun.start,
            self._checkpoints,
            self._directory,
            add_step,
            output.warn,
            before=output.steps,
            recovered=begun.recovery is not None,
        )
        output.add_summary(summary)
        begun.trainer.close()
        return summary

    def _open_directory(self) -> CheckpointDirectory | None:
        """Return the directory for checkpoints, opened if this rank has not done so; None without --checkpoint."""
        if self._checkpoints.directory is None:
            return None
        return self._directory or CheckpointDirectory(self._checkpoints.directory)

    def _load(self, comm: Communicator) -> TrainingStart:
        """Return the state to train from: the newest readable checkpoint, or initial parameters; collective."""
        start, self._warnings = load_start(comm, self._options, self._directory)
        if start.resumed:
            self._warnings.append(f"resumed after step {start.step} from {self._checkpoints.directory}")
        return start

    def _open_output(self, comm: Communicator, start: TrainingStart, *, is_first: bool) -> TrainOutput:
        """Return this rank's output, and print the warnings of `_load`; the first rank of `comm` writes and prints.

        Args:
            start: the state from which the training goes on.
            is_first: whether no rank has died yet; if none has, the file of --json is replaced unless there are
                checkpoints.
        """
        if self._output is None:
            appends = self._checkpoints.directory is not None or not is_first
            self._output = self._make_output(start=start, appends=appends, prints=comm.rank == 0)
        elif comm.rank == 0:
            self._output.take_over()
        for message in self._warnings:
            self._output.warn(message)
        self._warnings = []
        return self._output
