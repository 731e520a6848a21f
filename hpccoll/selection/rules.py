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


# The rules follow from timings of all_reduce with new arrays in each call, on two cores of an AMD EPYC, with MPICH
# 5.0.2. The tables have medians in us.
#
# 2 ranks          8 B  1 KiB  4 KiB  16 KiB  64 KiB  256 KiB  1 MiB
# MPI library      2.0    4.2    4.5      15      28       73    198
# shared_one_shot  0.5    0.8    1.2     3.9      12       37    198
# shared_two_shot  0.6    0.9    1.3     2.1     5.4       17    145
#
# 4 ranks          64 KiB  256 KiB  1 MiB  4 MiB
# MPI library         286      575   1246   4418
# shared_two_shot      99      363   1088   3097
#
# On 4 ranks, 4 KiB and 16 KiB take 36 and 85 us by `shared_one_shot`, and 156 and 378 us by the MPI library; 16 KiB
# take as long by `shared_two_shot`.
# In `shared_one_shot`, each rank reads the messages of all ranks, so its work grows with the number of ranks. In us:
#
# 16 cores of an Intel Xeon  1 KiB  4 KiB  16 KiB  64 KiB  256 KiB  1 MiB
# 8 ranks, shared_one_shot     5.0    8.3      25      93
# 8 ranks, shared_two_shot                     11      24       90    392
# 8 ranks, rabenseifner                                        137    478
# 16 ranks, shared_one_shot    7.7     12      49     200
# 16 ranks, shared_two_shot                    17      36
ONE_NODE_RULES: dict[tuple[Operation, BufferKind], tuple[SizeRule, ...]] = {
    (Operation.ALL_REDUCE, BufferKind.HOST): (
        SizeRule(KiB, ("shared_one_shot", MPI_LIBRARY), most_ranks=16),
        SizeRule(8 * KiB, ("shared_two_shot", MPI_LIBRARY), most_ranks=2),
        SizeRule(8 * KiB, ("shared_one_shot", MPI_LIBRARY), most_ranks=16),
        SizeRule(8 * KiB, (MPI_LIBRARY,)),
        SizeRule(256 * KiB, ("shared_two_shot", MPI_LIBRARY)),
        SizeRule(ANY_SIZE, ("shared_two_shot", "rabenseifner")),
    ),
    # With symmetric buffers, 8 B and 64 KiB take 1.2 and 2.1 us by `shared_two_shot` on 2 ranks, 3.3 and 24 us by MPI.
    # On 4 ranks that share 2 cores, they take 9.9 and 13 us by `shared_two_shot`, 19 and 96 us by MPI.
    (Operation.ALL_REDUCE, BufferKind.SYMMETRIC): (SizeRule(ANY_SIZE, ("shared_two_shot",)),),
    (Operation.BARRIER, BufferKind.HOST): (
        SizeRule(ANY_SIZE, ("shared", MPI_LIBRARY), most_ranks=16),
        SizeRule(ANY_SIZE, (MPI_LIBRARY, "shared")),
    ),
    # Times in us on two cores of an EPYC, of calls on inputs that every rank has just written. MPI is MPICH, and sizes
    # are those of whole messages.
    #
    # by MPI / `shared`, 2 ranks     16 KiB  256 KiB     1 MiB      4 MiB        16 MiB
    # broadcast                   8.9 / 2.3  56 / 18   97 / 64  350 / 226   1810 / 1110
    # all_gather                  9.4 / 2.3  47 / 17   83 / 59  222 / 232   1910 / 1940
    # reduce                       14 / 1.9  70 / 14  152 / 56  835 / 272  18500 / 2100
    # reduce_scatter               11 / 2.1  52 / 14  114 / 51  371 / 177   3090 / 1750
    # all_to_all                   15 / 2.4  32 / 15   79 / 52  246 / 235   2180 / 2260
    # by MPI / `shared`, 4 ranks   16 KiB   256 KiB      1 MiB        4 MiB        16 MiB
    # broadcast                   30 / 13  149 / 86  311 / 237    679 / 669   4560 / 3880
    # all_gather                   34 / 9   93 / 37  204 / 196    702 / 776   4710 / 4950
    # reduce                      49 / 12  184 / 53  508 / 236  3730 / 1620  36200 / 6890
    # reduce_scatter               32 / 8  114 / 41  297 / 157  1250 / 1070   7440 / 5130
    # all_to_all                  37 / 13  107 / 84  216 / 211  1510 / 1220   6660 / 5640
    #
    # If the cores have no common cache, a broadcast of 512 KiB on 2 ranks takes 324 us by MPI (73 us if the root
    # has not changed the array), and 93 us by `shared`.
    # On 4 ranks, a broadcast of 1 KiB takes 6.9 us by MPI, 9.4 us by `shared`, and 1.2 us by `tree`, in which no rank
    # waits for all other ranks.
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
    # With symmetric buffers, 8 B to 4 KiB take 1.3 to 1.9 us by `shared` on 2 ranks, and 3.1 to 5.5 us by MPI. On 4
    # ranks that share 2 cores, they take 10 us by `shared`, and 18 to 30 us by MPI, but 5 to 7 us by MPI for those in
    # which not every rank waits for all others.
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

# These rules are for calls on one node, in host memory, for which one plan serves many calls: prepared calls, and
# blocking calls of equal blocks. (A plan for new block sizes takes milliseconds.) Times in us:
#
# by MPI / `shared`                1 KiB    64 KiB      1 MiB       4 MiB
# gather, 2 ranks              2.0 / 0.9  10 / 4.1    64 / 68   251 / 196
# scatter, 2 ranks             2.6 / 0.8  12 / 3.1    75 / 55   157 / 131
# gather, 4 ranks on 2 cores     13 / 15   40 / 17   363 / 78  1400 / 204
# scatter, 4 ranks on 2 cores  7.5 / 6.0   37 / 14  148 / 108   641 / 423
#
# By `tree`, a gather of 1 KiB on these 4 ranks takes 5.1 us, and a scatter 1.2 us.
# If the two cores have no common cache, a gather of 16 MiB on 2 ranks takes 2470 us by MPI and 3110 us by `shared`, and
# MPI is up to twice as fast for inputs that do not change, from 512 KiB in a gather and from 8 MiB in a scatter.
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

# Across nodes, the rules prefer the MPI library for short messages, few rounds between nodes for medium messages, and
# few bytes between nodes for long messages.
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
# On two nodes of `hpccoll lab` without a limit of the rate, two-level plans take 79 us for an all_reduce of 128 KiB and
# 8.4 ms for 8 MiB; `recursive_doubling` takes 51 us for 128 KiB, and `ring` 5.9 ms for 8 MiB. An all_gather of 1 MiB
# takes 379 us by `hierarchical_ring` and 243 us by `ring`, a reduce_scatter of 1 MiB 386 and 281 us.
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
        buffer: the kind of memory of the buffers.
        nbytes: the message size in bytes.
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
