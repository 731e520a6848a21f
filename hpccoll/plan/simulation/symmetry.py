"""When a few ranks stand for all: the plan, the machine and the chunks look alike from every p-th rank.

An algorithm states the period of its plan (1 for a ring: each rank does what its neighbour does, one place on); the
machine's is the ranks of a node; that of the chunks is the shortest rotation that leaves their sizes as they are. If
their least common multiple p divides n, the ranks 0 to p - 1 stand for all: rank r + p exchanges, at the same time,
as many bytes with r + p's peers as r does with r's. What the algorithm states is not taken on trust: columns far apart
are held against each other in a sample of rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

import numpy as np

from hpccoll.errors import PlanError
from hpccoll.plan.plan import Plan
from hpccoll.plan.simulation.chunk_bytes import ChunkBytes
from hpccoll.plan.simulation.machine import Machine
from hpccoll.plan.step import NO_CHUNK, NO_PEER, Fence, IntArray, Load, Move, Region, Step, Store

_ROUNDS, _RANKS, _BLOCKS = 48, 32, 5  # of a sample


def find_period(plan: Plan, machine: Machine, chunk_bytes: ChunkBytes) -> int:
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


def _turned(here: Sequence[Step], there: Sequence[Step], shift: int, n: int, ranks: int) -> bool:
    """Whether chunks are numbered by rank, so that those sent are `shift` further on too."""
    for a, b in zip(here, there, strict=True):
        if isinstance(a, Fence) or isinstance(b, Fence):
            continue
        (peers, region), (_, other) = _out(a), _out(b)
        ids = np.where(peers[:, None] == NO_PEER, NO_PEER, region.ids(ranks))
        if not np.array_equal(_moved(ids, shift, n), np.where(ids == NO_CHUNK, ids, other.ids(ranks))):
            return False
    return True


def _out(step: Move | Load | Store) -> tuple[IntArray, Region]:
    """Return whom a rank sends or stores to, or loads from, and the chunks that go out."""
    if isinstance(step, Load):
        return step.source, step.remote
    return step.dest, step.send if isinstance(step, Move) else step.local


def _sample(count: int, draw: np.random.Generator) -> list[int]:
    if count <= _ROUNDS:
        return list(range(count))
    ends = [0, 1, 2, count // 2 - 1, count // 2, count - 2, count - 1]
    return sorted({*ends, *draw.integers(0, count, _ROUNDS - len(ends)).tolist()})


def _difference(here: Sequence[Step], there: Sequence[Step], shift: int, n: int) -> tuple[int, str] | None:
    """Return the first place in which two columns of a round differ, and in what; None where they are alike."""
    if [type(step) for step in here] != [type(step) for step in there]:
        return 0, "the number of messages"
    for a, b in zip(here, there, strict=True):
        for what, (one, other) in _pairs(a, b, shift, n).items():
            unlike = np.nonzero(one != other)[0]
            if len(unlike):
                return int(unlike[0]), what
    return None


def _pairs(a: Step, b: Step, shift: int, n: int) -> dict[str, tuple[IntArray, IntArray]]:
    """Return what two steps must have alike, each as arrays that are then equal."""
    if isinstance(a, Fence) and isinstance(b, Fence):
        # A group moves on with its ranks, or it is one and the same for both (all ranks, or one of each node).
        return {"whom it waits for": (np.where(a.leader == b.leader, a.leader, _moved(a.leader, shift, n)), b.leader)}
    if isinstance(a, Load) and isinstance(b, Load):
        return {
            "whom it loads from": (_moved(a.source, shift, n), b.source),
            "how much it loads": (_sent(a.source, a.local), _sent(b.source, b.local)),
            "how it reduces": (_spread(a.op, a.source), _spread(b.op, b.source)),
        }
    if isinstance(a, Store) and isinstance(b, Store):
        return {
            "whom it stores to": (_moved(a.dest, shift, n), b.dest),
            "how much it stores": (_sent(a.dest, a.local), _sent(b.dest, b.local)),
        }
    if isinstance(a, Move) and isinstance(b, Move):
        return {
            "whom it sends to": (_moved(a.dest, shift, n), np.asarray(b.dest)),
            "whom it receives from": (_moved(a.source, shift, n), np.asarray(b.source)),
            "how much it sends": (_sent(a.dest, a.send), _sent(b.dest, b.send)),
            "how it reduces": (_spread(a.op, a.source), _spread(b.op, b.source)),
        }
    raise TypeError(f"{type(a).__name__} and {type(b).__name__} are no pair")


def _moved(peers: IntArray, shift: int, n: int) -> IntArray:
    return np.where(peers == NO_PEER, NO_PEER, (peers + shift) % n)


def _sent(peers: IntArray, region: Region) -> IntArray:
    return np.where(peers == NO_PEER, 0, region.size)


def _spread(op: object, frm: IntArray) -> IntArray:
    return np.where(frm == NO_PEER, 0, np.asarray(op, np.int64))
