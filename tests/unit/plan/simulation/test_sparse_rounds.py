"""Rounds in which few ranks send are simulated message by message, with the results of simulating them rank by rank."""

from __future__ import annotations

import numpy as np
import pytest

from hpccoll.algorithms import list_algorithms
from hpccoll.plan import Link, Machine, rounds, simulate
from hpccoll.plan.simulation import links
from hpccoll.predict.forecast import can_run_on, fill_nodes

MACHINE = Machine("three per node", 3, Link(2e-6, 1e-10, 1e-6), Link(5e-6, 1e-9, 2e-6, bands=((64, 2e-9),)), 2, 1e-10)
MESSAGES = [each for each in list_algorithms() if can_run_on(each, 23, MACHINE)]


@pytest.mark.parametrize("count", [3, 1000])
@pytest.mark.parametrize("algorithm", MESSAGES, ids=lambda each: each.full_name)
def test_equal_to_the_simulation_by_rank(monkeypatch, algorithm, count):
    found = []
    for least, few in ((2**62, 4), (1, 1), (1, 4)):
        monkeypatch.setattr(links, "_LEAST_SPARSE", least)
        monkeypatch.setattr(links, "_SPARSE", few)
        monkeypatch.setattr(rounds, "_MANY_RANKS", least)
        monkeypatch.setattr(rounds, "_FEW", few)
        plan = algorithm.plan(23, 0, 3, fill_nodes(23, MACHINE))
        found.append(simulate(plan, MACHINE, count, full=True))
    by_rank, *sparse = found
    for simulation in sparse:
        for name in ("clocks_s", "within", "between"):
            assert np.array_equal(getattr(simulation, name), getattr(by_rank, name)), name
        for name in ("messages", "steps", "path"):
            assert getattr(simulation, name) == getattr(by_rank, name), name
