"""Collectives within a node: ranks load from and store to each other's memory between two fences, without messages.

After the first fence (a barrier of the ranks) every rank's input may be read; after the last fence no rank accesses
another's memory any more. Between the fences all ranks move data at once, without buffers and without waiting for a
partner. A shared-memory plan costs the time to move the bytes, plus the latency of two fences. Shared-memory plans suit
the ranks of one node, or GPUs that can access each other's memory.

In `shared_one_shot` every rank reduces the messages in rank order, 0 to n - 1, so all ranks compute the same bits. In
the other algorithms owner r of a chunk reduces its own part first, then those of ranks r+1, r+2 and so on (mod n), and
other ranks copy the owner's result. Every rank r accesses the others in the order r+1, r+2, ..., r-1 (mod n), so that
at any time the ranks load from different ranks.

Sources: the one-shot and two-shot all-reduce of TensorRT-LLM and vLLM; Graham and Shipman, "MPI support for multi-core
architectures", EuroPVM/MPI 2008, and Jain et al., SC 2018, for collectives in the shared memory of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, Cost, Fence, IntArray, Load, Op, Operation, Rounds, Span, Step, Store

MakeRound = Callable[[], Sequence[Step]]


def between_fences(rank: IntArray, n: int, chunks: int, *work: MakeRound) -> Rounds:
    """Return a fence of all n ranks, one round per function in `work`, and a second fence; no rounds if n is 1.

    `chunks` is the number of chunks per rank.
    """
    everyone = Fence(np.zeros_like(rank))
    rounds: list[MakeRound] = [lambda: [everyone], *work, lambda: [everyone]]
    return Rounds(len(rounds) if n > 1 else 0, chunks, lambda t: rounds[t]())


def _peers(rank: IntArray, n: int) -> list[IntArray]:
    """Return n - 1 arrays of each rank's peers, in the order of accesses by rank r: r+1, r+2, ..., r-1 (mod n)."""
    return [(rank + distance) % n for distance in range(1, n)]


def _reduce_own_chunk(rank: IntArray, n: int) -> list[Step]:
    """Return the load steps in which every rank r reduces chunk r of all other ranks into its own chunk r."""
    own = Span(rank, 1, n)
    return [Load(peer, own, own, Op.OWN_FIRST) for peer in _peers(rank, n)]


def _steps_unless_alone(n: int, steps: int) -> int:
    """Return `steps`, or 0 if n is 1, because a single rank moves no data."""
    return steps if n > 1 else 0


def one_shot_cost(n: int) -> Cost:
    """S bytes take 1 step between two fences; every rank loads S from each of the n - 1 others."""
    return Cost(_steps_unless_alone(n, 1), Fraction(n - 1), Fraction(n - 1))


@algorithm(Operation.ALL_REDUCE, "shared_one_shot", one_shot_cost, uses_shared_memory=True, grows_linearly=True)
def one_shot(rank: IntArray, n: int) -> Rounds:
    """Plan an all-reduce: every rank reduces the vectors of all ranks in rank order, directly from their memory."""
    whole = Span(0, 1, 1)

    def reduce_in_rank_order() -> list[Step]:
        """Return the load steps in which every rank reads and reduces the vectors of ranks 0, 1, ..., n-1 in order."""
        return [Load(np.full_like(rank, peer), whole, whole, Op.OWN_FIRST if peer else Op.COPY) for peer in range(n)]

    return between_fences(rank, n, 1, reduce_in_rank_order)


def two_shot_cost(n: int) -> Cost:
    """S bytes take 2 steps between two fences; every rank loads (n-1)/n S and stores as much."""
    return Cost(_steps_unless_alone(n, 2), Fraction(2 * (n - 1), n), Fraction(2 * (n - 1), n))


@algorithm(
    Operation.ALL_REDUCE, "shared_two_shot", two_shot_cost, period=1, uses_shared_memory=True, grows_linearly=True
)
def two_shot(rank: IntArray, n: int) -> Rounds:
    """Plan an all-reduce: every rank reduces its own chunk from the memory of all ranks and stores it to all."""
    own = Span(rank, 1, n)
    # The stores need no fence before them: rank r overwrites only chunk r of other ranks, which only rank r reads.
    work: list[MakeRound] = [lambda: _reduce_own_chunk(rank, n), lambda: [Store(p, own, own) for p in _peers(rank, n)]]
    return between_fences(rank, n, n, *work)


def block_cost(n: int) -> Cost:
    """S bytes take 1 step between two fences; every rank loads or stores (n-1)/n S."""
    return Cost(_steps_unless_alone(n, 1), Fraction(n - 1, n), Fraction(n - 1, n))


