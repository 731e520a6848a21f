"""Steps that succeed on all ranks or raise the same error on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from hpccoll.errors import HpccollError

if TYPE_CHECKING:
    from mpi4py import MPI

Result = TypeVar("Result")
FAILURES = (HpccollError, RuntimeError, OSError, ImportError, AttributeError)


def gather_or_raise(
    comm: MPI.Intracomm, step: Callable[[], Result], failed: Callable[[str], Exception]
) -> list[Result]:
    """Run `step` on every rank and return the results of all ranks, by rank; collective.

    Args:
        comm: the ranks.
        step: returns something that can be pickled.
        failed: makes the exception from the first failing rank's reason, such as `rank 2: no such device`.

    Raises:
        Exception: what `failed` returns, on every rank, where `step` failed on any.

    Cost: one all-gather of the pickled results.
    """
    outcome: tuple[Result | None, str]
    try:
        outcome = step(), ""
    except FAILURES as error:
        outcome = None, str(error).partition("\n")[0] or type(error).__name__
    outcomes = comm.allgather(outcome)
    for rank, (_, reason) in enumerate(outcomes):
        if reason:
            raise failed(f"rank {rank}: {reason}")
    return [result for result, _ in outcomes]


def run_or_raise(comm: MPI.Intracomm, step: Callable[[], Result], failed: Callable[[str], Exception]) -> Result:
    """Run `step` on every rank and return this rank's result, which is not communicated; else as `gather_or_raise`."""
    results: list[Result] = []
    gather_or_raise(comm, lambda: results.append(step()), failed)
    return results[0]
