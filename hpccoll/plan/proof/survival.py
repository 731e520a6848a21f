"""The proof that after the death of a rank, no other rank gets a wrong result or waits for ever.

If a rank waits for a dead rank, the runtime raises an error and revokes the communicator, so that every wait for the
rank with the error raises an error, too. For a plan that `check` has proven, `check_survival` examines two possible
deaths of each rank in each round: one before the rank does anything in the round, and one after it has sent all its
messages of the round. A death at another moment of a round delivers only some of the rank's messages, so its
consequences lie between those of a death before and those of a death after all messages.

- *No wrong result* is checked: each survivor that finishes must have the same output as in a run without deaths. The
  check for wrong results assumes that sends wait for nothing, so that as many survivors as possible finish. A chunk
  that a rank does not write, because the rank is dead, waits or has raised an error, counts as wrong until it is
  overwritten. In a barrier, each survivor that finishes must have heard from every rank.
- *No endless wait* needs no check, because `check` has found the match of each send, receive and fence in the same
  round: a survivor that cannot end a round waits for a rank that has not begun this round. A rank that has not begun a
  round is dead or waits in an earlier round, so each chain of waiting ranks ends at the dead rank, and all ranks of the
  chain raise errors.

A survivor that raises an error knows which ranks are dead, but its output is undefined, and it does not know whether
other survivors have finished. `SurvivalProof.split_deaths` counts the deaths after which some survivors finish,
although others raise.

Each death is one bit of an integer, so that one pass over the rounds follows all deaths at once. Cost: O(chunks moved)
operations on integers of 2 * ranks * rounds bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpccoll.errors import PlanError
from hpccoll.plan.messages import PlanMessage, list_fence_groups, list_step_messages
from hpccoll.plan.moves import TransferKind
from hpccoll.plan.operation import Operation
from hpccoll.plan.plan import Plan
from hpccoll.plan.step import Fence, Op, Step
from hpccoll.units import format_count


@dataclass(frozen=True, slots=True)
class SurvivalProof:
    """The result of a proof about deaths of ranks.

    `deaths` is the number of deaths (pairs of a rank and a moment) that the proof covers, and `split_deaths` the number
    of deaths after which some survivors finish the collective and others raise an error.
    """

    deaths: int
    split_deaths: int


@dataclass(frozen=True, slots=True)
class _Round:
    """The transfers of a round, and the groups of ranks that wait for each other at its fences."""

    messages: tuple[PlanMessage, ...]
    fences: tuple[tuple[int, ...], ...]


class _Deaths:
    """All deaths of a proof, and sets of deaths as integers with one bit per death.

    A death is a rank, a round, and whether the rank dies before or after it has sent its messages of the round.
    """

    def __init__(self, ranks: int, rounds: int) -> None:
        self.ranks, self.rounds = ranks, rounds
        self.count = 2 * ranks * rounds
        self.all = (1 << self.count) - 1
        self._of_rank = [sum(3 << self._at(rank, t) for t in range(rounds)) for rank in range(ranks)]

    def _at(self, rank: int, t: int) -> int:
        """Return the bit number of the death of a rank in round t before its messages.

        The next bit stands for the death of the rank in round t after its messages.
        """
        return 2 * (t * self.ranks + rank)

    def alive_before(self, rank: int, t: int) -> int:
        """Return a bit mask of the deaths each of which, alone, leaves `rank` alive at the start of round t."""
        earlier = (1 << self._at(0, t)) - 1
        return self.all & ~(self._of_rank[rank] & earlier) & ~(1 << self._at(rank, t))

    def alive_after(self, rank: int, t: int) -> int:
        """Return a bit mask of the deaths each of which, alone, leaves `rank` alive at the end of round t."""
        return self.alive_before(rank, t) & ~(2 << self._at(rank, t))

    def without(self, rank: int) -> int:
        """Return the set of deaths (a bit mask) of all ranks but `rank`."""
        return self.all & ~self._of_rank[rank]

    def describe(self, deaths: int) -> str:
        """Return the first death of a set (a bit mask) as text: `if rank 1 dies in round 0 after its messages`."""
        at = (deaths & -deaths).bit_length() - 1
        t, rank = divmod(at // 2, self.ranks)
        return f"if rank {rank} dies in round {t} {'after' if at % 2 else 'before'} its messages"


def check_survival(plan: Plan) -> SurvivalProof:
    """Prove that no survivor gets a wrong result if any one rank dies in any round; return the counts of deaths.

    The plan must be one that `check` accepts. Raises PlanError if a survivor has a wrong result; the message names the
    death and the survivor.
    """
    n, rounds = plan.ranks, plan.rounds()
    listed = [_read_round(rounds.at(t), n) for t in range(rounds.count)]
    deaths = _Deaths(n, rounds.count)
    name = f"{plan.name} on {format_count(n, 'rank')}"
    finished = _check_results(plan, listed, deaths, name, rounds.chunks)
    some = every = 0
    for rank in range(n):
        some |= finished[rank] & deaths.without(rank)
        every |= deaths.without(rank) & ~finished[rank]
    return SurvivalProof(deaths.count, (some & every).bit_count())


def _read_round(steps: Sequence[Step], n: int) -> _Round:
    """Return the messages and the fences of the steps of one round of a plan on `n` ranks."""
    messages = tuple(message for step in steps for message in list_step_messages(step, n))
    fences = tuple(tuple(group) for step in steps if isinstance(step, Fence) for group in list_fence_groups(step))
    return _Round(messages, fences)


def _list_waits(current: _Round) -> dict[int, set[int]]:
    """Return, for each rank that waits in the round `current`, the ranks for which it waits; sends wait for no one."""
    waits: dict[int, set[int]] = {}
    for message in current.messages:
        if message.via is TransferKind.MESSAGE:
            waits.setdefault(message.dest, set()).add(message.source)
    for group in current.fences:
        for rank in group:
            waits.setdefault(rank, set()).update(group)
    return waits


def _find_passed(begun: Sequence[int], waits: dict[int, set[int]], deaths: _Deaths, t: int) -> list[int]:
    """Return, for each rank, the set of deaths (a bit mask) despite which the rank completes round t.

    `begun` has, for each rank, the deaths despite which the rank begins the round, and `waits` the ranks for which the
    rank waits in the round.
    """
    passed = []
    for rank in range(deaths.ranks):
        ends = begun[rank] & deaths.alive_after(rank, t)
        for peer in waits.get(rank, ()):
            ends &= begun[peer]
        passed.append(ends)
    return passed


class _Contents:
    """For each chunk of each rank, the set of deaths (a bit mask) after which the chunk's present data is wrong.

    In barriers, `heard[rank][other]` has the deaths despite which `rank` knows that `other` has arrived.
    """

    def __init__(self, deaths: _Deaths, chunks: int) -> None:
        self._deaths = deaths
        self.wrong = [[0] * chunks for _ in range(deaths.ranks)]
        ranks = range(deaths.ranks)
        self.heard = [[deaths.all if rank == other else 0 for other in ranks] for rank in ranks]

    def move(self, current: _Round, begun: Sequence[int], t: int) -> None:
        """Apply the transfers of round t, all of which read the contents from before the round.

        `begun` has, for each rank, the deaths despite which the rank begins the round.
        """
        before = [list(row) for row in self.wrong] if current.messages else self.wrong
        for message in current.messages:
            source, dest = message.source, message.dest
            actor = source if message.via is TransferKind.STORE else dest
            done = begun[actor] & self._deaths.alive_after(actor, t)
            if message.via is TransferKind.MESSAGE:
                done &= begun[source]
            for out, into in zip(message.send, message.recv, strict=False):
                held = self.wrong[dest][into] if message.op is not Op.COPY else 0
                self.wrong[dest][into] = held | before[source][out] | (self._deaths.all & ~done)

    def record_arrivals(self, current: _Round, begun: Sequence[int], ended: Sequence[int]) -> None:
        """Update, after a round of a barrier, which ranks know of which arrivals.

        `begun` and `ended` have, for each rank, the deaths despite which the rank begins and ends the round.
        """
        before = [list(row) for row in self.heard]
        for message in current.messages:
            if message.via is TransferKind.MESSAGE:
                both = begun[message.source] & begun[message.dest]
                self._add_heard(message.dest, [both & heard for heard in before[message.source]])
        for group in current.fences:
            for rank in group:
                for other in group:
                    self._add_heard(rank, [ended[rank] & heard for heard in before[other]])

    def _add_heard(self, rank: int, news: Sequence[int]) -> None:
        """Record that `rank` knows of the arrival of `other` despite each of the deaths `news[other]`."""
        self.heard[rank] = [old | new for old, new in zip(self.heard[rank], news, strict=True)]


def _check_results(plan: Plan, rounds: Sequence[_Round], deaths: _Deaths, name: str, chunks: int) -> list[int]:
    """Return, for each rank, the set of deaths (a bit mask) despite which the rank finishes.

    Raises PlanError if a survivor has a wrong result. `name` is the name of the plan in error messages.
    """
    n = plan.ranks
    passed, contents = [deaths.all] * n, _Contents(deaths, chunks)
    is_barrier = plan.operation is Operation.BARRIER
    for t, current in enumerate(rounds):
        begun = [passed[rank] & deaths.alive_before(rank, t) for rank in range(n)]
        passed = _find_passed(begun, _list_waits(current), deaths, t)
        contents.move(current, begun, t)
        if is_barrier:
            contents.record_arrivals(current, begun, passed)
    output = plan.operation.output_mask(np.arange(n), n, chunks, plan.root)
    for rank in range(n):
        finished = passed[rank] & deaths.without(rank)
        for chunk in np.nonzero(output[rank])[0].tolist():
            if finished & contents.wrong[rank][chunk]:
                where = deaths.describe(finished & contents.wrong[rank][chunk])
                raise PlanError(f"{name}: rank {rank} returns a wrong chunk {chunk} {where}")
        for other, heard in enumerate(contents.heard[rank] if is_barrier else ()):
            if finished & ~heard:
                where = deaths.describe(finished & ~heard)
                raise PlanError(f"{name}: rank {rank} leaves the barrier without rank {other} {where}")
    return passed
