"""Classifies the transfers of a recorded job into kinds, so that transfers of one kind should take equally long.

Transfers of one kind have the same operation, number of ranks, ranks per node, bytes and element size, and all or none
of them move pickled objects.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hpccoll.algorithms import get_algorithm
from hpccoll.plan import Floats, IntArray, Operation
from hpccoll.profile.dependencies import CallGraph
from hpccoll.profile.matching import FROM_ROOT
from hpccoll.profile.placement import Placement
from hpccoll.selection import MPI_LIBRARY

BLOCK_OPERATIONS = frozenset({"all_gather", "gather"})  # recorded with the bytes of one block
_SIZED_OPERATIONS = frozenset({"broadcast", "gather", "scatter", "all_gather", "all_to_all"})  # of objects, in mpi4py
_SIZE_BYTES = 4  # of the number by which mpi4py sends the size of a pickled object


@dataclass(frozen=True, slots=True)
class ModelledTransfer:
    """A kind of transfers of a job, which should all take equally long.

    Args:
        operation: the collective, or `send` for messages between two ranks.
        ranks: the number of ranks of the communicator.
        nbytes: the message size in bytes; for operations with a block per rank, the size of all blocks together.
        per_node: the number of consecutive ranks of the communicator that share a node; of a message between two ranks,
            2 if they share a node, else 1.
        itemsize: the bytes of an element of the buffers; 0 if unknown.
        is_pickled: whether the transfers move objects that mpi4py pickles.
    """

    operation: str
    ranks: int
    nbytes: int
    per_node: int = 1
    itemsize: int = 0
    is_pickled: bool = False

    @property
    def has_algorithms(self) -> bool:
        """Whether the transfers are those of a collective that moves data between several ranks, by some algorithm."""
        return self.operation not in ("send", "barrier") and self.ranks > 1

    def list_stages(self) -> tuple[ModelledTransfer, ...]:
        """Return the transfers that carry out one of this kind, one after the other.

        For pickled objects, mpi4py sends the sizes by a collective before the objects, and an all-reduce is a reduce
        and a broadcast. All other transfers are a single stage.
        """
        plain = replace(self, is_pickled=False)
        if self.is_pickled and self.operation in _SIZED_OPERATIONS:
            sizes = 1 if self.operation == "broadcast" else self.ranks
            return replace(plain, nbytes=_SIZE_BYTES * sizes), plain
        if self.is_pickled and self.operation == "all_reduce":
            return replace(plain, operation="reduce"), replace(plain, operation="broadcast")
        return (plain,)

    def can_simulate(self, algorithm: str) -> bool:
        """Whether the model has times of an algorithm, given by name.

        The model has no times of the MPI library's own algorithm, nor of algorithms that use shared memory, because it
        only describes messages.
        """
        return algorithm != MPI_LIBRARY and not get_algorithm(Operation(self.operation), algorithm).uses_shared_memory


@dataclass(frozen=True, slots=True)
class JobTransfers:
    """The kinds of a job's transfers.

    Args:
        kinds: the kinds to which the transfers of the job belong.
        index: for each recorded call, the index of its kind in `kinds`, or -1 if it has no transfer; shape (calls,).
    """

    kinds: tuple[ModelledTransfer, ...]
    index: IntArray


def classify_transfers(graph: CallGraph, placement: Placement | None = None) -> JobTransfers:
    """Return the kinds of a recorded job's transfers; a wait has the kind of the operation that it completes.

    `placement` states which ranks share a node; None stands for the recorded placement.
    """
    placement = placement or Placement.read(graph.profile)
    instance = graph.matches.instance
    count = int(instance.max(initial=-1)) + 1
    nbytes, itemsize = np.zeros((2, count), np.int64)
    op, comm = np.full((2, count), -1)
    pickles = (*(graph.profile.pickles or [False] * (len(graph.operations) - 1)), False)  # the last operation is `end`
    inside = instance >= 0
    np.maximum.at(nbytes, instance[inside], graph.nbytes[inside])
    np.maximum.at(itemsize, instance[inside], graph.itemsize[inside])
    np.maximum.at(comm, instance[inside], graph.comm[inside])
    is_own = inside & np.isin(graph.op, [i for i, name in enumerate(graph.operations) if name not in ("wait", "start")])
    op[instance[is_own]] = graph.op[is_own]
    groups = [members or tuple(range(graph.profile.size)) for members in (*graph.profile.comms, ())]  # -1: all
    per_node = [placement.count_per_node(members) for members in groups]
    are_within, numbers = _find_messages_within_nodes(graph, placement, count), dict[ModelledTransfer, int]()
    index = np.full(len(instance), -1)
    for call in np.flatnonzero(inside & (graph.transfer_s > 0)).tolist():
        number = instance[call]
        operation = _choose_modelled_operation(graph.operations[op[number]])
        ranks, mates = len(groups[comm[number]]), per_node[comm[number]]
        size = int(nbytes[number]) * (ranks if operation in BLOCK_OPERATIONS else 1)
        mates = int(are_within[number]) + 1 if operation == "send" else mates
        kind = ModelledTransfer(operation, ranks, size, mates, int(itemsize[number]), pickles[op[number]])
        index[call] = numbers.setdefault(kind, len(numbers))
    return JobTransfers(tuple(numbers), index)


def _find_messages_within_nodes(graph: CallGraph, placement: Placement, count: int) -> NDArray[np.bool_]:
    """Return whether each message is between two ranks of a node, by the message's number; false for collectives.

    `count` is the number of messages and collectives.
    """
    sender, are_within = graph.matches.find_senders(), np.zeros(count, bool)
    number = np.flatnonzero(sender >= 0)
    nodes, source, dest = np.array(placement.nodes), graph.rank[sender[number]], graph.dest[sender[number]]
    are_within[number] = (dest >= 0) & (nodes[source] == nodes[dest])
    return are_within


def _choose_modelled_operation(name: str) -> str:
    """Return the operation that stands for the recorded operation `name` in the model.

    All messages between two ranks are sends, and operations without algorithms, such as a split, are barriers.
    """
    if name in ("send", "recv", "sendrecv"):
        return "send"
    return name if name in {operation.value for operation in Operation} else Operation.BARRIER.value


def grow_transfer(kind: ModelledTransfer, factor: int, *, is_strong: bool = False) -> ModelledTransfer:
    """Return the kind that a kind of transfers becomes in a job with `factor` times as many ranks.

    In a gather or all-gather, the block of each rank keeps its size, or, if `is_strong` is set, the whole array does.
    The messages of other operations keep their sizes.
    """
    if kind.operation == "send":
        return kind
    blocks = factor if kind.operation in BLOCK_OPERATIONS and not is_strong else 1
    return replace(kind, ranks=kind.ranks * factor, nbytes=kind.nbytes * blocks)


@dataclass(frozen=True, slots=True)
class RecordedTransfer:
    """The recorded times of one kind of transfers: mean and median in seconds, and the number of transfers.

    All three are 0 if the recording does not show how long the transfers take.
    """

    seconds: float
    median_s: float
    count: int

    @property
    def is_known(self) -> bool:
        """Whether the recording shows how long the transfers take."""
        return self.count > 0


def measure_transfers(graph: CallGraph, transfers: JobTransfers) -> list[RecordedTransfer]:
    """Return the recorded times of each kind of transfers.

    The time of a collective is the longest transfer of its ranks, because a plan is simulated until its last rank ends.
    The time of a message is the transfer of its receive, because a send may end when the message is in a buffer. If
    some receives of a kind began before the sends, only these receives are used: before a later receive begins, a part
    of its message may have arrived. Of a broadcast or scatter, only ranks that enter before the root are used; if no
    rank ever does, the times are 0. Operations that one call completes, such as Waitall, share its transfer equally.
    """
    recorded, instance, receives = [], graph.matches.instance, graph.matches.received >= 0
    transfer_s = _divide_equally(graph)
    longest = np.zeros(int(instance.max(initial=-1)) + 1)
    for number, kind in enumerate(transfers.kinds):
        calls = np.flatnonzero(transfers.index == number)
        if kind.operation == "send" and receives[calls].any():
            calls = calls[receives[calls]]
        if kind.operation in FROM_ROOT:
            calls = calls[graph.wait_s[calls] > 0]
        if not len(calls):
            recorded.append(RecordedTransfer(0.0, 0.0, 0))
            continue
        np.maximum.at(longest, instance[calls], transfer_s[calls])
        early = calls[graph.wait_s[calls] > 0] if kind.operation == "send" else calls
        count, own = len(np.unique(instance[calls])), np.unique(instance[early if len(early) else calls])
        recorded.append(RecordedTransfer(float(longest[own].mean()), float(np.median(longest[own])), count))
    return recorded


def _divide_equally(graph: CallGraph) -> Floats:
    """Return the transfer seconds of all entries; waits of one call, such as Waitall, share its transfer equally."""
    is_wait = np.array([name == "wait" for name in graph.operations])[graph.op]
    group = np.cumsum(~(is_wait & graph.is_more)) - 1
    return np.asarray((np.bincount(group, graph.transfer_s) / np.bincount(group))[group], np.float64)
