"""Plans within a node: ranks that share memory load from and store to each other, and fences keep them in step.

No message is sent. A fence at the start says that everyone has come and its input may be read, one at the end that
nobody is at work in another's memory any more. Between them every rank moves what it needs in its own time, all at
once; nothing is copied to a buffer on the way, and no rank waits for a partner. What a transfer costs is the bytes; two
fences are all the latency there is. They suit the ranks of a node (or GPUs that map each other's memory), not more.

Order: `shared_one_shot` reduces 0, 1, ..., n - 1 on every rank, ((x0 (+) x1) (+) x2) ..., so all compute the same bits;
where each chunk has an owner, owner r reduces its own first, then those of r+1, r+2, ... around the circle, and the
others get its bits. Every rank goes around from its own place, so that not all load from one rank at once.

Sources: the one-shot and two-shot all-reduce of TensorRT-LLM and vLLM; Graham and Shipman, "MPI support for multi-core
architectures", EuroPVM/MPI 2008, and Jain et al., SC 2018, for collectives in memory that a node shares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, Cost, Fence, IntArray, Load, Op, Operation, Rounds, Span, Step, Store

Work = Callable[[], Sequence[Step]]


def fenced(rank: IntArray, n: int, chunks: int, *work: Work) -> Rounds:
    """Return a fence of all n ranks, a round for each piece of `work`, and a fence again; nothing on one rank."""
    everyone = Fence(np.zeros_like(rank))
    rounds: list[Work] = [lambda: [everyone], *work, lambda: [everyone]]
    return Rounds(len(rounds) if n > 1 else 0, chunks, lambda t: rounds[t]())


def _around(rank: IntArray, n: int) -> list[IntArray]:
    """Return the other ranks in the order in which each rank turns to them: from the one above it around the circle."""
    return [(rank + distance) % n for distance in range(1, n)]


def _reduced(rank: IntArray, n: int) -> list[Step]:
    """Every rank reduces chunk r of all others into its own."""
    mine = Span(rank, 1, n)
    return [Load(peer, mine, mine, Op.OWN_FIRST) for peer in _around(rank, n)]


def _steps(n: int, steps: int) -> int:
    return steps if n > 1 else 0


def one_shot_cost(n: int) -> Cost:
    """1 step between two fences; every rank loads S from each of the n - 1 others."""
    return Cost(_steps(n, 1), Fraction(n - 1), Fraction(n - 1))


@algorithm(Operation.ALL_REDUCE, "shared_one_shot", one_shot_cost, uses_shared_memory=True)
def one_shot(rank: IntArray, n: int) -> Rounds:
    """Every rank reduces the vectors of all ranks in rank order, straight from their memory."""
    whole = Span(0, 1, 1)

    def loads() -> list[Step]:
        return [Load(np.full_like(rank, peer), whole, whole, Op.OWN_FIRST if peer else Op.COPY) for peer in range(n)]

    return fenced(rank, n, 1, loads)


def two_shot_cost(n: int) -> Cost:
    """2 steps between two fences; every rank loads (n-1)/n S and stores as much."""
    return Cost(_steps(n, 2), Fraction(2 * (n - 1), n), Fraction(2 * (n - 1), n))


@algorithm(Operation.ALL_REDUCE, "shared_two_shot", two_shot_cost, period=1, uses_shared_memory=True)
def two_shot(rank: IntArray, n: int) -> Rounds:
    """Every rank reduces the chunk that it owns, from the memory of all, and stores it to all."""
    mine = Span(rank, 1, n)
    # No fence between: what a rank stores over in another's memory is what it alone has read there.
    return fenced(rank, n, n, lambda: _reduced(rank, n), lambda: [Store(peer, mine, mine) for peer in _around(rank, n)])


def block_cost(n: int) -> Cost:
    """1 step between two fences; every rank moves (n-1)/n S."""
    return Cost(_steps(n, 1), Fraction(n - 1, n), Fraction(n - 1, n))


@algorithm(Operation.REDUCE_SCATTER, "shared", block_cost, period=1, uses_shared_memory=True)
def reduce_scatter(rank: IntArray, n: int) -> Rounds:
    """Every rank reduces its own block from the memory of all."""
    return fenced(rank, n, n, lambda: _reduced(rank, n))


@algorithm(Operation.ALL_GATHER, "shared", block_cost, period=1, uses_shared_memory=True)
def all_gather(rank: IntArray, n: int) -> Rounds:
    """Every rank loads the block of each other one."""
    return fenced(rank, n, n, lambda: [Load(peer, Span(peer, 1, n), Span(peer, 1, n)) for peer in _around(rank, n)])


def rooted_cost(n: int) -> Cost:
    """1 step between two fences; every rank but the root moves S/n."""
    return Cost(_steps(n, 1), Fraction(n - 1, n * n), Fraction(_steps(n, 1), n))


@algorithm(Operation.GATHER, "shared", rooted_cost, uses_shared_memory=True)
def gather(rank: IntArray, n: int, root: int) -> Rounds:
    """Every rank stores its block in the root's memory."""
    mine, to = Span(rank, 1, n), np.where(rank == root, NO_PEER, root)
    return fenced(rank, n, n, lambda: [Store(to, mine, mine)])


