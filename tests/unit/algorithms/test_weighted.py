"""The weighted all-reduce: its shares reach the lower bound of unequal links, and its plans are proven."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

from hpccoll.algorithms import get_algorithm
from hpccoll.algorithms.loader import prove_algorithm
from hpccoll.algorithms.weighted import divide_by_rates
from hpccoll.errors import UsageError
from hpccoll.plan import Move, Nodes, Operation


def count_traffic(name: str, n: int) -> tuple[list[Fraction], list[Fraction]]:
    """Return the share of the message that each of n ranks sends and receives in a plan."""
    rounds = get_algorithm(Operation.ALL_REDUCE, name).plan(n).rounds()
    sent, received = np.zeros((2, n), np.int64)
    for steps in rounds:
        for step in steps:
            assert isinstance(step, Move)
            sent += np.where(step.dest >= 0, np.broadcast_to(step.send.size, n), 0)
            received += np.where(step.source >= 0, np.broadcast_to(step.recv.size, n), 0)
    return [Fraction(int(x), rounds.chunks) for x in sent], [Fraction(int(x), rounds.chunks) for x in received]


def compute_bound(rates: list[int]) -> Fraction:
    """Return the least t >= 1/b_min with sum(b_i t - 1) >= n - 2: no all_reduce takes less time per byte."""
    return max(Fraction(1, min(rates)), Fraction(2 * (len(rates) - 1), sum(rates)))


@pytest.mark.parametrize("seed", range(30))
def test_traffic_reaches_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    rates = [rng.choice((1, 2, 4, 10, 11, 39, 40)) for _ in range(rng.randint(2, 9))]
    for traffic in count_traffic(f"weighted@{':'.join(map(str, rates))}", len(rates)):
        slowest = max(share / rate for share, rate in zip(traffic, rates, strict=True))
        assert compute_bound(rates) <= slowest <= Fraction(102, 100) * compute_bound(rates)


@pytest.mark.parametrize(
    ("rates", "n", "chunks"),
    [
        ((), 5, (1, 1, 1, 1, 1)),
        ((7, 7), 4, (1, 1, 1, 1)),
        ((4, 1), 2, (1, 1)),
        ((4, 4, 4, 1), 4, (43, 43, 42, 0)),
        ((3, 3, 2, 2), 4, (51, 51, 13, 13)),  # 2/5, 2/5, 1/10, 1/10
        ((1,), 1, (1,)),
    ],
)
def test_shares(rates: tuple[int, ...], n: int, chunks: tuple[int, ...]) -> None:
    assert divide_by_rates(rates, n) == chunks


def test_slow_link_gains_as_much_as_the_bound_allows() -> None:
    for n, gain in ((4, Fraction(3, 2)), (8, Fraction(7, 4))):
        rates = [4] * (n - 1) + [1]
        sent, received = count_traffic(f"weighted@{':'.join(map(str, rates))}", n)
        assert sent[-1] == received[-1] == 1
        assert Fraction(2 * (n - 1), n) / sent[-1] == gain


@pytest.mark.parametrize("name", ["weighted@4:4:4:1", "weighted@1:9", "hierarchical_weighted@4:1:2:40"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 12])
def test_plans_are_proven(name: str, n: int) -> None:
    algorithm = get_algorithm(Operation.ALL_REDUCE, name)
    layouts: list[Nodes] = [None, (1,) * n]
    layouts += [(1, n - 1), tuple(tuple(range(first, n, 3)) for first in range(3))] if n > 3 else []
    for nodes in layouts if "nodes" in algorithm.parameters else [None]:
        for chunks in (1, 3) if "chunks" in algorithm.parameters else (1,):
            prove_algorithm(algorithm, n, 0, chunks, (0, 1, n - 1, 7, 1_000_003), nodes)


@pytest.mark.parametrize("name", ["weighted@", "weighted@4:x", "weighted@0:1", "ring@4:1"])
def test_wrong_rates_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="rates are whole numbers above 0"):
        get_algorithm(Operation.ALL_REDUCE, name)
