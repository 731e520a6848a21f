"""Ends the whole job when one rank fails or leaves other ranks waiting.

Without this module, an uncaught exception on one rank, or a program that ends early on one rank, leaves the other ranks
waiting forever, because MPI_Finalize waits for them too. While a communicator is open:

- An uncaught exception of the main thread prints its traceback with the rank, and ends the job (`sys.excepthook`).
- A rank whose program ends stays until all ranks of its open communicators have ended their programs, and ends the job
  if another rank waits for it in vain (departures.py). While the rank stays, its operations in flight advance.
- A thread checks twice per second whether this rank waits for a rank whose program has ended. Collective calls only
  count themselves for this check (recorder/call_recorder.py).

A process that ends without Python's exit handlers (`os._exit`, a signal) is left to the launcher.
"""

from __future__ import annotations

import atexit
import io
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache, wraps
from types import TracebackType
from typing import Any, Final

from mpi4py import MPI

from hpccoll.runtime import job
from hpccoll.runtime.backoff import Backoff
from hpccoll.runtime.departures import Complaint, DepartureWatch
from hpccoll.runtime.progress import get_progress
from hpccoll.runtime.recorder.call_recorder import CallRecorder

COMMUNICATION_FAILED: Final = 4  # exit status; see errors.CommunicationError
INTERRUPTED: Final = 130
TICK_S: Final = 0.5  # between two checks by the thread
ANNOUNCE_AFTER_S: Final = 0.3  # ranks that end within this time of each other send no notices
COLLECT_S: Final = 0.7  # after the first complaint, until the report, which lists all complaints of this time
POLITE_AFTER_S: Final = 1.0
POLITE_PAUSE_S: Final = 0.005
MOST_LISTED: Final = 8


