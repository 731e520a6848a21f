"""Synchronization schemes: which pairs of ranks exchange messages, how many, and how clients fit their models.

Sources: Hunold and Carpen-Amarie, CLUSTER'18 (HCA3); Jones and Koenig, CCPE 25(6), 2012; Augustin and Worsch,
EuroPVM/MPI'02, and Worsch, Reussner and Augustin, EuroPVM/MPI'02 (SKaMPI).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hpccoll.errors import UnknownNameError
from hpccoll.measure.clock.clock_fit import fit_offset_bounds, fit_usual_round_trip, fit_weighted_exchanges
from hpccoll.measure.clock.ping_pong import PingPongs
from hpccoll.recordings import ClockModel

ClockPair = tuple[int, int]  # the reference rank, which has a global clock already, and its client
EXCHANGES = 10  # per batch


@dataclass(frozen=True, slots=True)
class ClockScheme:
    """A scheme by which the ranks synchronize their clocks: pairs of ranks exchange ping-pongs in rounds."""

    name: str  # the name of the scheme, such as `hca3`
    # Returns the pairs (reference rank, client rank) of each round for a number of ranks; the pairs of a round may
    # measure at the same time
    list_rounds: Callable[[int], list[list[ClockPair]]]
    # Returns the model of the client's clock that is fitted to the client's ping-pongs
    fit: Callable[[PingPongs], ClockModel]
    exchanges: int = EXCHANGES  # the number of ping-pongs in a batch
    has_drift: bool = True  # whether the model has a drift, as well as an offset
    # The number of passes over all pairs, in each of which every pair measures one batch; None if every pair measures
    # all its batches in one pass
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
    """Return one round per rank except 0, with the pair of rank 0, the reference, and that rank."""
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
