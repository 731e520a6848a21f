"""Going on after the death of ranks: `shrink` and `agree`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from hpccoll.communicator.base import CommunicatorBase
from hpccoll.errors import CommunicationError, UsageError
from hpccoll.plan import Operation
from hpccoll.runtime import job
from hpccoll.runtime.failure_detection.endings import get_endings

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.communicator.communicator import Communicator

MadeT = TypeVar("MadeT", bound="Communicator")


class SurvivalMethods(CommunicatorBase):
    """What a communicator with `on_failure="raise"` offers after the death of a rank."""

    def shrink(self) -> Communicator:
        """Return a communicator of the living ranks, in their order, and close this one; collective over them.

        Memory, recorder and progress are those of a new communicator. Groups that contain a dead rank are shrunk by
        their own `shrink`, other groups go on. Until the call returns, other ranks may still access the arrays of the
        operation that raised RankLostError. Ranks that die during the call are left out as well.

        Raises:
            UsageError: the communicator was made without `on_failure="raise"`.

        Example:
            >>> smaller = comm.shrink()  # doctest: +SKIP
        """
        self._require_survival("shrink")
        while True:
            # With MPI calls of another thread during it, Open MPI 5.0.11 has crashed when one more rank died.
            with get_endings().lock:
                base = job.load_mpi().Intracomm(self._comm.Shrink())
            made = self._try_to_make(partial(self._make_like, base), base)
            with get_endings().lock:
                has_agreed = _agree_without_death(base, made is not None)
            if has_agreed:
                break
            if made is not None:
                made.discard()
        if made is None:
            raise CommunicationError("the ranks disagree about a new communicator; end the job and start it again")
        made.keep_from(self)
        self.discard()
        return made

    def agree(self, flag: object = True) -> bool:
        """Return whether `flag` is true on all living ranks; collective over them, also after the death of a rank.

        Example:
            >>> comm.agree(comm.rank >= 0)
            True
        """
        self._require_open()
        if self._control is not None:
            return _agree(self._comm, bool(flag))
        return bool(self._collective(Operation.ALL_REDUCE, int(bool(flag)), None, "min", 0, "auto", False))

    @property
    def lost_ranks(self) -> tuple[int, ...]:
        """The ranks whose death has made this communicator unusable; empty if it is usable.

        Example:
            >>> comm.lost_ranks
            ()
        """
        return tuple(getattr(self._state.interruption, "ranks", ()))

    def keep_from(self, predecessor: SurvivalMethods) -> None:
        """Keep the arrays of the predecessor's interrupted operations alive until this communicator is closed.

        MPI may still write to these arrays.

        Example:
            >>> smaller.keep_from(comm)  # doctest: +SKIP
        """
        self._kept = predecessor._engine.list_kept()

    def discard(self) -> None:
        """Close the communicator without waiting for other ranks, and free its memory.

        The MPI communicators are not freed, because Open MPI would give their numbers to new ones, and late messages of
        other survivors, or a late revocation, would then reach the new ones.

        Example:
            >>> comm.discard()  # doctest: +SKIP
        """
        if self._release.detach() is not None:
            self._stop_watch()
            self._messages.messenger.close()
            self._engine.free()
            self._engine.progress.release_garbage()

    def _make_like(self, base: MPI.Intracomm) -> Communicator:
        """Return a communicator that owns `base` and has this one's options."""
        raise NotImplementedError

    def _try_to_make(self, make: Callable[[], MadeT], base: MPI.Intracomm) -> MadeT | None:
        """Return the communicator that `make` makes of `base`; None if a rank died meanwhile."""
        with get_endings().guard(base):
            try:
                return make()
            except Exception:  # noqa: BLE001 - after a death, Open MPI's collectives may return any data
                with suppress(Exception):
                    base.Revoke()  # ends the waits of other ranks for this one
                return None

    def _require_survival(self, name: str) -> None:
        """Raise UsageError unless calls of this communicator raise RankLostError."""
        self._require_open()
        if self._control is None:
            raise UsageError(f'{name} needs a communicator that was made by Communicator(on_failure="raise")')


def _agree_without_death(comm: MPI.Intracomm, flag: bool) -> bool:
    """Return whether `flag` is true on all ranks of an MPI communicator, and none of them has died."""
    try:
        return bool(comm.Agree(int(flag)))
    except job.load_mpi().Exception:  # on all living ranks, because none has acknowledged the death
        return False


def _agree(comm: MPI.Intracomm, flag: bool) -> bool:
    """Return whether `flag` is true on all living ranks of an MPI communicator, which may be revoked."""
    while True:
        try:
            return bool(comm.Agree(int(flag)))
        except job.load_mpi().Exception:  # on all ranks, because some rank has not acknowledged a death
            comm.Ack_failed()