@algorithm(Operation.SCATTER, "shared", rooted_cost, uses_shared_memory=True)
def scatter(rank: IntArray, n: int, root: int) -> Rounds:
    """Every rank loads its block from the root's memory."""
    mine, frm = Span(rank, 1, n), np.where(rank == root, NO_PEER, root)
    return fenced(rank, n, n, lambda: [Load(frm, mine, mine)])


def reduce_cost(n: int) -> Cost:
    """2 steps between two fences; every rank loads (n-1)/n S, and all but the root store S/n."""
    loaded = Fraction(n - 1, n)
    return Cost(_steps(n, 2), loaded + loaded / n, Fraction(_steps(n, 1)))


@algorithm(Operation.REDUCE, "shared", reduce_cost, uses_shared_memory=True)
def reduce(rank: IntArray, n: int, root: int) -> Rounds:
    """Every rank reduces the chunk that it owns, from the memory of all, and stores it to the root."""
    mine, to = Span(rank, 1, n), np.where(rank == root, NO_PEER, root)
    return fenced(rank, n, n, lambda: _reduced(rank, n), lambda: [Store(to, mine, mine)])


@algorithm(Operation.BROADCAST, "shared", block_cost, uses_shared_memory=True)
def broadcast(rank: IntArray, n: int, root: int) -> Rounds:
    """The root stores one chunk to all, who load the others from it: every rank moves as much."""
    mine, rest = Span(root, 1, n), Span(root + 1, n - 1, n)

    def move() -> list[Step]:
        stores: list[Step] = [Store(np.where(rank == root, peer, NO_PEER), mine, mine) for peer in _around(rank, n)]
        return [*stores, Load(np.where(rank == root, NO_PEER, root), rest, rest)]

    return fenced(rank, n, n, move)


@algorithm(Operation.ALL_TO_ALL, "shared", block_cost, period=1, uses_shared_memory=True)
def all_to_all(rank: IntArray, n: int) -> Rounds:
    """Every rank loads its block from each other one; chunks 0 to n-1 are a rank's input, n to 2n-1 its output."""
    mine = Span(rank, 1, n)

    def loads() -> list[Step]:
        return [Load(peer, mine, Span(peer, 1, n, base=n)) for peer in (rank, *_around(rank, n))]

    return fenced(rank, n, 2 * n, loads) if n > 1 else Rounds(1, 2, lambda _: loads())


def barrier_cost(n: int) -> Cost:  # noqa: ARG001 - alike for all
    """No step and no data: one fence."""
    return Cost(0, Fraction(0), Fraction(0))


@algorithm(Operation.BARRIER, "shared", barrier_cost, period=1, uses_shared_memory=True)
def barrier(rank: IntArray, n: int) -> Rounds:
    """One fence of all ranks."""
    return Rounds(min(n - 1, 1), 0, lambda _: [Fence(np.zeros_like(rank))])