class JobEndings:
    """The open communicators of this process, and what happens to them when the process ends."""

    def __init__(self) -> None:
        self._watches: dict[int, DepartureWatch] = {}
        self._process, self._has_left = os.getpid(), False
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._exit: tuple[str, int] | None = None  # the latest call of sys.exit, and the number of calls before it
        world = MPI.COMM_WORLD
        self._where = f"rank {world.rank} of {world.size} on {MPI.Get_processor_name()}"
        if world.size > 1:
            if not _is_interactive():
                self._chain_hooks()
            # MPI_Finalize first frees COMM_SELF's attributes, also if the program calls MPI.Finalize itself.
            self._finalize_key = MPI.Comm.Create_keyval(delete_fn=lambda *_: self.leave())
            MPI.COMM_SELF.Set_attr(self._finalize_key, self)
            atexit.register(self._leave_at_exit)

    def open(self, comm: MPI.Intracomm, state: CallRecorder, *, abort_on_error: bool) -> Callable[[], None]:
        """Watch a communicator of several ranks until the returned function is called.

        Args:
            comm: the MPI communicator of the collectives.
            state: this rank's calls on the communicator.
            abort_on_error: whether this rank may end the job.
        """
        if comm.size == 1:
            return _do_nothing
        watch = DepartureWatch(comm, state, lambda rank: _has_messages_for(state, rank), abort_on_error)
        with self._lock:
            self._watches[id(watch)] = watch
        if self._thread is None and MPI.Query_thread() >= MPI.THREAD_MULTIPLE:
            self._thread = threading.Thread(target=self._check_periodically, name="hpccoll-departures", daemon=True)
            self._thread.start()

        def close() -> None:
            """Stop watching; to be called before the communicator is freed."""
            with self._lock:
                del self._watches[id(watch)]

        return close

    @property
    def _is_active(self) -> bool:
        """Whether this process is not a fork, and has an open communicator."""
        return os.getpid() == self._process and bool(self._watches) and not MPI.Is_finalized()

    def _check_periodically(self) -> None:
        """Receive notices, and complain to departed ranks for which this rank waits; runs in a thread until `leave`."""
        while not self._stop.wait(TICK_S):
            with self._lock:
                if MPI.Is_finalized():
                    return
                now = time.monotonic()
                for watch in self._watches.values():
                    watch.poll()
                    watch.examine(now)

    def _chain_hooks(self) -> None:
        """Wrap `sys.excepthook` to end the job after an uncaught exception, and `sys.exit` to note its argument."""
        show, leave = sys.excepthook, sys.exit

        def handle(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            """Print an uncaught exception with the rank, then end the job."""
            if self._is_active and any(watch.may_complain for watch in self._watches.values()):
                self._fail(show, kind, error, trace)
            else:
                show(kind, error, trace)

        @wraps(leave)
        def note_and_exit(status: Any = None, /) -> None:
            self._exit = f"sys.exit({'' if status is None else repr(status)[:80]})", self._count_calls()
            leave(status)

        sys.excepthook = handle
        sys.exit = note_and_exit  # type: ignore[assignment]

    def _fail(self, show: Callable[..., object], *error: Any) -> None:
        """Print an uncaught exception with the rank by `show`, and end the job."""
        job.wait_for_lower_ranks(MPI.COMM_WORLD.rank)
        if isinstance(sys.stderr, io.StringIO) and sys.__stderr__ is not None:  # torch's hook prints such text later
            sys.stderr = sys.__stderr__
        sys.stderr.write(f"{self._where} ends the job because of an uncaught exception:\n")
        show(*error)
        job.abort(INTERRUPTED if isinstance(error[1], KeyboardInterrupt) else 1)

    def _count_calls(self) -> int:
        """Return the number of collective calls of this rank on all open communicators."""
        return sum(watch.state.count for watch in self._watches.values())

    def leave(self) -> None:
        """Wait until the programs of all ranks of open communicators have ended; end the job if a rank waits in vain.

        Runs at the end of the program, or when the program calls MPI.Finalize.
        """
        if self._has_left or os.getpid() != self._process or MPI.Is_finalized():
            return
        self._has_left = True
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._exit is not None and self._exit[0] not in _SUCCESS and "mpi4py.run" in sys.modules:
            sys.stderr.write(f"{self._where} ended its program by {self._exit[0]}; mpi4py.run ends the job\n")
            sys.stderr.flush()
            return
        with self._lock:
            watches = list(self._watches.values())
        for watch in watches:
            watch.depart()
        self._wait_for_departures(watches)

    def _leave_at_exit(self) -> None:
        """Call `leave`; then remove COMM_SELF's attribute, whose callback cannot run after the end of Python."""
        self.leave()
        if os.getpid() == self._process and not MPI.Is_finalized():
            MPI.COMM_SELF.Delete_attr(self._finalize_key)

    def _wait_for_departures(self, watches: list[DepartureWatch]) -> None:
        """Advance operations until all ranks have ended; end the job if a rank waits for this rank, which has ended."""
        began, progress, backoff = time.monotonic(), get_progress(), Backoff(spins=False)
        announced, complained = False, 0.0
        while not all(watch.have_all_departed and watch.has_sent for watch in watches):
            for watch in watches:
                watch.poll()
            progress.advance()
            progress.poll_mpi()
            now = time.monotonic()
            if not announced and now - began > ANNOUNCE_AFTER_S:
                announced = True
                for watch in watches:
                    watch.announce()
            complaints = [(watch, each) for watch in watches for each in watch.list_justified_complaints()]
            if not complaints:
                complained = 0.0
            elif not complained:
                complained = now
            elif now - complained > COLLECT_S:
                self._report(complaints)
            if now - began > POLITE_AFTER_S:
                time.sleep(POLITE_PAUSE_S)
            else:
                backoff.pause()

    def _report(self, complaints: list[tuple[DepartureWatch, Complaint]]) -> None:
        """Print which ranks wait for this rank in vain, and end the job."""
        watch = complaints[0][0]
        ended = "ended its program"
        if self._exit is not None and self._exit[1] == self._count_calls():
            ended += f" by {self._exit[0]}"
        calls = "1 collective call" if watch.calls == 1 else f"{watch.calls} collective calls"
        waits = [f"rank {_world_rank(each, complaint.rank)} {complaint}" for each, complaint in complaints]
        if len(waits) > MOST_LISTED:
            waits[MOST_LISTED:] = [f"and {len(waits) - MOST_LISTED} more"]
        sys.stderr.write(
            f"Error: {self._where} {ended} after {calls}, but other ranks still wait for it: {', '.join(waits)}. "
            "hpccoll ends the job; make the same calls on every rank, or let ranks wait forever by "
            "Communicator(..., abort_on_error=False)\n"
        )
        job.abort(COMMUNICATION_FAILED)


@cache
def get_endings() -> JobEndings:
    """Return the one `JobEndings` of this process; MPI must be initialized."""
    return JobEndings()


_SUCCESS = ("sys.exit()", "sys.exit(0)", "sys.exit(False)")


def _is_interactive() -> bool:
    """Whether Python or IPython shows exceptions to a user who goes on typing."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _do_nothing() -> None:
    """Do nothing."""


def _has_messages_for(state: CallRecorder, rank: int) -> bool:
    """Whether this rank has an unfinished message to or from `rank` on the communicator of `state`."""
    awaited = [transfer.awaited for transfer in get_progress().transfers if not transfer.done]
    return any(wait is not None and wait.state is state and rank in wait.peers for wait in awaited)


def _world_rank(watch: DepartureWatch, rank: int) -> int:
    """Return the rank in MPI.COMM_WORLD of a rank of a communicator."""
    return int(watch.comm.group.Translate_ranks([rank], MPI.COMM_WORLD.group)[0])
