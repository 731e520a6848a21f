"""A plan: one collective algorithm on a number of ranks, and what it states about its own cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hpccoll.plan.moves import MoveRounds, to_move_rounds
from hpccoll.plan.operation import Operation
from hpccoll.plan.rounds import Rounds
from hpccoll.plan.step import IntArray


@dataclass(frozen=True, slots=True)
class Cost:
    """What an algorithm states: steps, and bytes moved by a rank as fractions of S (mean over ranks, and most).

    Steps are the rounds in which something moves. A rank moves what it sends, and what it loads or stores itself in
    another's memory; what others fetch from it, or put there, costs it nothing.
    """

    steps: int
    mean: Fraction
    most: Fraction


@dataclass(frozen=True, slots=True)
class Plan:
    """An algorithm on `ranks` ranks: `make` gives the rounds of any column of ranks.

    `period` p states that rank r + p does what rank r does, with peers (and chunks numbered by rank) p further on.
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
        """`operation/algorithm`, as the command line writes it."""
        return f"{self.operation.value}/{self.algorithm}"

    def column(self, rank: int) -> Rounds:
        """The steps of one rank as they are, fences among them (what the runtime compiles)."""
        return self.make(np.array([rank], np.int64))

    def rounds(self) -> Rounds:
        """The steps of all ranks at once as they are (what check and simulate read)."""
        return self.make(np.arange(self.ranks, dtype=np.int64))

    def moves(self) -> MoveRounds:
        """What moves among all ranks at once (what replay and draw read): loads and stores are messages there."""
        return to_move_rounds(self.rounds(), self.ranks)
