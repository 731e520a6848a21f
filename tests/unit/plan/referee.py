"""Scripts (plans written out rank by rank), and a referee that judges them independently of plan.proof.checker.

The referee runs a script on symbolic expressions in plain Python, without weights, hashes, NumPy and masks. It has its
own definition of the input and the required output of each operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from hpccoll.plan import IntArray, Move, Op, Operation, Plan, Region, Rounds

Script = list[list["Ends"]]  # rounds of moves, written out
Place = tuple[int, int]  # rank, chunk


@dataclass
class Ends:
    """A move written out: each rank's receiver and sender, the chunks sent and received into, and the op."""

    dest: list[int]
    source: list[int]
    out: list[tuple[int, ...]]
    into: list[tuple[int, ...]]
    op: list[int]

    def messages(self) -> list[tuple[int, int]]:
        """Return (sender, receiver) of each message."""
        return [(rank, to) for rank, to in enumerate(self.dest) if to >= 0]

    def alone(self, rank: int) -> Ends:
        """Return the move with only the message that `rank` sends."""
        to = self.dest[rank]
        return replace(
            self,
            dest=[peer if at == rank else -1 for at, peer in enumerate(self.dest)],
            source=[peer if at == to else -1 for at, peer in enumerate(self.source)],
        )

    def drop(self, rank: int) -> None:
        """Remove the message that `rank` sends."""
        self.source[self.dest[rank]] = -1
        self.dest[rank] = -1


@dataclass(frozen=True)
class Table:
    """A region written out: the chunks of each rank."""

    rows: list[tuple[int, ...]]

    @property
    def size(self) -> IntArray:
        """The number of chunks of each rank."""
        return np.array([len(row) for row in self.rows])

    def ids(self, ranks: int) -> IntArray:
        """Return the chunks of each rank, padded with -1."""
        most = max(map(len, self.rows))
        assert ranks == len(self.rows)
        return np.array([[*row, *[-1] * (most - len(row))] for row in self.rows], np.int64).reshape(ranks, most)


def written(plan: Plan) -> Script:
    """Return a plan written out as a script."""

    def ends(move: Move) -> Ends:
        out, into = (
            [tuple(chunk for chunk in row if chunk >= 0) for row in region.ids(plan.ranks).tolist()]
            for region in (move.send, move.recv)
        )
        return Ends(
            move.dest.tolist(), move.source.tolist(), out, into, [int(o) for o in np.broadcast_to(move.op, plan.ranks)]
        )

    return [[ends(move) for move in moves if isinstance(move, Move)] for moves in plan.moves()]


def acted(script: Script, plan: Plan) -> Plan:
    """Return the plan that has the rounds of a script."""

    def move(ends: Ends) -> Move:
        send, recv = cast("tuple[Region, Region]", (Table(ends.out), Table(ends.into)))
        return Move(np.array(ends.dest), np.array(ends.source), send, recv, np.array(ends.op))

    chunks = plan.moves().chunks
    return replace(plan, make=lambda _: Rounds(len(script), chunks, lambda t: [move(ends) for ends in script[t]]))


