"""Collective algorithms as plans, one file per family; importing the package registers all of them.

An algorithm is a function of the array `rank`, the rank count `n` and sometimes `root`, `chunks` and `nodes`. The
function sends and changes no data; it returns lazy `Rounds`, whose steps are computed when they are read. Docstrings
call the message size in bytes S (as nccl-tests does), the chunk count k, the node count N and the ranks per node L.

Read `ring` first, then `registry`. The package does not import `loader` (a user's own algorithm) or `pipelining`.
"""

from hpccoll.algorithms import (  # noqa: F401 - importing a module registers its algorithms
    barriers,
    bine,
    binomial_tree,
    bruck,
    chain,
    circulant,
    direct,
    double_tree,
    dual_root,
    hierarchical,
    hierarchical_all_to_all,
    hybrid_blocks,
    hybrid_slices,
    neighbor_exchange,
    pairwise,
    pat,
    recursive_doubling,
    ring,
    scatter_all_gather,
    shared_memory,
    swing,
)
from hpccoll.algorithms.registry import (
    Algorithm,
    algorithm,
    get_algorithm,
    list_algorithm_names,
    list_algorithms,
    make_algorithm,
)

__all__ = [
    "Algorithm",
    "algorithm",
    "get_algorithm",
    "list_algorithm_names",
    "list_algorithms",
    "make_algorithm",
]
