"""The memory that the ranks of a node share for one communicator: barriers, staging slots, symmetric buffers.

All ranks of a node, however many, map one segment of shared memory. The segment starts with the words that synchronise
the ranks: a line of words per rank for each barrier and each pipeline slot. The slots follow the words, and the slots
of one rank are adjacent. Plans on one node use two slots in turn, so that a rank can fill one slot while other ranks
still read the other slot. Pipelines (two-level plans) have a barrier and slots of their own. Each pipeline slot carries
one segment of a collective, and has counters of arrivals. A rank counts its arrival at a pipeline slot, works on other
slots, and tests later whether all ranks have arrived, so the ranks may use the slots in different orders.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from mmap import PAGESIZE
from typing import Any, Final, NoReturn

import numpy as np
from mpi4py import MPI

from hpccoll.errors import DEBUG_HINT, MismatchError, UnavailableError, UsageError
from hpccoll.native import ArrivalCounter, NodeBarrier
from hpccoll.runtime.job import RankLayout
from hpccoll.runtime.node_memory.cross_memory import find_readable_processes
from hpccoll.runtime.node_memory.file_memory import file_memories, is_in_file
from hpccoll.runtime.node_memory.node_barrier import FINGERPRINT
from hpccoll.runtime.node_memory.segment import MappedSegment, Words, map_segment, words
from hpccoll.runtime.node_memory.symmetric import Bytes, SymmetricBuffers
from hpccoll.runtime.progress import Progress

STAGING_SLOTS: Final = 2
SLOT_BYTES_ON_ONE_NODE: Final = 2**20 + 64 * 2**10  # of each rank; so small that slots stay in the processor's cache
PIPELINE_SLOTS: Final = 6  # enough to keep a link busy while other segments synchronise, reduce and store
SLOT_BYTES: Final = 2 * 2**20 + 64 * 2**10  # of each rank; segments of a chunk differ by at most one element
MOST_SLOT_BYTES_OF_NODE: Final = 2**30  # of all ranks of a node; slots of many ranks are smaller
_LINE_BYTES: Final = 128  # two cache lines, which processors may fetch together
_MISMATCH_TAG: Final = 8191
COMPARED_ARGUMENTS = ("operation", "algorithm", "chunks", "root", "count", "dtype", "reduction", "memory")


class NodeMemory:
    """The shared memory of this rank's node; `problem` says why memory cannot be shared, and is empty if it can be.

    Creation is collective over `comm`. `runs` are the asynchronous runs in flight of plans on one node, and `pipelines`
    are those of two-level plans. Only the first of `runs` and the first of `pipelines` advance.
    """

    def __init__(self, comm: MPI.Intracomm, layout: RankLayout, progress: Progress) -> None:
        self.rank, self.comm, self._nodes = comm.rank, comm, layout.nodes
        self.ranks = tuple(rank for rank in range(comm.size) if layout.node[rank] == layout.node[comm.rank])
        self.others = tuple(rank for rank in self.ranks if rank != comm.rank)
        self.row = self.ranks.index(comm.rank)
        self.symmetric = SymmetricBuffers(comm, self.ranks, progress, self._is_in_use)
        self.device: Any = None  # the `cuda.device.SharedDeviceMemory` made with the first device buffer
        self.oversubscribed = layout.oversubscribed
        self.pipelines: deque[Any] = deque()  # of RunInQueue
        self.runs: deque[Any] = deque()  # of RunInQueue
        one_node = layout.nodes == 1
        staging, pipelines = (STAGING_SLOTS, 0) if one_node else (0, PIPELINE_SLOTS)
        most_bytes = SLOT_BYTES_ON_ONE_NODE if one_node else SLOT_BYTES
        self.slot_bytes = choose_slot_bytes(most_bytes, staging + pipelines, max(layout.ranks_per_node))
        self.problem = ""
        segment: MappedSegment | None = None
        words_bytes = -(-(2 + pipelines) * len(self.ranks) * _LINE_BYTES // PAGESIZE) * PAGESIZE
        try:
            # Pages are allocated at the first access, because most communicators never use the slots.
            nbytes = words_bytes + len(self.ranks) * (staging + pipelines) * self.slot_bytes
            segment = map_segment(comm, self.ranks, nbytes, reserve=False)
        except UnavailableError as error:  # the same on every rank; algorithms that only send messages still work
            self.problem = str(error)
        waits = progress.attend, progress.operations, progress.transfers
        self.barrier, self.pipeline_barrier = (
            NodeBarrier(self._lines(segment, kind), self.row, layout.oversubscribed, *waits) for kind in range(2)
        )
        self.barrier_lines = self._lines(segment, 0)
        slots = self._slots(segment, words_bytes, staging + pipelines) if segment is not None else ()
        self.slots, self.pipeline_slots = slots[:staging], slots[staging:]
        self.pipeline_counters = tuple(
            ArrivalCounter(self._lines(segment, 2 + number), self.row) for number in range(len(self.pipeline_slots))
        )
        self.readable = find_readable_processes(comm, self.ranks)  # None without cross-memory attach

    def _is_in_use(self, address: int, nbytes: int) -> bool:
        """Whether an asynchronous run accesses any of the `nbytes` bytes at `address` in this rank's memory."""
        return any(run.accesses(address, nbytes) for run in (*self.runs, *self.pipelines))

    def _lines(self, segment: MappedSegment | None, kind: int) -> Words:
        """Return a line of words per rank, for synchronisation; private memory if there is no segment.

        `kind` is 0 for the barrier, 1 for the barrier of pipelines, and 2 or more for the counters of a pipeline slot.
        """
        rows, columns = len(self.ranks), _LINE_BYTES // 8
        if segment is None:
            return np.zeros((rows, columns), np.uint64)
        return words(segment, rows, columns, kind * rows * _LINE_BYTES)

    def _slots(self, segment: MappedSegment, begin: int, count: int) -> tuple[dict[int, Bytes], ...]:
        """Return `count` slots in a segment, in which the slots' buffers start at byte `begin`.

        A slot is a dictionary with the buffer of each rank of the node, by rank.
        """
        shape = len(self.ranks), count, self.slot_bytes
        buffers = np.frombuffer(segment, np.uint8, math.prod(shape), begin).reshape(shape)
        return tuple(dict(zip(self.ranks, buffers[:, number], strict=True)) for number in range(count))

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

    def resolve(self, rank: int, location: int) -> tuple[Any, int]:
        """Return the memory of `rank` that contains a location (in a symmetric buffer or memfd), and its byte offset.

        Raises:
            UsageError: the symmetric buffer was freed or deleted on this rank.
            CommunicationError: the memory of `rank` cannot be mapped.
        """
        if self.readable is not None and is_in_file(location):
            return file_memories().map(self.readable[rank], location)
        return self.symmetric.resolve(rank, location)

    def raise_mismatch(self, arguments: Sequence[object]) -> NoReturn:
        """Gather `arguments` of the node's ranks, and raise a MismatchError that lists the arguments that differ."""
        arguments_by_rank = {self.rank: arguments}
        requests = [self.comm.isend(arguments, rank, _MISMATCH_TAG) for rank in self.others]
        arguments_by_rank |= {rank: self.comm.recv(source=rank, tag=_MISMATCH_TAG) for rank in self.others}
        for request in requests:
            request.wait()
        differing = [
            at for at in range(len(COMPARED_ARGUMENTS)) if len({other[at] for other in arguments_by_rank.values()}) > 1
        ]
        listed = "; ".join(
            f"rank {rank}: " + ", ".join(f"{COMPARED_ARGUMENTS[at]} {other[at]}" for at in differing)
            for rank, other in sorted(arguments_by_rank.items())
        )
        raise MismatchError(
            f"ranks called different collectives: {listed}; pass the same arguments on every rank ({DEBUG_HINT})"
        )

    def retract(self) -> None:
        """Keep the node's other ranks from passing a fence; called after a rank's death, before an error is raised."""
        self.barrier.retract()
        self.pipeline_barrier.retract()

    def free(self) -> None:
        """Release all shared memory; to be called before MPI is finalized."""
        self.symmetric.close()
        if self.device is not None:
            self.device.free()
            self.device = None
        self.barrier.free()
        self.pipeline_barrier.free()
        self.slots = self.pipeline_slots = self.pipeline_counters = ()
        self.barrier_lines = self.barrier_lines[:0].copy()
        self.pipelines.clear()
        self.runs.clear()


def choose_slot_bytes(most_bytes: int, slots: int, ranks_of_node: int) -> int:
    """Return the size in bytes of a slot (a rank's staging buffer): `most_bytes`, or less to limit a node's slots.

    All slots of a node together have at most MOST_SLOT_BYTES_OF_NODE bytes.
    All nodes have slots of one size, so `ranks_of_node` is the largest number of ranks on a node.
    """
    return min(most_bytes, MOST_SLOT_BYTES_OF_NODE // (ranks_of_node * slots) // PAGESIZE * PAGESIZE)


def compute_fingerprint(arguments: Sequence[object]) -> int:
    """Return a hash of a collective's arguments; equal arguments have equal hashes in all processes."""
    from hashlib import blake2b

    return int.from_bytes(blake2b(repr(arguments).encode(), digest_size=8).digest()) & FINGERPRINT
