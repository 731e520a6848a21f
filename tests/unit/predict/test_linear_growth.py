"""Plans that grow linearly are simulated by a few nodes, with the results of all ranks, exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpccoll.algorithms import get_algorithm, list_algorithms
from hpccoll.errors import UsageError
from hpccoll.plan import Link, Machine, Operation
from hpccoll.predict import forecast as forecasts
from hpccoll.predict.forecast import forecast

LINEAR = [algorithm for algorithm in list_algorithms() if algorithm.grows_linearly]
MANY_MESSAGES = [algorithm for algorithm in LINEAR if "pairwise" in algorithm.name or "shot" in algorithm.name]
# All costs are powers of two, so that sums of them are exact.
NEAR, WIDE = Link(2.0**-18, 2.0**-35, 2.0**-20), Link(2.0**-16, 2.0**-33, 2.0**-20)


def make_machine(algorithm, n, per_node, nics):
    """Return a machine model that can run the algorithm: one node for those in shared memory alone."""
    if algorithm.uses_shared_memory and not algorithm.is_two_level:
        per_node = nics = n
    return Machine("exact", per_node, NEAR, WIDE, nics, 2.0**-38)


@pytest.fixture(autouse=True)
def _never_simulate_all_ranks_instead(monkeypatch):
    """Make forecasts that are refused fail, instead of being made from all ranks."""
    monkeypatch.setattr(forecasts, "MOST_UNSYMMETRIC_RANKS", 0)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", LINEAR, ids=lambda each: each.full_name)
@pytest.mark.parametrize(("n", "per_node", "nics"), [(1024, 8, 8), (504, 6, 2), (501, 1, 1)])
def test_equal_to_the_simulation_of_every_rank(monkeypatch, algorithm, n, per_node, nics):
    if n == 1024 and (algorithm in MANY_MESSAGES or algorithm.name in ("weighted", "hierarchical_ring")):
        n = 512  # n messages per rank and round, or rounds of all ranks, take seconds
    machine = make_machine(algorithm, n, per_node, nics)
    whole = forecast(algorithm, n, machine, 8 * n, chunks=1, full=True)
    monkeypatch.setattr(forecasts, "_needs_growth", lambda *_: True)
    few = forecast(algorithm, n, machine, 8 * n, chunks=1)
    for name in ("clocks_s", "within", "between"):
        assert np.array_equal(getattr(few, name), getattr(whole, name)), name
    for name in ("seconds", "nbytes", "rounds", "steps", "messages"):
        assert getattr(few, name) == getattr(whole, name), name


@pytest.mark.parametrize("chunks", [5, 16])
@pytest.mark.parametrize("root", [0, 3, 400])
@pytest.mark.parametrize("op", ["broadcast", "reduce"])
def test_pipelines_with_any_root(monkeypatch, op, root, chunks):
    algorithm, machine = get_algorithm(Operation(op), "chain"), make_machine(LINEAR[0], 1008, 6, 2)
    whole = forecast(algorithm, 1008, machine, 10_007, chunks=chunks, root=root, full=True)
    monkeypatch.setattr(forecasts, "MOST_DIRECT_RANKS", 64)
    few = forecast(algorithm, 1008, machine, 10_007, chunks=chunks, root=root)
    assert np.array_equal(few.clocks_s, whole.clocks_s)
    assert (few.plan.root, few.messages) == (root, whole.messages)


def test_growth_that_is_not_linear_is_refused(monkeypatch):
    tree = replace(get_algorithm(Operation.BROADCAST, "tree"), grows_linearly=True)
    monkeypatch.setattr(forecasts, "_needs_growth", lambda *_: True)
    with pytest.raises(UsageError, match="does not take the time that"):
        forecast(tree, 2**20, make_machine(tree, 2**20, 1, 1), 8192)


def test_a_million_ranks_of_a_chain():
    machine = make_machine(LINEAR[0], 2**20, 8, 8)
    chain = forecast(get_algorithm(Operation.BROADCAST, "chain"), 2**20, machine, 8192, chunks=1)
    hops = 7 * 2**17 * (NEAR.alpha_s + 8192 * NEAR.beta_s_per_byte) + (2**17 - 1) * (
        WIDE.alpha_s + 8192 * WIDE.beta_s_per_byte
    )
    assert chain.seconds == hops
    assert (chain.messages, chain.steps, chain.plan.ranks) == (2**20 - 1, 2**20 - 1, 2**20)
