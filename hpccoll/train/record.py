"""The records of a training run: one a step, and one at the end; hpccoll/measure/schema_train.py describes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hpccoll.parallel.mesh import AXES, Mesh
from hpccoll.records import SCHEMA


def shape_of(mesh: Mesh) -> dict[str, Any]:
    """Return how a record names a mesh."""
    return {"strategy": str(mesh), "ranks": mesh.ranks, **{axis: getattr(mesh, axis) for axis in AXES}}


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank has to say on a step; numbers only, so that they travel in one all_gather.

    Args:
        loss: its part of the batch's mean loss: on the last stage, once a data-parallel rank.
        square: of the norm of the gradients that no lower rank has as well.
        step_s, comm_s, pipeline_s: the whole step, in calls on all axes, in those on the pipeline's.
        peak_bytes: of memory.
        stop: whether the run was told to stop (rank 0 only looks).
    """

    loss: float
    square: float
    step_s: float
    comm_s: float
    pipeline_s: float
    peak_bytes: int
    stop: bool

    def numbers(self) -> list[float]:
        """Return the fields in order."""
        return [float(value) for value in asdict(self).values()]


@dataclass(frozen=True, slots=True)
class TrainRecord:
    """One step of all ranks, from what each of them says."""

    step: int
    mesh: Mesh
    batch: int
    loss: float
    grad_norm: float
    step_s: float
    comm_s: float
    bubble: float | None
    peak_bytes: int
    stop: bool

    @classmethod
    def of(cls, step: int, mesh: Mesh, batch: int, rows: Sequence[Sequence[float]]) -> TrainRecord:
        """Put together the ranks' shares, as `Share.numbers` gave them."""
        loss, square, step_s, comm_s, pipeline_s, peak, stop = np.asarray(rows, np.float64).T
        waited = float((pipeline_s / step_s).mean()) if mesh.pp > 1 else None
        return cls(
            step,
            mesh,
            batch,
            float(loss.sum()),
            float(square.sum()) ** 0.5,
            float(step_s.max()),
            float(comm_s.max()),
            waited,
            int(peak.max()),
            bool(stop.any()),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the record as it is written."""
        return {
            "schema": SCHEMA,
            "kind": "train",
            **shape_of(self.mesh),
            "step": self.step,
            "loss": self.loss,
            "step_s": self.step_s,
            "tokens_per_s": self.batch / self.step_s,
            "comm_s": self.comm_s,
            "exposed_comm_s": self.comm_s,  # nothing overlaps so far
            "bubble": self.bubble,
            "peak_bytes": self.peak_bytes,
            "grad_norm": self.grad_norm,
        }


@dataclass(frozen=True, slots=True)
class TrainSummary:
    """What a run came to.

    Args:
        mesh: the ranks.
        asked: model, seed, batch and the like, by the names of the record.
        steps: done in all, those before a resumption included.
        resumed_at: steps that were done before, None where the run began anew.
        stop: `complete`, or `stop_file`.
        loss: of the last step of this run, None where there was none.
        accuracy: on the held-out tenth, None where the run was stopped.
        step_s: of each step of this run.
        wrong: elements of gradients found wrong, None where nothing was checked.
        error: the largest relative error that the check found, None likewise.
        checkpoint: the file that was written last, None where there is none.
    """

    mesh: Mesh
    asked: dict[str, Any]
    steps: int
    resumed_at: int | None
    stop: str
    loss: float | None
    accuracy: float | None
    step_s: tuple[float, ...]
    wrong: int | None
    error: float | None
    checkpoint: str | None

    @property
    def median_step_s(self) -> float | None:
        """The median of the steps of this run."""
        return float(np.median(self.step_s)) if self.step_s else None

    def as_dict(self) -> dict[str, Any]:
        """Return the record as it is written."""
        return {
            "schema": SCHEMA,
            "kind": "train_summary",
            **shape_of(self.mesh),
            **self.asked,
            "steps": self.steps,
            "resumed_at": self.resumed_at,
            "stop": self.stop,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "median_step_s": self.median_step_s,
            "wrong": self.wrong,
            "max_error": self.error,
            "checkpoint": self.checkpoint,
        }
