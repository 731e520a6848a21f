"""Collective algorithms as plans, one file per family; importing the package registers all of them.

Start with `ring`, then `registry`. `get_algorithm` and `list_algorithms` find registered algorithms, `@algorithm`
registers one, and `loader` loads a user's own from a file. The loader and `pipelining` are imported separately.
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
