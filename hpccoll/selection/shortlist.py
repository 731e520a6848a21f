"""The few algorithms that a benchmark compares by default: those that may be the fastest for a message size.

An algorithm may be the fastest if the fixed rules name it for this message size or for one that is `NEIGHBOUR` times
smaller or larger, or if the cost model predicts at most `NEAR` times the smallest predicted time.
"""

from __future__ import annotations

from hpccoll.algorithms import get_algorithm
from hpccoll.plan import Operation
from hpccoll.selection.cost_model import MODELLED_ALGORITHMS, LinkCost, choose_chunk_count, predict_seconds
from hpccoll.selection.rules import find_rule_candidates
from hpccoll.selection.tuning_table import MPI_LIBRARY, BufferKind

NEAR = 1.25
NEIGHBOUR = 4
MOST = 4


def shortlist_algorithms(
    operation: Operation, buffer: BufferKind, nbytes: int, ranks: int, nodes: int
) -> tuple[str, ...]:
    """Return the names of at least one and up to `MOST` algorithms that may be the fastest, the likeliest first.

    The MPI library's own collective is not in the list. Cost: tens of microseconds, without communication.

    Args:
        buffer: the kind of memory of the buffers.
        nbytes: the message size in bytes.
    """
    sizes = (nbytes, nbytes * NEIGHBOUR, nbytes // NEIGHBOUR)
    by_rules = [] if ranks < 2 else [find_rule_candidates(operation, buffer, size, ranks, nodes) for size in sizes]
    names = dict.fromkeys(name for candidates in by_rules for name in candidates if name != MPI_LIBRARY)
    seconds = {name: _predict(operation, name, nbytes, ranks) for name in MODELLED_ALGORITHMS[operation]}
    limit = NEAR * min(seconds.values())
    near = sorted((name for name in seconds if seconds[name] <= limit), key=lambda name: seconds[name])
    able = [name for name in dict.fromkeys((*names, *near)) if _can_run(operation, name, buffer, nodes)]
    return tuple(able[:MOST])


def _predict(operation: Operation, name: str, nbytes: int, ranks: int) -> float:
    """Return the seconds that the cost model predicts for the algorithm `operation/name`."""
    algorithm = get_algorithm(operation, name)
    return predict_seconds(algorithm, ranks, choose_chunk_count(algorithm, ranks, nbytes), nbytes, LinkCost())


def _can_run(operation: Operation, name: str, buffer: BufferKind, nodes: int) -> bool:
    """Whether the algorithm `operation/name` works on this kind of memory and number of nodes."""
    algorithm = get_algorithm(operation, name)
    host = buffer is not BufferKind.CUDA
    return not algorithm.uses_shared_memory or (host and (algorithm.is_two_level or nodes == 1))
