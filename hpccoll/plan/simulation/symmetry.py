"""The period of a plan: if rank r + p does the same as rank r, simulating p ranks is enough.

An algorithm states the period of its plan (1 for a ring: each rank does the same as its neighbour, with all peers
increased by 1). The period of a machine model is the number of ranks per node, or
per switch if nodes share links, and the period of the chunks is the smallest d >= 1 such that chunks c and c + d have
equal sizes for all c. If the least common multiple p of the periods
of plan, machine and chunks divides n, ranks 0 to p - 1 represent all n ranks: rank r + p exchanges the same bytes at
the same times as rank r, with peers increased by p. To verify the stated period, a sample of ranks is compared with
their counterparts in other periods, in a sample of rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

import numpy as np

from hpccoll.errors import PlanError, UsageError
from hpccoll.plan.plan import Plan
from hpccoll.plan.simulation.chunk_bytes import ChunkBytes
from hpccoll.plan.simulation.machine import Machine
from hpccoll.plan.step import NO_CHUNK, NO_PEER, Fence, IntArray, Load, Move, Region, Span, Step, Store
from hpccoll.units import format_count, format_size

_ROUNDS, _RANKS, _BLOCKS = 48, 32, 5  # of a sample
_MOST_LISTED = 2**16  # chunks of a message that are listed one by one


def find_period(plan: Plan, machine: Machine, chunk_bytes: ChunkBytes) -> int:
    """Return the number of ranks that a simulation needs: they represent all n ranks.

    The number is a common period of plan, machine model and chunk sizes, or n if there is none. Raises PlanError if the
    plan states a period that it does not have.
    """
    n = plan.ranks
    if plan.period is None or chunk_bytes.sizes.ndim == 2:
        return n
    if chunk_bytes.common_size is None and len(chunk_bytes.sizes) != n:
        return n  # chunks are not numbered by rank, so rotating ranks does not rotate chunks
    period = lcm(plan.period, machine.period, chunk_bytes.period)
    if n % period or period == n:
        return n
    return period if _check_period(plan, period, chunk_bytes) else n


def _check_period(plan: Plan, period: int, chunk_bytes: ChunkBytes) -> bool:
    """Whether the sizes of the sent chunks repeat with `period` ranks.

    Raises PlanError if the steps of rank r + period differ from those of rank r by more than the shift of peers and
    chunks.
    """
    n = plan.ranks
    draw = np.random.default_rng(n)
    some = np.unique(np.concatenate([[0, period - 1], draw.integers(0, period, _RANKS)]))
    blocks = np.unique(np.concatenate([[1, n // period - 1], draw.integers(1, n // period, _BLOCKS)]))
    first, later = plan.make(some), [(int(b) * period, plan.make(some + int(b) * period)) for b in blocks]
    for t in _sample_rounds(len(first), draw):
        for shift, rounds in later:
            differs = _find_difference(first.at(t), rounds.at(t), shift, n)
            if differs is not None:
                rank, what = int(some[differs[0]]), differs[1]
                raise PlanError(
                    f"{plan.name} on {n} ranks states period {plan.period}, but in round {t} rank {rank + shift} "
                    f"does not do the same as rank {rank} shifted by {shift} ({what} differs); state another "
                    "period or none"
                )
            if chunk_bytes.common_size is None and not _chunks_shift(first.at(t), rounds.at(t), shift, n, len(some)):
                return False
    return True


def _chunks_shift(here: Sequence[Step], there: Sequence[Step], shift: int, n: int, ranks: int) -> bool:
    """Whether the chunk numbers in the steps `there` are those of the steps `here`, increased by `shift` modulo n.

    `ranks` is the number of ranks that are compared.
    """
    for a, b in zip(here, there, strict=True):
        if isinstance(a, Fence) or isinstance(b, Fence):
            continue
        (peers, region), (_, other) = _peers_and_region(a), _peers_and_region(b)
        if _are_intervals(region, other, n):
            first, later = (
                np.where(peers == NO_PEER, 0, span.first) for span in (region, other) if isinstance(span, Span)
            )
            if not np.array_equal((first + np.where(peers == NO_PEER, 0, shift)) % n, later % n):
                return False
            continue
        if np.max(region.size) > _MOST_LISTED:
            raise UsageError(
                f"a message of {format_count(int(np.max(region.size)), 'chunk')} of unequal sizes is too long to "
                f"simulate; use a message size of a multiple of {n} elements (--size {format_size(4 * n)} of float32)"
            )
        ids = np.where(peers[:, None] == NO_PEER, NO_PEER, region.ids(ranks))
        if not np.array_equal(_add_shift(ids, shift, n), np.where(ids == NO_CHUNK, ids, other.ids(ranks))):
            return False
    return True


def _are_intervals(region: Region, other: Region, n: int) -> bool:
    """Whether both sets of chunks are cyclic intervals of n chunks, of the same length on all ranks."""
    return (
        all(
            isinstance(span, Span) and span.mod == n and span.unit == 1 and isinstance(span.base, int) and not span.base
            for span in (region, other)
        )
        and isinstance(region.size, int)
        and region.size == other.size
    )


def _peers_and_region(step: Move | Load | Store) -> tuple[IntArray, Region]:
    """Return a step's peers and chunks: destinations of messages or stores, or sources of loads."""
    if isinstance(step, Load):
        return step.source, step.remote
    return step.dest, step.send if isinstance(step, Move) else step.local


