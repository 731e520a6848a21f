"""The reasons why calls of a communicator can no longer be carried out: an interrupted call, or dead ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hpccoll.errors import CommunicationError, RankLostError

INTERRUPTED: Final = "interrupted"  # `CallRecorder.current` of an unusable communicator between calls


@dataclass(frozen=True, slots=True)
class Interruption:
    """The notice that an exception `cause` interrupted call `number`, named `call`, of rank `rank`.

    `number` is 0 if the call is a message between two ranks.
    """

    rank: int
    number: int
    call: str
    cause: str

    def make_error(self, rank: int, operation: str = "") -> CommunicationError:  # noqa: ARG002 - see `LostRanks`
        """Return the exception that later calls of rank `rank` on the communicator raise; `operation` is ignored."""
        call, effect = f"call {self.number} ({self.call})", "the ranks have different parts of its result"
        if not self.number:
            call, effect = f"a {self.call}", "it is unknown which messages have arrived"
        return CommunicationError(
            f"rank {rank}: this communicator is unusable, because {call} of rank {self.rank} was interrupted by "
            f"{self.cause}, so that {effect}; make a new Communicator on all ranks, or end the job and start it again"
        )


@dataclass(frozen=True, slots=True)
class LoopExit(Interruption):
    """The notice that rank `rank` has left the loop `survivors`, by break, return or an exception."""

    def make_error(self, rank: int, operation: str = "") -> CommunicationError:  # noqa: ARG002 - see `LostRanks`
        """Return the exception that later calls of rank `rank` on the communicator raise; `operation` is ignored."""
        return CommunicationError(
            f"rank {rank}: this communicator is unusable, because rank {self.rank} has left the loop hpccoll.survivors "
            "by break, return or an exception, after which it makes no new communicator; let all ranks leave "
            "the loop, or end its block on all ranks"
        )


@dataclass(frozen=True, slots=True)
class LostRanks:
    """The fact that the processes of `ranks`, which are ranks of the communicator on `hosts`, have ended."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]

    def make_error(self, rank: int, operation: str = "") -> RankLostError:
        """Return the error of the call `operation` of rank `rank` on the communicator."""
        return RankLostError(rank, self.ranks, self.hosts, operation)
