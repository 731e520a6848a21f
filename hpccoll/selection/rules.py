"""Fixed rules by message size: what `algorithm="auto"` runs where `hpccoll tune` measured nothing."""

from __future__ import annotations

from dataclasses import dataclass

from hpccoll.plan import Operation
from hpccoll.selection.tuning_table import MPI_LIBRARY, BufferKind
from hpccoll.units import KiB, MiB


@dataclass(frozen=True, slots=True)
class SizeRule:
    """The candidates, best first, for messages smaller than `below_bytes` on at most `most_ranks` ranks."""

    below_bytes: float
    candidates: tuple[str, ...]
    most_ranks: float = float("inf")


ANY_SIZE = float("inf")


def _prefer_plans(medium: str, medium_below: int, long: str) -> tuple[SizeRule, ...]:
    """Return rules for several nodes: the MPI library first below 32 KiB, then `medium`, then `long`."""
    return SizeRule(32 * KiB, (MPI_LIBRARY, medium)), SizeRule(medium_below, (medium,)), SizeRule(ANY_SIZE, (long,))


def _prefer_shared(below: float, *above: str) -> tuple[SizeRule, ...]:
    """Return rules for one node: `shared` on at most 4 ranks, else the MPI library below 16 KiB; then `above`."""
    few = ("shared", MPI_LIBRARY)
    return (
        SizeRule(16 * KiB, few, 4),
        SizeRule(16 * KiB, (MPI_LIBRARY,)),
        SizeRule(below, few, 4),
        SizeRule(ANY_SIZE, above),
    )


