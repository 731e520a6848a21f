"""More than 2**31 elements: MPI's counts have 32 bits, those of hpccoll do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import pytest

import hpccoll
from tests.requirements import skip_or_fail

pytestmark = [pytest.mark.full, pytest.mark.needs_ranks(1, 2)]  # two ranks already hold 9 GiB
COUNT = 2**31 + 12_345
GIB = 2**30
PERIOD = 65_521


@pytest.fixture
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    need = 11 * GIB
    if comm.bcast(psutil.virtual_memory().available < need):
        skip_or_fail(f"the test needs {need // GIB} GiB of free memory")
    with hpccoll.Communicator(comm) as made:
        yield made


def filled_period(rank: int) -> Any:
    return ((np.arange(PERIOD) * 7 + rank * 13) % 251).astype(np.uint8)


def filled(rank: int) -> np.ndarray:
    """Return COUNT bytes that repeat with a prime period, so that no two blocks are equal."""
    return np.resize(filled_period(rank), COUNT)


def same(found: np.ndarray, period: np.ndarray) -> bool:
    """Whether an array repeats a period, without a copy of it."""
    whole = len(found) // PERIOD
    head, tail = found[: whole * PERIOD].reshape(whole, PERIOD), found[whole * PERIOD :]
    step = 4096
    rows = all((head[i : i + step] == period).all() for i in range(0, whole, step))
    return rows and bool((tail == period[: len(tail)]).all())


def test_all_reduce(hpc):
    x = filled(hpc.rank)
    total: Any = np.sum([filled_period(rank) for rank in range(hpc.size)], axis=0, dtype=np.uint8)
    hpc.all_reduce(x, algorithm="ring")
    assert same(x, total)


@pytest.mark.parametrize("algorithm", ["tree", "chain"])
def test_broadcast(hpc, algorithm):
    root = hpc.size - 1
    x = filled(root) if hpc.rank == root else np.zeros(COUNT, np.uint8)
    hpc.broadcast(x.view(np.int8), root=root, algorithm=algorithm)
    assert same(x, filled_period(root))


@pytest.mark.needs_ranks(2)
def test_messages(hpc):
    if hpc.rank == 0:
        hpc.send(filled(0), 1)
    else:
        assert same(hpc.recv(np.zeros(COUNT, np.uint8), 0), filled_period(0))


def test_wide_elements_beyond_the_count_of_bytes(hpc):
    """2**28 elements of 16 bytes: few elements, many bytes."""
    x = np.full(2**28 // 4 + 1, 1 + 2j)
    hpc.all_reduce(x, algorithm="recursive_doubling")
    assert (x == hpc.size * (1 + 2j)).all()
