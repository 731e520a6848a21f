"""TableMethod: a method that runs known calls in the table of its object, and all other calls in a Python function."""

import inspect
import sys
from typing import Any

import numpy as np
import pytest

from hpccoll.communicator.table_methods import run_known_calls
from hpccoll.native import CallTable, SharedBuffers, TableMethod
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import SUM


class Adder:
    """An object whose table knows one kind of call: an all_reduce of three float64 in place."""

    def __init__(self) -> None:
        self._table = CallTable(np.ndarray, {}, SharedBuffers(), self)
        example = Operation.ALL_REDUCE, np.zeros(3), None, SUM, 0, "auto", None
        self._table.add(example, self.add_one, None, False, False, False, 24, 24, 3, 1, -1, None)

    def add_one(self, x: np.ndarray, out: np.ndarray) -> None:
        """Add 1 to `x`, which is also the output."""
        assert out is x
        x += 1

    @run_known_calls(Operation.ALL_REDUCE)
    def all_reduce(self, x, op=SUM, *, out=None, counts=None, algorithm="auto", async_op=False):
        """Return the arguments."""
        return "Python", x, op, out, counts, algorithm, async_op


CLASS: Any = Adder  # wrong calls of the method are for Python to find, not for mypy


def test_a_known_call_runs_without_the_python_function():
    x = np.zeros(3)
    assert CLASS().all_reduce(x) is x
    assert x.tolist() == [1, 1, 1]
    adder = CLASS()
    for known in (
        lambda: adder.all_reduce(x, SUM),
        lambda: adder.all_reduce(x=x),
        lambda: adder.all_reduce(x, op=SUM, out=None, algorithm="auto", async_op=False),
        lambda: CLASS.all_reduce(adder, x),
    ):
        assert known() is x
    assert x.tolist() == [5, 5, 5]


def test_every_other_call_runs_in_the_python_function_with_its_arguments():
    adder, x, out = CLASS(), np.zeros(3), np.zeros(3)
    assert adder.all_reduce([1]) == ("Python", [1], SUM, None, None, "auto", False)
    assert adder.all_reduce(x, max)[1:3] == (x, max)
    assert adder.all_reduce(x, "max")[2] == "max"
    assert adder.all_reduce(x, out=out)[3] is out
    assert adder.all_reduce(x, counts=[3])[4] == [3]
    assert adder.all_reduce(x, algorithm="ring")[5] == "ring"
    assert adder.all_reduce(x, async_op=True)[6] is True
    assert adder.all_reduce(np.zeros(4))[0] == "Python"
    assert x.tolist() == [0, 0, 0]


def test_wrong_arguments_raise_the_errors_of_the_python_function():
    adder, x = CLASS(), np.zeros(3)
    calls = (
        adder.all_reduce,
        lambda: adder.all_reduce(x, SUM, None),
        lambda: adder.all_reduce(x, x=x),
        lambda: adder.all_reduce(x, size=3),
        CLASS.all_reduce,
    )
    for call in calls:
        with pytest.raises(TypeError, match=r"all_reduce\(\) (missing|takes|got)"):
            call()
    assert x.tolist() == [0, 0, 0]


def test_an_object_without_a_table_gets_the_python_function():
    assert CLASS.all_reduce(np.zeros(3), 4)[1] == 4
    adder = CLASS()
    adder._table = None
    assert adder.all_reduce(4)[1] == 4


def test_the_errors_of_a_known_call_are_raised():
    adder = CLASS()
    adder._table.add(
        (Operation.ALL_REDUCE, np.zeros(1), None, SUM, 0, "auto", None),
        divide,
        None,
        False,
        False,
        False,
        8,
        8,
        1,
        1,
        -1,
        None,
    )
    with pytest.raises(ZeroDivisionError):
        adder.all_reduce(np.zeros(1))


def divide(x: np.ndarray, _: np.ndarray) -> None:
    """Divide by zero."""
    1 / int(x[0])


def test_the_method_has_name_signature_and_documentation_of_the_function():
    method = CLASS.all_reduce
    assert (method.__name__, method.__doc__) == ("all_reduce", "Return the arguments.")
    assert list(inspect.signature(method).parameters)[:3] == ["self", "x", "op"]
    assert list(inspect.signature(CLASS().all_reduce).parameters)[:2] == ["x", "op"]


def test_wrong_descriptions_of_a_method_are_refused():
    fixed = (None,) * 7
    for names, roles, positional in ((("x",), ("y",), 0), (("x",), (), 0), (("x",), ("x",), 2), ((), (), -1)):
        with pytest.raises(ValueError, match="parameter"):
            TableMethod(print, "_table", names, roles, names, None, positional, fixed)
    with pytest.raises(ValueError, match="parameter"):
        TableMethod(print, "_table", ("x",), ("x",), ("x",), None, 0, fixed[1:])


def test_a_call_in_the_python_function_leaves_no_reference_to_not_implemented():
    adder = CLASS()
    before = sys.getrefcount(NotImplemented)
    for _ in range(1000):
        adder.all_reduce(4)
    assert sys.getrefcount(NotImplemented) - before < 1000
