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


def _prefer_shared(
    below: float, *above: str, most_ranks: int = 4, on_four_below: float | None = None
) -> tuple[SizeRule, ...]:
    """Return rules for one node: the algorithm `shared` on few ranks, the MPI library below 16 KiB on others.

    For longer messages, `above` is preferred.

    Args:
        below: the message size in bytes up to which `shared` is preferred on few ranks.
        above: the candidates for longer messages, best first.
        most_ranks: the largest number of ranks that counts as few.
        on_four_below: a larger size up to which `shared` is preferred on 3 and 4 ranks; None if there is none.
    """
    few = ("shared", MPI_LIBRARY)
    on_four = () if on_four_below is None else (SizeRule(on_four_below, above, 2), SizeRule(on_four_below, few, 4))
    return (
        SizeRule(16 * KiB, few, most_ranks),
        SizeRule(16 * KiB, (MPI_LIBRARY,)),
        SizeRule(below, few, most_ranks),
        *on_four,
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
    # New host arrays in every call on 2 ranks, for 8 B, 16 KiB and 256 KiB. Broadcast: MPI takes 4.2, 14 and 39 us,
    # `shared` 0.8, 5.5 and 31 us. all_gather: 9.5, 17 and 47 us by MPI, 4.3, 5.8 and 24 us by `shared`.
    # reduce: 9.9, 29 and 109 us by MPI, 1.4, 3.0 and 24 us by `shared`. reduce_scatter: 17, 26 and 93 us by MPI, 4.9,
    # 5.5 and 24 us by `shared`. all_to_all: 16, 49 and 360 us by MPI, 4.7, 12 and 219 us by `shared`. On 4 ranks,
    # `shared` takes 0.2 to 0.5 of MPI's time up to 64 KiB, but 1.2 of its time in a broadcast below 16 KiB. In half of
    # the jobs on another day, a broadcast of 256 KiB by `shared` took 115 us, in the others 28 us, and by MPI 27 us in
    # all of them, 47 us if the root had changed the array.
    (Operation.BROADCAST, BufferKind.HOST): _prefer_shared(128 * KiB, MPI_LIBRARY, most_ranks=2),
    # On 4 ranks, for 256 KiB, 1 MiB, 4 MiB and 16 MiB: a reduce_scatter takes 215, 747, 2150 and 8160 us by MPI, 136,
    # 802, 1630 and 5650 us by `bruck`, 69, 471, 1390 and 4160 us by `shared`. all_gather: 197, 818, 1700 and 5390 us by
    # MPI, 149, 583, 1450 and 5470 us by `shared`. all_to_all: 204, 549, 2290 and 13400 us by MPI, 149, 456, 2300 and
    # 10900 us by `shared`. A reduce of 128 KiB, 2 MiB and 32 MiB: 378, 6230 and 82000 us by MPI, 191, 1720 and 10800 us
    # by `tree` and `chain`, 45, 1130 and 8710 us by `shared`. On 8 ranks, a reduce_scatter of 256 KiB and 16 MiB takes
    # 1040 and 14300 us by MPI, 840 and 14800 us by `bruck`, 480 and 9880 us by `shared`.
    (Operation.ALL_GATHER, BufferKind.HOST): _prefer_shared(512 * KiB, MPI_LIBRARY, on_four_below=8 * MiB),
    (Operation.REDUCE, BufferKind.HOST): (
        *_prefer_shared(128 * KiB)[:-1],
        SizeRule(ANY_SIZE, ("shared",), most_ranks=8),
        SizeRule(ANY_SIZE, ()),
    ),
    (Operation.REDUCE_SCATTER, BufferKind.HOST): (
        *_prefer_shared(128 * KiB)[:-1],
        SizeRule(ANY_SIZE, ("shared",), most_ranks=8),
        SizeRule(ANY_SIZE, ()),
    ),
    # On 2 ranks, for 16 KiB, MPI takes 5.0 us (gather) and 5.5 us (scatter), `shared` 1.6 us and 1.3 us; for 64 KiB,
    # MPI 7.2 and 7.7 us, `shared` 6.0 and 5.8 us. For a scatter of 512 KiB, MPI takes 18 us and `shared` 35 us.
    (Operation.GATHER, BufferKind.HOST): (
        SizeRule(16 * KiB, (MPI_LIBRARY,)),
        SizeRule(128 * KiB, ("shared", MPI_LIBRARY), most_ranks=2),
        SizeRule(ANY_SIZE, (MPI_LIBRARY,)),
    ),
    (Operation.SCATTER, BufferKind.HOST): (
        SizeRule(16 * KiB, (MPI_LIBRARY,)),
        SizeRule(128 * KiB, ("shared", MPI_LIBRARY), most_ranks=2),
        SizeRule(ANY_SIZE, (MPI_LIBRARY,)),
    ),
    (Operation.ALL_TO_ALL, BufferKind.HOST): _prefer_shared(64 * KiB + 1, MPI_LIBRARY, on_four_below=2 * MiB),
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
# blocks. (A plan for new block sizes takes milliseconds.) For 8 B and 12 KB on 2 ranks, a gather takes 2.1 and 2.2 us
# in mpi4py, 0.9 and 1.4 us by `tree`; a scatter 1.8 and 2.0 us in mpi4py, 0.7 and 1.1 us by `shared`. On 4 ranks that
# share 2 cores, a gather takes 9 to 14 us in mpi4py, and 5 to 7 us by `tree`.
REUSED_PLAN_RULES: dict[Operation, tuple[SizeRule, ...]] = {
    Operation.GATHER: (SizeRule(16 * KiB, ("tree", MPI_LIBRARY), most_ranks=4),),
    Operation.SCATTER: (SizeRule(16 * KiB, ("shared", MPI_LIBRARY), most_ranks=2),),
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
