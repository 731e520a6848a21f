"""Algorithms by operation and size, as programs and the environment choose them."""

from __future__ import annotations

import pytest

from hpccoll.errors import UnknownNameError, UsageError
from hpccoll.mpi4py.configuration import Mpi4pyConfiguration, make_choice, read_choices
from hpccoll.plan import Operation


def find_algorithm(given, nbytes, operation=Operation.ALL_REDUCE):
    """Return the algorithm that a configuration gives for a message size."""
    return Mpi4pyConfiguration("all", read_choices(given)).find_algorithm(operation, nbytes)


def test_a_choice_holds_for_its_range_of_sizes():
    given = "Allreduce:64K-1M=ring,Bcast=mpi"
    assert [find_algorithm(given, nbytes) for nbytes in (65535, 65536, 2**20 - 1, 2**20)] == [
        "auto",
        "ring",
        "ring",
        "auto",
    ]
    assert find_algorithm(given, 8, Operation.BROADCAST) == "mpi"


def test_ranges_may_be_open_and_later_choices_take_precedence():
    given = "all_reduce=ring,all_reduce:-1K=mpi,all_reduce:1M-=auto"
    assert [find_algorithm(given, nbytes) for nbytes in (8, 1024, 2**21)] == ["mpi", "ring", "auto"]


@pytest.mark.parametrize("given", ["Allreduce", "Allreduce:5=ring"])
def test_a_choice_of_another_form_is_refused_with_an_example(given):
    with pytest.raises(UsageError, match="write for example"):
        read_choices(given)


def test_unknown_operations_and_algorithms_are_refused():
    with pytest.raises(UnknownNameError, match="operation"):
        make_choice("Allrduce", "ring", 0, None)
    with pytest.raises(UnknownNameError, match="algorithm"):
        make_choice("Allreduce", "rong", 0, None)
    with pytest.raises(UsageError, match="size"):
        make_choice("Allreduce", "ring", "many", None)
