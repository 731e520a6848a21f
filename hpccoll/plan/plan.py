"""A plan: one collective algorithm on a number of ranks, with its stated cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from hpccoll.plan.moves import to_moves
from hpccoll.plan.operation import Operation
from hpccoll.plan.rounds import Rounds
from hpccoll.plan.step import Fence, IntArray


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a plan: steps, and bytes per rank as fractions of the message size S (mean over ranks, and maximum).

    `steps` counts the rounds with a message, load or store between different ranks. `mean` and `most` count the bytes
    that a rank sends, loads and stores, not the accesses of other ranks to its memory.
    """

    steps: int
    mean: Fraction
    most: Fraction


@dataclass(frozen=True, slots=True)
class Plan:
    """A collective algorithm on `ranks` ranks; `make(rank)` returns the rounds of the ranks in the array `rank`.

    `cost` is the cost that the algorithm states, and `check` compares it with the real cost of the plan. A `period` p
    states that rank r + p does the same as rank r, with all peers (and chunks numbered by rank) increased by p.
    """

    operation: Operation
    algorithm: str
    ranks: int
    root: int
    make: Callable[[IntArray], Rounds]
    cost: Cost | None = None
    period: int | None = None

    @property
    def name(self) -> str:
        """The name of the plan as `operation/algorithm`, the form used on the command line."""
        return f"{self.operation.value}/{self.algorithm}"

    def column(self, rank: int) -> Rounds:
        """Return the rounds with the steps of one rank only, which the runtime translates into instructions."""
        return self.make(np.array([rank], np.int64))

    def rounds(self) -> Rounds:
        """Return the rounds of all ranks at once, as `check` and `simulate` read them."""
        return self.make(np.arange(self.ranks, dtype=np.int64))

    def has_fences(self) -> bool:
        """Whether any round contains a fence (a barrier of ranks of a node); computes all rounds of the plan."""
        return any(isinstance(step, Fence) for steps in self.rounds() for step in steps)

    def moves(self) -> Rounds:
        """Return the rounds of all ranks with loads and stores converted to messages and without fences."""
        at, n = self.rounds().at, self.ranks
        return replace(self.rounds(), at=lambda t: [move for step in at(t) for move in to_moves(step, n)])
