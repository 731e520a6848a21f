"""Copies in memory of the training state after a step, from which the survivors continue after the death of ranks.

Each rank copies its own parameters and optimizer state after each step. If no other rank holds the same state (unlike
in data parallelism without ZeRO), the rank also sends its copy to a neighbour. The neighbour is on another node if the
ranks are on several nodes.

The state after a step is copied before the ranks exchange the record of the step. A rank that has the record therefore
knows that all ranks have the copy, and drops the older copy. Let s be the latest step whose record a survivor has: each
survivor has a copy of the state after s, and no survivor has dropped it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from hpccoll.parallel.axis_group import AxisGroup
from hpccoll.parallel.mesh import Mesh

COPY_TAG: Final = 4  # MPI tag of the messages that carry copies


class StatePiece(NamedTuple):
    """Consecutive elements of a parameter shard in the flat state of a rank."""

    shard: int  # index in `list_shards` of the model
    begin: int  # first element in the flat shard
    offset: int  # first element in the flat state
    elements: int


@dataclass(frozen=True, slots=True)
class FlatState:
    """The state of a rank: the parameters, then each state of the optimizer, as one flat tensor.

    `flat` has equal parts: one for the parameters, and one for each state of the optimizer. `pieces` gives the position
    of each parameter in the first part. The optimizer states of a parameter have the same position in the other parts.
    """

    pieces: Sequence[StatePiece]
    flat: Any


class CopyKey(NamedTuple):
    """The identity of a copy of the training state: the mesh, and the numbers of steps, samples and recoveries done."""

    step: int  # number of steps done
    generation: int  # number of recoveries so far
    samples: int  # number of samples done
    mesh: Mesh


@dataclass(frozen=True, slots=True)
class StateCopy:
    """A copy of the states (parameters and optimizer) of some ranks of a mesh after a step, by rank."""

    key: CopyKey
    by_rank: Mapping[int, FlatState]

    @property
    def tensors(self) -> list[Any]:
        """The flat tensors of the states in this copy, one per rank."""
        return [state.flat for state in self.by_rank.values()]


class StateCopies:
    """The copies of training states that this rank keeps, for a recovery after the death of other ranks.

    The copies are of the rank's own state and, if `group` is not None, of a neighbour's. The constructor is collective
    over `group`.

    Args:
        pieces: the places of this rank's parameters in its flat state.
        group: the ranks among which copies are sent; None if other ranks hold the same state as this rank.
        kept: the copy from which this run has recovered.
    """

    def __init__(
        self,
        mesh: Mesh,
        rank: int,
        pieces: Sequence[StatePiece],
        group: AxisGroup | None,
        generation: int = 0,
        kept: StateCopy | None = None,
    ) -> None:
        self.copies = [] if kept is None else [kept]  # the older one first
        self._mesh, self._rank, self._pieces, self._group, self._generation = mesh, rank, pieces, group, generation
        self._shift = group.size // group.nodes if group is not None and group.nodes > 1 else 1
        self._neighbour: tuple[int, Sequence[StatePiece], int] | None = None  # rank, pieces, elements

    @property
    def tensors(self) -> list[Any]:
        """The flat tensors of all copies that this rank keeps."""
        return [x for copy in self.copies for x in copy.tensors]

    def update(self, step: int, samples: int, tensors: Iterable[Any]) -> None:
        """Copy the training state after step `step` here and to a neighbour; collective over the group.

        `tensors` has the parameter shards, then as many tensors for each state of the optimizer.
        """
        own = torch.cat([x.detach().reshape(-1) for x in tensors])
        by_rank = {self._rank: FlatState(self._pieces, own)}
        if self._group is not None:
            rank, state = self._exchange(self._group, own)
            by_rank[rank] = state
        self.copies = [*self.copies[-1:], StateCopy(CopyKey(step, self._generation, samples, self._mesh), by_rank)]

    def commit(self) -> None:
        """Drop the older copy; call this when all ranks are known to have the latest copy. Local."""
        self.copies = self.copies[-1:]

    def _exchange(self, group: AxisGroup, own: Any) -> tuple[int, FlatState]:
        """Send this rank's state to a neighbour, and return the rank and the state of the neighbour on the other side.

        Collective over `group`. Cost: one message with the whole state of this rank. The first call also gathers the
        pieces of all ranks of the group.
        """
        if self._neighbour is None:
            rows = group.all_gather_object((self._rank, self._pieces, len(own)))
            self._neighbour = rows[(group.index + self._shift) % group.size]
        rank, pieces, count = self._neighbour
        flat = own.new_empty(count)
        receive = group.start_recv(flat, (group.index + self._shift) % group.size, COPY_TAG)
        group.start_send(own, (group.index - self._shift) % group.size, COPY_TAG)
        group.wait(receive)
        group.finish_sends()
        return rank, FlatState(pieces, flat)
