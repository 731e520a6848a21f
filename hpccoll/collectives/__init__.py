"""One file per algorithm family; importing the package registers all of them."""

from hpccoll.collectives import (
    binomial,
    bruck,
    butterfly,
    chain,
    dissemination,
    double_tree,
    pairwise,
    ring,
)
from hpccoll.collectives.registry import Algorithm, algorithm, describe, named, names, registered

__all__ = [
    "Algorithm",
    "algorithm",
    "binomial",
    "bruck",
    "butterfly",
    "chain",
    "describe",
    "dissemination",
    "double_tree",
    "named",
    "names",
    "pairwise",
    "registered",
    "ring",
]
