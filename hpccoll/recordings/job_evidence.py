"""Makes the input of the crash analysis (hpccoll/crash) from the recorder files of a job's ranks.

Times of ranks of one host are compared by the host's monotonic clock. Times of different hosts are compared by the
global clock if every rank has recorded how its clock maps to the global clock, or else by the time of day.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, TypeAlias

from hpccoll.crash import CallRecord, JobEvidence, ProcessState, RankEvidence
from hpccoll.recordings import CallKind, RecordedCall, RecordedCommunicator, Recording
from hpccoll.recordings.process_notes import DEAD_LETTERS, STOPPED_LETTERS, ObservedState, read_process_state

SILENT_S: Final = 2.5  # without a sign of life, which ranks write twice per second
Clock: TypeAlias = Callable[[int], float]


def make_evidence(recordings: Iterable[Recording], states: Mapping[int, ProcessState] | None = None) -> JobEvidence:
    """Return the evidence in the recordings of a job: the input of the crash analysis.

    Args:
        recordings: the recordings, one per rank.
        states: the present states of a running job's processes, by rank; None means that the job has ended, and that
            the states are inferred from the recordings.
    """
    by_rank = {recording.rank: recording for recording in recordings}
    clocks = _choose_clocks(by_rank)
    known = dict(states) if states is not None else _infer_states(by_rank, clocks)
    members = _collect_members(by_rank)
    seen_dead = _collect_deaths(by_rank, clocks)
    ranks = {
        rank: RankEvidence(
            rank,
            recording.host,
            recording.pid,
            tuple(_translate(call, recording.communicators, clocks[rank]) for call in recording.calls),
            known.get(rank, ProcessState.UNKNOWN),
            recording.ending,
            recording.notes.location,
            seen_dead.get(rank),
        )
        for rank, recording in by_rank.items()
    }
    size = max((recording.size for recording in by_rank.values()), default=0)
    latest = max((clocks[rank](_get_last_sign(each)) for rank, each in by_rank.items()), default=0.0)
    now = max((clocks[rank](time.monotonic_ns()) for rank in by_rank if states is not None), default=latest)
    return JobEvidence(size, ranks, members, now, states is None)


def observe_process(recording: Recording) -> ProcessState:
    """Return the present state of the process that made a recording on this host: alive, stopped, dead or unknown."""
    try:
        with open(f"/proc/{recording.pid}/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123 - fast
            is_same = recording.path in maps.read()
        state = read_process_state(recording.pid)
    except OSError:
        return ProcessState.UNKNOWN if os.path.exists(f"/proc/{recording.pid}") else ProcessState.DEAD  # noqa: PTH110
    if state in DEAD_LETTERS or not is_same:
        return ProcessState.DEAD
    return ProcessState.STOPPED if state in STOPPED_LETTERS else ProcessState.ALIVE


def observe_processes(recordings: Iterable[Recording]) -> dict[int, ProcessState] | None:
    """Return a dict that maps ranks on this host to process states; None if no process is alive or stopped."""
    host = os.uname().nodename
    states = {recording.rank: observe_process(recording) for recording in recordings if recording.host == host}
    return states if {ProcessState.ALIVE, ProcessState.STOPPED} & set(states.values()) else None


def _choose_clocks(by_rank: Mapping[int, Recording]) -> dict[int, Clock]:
    """Return a dict that gives each rank a function from its monotonic clock (ns) to seconds of a common clock."""
    if by_rank and all(recording.clock is not None for recording in by_rank.values()):
        return {rank: recording.to_global for rank, recording in by_rank.items()}
    offsets: dict[str, float] = {}
    for recording in by_rank.values():
        offsets.setdefault(recording.host, recording.created_at - recording.created_ns * 1e-9)
    return {rank: _bind_clock(offsets[recording.host]) for rank, recording in by_rank.items()}


def _bind_clock(offset_s: float) -> Clock:
    """Return a function that converts a time in nanoseconds to seconds and adds `offset_s`."""
    return lambda clock_ns: clock_ns * 1e-9 + offset_s


def _collect_members(by_rank: Mapping[int, Recording]) -> dict[str, tuple[int, ...]]:
    """Return a dict that maps communicators' names (`name_communicator`) to their ranks in MPI.COMM_WORLD, if known."""
    communicators = [each for recording in by_rank.values() for each in recording.communicators.values()]
    return {name_communicator(each.id): each.members for each in communicators if each.members is not None}


