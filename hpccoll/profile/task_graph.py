"""Simulates a job whose trace has no times of its communication, such as a GOAL schedule.

The job is given as tasks of each rank, with the tasks that must end or start before each of them. A rank carries out
one task after the other. A rank starts its sends, receives and collectives as soon as the tasks that they need have
ended, and then computes; if nothing else is left to do, it waits for the operation that ends first. A message takes
`ALPHA_S` seconds plus `BETA_S` seconds per byte. A collective takes the simulated time of the fastest algorithm on a
network with this latency and bandwidth.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from hpccoll.errors import UsageError
from hpccoll.profile.foreign_profile import COLLECTIVES, RankCalls
from hpccoll.profile.layout import ANY
from hpccoll.profile.network_model import NetworkModel
from hpccoll.profile.transfer_kinds import BLOCK_OPERATIONS, ModelledTransfer

ALPHA_S: Final = 2e-6
BETA_S: Final = 1e-10
NOTE: Final = f"the file has no times of messages: each takes {1e6 * ALPHA_S:g} us and {1e9 * BETA_S:g} ns per byte"


@dataclass(frozen=True, slots=True)
class Task:
    """A task of a rank in a trace without times: computing, a send, a receive or a collective.

    Args:
        kind: `calc` for computing, `send`, `recv`, or the name of a collective.
        seconds: the time of computing; 0 for other tasks.
        nbytes: the bytes of the message, or of one rank's buffer in a collective.
        peer: the rank that receives or sends; ANY for a receive from any rank.
        tag: the tag of the message; ANY for a receive with any tag.
        comm: index of the communicator of a collective.
        needs: indices of the tasks of this rank that must have ended before this task starts.
        start_needs: indices of the tasks of this rank that must have started before this task starts.
    """

    kind: str
    seconds: float = 0.0
    nbytes: int = 0
    peer: int = ANY
    tag: int = ANY
    comm: int = 0
    needs: tuple[int, ...] = ()
    start_needs: tuple[int, ...] = ()


@dataclass(slots=True)
class _InFlight:
    """A receive or collective that a rank has started and not completed.

    Args:
        rank: the rank that has started the operation.
        task: index of the operation's task in the list of the rank's tasks.
        request: the number of the started call in the rank's `RankCalls`.
        end_s: the time at which the operation ends; None until the message is sent, or all ranks have started.
    """

    rank: int
    task: int
    request: int
    end_s: float | None = None


@dataclass(slots=True)
class _RankState:
    """The progress of one rank in the simulation.

    Args:
        tasks: all tasks of the rank.
        missing: for each task, the number of needs that are not satisfied.
        calls: the calls that the rank has made so far.
        clock_s: the rank's simulated time.
        ended: the number of tasks that have ended.
        communication: indices of sends, receives and collectives that the rank may start.
        computing: indices of computing tasks that the rank may start.
        open: operations that the rank has started and not completed.
        is_blocked: whether the rank waits for an operation whose end is not known.
    """

    tasks: Sequence[Task]
    missing: list[int]
    calls: RankCalls = field(default_factory=RankCalls)
    clock_s: float = 0.0
    ended: int = 0
    communication: deque[int] = field(default_factory=deque)
    computing: deque[int] = field(default_factory=deque)
    open: list[_InFlight] = field(default_factory=list)
    is_blocked: bool = False


class TaskSimulation:
    """Simulates the tasks of all ranks of a job, so that they get begin and end times.

    Args:
        tasks: the tasks of each rank.
        comms: the ranks of each communicator.
    """

    def __init__(self, tasks: Sequence[Sequence[Task]], comms: Sequence[tuple[int, ...]]) -> None:
        self._comms, self._network = comms, NetworkModel(ALPHA_S, BETA_S)
        self._states = [_RankState(own, [len(task.needs) + len(task.start_needs) for task in own]) for own in tasks]
        self._after_end = [_list_followers([task.needs for task in own]) for own in tasks]
        self._after_start = [_list_followers([task.start_needs for task in own]) for own in tasks]
        self._sent: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)  # tag, arrival time
        self._receives: dict[int, list[_InFlight]] = defaultdict(list)  # receives without a message yet, by rank
        self._entered: dict[tuple[int, int], list[_InFlight]] = defaultdict(list)  # collectives by number
        self._counts: dict[tuple[int, int], int] = defaultdict(int)  # collectives by rank and communicator

    def run(self) -> list[RankCalls]:
        """Run the simulation, and return the calls of each rank.

        Raises:
            UsageError: some tasks never end, because they wait for messages, ranks or tasks that never come.
        """
        for rank, state in enumerate(self._states):
            for task, missing in enumerate(state.missing):
                if not missing:
                    self._make_ready(rank, task)
        self._queue = [(0.0, rank) for rank in range(len(self._states))]
        while self._queue:
            self._advance(heapq.heappop(self._queue)[1])
        stuck = [rank for rank, state in enumerate(self._states) if state.ended < len(state.tasks)]
        if stuck:
            raise UsageError(f"ranks {stuck[:8]} never end: they wait for messages or tasks that no rank sends or runs")
        return [state.calls for state in self._states]

    def list_ends(self) -> list[float]:
        """Return the time in seconds at which each rank ended; `run` must be called first."""
        return [state.clock_s for state in self._states]

    def _advance(self, rank: int) -> None:
        """Let rank `rank` carry out one computing task, or else wait for the started operation that ends first."""
        state = self._states[rank]
        self._start_communication(rank)
        if state.computing:
            task = state.computing.popleft()
            self._satisfy(rank, task, self._after_start)
            self._start_communication(rank)
            state.clock_s += state.tasks[task].seconds
            self._end(rank, task)
        else:
            known = [operation for operation in state.open if operation.end_s is not None]
            if not known:
                state.is_blocked = True
                return
            first = min(known, key=lambda operation: operation.end_s or 0.0)
            begin_s, state.clock_s = state.clock_s, max(state.clock_s, first.end_s or 0.0)
            state.calls.complete(first.request, begin_s, state.clock_s)
            state.open.remove(first)
            self._end(rank, first.task)
        heapq.heappush(self._queue, (state.clock_s, rank))

    def _start_communication(self, rank: int) -> None:
        """Start all sends, receives and collectives of rank `rank` whose needs are satisfied."""
        state = self._states[rank]
        while state.communication:
            number = state.communication.popleft()
            task = state.tasks[number]
            request = state.calls.start(
                task.kind, state.clock_s, nbytes=task.nbytes, peer=task.peer, tag=task.tag, comm=task.comm
            )
            self._satisfy(rank, number, self._after_start)
            if task.kind == "send":
                self._send(rank, task)
                self._end(rank, number)
                continue
            operation = _InFlight(rank, number, request)
            state.open.append(operation)
            self._receive(operation, task) if task.kind == "recv" else self._enter(operation, task)

    def _send(self, source: int, task: Task) -> None:
        """Complete the first receive that matches the message of a send, or keep the message for a later receive."""
        end_s = self._states[source].clock_s + ALPHA_S + BETA_S * task.nbytes
        receives = self._receives[task.peer]
        for receive in receives:
            wanted = self._states[receive.rank].tasks[receive.task]
            if wanted.peer in (ANY, source) and wanted.tag in (ANY, task.tag):
                receives.remove(receive)
                self._complete(receive, end_s)
                return
        self._sent[source, task.peer].append((task.tag, end_s))

    def _receive(self, receive: _InFlight, task: Task) -> None:
        """Complete a receive by the first message that matches it, or keep the receive for a later message."""
        sources = range(len(self._states)) if task.peer == ANY else (task.peer,)
        kept = [
            (end_s, place, source)
            for source in sources
            for place, (tag, end_s) in enumerate(self._sent[source, receive.rank])
            if task.tag in (ANY, tag)
        ]
        if not kept:
            self._receives[receive.rank].append(receive)
            return
        end_s, place, source = min(kept) if task.peer == ANY else kept[0]
        del self._sent[source, receive.rank][place]
        self._complete(receive, end_s)

    def _enter(self, operation: _InFlight, task: Task) -> None:
        """Count a rank as having started a collective; complete the collective if the rank is the last one."""
        members = self._comms[task.comm]
        number = self._counts[operation.rank, task.comm]
        self._counts[operation.rank, task.comm] += 1
        started = self._entered[task.comm, number]
        started.append(operation)
        if len(started) == len(members):
            size = task.nbytes * (len(members) if task.kind in BLOCK_OPERATIONS else 1)
            kind = ModelledTransfer(task.kind, len(members), size)
            end_s = max(self._states[member.rank].clock_s for member in started) + self._network.predict_s(kind)
            for member in self._entered.pop((task.comm, number)):
                self._complete(member, end_s)

    def _complete(self, operation: _InFlight, end_s: float) -> None:
        """Set the time `end_s` at which an operation ends, and let its rank continue if it was blocked."""
        operation.end_s, state = end_s, self._states[operation.rank]
        if state.is_blocked:
            state.is_blocked = False
            heapq.heappush(self._queue, (state.clock_s, operation.rank))

    def _end(self, rank: int, task: int) -> None:
        """Count the task with index `task` of rank `rank` as ended, and mark tasks that can start now as ready."""
        self._states[rank].ended += 1
        self._satisfy(rank, task, self._after_end)

    def _satisfy(self, rank: int, task: int, followers: Sequence[dict[int, list[int]]]) -> None:
        """Subtract 1 from the missing needs of the tasks that need `task`; mark tasks without missing needs as ready.

        Args:
            rank: the rank of the tasks.
            task: index of the needed task.
            followers: for each rank, the indices of the tasks that need each task.
        """
        state = self._states[rank]
        for follower in followers[rank].get(task, ()):
            state.missing[follower] -= 1
            if not state.missing[follower]:
                self._make_ready(rank, follower)

    def _make_ready(self, rank: int, task: int) -> None:
        """Add the task with index `task` of rank `rank` to those that the rank may start."""
        state = self._states[rank]
        kind = state.tasks[task].kind
        is_communication = kind in ("send", "recv", *COLLECTIVES)
        (state.communication if is_communication else state.computing).append(task)


def _list_followers(needs: Sequence[tuple[int, ...]]) -> dict[int, list[int]]:
    """Return, for each needed task, the indices of the tasks that need it; `needs` has the needs of each task."""
    followers: dict[int, list[int]] = defaultdict(list)
    for task, own in enumerate(needs):
        for need in own:
            followers[need].append(task)
    return followers
