"""With HPCCOLL_DEBUG=1, all ranks compare their arguments before each collective.

Cost: a non-blocking barrier and an all-gather of a few hundred bytes per call, on a duplicated communicator. A rank
with invalid arguments sends its error to the other ranks, so that they do not wait for this rank.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

from mpi4py import MPI

from hpccoll.errors import HpccollError, MismatchError
from hpccoll.runtime.agreement import wait_for_ranks
from hpccoll.runtime.progress import Progress

EXCHANGED = "exchanged"  # key of the elements that a rank sends to each rank, followed by those that it receives
Announcement = tuple[str, str, dict[str, Any]]  # operation, error if this rank refused the call, arguments


def is_enabled() -> bool:
    """Whether the environment variable HPCCOLL_DEBUG is set and neither 0 nor empty."""
    return os.environ.get("HPCCOLL_DEBUG", "0") not in ("", "0")


class ArgumentCheck:
    """Compares each collective's arguments across the ranks of `comm`; its collective constructor duplicates `comm`."""

    def __init__(self, comm: MPI.Intracomm, progress: Progress) -> None:
        self.comm, self._progress = comm.Dup(), progress
        self._calls = 0

    @contextmanager
    def compare(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield a dictionary for the `with` block to fill with the call's arguments; then compare it across all ranks.

        `name` is the name of the called method.

        Raises:
            MismatchError: a rank's call is invalid or differs from rank 0's; the message names the lowest such rank.
        """
        self._calls += 1
        arguments: dict[str, Any] = {}
        try:
            yield arguments
        except HpccollError as error:
            self._exchange((name, f"{error}", {}))
            raise
        self._require_equal(self._exchange((name, "", arguments)))

    def _exchange(self, own: Announcement) -> list[Announcement]:
        """Return every rank's operation, error and arguments; meanwhile advance operations in flight. Collective."""
        wait_for_ranks(self.comm, self._progress)  # another rank may first have to complete an operation in flight
        return self.comm.allgather(own)

    def _require_equal(self, announcements: list[Announcement]) -> None:
        """Raise MismatchError for the first rank whose call is invalid or differs from rank 0's call."""
        first_operation, _, first_arguments = announcements[0]
        for rank, (operation, refusal, arguments) in enumerate(announcements):
            if refusal:
                raise MismatchError(f"collective {self._calls}: rank {rank} refused its {operation}: {refusal}")
            if operation != first_operation:
                raise MismatchError(
                    f"collective {self._calls}: rank 0 called {first_operation} and rank {rank} called {operation}; "
                    "every rank must call the same collectives in the same order"
                )
            differing = [
                name for name in arguments if name != EXCHANGED and arguments[name] != first_arguments.get(name)
            ]
            if differing:
                values = ", ".join(
                    f"{name} {first_arguments.get(name)} on rank 0, {arguments[name]} on rank {rank}"
                    for name in differing
                )
                raise MismatchError(f"collective {self._calls} ({operation}): ranks differ: {values}")
        blocks = [arguments.get(EXCHANGED) for _, _, arguments in announcements]
        for sender, receiver in product(range(len(blocks)), repeat=2):
            sent, received = blocks[sender], blocks[receiver]
            if sent and received and sent[receiver] != received[len(blocks) + sender]:
                raise MismatchError(
                    f"collective {self._calls} (all_to_all): rank {sender} sends {sent[receiver]} elements to rank "
                    f"{receiver}, which expects {received[len(blocks) + sender]}; out_counts of a rank must be what "
                    "the counts of all ranks send to it"
                )
