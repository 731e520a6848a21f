"""Collective algorithms as plans, one file per family; the first look-up in the catalogue imports all of them.

An algorithm is a function of the array `rank`, the rank count `n` and sometimes `root`, `chunks` and `nodes`. An
algorithm's function only describes transfers: it returns lazy `Rounds`, whose steps are computed when they are read.
Docstrings call the message size in bytes S (as nccl-tests does), the chunk count k, the node count N and the ranks per
node L.

A function whose docstring begins with "Plan" is an algorithm: it returns the rounds for the ranks in the array `rank`,
in a group of n ranks. `root` is the root rank, `chunks` is the number k of chunks of the message, and `nodes` has the
ranks of each node (None: one node). The docstring of a cost function begins with the cost that the function returns.

Read the module `ring` first, then `registry` and `catalogue`. `loader` loads a user's own algorithm.
"""

from hpccoll.algorithms.catalogue import get_algorithm, list_algorithm_names, list_algorithms, make_hierarchical
from hpccoll.algorithms.registry import Algorithm, algorithm, make_algorithm

__all__ = [
    "Algorithm", "algorithm", "get_algorithm", "list_algorithm_names", "list_algorithms", "make_algorithm",
    "make_hierarchical",
]  # fmt: skip
