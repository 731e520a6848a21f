"""Plans with many equal rounds are simulated by a few of them, with the result of all of them."""

from __future__ import annotations

import numpy as np
import pytest

from hpccoll.algorithms import get_algorithm
from hpccoll.plan import Machine, Operation, simulate
from hpccoll.plan.simulation import simulator
from hpccoll.plan.simulation.repeated_rounds import find_run_end
from hpccoll.predict.machine_catalogue import load_machine

CASES = (
    ("all_reduce", "ring", 2**18), ("all_reduce", "ring", 512), ("all_gather", "ring", 100),
    ("all_gather", "neighbor_exchange", 64), ("reduce_scatter", "ring", 3), ("reduce_scatter", "ring", 0),
    ("all_to_all", "pairwise", 16), ("reduce_scatter", "neighbor_exchange", 5),
)  # fmt: skip


@pytest.mark.parametrize("machine", [Machine.flat(1e-6, 1e-9, 1e-10), load_machine("dgx-h100")], ids=lambda m: m.name)
@pytest.mark.parametrize(("op", "name", "count"), CASES)
def test_equal_to_the_simulation_of_every_rank_and_round(monkeypatch, op, name, count, machine):
    plan = get_algorithm(Operation(op), name).plan(1024)
    full = simulate(plan, machine, count, trace=False, full=True)
    monkeypatch.setattr(simulator, "LEAST_ROUNDS", 16)
    few = simulate(plan, machine, count, trace=False)
    assert few.seconds == pytest.approx(full.seconds, rel=1e-12)
    assert (few.steps, few.rounds, few.messages) == (full.steps, full.rounds, full.messages)
    assert few.within.sum() * (1024 // few.simulated_ranks) == pytest.approx(full.within.sum())
    assert few.between.sum() * (1024 // few.simulated_ranks) == pytest.approx(full.between.sum())


@pytest.mark.parametrize(("op", "name"), [case[:2] for case in CASES[:5]])
def test_a_million_ranks_take_a_few_hundred_rounds(monkeypatch, op, name):
    advanced = []
    real = simulator.advance_clocks

    def count_advances(*given):
        advanced.append(given)
        return real(*given)

    monkeypatch.setattr(simulator, "advance_clocks", count_advances)
    plan = get_algorithm(Operation(op), name).plan(2**20)
    result = simulate(plan, load_machine("dgx-h100"), 2**22 if op == "all_reduce" else 4, trace=False)
    assert result.rounds >= 2**19
    assert len(advanced) < 2000
    assert np.isfinite(result.seconds)


def test_the_end_of_a_run_is_where_costs_change():
    assert find_run_end(lambda t: b"ab"[t % 2 : t % 2 + 1], 0, 1000, 2) == 1000
    assert find_run_end(lambda t: b"x" if t < 700 else b"y", 0, 1000, 1) == 700
    assert find_run_end(lambda t: str(t).encode(), 0, 1000, 1) <= 1
