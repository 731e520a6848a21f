"""Ends the whole job when one rank fails or leaves other ranks waiting.

Without this module, an uncaught exception on one rank, or a program that ends early on one rank, leaves the other ranks
waiting forever, because MPI_Finalize waits for them too. While a communicator is open:

- An uncaught exception of the main thread prints its traceback with the rank, and ends the job (`sys.excepthook`).
- A rank whose program ends stays until all ranks of its open communicators have ended their programs, and ends the job
  if another rank waits for it in vain (departures.py). While the rank stays, its operations in flight advance.
- A thread checks twice per second whether this rank waits for a rank whose program has ended. For this check, a
  collective call only increments a counter (recorder/call_recorder.py).
- The thread ends the job if ranks wait for each other in different calls (call_comparison.py).
- After an interruption the thread tells the other ranks that a communicator is unusable. The thread reads notices of
  interruptions five times per second.
- With HPCCOLL_TIMEOUT, the thread ends the job if a call of this rank does not finish in time (watchdog.py).
- The thread writes signs of life, and ends of other processes of this host, to the recorder file
  (hpccoll/recordings/process_notes.py).

A process that ends without Python's exit handlers (`os._exit`, a signal) is left to the launcher.
"""

from __future__ import annotations

import atexit
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import cache, partial, wraps
from traceback import format_exc
from types import TracebackType
from typing import Any, Final

from mpi4py import MPI

from hpccoll.errors import CommunicationError
from hpccoll.failures.departures import Complaint, DepartureWatch, format_complaints, has_messages_for
from hpccoll.failures.process_watch import ProcessWatch, find_error_location, find_location
from hpccoll.failures.rank_losses import KillRequest, LossWatch
from hpccoll.failures.survival import Survival, lock_within
from hpccoll.failures.time_limit import read_timeout
from hpccoll.failures.watchdog import Watchdog
from hpccoll.native import exit_after
from hpccoll.recordings.process_notes import ObservedState
from hpccoll.runtime import job
from hpccoll.runtime.backoff import Backoff
from hpccoll.runtime.progress import get_progress
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.recorder.flight_recorder import FlightRecorder, get_recorder
from hpccoll.runtime.recorder.interruption import Interruption
from hpccoll.runtime.running_clock import RunningClock

COMMUNICATION_FAILED: Final = 4  # exit status; see errors.CommunicationError
INTERRUPTED: Final = 130
TICK_S: Final = 0.5  # between two checks by the thread
NOTICE_TICK_S: Final = 0.2  # between two looks for notices of interruptions
ANNOUNCE_AFTER_S: Final = 0.3  # ranks that end within this time of each other send no notices
COLLECT_S: Final = 0.7  # after the first complaint, until the report, which lists all complaints of this time
LONG_WAIT_S: Final = 1.0  # a rank that waits longer for other ranks to end pauses between two polls
LONG_WAIT_PAUSE_S: Final = 0.005
REPORTED_S: Final = 2.0  # time that a failed rank gives another rank to print the report and end the job


