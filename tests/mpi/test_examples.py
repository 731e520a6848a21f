"""The examples in the docstrings of the public API hold on any number of ranks, one rank included."""

from __future__ import annotations

import pytest

import hpccoll
from tests.examples import list_public, run_examples

PUBLIC = dict(list_public())


@pytest.fixture(scope="module")
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_of_a_public_name_holds(hpc, name):
    if "torch" in name:
        pytest.importorskip("torch")
    wrong = run_examples(name, PUBLIC[name], hpc)
    assert not wrong, wrong
