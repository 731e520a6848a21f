"""Build the record of a training step from each rank's measurements, and the fields that describe a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from hpccoll.parallel.axis_group import OPERATIONS, AxisGroup
from hpccoll.parallel.mesh import AXES, Mesh
from hpccoll.records import TrainStepRecord
from hpccoll.train.options import TrainOptions


def describe_mesh(mesh: Mesh, options: TrainOptions) -> dict[str, Any]:
    """Return the mesh and the options that concern it as the fields of a `MeshRecord` of a result file."""
    sizes = {axis: getattr(mesh, axis) for axis in AXES}
    shared = {"zero": options.zero, "sequence_parallel": options.sequence_parallel}
    return {"strategy": str(mesh), "ranks": mesh.ranks, **sizes, **shared}


class RankStep(NamedTuple):
    """One rank's measurements of a step; all fields are numbers, so that one all_gather collects them."""

    loss: float  # the rank's addend of the batch's mean loss; zero except on the last stage
    square_norm: float  # sum of squares of the rank's gradients, without replicas of a lower rank's gradients
    step_s: float  # seconds of the whole step
    comm_s: float  # seconds during which communication along any axis was in flight
    exposed_s: float  # the part of comm_s during which the rank computed nothing
    pipeline_s: float  # seconds inside communicator calls between stages
    peak_bytes: int  # peak memory since the start
    stop: bool  # whether the stop file exists; always false except on rank 0


def list_sent_bytes(groups: Sequence[AxisGroup], axes: Sequence[str]) -> list[float]:
    """Return a list of the bytes that this rank has sent since the last reset, for each axis and operation.

    The list has, for each axis of `axes`, one number per operation in the order of OPERATIONS.
    """
    by_axis = {group.axis: group.sent_bytes for group in groups}
    return [by_axis.get(axis, {}).get(operation, 0.0) for axis, operation in product(axes, OPERATIONS)]


def _combine_sent_bytes(axes: Sequence[str], rows: Any) -> dict[str, dict[str, float]]:
    """Return the maximum over ranks of the bytes sent, by axis and operation, without zeros.

    `rows` has the result of `list_sent_bytes` of each rank.
    """
    by_axis: dict[str, dict[str, float]] = {}
    for (axis, operation), nbytes in zip(product(axes, OPERATIONS), rows.max(0), strict=True):
        if nbytes:
            by_axis.setdefault(axis, {})[operation] = float(nbytes)
    return by_axis


def combine_rank_steps(
    step: int, mesh: Mesh, options: TrainOptions, axes: Sequence[str], rows: Sequence[Sequence[float]]
) -> tuple[TrainStepRecord, bool]:
    """Return the record of a training step, and whether training stops after this step.

    Args:
        step: number of steps done, including the step of the record.
        axes: the names of the groups of `list_sent_bytes`: an axis, or several axes joined by commas.
        rows: for each rank, the fields of its `RankStep`, and the elements of `list_sent_bytes`.
    """
    table = np.asarray(rows, np.float64)
    measured, sent = np.split(table, [len(RankStep._fields)], axis=1)
    loss, square_norm, step_s, comm_s, exposed_s, pipeline_s, peak_bytes, stop = measured.T
    idle_s = pipeline_s + step_s.max() - step_s  # a stage also waits for the others at the end of the step
    record = TrainStepRecord(
        **describe_mesh(mesh, options),
        step=step,
        loss=float(loss.sum()),
        step_s=float(step_s.max()),
        tokens_per_s=options.batch * options.model.tokens / float(step_s.max()),
        comm_s=float(comm_s.max()),
        exposed_comm_s=float(exposed_s.max()),
        bubble=float(idle_s.mean() / step_s.max()) if mesh.pp > 1 else None,
        peak_bytes=int(peak_bytes.max()),
        grad_norm=float(square_norm.sum()) ** 0.5,
        sent_bytes=_combine_sent_bytes(axes, sent),
    )
    return record, bool(stop.any())


def explain_non_finite(record: TrainStepRecord, rows: Sequence[Sequence[float]], lr: float) -> str | None:
    """Return a message that names the first rank whose loss or gradient is not finite, or None if all are finite.

    `rows` has, for each rank, the fields of its `RankStep`.
    """
    for rank, row in enumerate(rows):
        loss, square_norm = row[:2]
        if not np.isfinite([loss, square_norm]).all():
            which = "loss" if not np.isfinite(loss) else "gradient"
            values = f"loss {record.loss:.4g}, norm of the gradient {record.grad_norm:.4g}"
            return (
                f"step {record.step}: the {which} of rank {rank} is not finite ({values}); give a smaller --lr than "
                f"{lr:g}; checkpoints of earlier steps are intact"
            )
    return None
