"""Synchronization schemes: which pairs of ranks exchange messages, how many, and how clients fit their models.

Sources: Hunold and Carpen-Amarie, CLUSTER'18 (HCA3); Jones and Koenig, CCPE 25(6), 2012; Augustin and Worsch,
EuroPVM/MPI'02, and Worsch, Reussner and Augustin, EuroPVM/MPI'02 (SKaMPI).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hpccoll.errors import UnknownNameError
from hpccoll.measure.clock.clock_fit import (
    fit_offset_bounds,
    fit_usual_round_trip,
    fit_weighted_exchanges,
)
from hpccoll.measure.clock.ping_pong import PingPongs
from hpccoll.runtime.recorder import ClockModel

ClockPair = tuple[int, int]  # the reference rank, which has a global clock already, and its client
EXCHANGES = 10  # per batch


@dataclass(frozen=True, slots=True)
class ClockScheme:
    """A scheme by which the ranks synchronize their clocks: pairs of ranks exchange ping-pongs in rounds.

    Args:
        name: the name of the scheme, such as `hca3`.
        list_rounds: returns the pairs (reference rank, client rank) of each round for a number of ranks; the pairs of
            a round may measure at the same time.
        fit: returns the client's model for its ping-pongs.
        exchanges: the number of ping-pongs in a batch.
        has_drift: whether the model has a drift, as well as an offset.
        sweeps: how often each pair measures one batch, in turns with all others; None: a pair measures all at once.
    """

    name: str
    list_rounds: Callable[[int], list[list[ClockPair]]]
    fit: Callable[[PingPongs], ClockModel]
    exchanges: int = EXCHANGES
    has_drift: bool = True
    sweeps: int | None = None

    def list_waves(self, ranks: int, *, one_pair: bool) -> Iterator[list[ClockPair]]:
        """Yield lists of pairs of ranks that measure at the same time; each list has one pair if `one_pair` is set."""
        for pairs in self.list_rounds(ranks):
            yield from ([pair] for pair in pairs) if one_pair else (pairs,)


def list_tree_rounds(ranks: int) -> list[list[ClockPair]]:
    """Return the pairs of each round of a binomial tree: every rank with a global clock serves one that has none."""
    known, rounds = 1, []
    while known < ranks:
        rounds.append([(rank, rank + known) for rank in range(min(known, ranks - known))])
        known *= 2
    return rounds


def list_star_rounds(ranks: int) -> list[list[ClockPair]]:
    """Return one round per rank except 0, with the pair of rank 0, the reference, and this rank."""
    return [[(0, rank)] for rank in range(1, ranks)]


_SCHEMES = (
    ClockScheme("hca3", list_tree_rounds, fit_weighted_exchanges),
    ClockScheme("skampi", list_star_rounds, fit_offset_bounds, exchanges=100, has_drift=False),
    ClockScheme("jones_koenig", list_star_rounds, fit_usual_round_trip, exchanges=50, sweeps=50),
)
CLOCK_NAMES = tuple(scheme.name for scheme in _SCHEMES)


def get_clock_scheme(name: str) -> ClockScheme:
    """Return the scheme called `name`; raise UnknownNameError, which lists all names, if there is none."""
    for scheme in _SCHEMES:
        if scheme.name == name:
            return scheme
    raise UnknownNameError("clock", name, list(CLOCK_NAMES))
