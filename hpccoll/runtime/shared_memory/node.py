"""What the ranks of a node have in common for one communicator: where they meet, an arena, symmetric buffers.

The arena is a piece of shared memory of each rank. It has two halves that are used in turn, so that a rank may fill
one for the next block while others still read the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from functools import partial
from typing import Protocol

import numpy as np
from mpi4py import MPI

from hpccoll.errors import UnavailableError, UsageError
from hpccoll.runtime.arrays import FlatArray
from hpccoll.runtime.cuda.device import SharedDeviceMemory
from hpccoll.runtime.hierarchical.lanes import LANE_BYTES, LANES, Lane
from hpccoll.runtime.job import RankLayout
from hpccoll.runtime.shared_memory.cross_memory import Remote, reachable
from hpccoll.runtime.shared_memory.node_barrier import WORDS, Gate
from hpccoll.runtime.shared_memory.segment import Mapped, mapped, words
from hpccoll.runtime.shared_memory.symmetric import Bytes, Symmetric

HALF = 4 * 2**20  # bytes of the arena for one block
_WORDS_BYTES = 4096  # the words of each rank have a page of their own
_LINE = 64  # bytes; the gate's words fill the first


class Crossing(Protocol):
    """A collective under way through the lanes; see mixed.py."""

    done: bool

    def step(self) -> bool:
        """Let it go on for a moment; return whether anything was done."""


class Node:
    """The ranks of this rank's node; `problem` says why they have no memory in common, where that is so.

    Args:
        comm: all ranks; collective over it.
        layout: where they run.
        under_way: the asynchronous operations of the communicator.
        progress: carries those on.
    """

    def __init__(
        self, comm: MPI.Intracomm, layout: RankLayout, under_way: Sized, progress: Callable[[], object]
    ) -> None:
        self.rank = comm.rank
        self.ranks = tuple(rank for rank in range(comm.size) if layout.node[rank] == layout.node[comm.rank])
        self.others = tuple(rank for rank in self.ranks if rank != comm.rank)
        self.symmetric = Symmetric(comm, self.ranks)
        self.gpu: SharedDeviceMemory | None = None  # once a device buffer was made
        self._comm = comm
        self.problem = ""
        self._pieces: dict[int, Mapped] = {}
        try:
            # Pages are taken when they are touched: most communicators never use the arena.
            in_lanes = LANES * LANE_BYTES if layout.nodes > 1 else 0
            self._pieces = mapped(comm, self.ranks, _WORDS_BYTES + 2 * HALF + in_lanes, reserve=False)
        except UnavailableError as error:  # on every rank; all but the shared algorithms works without
            self.problem = str(error)
        own, *others = (words(self._piece(rank), WORDS) for rank in (comm.rank, *self.others))
        self.gate = Gate(own, others, layout.oversubscribed, under_way, progress)
        self.crowded = layout.oversubscribed
        self.crossing: Crossing | None = None  # the latest collective that went through the lanes
        self.lanes = tuple(self._lane(number) for number in range(LANES if layout.nodes > 1 else 0))
        self.remote: Remote | None = reachable(comm, self.ranks)

    def _lane(self, number: int) -> Lane:
        """Return a lane between nodes; its words lie in a cache line of their own each."""
        begin = _LINE * (number + 1)
        own, *others = (
            memoryview(self._piece(rank))[begin : begin + 8].cast("Q") for rank in (self.rank, *self.others)
        )
        return Lane(number, own, others, self.gate.sync, partial(self._lane_memory, number))

    def _lane_memory(self, number: int, rank: int) -> Bytes:
        begin = _WORDS_BYTES + 2 * HALF + number * LANE_BYTES
        return np.frombuffer(self._pieces[rank], np.uint8, LANE_BYTES, begin)

    def require(self, name: str, nodes: int) -> None:
        """Raise where not all ranks have memory in common; `name` is what needs it, `nodes` on how many they are.

        Raises:
            UnavailableError: memory cannot be shared here.
            UsageError: there are several nodes.
        """
        self.require_memory(name)
        if nodes > 1:
            raise UsageError(
                f"{name} loads and stores in shared memory, but the ranks are on {nodes} nodes; choose hierarchical, "
                "or leave the choice to auto"
            )

    def require_memory(self, name: str) -> None:
        """Raise UnavailableError where the ranks of a node cannot share memory."""
        if self.problem:
            raise UnavailableError(f"{name} needs shared memory: {self.problem}")

    def _piece(self, rank: int) -> Mapped | bytearray:
        return bytearray(_WORDS_BYTES) if self.problem else self._pieces[rank]

    def device_empty(self, shape: int | tuple[int, ...], dtype: str) -> FlatArray:
        """Return this rank's CuPy array of a new symmetric buffer of device memory, uninitialised; collective.

        All of a communicator's are on the device of each rank that was current at the first; ranks may share one.

        Raises:
            UsageError: a negative extent or an unknown dtype.
            MismatchError: ranks asked for different shapes or dtypes.
            UnavailableError: on every rank, where one has no CuPy, no device, too little memory, or none to share.
        """
        self.require("device memory that ranks share", 1)
        if self.gpu is None:
            self.gpu = SharedDeviceMemory(self._comm, self.ranks, self.gate)
        return self.gpu.empty(self.symmetric, shape, dtype)

    def arena(self, rank: int, half: int) -> Bytes:
        """Return one half of a rank's arena, as bytes."""
        return np.frombuffer(self._pieces[rank], np.uint8, HALF, _WORDS_BYTES + half * HALF)

    def free(self) -> None:
        """Let go of all shared memory; MPI must not have ended."""
        self.symmetric.close()
        if self.gpu is not None:
            self.gpu.free()
            self.gpu = None
        self.gate.free()
        self.lanes, self.crossing = (), None
        self._pieces = {}
