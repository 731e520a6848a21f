"""Synchronization schemes: which pairs of ranks exchange messages, how many, and how clients fit their models.

Sources: Hunold and Carpen-Amarie, CLUSTER'18 (HCA3); Jones and Koenig, CCPE 25(6), 2012; Augustin and Worsch,
EuroPVM/MPI'02, and Worsch, Reussner and Augustin, EuroPVM/MPI'02 (SKaMPI).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hpccoll.errors import UnknownNameError
from hpccoll.measure.clock.linear_model import (
    LinearModel,
    fit_mean_round_trip,
    fit_offset_bounds,
    fit_quick_exchanges,
)
from hpccoll.measure.clock.ping_pong import PingPongs

Pair = tuple[int, int]  # the reference rank, which has a global clock already, and its client
EXCHANGES = 20  # per batch
BATCHES = 50
SPAN_S = 0.5  # between the first batch and the last; a longer span gives a more precise drift


@dataclass(frozen=True, slots=True)
class ClockScheme:
    """A synchronization scheme: `list_rounds` returns the pairs of each round, which may measure at the same time.

    All rounds are repeated `sweeps` times, with `batches` batches of ping-pongs per pair each time.
    """

    name: str
    list_rounds: Callable[[int], list[list[Pair]]]
    fit: Callable[[PingPongs], LinearModel]
    sweeps: int
    batches: int
    exchanges: int

    @property
    def has_drift(self) -> bool:
        """Whether the models have a drift."""
        return self.sweeps * self.batches > 1

    def list_waves(self, ranks: int, *, one_pair: bool) -> Iterator[list[Pair]]:
        """Yield the pairs of each round that measure at the same time: only one pair if `one_pair` is set."""
        for pairs in self.list_rounds(ranks):
            yield from ([pair] for pair in pairs) if one_pair else (pairs,)


def list_tree_rounds(ranks: int) -> list[list[Pair]]:
    """Return the rounds of a binomial tree: in each round, every rank that has a global clock serves another rank."""
    known, rounds = 1, []
    while known < ranks:
        rounds.append([(rank, rank + known) for rank in range(min(known, ranks - known))])
        known *= 2
    return rounds


def list_star_rounds(ranks: int) -> list[list[Pair]]:
    """Return one round per rank but 0, in which rank 0 serves this rank."""
    return [[(0, rank)] for rank in range(1, ranks)]


_SCHEMES = (
    ClockScheme("hca3", list_tree_rounds, fit_quick_exchanges, sweeps=1, batches=BATCHES, exchanges=EXCHANGES),
    ClockScheme("skampi", list_star_rounds, fit_offset_bounds, sweeps=1, batches=1, exchanges=100),
    ClockScheme("jones_koenig", list_star_rounds, fit_mean_round_trip, sweeps=BATCHES, batches=1, exchanges=EXCHANGES),
)
CLOCK_NAMES = tuple(scheme.name for scheme in _SCHEMES)


def get_clock_scheme(name: str) -> ClockScheme:
    """Return the scheme called `name`; raise UnknownNameError, which lists all names, if there is none."""
    for scheme in _SCHEMES:
        if scheme.name == name:
            return scheme
    raise UnknownNameError("clock", name, list(CLOCK_NAMES))
