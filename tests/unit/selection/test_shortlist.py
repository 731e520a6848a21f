"""The few algorithms that a benchmark compares by default."""

from __future__ import annotations

import pytest

from hpccoll.algorithms import get_algorithm
from hpccoll.plan import Operation
from hpccoll.selection import MPI_LIBRARY, BufferKind, SelectionKey, Selector
from hpccoll.selection.shortlist import MOST, shortlist_algorithms
from hpccoll.units import KiB, MiB

SIZES = [8, 64, KiB, 16 * KiB, 64 * KiB, 256 * KiB, MiB, 4 * MiB, 64 * MiB]


@pytest.mark.parametrize("buffer", [BufferKind.HOST, BufferKind.SYMMETRIC, BufferKind.CUDA])
@pytest.mark.parametrize(("ranks", "nodes"), [(1, 1), (2, 1), (4, 1), (5, 1), (8, 4), (64, 2)])
@pytest.mark.parametrize("operation", list(Operation))
def test_there_are_few_that_can_run_and_what_auto_takes_is_among_them(operation, ranks, nodes, buffer):
    shared = buffer is not BufferKind.CUDA
    for nbytes in SIZES:
        names = shortlist_algorithms(operation, buffer, nbytes, ranks, nodes)
        assert 1 <= len(names) <= MOST
        assert len(set(names)) == len(names)
        for name in names:
            algorithm = get_algorithm(operation, name)
            assert not algorithm.uses_shared_memory or (shared and (nodes == 1 or algorithm.is_two_level))
        taken = Selector(ranks, nodes).select(SelectionKey(operation, nbytes, 4, buffer, library=False, shared=shared))
        assert taken.name in names or taken.name == MPI_LIBRARY


def test_neighbouring_sizes_offer_their_algorithms():
    for nbytes in SIZES:
        names = shortlist_algorithms(Operation.ALL_REDUCE, BufferKind.HOST, nbytes, 4, 1)
        for near in (nbytes // 4, 4 * nbytes):
            key = SelectionKey(Operation.ALL_REDUCE, near, 4, BufferKind.HOST, library=False, shared=True)
            taken = Selector(4, 1).select(key)
            assert taken.name in names
