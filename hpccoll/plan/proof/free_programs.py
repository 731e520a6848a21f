"""Free programs: each rank's own list of sends and receives, with no rounds that hold them together; and their proof.

Messages between a sender and a receiver arrive in the order in which they were sent. A synchronous send ends when its
receive is reached, a buffered one at once; a receive ends when its message is there. Receives name their sender, so
whichever rank advances first, all end up in the same state: running every rank as far as it goes, until none can go
on, finds a deadlock whenever there is one.

Cost: O(actions) time. Source: Kahn, "The semantics of a simple language for parallel programming", IFIP 1974.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import DeadlockError, PlanError
from hpccoll.plan.operation import Mask, Operation, Weights
from hpccoll.plan.plan import Plan
from hpccoll.plan.proof.postcondition import check_postcondition
from hpccoll.plan.proof.symbolic_state import SymbolicState, SymbolicValues, random_weights
from hpccoll.plan.step import NO_PEER, Fence, Op

NO_DATA = -1  # in place of a chunk: the message itself is the news


@dataclass(frozen=True, slots=True)
class SendAction:
    """Send a chunk to rank `to`; `synchronous` waits until the receive is reached."""

    dest: int
    chunk: int
    synchronous: bool = True


@dataclass(frozen=True, slots=True)
class RecvAction:
    """Receive a chunk from rank `frm`; `op` says what it does to the chunk that is there."""

    source: int
    chunk: int
    op: Op = Op.COPY


Action: TypeAlias = SendAction | RecvAction
FreeProgram: TypeAlias = Sequence[Sequence[Action]]


def check_program(
    program: FreeProgram,
    operation: Operation | None = None,
    root: int = 0,
    chunks: int | None = None,
    counts: Sequence[int] = (0, 1, 7),
    held: Mask | None = None,
) -> int:
    """Prove that `program` ends, and that it achieves `operation` where one is given.

    Args:
        program: for each rank its actions in order.
        operation: what the ranks must hold in the end, from `root`; without it only the messages are checked.
        chunks: chunks a rank (default: as many as are named).
        counts: element counts whose layouts both ends must agree on (with an operation).
        held: without an operation, which chunks are written at the start, shape (n, C); default all.

    Returns: how many messages were received.

    Raises:
        DeadlockError: some ranks cannot go on; `stuck` and the message name their steps and what they wait for.
        PlanError: a message that is never received, a chunk read before it was written or that does not fit its
            receive, a peer or chunk that does not exist, an operation not achieved.
    """
    n = len(program)
    if chunks is None:
        chunks = 1 + max((action.chunk for actions in program for action in actions), default=-1)
    _refuse_wild(program, chunks)
    if operation is None:
        return _Machine(program, chunks, None, counts, held).run()
    operation.validate_chunks(n, chunks)

    def run(weights: Weights) -> tuple[SymbolicState, int]:
        ledger = SymbolicState(operation, n, chunks, root, weights)
        return ledger, _Machine(program, chunks, ledger, counts, None).run()

    ledger, messages = run(random_weights(n, chunks))
    check_postcondition(ledger, f"free program of {operation.value} on {n} ranks", lambda weights: run(weights)[0])
    return messages


def flatten_plan(plan: Plan) -> list[list[Action]]:
    """Return `plan` as a free program: in each round a rank's buffered sends, then its receives, chunk by chunk.

    Loads and stores become messages. Raises PlanError where fences are the news itself, as in a barrier.
    """
    n = plan.ranks
    if plan.operation is Operation.BARRIER and any(
        isinstance(step, Fence) for steps in plan.rounds() for step in steps
    ):
        raise PlanError(f"{plan.name} holds fences, which a free program cannot say; take a barrier of messages")
    program: list[list[Action]] = [[] for _ in range(n)]
    for moves in plan.moves():
        receives: list[list[Action]] = [[] for _ in range(n)]
        for move in moves:
            ops = np.broadcast_to(np.asarray(move.op), (n,)).tolist()
            out, into = _named(move.send.ids(n)), _named(move.recv.ids(n))
            for rank, (to, frm) in enumerate(zip(move.dest.tolist(), move.source.tolist(), strict=True)):
                if to != NO_PEER:
                    program[rank] += [SendAction(to, chunk, synchronous=False) for chunk in out[rank]]
                if frm != NO_PEER:
                    receives[rank] += [RecvAction(frm, chunk, Op(ops[rank])) for chunk in into[rank]]
        for rank in range(n):
            program[rank] += receives[rank]
    return program


def _named(ids: NDArray[np.int64]) -> list[list[int]]:
    return [[chunk for chunk in row if chunk >= 0] or [NO_DATA] for row in ids.tolist()]


def _refuse_wild(program: FreeProgram, chunks: int) -> None:
    for rank, actions in enumerate(program):
        for step, action in enumerate(actions):
            peer = _peer(action)
            if not 0 <= peer < len(program) or not NO_DATA <= action.chunk < chunks:
                limits = f"there are {len(program)} ranks and {chunks} chunks"
                raise PlanError(f"rank {rank} step {step} ({_say(action)}): {limits}")


def _peer(action: Action) -> int:
    return action.dest if isinstance(action, SendAction) else action.source


def _say(action: Action) -> str:
    chunk = "no data" if action.chunk == NO_DATA else f"chunk {action.chunk}"
    if isinstance(action, RecvAction):
        return f"receive {chunk} from rank {action.source}"
    return f"{'send' if action.synchronous else 'send buffered'} {chunk} to rank {action.dest}"


@dataclass(frozen=True, slots=True)
class _Message:
    step: int
    send: SendAction
    values: SymbolicValues | None
    heard: NDArray[np.bool_] | None


class _Machine:
    """All ranks of a program, each as far as it has come."""

    def __init__(
        self, program: FreeProgram, chunks: int, ledger: SymbolicState | None, counts: Sequence[int], held: Mask | None
    ) -> None:
        n = len(program)
        self.program, self.ledger, self.messages = program, ledger, 0
        self.at = [0] * n
        self.posted = [False] * n  # the synchronous send at which a rank stands is already on its way
        self.channels: dict[tuple[int, int], deque[_Message]] = {}
        start = np.ones((n, chunks), np.bool_) if held is None else held.copy()
        self.valid = start if ledger is None else ledger.valid
        self.alike = (
            np.zeros(chunks, np.int64) if ledger is None else ledger.operation.layout_classes(counts, n, chunks)
        )

    def run(self) -> int:
        """Advance every rank until none can go on; return the messages received."""
        awake = deque(range(len(self.program)))
        while awake:
            rank = awake.popleft()
            while (action := self.action(rank)) is not None:
                woken = self.send(rank, action) if isinstance(action, SendAction) else self.receive(rank, action)
                if woken is None:
                    break
                awake.append(woken)
        self.refuse_stuck()
        for (frm, to), channel in sorted(self.channels.items()):
            for message in channel:
                raise PlanError(f"rank {frm} step {message.step} ({_say(message.send)}): rank {to} never receives it")
        return self.messages

    def action(self, rank: int) -> Action | None:
        actions = self.program[rank]
        return actions[self.at[rank]] if self.at[rank] < len(actions) else None

    def fail(self, rank: int, why: str) -> PlanError:
        action = self.program[rank][self.at[rank]]
        return PlanError(f"rank {rank} step {self.at[rank]} ({_say(action)}): {why}")

    def send(self, rank: int, action: SendAction) -> int | None:
        """Post a message; return whom to wake, None while the sender has nothing more to do."""
        if self.posted[rank]:
            return None
        values = None
        if action.chunk != NO_DATA:
            if not self.valid[rank, action.chunk]:
                raise self.fail(rank, "the chunk is read before it was written")
            values = None if self.ledger is None else self.ledger.read(*_place(rank, action.chunk))
        heard = None if self.ledger is None or self.ledger.heard is None else self.ledger.heard[rank].copy()
        channel = self.channels.setdefault((rank, action.dest), deque())
        channel.append(_Message(self.at[rank], action, values, heard))
        if action.synchronous:
            self.posted[rank] = True
        else:
            self.at[rank] += 1
        return action.dest

    def receive(self, rank: int, action: RecvAction) -> int | None:
        """Take a message; return whom to wake, None where there is none yet."""
        channel = self.channels.get((action.source, rank))
        if not channel:
            return None
        message = channel.popleft()
        self.fit(rank, action, message)
        self.messages += 1
        if message.values is not None and self.ledger is not None:
            self.ledger.land(action.op, *_place(rank, action.chunk), message.values)
        if message.heard is not None and self.ledger is not None and self.ledger.heard is not None:
            self.ledger.heard[rank] |= message.heard
        if action.chunk != NO_DATA:
            self.valid[rank, action.chunk] = True
        self.at[rank] += 1
        if message.send.synchronous:
            self.posted[action.source] = False
            self.at[action.source] += 1
        return action.source

    def fit(self, rank: int, action: RecvAction, message: _Message) -> None:
        out, into = message.send.chunk, action.chunk
        there = f"rank {action.source} step {message.step} ({_say(message.send)})"
        if (out == NO_DATA) != (into == NO_DATA):
            raise self.fail(rank, f"the message is that of {there}")
        if into == NO_DATA:
            return
        if self.alike[out] != self.alike[into]:
            raise self.fail(rank, f"chunks {out} and {into} differ in elements for some counts; sent by {there}")
        if action.op != Op.COPY and not self.valid[rank, into]:
            raise self.fail(rank, "it reduces into a chunk that was never written")
        if action.op != Op.COPY and self.ledger is not None and not self.ledger.operation.reduces:
            raise self.fail(rank, f"it reduces, but {self.ledger.operation.value} may only copy")

    def refuse_stuck(self) -> None:
        waits = {rank: action for rank in range(len(self.program)) if (action := self.action(rank)) is not None}
        if not waits:
            return
        peers = {
            rank: action.dest if isinstance(action, SendAction) else action.source for rank, action in waits.items()
        }
        stuck = {}
        for rank, action in waits.items():
            peer = peers[rank]
            there = f"is at its step {self.at[peer]}" if peer in waits else "has ended"
            stuck[rank] = f"step {self.at[rank]}: {_say(action)}, who {there}"
        cycle = _cycle(peers)
        found = f"; they wait in a circle: {' -> '.join(map(str, cycle))}" if cycle else ""
        remedy = (
            "let one of them receive first, or send without waiting" if cycle else "add the missing send or receive"
        )
        waiting = "; ".join(f"rank {rank} waits at {what}" for rank, what in stuck.items())
        raise DeadlockError(f"deadlock: {waiting}{found}. {remedy[0].upper()}{remedy[1:]}.", stuck)


def _place(rank: int, chunk: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.array([rank]), np.array([chunk])


def _cycle(peers: dict[int, int]) -> list[int]:
    """Return a circle of ranks of which each waits for the next, first and last the same; empty where there is none."""
    for start in peers:
        path = [start]
        while path[-1] in peers and peers[path[-1]] not in path:
            path.append(peers[path[-1]])
        if path[-1] in peers:
            path.append(peers[path[-1]])
            return path[path.index(path[-1]) :]
    return []
