"""Conversion of the rounds of a plan to lists with one record per message, for drawings and exported files.

Shared-memory loads and stores are listed as messages, too. Messages that reach the same rank in a round keep the order
of the plan's steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpccoll.plan.moves import TransferKind, to_moves, transfer_kind
from hpccoll.plan.plan import Plan
from hpccoll.plan.step import NO_CHUNK, NO_PEER, Fence, IntArray, Op, Step


@dataclass(frozen=True, slots=True)
class PlanMessage:
    """A message from chunks `send` of rank `source` to chunks `recv` of rank `dest`; local if `dest` is `source`.

    A message with empty chunk lists is a signal without data, as in barriers. `via` states which end transfers the
    data: both (a message), `dest` alone (a load) or `source` alone (a store).
    """

    source: int
    dest: int
    send: tuple[int, ...]
    recv: tuple[int, ...]
    op: Op
    via: TransferKind = TransferKind.MESSAGE

    @property
    def reduces(self) -> bool:
        """Whether the data is reduced into the receiver's chunks rather than copied over them."""
        return self.op is not Op.COPY


def list_step_messages(step: Step, n: int) -> list[PlanMessage]:
    """Return the messages that ranks receive in one step of all n ranks; an empty list for a fence."""
    listed = []
    for move in to_moves(step, n):
        sent, received = list_chunks(move.send.ids(n)), list_chunks(move.recv.ids(n))
        ops = np.broadcast_to(np.asarray(move.op), (n,)).tolist()
        for dest, source in enumerate(move.source.tolist()):
            if source != NO_PEER:
                chunks = sent[source], received[dest]
                listed.append(PlanMessage(source, dest, *chunks, Op(ops[dest]), transfer_kind(step)))
    return listed


def list_messages_by_round(plan: Plan) -> Iterator[list[PlanMessage]]:
    """Yield, for each round, the list of its messages, sorted by receiver and then in the order of their receipt."""
    for steps in plan.rounds():
        listed = [message for step in steps for message in list_step_messages(step, plan.ranks)]
        yield sorted(listed, key=lambda message: message.dest)


def list_fence_groups(fence: Fence) -> list[list[int]]:
    """Return the groups of ranks, each sorted, that wait for each other at `fence`, a step of all ranks of a plan."""
    leaders = np.unique(fence.leader[fence.leader != NO_PEER])
    return sorted(np.nonzero(fence.leader == leader)[0].tolist() for leader in leaders)


def list_chunks(ids: IntArray) -> list[tuple[int, ...]]:
    """Return the chunk numbers in each row of `ids`, without the entries -1 that pad shorter rows."""
    return [tuple(chunk for chunk in row if chunk != NO_CHUNK) for row in ids.tolist()]
