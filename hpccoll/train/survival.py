"""A training run that continues with the other ranks after the death of a rank (`hpccoll train --survive`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from hpccoll.errors import CommunicationError, RankLostError, UnavailableError
from hpccoll.parallel.mesh import Mesh
from hpccoll.records import TrainRecoveryRecord, TrainStepRecord
from hpccoll.train.optimizer import ShardOptimizer
from hpccoll.train.options import TrainOptions
from hpccoll.train.record import describe_mesh
from hpccoll.train.recovery import Recovery, SurvivorReport, recover
from hpccoll.train.start import TrainingStart
from hpccoll.train.state_copies import StateCopy
from hpccoll.train.trainer import Trainer

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator

DEATH_KNOWN_S: Final = 5.0  # after a call failed: seconds to wait for the report of a death as the cause
POLL_S: Final = 0.01


def fit_mesh(mesh: Mesh, ranks: int) -> Mesh:
    """Return `mesh`, with fewer replicas (dp) if the `ranks` ranks that are left do not suffice for all replicas.

    Raises UnavailableError if the ranks do not suffice for one replica.
    """
    others = mesh.ranks // mesh.dp
    dp = min(mesh.dp, ranks // others)
    if not dp:
        raise UnavailableError(
            f"--survive: {ranks} of {mesh.ranks} ranks are left, but {replace(mesh, dp=1)} needs {others}; start the "
            "job again with --checkpoint, or with more --spares"
        )
    return replace(mesh, dp=dp)


@dataclass(frozen=True, slots=True)
class MeshStart:
    """The start of training on the first mesh, or on the mesh of the survivors after a death.

    Attributes:
        start: the state from which the whole run started.
        trainer: this rank's trainer; None if the mesh does not need this rank.
        recovery: the record of the recovery; None on the first mesh.
        last: the record of the last step before the death; None if there is none.
    """

    start: TrainingStart
    trainer: Trainer | None
    recovery: TrainRecoveryRecord | None
    last: TrainStepRecord | None


class SurvivingTraining:
    """This rank's part of a training run that continues after the deaths of other ranks, on one mesh after another.

    Args:
        mesh: the mesh of all ranks but the spares.
        load: a collective function that returns the newest checkpoint, or initial parameters.
    """

    def __init__(
        self, mesh: Mesh, options: TrainOptions, device: str, load: Callable[[Communicator], TrainingStart]
    ) -> None:
        self._first_start: TrainingStart | None = None
        self._mesh, self._options, self._device, self._load = mesh, options, device, load
        self._trainer: Trainer | None = None
        self._kept: StateCopy | None = None
        self._report = SurvivorReport()
        self._lost_at = 0.0
        # The first optimizer makes torch import modules, which takes a second that a spare must not lose in a recovery.
        ShardOptimizer(options.optimizer, [torch.zeros(1, requires_grad=True)], options.steps)

    def add_step(self, record: TrainStepRecord) -> None:
        """Keep the record of a training step that all ranks have done, for the report after a death; local."""
        self._report = replace(self._report, steps=record.step, record=record)

    @contextmanager
    def watch_deaths(self, comm: Communicator) -> Iterator[None]:
        """Context manager that records the death of ranks during its body, and makes other ranks leave their calls too.

        After a death, a call of a group without dead ranks raises a CommunicationError that names no dead rank if
        another rank of the group has left its calls. The context manager replaces this error by the RankLostError of
        `comm`. If no death is known within DEATH_KNOWN_S seconds, the error is raised unchanged.
        """
        try:
            yield
        except CommunicationError:
            failed_at = time.monotonic()
            if self._trainer is not None:
                self._trainer.groups.abandon()
            lost = _find_death(comm)
            if lost is None:
                raise
            before, self._lost_at = self._report, self._lost_at or failed_at
            ranks, hosts = (*before.lost_ranks, *lost.ranks), (*before.lost_hosts, *lost.hosts)
            self._report = replace(before, lost_ranks=ranks, lost_hosts=hosts)
            raise lost from None

    def start(self, comm: Communicator) -> MeshStart:
        """Make this rank's trainer, unless the mesh of `comm` does not need it; return a `MeshStart`. Collective.

        Raises:
            UnavailableError: the ranks do not suffice for the mesh.
            CommunicationError: no complete copy of the state is left, and there is no checkpoint.
        """
        began, mesh = self._lost_at or time.monotonic(), fit_mesh(self._mesh, comm.size)
        copies = self._take_copies()
        held = {copy.key: tuple(copy.by_rank) for copy in copies}
        recovery = recover(comm, self._options, replace(self._report, copies=held), copies)
        self._kept = recovery.kept
        start = recovery.start or self._load(comm)
        if recovery.start is None and recovery.reports and not start.resumed and recovery.reports[0].steps > 0:
            raise CommunicationError(
                "--survive: no complete copy of the training state is left, because a rank died together with the "
                "neighbour that had its copy; start the job again with --checkpoint"
            )
        self._first_start = self._first_start or start
        last = self._catch_up(start, recovery)
        work = comm if comm.size == mesh.ranks else comm.split(0 if comm.rank < mesh.ranks else None)
        if work is None:
            self._forget_deaths()
            return MeshStart(self._first_start, None, None, last)
        self._trainer = Trainer(
            work, mesh, self._options, self._device, start, recovery=(recovery.generation, recovery.kept)
        )
        known = (report.allocated_bytes for report in recovery.reports if report.allocated_bytes is not None)
        self._trainer.allocated_bytes = next(known, None)  # the same on all ranks
        seconds = float(work.all_reduce(np.array([time.monotonic() - began]), "max")[0])
        self._forget_deaths()
        return MeshStart(self._first_start, self._trainer, self._make_record(mesh, recovery, start, seconds), last)

    def _forget_deaths(self) -> None:
        """Record that the survivors continue, so that later reports do not repeat earlier deaths."""
        self._report, self._lost_at = replace(self._report, lost_ranks=(), lost_hosts=()), 0.0

    def _take_copies(self) -> list[StateCopy]:
        """Free the memory of the trainer that ran before the death, and return its copies of training states."""
        trainer, self._trainer = self._trainer, None
        if trainer is None:
            return [] if self._kept is None else [self._kept]
        self._report = replace(self._report, allocated_bytes=trainer.allocated_bytes)
        trainer.discard()
        return trainer.state_copies.copies if trainer.state_copies is not None else []

    def _catch_up(self, start: TrainingStart, recovery: Recovery) -> TrainStepRecord | None:
        """Record the number of steps done; return the record of the last step, which this rank may have missed.

        Returns None if no report has the record, or if the state is not from memory.
        """
        last = recovery.reports[0].record if recovery.start is not None else None
        if last is not None and last.step != start.step:
            last = None
        self._report = replace(self._report, steps=start.step, record=last, generation=recovery.generation)
        return last

    def _make_record(
        self, mesh: Mesh, recovery: Recovery, start: TrainingStart, seconds: float
    ) -> TrainRecoveryRecord | None:
        """Return the record of the recovery for the result file, or None on the first mesh.

        `seconds` is the time that the recovery took.
        """
        after_death = [report for report in recovery.reports if report.lost_ranks]
        if not after_death:
            return None
        most = max(after_death, key=lambda report: len(report.lost_ranks))
        return TrainRecoveryRecord(
            **describe_mesh(mesh, self._options),
            steps=start.step,
            lost_ranks=most.lost_ranks,
            lost_hosts=most.lost_hosts,
            source="memory" if recovery.start is not None else "checkpoint",
            recovery_s=seconds,
        )


def _find_death(comm: Communicator) -> RankLostError | None:
    """Return the error that names the dead ranks of `comm`; None if no death is known within DEATH_KNOWN_S seconds."""
    end = time.monotonic() + DEATH_KNOWN_S
    while not comm.lost_ranks:
        if time.monotonic() > end:
            return None
        time.sleep(POLL_S)
    try:
        comm.barrier()
    except RankLostError as error:
        return error
    return None
