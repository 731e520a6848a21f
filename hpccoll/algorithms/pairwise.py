"""Pairwise all-to-all: in round t every rank r sends its block for rank r + t (mod n) directly to that rank.

In round 0 every rank copies its own block. Each block is sent once, in n - 1 rounds of one block per rank, which is
bandwidth-optimal on a flat network. Chunks 0 to n-1 are a rank's input, n to 2n-1 its output. Source: Thakur,
Rabenseifner and Gropp, IJHPCA 2005.
"""

from __future__ import annotations

from hpccoll.algorithms.registry import algorithm
from hpccoll.algorithms.ring import reduce_scatter_cost
from hpccoll.plan import IntArray, Move, Operation, Rounds, Span


@algorithm(Operation.ALL_TO_ALL, "pairwise", reduce_scatter_cost, period=1, grows_linearly=True)
def all_to_all(rank: IntArray, n: int) -> Rounds:
    """Plan an all-to-all: in round t every rank sends one block directly to its receiver, t ranks above."""

    def send_block_round(t: int) -> list[Move]:
        """Return round t: each rank sends one block t ranks up, and receives one block from t ranks below."""
        dest, source = (rank + t) % n, (rank - t) % n
        return [Move(dest, source, Span(dest, 1, n), Span(source, 1, n, base=n))]

    return Rounds(n, 2 * n, send_block_round)