class JobEndings:
    """Watches open communicators; ends the job if a rank fails. The watching thread holds `lock` in calls of MPI."""

    def __init__(self) -> None:
        self._watches: dict[int, DepartureWatch] = {}
        self._main_thread = threading.main_thread().ident or 0
        self._process, self._has_left = os.getpid(), False
        self.lock, self._stop, self._wake = threading.Lock(), threading.Event(), threading.Event()
        self._timeout_s, self._sends_notices = read_timeout(), MPI.Query_thread() >= MPI.THREAD_MULTIPLE
        self._watchdog: Watchdog | None = None
        self._processes: ProcessWatch | None = None
        self._thread: threading.Thread | None = None
        self.survival = Survival(self._wake, self._notify)
        self._exit: tuple[str, int] | None = None  # the latest call of sys.exit, and the number of calls before it
        world = MPI.COMM_WORLD
        self._where = f"rank {world.rank} of {world.size} on {MPI.Get_processor_name()}"
        if world.size > 1:
            if not job.is_interactive():
                self._chain_hooks()
            # MPI_Finalize first frees COMM_SELF's attributes, also if the program calls MPI.Finalize itself.
            self._finalize_key = MPI.Comm.Create_keyval(delete_fn=lambda *_: self.leave())
            MPI.COMM_SELF.Set_attr(self._finalize_key, self)
            atexit.register(self._leave_at_exit)

    def open(
        self,
        comm: MPI.Intracomm,
        state: CallRecorder,
        processes: Mapping[int, job.ProcessId],
        *,
        abort_on_error: bool,
        losses: LossWatch | None = None,
    ) -> Callable[[], None]:
        """Watch a communicator until the returned function is called; a failure of one of its ranks ends the job.

        The returned function must be called before the communicator is freed. The first call of this method starts the
        watching thread. While a communicator is watched, a rank whose program has ended waits for the ends of the other
        ranks. A communicator of one rank is not watched, and the returned function does nothing then.

        Args:
            comm: the MPI communicator of the collectives; with `losses`, one that is never revoked.
            state: the recorder of this rank's calls.
            processes: the processes of the communicator's ranks, by rank in MPI.COMM_WORLD.
            abort_on_error: whether this rank may end the job.
            losses: records deaths, after which calls raise RankLostError; None if a death ends the job.
        """
        if comm.size == 1:
            return lambda: None
        watchdog = self._start_thread(state.recorder, processes)
        has_messages, receive = partial(has_messages_for, state), partial(self._receive, watchdog)
        if losses is not None:
            self.survival.add(processes)
        watch = DepartureWatch(comm, state, has_messages, abort_on_error, receive, losses)
        with self.lock:
            self._watches[id(watch)] = watch
        state.announce = self._wake.set if losses is None else self.survival.suspect

        def close() -> None:
            """Stop watching; to be called before the communicator is freed."""
            with self.lock:
                del self._watches[id(watch)]

        return close

    def _start_thread(self, recorder: FlightRecorder, processes: Mapping[int, job.ProcessId]) -> Watchdog:
        """Start the thread unless it runs, watch the processes of a communicator's ranks, and return the `Watchdog`."""
        if self._watchdog is None or self._processes is None:
            ask = self._notify if self._sends_notices else None
            self._watchdog = Watchdog(recorder, self._where, ask, self._poll)
            self._processes = ProcessWatch(recorder, partial(self._note_death, self._watchdog))
            check = partial(self._check_periodically, self._watchdog, self._processes)
            self._thread = threading.Thread(target=check, name="hpccoll-watchdog", daemon=True)
            self._thread.start()
        self._processes.add(processes)
        return self._watchdog

    def guard(self, comm: MPI.Intracomm, watched: MPI.Intracomm) -> AbstractContextManager[None]:
        """Revoke `comm`, which no communicator of hpccoll uses yet, if a rank of `watched` dies in the `with` block."""
        if watched.size > 1:
            self._start_thread(get_recorder(), {})
        return self.survival.guard(comm, watched, self.lock)

    @property
    def _is_active(self) -> bool:
        """Whether this process is no fork, and has an open communicator."""
        return os.getpid() == self._process and bool(self._watches) and not MPI.Is_finalized()

    def _check_periodically(self, watchdog: Watchdog, processes: ProcessWatch) -> None:
        """Write signs of life of this rank, and check its waits; runs in a thread until `leave`."""
        clock = RunningClock(time.monotonic())
        processes.hold()
        next_check = time.monotonic() + TICK_S
        try:
            while True:
                self._wake.wait(min(self.survival.tick_s or NOTICE_TICK_S, max(next_check - time.monotonic(), 0)))
                self._wake.clear()
                if self._stop.is_set():
                    return
                now = clock.read(time.monotonic())
                with lock_within(self.lock, self._timeout_s):
                    if MPI.Is_finalized():
                        return
                    self._look_for_interruptions(now)
                    self.survival.look(self._watches.values())
                    if time.monotonic() < next_check:
                        continue
                    next_check = time.monotonic() + TICK_S
                    watchdog.recorder.write_sign_of_life(time.monotonic_ns(), find_location(self._main_thread))
                    processes.observe_quiet_ranks()
                    self._check(now)
        finally:
            processes.release()

    def _note_death(self, watchdog: Watchdog, rank: int) -> None:
        """Record that the process of a rank of this host has ended, and ask MPI soon for dead ranks."""
        watchdog.recorder.observe(time.monotonic_ns(), rank, ObservedState.DEAD)
        self.survival.suspect()

    def _check(self, now: float) -> None:
        """Receive notices, complain to departed ranks, and report a call that does not finish."""
        self._poll()
        observed = [watch.observe(now) for watch in self._watches.values() if watch.may_complain]
        if self._sends_notices:
            for watch in self._watches.values():
                watch.examine(now)
                self._report_cause(watch.describe_difference(now))
        hangs = max(self.survival.observe(now), *observed, 0.0) > (self._timeout_s or float("inf"))
        if self._watchdog is not None and hangs and not self.survival.kill_hung(self._watchdog):
            self._report_hang(self._watchdog)

    def _look_for_interruptions(self, now: float) -> None:
        """Tell other ranks about interruptions of this rank, and end this rank's waits for interrupted ranks."""
        for watch in self._watches.values() if self._sends_notices else ():
            watch.poll()
            if watch.examine_interruption(now, get_progress().stop_wait) and watch.may_complain:
                self._report_interruption(watch.make_interruption_error())
        self._report_interruption(self.survival.find_vain_wait(now))

    def _report_interruption(self, error: CommunicationError | None) -> None:
        """End the job with the given error, if any: this rank waits for a rank that makes no more calls."""
        if error is not None:
            sys.stderr.write(f"Error: {self._where} ends the job: {error}\n")
            self._abort(COMMUNICATION_FAILED)

    def _report_hang(self, watchdog: Watchdog, reason: str = "") -> None:
        """Print the report of `Watchdog.report` and end the job, unless another rank reports."""
        try:
            text = watchdog.report(reason)
        except Exception:  # noqa: BLE001 - the job must end, with or without a report
            text = f"Error: {self._where}: a call has not finished in time; the report failed:\n{format_exc()}"
        if text is not None:
            sys.stderr.write(text)
            self._abort(COMMUNICATION_FAILED)

    def _report_cause(self, cause: str) -> None:
        """End the job with a report for the given cause; do nothing if the string is empty."""
        if cause and self._watchdog is not None:
            self._report_hang(self._watchdog, cause)

    def explain_wait(self, state: CallRecorder, awaited: tuple[int, tuple[int, ...]]) -> str:
        """Return the watchdog's text about the ranks that this rank waits for, with their last operations."""
        if self._watchdog is None:
            return "no other rank is awaited, because the communicator has a single rank"
        with self.lock:
            return self._watchdog.explain_wait(state, awaited)

    def _receive(self, watchdog: Watchdog, notice: object) -> None:
        """Handle a notice, a message of another rank's thread, that is not about the end of a program."""
        if isinstance(notice, KillRequest):
            self.survival.kill(notice.rank)
        else:
            watchdog.receive(notice)

    def _poll(self) -> None:
        """Receive the notices that have arrived, if the thread may call MPI."""
        for watch in self._watches.values() if self._sends_notices else ():
            watch.poll()

    def _notify(self, rank: int, notice: object) -> None:
        """Send a notice to a rank of MPI.COMM_WORLD on the largest communicator that contains it."""
        for watch in sorted(self._watches.values(), key=lambda each: each.comm.size, reverse=True):
            (dest,) = MPI.COMM_WORLD.group.Translate_ranks([rank], watch.comm.group)
            if dest != MPI.UNDEFINED:
                watch.send(dest, notice)
                return

    def _abort(self, status: int) -> None:
        """End the job with an exit status, without MPI if this thread may not call it or MPI does not return."""
        with suppress(RuntimeError):  # no thread can be started any more
            exit_after(job.ABORT_S, status)
        with suppress(Exception):  # whatever the recorder files contain, the job ends
            if self._watchdog is not None:
                self._watchdog.end_job()
        if not self._sends_notices and threading.get_ident() != self._main_thread:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        job.abort(status)

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
            """Record the exit status and the number of calls, then exit."""
            self._exit = f"sys.exit({'' if status is None else repr(status)[:80]})", self._count_calls()
            leave(status)

        sys.excepthook = handle
        sys.exit = note_and_exit  # type: ignore[assignment]

    def _fail(self, show: Callable[..., object], *error: Any) -> None:
        """Print an uncaught exception with the rank by `show`, and end the job."""
        job.wait_for_lower_ranks(MPI.COMM_WORLD.rank)
        if isinstance(sys.stderr, io.StringIO) and sys.__stderr__ is not None:  # torch's hook prints such text later
            sys.stderr = sys.__stderr__
        location = find_error_location(error[2])
        where = f" at {location}" if location else ""
        self._write_ending(f"by an uncaught {type(error[1]).__name__}{where}")
        if isinstance(error[1], KeyboardInterrupt):
            sys.stderr.write(f"{self._where} was interrupted (KeyboardInterrupt){where}{self._explain_call()}\n")
        else:
            sys.stderr.write(f"{self._where} ends the job because of an uncaught exception:\n")
            show(*error)
        is_communication = isinstance(error[1], CommunicationError | MPI.Exception)
        if is_communication and self._watchdog is not None:
            with self.lock:
                mismatch = self._watchdog.explain_mismatch()
            if mismatch is None:
                time.sleep(REPORTED_S)
            sys.stderr.write(mismatch or "")
        failed = COMMUNICATION_FAILED if is_communication else 1
        self._abort(INTERRUPTED if isinstance(error[1], KeyboardInterrupt) else failed)

    def _explain_call(self) -> str:
        """Return a text with the call that an exception has interrupted and the ranks that it waited for, or ""."""
        state = next((watch.state for watch in self._watches.values() if watch.state.interruption is not None), None)
        if state is None or not isinstance(state.interruption, Interruption):
            return ""
        waits = self.explain_wait(state, (state.count, ()))
        return f", in {state.interruption.call}: {waits}"

    def _write_ending(self, how: str) -> None:
        """Record how the program of this rank ended."""
        if self._watchdog is not None:
            self._watchdog.recorder.write_ending(how)

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
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        if self._exit is not None and self._exit[0] not in _SUCCESS and "mpi4py.run" in sys.modules:
            sys.stderr.write(f"{self._where} ended its program by {self._exit[0]}; mpi4py.run ends the job\n")
            sys.stderr.flush()
            return
        self._write_ending("by itself" if self._exit is None else f"by {self._exit[0]}")
        with self.lock:
            watches = list(self._watches.values())
        for watch in watches:
            watch.depart()
        self._wait_for_departures(watches)
        for watch in watches:
            if get_progress().has_thread_in_mpi and watch.may_complain:  # MPI cannot be finalized
                self._report_interruption(watch.make_interruption_error())
        if self._watchdog is not None and self._timeout_s is not None and any(each.may_complain for each in watches):
            mismatch = self._watchdog.find_unnoticed_mismatch()
            if mismatch:
                sys.stderr.write(mismatch)
                self._abort(COMMUNICATION_FAILED)

    def _leave_at_exit(self) -> None:
        """Call `leave`; then remove COMM_SELF's attribute, whose callback cannot run after the end of Python."""
        self.leave()
        if os.getpid() == self._process and not MPI.Is_finalized():
            MPI.COMM_SELF.Delete_attr(self._finalize_key)

    def _wait_for_departures(self, watches: list[DepartureWatch]) -> None:
        """Advance operations until all ranks have ended; end the job if a rank waits for this rank, which has ended."""
        began, progress, backoff = time.monotonic(), get_progress(), Backoff(spins=False)
        announced, complained = False, 0.0
        while True:
            for watch in watches:
                watch.poll()
                watch.examine_interruption(time.monotonic(), progress.stop_wait)
            self.survival.look(watches)
            if all(watch.has_sent and (watch.have_all_departed or watch.state.interruption) for watch in watches):
                return
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
            for watch in watches:
                self._report_cause(watch.describe_difference(now))
            if self._watchdog is not None:
                self._report_cause(self._watchdog.describe_stopped())
            if now - began > LONG_WAIT_S:
                time.sleep(LONG_WAIT_PAUSE_S)
            else:
                backoff.pause()

    def _report(self, complaints: list[tuple[DepartureWatch, Complaint]]) -> None:
        """Print which ranks wait for this rank in vain, and end the job."""
        watch = complaints[0][0]
        ended = "ended its program"
        if self._exit is not None and self._exit[1] == self._count_calls():
            ended += f" by {self._exit[0]}"
        calls = "1 collective call" if watch.calls == 1 else f"{watch.calls} collective calls"
        waits = format_complaints(complaints)
        sys.stderr.write(
            f"Error: {self._where} {ended} after {calls}, but other ranks still wait for it: {waits}. "
            "hpccoll ends the job; make the same calls on every rank, or let ranks wait forever by "
            "Communicator(..., abort_on_error=False)\n"
        )
        self._abort(COMMUNICATION_FAILED)


@cache
def get_endings() -> JobEndings:
    """Return the one `JobEndings` of this process; MPI must be initialized."""
    return JobEndings()


_SUCCESS = ("sys.exit()", "sys.exit(0)", "sys.exit(False)")
