"""A plan spelled out: the messages of each round, one record each. What other tools read is written from this.

Plans are arrays over ranks and functions of the round; other tools want lists. The order of a list means something:
messages that one rank receives in a round land in their order, and so do those that a pair of ranks exchange. Loads and
stores are messages here, and fences are left out: where messages meet, nobody needs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan.moves import TransferKind, to_moves, transfer_kind
from hpccoll.plan.plan import Plan
from hpccoll.plan.step import NO_CHUNK, NO_PEER, Op


@dataclass(frozen=True, slots=True)
class Message:
    """Chunks `send` of rank `frm` become chunks `recv` of rank `to`, in their order; `frm == to` is a local copy.

    `transfer_kind` says who carries it out: both ends, `to` alone (a load) or `frm` alone (a store).
    """

    source: int
    dest: int
    send: tuple[int, ...]
    recv: tuple[int, ...]
    op: Op
    via: TransferKind = TransferKind.MESSAGE


def messages(plan: Plan) -> Iterator[list[Message]]:
    """Yield the messages of each round of `plan`, by receiver, and for each receiver in the order in which they land.

    The plan should be one that `check` proves: a send that nobody receives is not a message, and is left out.
    Cost: O(ranks + chunks moved) time and memory a round.
    """
    n, ranks = plan.ranks, range(plan.ranks)
    for steps in plan.rounds():
        landing: list[list[Message]] = [[] for _ in ranks]
        for move, by in ((move, transfer_kind(step)) for step in steps for move in to_moves(step, n)):
            ops = np.broadcast_to(np.asarray(move.op), (n,)).tolist()
            sent, received = _named(move.send.ids(n)), _named(move.recv.ids(n))
            for rank, frm in enumerate(move.source.tolist()):
                if frm != NO_PEER:
                    landing[rank].append(Message(frm, rank, sent[frm], received[rank], Op(ops[rank]), by))
        yield [message for rank in ranks for message in landing[rank]]


def _named(ids: NDArray[np.int64]) -> list[tuple[int, ...]]:
    return [tuple(chunk for chunk in row if chunk != NO_CHUNK) for row in ids.tolist()]
