"""Counts a rank's calls on one communicator, tells which call the rank is in, and records an entry per call.

All ranks make the same collective calls in the same order, so they give a call the same number. A rank in call
number c may have to wait for the ranks that have made fewer than c calls. Messages are numbered on each rank
separately.

Calls that C code runs record themselves (native/recorder_types.c). Python code records a blocking collective by the
context managers `CallRecorder.record` and `CallRecorder.call`.

An exception that is not hpccoll's own (from a signal handler, or KeyboardInterrupt) may leave a collective half done,
or a message without its match. The communicator is then unusable: its later calls raise an error, on this rank and,
after a notice, on all others.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NoReturn

from hpccoll.errors import CommunicationError, HpccollError, RankLostError, UsageError, WaitTimeoutError
from hpccoll.native import CallCounter
from hpccoll.recordings import layout
from hpccoll.recordings.layout import CallKind
from hpccoll.runtime.recorder.flight_recorder import FlightRecorder
from hpccoll.runtime.recorder.interruption import INTERRUPTED, Interruption, LoopExit, LostRanks
from hpccoll.runtime.recorder.waits import BackgroundWait, RecordedWait, SurvivorWait, WaitReason

LOSS_S: Final = 1.5  # after an error of MPI that may be due to a dead rank, until the death must be known
LOSS_POLL_S: Final = 0.001
LOSS_KNOWN_S: Final = 10.0  # after a death is known, until this rank's watch must have told the other ranks of it


class CallRecorder(CallCounter):
    """Counts and records the calls of this rank on a communicator.

    `count` is the number of collective calls that this rank has begun. `current` is the name of blocking call number
    `count`, or a `WaitReason`, or None outside of calls. `end` records the normal end of a blocking call, and `fail`
    its end by an exception. `communicator` is the id of the communicator, the same on all of its ranks. `messages` is
    the number of messages that this rank has begun to send or receive. `interruption` tells which call made the
    communicator unusable. When a communicator becomes unusable, `on_interruption` is called once, with a function that
    returns the error for the name of a call. `announce` is called after an interruption of this rank. `settle` is
    called before each exception of an unusable communicator. `kept` has objects that keep the memory of interrupted
    operations alive, to which MPI may still write. `loop_exit` is the notice that this rank has left the loop
    `hpccoll.survivors`, or else that another rank has; it is set also after a death. `is_closing` is set when `close`
    has ended all operations of this rank.

    If `survives` is set, calls raise RankLostError when a rank has died (hpccoll/failures/rank_losses.py). `is_lost`
    is set as soon as this rank knows of a death, and `interruption` when all survivors have set `is_lost`. A call that
    ends while `is_lost` is set raises an error, even if it has a result. Therefore no rank returns a result after
    another rank has raised RankLostError and may have written to the arrays of the call.

    Args:
        recorder: keeps the entries; None keeps them in private memory of this `CallRecorder`.
    """

    __slots__ = (
        "announce", "communicator", "interruption", "is_closing", "kept", "loop_exit", "on_interruption", "rank",
        "recorder", "settle", "size", "survives",
    )  # fmt: skip

    def __init__(self, recorder: FlightRecorder | None = None) -> None:
        self.communicator = 0
        self.rank, self.size = 0, 1
        self.survives = self.is_closing = False
        self.interruption: Interruption | LostRanks | None = None
        self.loop_exit: LoopExit | None = None
        self.on_interruption: Callable[[Callable[[str], CommunicationError]], object] = bool
        self.announce: Callable[[], object] = bool
        self.settle: Callable[[], object] = bool
        self.kept: list[object] = []
        self.recorder = recorder if recorder is not None else FlightRecorder(None, 0, 1)

    def open(self, communicator: int, rank: int, size: int, members: tuple[int, ...] | None, name: str = "") -> None:
        """Set the id of the communicator, and list the communicator in the recorder's tables."""
        self.communicator, self.rank, self.size = communicator, rank, size
        self.recorder.add_communicator(communicator, rank, size, members, name)

    def close(self) -> None:
        """Record that the communicator is closed."""
        self.recorder.close_communicator(self.communicator)

    def describe(self, operation: str, **fields: Any) -> bytes:
        """Return the bytes that describe a call in its entry; `FlightRecorder.describe` lists the fields."""
        return self.recorder.describe(self.communicator, operation, **fields)

    def begin(self, name: str, description: bytes) -> int:
        """Count a blocking collective call and record its beginning; return the place of its entry, for `end`."""
        if self.current is not None:
            self.refuse_call()
        self.thread, self.current = threading.get_ident(), name
        self._count()
        try:  # a signal handler may raise
            return self._write_entry(self.count, description)
        except BaseException as error:
            self.take_exception(name, error)
            raise

    def end(self, place: int) -> None:
        """Record that the blocking call whose entry is at `place` has ended."""
        if self.is_lost:
            self.raise_loss()
        self.current = None
        self.recorder.words[place + layout.ENDED_WORD] = time.monotonic_ns()

    def fail(self, place: int) -> None:
        """Record that an exception ended the blocking call whose entry is at `place`."""
        words = self.recorder.words
        words[place + layout.FAILED_WORD] = 1
        self.record_round(0, 0)
        call, self.current = self.current_name, None
        words[place + layout.ENDED_WORD] = time.monotonic_ns()
        self.take_exception(call, sys.exception())

    def record_round(self, completed: int, rounds: int) -> None:
        """Record the numbers of complete and of all rounds of a blocking plan of messages; both are 0 after its end."""
        self.recorder.words[layout.ROUND_AT // 8] = completed + (rounds << 32)

    @contextmanager
    def record(self, begin: Callable[[], int]) -> Iterator[None]:
        """Record a blocking collective call, which lasts as long as the `with` block.

        `begin` calls `CallRecorder.begin`, and returns its result.
        """
        place = begin()
        try:
            yield
        except BaseException:
            self.fail(place)
            raise
        self.end(place)

    def call(self, name: str) -> Any:
        """Return a context manager that records a blocking collective call without arguments, such as `close`."""
        return self.record(partial(self.begin, name, self.describe(name)))

    def start(self, name: str, description: bytes) -> WaitReason:
        """Count an asynchronous collective call and record its beginning; return its `WaitReason`."""
        if self.current is not None:
            self.refuse_call()
        self._count()
        return WaitReason(self, name, self._write_entry(self.count, description), self.count)

    def start_message(self, name: str, description: bytes, peers: tuple[int, ...]) -> WaitReason:
        """Record the beginning of a send or receive, and return its `WaitReason`.

        `peers` is empty for a receive from any rank.
        """
        self.raise_interruption()
        self.messages += 1
        return WaitReason(self, name, self._write_entry(self.messages, description), 0, peers)

    def wait(self, name: str, number: int = 0, peers: tuple[int, ...] = ()) -> RecordedWait:
        """Return a context manager that records a wait for other ranks, outside of calls."""
        place = self._write_entry(number, self.describe(name, kind=CallKind.WAIT))
        return RecordedWait(self, name, place, number, peers)

    def wait_for_survivors(self, name: str) -> SurvivorWait:
        """Return a context manager that records a wait for the living ranks, also after a death."""
        return SurvivorWait(self, name, self._write_entry(0, self.describe(name, kind=CallKind.WAIT)))

    def _count(self) -> None:
        """Count a collective call; kill this process if the call has the number `kill_at`, which a test may set."""
        self.count += 1
        if self.count == self.kill_at:
            signal.raise_signal(signal.SIGKILL)

    def _write_entry(self, number: int, description: bytes) -> int:
        """Record the beginning of call `number`, and return the place of its entry."""
        serial, at, place = self.recorder.take_entry()
        layout.ENTRY.pack_into(self.recorder.memory, at, serial, time.monotonic_ns(), number, description, serial)
        return place

    @property
    def current_name(self) -> str:
        """The name of the blocking call or wait that this rank is in; the string `None` outside of both."""
        return str(getattr(self.current, "name", self.current))

    @property
    def is_in_call(self) -> bool:
        """Whether this rank is in a blocking call or a wait."""
        return self.current is not None and self.current is not INTERRUPTED

    @property
    def is_unusable(self) -> bool:
        """Whether an interruption has made the communicator unusable."""
        return self.interruption is not None

    def refuse_call(self) -> None:
        """Raise the error of a call that begins although `current` is not None; return if the call may begin.

        Raises:
            UsageError: another thread is in a call on this communicator.
            CommunicationError: the communicator is unusable.
        """
        if isinstance(self.current, BackgroundWait):
            return
        if self.interruption is None:
            if self.thread != threading.get_ident() and self.thread in sys._current_frames():  # noqa: SLF001 - no other list
                raise UsageError(
                    f"rank {self.rank}: another thread is in {self.current_name} on this communicator; use one thread "
                    "at a time, or make a communicator for each thread"
                )
            # An exception interrupted the earlier call after it was recorded, before the interruption could be noted.
            self.interrupt(self.current_name, "an exception")
        self.raise_interruption()

    def raise_interruption(self) -> None:
        """Raise the error of an unusable communicator."""
        if self.interruption is not None:
            self.settle()
            raise self.interruption.make_error(self.rank, self.current_name if self.is_in_call else "")

    @property
    def left_by_other(self) -> LoopExit | None:
        """The notice that another rank has left the loop `hpccoll.survivors`; None without one or if this rank left."""
        return self.loop_exit if self.loop_exit is not None and self.loop_exit.rank != self.rank else None

    def raise_loss(self) -> NoReturn:
        """Wait until the survivors know of a death that this rank knows of; then raise RankLostError.

        Raises CommunicationError if an exception made the communicator unusable before the death, or if the other ranks
        were not told of the death in time.
        """
        self.take_exception(self.current_name, None)
        self.raise_interruption()
        raise CommunicationError(
            f"rank {self.rank} in {self.current_name}: a rank has ended, and the others were not told within "
            f"{LOSS_KNOWN_S:g} s; end the job and start it again"
        )

    def replace_error(self, error: BaseException | None, call: str) -> RankLostError | None:
        """Return the RankLostError that the call `call` raises if a rank has died, else None.

        `error` is the exception of the call, which the RankLostError replaces if the death explains it. `error` is None
        if the call has a result; the RankLostError then replaces the result if the death is known. Waits, for a limited
        time, until `interruption` is set.
        """
        is_explained = isinstance(error, CommunicationError) and not isinstance(error, RankLostError | WaitTimeoutError)
        is_explained |= type(error).__module__.startswith("mpi4py")
        is_explained |= isinstance(error, ProcessLookupError)  # memory of a process that has ended
        is_explained |= self.is_lost and (error is None or isinstance(error, Exception))
        if not is_explained:
            return None
        begin = time.monotonic()
        self.announce()
        while self.interruption is None:
            if time.monotonic() - begin > (LOSS_KNOWN_S if self.is_lost else LOSS_S):
                return None
            time.sleep(LOSS_POLL_S)
        self.settle()
        return self.interruption.make_error(self.rank, call) if isinstance(self.interruption, LostRanks) else None

    def take_exception(self, call: str, error: BaseException | None, *, is_message: bool = False) -> None:
        """Make the communicator unusable if an exception may have left a call or a message half done.

        Errors of hpccoll and of MPI leave the communicator usable: all ranks raise them, or they come before any data
        is moved. Raises RankLostError if the death of a rank explains the error, or came before the result of a call
        that raised no error.
        """
        if self.survives and (error is not None or self.is_lost):
            lost = self.replace_error(error, call)
            if lost is not None:
                self.current = INTERRUPTED
                raise lost from None
        is_known = isinstance(error, HpccollError | GeneratorExit) or type(error).__module__.startswith("mpi4py")
        if error is not None and not is_known:
            self.interrupt(call, type(error).__name__, is_message=is_message)
        elif self.interruption is not None:
            self.current = INTERRUPTED
        if error is not None and self.interruption is not None:
            self.kept.append(error)  # its frames refer to the arrays and requests of the call

    def interrupt(self, call: str, cause: str, *, is_message: bool = False) -> None:
        """Make a communicator of several ranks unusable, because `cause` interrupted the latest call, named `call`."""
        self.current = None
        if self.size > 1:
            self.receive_interruption(Interruption(self.rank, 0 if is_message else self.count, call, cause))
            self.current = INTERRUPTED
            self.announce()
            self.settle()

    def receive_interruption(self, interruption: Interruption | LostRanks) -> None:
        """Make the communicator unusable, because a call of this or another rank was interrupted, or a rank has died.

        If this rank is in no call, `current` becomes INTERRUPTED, so that its next call raises the error.
        """
        if isinstance(interruption, LoopExit):
            if self.loop_exit is None or interruption.rank == self.rank:
                self.loop_exit = interruption
            if self.is_lost:  # calls raise RankLostError
                return
        if self.interruption is None:
            self.interruption = interruption
            self.on_interruption(partial(interruption.make_error, self.rank))
        if self.current is None:
            self.current = INTERRUPTED
