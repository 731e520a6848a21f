"""The proof of free programs, which are one list of sends and receives per rank, without the rounds of a plan.

Messages between two ranks arrive in the order in which they were sent. A synchronous send completes when its receive
starts, a buffered send completes immediately, and a receive completes when its message has arrived. Receives name their
sender, so the final state does not depend on the order in which ranks execute their actions. Executing every rank as
far as possible, in any order, finds every deadlock.

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
from hpccoll.plan.proof.symbolic_state import Contents, SymbolicState, check_postcondition, random_weights
from hpccoll.plan.step import Op

NO_DATA = -1  # chunk number of a message without data


@dataclass(frozen=True, slots=True)
class SendAction:
    """An instruction of a free program: send a chunk to rank `dest`.

    A `synchronous` send waits for the receive to start.
    """

    dest: int
    chunk: int
    synchronous: bool = True


@dataclass(frozen=True, slots=True)
class RecvAction:
    """An instruction of a free program: receive from rank `source` into a chunk.

    `op` says whether to copy or reduce.
    """

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
    """Prove that `program` terminates and performs `operation` (if given); return the number of messages received.

    Args:
        program: one list of actions (sends and receives) per rank.
        operation: the collective that the program must perform, with rank `root` as root; None checks only messages.
        chunks: chunks per rank (default: the highest chunk number plus one).
        counts: if an operation is given, numbers of elements for which sent and received chunks must have equal sizes.
        held: if no operation is given, a mask of the chunks that have data at the start, shape (n, C).

    Raises:
        DeadlockError: some ranks are blocked; the error text and the attribute `stuck` name their steps and actions.
        PlanError: a message is never received or does not fit its receive, a chunk is read before it is written, a
            peer or chunk does not exist, or the operation is not achieved.
    """
    n = len(program)
    if chunks is None:
        chunks = 1 + max((action.chunk for actions in program for action in actions), default=-1)
    _check_peers_and_chunks(program, chunks)
    if operation is None:
        return _ProgramRunner(program, chunks, None, counts, held).run()
    operation.validate_chunks(n, chunks)

    def run(weights: Weights) -> tuple[SymbolicState, int]:
        """Run the program with the given weights; return the final state and the number of messages received."""
        state = SymbolicState(operation, n, chunks, root, weights)
        return state, _ProgramRunner(program, chunks, state, counts, None).run()

    state, messages = run(random_weights(n, chunks))
    check_postcondition(state, f"free program of {operation.value} on {n} ranks", lambda weights: run(weights)[0])
    return messages


def _check_peers_and_chunks(program: FreeProgram, chunks: int) -> None:
    """Raise PlanError if an action names a rank or chunk that does not exist."""
    for rank, actions in enumerate(program):
        for step, action in enumerate(actions):
            peer = _peer(action)
            if not 0 <= peer < len(program) or not NO_DATA <= action.chunk < chunks:
                limits = f"there are {len(program)} ranks and {chunks} chunks"
                raise PlanError(f"rank {rank} step {step} ({_format_action(action)}): {limits}")


def _peer(action: Action) -> int:
    """Return the destination of a send, or the source of a receive."""
    return action.dest if isinstance(action, SendAction) else action.source


def _format_action(action: Action) -> str:
    """Return a send or receive as text for an error message, such as `receive chunk 3 from rank 0`."""
    chunk = "no data" if action.chunk == NO_DATA else f"chunk {action.chunk}"
    if isinstance(action, RecvAction):
        return f"receive {chunk} from rank {action.source}"
    return f"{'send' if action.synchronous else 'send buffered'} {chunk} to rank {action.dest}"


@dataclass(frozen=True, slots=True)
class _SentMessage:
    """A message in flight: the sender's action and its number, and the contents.

    In a barrier, the contents are the ranks that the sender knows to have arrived.
    """

    step: int
    send: SendAction
    values: Contents | None
    heard: NDArray[np.bool_] | None


class _ProgramRunner:
    """Executes a program of sends and receives symbolically, with the current action of every rank."""

    def __init__(
        self, program: FreeProgram, chunks: int, state: SymbolicState | None, counts: Sequence[int], held: Mask | None
    ) -> None:
        n = len(program)
        self.program, self.state, self.messages = program, state, 0
        self.at = [0] * n
        self.posted = [False] * n  # whether the rank's current synchronous send is in flight
        self.channels: dict[tuple[int, int], deque[_SentMessage]] = {}
        start = np.ones((n, chunks), np.bool_) if held is None else held.copy()
        self.valid = start if state is None else state.valid
        self.layout_class = np.zeros(chunks, np.int64)
        if state is not None:
            self.layout_class = state.operation.layout_classes(tuple(counts), n, chunks)

    def run(self) -> int:
        """Execute all actions; return the number of messages received, or raise DeadlockError or PlanError."""
        runnable = deque(range(len(self.program)))
        while runnable:
            rank = runnable.popleft()
            while (action := self.current_action(rank)) is not None:
                next_rank = self.send(rank, action) if isinstance(action, SendAction) else self.receive(rank, action)
                if next_rank is None:
                    break
                runnable.append(next_rank)
        self.check_finished()
        for (source, dest), channel in sorted(self.channels.items()):
            for message in channel:
                sent = f"rank {source} step {message.step} ({_format_action(message.send)})"
                raise PlanError(f"{sent}: rank {dest} never receives it")
        return self.messages

    def current_action(self, rank: int) -> Action | None:
        """Return the action that a rank has to execute now, without advancing; None if the rank has finished."""
        actions = self.program[rank]
        return actions[self.at[rank]] if self.at[rank] < len(actions) else None

    def error(self, rank: int, why: str) -> PlanError:
        """Return an unraised error with the text `why` about the current action of a rank."""
        action = self.program[rank][self.at[rank]]
        return PlanError(f"rank {rank} step {self.at[rank]} ({_format_action(action)}): {why}")

    def send(self, rank: int, action: SendAction) -> int | None:
        """Execute a send of `rank`; return its destination, which may now continue.

        The result is None if an earlier attempt to execute this send has already sent the message.
        """
        if self.posted[rank]:
            return None
        values = None
        if action.chunk != NO_DATA:
            if not self.valid[rank, action.chunk]:
                raise self.error(rank, "the chunk is read before it was written")
            values = None if self.state is None else self.state.contents[self.place(rank, action.chunk)]
        heard = None if self.state is None or self.state.heard is None else self.state.heard[rank].copy()
        channel = self.channels.setdefault((rank, action.dest), deque())
        channel.append(_SentMessage(self.at[rank], action, values, heard))
        if action.synchronous:
            self.posted[rank] = True
        else:
            self.at[rank] += 1
        return action.dest

    def receive(self, rank: int, action: RecvAction) -> int | None:
        """Execute a receive of `rank`; return its source, which may now continue, or None if no message is there."""
        channel = self.channels.get((action.source, rank))
        if not channel:
            return None
        message = channel.popleft()
        self.check_message(rank, action, message)
        self.messages += 1
        if message.values is not None and self.state is not None:
            self.state.receive(action.op, self.place(rank, action.chunk), message.values)
        if message.heard is not None and self.state is not None and self.state.heard is not None:
            self.state.heard[rank] |= message.heard
        if action.chunk != NO_DATA:
            self.valid[rank, action.chunk] = True
        self.at[rank] += 1
        if message.send.synchronous:
            self.posted[action.source] = False
            self.at[action.source] += 1
        return action.source

    def place(self, rank: int, chunk: int) -> NDArray[np.int64]:
        """Return rank * chunks + chunk, a chunk's number among the chunks of all ranks, as an array of one element."""
        return np.array([rank * self.valid.shape[1] + chunk])

    def check_message(self, rank: int, action: RecvAction, message: _SentMessage) -> None:
        """Raise PlanError if a message does not fit `action`, the receive of `rank` that takes the message."""
        out, into = message.send.chunk, action.chunk
        sender = f"rank {action.source} step {message.step} ({_format_action(message.send)})"
        if (out == NO_DATA) != (into == NO_DATA):
            raise self.error(rank, f"one of the two carries no data; the message is {sender}")
        if into == NO_DATA:
            return
        if self.layout_class[out] != self.layout_class[into]:
            raise self.error(rank, f"chunks {out} and {into} differ in elements for some counts; sent by {sender}")
        if action.op != Op.COPY and not self.valid[rank, into]:
            raise self.error(rank, "it reduces into a chunk that was never written")
        if action.op != Op.COPY and self.state is not None and not self.state.operation.reduces:
            raise self.error(rank, f"it reduces, but {self.state.operation.value} may only copy")

    def check_finished(self) -> None:
        """Raise DeadlockError, with a cycle of waiting ranks if there is one, unless every rank has finished."""
        waits = {rank: action for rank in range(len(self.program)) if (action := self.current_action(rank)) is not None}
        if not waits:
            return
        peers = {rank: _peer(action) for rank, action in waits.items()}
        stuck = {}
        for rank, action in waits.items():
            peer = peers[rank]
            there = f"is at its step {self.at[peer]}" if peer in waits else "has ended"
            stuck[rank] = f"step {self.at[rank]}: {_format_action(action)}, which {there}"
        cycle = find_cycle(peers)
        circle = f"; they wait in a circle: {' -> '.join(map(str, cycle))}" if cycle else ""
        reorder, add = "Let one of them receive first, or send without waiting", "Add the missing send or receive"
        waiting = "; ".join(f"rank {rank} waits at {what}" for rank, what in stuck.items())
        raise DeadlockError(f"deadlock: {waiting}{circle}. {reorder if cycle else add}.", stuck)


def find_cycle(peers: dict[int, int]) -> list[int]:
    """Return a cycle of ranks, each waiting for the next, with the first rank repeated at the end.

    `peers` has the rank for which each blocked rank waits. The list is empty if there is no cycle.
    """
    for start in peers:
        path = [start]
        while path[-1] in peers and peers[path[-1]] not in path:
            path.append(peers[path[-1]])
        if path[-1] in peers:
            path.append(peers[path[-1]])
            return path[path.index(path[-1]) :]
    return []