@algorithm(Operation.REDUCE_SCATTER, "shared", block_cost, period=1, uses_shared_memory=True, grows_linearly=True)
def reduce_scatter(rank: IntArray, n: int) -> Rounds:
    """Plan a reduce-scatter: every rank reduces its own block from the memory of all ranks."""
    return between_fences(rank, n, n, lambda: _reduce_own_chunk(rank, n))


@algorithm(Operation.ALL_GATHER, "shared", block_cost, period=1, uses_shared_memory=True, grows_linearly=True)
def all_gather(rank: IntArray, n: int) -> Rounds:
    """Plan an all-gather: every rank loads the block of every other rank."""
    return between_fences(
        rank, n, n, lambda: [Load(peer, Span(peer, 1, n), Span(peer, 1, n)) for peer in _peers(rank, n)]
    )


def rooted_cost(n: int) -> Cost:
    """S bytes take 1 step between two fences; every rank but the root loads or stores S/n."""
    return Cost(_steps_unless_alone(n, 1), Fraction(n - 1, n * n), Fraction(_steps_unless_alone(n, 1), n))


@algorithm(Operation.GATHER, "shared", rooted_cost, uses_shared_memory=True, grows_linearly=True)
def gather(rank: IntArray, n: int, root: int) -> Rounds:
    """Plan a gather: every rank stores its block in the root's memory."""
    own, dest = Span(rank, 1, n), np.where(rank == root, NO_PEER, root)
    return between_fences(rank, n, n, lambda: [Store(dest, own, own)])


@algorithm(Operation.SCATTER, "shared", rooted_cost, uses_shared_memory=True, grows_linearly=True)
def scatter(rank: IntArray, n: int, root: int) -> Rounds:
    """Plan a scatter: every rank loads its block from the root's memory."""
    own, source = Span(rank, 1, n), np.where(rank == root, NO_PEER, root)
    return between_fences(rank, n, n, lambda: [Load(source, own, own)])


def reduce_cost(n: int) -> Cost:
    """S bytes take 2 steps between two fences; every rank loads (n-1)/n S, and all but the root store S/n."""
    loaded = Fraction(n - 1, n)
    return Cost(_steps_unless_alone(n, 2), loaded + loaded / n, Fraction(_steps_unless_alone(n, 1)))


@algorithm(Operation.REDUCE, "shared", reduce_cost, uses_shared_memory=True, grows_linearly=True)
def reduce(rank: IntArray, n: int, root: int) -> Rounds:
    """Plan a reduce: every rank reduces its own chunk from the memory of all ranks and stores it to the root."""
    own, dest = Span(rank, 1, n), np.where(rank == root, NO_PEER, root)
    return between_fences(rank, n, n, lambda: _reduce_own_chunk(rank, n), lambda: [Store(dest, own, own)])


@algorithm(Operation.BROADCAST, "shared", block_cost, uses_shared_memory=True, grows_linearly=True)
def broadcast(rank: IntArray, n: int, root: int) -> Rounds:
    """Plan a broadcast: the root stores one chunk to all ranks, while they load the other chunks from it."""
    own, rest = Span(root, 1, n), Span(root + 1, n - 1, n)

    def store_and_load() -> list[Step]:
        """Return the store steps of the root and the load step of all other ranks."""
        stores: list[Step] = [Store(np.where(rank == root, peer, NO_PEER), own, own) for peer in _peers(rank, n)]
        return [*stores, Load(np.where(rank == root, NO_PEER, root), rest, rest)]

    return between_fences(rank, n, n, store_and_load)


@algorithm(Operation.ALL_TO_ALL, "shared", block_cost, period=1, uses_shared_memory=True, grows_linearly=True)
def all_to_all(rank: IntArray, n: int) -> Rounds:
    """Plan an all-to-all: every rank loads its block from every rank; input chunks are 0 to n-1, output n to 2n-1."""
    own = Span(rank, 1, n)

    def load_own_blocks() -> list[Step]:
        """Return one load step per rank, in which each rank reads its own block from the input of that rank."""
        return [Load(peer, own, Span(peer, 1, n, base=n)) for peer in (rank, *_peers(rank, n))]

    return between_fences(rank, n, 2 * n, load_own_blocks) if n > 1 else Rounds(1, 2, lambda _: load_own_blocks())


def barrier_cost(n: int) -> Cost:  # noqa: ARG001 - the same for every n
    """A barrier is one fence, which takes no steps and moves no data."""
    return Cost(0, Fraction(0), Fraction(0))


@algorithm(Operation.BARRIER, "shared", barrier_cost, period=1, uses_shared_memory=True)
def barrier(rank: IntArray, n: int) -> Rounds:
    """Plan a barrier: one fence of all ranks."""
    return Rounds(min(n - 1, 1), 0, lambda _: [Fence(np.zeros_like(rank))])
