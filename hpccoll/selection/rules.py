"""Fixed rules by message size: what `algorithm="auto"` runs where `hpccoll tune` measured nothing."""

from __future__ import annotations

from dataclasses import dataclass

from hpccoll.plan import Operation
from hpccoll.selection.tuning_table import MPI_LIBRARY, BufferKind
from hpccoll.units import KiB, MiB


@dataclass(frozen=True, slots=True)
class SizeRule:
    """A rule: candidates (algorithm names), best first, for messages below `below_bytes` on few ranks.

    `most_ranks` is the largest number of ranks to which the rule applies.
    """

    below_bytes: float
    candidates: tuple[str, ...]
    most_ranks: float = float("inf")


ANY_SIZE = float("inf")


def _prefer_plans(medium: str, medium_below: int, long: str) -> tuple[SizeRule, ...]:
    """Return rules for several nodes: the MPI library first below 32 KiB, `medium` below `medium_below`, then `long`.

    `medium` and `long` are names of algorithms, and `medium_below` is in bytes.
    """
    return SizeRule(32 * KiB, (MPI_LIBRARY, medium)), SizeRule(medium_below, (medium,)), SizeRule(ANY_SIZE, (long,))


def _prefer_shared(below: float, *above: str) -> tuple[SizeRule, ...]:
    """Return rules for one node: the algorithm `shared` on at most 4 ranks, the MPI library below 16 KiB on others.

    `above` are the candidates, best first, for messages from `below` bytes on, and on more than 4 ranks from 16 KiB on.
    """
    few = ("shared", MPI_LIBRARY)
    return (
        SizeRule(16 * KiB, few, 4),
        SizeRule(16 * KiB, (MPI_LIBRARY,)),
        SizeRule(below, few, 4),
        SizeRule(ANY_SIZE, above),
    )


