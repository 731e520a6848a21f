"""Going on after the death of ranks: `shrink` and `agree`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from hpccoll.communicator.base import CommunicatorBase
from hpccoll.errors import CommunicationError, UsageError
from hpccoll.plan import Operation
from hpccoll.runtime.failure_detection.endings import get_endings
from hpccoll.runtime.recorder.interruption import LoopExit
from hpccoll.runtime.survivor_calls import run_agree, run_agree_without_death, run_shrink

if TYPE_CHECKING:
    from mpi4py import MPI

MadeT = TypeVar("MadeT", bound="SurvivalMethods")


class SurvivalMethods(CommunicatorBase):
    """The methods by which living ranks go on after the death of a rank, with `on_failure="raise"`."""

    def agree(self, flag: object = True) -> bool:
        """Return whether `flag` is true on all living ranks; collective over them, also after the death of a rank.

        Example:
            >>> comm.agree(comm.rank >= 0)
            True
        """
        self._require_open()
        if self._control is not None:
            with self._wait_for_survivors("agree"):
                return run_agree(self._comm, bool(flag))
        return bool(self._collective(Operation.ALL_REDUCE, int(bool(flag)), None, "min", 0, "auto", False))

    @property
    def lost_ranks(self) -> tuple[int, ...]:
        """The ranks whose death has made this communicator unusable; empty if it is usable.

        Example:
            >>> comm.lost_ranks
            ()
        """
        return tuple(getattr(self._state.interruption, "ranks", ()))

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

    def _shrink(self, make: Callable[[MPI.Intracomm], MadeT]) -> MadeT:
        """Return a new communicator of the living ranks, and close this one; collective over these ranks.

        `make` makes a communicator of hpccoll from an MPI communicator.
        """
        self._require_survival("shrink")
        with self._wait_for_survivors("shrink"):
            made = self._make_smaller(make)
        made._state.kept += self._engine.list_kept()  # noqa: SLF001 - MPI may still write to these arrays
        self.discard()
        return made

    def _make_smaller(self, make: Callable[[MPI.Intracomm], MadeT]) -> MadeT:
        """Return a new communicator of the living ranks, and try again if a rank dies meanwhile; collective over them.

        `make` makes a communicator of hpccoll from an MPI communicator.
        """
        while True:
            base = run_shrink(self._comm)
            made = self._try_to_make(partial(make, base), base)
            if run_agree_without_death(base, made is not None):
                break
            if made is not None:
                made.discard()
        if made is None:
            raise CommunicationError("the ranks disagree about a new communicator; end the job and start it again")
        return made

    def leave_loop(self) -> None:
        """Let calls of other ranks raise an error, because this rank has left the loop `survivors`.

        The job ends if another rank already waits in `agree` or `shrink`. After a death, later calls of `agree` and
        `shrink` raise the error that names this rank, and other calls raise RankLostError.

        Example:
            >>> comm.leave_loop()  # doctest: +SKIP
        """
        state = self._state
        if self.size > 1 and (not state.is_unusable or self.lost_ranks):
            state.receive_interruption(LoopExit(self.rank, 0, "survivors", "break"))
            state.announce()

    @contextmanager
    def _wait_for_survivors(self, name: str) -> Iterator[None]:
        """Let the `with` block wait for all living ranks; raise CommunicationError if one has left `survivors`.

        `name` is the method that waits, for reports. A wait longer than HPCCOLL_TIMEOUT ends the job.
        """
        left = self._state.left_by_other
        if left is not None:
            raise left.make_error(self.rank)
        with get_endings().survival.limit(self._state), self._state.wait_for_survivors(name):
            yield

    def _list_options(self) -> dict[str, Any]:
        """Return the constructor arguments that groups of this communicator's ranks get as well."""
        return {"abort_on_error": self._abort_on_error, "on_failure": self._on_failure}

    def _make(self, make: Callable[[], MadeT], joined: MPI.Intracomm, name: str) -> MadeT:
        """Return `make()`, a communicator of the ranks of `joined`; raise RankLostError if a rank dies meanwhile.

        Collective over the ranks of `joined`. `name` is the method that makes the communicator, for error messages.
        """
        if self._control is None:
            return make()
        made = self._try_to_make(make, joined)
        if made is None:
            self._state.take_exception(name, CommunicationError(f"rank {self.rank}: {name} failed"))
            raise CommunicationError(f"rank {self.rank}: {name} failed on another rank; see its error")
        return made

    def _try_to_make(self, make: Callable[[], MadeT], base: MPI.Intracomm) -> MadeT | None:
        """Return `make()`, a communicator of the ranks of `base`; None if it fails, such as by the death of a rank."""
        with get_endings().guard(base):
            try:
                return make()
            except Exception:  # noqa: BLE001 - after a death, Open MPI's collectives may return any data
                with suppress(Exception):
                    base.Revoke()  # ends the waits of other ranks for this one
                return None

    def _require_survival(self, name: str) -> None:
        """Raise UsageError, which names the method `name`, unless the constructor got `on_failure="raise"`."""
        self._require_open()
        if self._control is None:
            raise UsageError(f'{name} needs a communicator that was made by Communicator(on_failure="raise")')
