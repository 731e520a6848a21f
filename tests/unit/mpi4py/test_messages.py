"""Buffers are read as mpi4py reads them, and datatypes with equal signatures have one element type."""

from __future__ import annotations

import array
import sys

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll.errors import UnavailableError
from hpccoll.mpi4py.messages import read_message
from hpccoll.mpi4py.signatures import BYTES, find_element_type

X = np.arange(12.0)


def read(given, blocks=0):
    """Return the dtype, the count and the elements of a buffer; None if it is refused."""
    message = read_message(given, blocks, writable=False)
    return None if message is None else (message.dtype.name, message.count, message.read(message.dtype).tolist())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (X, X),
        ([X, MPI.DOUBLE], X),
        ([X, "d"], X),
        ([X, 5, MPI.DOUBLE], X[:5]),
        ([X, 5], X[:5]),
        ([X, (5, 2), MPI.DOUBLE], X[2:7]),
        ([X, 5, 2, MPI.DOUBLE], X[2:7]),
        ((X, (None, 2), MPI.DOUBLE), X[2:]),
        (X.reshape(3, 4).T, X),
        ([X.tobytes(), MPI.DOUBLE], X),
        (array.array("d", X), X),
    ],
)
def test_a_specification_names_the_elements(given, expected):
    assert read(given) == ("float64", expected.size, expected.tolist())


@pytest.mark.parametrize(
    "given", [X[::2], [X, -1, MPI.DOUBLE], [X, MPI.DOUBLE, 5], "text", 5, [X[:1], 1, 2, 3, 4], None]
)
def test_what_mpi4py_refuses_is_no_message(given):
    assert read(given) is None


def test_the_count_of_blocks_is_that_of_one_block():
    assert read(X, blocks=4) == ("float64", 3, X.tolist())
    assert read([X, 2, MPI.DOUBLE], blocks=4) == ("float64", 2, X[:8].tolist())
    assert read(X, blocks=5) is None


def test_memory_that_may_not_be_written_is_refused_for_a_result():
    frozen = X.copy()
    frozen.flags.writeable = False
    assert read_message(frozen, writable=False) is not None
    assert read_message(frozen, writable=True) is None


def test_derived_types_are_packed_and_unpacked():
    matrix = np.arange(12.0).reshape(4, 3)
    column = MPI.DOUBLE.Create_vector(4, 1, 3).Commit()
    given = [matrix.reshape(-1)[1:], 1, column]
    assert read(given) == ("float64", 4, [1, 4, 7, 10])
    message = read_message(given, writable=True)
    flat, store = message.open_for_writing(message.dtype)
    flat[:] = 0
    assert store is not None
    store()
    assert matrix[:, 1].tolist() == [0] * 4
    assert matrix[:, 0].tolist() == [0, 3, 6, 9]
    column.Free()


def test_an_address_relative_to_the_bottom_of_memory_is_read():
    whole = MPI.DOUBLE.Create_hindexed([3], [MPI.Get_address(X)]).Commit()
    assert read([MPI.BOTTOM, 1, whole]) == ("float64", 3, [0, 1, 2])
    whole.Free()


def test_datatypes_with_equal_signatures_have_one_element_type():
    made = [
        MPI.INT.Create_vector(2, 1, 3),
        MPI.INT.Create_struct([0, 2], [8, 0], [MPI.DOUBLE, MPI.INT]),
        MPI.INT.Create_subarray([4, 4], [2, 2], [1, 1]),
        MPI.INT.Create_contiguous(2).Create_resized(0, 64),
    ]
    assert {find_element_type(datatype).name for datatype in made} == {"int32"}
    mixed = MPI.INT.Create_struct([1, 1], [0, 8], [MPI.INT, MPI.DOUBLE])
    assert find_element_type(mixed) == find_element_type(MPI.DOUBLE_INT) == find_element_type(MPI.BYTE) == BYTES
    assert find_element_type(MPI.LONG) == find_element_type(MPI.INT64_T) == np.int64


class DeviceArray:
    """An array of a library that hpccoll does not know, in device memory."""

    __cuda_array_interface__ = {  # noqa: RUF012 - the interface is an attribute
        "shape": X.shape, "typestr": X.dtype.str, "data": (X.ctypes.data, False), "version": 3,
    }  # fmt: skip


def test_device_memory_needs_a_library_that_copies_it(monkeypatch):
    for library in ("cupy", "torch"):
        monkeypatch.delitem(sys.modules, library, raising=False)
    with pytest.raises(UnavailableError, match="DeviceArray is in device memory"):
        read(DeviceArray())
