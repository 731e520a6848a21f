"""A whole run: check, steps, checkpoints where they are due, and the summary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from hpccoll.train.check import Verdict
from hpccoll.train.checkpoint import Folder
from hpccoll.train.loop import Start, Trainer
from hpccoll.train.record import TrainRecord, TrainSummary


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a run keeps, and when it stops early.

    Args:
        checkpoints: whether state is kept.
        folder: where, on rank 0 alone.
        every: steps between two checkpoints; the last step, and one that is stopped after, have one in any case.
        stop_file: once it is there, save and stop after the step under way; None for never.
    """

    checkpoints: bool = False
    folder: Folder | None = None
    every: int = 100
    stop_file: str | None = None


def run(
    trainer: Trainer,
    start: Start,
    wishes: Wishes,
    tell: Callable[[TrainRecord], None],
    warn: Callable[[str], None],
) -> TrainSummary:
    """Train to the end, or until the stop file is there; collective.

    Args:
        trainer: this rank's part.
        start: where it began.
        wishes: checkpoints and stopping.
        tell: called with each step's record.
        warn: called with a sentence as soon as the check has found something wrong.
    """
    settings = trainer.settings
    verdict = trainer.check() if settings.check else None
    if verdict is not None and verdict.wrong:
        warn(f"{verdict.wrong} elements are wrong against one process, the first of {verdict.first}")
    records: list[TrainRecord] = []
    saved = None
    for record in trainer.run(wishes.stop_file):
        tell(record)
        records.append(record)
        due = trainer.step % wishes.every == 0 or trainer.step == settings.steps or record.stop
        if wishes.checkpoints and due:
            saved = trainer.save(wishes.folder)
    return _summary(trainer, start, records, verdict, str(saved) if saved else None)


def _summary(
    trainer: Trainer, start: Start, records: list[TrainRecord], verdict: Verdict | None, saved: str | None
) -> TrainSummary:
    stopped = trainer.step < trainer.settings.steps
    return TrainSummary(
        trainer.mesh,
        _asked(trainer),
        steps=trainer.step,
        resumed_at=start.step if start.resumed else None,
        stop="stop_file" if stopped else "complete",
        loss=records[-1].loss if records else None,
        accuracy=None if stopped else trainer.accuracy(),
        step_s=tuple(record.step_s for record in records),
        wrong=verdict.wrong if verdict else None,
        error=verdict.error if verdict else None,
        checkpoint=saved,
    )


def _asked(trainer: Trainer) -> dict[str, Any]:
    settings = trainer.settings
    model = {"model": "mlp", **asdict(settings.model), "parameters": settings.model.parameters}
    named = ("dtype", "device", "seed", "batch", "schedule", "lr")
    return model | {name: getattr(settings, name) for name in named} | {"microbatches": settings.micros(trainer.mesh)}
