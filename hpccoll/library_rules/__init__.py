"""Files that select algorithms in Open MPI, MPICH and NCCL, written from measured times of these libraries' algorithms.

Start reading with `LibraryRules` in rules.py; `choose_rules` makes the rules from measured times. open_mpi.py, mpich.py
and nccl.py format the rules as files that each library reads.
"""

from __future__ import annotations

from hpccoll.library_rules.choice import AlgorithmSamples, SizeSamples, choose_rules, select_candidate
from hpccoll.library_rules.rules import DEFAULT, LibraryAlgorithm, LibraryRule, LibraryRules

__all__ = [
    "DEFAULT", "AlgorithmSamples", "LibraryAlgorithm", "LibraryRule", "LibraryRules", "SizeSamples", "choose_rules",
    "select_candidate",
]  # fmt: skip
