"""Plans as JSON files, which list every message of every round of all ranks.

`send` lists chunks of the sender, and `recv` an equal number of chunks of the receiver. `op` is copy or, for a
reduction, the operand order: own_first or incoming_first. The messages of a round send the contents that chunks have at
the start of the round; a rank receives its messages in the order listed. A message with `"via": "load"` is performed by
rank `to` alone, and a message with `"via": "store"` by rank `from` alone. A rank performs its loads and stores in the
order listed. A fence, such as `{"fence": [[0, 1], [2, 3]]}`, lists groups of ranks that wait for each other. A round
has only messages, only loads and stores, or only fences. `cost` may be null; otherwise it has the number of steps, and
the mean and largest bytes per rank as multiples of the message size S. A JSON file describes a plan for a single number
of ranks.

Example for two ranks, with the first message of the first round:

    {"format": "hpccoll-plan/1", "operation": "all_reduce", "algorithm": "ring", "ranks": 2, "root": 0, "chunks": 2,
     "cost": {"steps": 2, "mean": "1", "most": "1"},
     "rounds": [[{"from": 1, "to": 0, "send": [0], "recv": [0], "op": "own_first"}, ...], ...]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from hpccoll.errors import PlanError, UsageError
from hpccoll.plan.messages import PlanMessage, list_fence_groups, list_messages_by_round, list_step_messages
from hpccoll.plan.moves import TransferKind
from hpccoll.plan.operation import Operation
from hpccoll.plan.plan import Cost, Plan
from hpccoll.plan.rounds import Rounds
from hpccoll.plan.step import NO_PEER, Fence, IntArray, Load, Move, Op, Picks, Step, Store

FORMAT = "hpccoll-plan/1"
MOST_RANKS, MOST_PLACES = 2**20, 2**27  # most ranks, and most ranks x chunks; proofs of larger plans run out of memory
_OPS = {op.name.lower(): op for op in Op}
_KEYS = ("format", "operation", "algorithm", "ranks", "root", "chunks", "cost", "rounds")
_MESSAGE_KEYS = ("from", "to", "send", "recv", "op")
_VIA = ("load", "store")

FenceGroups: TypeAlias = list[list[int]]
StepBuilder: TypeAlias = Callable[[IntArray, int], Step]  # (column of ranks, number of ranks) -> step


def to_json(plan: Plan) -> str:
    """Return `plan` as JSON text, one line per round."""
    cost = plan.cost
    head = {
        "format": FORMAT,
        "operation": plan.operation.value,
        "algorithm": plan.algorithm,
        "ranks": plan.ranks,
        "root": plan.root,
        "chunks": plan.rounds().chunks,
        "cost": None if cost is None else {"steps": cost.steps, "mean": str(cost.mean), "most": str(cost.most)},
    }
    one_sided = (_one_sided_records(steps, plan.ranks) for steps in plan.rounds())
    messages = list_messages_by_round(plan)
    records = (own or [_message_record(m) for m in listed] for own, listed in zip(one_sided, messages, strict=True))
    rounds = ",\n    ".join(json.dumps(record) for record in records)
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    return "{\n" + ",\n".join([*lines, f'  "rounds": [\n    {rounds}\n  ]']) + "\n}\n"


def _message_record(message: PlanMessage) -> dict[str, Any]:
    """Return a message, load or store as a dictionary for JSON."""
    op = message.op.name.lower()
    record = {"from": message.source, "to": message.dest, "send": message.send, "recv": message.recv, "op": op}
    return record if message.via is TransferKind.MESSAGE else {**record, "via": message.via.value}


def _one_sided_records(steps: Sequence[Step], n: int) -> list[dict[str, Any]]:
    """Return the JSON dictionaries of a round's loads and stores, sorted by the rank that acts, and of its fences.

    `n` is the number of ranks.
    """
    listed = [m for step in steps if not isinstance(step, Move) for m in list_step_messages(step, n)]
    fences = [{"fence": list_fence_groups(step)} for step in steps if isinstance(step, Fence)]
    return [_message_record(message) for message in sorted(listed, key=_acting_rank)] + fences


def _acting_rank(message: PlanMessage) -> int:
    """Return the rank that performs a load or store."""
    return message.dest if message.via is TransferKind.LOAD else message.source


def from_json(text: str, name: str = "the plan") -> Plan:
    """Return the plan in the JSON `text`, which `to_json` wrote, without proving it.

    Error messages call the file `name`.

    Raises:
        UsageError: `text` is not JSON, or a value is missing, unknown, of a wrong type or out of range.
        PlanError: the number of chunks does not fit the operation, or differs between the two ends of a message.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {str(error) or 'it is nested too deeply'}") from error
    reader = _JsonReader(name)
    _, operation_name, algorithm, ranks, root, chunks, cost, rounds = reader.fields(document, _KEYS, "the top level")
    if document["format"] != FORMAT:
        raise reader.wrong("format", document["format"], json.dumps(FORMAT))
    n = reader.integer(ranks, "ranks", 1, MOST_RANKS)
    c = reader.integer(chunks, "chunks", 0, max(MOST_PLACES // n, 1))
    operation = reader.operation(operation_name)
    operation.validate_chunks(n, c)
    algorithm = reader.string(algorithm, "algorithm", r"[\w.+-]{1,80}")
    root = reader.integer(root, "root", 0, n - 1 if operation.has_root else 0)
    listed = [reader.round(value, t, n, c) for t, value in enumerate(reader.items(rounds, "rounds"))]
    make = make_listed_rounds(n, c, listed)
    return Plan(operation, algorithm, n, root, make, reader.cost(cost))


def make_listed_rounds(
    n: int, chunks: int, listed: Sequence[tuple[Sequence[PlanMessage], Sequence[FenceGroups]]]
) -> Callable[[IntArray], Rounds]:
    """Return a function for `Plan.make` that makes the rounds listed in `listed`, for any array of ranks.

    `listed` has, for each round, its messages, and its fences as groups of ranks.
    """
    builders = [_step_builders(messages, fences) for messages, fences in listed]

    def make(rank: IntArray) -> Rounds:
        """Return the rounds in `listed` for the ranks in the array `rank`."""
        return Rounds(len(builders), chunks, lambda t: [build(rank, n) for build in builders[t]])

    return make


@dataclass(frozen=True, slots=True)
class _JsonReader:
    """Checks values of parsed JSON and converts them.

    Methods raise UsageError, which names the key of a wrong value.
    """

    name: str

    def wrong(self, where: str, value: Any, needed: str) -> UsageError:
        """Return an unraised UsageError: the JSON key `where` has `value`, but `needed` is required."""
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        return UsageError(f"{self.name}: {where} is {shown}; need {needed}")

    def fields(self, value: Any, keys: Sequence[str], where: str) -> list[Any]:
        """Return the values of a JSON object in the order of `keys`.

        Raises UsageError unless the keys of the object are exactly `keys`. `where` is the key of the object for error
        messages.
        """
        if not isinstance(value, dict):
            raise self.wrong(where, value, f"an object with the keys {', '.join(keys)}")
        if missing := [key for key in keys if key not in value]:
            raise UsageError(f"{self.name}: {where} lacks {', '.join(missing)}; it needs {', '.join(keys)}")
        if unknown := [key for key in value if key not in keys]:
            raise UsageError(f"{self.name}: {where} has the unknown key {unknown[0]!r:.60}; it has {', '.join(keys)}")
        return [value[key] for key in keys]

    def integer(self, value: Any, where: str, low: int, high: int) -> int:
        """Return `value` if it is an integer from `low` to `high`; raise UsageError with the key `where` otherwise."""
        if type(value) is not int or not low <= value <= high:  # a bool is an int in Python
            raise self.wrong(where, value, f"a whole number from {low} to {high}")
        return value

    def string(self, value: Any, where: str, pattern: str) -> str:
        """Return `value` if it is a string that matches the regular expression `pattern`.

        Raises UsageError otherwise.
        """
        if not isinstance(value, str) or not re.fullmatch(pattern, value, re.ASCII):
            raise self.wrong(where, value, f"a string of the form {pattern}")
        return value

    def operation(self, value: Any) -> Operation:
        """Return the collective operation named `value`; raise UsageError if there is none."""
        known = {operation.value: operation for operation in Operation}
        if not isinstance(value, str) or value not in known:
            raise self.wrong("operation", value, f"one of {', '.join(known)}")
        return known[value]

    def items(self, value: Any, where: str) -> list[Any]:
        """Return `value` if it is a list; raise UsageError with the key `where` otherwise."""
        if not isinstance(value, list):
            raise self.wrong(where, value, "a list")
        return value

    def cost(self, value: Any) -> Cost | None:
        """Return the plan's cost that the file states, or None for null; raise UsageError if it is malformed."""
        if value is None:
            return None
        steps, *shares = self.fields(value, ("steps", "mean", "most"), "cost")
        form = r"\d{1,15}(/0{0,14}[1-9]\d{0,14})?"
        keys = "cost.mean", "cost.most"
        mean, most = (Fraction(self.string(share, key, form)) for share, key in zip(shares, keys, strict=True))
        return Cost(self.integer(steps, "cost.steps", 0, 2**53), mean, most)

    def round(self, value: Any, t: int, n: int, chunks: int) -> tuple[list[PlanMessage], list[FenceGroups]]:
        """Return the messages and the fences of round t, which `value` describes; n ranks have `chunks` chunks each."""
        messages: list[PlanMessage] = []
        fences: list[FenceGroups] = []
        for i, record in enumerate(self.items(value, f"rounds[{t}]")):
            where = f"rounds[{t}][{i}]"
            if isinstance(record, dict) and "fence" in record:
                fences.append(self.fence(record, where, n))
            else:
                messages.append(self.message(record, where, n, chunks))
        return messages, fences

    def fence(self, value: Any, where: str, n: int) -> FenceGroups:
        """Return the groups of ranks in the JSON record of a fence, such as `{"fence": [[0, 1], [2, 3]]}`.

        `n` is the number of ranks. Raises UsageError, with the key `where`, if a group is empty or a rank occurs twice.
        """
        listed = self.items(self.fields(value, ("fence",), where)[0], f"{where}.fence")
        groups = [
            [self.integer(rank, f"{where}.fence[{i}][{j}]", 0, n - 1) for j, rank in enumerate(ranks)]
            for i, ranks in enumerate(self.items(members, f"{where}.fence[{i}]") for i, members in enumerate(listed))
        ]
        ranks = sorted(rank for group in groups for rank in group)
        if len(set(ranks)) < len(ranks) or not all(groups):
            raise self.wrong(f"{where}.fence", groups, "groups of ranks, none empty and no rank twice")
        return groups

    def message(self, value: Any, where: str, n: int, chunks: int) -> PlanMessage:
        """Return the message in the JSON record `value`, of n ranks with `chunks` chunks each.

        Raises UsageError, with the key `where`, for a wrong value, and PlanError if sender and receiver list different
        numbers of chunks.
        """
        keys = (*_MESSAGE_KEYS, "via") if isinstance(value, dict) and "via" in value else _MESSAGE_KEYS
        source, dest, send, recv, op, *via = self.fields(value, keys, where)
        ends = self.integer(source, f"{where}.from", 0, n - 1), self.integer(dest, f"{where}.to", 0, n - 1)
        sent, received = self.chunks(send, f"{where}.send", chunks), self.chunks(recv, f"{where}.recv", chunks)
        if not isinstance(op, str) or op not in _OPS:
            raise self.wrong(f"{where}.op", op, f"one of {', '.join(_OPS)}")
        if via and via[0] not in _VIA:
            raise self.wrong(f"{where}.via", via[0], f"one of {', '.join(_VIA)}")
        if via and via[0] == "store" and op != "copy":
            raise self.wrong(f"{where}.op", op, "copy: a store cannot reduce")
        if len(sent) != len(received):
            pair = f"rank {ends[0]} sends {len(sent)} chunks and rank {ends[1]} receives {len(received)}"
            raise PlanError(f"{self.name}: {where}: {pair}; both ends need the same number")
        return PlanMessage(*ends, sent, received, _OPS[op], TransferKind(via[0]) if via else TransferKind.MESSAGE)

    def chunks(self, value: Any, where: str, chunks: int) -> tuple[int, ...]:
        """Return the list `value` as a tuple.

        Raises UsageError unless the entries of `value` are integers from 0 to `chunks` - 1.
        """
        listed = self.items(value, where)
        return tuple(self.integer(chunk, f"{where}[{i}]", 0, chunks - 1) for i, chunk in enumerate(listed))


def _step_builders(messages: Sequence[PlanMessage], fences: Sequence[FenceGroups]) -> list[StepBuilder]:
    """Return functions that build the steps of a round for any array of ranks, from the round's messages and fences.

    All messages of a step have the same kind and number of chunks. In a step, a rank sends at most one message and
    receives at most one, or performs at most one load or store. Each rank performs its messages in the order of
    `messages`.
    """
    steps: list[list[PlanMessage]] = []
    kinds: list[tuple[TransferKind, int]] = []
    next_step: dict[tuple[str, int], int] = {}
    for message in messages:
        if message.via is TransferKind.MESSAGE:
            used = [("send", message.source), ("recv", message.dest)]
        else:
            used = [("act", _acting_rank(message))]
        first, kind = max(next_step.get(slot, 0) for slot in used), (message.via, len(message.send))
        at = next((s for s in range(first, len(steps)) if kinds[s] == kind), len(steps))
        if at == len(steps):
            steps.append([])
            kinds.append(kind)
        steps[at].append(message)
        next_step |= dict.fromkeys(used, at + 1)
    return [*(partial(_make_step, step) for step in steps), *(partial(_make_fence, groups) for groups in fences)]


def _make_step(messages: Sequence[PlanMessage], rank: IntArray, n: int) -> Move | Load | Store:
    """Return the step (Move, Load or Store) that performs `messages` for the ranks in the array `rank`.

    All messages have the same kind and number of chunks; `n` is the number of ranks of the plan.
    """
    via, size = messages[0].via, len(messages[0].send)
    dest, source = np.full((2, n), NO_PEER, np.int64)
    send, recv = np.zeros((2, n, size), np.int64)
    ops = np.zeros(n, np.int64)
    for message in messages:
        # A rank that loads or stores has both chunk lists of the transfer in its own rows of `send` and `recv`.
        sender = message.dest if via is TransferKind.LOAD else message.source
        receiver = message.source if via is TransferKind.STORE else message.dest
        dest[message.source], source[message.dest] = message.dest, message.source
        send[sender], recv[receiver], ops[message.dest] = message.send, message.recv, message.op
    sent, received = Picks(size, lambda: send[rank]), Picks(size, lambda: recv[rank])
    if via is TransferKind.LOAD:
        return Load(source[rank], sent, received, ops[rank])
    if via is TransferKind.STORE:
        return Store(dest[rank], sent, received)
    return Move(dest[rank], source[rank], sent, received, ops[rank])


def _make_fence(groups: FenceGroups, rank: IntArray, n: int) -> Fence:
    """Return the fence of `groups` for the ranks in the array `rank`; the lowest rank of a group is its leader."""
    leader = np.full(n, NO_PEER, np.int64)
    for group in groups:
        leader[group] = min(group)
    return Fence(leader[rank])
