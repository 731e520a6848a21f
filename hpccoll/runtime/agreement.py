"""HPCCOLL_DEBUG=1: before each collective all ranks compare what they were called with.

Costs one small all-gather of text a call, on a message space of its own. A rank whose arguments are refused says so
to the others, so that nobody waits for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mpi4py import MPI

from hpccoll.errors import HpccollError, MismatchError
from hpccoll.plan import Operation


def wanted() -> bool:
    """Whether the environment asks for the comparison."""
    return os.environ.get("HPCCOLL_DEBUG", "0") not in ("", "0")


Call = tuple[str, str, dict[str, Any]]  # operation, why it was refused, facts


class Agreement:
    """Compares the calls of all ranks of a communicator."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm.Dup()
        self._calls = 0

    def free(self) -> None:
        """Give the message space back; collective."""
        self._comm.Free()

    @contextmanager
    def round(self, operation: Operation, progress: Callable[[], object]) -> Iterator[dict[str, Any]]:
        """Collect this rank's facts in the body, then compare them; `progress` carries on what is under way meanwhile.

        Raises:
            MismatchError: ranks differ; names the first that differs from rank 0, and both values.
        """
        self._calls += 1
        facts: dict[str, Any] = {}
        try:
            yield facts
        except HpccollError as error:
            self._exchange((operation.value, f"refused: {error}", {}), progress)
            raise
        calls = self._exchange((operation.value, "", facts), progress)
        self._compare(calls)

    def _exchange(self, call: Call, progress: Callable[[], object]) -> list[Call]:
        all_here = self._comm.Ibarrier()  # a rank may come here only after something that is under way has ended
        while not all_here.Test():
            progress()
        return self._comm.allgather(call)

    def _compare(self, calls: list[Call]) -> None:
        first = calls[0]
        for rank, (operation, refusal, facts) in enumerate(calls):
            if refusal:
                raise MismatchError(
                    f"collective {self._calls}: rank {rank} did not take part in {operation}: {refusal}"
                )
            if operation != first[0]:
                raise MismatchError(
                    f"collective {self._calls}: rank 0 called {first[0]} and rank {rank} called {operation}; "
                    "every rank must call the same collectives in the same order"
                )
            differ = [name for name in facts if facts[name] != first[2].get(name)]
            if differ:
                values = ", ".join(
                    f"{name} {first[2].get(name)} on rank 0, {facts[name]} on rank {rank}" for name in differ
                )
                raise MismatchError(f"collective {self._calls} ({operation}): ranks differ: {values}")
