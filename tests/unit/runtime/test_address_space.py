"""Ranges of a program as memory."""

from __future__ import annotations

import numpy as np
import pytest

from hpccoll.algorithms import get_algorithm
from hpccoll.lowering import MemoryKind, MemoryRange, Program
from hpccoll.plan import Operation
from hpccoll.runtime.address_space import AddressSpace
from hpccoll.runtime.arguments import check_call

SOURCE, RESULT, WORK, LANDING, _ = MemoryKind
N, RANK, COUNT = 3, 1, 10


def get_address(array):
    """Return the address of an array's first element."""
    return array.__array_interface__["data"][0]


@pytest.fixture
def plan():
    return get_algorithm(Operation.ALL_GATHER, "ring").plan(N, 0, 1)


@pytest.fixture
def memory(plan):
    """Return the address space of an all-gather on rank 1, and its input, output and scratch."""
    x, out = np.arange(COUNT, dtype=np.float32), np.arange(100, 130, dtype=np.float32)
    scratch = np.arange(200, 220, dtype=np.float32)
    call = check_call(Operation.ALL_GATHER, x, out, RANK, N)
    return AddressSpace(call, Program((), 4, 6, plan), scratch), (x, out, scratch)


@pytest.mark.parametrize(("kind", "first"), [(SOURCE, 2), (RESULT, 102), (WORK, 202), (LANDING, 206)])
def test_own_ranges_are_views_of_the_own_memory(memory, kind, first):
    space, arrays = memory
    view = space.view(MemoryRange(kind, 2, 4))
    assert view.tolist() == [first, first + 1]
    assert space.address(MemoryRange(kind, 2, 4)) == get_address(view)
    view[:] = -1
    assert any((array == -1).sum() == 2 for array in arrays)


def test_work_and_landing_end_where_the_program_says(memory):
    space, _ = memory
    assert space.view(MemoryRange(WORK, 0, 100)).tolist() == [200, 201, 202, 203]
    assert space.view(MemoryRange(LANDING, 0, 100)).tolist() == [204, 205, 206, 207, 208, 209]


def test_without_buffers_ranges_are_empty(plan):
    space = AddressSpace(check_call(Operation.BARRIER, None, None, RANK, N), Program((), 0, 0, plan), np.zeros(0))
    for kind in (SOURCE, RESULT):
        assert space.view(MemoryRange(kind, 0, 5)).tolist() == []


def test_a_peers_input_and_output_are_mapped_apart(memory):
    space, _ = memory
    space.add_peer(RESULT, 0, 4096)
    assert space.address(MemoryRange(RESULT, 5, 8, 0)) == 4096 + 5 * 4
    with pytest.raises(KeyError):
        space.address(MemoryRange(SOURCE, 0, 1, 0))
