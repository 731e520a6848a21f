"""A message of more than 2**31 bytes, which takes 2 GiB of memory: pages that were never written take none."""

from __future__ import annotations

import numpy as np
import psutil
import pytest

import hpccoll
from tests.requirements import skip_or_fail

pytestmark = [pytest.mark.mpi, pytest.mark.needs_ranks(2, 2)]
COUNT = 2**31 + 12_345
MARKED = [0, 2**30 - 1, 2**30, 2**31 - 1, 2**31, COUNT - 1]
NEED_BYTES = 3 * 2**30


def test_a_message_of_more_than_two_gib_arrives_whole(comm):
    if comm.bcast(psutil.virtual_memory().available < NEED_BYTES):
        skip_or_fail(f"the test needs {NEED_BYTES} bytes of free memory")
    with hpccoll.Communicator(comm) as hpc:
        x = np.zeros(COUNT, np.uint8)
        if hpc.rank == 0:
            x[MARKED] = range(1, len(MARKED) + 1)
            hpc.send(x, 1)
        else:
            hpc.recv(x, 0)
            assert x[MARKED].tolist() == list(range(1, len(MARKED) + 1))
            assert np.count_nonzero(x) == len(MARKED)
