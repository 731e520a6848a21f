"""A plan to and from JSON: every message of every round of all ranks, so that any tool can write or read one.

    {"format": "hpccoll-plan/1", "operation": "all_reduce", "algorithm": "ring", "ranks": 2, "root": 0, "chunks": 2,
     "cost": {"steps": 2, "mean": "1", "most": "1"},
     "rounds": [[{"from": 1, "to": 0, "send": [0], "recv": [0], "op": "own_first"}, ...], ...]}

`send` names chunks of the sender, `recv` as many of the receiver; `op` is copy, own_first or incoming_first (the
operand order of a reduction). Messages of a round read what stood at its start; those that reach the same rank land
in the order listed. A message with `"via": "load"` is carried out by `to` alone, one with `"via": "store"` by `from`,
each rank's own in the order listed; `{"fence": [[0, 1], [2, 3]]}` says which ranks wait for each other. A round holds
messages, or loads and stores, or fences. `cost` (in multiples of the message S) may be null. What is read is a plan
like any other: `check` proves or refutes it. A file fixes the number of ranks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from hpccoll.errors import PlanError, UsageError
from hpccoll.plan.interchange.json_shared_memory import Groups, Packed, dealt, record, written
from hpccoll.plan.interchange.messages import Message, messages
from hpccoll.plan.moves import TransferKind
from hpccoll.plan.operation import Operation
from hpccoll.plan.plan import Cost, Plan
from hpccoll.plan.rounds import Rounds
from hpccoll.plan.step import NO_PEER, IntArray, Move, Op, Picks

FORMAT = "hpccoll-plan/1"
MOST_RANKS, MOST_PLACES = 2**20, 2**27  # ranks, and ranks x chunks: what a proof still has memory for
_OPS = {op.name.lower(): op for op in Op}
_KEYS = ("format", "operation", "algorithm", "ranks", "root", "chunks", "cost", "rounds")
_PARTS = ("from", "to", "send", "recv", "op")
_VIA = ("load", "store")


def to_json(plan: Plan) -> str:
    """Return `plan` as JSON text, one line a round. Cost: O(messages) time and memory."""
    cost = plan.cost
    head = {
        "format": FORMAT,
        "operation": plan.operation.value,
        "algorithm": plan.algorithm,
        "ranks": plan.ranks,
        "root": plan.root,
        "chunks": plan.moves().chunks,
        "cost": None if cost is None else {"steps": cost.steps, "mean": str(cost.mean), "most": str(cost.most)},
    }
    shared = (written(steps, plan.ranks) for steps in plan.rounds())
    listed = (own or [record(message) for message in each] for own, each in zip(shared, messages(plan), strict=True))
    rounds = ",\n    ".join(json.dumps(each) for each in listed)
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    return "{\n" + ",\n".join([*lines, f'  "rounds": [\n    {rounds}\n  ]']) + "\n}\n"


def from_json(text: str, name: str = "the plan") -> Plan:
    """Return the plan that `text` describes; `check` says whether it is right.

    Args:
        text: what `to_json` or another tool wrote.
        name: where it is from, for messages.

    Raises:
        UsageError: not JSON, or something in it is missing, unknown, of another type or out of range; names the place.
        PlanError: chunks that do not fit the operation, or a message whose ends differ in chunks; names the round.
    """
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {str(error) or 'it is nested too deeply'}") from error
    read = _Reader(name)
    _, operation, algorithm, ranks, root, chunks, cost, rounds = read.fields(given, _KEYS, "the top")
    if given["format"] != FORMAT:
        raise read.wrong("format", given["format"], json.dumps(FORMAT))
    n = read.whole(ranks, "ranks", 1, MOST_RANKS)
    c = read.whole(chunks, "chunks", 0, max(MOST_PLACES // n, 1))
    chosen = read.operation(operation)
    chosen.validate_chunks(n, c)
    called = read.text(algorithm, "algorithm", r"[\w.+-]{1,80}")
    start = read.whole(root, "root", 0, n - 1 if chosen.has_root else 0)
    listed = [read.round(each, t, n, c) for t, each in enumerate(read.items(rounds, "rounds"))]
    packed = [[*_packed(messages), *dealt(messages, groups)] for messages, groups in listed]
    return Plan(chosen, called, n, start, lambda rank: _rounds(packed, rank, n, c), read.cost(cost))


@dataclass(frozen=True, slots=True)
class _Reader:
    """Takes values out of what was parsed, and says where one is not what it should be."""

    name: str

    def wrong(self, where: str, value: Any, needed: str) -> UsageError:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        return UsageError(f"{self.name}: {where} is {shown}; need {needed}")

    def fields(self, value: Any, keys: Sequence[str], where: str) -> list[Any]:
        if not isinstance(value, dict):
            raise self.wrong(where, value, f"an object with the keys {', '.join(keys)}")
        if missing := [key for key in keys if key not in value]:
            raise UsageError(f"{self.name}: {where} lacks {', '.join(missing)}; it needs {', '.join(keys)}")
        if unknown := [key for key in value if key not in keys]:
            raise UsageError(f"{self.name}: {where} has the unknown key {unknown[0]!r:.60}; it has {', '.join(keys)}")
        return [value[key] for key in keys]

    def whole(self, value: Any, where: str, low: int, high: int) -> int:
        if type(value) is not int or not low <= value <= high:  # a bool is an int, too
            raise self.wrong(where, value, f"a whole number from {low} to {high}")
        return value

    def text(self, value: Any, where: str, pattern: str) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value, re.ASCII):
            raise self.wrong(where, value, f"text of the form {pattern}")
        return value

    def operation(self, value: Any) -> Operation:
        known = {operation.value: operation for operation in Operation}
        if not isinstance(value, str) or value not in known:
            raise self.wrong("operation", value, f"one of {', '.join(known)}")
        return known[value]

    def items(self, value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise self.wrong(where, value, "a list")
        return value

    def cost(self, value: Any) -> Cost | None:
        if value is None:
            return None
        steps, *shares = self.fields(value, ("steps", "mean", "most"), "cost")
        form = r"\d{1,15}(/0{0,14}[1-9]\d{0,14})?"
        mean, most = (
            Fraction(self.text(each, f"cost.{key}", form)) for each, key in zip(shares, ("mean", "most"), strict=True)
        )
        return Cost(self.whole(steps, "cost.steps", 0, 2**53), mean, most)

    def round(self, value: Any, t: int, n: int, chunks: int) -> tuple[list[Message], list[Groups]]:
        """Return the messages of a round, and its fences."""
        listed = [(each, f"rounds[{t}][{i}]") for i, each in enumerate(self.items(value, f"rounds[{t}]"))]
        fences = [isinstance(each, dict) and "fence" in each for each, _ in listed]
        groups = [self.fence(*each, n) for each, fence in zip(listed, fences, strict=True) if fence]
        return [self.message(*each, n, chunks) for each, fence in zip(listed, fences, strict=True) if not fence], groups

    def fence(self, value: Any, where: str, n: int) -> Groups:
        listed = self.items(self.fields(value, ("fence",), where)[0], f"{where}.fence")
        groups = [
            [self.whole(rank, f"{where}.fence[{i}][{j}]", 0, n - 1) for j, rank in enumerate(ranks)]
            for i, ranks in enumerate(self.items(each, f"{where}.fence[{i}]") for i, each in enumerate(listed))
        ]
        ranks = sorted(rank for group in groups for rank in group)
        if len(set(ranks)) < len(ranks) or not all(groups):
            raise self.wrong(f"{where}.fence", groups, "groups of ranks, none empty and no rank twice")
        return groups

    def message(self, value: Any, where: str, n: int, chunks: int) -> Message:
        keys = (*_PARTS, "via") if isinstance(value, dict) and "via" in value else _PARTS
        frm, to, send, recv, op, *by = self.fields(value, keys, where)
        ends = self.whole(frm, f"{where}.from", 0, n - 1), self.whole(to, f"{where}.to", 0, n - 1)
        out, into = self.chunks(send, f"{where}.send", chunks), self.chunks(recv, f"{where}.recv", chunks)
        if not isinstance(op, str) or op not in _OPS:
            raise self.wrong(f"{where}.op", op, f"one of {', '.join(_OPS)}")
        if by and by[0] not in _VIA:
            raise self.wrong(f"{where}.via", by[0], f"one of {', '.join(_VIA)}")
        if by and by[0] == "store" and op != "copy":
            raise self.wrong(f"{where}.op", op, "copy: a store cannot reduce")
        if len(out) != len(into):
            pair = f"rank {ends[0]} sends {len(out)} chunks and rank {ends[1]} receives {len(into)}"
            raise PlanError(f"{self.name}: {where}: {pair}; a message has as many at both ends")
        return Message(*ends, out, into, _OPS[op], TransferKind(by[0]) if by else TransferKind.MESSAGE)

    def chunks(self, value: Any, where: str, chunks: int) -> tuple[int, ...]:
        listed = self.items(value, where)
        return tuple(self.whole(chunk, f"{where}[{i}]", 0, chunks - 1) for i, chunk in enumerate(listed))


def _packed(messages: Sequence[Message]) -> list[Packed]:
    """Deal the messages of a round into moves: a rank sends once and receives once in each, and all are equally long.

    A rank's messages stay in their order, at both ends.
    """
    listed = [message for message in messages if message.via is TransferKind.MESSAGE]
    moves: list[list[Message]] = []
    sent: dict[int, int] = {}
    received: dict[int, int] = {}
    for message in listed:
        first = max(sent.get(message.source, 0), received.get(message.dest, 0))
        size = len(message.send)
        at = next((m for m in range(first, len(moves)) if len(moves[m][0].send) == size), len(moves))
        if at == len(moves):
            moves.append([])
        moves[at].append(message)
        sent[message.source] = received[message.dest] = at + 1
    return [partial(_move, move) for move in moves]


def _rounds(packed: Sequence[Sequence[Packed]], rank: IntArray, n: int, chunks: int) -> Rounds:
    return Rounds(len(packed), chunks, lambda t: [step(rank, n) for step in packed[t]])


def _move(move: Sequence[Message], rank: IntArray, n: int) -> Move:
    size = len(move[0].send)
    peers, ops = np.full((2, n), NO_PEER, np.int64), np.zeros(n, np.int64)
    regions = np.zeros((2, n, size), np.int64)
    for message in move:
        peers[0, message.source], peers[1, message.dest] = message.dest, message.source
        regions[0, message.source], regions[1, message.dest] = message.send, message.recv
        ops[message.dest] = message.op
    send, recv = regions[0, rank], regions[1, rank]
    return Move(peers[0, rank], peers[1, rank], Picks(size, lambda: send), Picks(size, lambda: recv), ops[rank])