# The rules follow from timings with new arrays in each call, on two cores of an AMD EPYC, with MPICH 5.0.2.
# An all_reduce of 8 B, 4 KiB, 64 KiB and 1 MiB on 2 ranks takes 2.0, 4.5, 28 and 198 us by the MPI library.
# On 2 ranks, an all_reduce of 8 B, 4 KiB, 64 KiB and 1 MiB takes 0.5, 1.2, 12 and 198 us by `shared_one_shot`.
# On 2 ranks, an all_reduce of 8 B, 4 KiB, 64 KiB and 1 MiB takes 0.6, 1.3, 5.4 and 145 us by `shared_two_shot`.
# An all_reduce of 64 KiB, 256 KiB, 1 MiB and 4 MiB on 4 ranks takes 286, 575, 1246 and 4418 us by the MPI library.
# For 64 KiB, 256 KiB, 1 MiB and 4 MiB on 4 ranks, `shared_two_shot` takes 99, 363, 1088 and 3097 us.
# For 4 KiB and 16 KiB on 4 ranks, `shared_one_shot` takes 36 and 85 us, and the MPI library 156 and 378 us.
# For 16 KiB on 4 ranks, `shared_two_shot` takes as long as `shared_one_shot`.
# In `shared_one_shot`, each rank reads the messages of all ranks, so its work grows with the number of ranks.
# On 8 ranks (16 cores of an Intel Xeon), `shared_one_shot` takes 5.0, 25 and 93 us for 1 KiB, 16 KiB and 64 KiB.
# On 16 ranks (16 cores of an Intel Xeon), `shared_one_shot` takes 7.7, 49 and 200 us for 1 KiB, 16 KiB and 64 KiB.
# For 16 KiB and 64 KiB, `shared_two_shot` takes 11 and 24 us on 8 ranks of the Xeon, 17 and 36 us on 16 ranks.
# For 256 KiB and 1 MiB on 8 ranks of the Xeon, `shared_two_shot` takes 90 and 392 us, and `rabenseifner` 137 and 478.
ONE_NODE_RULES: dict[tuple[Operation, BufferKind], tuple[SizeRule, ...]] = {
    (Operation.ALL_REDUCE, BufferKind.HOST): (
        SizeRule(KiB, ("shared_one_shot", MPI_LIBRARY), most_ranks=16),
        SizeRule(8 * KiB, ("shared_two_shot", MPI_LIBRARY), most_ranks=2),
        SizeRule(8 * KiB, ("shared_one_shot", MPI_LIBRARY), most_ranks=16),
        SizeRule(8 * KiB, (MPI_LIBRARY,)),
        SizeRule(256 * KiB, ("shared_two_shot", MPI_LIBRARY)),
        SizeRule(ANY_SIZE, ("shared_two_shot", "rabenseifner")),
    ),
    # With symmetric buffers on 2 ranks, `shared_two_shot` takes 1.2 and 2.1 us for 8 B and 64 KiB, MPI 3.3 and 24 us.
    # On 4 ranks that share 2 cores, `shared_two_shot` takes 9.9 and 13 us for 8 B and 64 KiB, MPI 19 and 96 us.
    (Operation.ALL_REDUCE, BufferKind.SYMMETRIC): (SizeRule(ANY_SIZE, ("shared_two_shot",)),),
    (Operation.BARRIER, BufferKind.HOST): (
        SizeRule(ANY_SIZE, ("shared", MPI_LIBRARY), most_ranks=16),
        SizeRule(ANY_SIZE, (MPI_LIBRARY, "shared")),
    ),
    # The following times are from two cores of an EPYC, of calls on inputs that every rank has just written.
    # MPI stands for MPICH, and the message sizes are those of the whole message.
    # On 2 ranks, a broadcast of 16 and 256 KiB, 1, 4 and 16 MiB takes 8.9, 56, 97, 350 and 1810 us by MPI.
    # On 2 ranks, a broadcast of 16 and 256 KiB, 1, 4 and 16 MiB takes 2.3, 18, 64, 226 and 1110 us by `shared`.
    # On 2 ranks, an all_gather of 16 and 256 KiB, 1, 4 and 16 MiB takes 9.4, 47, 83, 222 and 1910 us by MPI.
    # On 2 ranks, an all_gather of 16 and 256 KiB, 1, 4 and 16 MiB takes 2.3, 17, 59, 232 and 1940 us by `shared`.
    # On 2 ranks, a reduce of 16 and 256 KiB, 1, 4 and 16 MiB takes 14, 70, 152, 835 and 18500 us by MPI.
    # On 2 ranks, a reduce of 16 and 256 KiB, 1, 4 and 16 MiB takes 1.9, 14, 56, 272 and 2100 us by `shared`.
    # On 2 ranks, a reduce_scatter of 16 and 256 KiB, 1, 4 and 16 MiB takes 11, 52, 114, 371 and 3090 us by MPI.
    # On 2 ranks, a reduce_scatter of 16 and 256 KiB, 1, 4 and 16 MiB takes 2.1, 14, 51, 177 and 1750 us by `shared`.
    # On 2 ranks, an all_to_all of 16 and 256 KiB, 1, 4 and 16 MiB takes 15, 32, 79, 246 and 2180 us by MPI.
    # On 2 ranks, an all_to_all of 16 and 256 KiB, 1, 4 and 16 MiB takes 2.4, 15, 52, 235 and 2260 us by `shared`.
    # On 4 ranks, a broadcast of 16 and 256 KiB, 1, 4 and 16 MiB takes 30, 149, 311, 679 and 4560 us by MPI.
    # On 4 ranks, a broadcast of 16 and 256 KiB, 1, 4 and 16 MiB takes 13, 86, 237, 669 and 3880 us by `shared`.
    # On 4 ranks, an all_gather of 16 and 256 KiB, 1, 4 and 16 MiB takes 34, 93, 204, 702 and 4710 us by MPI.
    # On 4 ranks, an all_gather of 16 and 256 KiB, 1, 4 and 16 MiB takes 9, 37, 196, 776 and 4950 us by `shared`.
    # On 4 ranks, a reduce of 16 and 256 KiB, 1, 4 and 16 MiB takes 49, 184, 508, 3730 and 36200 us by MPI.
    # On 4 ranks, a reduce of 16 and 256 KiB, 1, 4 and 16 MiB takes 12, 53, 236, 1620 and 6890 us by `shared`.
    # On 4 ranks, a reduce_scatter of 16 and 256 KiB, 1, 4 and 16 MiB takes 32, 114, 297, 1250 and 7440 us by MPI.
    # On 4 ranks, a reduce_scatter of 16 and 256 KiB, 1, 4 and 16 MiB takes 8, 41, 157, 1070 and 5130 us by `shared`.
    # On 4 ranks, an all_to_all of 16 and 256 KiB, 1, 4 and 16 MiB takes 37, 107, 216, 1510 and 6660 us by MPI.
    # On 4 ranks, an all_to_all of 16 and 256 KiB, 1, 4 and 16 MiB takes 13, 84, 211, 1220 and 5640 us by `shared`.
    # If the cores have no common cache, a broadcast of 512 KiB on 2 ranks takes 324 us by MPI and 93 us by `shared`.
    # If the cores have no common cache, MPI broadcasts 512 KiB that the root has not changed in 73 us.
    # On 4 ranks, a broadcast of 1 KiB takes 6.9 us by MPI, 9.4 us by `shared`, and 1.2 us by `tree`.
    # In a broadcast by `tree`, no rank waits for all other ranks, as ranks do in one by `shared`.
    # On 8 ranks, a reduce_scatter of 256 KiB and 16 MiB takes 1040 and 14300 us by MPI, 480 and 9880 us by `shared`.
    (Operation.BROADCAST, BufferKind.HOST): (
        SizeRule(8 * KiB, ("shared", MPI_LIBRARY), most_ranks=2),
        SizeRule(8 * KiB, ("tree", MPI_LIBRARY), most_ranks=4),
        SizeRule(ANY_SIZE, ("shared", MPI_LIBRARY), most_ranks=4),
        SizeRule(ANY_SIZE, (MPI_LIBRARY,)),
    ),
    (Operation.ALL_GATHER, BufferKind.HOST): _prefer_shared(8 * MiB, MPI_LIBRARY),
    **{
        (operation, BufferKind.HOST): (
            *_prefer_shared(128 * KiB)[:-1],
            SizeRule(ANY_SIZE, ("shared",), most_ranks=8),
            SizeRule(ANY_SIZE, ()),
        )
        for operation in (Operation.REDUCE, Operation.REDUCE_SCATTER)
    },
    **{
        (operation, BufferKind.HOST): (
            SizeRule(16 * KiB, (MPI_LIBRARY,)),
            SizeRule(128 * KiB, ("shared", MPI_LIBRARY), most_ranks=2),
            SizeRule(ANY_SIZE, (MPI_LIBRARY,)),
        )
        for operation in (Operation.GATHER, Operation.SCATTER)
    },
    (Operation.ALL_TO_ALL, BufferKind.HOST): _prefer_shared(8 * MiB, MPI_LIBRARY),
    # With symmetric buffers on 2 ranks, `shared` takes 1.3 to 1.9 us from 8 B to 4 KiB, and MPI 3.1 to 5.5 us.
    # On 4 ranks that share 2 cores, `shared` takes 10 us from 8 B to 4 KiB, and MPI 18 to 30 us.
    # On 4 ranks that share 2 cores, MPI takes 5 to 7 us for collectives in which not every rank waits for all others.
    **{
        (operation, BufferKind.SYMMETRIC): (SizeRule(ANY_SIZE, ("shared",)),)
        for operation in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL)
    },
    **{
        (operation, BufferKind.SYMMETRIC): (
            SizeRule(4 * KiB, ("shared",), most_ranks=2),
            SizeRule(4 * KiB, (MPI_LIBRARY,)),
            SizeRule(ANY_SIZE, ("shared",)),
        )
        for operation in (Operation.BROADCAST, Operation.REDUCE, Operation.GATHER, Operation.SCATTER)
    },
}

