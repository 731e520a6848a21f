"""`check_parity`: run the training steps on a mesh and in one process, and return the comparison of all tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpccoll.errors import UsageError, WrongResultError
from hpccoll.parallel.mesh import Mesh, split_strategy_words
from hpccoll.parity.case import ParityCase, ParityMesh, build_case
from hpccoll.parity.comparison import MeshComparison, ParityOptions
from hpccoll.parity.reference import ReferenceRun
from hpccoll.parity.wrapped import WrappedRun
from hpccoll.records import ParityRecord, ParitySummaryRecord
from hpccoll.units import format_count

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator


@dataclass(frozen=True, slots=True)
class ParityReport:
    """The result of `check_parity`: the compared tensors of training on a mesh and in one process, and a summary."""

    records: list[ParityRecord]  # one per tensor, in the order of comparison; empty except on rank 0
    summary: ParitySummaryRecord  # the same on all ranks

    def require_equal(self) -> None:
        """Raise WrongResultError on every rank if a tensor on the mesh differs from the same tensor in one process."""
        if self.summary.wrong:
            raise WrongResultError(format_summary(self.summary))


def check_parity(
    comm: Communicator, build: Callable[[], ParityCase], strategy: str, options: ParityOptions | None = None
) -> ParityReport:
    """Train a model on a mesh of ranks and in one process; return the comparison of losses, gradients and parameters.

    Collective over `comm`. The comparison ends at the first step in which a tensor differs. Rank 0 computes the steps
    of the whole model alone while the other ranks wait, so rank 0 holds the whole model and all ranks' gradients of a
    step.

    Args:
        build: returns the model, the batch and the parallel training step; it is called with the same seed of torch's
            random numbers on each rank.
        strategy: a mesh of all ranks, such as `dp=2,tp=2`.
        options: steps, tolerance and seed; None means the defaults.

    Raises UsageError if the mesh does not have as many ranks as `comm`, or the user's case does not support the mesh.
    """
    options = options or ParityOptions()
    axes, levels, is_sequence_parallel = split_strategy_words(strategy)
    if levels or is_sequence_parallel:
        raise UsageError(
            f"{strategy}: zero1, zero2, zero3 and sp are words of hpccoll train; parity runs the model as your "
            f"function wraps it, so apply them there, and name the axes alone, such as {axes}"
        )
    mesh = ParityMesh(comm, Mesh.parse(axes, comm.size))
    with closing(mesh):
        reference = ReferenceRun(build_case(build, options.seed), mesh.sizes, options.seed) if comm.rank == 0 else None
        wrapped = WrappedRun(build_case(build, options.seed), mesh, options.seed)
        comparison = MeshComparison(mesh.sizes, options, reference)
        comparison.compare_initial(wrapped)
        while not comm.broadcast_object(comparison.is_wrong) and wrapped.step < options.steps:
            comparison.compare_step(wrapped)
    summary: Any = comm.broadcast_object(comparison.summarize() if reference else None)
    return ParityReport(list(comparison.records.values()), summary)


def format_summary(summary: ParitySummaryRecord) -> str:
    """Return the result of a comparison as a paragraph: that all tensors are equal, or the first wrong tensor."""
    on_mesh = f"{summary.mesh} on {format_count(summary.ranks, 'rank')}"
    if not summary.wrong:
        error = "" if summary.max_error is None else f" (largest relative error {summary.max_error:.1g})"
        return f"{on_mesh}: all {summary.tensors} tensors equal those of one process{error}"
    by = "" if summary.first_error is None else f" by {summary.first_error:.2g} of its largest magnitude"
    text = (
        f"{on_mesh}: {summary.wrong} of {summary.tensors} tensors differ from those of one process. The first is the "
    )
    text += f"{summary.quantity} of {summary.first} in step {summary.step}, which differs{by}. "
    seen = f", seen at {summary.seen_at}" if summary.seen_at != summary.first else ""
    return f"{text}Likely fault: {summary.fault}{seen}: {summary.explanation}"
