"""The memory that the ranks of a node share for one communicator: barrier, pipeline slots, symmetric buffers.

Each rank maps one memory segment of every rank of its node. A memory segment starts with a page of 64-bit words that
synchronise the barrier and the pipeline slots. The buffers of the slots follow after this page. A communicator on one
node uses two slots in turn, so that a rank can fill one slot while other ranks still read the other slot. A
communicator on several nodes has SLOTS slots, so that several parts of a collective are in flight at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import numpy as np
from mpi4py import MPI

from hpccoll.errors import MismatchError, UnavailableError, UsageError
from hpccoll.runtime.job import RankLayout
from hpccoll.runtime.node_memory.cross_memory import attach_peers
from hpccoll.runtime.node_memory.node_barrier import FINGERPRINT, WORDS, NodeBarrier
from hpccoll.runtime.node_memory.pipeline_slot import PipelineSlot
from hpccoll.runtime.node_memory.segment import MappedSegment, map_segments, words
from hpccoll.runtime.node_memory.symmetric import SymmetricBuffers
from hpccoll.runtime.progress import InFlight, Progress

SLOTS_ON_ONE_NODE: Final = 2
SLOT_BYTES_ON_ONE_NODE: Final = 4 * 2**20  # of each rank
SLOTS: Final = 6  # segments in flight at once: enough to keep a link busy while others synchronise, reduce and store
SLOT_BYTES: Final = 2 * 2**20 + 64 * 2**10  # of each rank; segments of a chunk differ by at most one element
_WORDS_BYTES: Final = 4096
_LINE_BYTES: Final = 64  # the barrier's words fill the first cache line, each slot's counter one of the following
_MISMATCH_TAG: Final = 8191
FACTS = ("operation", "algorithm", "chunks", "root", "count", "dtype", "reduction", "memory")


class NodeMemory:
    """The shared memory of this rank's node; `problem` says why memory cannot be shared, and is empty if it can be.

    The constructor is collective over `comm`. Waits at the barrier advance the operations in `progress`.
    """

    def __init__(self, comm: MPI.Intracomm, layout: RankLayout, progress: Progress) -> None:
        self.rank, self.comm, self._nodes = comm.rank, comm, layout.nodes
        self.ranks = tuple(rank for rank in range(comm.size) if layout.node[rank] == layout.node[comm.rank])
        self.others = tuple(rank for rank in self.ranks if rank != comm.rank)
        self.symmetric = SymmetricBuffers(comm, self.ranks)
        self.device: Any = None  # the `cuda.device.SharedDeviceMemory` made with the first device buffer
        self.oversubscribed = layout.oversubscribed
        self.pipeline: InFlight | None = None  # the latest two-level collective; only one at a time uses the slots
        self.next_slot = 0  # on one node
        slots = SLOTS if layout.nodes > 1 else SLOTS_ON_ONE_NODE
        self.slot_bytes = SLOT_BYTES if layout.nodes > 1 else SLOT_BYTES_ON_ONE_NODE
        self.problem = ""
        try:
            # Pages are allocated at the first access, because most communicators never use the slots.
            nbytes = _WORDS_BYTES + slots * self.slot_bytes
            segments = map_segments(comm, self.ranks, nbytes, reserve=False)
        except UnavailableError as error:  # the same on every rank; algorithms that only send messages still work
            self.problem, segments, slots = str(error), {}, 0
        own, *others = (self._words(segments, rank, WORDS, 0) for rank in (self.rank, *self.others))
        self.barrier = NodeBarrier(own, others, layout.oversubscribed, progress)
        self.slots = tuple(self._slot(segments, number) for number in range(slots))
        self.remote = attach_peers(comm, self.ranks)

    @staticmethod
    def _words(segments: dict[int, MappedSegment], rank: int, count: int, start: int) -> memoryview:
        """Return `count` 64-bit words of a rank's segment, or of private memory if there are no segments."""
        return words(segments[rank] if segments else bytearray(_WORDS_BYTES), count, start)

    def _slot(self, segments: dict[int, MappedSegment], number: int) -> PipelineSlot:
        """Return pipeline slot `number`, whose buffers are in the segments of the node's ranks."""
        line, begin = _LINE_BYTES * (number + 1), _WORDS_BYTES + number * self.slot_bytes
        own, *others = (self._words(segments, rank, 1, line) for rank in (self.rank, *self.others))
        memory = {rank: np.frombuffer(segments[rank], np.uint8, self.slot_bytes, begin) for rank in self.ranks}
        return PipelineSlot(number, own, others, self.barrier.synchronize, memory)

    def require(self, name: str) -> None:
        """Raise an error unless all ranks can share memory; `name` is the algorithm or feature that needs it.

        Raises:
            UnavailableError: the ranks of a node cannot share memory.
            UsageError: the ranks are on several nodes.
        """
        self.require_memory(name)
        if self._nodes > 1:
            raise UsageError(
                f"{name} loads and stores in shared memory, but the ranks are on {self._nodes} nodes; choose "
                "hierarchical, or leave the choice to auto"
            )

    def require_memory(self, name: str) -> None:
        """Raise UnavailableError unless ranks of one node can share memory; `name` is the feature that needs it."""
        if self.problem:
            raise UnavailableError(f"{name} needs shared memory: {self.problem}")

    def raise_mismatch(self, facts: Sequence[object]) -> NoReturn:
        """Gather the arguments `facts` of all ranks of the node and raise MismatchError with those that differ."""
        facts_by_rank = {self.rank: facts}
        requests = [self.comm.isend(facts, rank, _MISMATCH_TAG) for rank in self.others]
        facts_by_rank |= {rank: self.comm.recv(source=rank, tag=_MISMATCH_TAG) for rank in self.others}
        for request in requests:
            request.wait()
        differing = [at for at in range(len(FACTS)) if len({other[at] for other in facts_by_rank.values()}) > 1]
        listed = "; ".join(
            f"rank {rank}: " + ", ".join(f"{FACTS[at]} {other[at]}" for at in differing)
            for rank, other in sorted(facts_by_rank.items())
        )
        raise MismatchError(f"ranks called different collectives: {listed}; pass the same arguments on every rank")

    def free(self) -> None:
        """Release all shared memory; to be called before MPI is finalized."""
        self.symmetric.close()
        if self.device is not None:
            self.device.free()
            self.device = None
        self.barrier.free()
        self.slots, self.pipeline = (), None


def fingerprint_of(facts: Sequence[object]) -> int:
    """Return a hash of the arguments of a collective that is the same in every process."""
    return int.from_bytes(hashlib.blake2b(repr(facts).encode(), digest_size=8).digest()) & FINGERPRINT