# These rules are for calls on one node, in host memory, for which one plan serves many calls.
# A plan serves prepared calls, and blocking calls of equal blocks; a plan for new block sizes takes milliseconds.
# A gather of 1 KiB, 64 KiB, 1 MiB and 4 MiB on 2 ranks takes 2.0, 10, 64 and 251 us by MPI.
# A gather of 1 KiB, 64 KiB, 1 MiB and 4 MiB on 2 ranks takes 0.9, 4.1, 68 and 196 us by `shared`.
# A scatter of 1 KiB, 64 KiB, 1 MiB and 4 MiB on 2 ranks takes 2.6, 12, 75 and 157 us by MPI.
# A scatter of 1 KiB, 64 KiB, 1 MiB and 4 MiB on 2 ranks takes 0.8, 3.1, 55 and 131 us by `shared`.
# On 4 ranks that share 2 cores, a gather of 1 KiB, 64 KiB, 1 MiB and 4 MiB takes 13, 40, 363 and 1400 us by MPI.
# On 4 ranks that share 2 cores, a gather of 1 KiB, 64 KiB, 1 MiB and 4 MiB takes 15, 17, 78 and 204 us by `shared`.
# On 4 ranks that share 2 cores, a scatter of 1 KiB, 64 KiB, 1 MiB and 4 MiB takes 7.5, 37, 148 and 641 us by MPI.
# On 4 ranks that share 2 cores, a scatter of 1 KiB, 64 KiB, 1 MiB and 4 MiB takes 6.0, 14, 108 and 423 us by `shared`.
# If the two cores have no common cache, a gather of 16 MiB on 2 ranks takes 2470 us by MPI and 3110 us by `shared`, and
# MPI is up to twice as fast for inputs that do not change, from 512 KiB in a gather and from 8 MiB in a scatter.
# On 4 ranks that share 2 cores, a gather of 1 KiB takes 5.1 us by `tree`, and a scatter of 1 KiB 1.2 us.
REUSED_PLAN_RULES: dict[Operation, tuple[SizeRule, ...]] = {
    Operation.GATHER: (
        SizeRule(16 * KiB, ("tree", MPI_LIBRARY), most_ranks=4),
        SizeRule(512 * KiB, ("shared", MPI_LIBRARY), most_ranks=4),
        SizeRule(ANY_SIZE, (MPI_LIBRARY,), most_ranks=2),
        SizeRule(ANY_SIZE, ("shared", MPI_LIBRARY), most_ranks=4),
    ),
    Operation.SCATTER: (
        SizeRule(16 * KiB, ("shared", MPI_LIBRARY), most_ranks=2),
        SizeRule(16 * KiB, ("tree", MPI_LIBRARY), most_ranks=4),
        SizeRule(8 * MiB, ("shared", MPI_LIBRARY), most_ranks=4),
        SizeRule(ANY_SIZE, (MPI_LIBRARY,), most_ranks=2),
        SizeRule(ANY_SIZE, ("shared", MPI_LIBRARY), most_ranks=4),
    ),
}

