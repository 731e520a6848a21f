"""Fixed rules by message size: what `algorithm="auto"` runs where `hpccoll tune` measured nothing."""

from __future__ import annotations

from dataclasses import dataclass

from hpccoll.plan import Operation
from hpccoll.selection.tuning_table import MPI_LIBRARY, BufferKind
from hpccoll.units import KiB, MiB


@dataclass(frozen=True, slots=True)
class SizeRule:
    """The candidate algorithms for messages below `below_bytes`, best first; if empty, the cost model selects."""

    below_bytes: float
    candidates: tuple[str, ...]


ANY_SIZE = float("inf")


def _prefer_hierarchical(medium: str, medium_below: int, long: str) -> tuple[SizeRule, ...]:
    """Return rules for several nodes: the MPI library first below 32 KiB, then `medium`, then `long`."""
    return SizeRule(32 * KiB, (MPI_LIBRARY, medium)), SizeRule(medium_below, (medium,)), SizeRule(ANY_SIZE, (long,))


# The rules rest on times of all_reduce, measured with two ranks on two cores, MPICH 5.0.2, fresh data per call.
# all_reduce by the MPI library: 13 us for 4 KiB, 31 us for 32 KiB, 57 us for 256 KiB, 508 us for 2 MiB.
# all_reduce by the fastest plan of messages: 12 us for 4 KiB, 18 us for 32 KiB, 47 us for 256 KiB, 349 us for 2 MiB.
# all_reduce/shared_two_shot on host memory: 16 us for 4 KiB, 10 us for 32 KiB, 49 us for 256 KiB, 423 us for 2 MiB.
# all_reduce/shared_two_shot on shared memory: 9 us for 4 KiB, 10 us for 32 KiB, 20 us for 256 KiB, 138 us for 2 MiB.
# The rules for messages above 2 MiB and for more than two ranks are guesses.
ONE_NODE_RULES: dict[tuple[Operation, BufferKind], tuple[SizeRule, ...]] = {
    (Operation.ALL_REDUCE, BufferKind.HOST): (
        SizeRule(8 * KiB, (MPI_LIBRARY, "shared_one_shot")),
        SizeRule(128 * KiB, ("shared_two_shot", MPI_LIBRARY)),
        SizeRule(8 * MiB, ("rabenseifner",)),
        SizeRule(ANY_SIZE, ("shared_two_shot",)),
    ),
    (Operation.ALL_REDUCE, BufferKind.SYMMETRIC): (
        SizeRule(8 * KiB, (MPI_LIBRARY, "shared_one_shot")),
        SizeRule(ANY_SIZE, ("shared_two_shot",)),
    ),
    (Operation.BARRIER, BufferKind.HOST): (SizeRule(ANY_SIZE, (MPI_LIBRARY, "shared")),),
    **{
        (operation, buffer): (SizeRule(16 * KiB, (MPI_LIBRARY,)), SizeRule(ANY_SIZE, above))
        for operation in Operation
        if operation not in (Operation.ALL_REDUCE, Operation.BARRIER)
        for buffer, above in ((BufferKind.HOST, ()), (BufferKind.SYMMETRIC, ("shared",)))
    },
}

# Across nodes, the rules prefer the MPI library for short messages.
# The rules prefer few rounds between nodes for medium messages, and few bytes between nodes for long messages.
MULTI_NODE_RULES: dict[Operation, tuple[SizeRule, ...]] = {
    Operation.ALL_REDUCE: _prefer_hierarchical("hierarchical_doubling", 512 * KiB, "hierarchical_ring"),
    Operation.REDUCE_SCATTER: _prefer_hierarchical("hierarchical_bruck", 512 * KiB, "hierarchical_ring"),
    Operation.ALL_GATHER: _prefer_hierarchical("hierarchical_bruck", 512 * KiB, "hierarchical_ring"),
    Operation.BROADCAST: _prefer_hierarchical("hierarchical_tree", 256 * KiB, "hierarchical_chain"),
    Operation.REDUCE: _prefer_hierarchical("hierarchical_tree", 256 * KiB, "hierarchical_chain"),
    Operation.GATHER: (SizeRule(256 * KiB, (MPI_LIBRARY,)), SizeRule(ANY_SIZE, ("hierarchical_direct",))),
    Operation.SCATTER: (SizeRule(256 * KiB, (MPI_LIBRARY,)), SizeRule(ANY_SIZE, ("hierarchical_direct",))),
    Operation.ALL_TO_ALL: (SizeRule(8 * KiB, (MPI_LIBRARY,)), SizeRule(ANY_SIZE, ("hierarchical_pairwise",))),
    Operation.BARRIER: (SizeRule(ANY_SIZE, (MPI_LIBRARY, "hierarchical_dissemination")),),
}


def find_rule_candidates(operation: Operation, buffer: BufferKind, nbytes: int, nodes: int) -> tuple[str, ...]:
    """Return candidates for a message, best first, maybe none; on several nodes `mpi` (the library) is always last."""
    rules = MULTI_NODE_RULES[operation] if nodes > 1 else ONE_NODE_RULES.get((operation, buffer), ())
    candidates = next((rule.candidates for rule in rules if nbytes < rule.below_bytes), ())
    return (*candidates, MPI_LIBRARY) if nodes > 1 else candidates
