"""Fixed rules by message size, by which `algorithm="auto"` selects where `hpccoll tune` has measured nothing."""

from __future__ import annotations

from dataclasses import dataclass

from hpccoll.plan import Operation
from hpccoll.selection.tuning_table import MPI_LIBRARY, BufferKind
from hpccoll.units import KiB, MiB


@dataclass(frozen=True, slots=True)
class SizeRule:
    """A rule: candidate algorithms, best first, for messages below `below_bytes` on at most `most_ranks` ranks."""

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
    """Return rules for one node that prefer the algorithm `shared` below `below` bytes on at most 4 ranks.

    On more than 4 ranks, the MPI library runs messages below 16 KiB. All other messages have the candidates `above`,
    best first.
    """
    few = ("shared", MPI_LIBRARY)
    return (
        SizeRule(16 * KiB, few, 4),
        SizeRule(16 * KiB, (MPI_LIBRARY,)),
        SizeRule(below, few, 4),
        SizeRule(ANY_SIZE, above),
    )


# In the tables of this file, 16K stands for messages of 16 KiB, all blocks together, and 1M for 1 MiB.
# The rules for all_reduce follow from median times of calls with new arrays on two cores of an EPYC, with MPICH 5.0.2.
# all_reduce, 2 ranks, us by the MPI library:    8B 2.0, 1K 4.2, 4K 4.5, 16K  15, 64K  28, 256K 73, 1M 198
# all_reduce, 2 ranks, us by `shared_one_shot`:  8B 0.5, 1K 0.8, 4K 1.2, 16K 3.9, 64K  12, 256K 37, 1M 198
# all_reduce, 2 ranks, us by `shared_two_shot`:  8B 0.6, 1K 0.9, 4K 1.3, 16K 2.1, 64K 5.4, 256K 17, 1M 145
# all_reduce, 4 ranks, us by the MPI library:    4K 156, 16K 378, 64K 286, 256K 575, 1M 1246, 4M 4418
# all_reduce, 4 ranks, us by `shared_one_shot`:  4K  36, 16K  85
# all_reduce, 4 ranks, us by `shared_two_shot`:          16K  85, 64K  99, 256K 363, 1M 1088, 4M 3097
#
# In `shared_one_shot`, each rank reads the messages of all ranks, so its work grows with the number of ranks.
# all_reduce, 8 ranks on 16 cores of an Intel Xeon, us by `shared_one_shot`:   1K 5.0, 4K 8.3, 16K 25, 64K  93
# all_reduce, 8 ranks on 16 cores of an Intel Xeon, us by `shared_two_shot`:                   16K 11, 64K  24, 256K 90
# all_reduce, 8 ranks on 16 cores of an Intel Xeon, us for 1M: 392 by `shared_two_shot`, 478 by `rabenseifner`
# all_reduce, 8 ranks on 16 cores of an Intel Xeon, us for 256K by `rabenseifner`: 137
# all_reduce, 16 ranks on 16 cores of an Intel Xeon, us by `shared_one_shot`:  1K 7.7, 4K  12, 16K 49, 64K 200
# all_reduce, 16 ranks on 16 cores of an Intel Xeon, us by `shared_two_shot`:                  16K 17, 64K  36
ONE_NODE_RULES: dict[tuple[Operation, BufferKind], tuple[SizeRule, ...]] = {
    (Operation.ALL_REDUCE, BufferKind.HOST): (
        SizeRule(KiB, ("shared_one_shot", MPI_LIBRARY), most_ranks=16),
        SizeRule(8 * KiB, ("shared_two_shot", MPI_LIBRARY), most_ranks=2),
        SizeRule(8 * KiB, ("shared_one_shot", MPI_LIBRARY), most_ranks=16),
        SizeRule(8 * KiB, (MPI_LIBRARY,)),
        SizeRule(256 * KiB, ("shared_two_shot", MPI_LIBRARY)),
        SizeRule(ANY_SIZE, ("shared_two_shot", "rabenseifner")),
    ),
    # An all_reduce of symmetric buffers on 2 ranks, us by `shared_two_shot` / MPI: 8B 1.2 / 3.3, 64K 2.1 / 24
    # An all_reduce of symmetric buffers, 4 ranks on 2 cores, us by `shared_two_shot` / MPI: 8B 9.9 / 19, 64K 13 / 96
    (Operation.ALL_REDUCE, BufferKind.SYMMETRIC): (SizeRule(ANY_SIZE, ("shared_two_shot",)),),
    (Operation.BARRIER, BufferKind.HOST): (
        SizeRule(ANY_SIZE, ("shared", MPI_LIBRARY), most_ranks=16),
        SizeRule(ANY_SIZE, (MPI_LIBRARY, "shared")),
    ),
    # The next tables have median times with MPICH on two cores of an EPYC; every rank has just written its input.
    # broadcast, 2 ranks, us by MPI / `shared`:       16K 8.9/2.3, 256K 56/18, 1M 97/64, 4M 350/226, 16M 1810/1110
    # all_gather, 2 ranks, us by MPI / `shared`:      16K 9.4/2.3, 256K 47/17, 1M 83/59, 4M 222/232, 16M 1910/1940
    # reduce, 2 ranks, us by MPI / `shared`:          16K 14/1.9, 256K 70/14, 1M 152/56, 4M 835/272, 16M 18500/2100
    # reduce_scatter, 2 ranks, us by MPI / `shared`:  16K 11/2.1, 256K 52/14, 1M 114/51, 4M 371/177, 16M 3090/1750
    # all_to_all, 2 ranks, us by MPI / `shared`:      16K 15/2.4, 256K 32/15, 1M 79/52, 4M 246/235, 16M 2180/2260
    # broadcast, 4 ranks, us by MPI / `shared`:       16K 30/13, 256K 149/86, 1M 311/237, 4M 679/669, 16M 4560/3880
    # all_gather, 4 ranks, us by MPI / `shared`:      16K 34/9, 256K 93/37, 1M 204/196, 4M 702/776, 16M 4710/4950
    # reduce, 4 ranks, us by MPI / `shared`:          16K 49/12, 256K 184/53, 1M 508/236, 4M 3730/1620, 16M 36200/6890
    # reduce_scatter, 4 ranks, us by MPI / `shared`:  16K 32/8, 256K 114/41, 1M 297/157, 4M 1250/1070, 16M 7440/5130
    # all_to_all, 4 ranks, us by MPI / `shared`:      16K 37/13, 256K 107/84, 1M 216/211, 4M 1510/1220, 16M 6660/5640
    #
    # A broadcast of 512 KiB on 2 ranks without a common cache takes 324 us by MPI, and 93 us by `shared`.
    # A broadcast of 512 KiB of an unchanged array on 2 ranks without a common cache takes 73 us by MPI.
    # A broadcast of 1 KiB on 4 ranks takes 6.9 us by MPI, 9.4 us by `shared`, and 1.2 us by `tree`.
    # In the broadcast `tree`, no rank waits for all other ranks.
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
    # Calls of 8 B to 4 KiB in symmetric buffers on 2 ranks take 1.3 to 1.9 us by `shared`, and 3.1 to 5.5 us by MPI.
    # On 4 ranks that share 2 cores, such calls take 10 us by `shared`. By MPI, they take 5 to 7 us
    # for operations in which some ranks do not wait for all others, and 18 to 30 us for the other operations.
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

# BLOCKING_RULES are for blocking and prepared calls on one node, in host memory, because one plan serves many of them.
# gather, 2 ranks, us by MPI / `shared`:              1K 2.0/0.9, 64K 10/4.1, 1M 64/68, 4M 251/196
# scatter, 2 ranks, us by MPI / `shared`:             1K 2.6/0.8, 64K 12/3.1, 1M 75/55, 4M 157/131
# gather, 4 ranks on 2 cores, us by MPI / `shared`:   1K 13/15, 64K 40/17, 1M 363/78, 4M 1400/204
# scatter, 4 ranks on 2 cores, us by MPI / `shared`:  1K 7.5/6.0, 64K 37/14, 1M 148/108, 4M 641/423
# On 4 ranks on 2 cores, a gather of 1 KiB takes 5.1 us by `tree`, and a scatter of 1 KiB 1.2 us.
# On two cores without a common cache, a gather of 16 MiB on 2 ranks takes 2470 us by MPI and 3110 us by `shared`.
# Without a common cache, MPI gathers unchanged inputs of 512 KiB and more up to twice as fast as `shared`.
# Without a common cache, MPI scatters unchanged inputs of 8 MiB and more up to twice as fast as `shared`.
BLOCKING_RULES: dict[Operation, tuple[SizeRule, ...]] = {
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
# Across nodes, the rules prefer plans of few rounds for medium messages, and plans of few bytes for long messages.
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

# With one rank per node, two-level plans do not gain by shared memory, and asynchronous ones run one after another.
# The next four lines are for two nodes of one rank in `hpccoll lab`, without a limit of the network's rate.
# One rank on each of two nodes: an all_reduce of 128 KiB takes 79 us by two levels, 51 us by `recursive_doubling`.
# One rank on each of two nodes: an all_reduce of 8 MiB takes 8.4 ms by two levels, 5.9 ms by `ring`.
# One rank on each of two nodes: an all_gather of 1 MiB takes 379 us by `hierarchical_ring`, 243 us by `ring`.
# One rank on each of two nodes: a reduce_scatter of 1 MiB takes 386 us by `hierarchical_ring`, 281 us by `ring`.
ONE_RANK_PER_NODE_RULES: dict[Operation, tuple[SizeRule, ...]] = {
    Operation.ALL_REDUCE: _prefer_plans("recursive_doubling", 512 * KiB, "ring"),
    Operation.REDUCE_SCATTER: _prefer_plans("bruck", 512 * KiB, "ring"),
    Operation.ALL_GATHER: _prefer_plans("bruck", 512 * KiB, "ring"),
}


def find_rule_candidates(
    operation: Operation, buffer: BufferKind, nbytes: int, ranks: int, nodes: int, *, is_blocking: bool = True
) -> tuple[str, ...]:
    """Return the names of the algorithms that fixed rules prefer for a message, best first; may be empty.

    On several nodes, the last name is always `mpi`, which stands for the MPI library's own collective.

    Args:
        buffer: the kind of memory of the buffers.
        nbytes: the message size in bytes.
        is_blocking: whether the call is blocking or prepared, so that one plan serves many calls.
    """
    rules = MULTI_NODE_RULES[operation] if nodes > 1 else ONE_NODE_RULES.get((operation, buffer), ())
    if ranks == nodes > 1 and buffer is not BufferKind.CUDA:
        rules = ONE_RANK_PER_NODE_RULES.get(operation, rules)
    if is_blocking and nodes == 1 and buffer is BufferKind.HOST:
        rules = (*BLOCKING_RULES.get(operation, ()), *rules)
    fitting = (rule.candidates for rule in rules if nbytes < rule.below_bytes and ranks <= rule.most_ranks)
    candidates = next(fitting, ())
    return (*candidates, MPI_LIBRARY) if nodes > 1 else candidates
