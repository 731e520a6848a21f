"""Loads, stores and fences in the JSON of interchange.py: records from steps, and steps from records.

A rank's own loads and stores of a round are listed in the order in which it carries them out, rank by rank; a fence is
the list of its groups. Read back, a rank's n-th transfer of a round stands in the n-th step or later, in one with those
of others that are alike in kind and length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from hpccoll.plan.interchange.messages import Message
from hpccoll.plan.moves import TransferKind, to_moves, transfer_kind
from hpccoll.plan.step import NO_CHUNK, NO_PEER, Fence, IntArray, Load, Move, Op, Picks, Step, Store

Groups: TypeAlias = list[list[int]]
Packed: TypeAlias = Callable[[IntArray, int], Step]  # of a column of ranks, and how many there are


def record(message: Message) -> dict[str, Any]:
    """Return a message, a load or a store as it stands in the file."""
    op = message.op.name.lower()
    found = {"from": message.source, "to": message.dest, "send": message.send, "recv": message.recv, "op": op}
    return found if message.via is TransferKind.MESSAGE else {**found, "via": message.via.value}


def written(steps: Sequence[Step], n: int) -> list[dict[str, Any]]:
    """Return the records of a round that holds loads, stores or fences; none for one of messages."""
    listed: list[list[dict[str, Any]]] = [[] for _ in range(n)]
    for step in steps:
        for message in _transfers(step, n):
            listed[_actor(message)].append(record(message))
    fences = [{"fence": _groups(step)} for step in steps if isinstance(step, Fence)]
    return [each for own in listed for each in own] + fences


def _transfers(step: Step, n: int) -> Iterator[Message]:
    """Yield what a step loads or stores, rank by rank of those who receive."""
    if isinstance(step, Move):
        return
    for move in to_moves(step, n):
        out, into = move.send.ids(n).tolist(), move.recv.ids(n).tolist()
        ops = np.broadcast_to(np.asarray(move.op), (n,)).tolist()
        for to, frm in enumerate(move.source.tolist()):
            if frm != NO_PEER:
                sent, taken = (tuple(chunk for chunk in row if chunk != NO_CHUNK) for row in (out[frm], into[to]))
                yield Message(frm, to, sent, taken, Op(ops[to]), transfer_kind(step))


def _actor(message: Message) -> int:
    return message.dest if message.via is TransferKind.LOAD else message.source


def _groups(fence: Fence) -> Groups:
    leaders = np.unique(fence.leader[fence.leader != NO_PEER])
    return sorted(np.nonzero(fence.leader == leader)[0].tolist() for leader in leaders)


def dealt(messages: Sequence[Message], fences: Sequence[Groups]) -> list[Packed]:
    """Return the loads and stores among `messages`, and the fences, as steps of any column of ranks."""
    steps: list[list[Message]] = []
    after: dict[int, int] = {}
    for message in messages:
        if message.via is TransferKind.MESSAGE:
            continue
        alike = (message.via, len(message.send))
        late = range(after.get(_actor(message), 0), len(steps))
        at = next((s for s in late if (steps[s][0].via, len(steps[s][0].send)) == alike), len(steps))
        if at == len(steps):
            steps.append([])
        steps[at].append(message)
        after[_actor(message)] = at + 1
    return [*(partial(_step, step) for step in steps), *(partial(_fence, groups) for groups in fences)]


def _step(step: Sequence[Message], rank: IntArray, n: int) -> Load | Store:
    loads, size = step[0].via is TransferKind.LOAD, len(step[0].send)
    peers, ops = np.full(n, NO_PEER, np.int64), np.zeros(n, np.int64)
    regions = np.zeros((2, n, size), np.int64)
    for message in step:
        actor = _actor(message)
        peers[actor], ops[actor] = message.source if loads else message.dest, message.op
        regions[:, actor] = message.send, message.recv
    src, dst = (Picks(size, partial(_rows, each, rank)) for each in regions)
    return Load(peers[rank], src, dst, ops[rank]) if loads else Store(peers[rank], src, dst)


def _rows(table: IntArray, rank: IntArray) -> IntArray:
    return np.asarray(table[rank])


def _fence(groups: Groups, rank: IntArray, n: int) -> Fence:
    leader = np.full(n, NO_PEER, np.int64)
    for group in groups:
        leader[group] = min(group)
    return Fence(leader[rank])
