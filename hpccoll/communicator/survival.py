"""Going on after the death of ranks: `shrink` and `agree`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from hpccoll.communicator.base import CommunicatorBase
from hpccoll.errors import CommunicationError, HpccollError, UsageError
from hpccoll.failures.endings import get_endings
from hpccoll.failures.surviving_creation import (
    GroupVote,
    create_mpi_group,
    make_on_living_ranks,
    make_or_revoke,
    split_mpi_comm,
)
from hpccoll.failures.survivor_calls import run_agree
from hpccoll.plan import Operation
from hpccoll.runtime import job
from hpccoll.runtime.agreement import wait_for_members
from hpccoll.runtime.recorder.interruption import LoopExit

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

    def _shrink(self, make: Callable[[MPI.Intracomm], MadeT]) -> MadeT:
        """Return a new communicator of the living ranks, and close this one; collective over these ranks.

        `make` makes a communicator of hpccoll from an MPI communicator.
        """
        self._require_survival("shrink")
        with self._wait_for_survivors("shrink"):
            made = make_on_living_ranks(self._comm, make)
        made._state.kept += self._engine.list_kept()  # noqa: SLF001 - MPI may still write to these arrays
        self.discard()
        return made

    def leave_loop(self) -> None:
        """Let calls of other ranks raise an error, because this rank has left the loop `survivors`.

        The job ends if another rank already waits in `agree` or `shrink`. After a death, later calls of `agree` and
        `shrink` raise an error that names this rank, and other calls raise RankLostError.

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

        `name` is the name of the waiting method in reports. A wait longer than HPCCOLL_TIMEOUT ends the job.
        """
        left = self._state.left_by_other
        if left is not None:
            raise left.make_error(self.rank)
        with get_endings().survival.limit(self._state), self._state.wait_for_survivors(name):
            yield

    def _list_options(self) -> dict[str, Any]:
        """Return the dict of constructor arguments that groups of this communicator's ranks get as well."""
        return {"abort_on_error": self._abort_on_error, "on_failure": self._on_failure}

    def _make_groups(
        self, groups: Sequence[Sequence[int]], make: Callable[[MPI.Intracomm], MadeT], name: str
    ) -> MadeT | None:
        """Return a communicator of the group that contains this rank; None if no group does. Collective over all ranks.

        Args:
            groups: the ranks of each group, disjoint, the same on all ranks.
            make: makes a communicator of hpccoll from an MPI communicator of a group.
            name: the method that makes the groups, for error messages.

        Raises:
            RankLostError: a rank of this communicator died during the call.
        """
        members = next((ranks for ranks in groups if self.rank in ranks), None)
        split = partial(split_mpi_comm, self._comm, groups)
        if members is not None:
            create = split if self._control is not None else partial(create_mpi_group, self._comm, members)
            return self._make_group(members, create, make, name)
        if self._control is not None:
            with self._state.wait(name):
                split()
        return None

    def _make_group(
        self,
        members: Sequence[int],
        create: Callable[[], MPI.Intracomm],
        make: Callable[[MPI.Intracomm], MadeT],
        name: str,
    ) -> MadeT:
        """Return a communicator of the ranks `members`, this rank among them; collective over the members.

        `create` makes an MPI communicator of the members. The other arguments and errors are those of `_make_groups`.
        """
        if self._control is None:
            self._wait_for_members(members, name)
            return make(create())
        vote, made, problem = GroupVote(self._control, members), None, None
        try:
            self._wait_for_members(members, name)
        except (CommunicationError, job.load_mpi().Exception):
            vote.give_up()
            self._state.kept.append(vote)
            raise
        with get_endings().survival.limit(self._state), self._state.wait_for_survivors(name):
            try:
                made = make_or_revoke(create(), make, self._comm)
            except Exception as raised:  # noqa: BLE001 - raised again after the vote
                problem = raised
            has_succeeded = vote.decide(made is not None)
        if made is not None and has_succeeded:
            return made
        if made is not None:
            made.discard()
        error = CommunicationError(f"rank {self.rank}: {name} failed on another rank; see its error")
        self._state.take_exception(name, problem if isinstance(problem, HpccollError) else error)
        raise problem or error

    def _wait_for_members(self, members: Sequence[int], name: str) -> None:
        """Wait until the ranks `members`, this rank among them, have called this method; `name` is for reports."""
        with self._state.wait(name, peers=tuple(rank for rank in members if rank != self.rank)):
            wait_for_members(self._comm, members, self._engine.progress)

    def _require_survival(self, name: str) -> None:
        """Raise UsageError, which names the method `name`, unless the constructor got `on_failure="raise"`."""
        self._require_open()
        if self._control is None:
            raise UsageError(f'{name} needs a communicator that was made by Communicator(on_failure="raise")')
