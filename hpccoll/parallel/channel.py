"""A rank's groups along the axes of a mesh, and the time that it spends in calls on each.

The clock runs inside the calls, so waiting for a rank that is late counts: that is what communication costs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpccoll.parallel.mesh import AXES, Mesh

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator
    from hpccoll.runtime.work import Work


class Channel:
    """The ranks along one axis; on an axis of one rank nothing is sent and no group is made.

    Args:
        comm: all ranks of the mesh; the group's communicator is made from it, collectively over the group.
        members: the ranks of the group, in order along the axis.
    """

    def __init__(self, comm: Communicator, members: list[int]) -> None:
        self.index, self.size = members.index(comm.rank), len(members)
        self._group = comm.new_group(members) if len(members) > 1 else None
        self._sending: list[Work] = []
        self.seconds = 0.0  # spent in calls since it was last set to nought

    def all_reduce(self, x: Any) -> Any:
        """Add up every rank's `x` in place, and return it."""
        if self._group is not None:
            with self._timed():
                self._group.all_reduce(x)
        return x

    def start_send(self, x: Any, dest: int, tag: int) -> None:
        """Send `x` to the rank `dest` of the axis; it must not change until `finish_sends`."""
        if self._group is not None:
            with self._timed():
                self._sending = [work for work in self._sending if not work.test()]  # lets go of their memory
                self._sending.append(self._group.isend(x, dest, tag))

    def recv(self, x: Any, source: int, tag: int) -> Any:
        """Fill `x` with what the rank `source` of the axis sends, and return it."""
        if self._group is not None:
            with self._timed():
                self._group.recv(x, source, tag)
        return x

    def finish_sends(self) -> None:
        """Wait until everything that was sent has left."""
        if self._sending:
            with self._timed():
                while self._sending:
                    self._sending.pop().wait()

    def close(self) -> None:
        """Give the group back; collective over it."""
        if self._group is not None:
            self._group.close()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - begin


@dataclass(frozen=True, slots=True)
class Channels:
    """A rank's three groups."""

    dp: Channel
    tp: Channel
    pp: Channel

    @classmethod
    def open(cls, comm: Communicator, mesh: Mesh) -> Channels:
        """Make the groups that `comm.rank` is in; every rank of `comm` calls it."""
        return cls(**{axis: Channel(comm, mesh.members(axis, comm.rank)) for axis in AXES})

    def restart_clocks(self) -> None:
        """Count from nought again."""
        for channel in (self.dp, self.tp, self.pp):
            channel.seconds = 0.0

    @property
    def seconds(self) -> float:
        """Seconds spent in calls on all axes."""
        return self.dp.seconds + self.tp.seconds + self.pp.seconds

    def close(self) -> None:
        """Give the groups back; collective."""
        for channel in (self.dp, self.tp, self.pp):
            channel.close()
