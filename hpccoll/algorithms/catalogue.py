"""All algorithms by name: the built-in ones, which the first look-up imports, and those that users registered."""

from __future__ import annotations

from functools import cache

from hpccoll.algorithms import registry
from hpccoll.algorithms.registry import Algorithm
from hpccoll.plan import Operation


@cache
def _register_built_in() -> None:
    """Import the modules of all built-in algorithms, whose decorators register the algorithms."""
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
        neighbor_exchange,
        pairwise,
        pat,
        recursive_doubling,
        ring,
        scan_chain,
        scan_doubling,
        scan_tree,
        scatter_all_gather,
        shared_memory,
        swing,
        two_level_blocks,
        two_level_slices,
        weighted,
    )


def list_algorithms() -> list[Algorithm]:
    """Return all built-in and user-registered algorithms, sorted by operation and name."""
    _register_built_in()
    return [registry.REGISTERED[key] for key in sorted(registry.REGISTERED, key=lambda key: (key[0].value, key[1]))]


@cache
def get_algorithm(operation: Operation, name: str) -> Algorithm:
    """Return the algorithm `operation/name`; raise UnknownNameError, which lists the valid names, if there is none."""
    _register_built_in()
    return registry.get_registered(operation, name)


def list_algorithm_names(operation: Operation) -> list[str]:
    """Return the sorted names of all algorithms of an operation."""
    _register_built_in()
    return registry.list_registered_names(operation)


@cache
def make_hierarchical(intra: str = "ring", inter: str = "double_tree") -> Algorithm:
    """Return an all-reduce made of `reduce_scatter/intra` within nodes and `all_reduce/inter` across nodes.

    At the end, the rounds of `intra` in reverse order gather the sums within nodes. Raises UnknownNameError if there is
    no algorithm `intra` or `inter`; the message lists the known names.
    """
    from hpccoll.algorithms.hierarchical import compose_levels

    return compose_levels(get_algorithm(Operation.REDUCE_SCATTER, intra), get_algorithm(Operation.ALL_REDUCE, inter))
