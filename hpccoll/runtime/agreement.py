"""Runs steps that succeed on all ranks or raise the same error on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from hpccoll.errors import HpccollError

if TYPE_CHECKING:
    from mpi4py import MPI

Result = TypeVar("Result")
FAILURES = (HpccollError, RuntimeError, OSError, ImportError, AttributeError)


def gather_or_raise(
    comm: MPI.Intracomm, step: Callable[[], Result], make_error: Callable[[str], Exception]
) -> list[Result]:
    """Run `step` on every rank and return the results of all ranks, by rank; collective.

    Args:
        step: a function whose result can be pickled.
        make_error: returns the exception for a reason, such as `rank 2: no such device`.

    Raises:
        Exception: the exception that `make_error` returns, on every rank, if `step` raised one of FAILURES on any rank.

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
            raise make_error(f"rank {rank}: {reason}")
    return [result for result, _ in outcomes]


def run_or_raise(comm: MPI.Intracomm, step: Callable[[], Result], make_error: Callable[[str], Exception]) -> Result:
    """Run `step` as `gather_or_raise` does, but return only this rank's result, of any type; collective."""
    results: list[Result] = []
    gather_or_raise(comm, lambda: results.append(step()), make_error)
    return results[0]
