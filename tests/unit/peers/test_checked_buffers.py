"""Input and output of a collective are in place or apart; what overlaps otherwise is refused."""

from __future__ import annotations

import numpy as np
import pytest

from hpccoll.errors import BufferError
from hpccoll.peers.library_engine import check_buffers
from hpccoll.plan import Operation

N, RANK, COUNT = 3, 1, 4
OWN = slice(RANK * COUNT, (RANK + 1) * COUNT)


@pytest.mark.parametrize("operation", [Operation.ALL_GATHER, Operation.REDUCE_SCATTER])
def test_a_block_is_in_place_where_the_rank_has_it(operation):
    whole = np.zeros(N * COUNT)

    def check(block, whole=whole):
        pair = (block, whole) if operation is Operation.ALL_GATHER else (whole, block)
        return check_buffers(operation, *pair, 0, RANK, N)

    assert check(whole[OWN]).in_place
    assert check(whole).in_place
    assert not check(np.zeros(COUNT)).in_place
    assert not check(whole[:0], whole[:0]).in_place
    for start in (0, OWN.start + 1, OWN.stop):
        with pytest.raises(BufferError, match="source and result overlap but are not in place"):
            check(whole[start : start + COUNT])


def test_equal_buffers_are_in_place_and_shifted_ones_are_refused():
    x = np.zeros(COUNT + 1)
    assert check_buffers(Operation.ALL_REDUCE, x, x, 0, RANK, N).in_place
    assert not check_buffers(Operation.ALL_REDUCE, x, x.copy(), 0, RANK, N).in_place
    with pytest.raises(BufferError, match="source and result overlap but are not in place"):
        check_buffers(Operation.ALL_REDUCE, x[1:], x[:-1], 0, RANK, N)