def _collect_deaths(by_rank: Mapping[int, Recording], clocks: Mapping[int, Clock]) -> dict[int, float]:
    """Return a dict that maps each dead rank to the time (s) at which another rank first saw its process dead.

    Ranks that recorded their own end, and deaths that were seen after a rank began to end the job, are left out.
    """
    ends = [clocks[rank](each.notes.ended_job_ns) for rank, each in by_rank.items() if each.notes.ended_job_ns]
    deaths: dict[int, float] = {}
    for observer, recording in by_rank.items():
        for seen in recording.notes.observations:
            at, own = clocks[observer](seen.time_ns), by_rank.get(seen.rank)
            by_itself = own is not None and bool(own.ending)
            if seen.state is ObservedState.DEAD and not by_itself and at < min(ends, default=at + 1):
                deaths[seen.rank] = min(at, deaths.get(seen.rank, at))
    return deaths


def _infer_states(by_rank: Mapping[int, Recording], clocks: Mapping[int, Clock]) -> dict[int, ProcessState]:
    """Return {rank: STOPPED} for all ranks whose processes were stopped (as by SIGSTOP) when the job ended.

    A rank counts as stopped if another rank observed that its process was stopped, or if its signs of life (times that
    its recording gets twice per second) ended `SILENT_S` before those of the other ranks. A rank does not count as
    stopped if another rank observed afterwards that its process ran. A rank that ends the job writes no signs of life
    while it collects the report, so the time at which it ended the job counts as a sign of life.
    """
    lives = {rank: (each.notes.alive_ns or 0, each.notes.ended_job_ns or 0) for rank, each in by_rank.items()}
    signs = {rank: clocks[rank](max(times)) for rank, times in lives.items() if times[0]}
    latest = max(signs.values(), default=0.0)
    observed: dict[int, tuple[float, ObservedState]] = {}  # the last observation of each rank after its signs of life
    for observer, recording in by_rank.items():
        for seen in recording.notes.observations:
            at = clocks[observer](seen.time_ns)
            last = observed.get(seen.rank, (signs.get(seen.rank, at), seen.state))[0]
            if seen.state is not ObservedState.DEAD and at >= last:
                observed[seen.rank] = at, seen.state
    silent = {rank for rank, sign in signs.items() if latest - sign > SILENT_S and not by_rank[rank].ending}
    running = {rank for rank, (_, state) in observed.items() if state is ObservedState.RUNNING}
    return dict.fromkeys((silent | observed.keys()) - running, ProcessState.STOPPED)


def _get_last_sign(recording: Recording) -> int:
    """Return the monotonic time (ns) of the last event in a recording: file creation, sign of life, or last call."""
    events = [each.ended_ns or each.begun_ns for each in recording.calls[-1:]]
    return max(recording.created_ns, recording.notes.alive_ns or 0, *events)


def _translate(call: RecordedCall, communicators: Mapping[int, RecordedCommunicator], clock: Clock) -> CallRecord:
    """Return a recorded call as a `CallRecord` of the crash analysis; `clock` converts its times to seconds."""
    communicator = communicators.get(call.communicator)
    peer = call.peer
    if peer is not None and communicator is not None and communicator.members is not None:
        with suppress(IndexError):
            peer = communicator.members[peer]
    is_message = call.kind in (CallKind.SEND, CallKind.RECEIVE)
    values = (
        ("algorithm", call.algorithm),
        ("count", str(call.count) if call.dtype else ""),
        ("dtype", call.dtype),
        ("reduction", call.reduction),
        ("root", "" if call.root is None else str(call.root)),
        ("form", "" if is_message else "asynchronous" if call.asynchronous else "blocking"),
    )
    return CallRecord(
        name_communicator(call.communicator),
        0 if is_message else call.number,
        call.operation,
        tuple((name, value) for name, value in values if value),
        clock(call.begun_ns),
        None if call.ended_ns is None else clock(call.ended_ns),
        peer,
        call.round,
        call.rounds,
        call.is_waited_for,
    )


def name_communicator(communicator: int) -> str:
    """Return the id of a communicator as a hexadecimal number, as reports and messages show it."""
    return f"{communicator:x}"
