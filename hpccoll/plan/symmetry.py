"""When a few ranks stand for all: the plan, the machine and the chunks look alike from every p-th rank.

An algorithm states the period of its plan (1 for a ring: each rank does what its neighbour does, one place on); the
machine's is the ranks of a node; that of the chunks is the shortest rotation that leaves their sizes as they are. If
their least common multiple p divides n, the ranks 0 to p - 1 stand for all: rank r + p exchanges, at the same time,
as many bytes with r + p's peers as r does with r's. What the algorithm states is not taken on trust: columns far apart
are held against each other in a sample of rounds.
"""

from __future__ import annotations

from math import lcm

import numpy as np

from hpccoll.errors import PlanError
from hpccoll.plan.chunk_bytes import ChunkBytes
from hpccoll.plan.machine import Machine
from hpccoll.plan.plan import Plan
from hpccoll.plan.step import NOBODY, IntArray, Move

_ROUNDS, _RANKS, _BLOCKS = 48, 32, 5  # of a sample


def period_of(plan: Plan, machine: Machine, chunk_bytes: ChunkBytes) -> int:
    """Return how many ranks stand for all n: a period that divides n, or n itself where there is none.

    Raises:
        PlanError: the sample shows that the stated period of the plan is none.
    """
    n = plan.ranks
    if plan.period is None:
        return n
    if chunk_bytes.alike is None and len(chunk_bytes.sizes) != n:
        return n  # chunks are not numbered by rank, so that a rotation of one is none of the other
    period = lcm(plan.period, machine.ranks_per_node, chunk_bytes.period)
    if n % period or period == n:
        return n
    return period if _holds(plan, period, chunk_bytes) else n


def _holds(plan: Plan, period: int, chunk_bytes: ChunkBytes) -> bool:
    """Return whether the chunks are as alike as the ranks; raise PlanError where ranks of two periods differ."""
    n = plan.ranks
    draw = np.random.default_rng(n)
    some = np.unique(np.concatenate([[0, period - 1], draw.integers(0, period, _RANKS)]))
    blocks = np.unique(np.concatenate([[1, n // period - 1], draw.integers(1, n // period, _BLOCKS)]))
    first, later = plan.make(some), [(int(b) * period, plan.make(some + int(b) * period)) for b in blocks]
    for t in _sample(len(first), draw):
        for shift, rounds in later:
            differs = _difference(first.at(t), rounds.at(t), shift, n)
            if differs is not None:
                rank, what = int(some[differs[0]]), differs[1]
                raise PlanError(
                    f"{plan.name} on {n} ranks states period {plan.period}, but in round {t} rank {rank + shift} "
                    f"does not do what rank {rank} does {shift} further on ({what}); state another period or none"
                )
            if chunk_bytes.alike is None and not _turned(first.at(t), rounds.at(t), shift, n, len(some)):
                return False
    return True


def _turned(here: list[Move], there: list[Move], shift: int, n: int, ranks: int) -> bool:
    """Whether chunks are numbered by rank, so that those sent are `shift` further on too."""
    pairs = (
        (np.where(a.to[:, None] == NOBODY, NOBODY, a.send.ids(ranks)), b) for a, b in zip(here, there, strict=True)
    )
    return all(
        np.array_equal(np.where(a == NOBODY, a, (a + shift) % n), np.where(a == NOBODY, a, b.send.ids(ranks)))
        for a, b in pairs
    )


def _sample(count: int, draw: np.random.Generator) -> list[int]:
    if count <= _ROUNDS:
        return list(range(count))
    ends = [0, 1, 2, count // 2 - 1, count // 2, count - 2, count - 1]
    return sorted({*ends, *draw.integers(0, count, _ROUNDS - len(ends)).tolist()})


def _difference(here: list[Move], there: list[Move], shift: int, n: int) -> tuple[int, str] | None:
    """Return the first place in which two columns of a round differ, and in what; None where they are alike."""
    if len(here) != len(there):
        return 0, "the number of messages"
    for a, b in zip(here, there, strict=True):
        pairs = {
            "whom it sends to": (_moved(a.to, shift, n), np.asarray(b.to)),
            "whom it receives from": (_moved(a.frm, shift, n), np.asarray(b.frm)),
            "how much it sends": (_sent(a), _sent(b)),
            "how it reduces": (_spread(a.op, a.frm), _spread(b.op, b.frm)),
        }
        for what, (one, other) in pairs.items():
            unlike = np.nonzero(one != other)[0]
            if len(unlike):
                return int(unlike[0]), what
    return None


def _moved(peers: IntArray, shift: int, n: int) -> IntArray:
    return np.where(peers == NOBODY, NOBODY, (peers + shift) % n)


def _sent(move: Move) -> IntArray:
    return np.where(move.to == NOBODY, 0, move.send.size)


def _spread(op: object, frm: IntArray) -> IntArray:
    return np.where(frm == NOBODY, 0, np.asarray(op, np.int64))
