"""Reductions by users' functions: their keys in caches, and which results are refused."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import hpccoll
from hpccoll.arrays import NUMPY, get_dtype, normalize_reduction
from hpccoll.errors import ReductionError


def add(a, b):
    return a + b


def test_a_reduction_is_named_like_its_function():
    assert hpccoll.Reduction.from_function(np.hypot).name == "hypot"
    assert hpccoll.Reduction.from_function(add, name="plus").name == "plus"


def test_equal_functions_have_equal_keys_and_others_have_not():
    made = [hpccoll.Reduction.from_function(add) for _ in range(2)]
    others = [
        hpccoll.Reduction.from_function(add, commutative=False),
        hpccoll.Reduction.from_function(np.add, name="add"),
    ]
    assert made[0].key == made[1].key
    assert all(made[0].key != other.key for other in [*others, hpccoll.Reduction("sum")])


def test_a_cache_does_not_take_a_function_for_the_reduction_of_its_name():
    own = hpccoll.Reduction.from_function(np.maximum, name="sum")
    assert normalize_reduction(own) is own
    assert normalize_reduction(hpccoll.Reduction("sum")) == "sum"
    with hpccoll.Communicator() as hpc:
        for _ in range(3):
            assert hpc.all_reduce(np.ones(2), op=own).tolist() == [1, 1]


@pytest.mark.parametrize("name", ["avg", "premul_sum"])
def test_a_function_with_the_name_of_a_reduction_is_only_called(name):
    own = hpccoll.Reduction.from_function(np.maximum, name=name)
    assert not own.divides
    assert not own.scales
    with hpccoll.Communicator() as hpc:
        for algorithm in ("ring", "mpi"):
            for _ in range(3):
                assert hpc.all_reduce(np.array([4, 6]), own, algorithm=algorithm).tolist() == [4, 6]
                assert hpc.scan(np.array([4, 6]), own).tolist() == [4, 6]


@dataclass
class Add:
    """A function without a hash, because it can be compared."""

    scale: int = 1

    def __call__(self, a, b):
        return a + self.scale * b


@pytest.mark.parametrize("function", ["max", None, Add()])
def test_what_is_no_function_with_a_hash_is_refused(function):
    with pytest.raises(ReductionError, match="pass a function of two arrays"):
        hpccoll.Reduction.from_function(function)


def test_bfloat16_is_refused_because_numpy_lacks_it():
    with pytest.raises(ReductionError, match="NumPy has no bfloat16; cast to float32"):
        hpccoll.Reduction.from_function(add).require(get_dtype("bfloat16"))


@pytest.mark.parametrize("returned", [None, 1.0, np.ones(2), np.ones(3, np.float32), np.ones((3, 1))])
def test_a_result_of_another_shape_or_type_is_refused(returned):
    out = np.zeros(3)
    with pytest.raises(ReductionError, match="return a new array of the same shape and dtype"):
        NUMPY.bind_reduce(lambda _a, _b: returned, out, out, out)()


def test_the_function_gets_left_and_right_in_order():
    left, right, out = np.array([5.0]), np.array([3.0]), np.zeros(1)
    NUMPY.bind_reduce(lambda a, b: a - b, left, right, out)()
    assert out.tolist() == [2]
    NUMPY.bind_reduce(lambda a, b: a - b, left, right, right)()
    assert right.tolist() == [2]
