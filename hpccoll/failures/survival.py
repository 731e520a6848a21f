"""Asks MPI which ranks have died, lets this process continue without them, and kills ranks that do not answer."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from mpi4py import MPI

from hpccoll.errors import CommunicationError
from hpccoll.failures.departures import BLOCKED_S, DepartureWatch
from hpccoll.failures.fault_tolerance import find_members
from hpccoll.failures.rank_losses import KillRequest
from hpccoll.failures.time_limit import TIMEOUT, read_timeout
from hpccoll.failures.watchdog import Watchdog
from hpccoll.runtime.job import ProcessId
from hpccoll.runtime.progress import get_progress
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.recorder.flight_recorder import DIRECTORY, get_recorder

TICK_S: Final = 0.05  # between two questions to MPI, which take 0.9 us
BUSY_TICK_S: Final = 0.002
PATIENCE_S: Final = 5.0  # after a death, until ranks that do not answer are ended; collecting recordings takes seconds
SUSPICION_S: Final = 1.0  # after the end of a process, or an error of MPI: MPI tells of a death 20 to 50 ms later


@dataclass(eq=False, slots=True)
class _Wait:
    """A wait that HPCCOLL_TIMEOUT limits.

    `since` is the time at which the wait was first seen, and `vain_since` the time at which it was first seen to be in
    vain, because another rank has left the loop `survivors`; `vain_since` is 0 if the wait is not known to be in vain.
    """

    state: CallRecorder
    since: float = 0.0
    vain_since: float = 0.0


class Survival:
    """Asks MPI for dead ranks, tells the calls of this process about deaths, and kills ranks that do not answer.

    Args:
        wake: ends the pause of the thread that calls `look`.
        notify: sends a notice to a rank of MPI.COMM_WORLD.
    """

    def __init__(self, wake: threading.Event, notify: Callable[[int, object], None]) -> None:
        self._wake, self._notify = wake, notify
        self._processes: dict[int, ProcessId] = {}
        self._suspicious_until = 0.0
        self._patient_until = 0.0  # until then, calls that do not finish may be those that a death will end
        self._awaits_answers = False
        self._guarded: list[tuple[MPI.Intracomm, MPI.Intracomm]] = []  # the arguments of `guard`
        self._dead: frozenset[int] = frozenset()  # ranks of MPI.COMM_WORLD
        self._waits: list[_Wait] = []  # those of `limit`
        self._acknowledged = 0  # dead processes that the probes of MPI.COMM_WORLD no longer report

    @contextmanager
    def guard(self, comm: MPI.Intracomm, watched: MPI.Intracomm, lock: threading.Lock) -> Iterator[None]:
        """Context manager that revokes `comm` if a rank of `watched` dies in its body.

        `lock` is the lock under which the watching thread calls `look`; the caller must not hold it.
        """
        pair = comm, watched
        with lock:
            self._guarded.append(pair)
        self._wake.set()
        try:
            yield
        finally:
            with lock:
                self._guarded = [each for each in self._guarded if each is not pair]

    @contextmanager
    def limit(self, state: CallRecorder) -> Iterator[None]:
        """End the job, or only the ranks that hang, if the `with` block takes longer than HPCCOLL_TIMEOUT."""
        wait = _Wait(state)
        self._waits.append(wait)
        try:
            yield
        finally:
            self._waits.remove(wait)

    def observe(self, now: float) -> float:
        """Return the seconds since `observe` first saw this rank in its `with` block of `limit`; 0 outside."""
        for wait in self._waits:
            wait.since = wait.since or now
        return max((now - wait.since for wait in self._waits), default=0.0)

    def find_vain_wait(self, now: float) -> CommunicationError | None:
        """Return an error if a block of `limit` waits for a rank that has left the loop `survivors`, else None."""
        for wait in self._waits:
            left = wait.state.left_by_other
            if left is not None:
                wait.vain_since = wait.vain_since or now
                if now - wait.vain_since >= BLOCKED_S:
                    return left.make_error(wait.state.rank)
        return None

    def add(self, processes: Mapping[int, ProcessId]) -> None:
        """Watch the processes of a communicator's ranks; keys of `processes` are ranks in MPI.COMM_WORLD."""
        self._processes.update(processes)

    @property
    def tick_s(self) -> float | None:
        """The seconds until `look` should be called again; None if no communicator needs `look`."""
        if not self._processes and not self._guarded:
            return None
        is_busy = self._awaits_answers or time.monotonic() < self._suspicious_until
        return BUSY_TICK_S if is_busy else TICK_S

    def suspect(self) -> None:
        """Ask MPI for dead ranks often for SUSPICION_S seconds, because a rank may have died."""
        self._suspicious_until = time.monotonic() + SUSPICION_S
        self._wake.set()

    def kill(self, rank: int) -> None:
        """Kill the process of a rank of MPI.COMM_WORLD that does not answer, or ask a rank on its host to kill it."""
        own, other = self._processes[MPI.COMM_WORLD.rank], self._processes[rank]
        if other[1:3] == own[1:3]:
            with suppress(OSError):
                os.kill(other[0], signal.SIGKILL)
            return
        for neighbour, process in self._processes.items():
            if process[1:3] == other[1:3]:
                self._notify(neighbour, KillRequest(rank))

    def look(self, watches: Iterable[DepartureWatch]) -> None:
        """Ask MPI for dead processes, and tell the calls of the communicators that contain them."""
        surviving = [watch for watch in watches if watch.losses is not None]
        if not surviving and not self._guarded:
            return
        failed, stop = MPI.COMM_WORLD.Get_failed(), get_progress().stop_wait
        if failed.size > self._acknowledged:
            # Without Ack_failed, the progress thread's probes of MPI.COMM_WORLD return without letting MPI advance.
            self._acknowledged = MPI.COMM_WORLD.Ack_failed(failed.size)
            self._dead = frozenset(find_members(failed, MPI.COMM_WORLD))
            self._patient_until = time.monotonic() + PATIENCE_S
            self._remove_recordings()
        self._awaits_answers = False
        for watch in surviving:
            if watch.losses is not None:
                self._awaits_answers |= watch.losses.advance(failed, watch.send, partial(stop, watch.state))
        for comm, watched in self._guarded:
            if failed.size and find_members(failed, watched):
                comm.Revoke()
        failed.Free()

    def _remove_recordings(self) -> None:
        """Remove the recorder files of dead ranks of this host, unless HPCCOLL_RECORDER keeps them."""
        path, own = get_recorder().path, self._processes.get(MPI.COMM_WORLD.rank)
        if path is None or own is None or os.environ.get(DIRECTORY):
            return
        for rank in self._dead:
            process = self._processes.get(rank)
            if process is not None and process[1:3] == own[1:3] and process[3]:
                with suppress(OSError):
                    os.unlink(f"{os.path.dirname(path)}/{process[3]}")  # noqa: PTH108, PTH120 - `pathlib` takes 5 ms

    def kill_hung(self, watchdog: Watchdog) -> bool:
        """End the processes of ranks that have not answered for HPCCOLL_TIMEOUT; return False if the job must end.

        The job must end if its communicators do not survive deaths, or if the recordings do not show which ranks hang.
        """
        if not self._processes:
            return False
        if time.monotonic() < self._patient_until:
            return True
        found, reason = watchdog.find_guilty(self._dead)
        guilty = [rank for rank in found if rank not in self._dead]
        if not self._processes.keys() >= set(guilty):
            return False
        if guilty:
            ranks = ", ".join(map(str, guilty))
            sys.stderr.write(
                f"Warning: rank {MPI.COMM_WORLD.rank} counts rank {ranks} as dead, and ends it, because a call has not "
                f"finished within {TIMEOUT}={read_timeout() or 0:g} s.\n{reason}"
            )
            self._patient_until = time.monotonic() + PATIENCE_S
        for rank in guilty:
            self.kill(rank)
        return bool(guilty)


@contextmanager
def lock_within(lock: threading.Lock, limit_s: float | None) -> Iterator[None]:
    """Hold a lock in the `with` block, unless another thread holds it for longer than `limit_s` seconds.

    The main thread holds the lock of `JobEndings` while it is in MPI's shrink, which may wait for a rank that hangs.
    The thread of `JobEndings` then continues without the lock, so that it can end the job.
    """
    is_held = lock.acquire(timeout=-1 if limit_s is None else limit_s)
    try:
        yield
    finally:
        if is_held:
            lock.release()
