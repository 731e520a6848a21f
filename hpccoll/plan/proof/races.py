"""The proof that shared memory adds: ranks that load and store meet at no place but in an order that fences make.

Shapes: n ranks, C chunks, A accesses, F fences. A place is a chunk of a rank.

A rank's own steps run in order; two ranks are ordered only by a fence that both take part in. So of two accesses to
one place by different ranks, of which one writes, such a fence must lie between. One exception: what a load brings into
the loader's own place is there for others after the loader's next fence only, so that another rank may load from that
place until then, in rounds no later than the landing's: it finds what stood there before. Nobody may touch another's
memory before the first fence that both take part in (the other may not have come yet), nor after the last (it may have
gone). Within a round no rank reads what an earlier step of its own wrote; a load from the rank itself reads the place
as it stood at the start. With all this, in any interleaving, a round gives what it does as a superstep of messages.

Messages order nothing here: what only their order would make right is refused. Cost: O(A log A) time, O(A) memory, and
more only where a place is really shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import PlanError
from hpccoll.plan.plan import Plan
from hpccoll.plan.step import NO_CHUNK, NO_PEER, Fence, IntArray, Load, Move, Region, Step, Store

_READ, _LAND, _WRITE = range(3)  # _LAND: what a load brings into the loader's own place
_VERBS = ("reads", "loads into", "writes")


@dataclass(frozen=True, slots=True)
class _Accesses:
    """Who touches which place (rank * C + chunk), how and in which round; all of shape (A,)."""

    actor: IntArray
    place: IntArray
    kind: IntArray
    round: IntArray

    def pick(self, at: IntArray | NDArray[np.bool_]) -> _Accesses:
        return _Accesses(self.actor[at], self.place[at], self.kind[at], self.round[at])


def check_races(plan: Plan) -> None:
    """Raise PlanError (round, ranks, chunk, remedy) unless fences order all that ranks do in each other's memory.

    The plan's messages must have been proven: peers and chunks exist, and regions of both ends have equal sizes.
    """
    proof = _Proof(plan)
    touched = proof.collect()
    proof.refuse_strangers(touched)
    proof.refuse_races(_contended(touched))


class _Proof:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.n = plan, plan.ranks
        self.rounds = plan.rounds()
        self.chunks = max(self.rounds.chunks, 1)
        self.fences: list[tuple[int, IntArray]] = []

    def fail(self, t: int, why: str) -> PlanError:
        return PlanError(f"{self.plan.name} on {self.n} ranks, round {t}: {why}")

    def said(self, place: int) -> str:
        return f"chunk {place % self.chunks} of rank {place // self.chunks}"

    def collect(self) -> _Accesses:
        """Return every access once for each round; note the fences."""
        found = [np.zeros((4, 0), np.int64)]
        self.wrote = np.full(self.n * self.chunks, NO_PEER, np.int64)
        for t in range(self.rounds.count):
            steps = self.rounds.at(t)
            self.refuse_mixture(t, steps)
            self.wrote[:] = NO_PEER
            for step in steps:
                if isinstance(step, Fence):
                    self.fences.append((t, self.leaders(t, step)))
                    self.refuse_two(t, step.leader)
                else:
                    found += self.touched(t, step)
        return _Accesses(*np.unique(np.concatenate(found, axis=1), axis=1))

    def refuse_mixture(self, t: int, steps: Sequence[Step]) -> None:
        kinds = {
            "moves" if isinstance(step, Move) else "fences" if isinstance(step, Fence) else "loads or stores"
            for step in steps
        }
        if len(kinds) > 1:
            raise self.fail(t, f"holds {' and '.join(sorted(kinds))}; give each kind a round of its own")

    def refuse_two(self, t: int, leader: IntArray) -> None:
        for then, other in self.fences[:-1]:
            both = np.nonzero((leader != NO_PEER) & (other != NO_PEER))[0]
            if then == t and len(both):
                raise self.fail(t, f"rank {both[0]} waits at two fences; give each a round of its own")

    def leaders(self, t: int, fence: Fence) -> IntArray:
        leader = fence.leader
        there = np.nonzero(leader != NO_PEER)[0]
        alone = there[leader[leader[there]] != leader[there]]
        if len(alone):
            named = leader[alone[0]]
            raise self.fail(
                t, f"rank {alone[0]} waits at the fence of rank {named}, whose own leader is {leader[named]}"
            )
        return leader

    def touched(self, t: int, step: Load | Store | Move) -> list[IntArray]:
        """Return what a step reads and what it writes, each as rows of actor, place, kind and round."""
        ranks = np.arange(self.n)
        if isinstance(step, Load):
            read, wrote = (step.source, step.remote, step.source), (step.source, step.local, ranks)
        elif isinstance(step, Store):
            read, wrote = (step.dest, step.local, ranks), (step.dest, step.remote, step.dest)
        else:
            read, wrote = (step.dest, step.send, ranks), (step.source, step.recv, ranks)
        reads, writes = (
            self.places(t, *read, _READ),
            self.places(t, *wrote, _LAND if isinstance(step, Load) else _WRITE),
        )
        if not isinstance(step, Move):
            own = isinstance(step, Load) & (reads[1] // self.chunks == reads[0])  # such a load reads what stood before
            late = np.nonzero((self.wrote[reads[1]] == reads[0]) & ~own)[0]
            if len(late):
                actor, place = reads[:2, late[0]].tolist()
                why = f"rank {actor} reads {self.said(place)}, which an earlier step of the round wrote; add a round"
                raise self.fail(t, why)
            self.wrote[writes[1]] = writes[0]
        return [reads, writes]

    def places(self, t: int, peers: IntArray, region: Region, owner: IntArray, kind: int) -> IntArray:
        """Return rows of actor, place, kind and round for a region of the ranks that have a peer."""
        actors = np.nonzero(peers != NO_PEER)[0]
        ids = region.ids(self.n)[actors]
        row, column = np.nonzero(ids != NO_CHUNK)
        actor = actors[row]
        place = owner[actor] * self.chunks + ids[row, column]
        return np.stack([actor, place, np.full_like(actor, kind), np.full_like(actor, t)])

    def meet(self, a: IntArray, b: IntArray, after: IntArray, before: IntArray) -> NDArray[np.bool_]:
        """Return whether both ranks take part in one fence after the one round and before the other."""
        found = np.zeros(len(a), np.bool_)
        for t, leader in self.fences:
            found |= (after < t) & (t < before) & (leader[a] == leader[b]) & (leader[a] != NO_PEER)
        return found

    def refuse_strangers(self, all_of_it: _Accesses) -> None:
        """Refuse what touches another's memory before both have met at a fence, or after they last did."""
        remote = all_of_it.pick(all_of_it.place // self.chunks != all_of_it.actor)
        owner, start, stop = remote.place // self.chunks, np.full(len(remote.actor), -1), self.rounds.count
        early = ~self.meet(remote.actor, owner, start, remote.round)
        late = ~self.meet(remote.actor, owner, remote.round, np.full(len(remote.actor), stop))
        cases = (early, "before", "may not have come yet", "before it"), (late, "after", "may have gone", "after it")
        for wrong, when, why, there in cases:
            if wrong.any():
                at = int(np.argmax(wrong))
                actor, place, kind, t = (int(x[at]) for x in (remote.actor, remote.place, remote.kind, remote.round))
                does = f"rank {actor} {_VERBS[kind]} {self.said(place)} {when} any fence of the two"
                raise self.fail(t, f"{does}: that rank {why}; add a fence {there}")

    def refuse_races(self, shared: _Accesses) -> None:
        """Refuse accesses to one place by two ranks, one of them writing, without a fence between."""
        first = np.searchsorted(shared.place, shared.place, side="left")
        many = np.searchsorted(shared.place, shared.place, side="right") - first
        writes = np.nonzero(shared.kind != _READ)[0]
        each = np.repeat(writes, many[writes])  # a writing access with all others at its place
        begins = np.cumsum(many[writes]) - many[writes]
        other = np.arange(len(each)) - np.repeat(begins, many[writes]) + first[each]
        w, x = shared.pick(each), shared.pick(other)
        apart = self.meet(w.actor, x.actor, np.minimum(w.round, x.round), np.maximum(w.round, x.round))
        excused = (w.kind == _LAND) & (x.kind == _READ) & (x.round <= w.round) & self.next_met(w, x)
        race = np.nonzero((w.actor != x.actor) & ~apart & ~excused)[0]
        if not len(race):
            return
        at = race[np.argmin(np.maximum(w.round, x.round)[race])]
        one, two = ((int(s.actor[at]), int(s.kind[at]), int(s.round[at])) for s in (w, x))
        (a, kind, t), (b, other_kind, then) = (one, two) if one[2] >= two[2] else (two, one)
        there = "in the same round" if t == then else f"in round {then}"
        what = f"rank {a} {_VERBS[kind]} {self.said(int(w.place[at]))}, which rank {b} {_VERBS[other_kind]} {there}"
        raise self.fail(t, f"{what}; no fence of both lies between; add one")

    def next_met(self, w: _Accesses, x: _Accesses) -> NDArray[np.bool_]:
        """Return whether the writer's next fence is also one of the reader: until then what landed is not there."""
        open_, found = np.ones(len(w.actor), np.bool_), np.zeros(len(w.actor), np.bool_)
        for t, leader in self.fences:
            here = open_ & (t > w.round) & (leader[w.actor] != NO_PEER)
            found |= here & (leader[w.actor] == leader[x.actor])
            open_ &= ~here
        return found


def _contended(accesses: _Accesses) -> _Accesses:
    """Return, in the order of places, the accesses to those that two ranks touch and one writes."""
    sorted_ = accesses.pick(np.argsort(accesses.place, kind="stable"))
    if not len(sorted_.place):
        return sorted_
    starts = np.nonzero(np.diff(sorted_.place, prepend=-1))[0]
    low, high = (np.asarray(of.reduceat(sorted_.actor, starts)) for of in (np.minimum, np.maximum))
    shared = (low != high) & (np.maximum.reduceat(sorted_.kind, starts) != _READ)
    return sorted_.pick(np.repeat(shared, np.diff(starts, append=len(sorted_.place))))
