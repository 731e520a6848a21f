"""Waits for other ranks, as the flight recorder notes them; `CallRecorder.current` is the wait while it lasts."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from hpccoll.recordings import layout
from hpccoll.runtime.recorder.interruption import INTERRUPTED

if TYPE_CHECKING:
    from types import TracebackType

    from hpccoll.runtime.recorder.call_recorder import CallRecorder


class WaitReason:
    """An asynchronous collective or message; a rank waits for it within a `with` block of this object.

    Once other calls have overwritten the operation's entry in the recorder, the operation records nothing more.

    Args:
        state: this rank's calls on the communicator of the operation.
        name: the name of the operation.
        place: the position of the operation's entry in the recorder file, in 64-bit words.
        number: the number of the collective call; 0 for a message.
        peers: the ranks to which a message is sent, or from which it is received; empty for any rank.
    """

    __slots__ = ("_place", "_serial", "name", "number", "peers", "state")

    def __init__(
        self, state: CallRecorder, name: str, place: int, number: int = 0, peers: tuple[int, ...] = ()
    ) -> None:
        self.state, self.name, self.number, self.peers = state, name, number, peers
        self._place, self._serial = place, state.recorder.words[place]

    def mark_started(self) -> None:
        """Record that the operation has begun to move data."""
        self._store_time(layout.STARTED_WORD)

    def end(self, *, failed: bool) -> None:
        """Record that the operation is done."""
        words = self.state.recorder.words
        if failed and words[self._place] == self._serial:
            words[self._place + layout.FAILED_WORD] = 1
        self._store_time(layout.ENDED_WORD)

    def _store_time(self, word: int) -> None:
        """Store the current time in a word of the entry."""
        words = self.state.recorder.words
        if words[self._place] == self._serial:
            words[self._place + word] = time.monotonic_ns()

    def __enter__(self) -> None:
        if self.state.current is not None:
            self.state.refuse_call()
        self._store_time(layout.WAITED_WORD)
        self.state.thread = threading.get_ident()
        self.state.current = self  # last, because `__exit__` is not called after an exception before

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.state.current = None if self.state.interruption is None else INTERRUPTED


class ReplaceableWait(WaitReason):
    """A wait that another call may replace as the current wait, or that begins during another call."""

    __slots__ = ()

    def __enter__(self) -> None:
        if self.state.current is None:
            super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.state.current is self:
            super().__exit__(kind, error, trace)


class BackgroundWait(ReplaceableWait):
    """A wait of a thread, during which the program may make other calls; the first of these calls replaces the wait."""

    __slots__ = ()

    def __init__(self, reason: WaitReason) -> None:
        super().__init__(reason.state, reason.name, reason._place, reason.number, reason.peers)  # noqa: SLF001
        self._serial = reason._serial  # noqa: SLF001 - the entry may have been overwritten since


class RecordedWait(WaitReason):
    """A wait for other ranks that belongs to no operation; its entry ends with the wait."""

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.state.current = None
        self.end(failed=kind is not None)
        self.state.take_exception(self.name, error)


class SurvivorWait(ReplaceableWait):
    """A wait for the living ranks, which goes on after a death; a death raises no error in it."""

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self.end(failed=kind is not None)