def required(plan: Plan, chunks: int) -> dict[Place, Counter[Place]]:
    """Return the contributions that each required (rank, chunk) must contain."""
    n, root, ranks = plan.ranks, plan.root, range(plan.ranks)
    block = max(chunks // n, 1)
    owner = {c: c // block for c in range(chunks)}
    summed = {c: [(r, c) for r in ranks] for c in range(chunks)}
    needs: dict[Operation, Callable[[int, int], list[Place] | None]] = {
        Operation.ALL_REDUCE: lambda _, c: summed[c],
        Operation.REDUCE: lambda r, c: summed[c] if r == root else None,
        Operation.REDUCE_SCATTER: lambda r, c: summed[c] if r == owner[c] else None,
        Operation.ALL_GATHER: lambda _, c: [(owner[c], c)],
        Operation.GATHER: lambda r, c: [(owner[c], c)] if r == root else None,
        Operation.BROADCAST: lambda _, c: [(root, c)],
        Operation.SCATTER: lambda r, c: [(root, c)] if r == owner[c] else None,
        Operation.ALL_TO_ALL: lambda r, c: [(c - n, r)] if n <= c < 2 * n else None,
        Operation.SCAN: lambda r, c: summed[c][: r + 1],
        Operation.EXSCAN: lambda r, c: summed[c][:r] if r and c < chunks // 2 else None,
        Operation.BARRIER: lambda _r, _c: None,
    }
    found = {(r, c): needs[plan.operation](r, c) for r in ranks for c in range(chunks)}
    return {place: Counter(need) for place, need in found.items() if need is not None}


def brought(plan: Plan, rank: int, chunk: int, chunks: int) -> bool:
    """Whether a chunk of a rank is part of its input."""
    if plan.operation in (Operation.BROADCAST, Operation.SCATTER):
        return rank == plan.root
    if plan.operation in (Operation.ALL_GATHER, Operation.GATHER):
        return chunk // (chunks // plan.ranks) == rank
    if plan.operation is Operation.EXSCAN:
        return chunk < chunks // 2
    return chunk < plan.ranks if plan.operation is Operation.ALL_TO_ALL else True


def leaves(expression: Any) -> Iterator[Place]:
    """Yield the contributions in a symbolic expression."""
    if expression[0] == "+":
        yield from leaves(expression[1])
        yield from leaves(expression[2])
    else:
        yield expression


def fault_of(script: Script, plan: Plan) -> str | None:
    """Return the first fault of a script; None if it is correct."""
    n, chunks = plan.ranks, plan.moves().chunks
    state: dict[Place, Any] = {(r, c): (r, c) for r in range(n) for c in range(chunks) if brought(plan, r, c, chunks)}
    heard = [{r} for r in range(n)]
    layouts = [plan.operation.chunk_sizes(count, n, chunks).tolist() for count in (0, 1, 7)]
    for moves in script:
        before, known = dict(state), [set(ranks) for ranks in heard]
        landed: list[tuple[Place, int, Any]] = []
        for ends in moves:
            if any(not 0 <= to < n for _, to in ends.messages()):
                return "a peer that is no rank"
            if any(ends.source[to] != rank for rank, to in ends.messages()):
                return "a send without its receive"
            if any(frm >= 0 and ends.dest[frm] != rank for rank, frm in enumerate(ends.source)):
                return "a receive without its send"
            for rank, to in ends.messages():
                heard[to] |= known[rank]
                out, into = ends.out[rank], ends.into[to]
                if len(out) != len(into) or len(set(into)) < len(into):
                    return "chunks that do not pair"
                for chunk, place in zip(out, into, strict=True):
                    if (rank, chunk) not in before or (ends.op[to] and (to, place) not in before):
                        return "read before it was written"
                    if any(sizes[chunk] != sizes[place] for sizes in layouts):
                        return "sizes that differ"
                    landed.append(((to, place), ends.op[to], before[rank, chunk]))
        already: set[Place] = set()
        for at, op, value in landed:
            if op and not plan.operation.reduces:
                return "a reduction where nothing is to be reduced"
            if op == Op.COPY and at in already:
                return "overwritten"
            already.add(at)
            pair = {0: value, 1: ("+", state.get(at), value), 2: ("+", value, state.get(at))}
            state[at] = pair[op]
    if plan.operation is Operation.BARRIER:
        return None if all(len(ranks) == n for ranks in heard) else "left too early"
    return unfulfilled(state, required(plan, chunks), in_rank_order=plan.operation.is_scan)


def unfulfilled(
    state: dict[Place, Any], needs: dict[Place, Counter[Place]], *, in_rank_order: bool = False
) -> str | None:
    orders: dict[int, Any] = {}
    for (rank, chunk), need in needs.items():
        have = state.get((rank, chunk))
        if have is None or Counter(leaves(have)) != need:
            return f"rank {rank} chunk {chunk} holds {have}"
        if in_rank_order:
            if list(leaves(have)) != sorted(need):
                return f"rank {rank} chunk {chunk} not in rank order"
            continue
        if orders.setdefault(chunk, have) != have and len(need) > 1:
            return f"chunk {chunk} in different orders"
    return None