# The rules follow from timings of all_reduce with new arrays in each call, on two cores of an AMD EPYC, with MPICH
# 5.0.2. These are the medians in microseconds. On 2 ranks, for 8 B, 1 KiB, 4 KiB, 16 KiB, 64 KiB, 256 KiB and 1 MiB:
# MPI library: 2.0, 4.2, 4.5, 15, 28, 73, 198; shared_one_shot: 0.5, 0.8, 1.2, 3.9, 12, 37, 198;
# shared_two_shot: 0.6, 0.9, 1.3, 2.1, 5.4, 17, 145.
# On 4 ranks, for 64 KiB, 256 KiB, 1 MiB and 4 MiB: MPI library: 286, 575, 1246, 4418; shared_two_shot: 99, 363, 1088,
# 3097.
# For 4 KiB and 16 KiB on 4 ranks, shared_one_shot takes 36 and 85 where the MPI library takes 156 and 378; for 16 KiB,
# shared_two_shot takes as long as shared_one_shot there.
# In shared_one_shot, the work of a rank grows with the number of ranks, because each rank reads the messages of all
# ranks. On 16 cores of an Intel Xeon, for 1 KiB, 4 KiB, 16 KiB and 64 KiB, shared_one_shot takes 5.0, 8.3, 25 and 93 on
# 8 ranks, and 7.7, 12, 49 and 200 on 16 ranks. shared_two_shot takes 11 for 16 KiB and 24 for 64 KiB on 8 ranks, 17 and
# 36 on 16 ranks; for 256 KiB and 1 MiB, 90 and 392 on 8 ranks, where rabenseifner takes 137 and 478.
ONE_NODE_RULES: dict[tuple[Operation, BufferKind], tuple[SizeRule, ...]] = {
    (Operation.ALL_REDUCE, BufferKind.HOST): (
        SizeRule(KiB, ("shared_one_shot", MPI_LIBRARY), most_ranks=16),
        SizeRule(8 * KiB, ("shared_two_shot", MPI_LIBRARY), most_ranks=2),
        SizeRule(8 * KiB, ("shared_one_shot", MPI_LIBRARY), most_ranks=16),
        SizeRule(8 * KiB, (MPI_LIBRARY,)),
        SizeRule(256 * KiB, ("shared_two_shot", MPI_LIBRARY)),
        SizeRule(ANY_SIZE, ("shared_two_shot", "rabenseifner")),
    ),
    # Symmetric buffers on 2 ranks, for 8 B, 4 KiB and 64 KiB: `shared_two_shot` 1.2, 1.4 and 2.1 us, MPI 3.3, 6.1 and
    # 24 us; on 4 ranks that share 2 cores 9.9, 10 and 13 us, MPI 19, 33 and 96 us.
    (Operation.ALL_REDUCE, BufferKind.SYMMETRIC): (SizeRule(ANY_SIZE, ("shared_two_shot",)),),
    (Operation.BARRIER, BufferKind.HOST): (
        SizeRule(ANY_SIZE, ("shared", MPI_LIBRARY), most_ranks=16),
        SizeRule(ANY_SIZE, (MPI_LIBRARY, "shared")),
    ),
    # Times on two cores of an EPYC, of calls on inputs that every rank has just written, by MPICH and by `shared`, for
    # 16 KiB, 256 KiB, 1 MiB, 4 MiB and 16 MiB in all. On 2 ranks:
    # broadcast 8.9, 56, 97, 350 and 1810 us by MPI, 2.3, 18, 64, 226 and 1110 us by `shared`;
    # all_gather 9.4, 47, 83, 222 and 1910 us, and 2.3, 17, 59, 232 and 1940 us;
    # reduce 14, 70, 152, 835 and 18500 us, and 1.9, 14, 56, 272 and 2100 us;
    # reduce_scatter 11, 52, 114, 371 and 3090 us, and 2.1, 14, 51, 177 and 1750 us;
    # all_to_all 15, 32, 79, 246 and 2180 us, and 2.4, 15, 52, 235 and 2260 us.
    # If the cores have no common cache, `shared` is up to 5 times as fast as MPI: a broadcast of 512 KiB takes 324 us
    # by MPI and 93 us by `shared`. MPI copies unchanged inputs faster there: 73 us.
    # On 4 ranks that share the cores:
    # broadcast 30, 149, 311, 679 and 4560 us by MPI, 13, 86, 237, 669 and 3880 us by `shared`;
    # all_gather 34, 93, 204, 702 and 4710 us, and 9, 37, 196, 776 and 4950 us;
    # reduce 49, 184, 508, 3730 and 36200 us, and 12, 53, 236, 1620 and 6890 us;
    # reduce_scatter 32, 114, 297, 1250 and 7440 us, and 8, 41, 157, 1070 and 5130 us;
    # all_to_all 37, 107, 216, 1510 and 6660 us, and 13, 84, 211, 1220 and 5640 us.
    # A broadcast of 1 KiB takes 6.9 us by MPI, 9.4 us by `shared`, and 1.2 us by `tree`, in which no rank waits for all
    # others. On 8 ranks, a reduce_scatter of 256 KiB and 16 MiB takes 1040 and 14300 us by MPI, 480 and 9880 us by
    # `shared`.
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
    # Symmetric buffers on 2 ranks, from 8 B to 4 KiB: `shared` 1.3 to 1.9 us, MPI 3.1 to 5.5 us. On 4 ranks that share
    # 2 cores, `shared` takes 10 us, MPI 18 to 30 us, but 5 to 7 us where not every rank waits for all others.
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

# Calls on one node, in host memory, for which one plan serves many calls: prepared calls, and blocking calls of equal
# blocks. (A plan for new block sizes takes milliseconds.) For 1 KiB, 64 KiB, 1 MiB and 4 MiB in all, on 2 ranks:
# gather 2.0, 10, 64 and 251 us by MPI, 0.9, 4.1, 68 and 196 us by `shared`;
# scatter 2.6, 12, 75 and 157 us, and 0.8, 3.1, 55 and 131 us.
# On 4 ranks that share 2 cores: gather 13, 40, 363 and 1400 us, and 15, 17, 78 and 204 us; scatter 7.5, 37, 148 and 641
# us, and 6.0, 14, 108 and 423 us. By `tree`, a gather of 1 KiB takes 5.1 us there, and a scatter 1.2 us.
REUSED_PLAN_RULES: dict[Operation, tuple[SizeRule, ...]] = {
    Operation.GATHER: (
        SizeRule(16 * KiB, ("tree", MPI_LIBRARY), most_ranks=4),
        SizeRule(ANY_SIZE, ("shared", MPI_LIBRARY), most_ranks=4),
    ),
    Operation.SCATTER: (
        SizeRule(16 * KiB, ("shared", MPI_LIBRARY), most_ranks=2),
        SizeRule(16 * KiB, ("tree", MPI_LIBRARY), most_ranks=4),
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
# On two nodes of `hpccoll lab` without a limit of the rate, an all_reduce of 128 KiB (8 MiB) takes 79 us (8.4 ms) by
# two-level plans, and 51 us by `recursive_doubling` (5.9 ms by `ring`). For an all_gather of 1 MiB, `hierarchical_ring`
# takes 379 us and `ring` 243 us; for a reduce_scatter, 386 us and 281 us.
ONE_RANK_PER_NODE_RULES: dict[Operation, tuple[SizeRule, ...]] = {
    Operation.ALL_REDUCE: _prefer_plans("recursive_doubling", 512 * KiB, "ring"),
    Operation.REDUCE_SCATTER: _prefer_plans("bruck", 512 * KiB, "ring"),
    Operation.ALL_GATHER: _prefer_plans("bruck", 512 * KiB, "ring"),
}


def find_rule_candidates(
    operation: Operation, buffer: BufferKind, nbytes: int, ranks: int, nodes: int, *, reuses_plan: bool = True
) -> tuple[str, ...]:
    """Return the candidates for a message, best first (possibly none); on several nodes the last is always `mpi`."""
    rules = MULTI_NODE_RULES[operation] if nodes > 1 else ONE_NODE_RULES.get((operation, buffer), ())
    if ranks == nodes > 1 and buffer is not BufferKind.CUDA:
        rules = ONE_RANK_PER_NODE_RULES.get(operation, rules)
    if reuses_plan and nodes == 1 and buffer is BufferKind.HOST:
        rules = (*REUSED_PLAN_RULES.get(operation, ()), *rules)
    fitting = (rule.candidates for rule in rules if nbytes < rule.below_bytes and ranks <= rule.most_ranks)
    candidates = next(fitting, ())
    return (*candidates, MPI_LIBRARY) if nodes > 1 else candidates
