"""One file per algorithm family; importing the package registers all of them."""

from hpccoll.collectives import (
    binomial as binomial,
    bruck as bruck,
    butterfly as butterfly,
    chain as chain,
    dissemination as dissemination,
    double_tree as double_tree,
    pairwise as pairwise,
    ring as ring,
)
from hpccoll.collectives.registry import Algorithm, algorithm, describe, named, names, registered

__all__ = ["Algorithm", "algorithm", "describe", "named", "names", "registered"]
