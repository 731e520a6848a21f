"""The memory that the ranks of a node share for one communicator: barriers, staging slots, symmetric buffers.

Each rank maps one segment of every rank of its node. A segment starts with a page of the words that synchronise the
barriers and the slots; the slots' data follow. Blocking shared-memory plans on one node use two slots in turn, so that
a rank can fill one while others still read the other. Pipelines (two-level plans, and asynchronous shared-memory plans)
have a barrier and slots of their own, so that they run beside blocking plans.
"""

from __future__ import annotations

from collections import deque
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

STAGING_SLOTS: Final = 2
SLOT_BYTES_ON_ONE_NODE: Final = 4 * 2**20  # of each rank
PIPELINE_SLOTS_ON_ONE_NODE: Final = 2
PIPELINE_SLOTS: Final = 6  # enough to keep a link busy while other segments synchronise, reduce and store
SLOT_BYTES: Final = 2 * 2**20 + 64 * 2**10  # of each rank; segments of a chunk differ by at most one element
_WORDS_BYTES: Final = 4096
_LINE_BYTES: Final = 64  # each barrier's words fill a cache line, and so does each slot's counter
_MISMATCH_TAG: Final = 8191
FACTS = ("operation", "algorithm", "chunks", "root", "count", "dtype", "reduction", "memory")


class NodeMemory:
    """The shared memory of this rank's node; `problem` says why memory cannot be shared, and is empty if it can be.

    Creation is collective over `comm`. `pipelines` are the pipelines in flight; only the first one uses the slots.
    """

    def __init__(self, comm: MPI.Intracomm, layout: RankLayout, progress: Progress) -> None:
        self.rank, self.comm, self._nodes = comm.rank, comm, layout.nodes
        self.ranks = tuple(rank for rank in range(comm.size) if layout.node[rank] == layout.node[comm.rank])
        self.others = tuple(rank for rank in self.ranks if rank != comm.rank)
        self.symmetric = SymmetricBuffers(comm, self.ranks, progress)
        self.device: Any = None  # the `cuda.device.SharedDeviceMemory` made with the first device buffer
        self.oversubscribed = layout.oversubscribed
        self.pipelines: deque[InFlight] = deque()
        self.next_slot = 0  # the staging slot of the next blocking plan
        one_node = layout.nodes == 1
        staging, pipelines = (STAGING_SLOTS, PIPELINE_SLOTS_ON_ONE_NODE) if one_node else (0, PIPELINE_SLOTS)
        self.slot_bytes = SLOT_BYTES_ON_ONE_NODE if one_node else SLOT_BYTES
        self.problem = ""
        try:
            # Pages are allocated at the first access, because most communicators never use the slots.
            nbytes = _WORDS_BYTES + (staging + pipelines) * self.slot_bytes
            segments = map_segments(comm, self.ranks, nbytes, reserve=False)
        except UnavailableError as error:  # the same on every rank; algorithms that only send messages still work
            self.problem, segments, staging, pipelines = str(error), {}, 0, 0
        self.barrier, self.pipeline_barrier = (
            NodeBarrier(*self._own_and_others(segments, WORDS, line), layout.oversubscribed, progress)
            for line in range(2)
        )
        slots = [self._slot(segments, number) for number in range(staging + pipelines)]
        self.slots, self.pipeline_slots = tuple(slots[:staging]), tuple(slots[staging:])
        self.remote = attach_peers(comm, self.ranks)

    def _own_and_others(
        self, segments: dict[int, MappedSegment], count: int, line: int
    ) -> tuple[memoryview, list[memoryview]]:
        """Return `count` words of cache line number `line` in this rank's segment, and in the other ranks' segments."""
        own, *others = (self._words(segments, rank, count, _LINE_BYTES * line) for rank in (self.rank, *self.others))
        return own, others

    @staticmethod
    def _words(segments: dict[int, MappedSegment], rank: int, count: int, start: int) -> memoryview:
        """Return `count` 64-bit words of a rank's segment, or of private memory if there are no segments."""
        return words(segments[rank] if segments else bytearray(_WORDS_BYTES), count, start)

    def _slot(self, segments: dict[int, MappedSegment], number: int) -> PipelineSlot:
        """Return slot number `number`, which has a buffer and a counter in the segment of each rank of the node."""
        begin, (own, others) = _WORDS_BYTES + number * self.slot_bytes, self._own_and_others(segments, 1, number + 2)
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
        """Gather the arguments `facts` of the node's ranks, and raise a MismatchError that lists the differing ones."""
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
        self.pipeline_barrier.free()
        self.slots = self.pipeline_slots = ()
        self.pipelines.clear()


def fingerprint_of(facts: Sequence[object]) -> int:
    """Return a hash of the arguments of a collective that is the same in every process."""
    from hashlib import blake2b

    return int.from_bytes(blake2b(repr(facts).encode(), digest_size=8).digest()) & FINGERPRINT
