"""Calls of mpi4py have a key, by which early calls are counted, exactly if mpi4py accepts their arrays."""

from __future__ import annotations

import numpy as np
import pytest

from hpccoll.mpi4py.buffer_calls import _make_key
from hpccoll.mpi4py.configuration import SUM
from hpccoll.mpi4py.messages import read_message
from hpccoll.plan import Operation

X = np.arange(12.0).reshape(3, 4)
FROZEN = X.copy()
FROZEN.flags.writeable = False


def make_key(x, *, writable):
    """Return the key of an all_reduce of `x`."""
    return _make_key(Operation.ALL_REDUCE, SUM, x, 0, 0, writable)


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("x", [X, X.T, X[1:], X[:, 1], X[:, ::2], X[::-1], X[:, :1][:1], X[:0], FROZEN, FROZEN[:, 1]])
def test_an_array_has_a_key_if_mpi4py_accepts_it(x, writable):
    accepted = read_message(x, writable=writable) is not None
    assert (make_key(x, writable=writable) is not None) == accepted


def test_an_array_with_gaps_or_a_read_only_result_has_no_key():
    assert make_key(X[:, ::2], writable=False) is None
    assert make_key(FROZEN, writable=True) is None
    assert make_key(FROZEN, writable=False) == make_key(X, writable=True)


def test_other_buffers_have_no_key():
    assert make_key([X, "d"], writable=False) is None