def _sample_rounds(count: int, draw: np.random.Generator) -> list[int]:
    """Return the numbers of the rounds to compare: all rounds if they are few, else some fixed and some random rounds.

    The fixed rounds are the first, middle and last ones. `count` is the number of rounds, and `draw` draws the random
    ones.
    """
    if count <= _ROUNDS:
        return list(range(count))
    ends = [0, 1, 2, count // 2 - 1, count // 2, count - 2, count - 1]
    return sorted({*ends, *draw.integers(0, count, _ROUNDS - len(ends)).tolist()})


def _find_difference(here: Sequence[Step], there: Sequence[Step], shift: int, n: int) -> tuple[int, str] | None:
    """Return the index of a rank whose steps differ, and the name of the property that differs; None if none differ.

    Step `there` must equal step `here` with all ranks increased by `shift`, modulo `n`.
    """
    if [type(step) for step in here] != [type(step) for step in there]:
        return 0, "the number of messages"
    for a, b in zip(here, there, strict=True):
        for what, (one, other) in _list_properties(a, b, shift, n).items():
            unlike = np.nonzero(one != other)[0]
            if len(unlike):
                return int(unlike[0]), what
    return None


def _list_properties(a: Step, b: Step, shift: int, n: int) -> dict[str, tuple[IntArray, IntArray]]:
    """Return pairs of arrays by name; two steps are equal, up to a shift of ranks, if the arrays of each pair are.

    `shift` is the shift of ranks and `n` the number of ranks.
    """
    if isinstance(a, Fence) and isinstance(b, Fence):
        # The leader (lowest rank) of a fence may be the same rank in both steps, as for a fence of all ranks.
        leader = np.where(a.leader == b.leader, a.leader, _add_shift(a.leader, shift, n))
        return {"the leader of its fence": (leader, b.leader)}
    if isinstance(a, Load) and isinstance(b, Load):
        return {
            "the source of its load": (_add_shift(a.source, shift, n), b.source),
            "the size of its load": (_sizes_sent(a.source, a.local), _sizes_sent(b.source, b.local)),
            "the op of its receive": (_ops_received(a.op, a.source), _ops_received(b.op, b.source)),
        }
    if isinstance(a, Store) and isinstance(b, Store):
        return {
            "the destination of its store": (_add_shift(a.dest, shift, n), b.dest),
            "the size of its store": (_sizes_sent(a.dest, a.local), _sizes_sent(b.dest, b.local)),
        }
    if isinstance(a, Move) and isinstance(b, Move):
        return {
            "the destination of its send": (_add_shift(a.dest, shift, n), np.asarray(b.dest)),
            "the source of its receive": (_add_shift(a.source, shift, n), np.asarray(b.source)),
            "the size of its send": (_sizes_sent(a.dest, a.send), _sizes_sent(b.dest, b.send)),
            "the op of its receive": (_ops_received(a.op, a.source), _ops_received(b.op, b.source)),
        }
    raise TypeError(f"{type(a).__name__} and {type(b).__name__} cannot be compared")


def _add_shift(peers: IntArray, shift: int, n: int) -> IntArray:
    """Return the peers increased by `shift`, modulo n; NO_PEER (-1) stays."""
    return np.where(peers == NO_PEER, NO_PEER, (peers + shift) % n)


def _sizes_sent(peers: IntArray, region: Region) -> IntArray:
    """Return the number of chunks that each rank sends; 0 for ranks without a peer."""
    return np.where(peers == NO_PEER, 0, region.size)


def _ops_received(op: object, source: IntArray) -> IntArray:
    """Return the operation (copy or reduce) that each rank applies to data that it receives; 0 without a source."""
    return np.where(source == NO_PEER, 0, np.asarray(op, np.int64))