# Across nodes, the rules prefer the MPI library for short messages.
# The rules prefer few rounds between nodes for medium messages, and few bytes between nodes for long messages.
MULTI_NODE_RULES: dict[Operation, tuple[SizeRule, ...]] = {
    Operation.ALL_REDUCE: _prefer_plans("hierarchical_doubling", 512 * KiB, "hierarchical_ring"),
    Operation.REDUCE_SCATTER: _prefer_plans("hierarchical_bruck", 512 * KiB, "hierarchical_ring"),
    Operation.ALL_GATHER: _prefer_plans("hierarchical_bruck", 512 * KiB, "hierarchical_ring"),
    Operation.BROADCAST: _prefer_plans("hierarchical_tree", 256 * KiB, "hierarchical_chain"),
    Operation.REDUCE: _prefer_plans("hierarchical_tree", 256 * KiB, "hierarchical_chain"),
    Operation.GATHER: (SizeRule(256 * KiB, (MPI_LIBRARY,)), SizeRule(ANY_SIZE, ("hierarchical_direct",))),
    Operation.SCATTER: (SizeRule(256 * KiB, (MPI_LIBRARY,)), SizeRule(ANY_SIZE, ("hierarchical_direct",))),
    Operation.ALL_TO_ALL: (SizeRule(8 * KiB, (MPI_LIBRARY,)), SizeRule(ANY_SIZE, ("hierarchical_pairwise",))),
    Operation.SCAN: (SizeRule(ANY_SIZE, (MPI_LIBRARY,)),),
    Operation.EXSCAN: (SizeRule(ANY_SIZE, (MPI_LIBRARY,)),),
    Operation.BARRIER: (SizeRule(ANY_SIZE, (MPI_LIBRARY, "hierarchical_dissemination")),),
}

# With one rank per node, two-level plans gain nothing from shared memory, and asynchronous ones wait for each other.
# The following times are from two nodes of `hpccoll lab` without a limit of the rate.
# An all_reduce of 128 KiB between two nodes takes 79 us by two-level plans, and 51 us by `recursive_doubling`.
# An all_reduce of 8 MiB between two nodes takes 8.4 ms by two-level plans, and 5.9 ms by `ring`.
# Between two nodes, `hierarchical_ring` and `ring` take 379 and 243 us for an all_gather of 1 MiB.
# Between two nodes, `hierarchical_ring` and `ring` take 386 and 281 us for a reduce_scatter of 1 MiB.
ONE_RANK_PER_NODE_RULES: dict[Operation, tuple[SizeRule, ...]] = {
    Operation.ALL_REDUCE: _prefer_plans("recursive_doubling", 512 * KiB, "ring"),
    Operation.REDUCE_SCATTER: _prefer_plans("bruck", 512 * KiB, "ring"),
    Operation.ALL_GATHER: _prefer_plans("bruck", 512 * KiB, "ring"),
}


def find_rule_candidates(
    operation: Operation, buffer: BufferKind, nbytes: int, ranks: int, nodes: int, *, reuses_plan: bool = True
) -> tuple[str, ...]:
    """Return the names of the algorithms that fixed rules prefer for a message, best first; may be empty.

    On several nodes, the last one is always `mpi`, the MPI library's own collective.

    Args:
        operation: the collective.
        buffer: the kind of memory of the buffers.
        nbytes: the message size in bytes.
        ranks: the number of ranks.
        nodes: the number of nodes.
        reuses_plan: whether one plan serves many calls.
    """
    rules = MULTI_NODE_RULES[operation] if nodes > 1 else ONE_NODE_RULES.get((operation, buffer), ())
    if ranks == nodes > 1 and buffer is not BufferKind.CUDA:
        rules = ONE_RANK_PER_NODE_RULES.get(operation, rules)
    if reuses_plan and nodes == 1 and buffer is BufferKind.HOST:
        rules = (*REUSED_PLAN_RULES.get(operation, ()), *rules)
    fitting = (rule.candidates for rule in rules if nbytes < rule.below_bytes and ranks <= rule.most_ranks)
    candidates = next(fitting, ())
    return (*candidates, MPI_LIBRARY) if nodes > 1 else candidates
