"""Plans that send data along the trees of a forest, piece by piece.

The data of a source is cut into `units` shares, one per tree, and each share into `pieces` pieces. Piece c of a tree
crosses a link of depth d (0 at the root) in round d + c. In each round, all pieces from one rank to another travel in
one message, so no link carries more than the bytes of its trees for one piece. The time per byte of a plan is at most
the optimum of the network times 1 + (h - 1) / p, for trees of height h whose shares are cut into p pieces.

The plan of an all_gather or broadcast sends data down the trees. The plan of a reduce_scatter or reduce is the reversed
plan of an all_gather or broadcast, with reductions instead of copies. The plan of an all_reduce is a reduce_scatter
followed by an all_gather.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from math import lcm

from hpccoll.plan import Op, Operation, Plan, Rounds
from hpccoll.plan.interchange.json_plans import FenceGroups, make_listed_rounds
from hpccoll.plan.messages import PlanMessage
from hpccoll.plan.step import IntArray
from hpccoll.synthesis.edge_splitting import Arc
from hpccoll.synthesis.forest import Forest, grow_forest
from hpccoll.synthesis.network import Network
from hpccoll.synthesis.optimum import REVERSED, ROOTED

ALGORITHM = "forest"  # the name of synthesized plans
DEFAULT_PIECES = 4


def synthesize(
    network: Network, operation: Operation, *, root: int = 0, trees: int | None = None, pieces: int = DEFAULT_PIECES
) -> tuple[Plan, list[Forest]]:
    """Return a plan of `operation` along the trees that `grow_forest` finds, and their forests.

    An all_reduce has two forests, one of a reduce_scatter and one of an all_gather; other operations have one forest.
    The plan is not proven; `check` proves it.

    Args:
        operation: all_gather, reduce_scatter, broadcast, reduce or all_reduce.
        trees: the number of trees per source; None for the number that gives the least time.
        pieces: the number of pieces into which the share of a tree is cut.

    Raises NetworkError if the network does not connect its ranks, or the operation has no plan of trees.
    """
    is_pair = operation is Operation.ALL_REDUCE
    halves = [Operation.REDUCE_SCATTER, Operation.ALL_GATHER] if is_pair else [operation]
    forests = [grow_forest(network, half, root, trees) for half in halves]
    units = lcm(*(forest.units for forest in forests))
    parts = [_send_down(forest, units, pieces) for forest in forests]

    def make(rank: IntArray) -> Rounds:
        """Return the rounds of the synthesized plan for the ranks in the array `rank`."""
        rounds = [part(rank) for part in parts]
        first, *rest = [
            half_rounds.reversed(Op.OWN_FIRST) if half in REVERSED else half_rounds
            for half, half_rounds in zip(halves, rounds, strict=True)
        ]
        return first + rest[0] if rest else first

    return Plan(operation, ALGORITHM, network.ranks, root if operation in ROOTED else 0, make), forests


def _send_down(forest: Forest, units: int, pieces: int) -> Callable[[IntArray], Rounds]:
    """Return a function that takes ranks and returns the rounds in which each source's data moves down its trees.

    The data of a source has `units` times `pieces` chunks, one group of `pieces` chunks per tree.
    """
    ranks = forest.network.ranks
    roots = sorted({tree.root for tree in forest.trees})
    begins = {root: place * units * pieces for place, root in enumerate(roots)}  # the next free chunk of each source
    rounds: list[dict[Arc, list[int]]] = [defaultdict(list) for _ in range(forest.height + pieces - 1)]
    for tree in forest.trees:
        size = tree.units * units // forest.units
        depths = tree.compute_depths()
        for piece in range(pieces):
            first = begins[tree.root] + piece * size
            for parent, child in tree.links:
                rounds[depths[parent] + piece][parent, child] += range(first, first + size)
        begins[tree.root] += size * pieces
    listed: list[tuple[list[PlanMessage], list[FenceGroups]]] = [
        ([PlanMessage(*link, tuple(chunks), tuple(chunks), Op.COPY) for link, chunks in messages.items()], [])
        for messages in rounds
    ]
    return make_listed_rounds(ranks, len(roots) * units * pieces, listed)
