"""The proof that plans with loads and stores are free of data races: fences order all conflicting accesses.

In array shapes, n is the number of ranks, C the number of chunks per rank, and A the number of accesses. A place is one
chunk of one rank.

In a plan that obeys the following four rules, the values after a round do not depend on the speed of the ranks, and
equal those of a plan in which loads and stores are messages.

- If two ranks access the same chunk of a rank and one of them writes, a fence in which both ranks take part must
  separate the accesses. Steps of one rank need no fence, because they run in order.
- Conflicting accesses need no fence between them if a rank loads from another rank's chunk, the owner overwrites this
  chunk by a load in the same or a later round, and the owner's next fence includes the reading rank. The reading rank
  gets the old contents, because the data of a load becomes visible to other ranks only at the next fence of the loading
  rank.
- A rank may access another rank's memory only after the first fence of both ranks, which shows that the other rank has
  started, and before the last fence of both ranks, until which the other rank cannot finish.
- No rank may read data that its own earlier step of the same round wrote, except by a load from itself, which reads the
  contents at the start of the round.

Messages do not order accesses to shared memory. Cost: O(A log A) time and O(A) memory for A accesses, more if many
ranks access the same chunks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import PlanError
from hpccoll.plan.plan import Plan
from hpccoll.plan.proof.transfers import LOAD, MESSAGE, STORE, TransferBlock
from hpccoll.plan.step import NO_PEER, IntArray
from hpccoll.units import format_count

_READ, _LOAD_WRITE, _WRITE = range(3)  # _LOAD_WRITE: a load's write into the loading rank's own place
_VERBS = ("reads", "loads into", "writes")


@dataclass(frozen=True, slots=True)
class _Accesses:
    """Accesses to chunks in shared memory as arrays with one entry per access.

    `actor` is the rank that accesses, `place` is owner * chunks per rank + chunk, and `kind` states a read, a write, or
    a load's write into the loading rank's own chunk.
    """

    actor: IntArray
    place: IntArray
    kind: IntArray
    round: IntArray

    def take(self, at: IntArray | NDArray[np.bool_]) -> _Accesses:
        """Return the accesses at the indices `at`, or where the mask `at` is true."""
        return _Accesses(self.actor[at], self.place[at], self.kind[at], self.round[at])


def check_races(plan: Plan, chunks: int, rounds: int, blocks: Iterable[TransferBlock]) -> None:
    """Raise PlanError, with a remedy, unless fences order all conflicting accesses of a plan to shared memory.

    `blocks` are the transfers of all rounds, which the caller has checked one by one.
    """
    checker = _RaceChecker(plan, max(chunks, 1), rounds)
    accesses = checker.collect_accesses(blocks)
    checker.check_lifetimes(accesses)
    checker.check_conflicts(_select_contended(accesses))


class _RaceChecker:
    """Checks one plan for data races: two unordered accesses to one chunk, at least one of which writes."""

    def __init__(self, plan: Plan, chunks: int, rounds: int) -> None:
        self.plan, self.n, self.chunks, self.rounds = plan, plan.ranks, chunks, rounds
        self.fences: list[tuple[int, IntArray]] = []

    def error(self, t: int, why: str) -> PlanError:
        """Return an unraised error with the text `why` about round t of the plan."""
        return PlanError(f"{self.plan.name} on {format_count(self.n, 'rank')}, round {t}: {why}")

    def format_place(self, place: int) -> str:
        """Return the chunk with number `place` (owner * chunks per rank + chunk) as text: `chunk 3 of rank 0`."""
        return f"chunk {place % self.chunks} of rank {place // self.chunks}"

    def collect_accesses(self, blocks: Iterable[TransferBlock]) -> _Accesses:
        """Return all accesses of `blocks`, each once, and record the fences in `self.fences`.

        Raises PlanError for a wrong fence, or if a rank reads data that its own earlier step of the same round wrote.
        """
        places = self.n * self.chunks
        accesses = [np.zeros(0, np.int64)]
        for block in blocks:
            for at, leader in block.fences:
                self.add_fence(at, leader)
            kind, t = block.kind[block.transfer], block.round[block.transfer]
            source, target = block.source[block.transfer], block.target[block.transfer]
            reader, writer = np.where(kind == LOAD, target, source), np.where(kind == STORE, source, target)
            self.check_reads(block, reader, writer)
            writes = np.where(kind == LOAD, _LOAD_WRITE, _WRITE)
            for actor, place, access in ((reader, block.out, _READ), (writer, block.into, writes)):
                # Packing each access into one integer makes sorting faster.
                accesses.append(((actor * places + place) * len(_VERBS) + access) * self.rounds + t)
        numbers = np.sort(np.concatenate(accesses))
        rest, t = np.divmod(numbers[np.diff(numbers, prepend=-1) != 0], self.rounds)
        rest, access = np.divmod(rest, len(_VERBS))
        return _Accesses(*np.divmod(rest, places), access, t)

    def add_fence(self, t: int, leader: IntArray) -> None:
        """Record a fence of round t; `leader` has each rank's leader, which names its group, or -1 if in no fence.

        Raises PlanError if a rank's leader has another leader, or a rank is in two fences of the round.
        """
        members = np.nonzero(leader != NO_PEER)[0]
        alone = members[leader[leader[members]] != leader[members]]
        if len(alone):
            rank, named = alone[0], leader[alone[0]]
            raise self.error(t, f"rank {rank} waits at the fence of rank {named}, whose own leader is {leader[named]}")
        for other_round, other in self.fences:
            both = np.nonzero((leader != NO_PEER) & (other != NO_PEER))[0]
            if other_round == t and len(both):
                raise self.error(t, f"rank {both[0]} waits at two fences; give each a round of its own")
        self.fences.append((t, leader))

    def check_reads(self, block: TransferBlock, reader: IntArray, writer: IntArray) -> None:
        """Raise PlanError if a rank reads data that its own earlier step of the same round wrote.

        `reader` and `writer` have, for each transfer of `block`, the rank that reads and the rank that writes.
        """
        step, kind, t = block.step[block.transfer], block.kind[block.transfer], block.round[block.transfer]
        first_writer, first_step = np.full((2, self.n * self.chunks), NO_PEER, np.int64)
        for number in np.unique(t[kind != MESSAGE]).tolist():
            own = slice(*np.searchsorted(t, (number, number + 1)))
            # Only the first write to a chunk is used, because `check_conflicts` rejects a chunk with several writing
            # ranks.
            place = block.into[own][::-1]
            first_writer[place], first_step[place] = writer[own][::-1], step[own][::-1]
            read, at = block.out[own], reader[own]
            is_own_load = (kind[own] == LOAD) & (read // self.chunks == at)  # reads contents from before the round
            late = np.nonzero((first_writer[read] == at) & (first_step[read] < step[own]) & ~is_own_load)[0]
            if len(late):
                reading = f"rank {at[late[0]]} reads {self.format_place(int(read[late[0]]))}"
                raise self.error(number, f"{reading}, which an earlier step of the round wrote; add a round")
            first_writer[place] = NO_PEER

    def have_fence(self, a: IntArray, b: IntArray, after: IntArray, before: IntArray) -> NDArray[np.bool_]:
        """Return, for each i, whether ranks a[i] and b[i] share a fence between the rounds after[i] and before[i]."""
        between = np.zeros(len(a), np.bool_)
        for t, leader in self.fences:
            between |= (after < t) & (t < before) & (leader[a] == leader[b]) & (leader[a] != NO_PEER)
        return between

    def check_lifetimes(self, accesses: _Accesses) -> None:
        """Raise PlanError for an access to another rank's memory that is not between two fences of both ranks.

        `accesses` are all accesses of the plan.
        """
        remote = accesses.take(accesses.place // self.chunks != accesses.actor)
        owner, start, stop = remote.place // self.chunks, np.full(len(remote.actor), -1), self.rounds
        early = ~self.have_fence(remote.actor, owner, start, remote.round)
        late = ~self.have_fence(remote.actor, owner, remote.round, np.full(len(remote.actor), stop))
        cases = (early, "before", "may not have started yet"), (late, "after", "may have finished")
        for wrong, when, why in cases:
            if wrong.any():
                at = int(np.argmax(wrong))
                actor, place, kind, t = (int(x[at]) for x in (remote.actor, remote.place, remote.kind, remote.round))
                does = f"rank {actor} {_VERBS[kind]} {self.format_place(place)} {when} any fence of the two"
                raise self.error(t, f"{does}: that rank {why}; add a fence {when} it")

    def check_conflicts(self, shared: _Accesses) -> None:
        """Raise PlanError if two ranks' accesses to a chunk, at least one a write, lack a fence that they need.

        They need none if one rank reads the chunk and its owner overwrites it by a load in the same or a later round,
        and the owner's next fence includes the reading rank: the load's data becomes visible only at this fence.
        """
        first = np.searchsorted(shared.place, shared.place, side="left")
        many = np.searchsorted(shared.place, shared.place, side="right") - first
        writes = np.nonzero(shared.kind != _READ)[0]
        writing = np.repeat(writes, many[writes])  # pairs of a write and every access to its place
        begins = np.cumsum(many[writes]) - many[writes]
        other = np.arange(len(writing)) - np.repeat(begins, many[writes]) + first[writing]
        w, x = shared.take(writing), shared.take(other)
        apart = self.have_fence(w.actor, x.actor, np.minimum(w.round, x.round), np.maximum(w.round, x.round))
        excused = (w.kind == _LOAD_WRITE) & (x.kind == _READ) & (x.round <= w.round) & self.share_next_fence(w, x)
        race = np.nonzero((w.actor != x.actor) & ~apart & ~excused)[0]
        if not len(race):
            return
        at = race[np.argmin(np.maximum(w.round, x.round)[race])]
        one, two = ((int(s.actor[at]), int(s.kind[at]), int(s.round[at])) for s in (w, x))
        (a, kind, t), (b, other_kind, then) = (one, two) if one[2] >= two[2] else (two, one)
        when = "in the same round" if t == then else f"in round {then}"
        place = self.format_place(int(w.place[at]))
        conflict = f"rank {a} {_VERBS[kind]} {place}, which rank {b} {_VERBS[other_kind]} {when}"
        raise self.error(t, f"{conflict}; no fence of both lies between; add one")

    def share_next_fence(self, w: _Accesses, x: _Accesses) -> NDArray[np.bool_]:
        """Return, for each i, whether the rank of access x[i] is in the next fence of the rank of access w[i].

        `w` and `x` have equally many accesses.
        """
        pending, shared = np.ones(len(w.actor), np.bool_), np.zeros(len(w.actor), np.bool_)
        for t, leader in self.fences:
            is_next = pending & (t > w.round) & (leader[w.actor] != NO_PEER)
            shared |= is_next & (leader[w.actor] == leader[x.actor])
            pending &= ~is_next
        return shared


def _select_contended(accesses: _Accesses) -> _Accesses:
    """Return the accesses to chunks that several ranks access and at least one rank writes, sorted by chunk."""
    sorted_ = accesses.take(np.argsort(accesses.place, kind="stable"))
    if not len(sorted_.place):
        return sorted_
    starts = np.nonzero(np.diff(sorted_.place, prepend=-1))[0]
    low, high = (np.asarray(extreme.reduceat(sorted_.actor, starts)) for extreme in (np.minimum, np.maximum))
    shared = (low != high) & (np.maximum.reduceat(sorted_.kind, starts) != _READ)
    return sorted_.take(np.repeat(shared, np.diff(starts, append=len(sorted_.place))))
