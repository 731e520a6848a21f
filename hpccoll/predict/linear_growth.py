"""Extrapolates simulations to a million ranks from simulations of a few nodes, for plans that grow linearly.

The ranks of a chain act one after the other, each like the rank in the same place of the previous node. Once the chain
is longer than its pipeline, a further node in the middle of the ranks adds the same time, steps and messages as the
node before (the clocks are a max-plus linear map of the previous node's clocks; Baccelli, Cohen, Olsder and Quadrat,
"Synchronization and Linearity", 1992). The times of plans in which every rank exchanges messages with all others in
turn grow in the same way. Simulations of two small rank counts give the growth of times and bytes, and a simulation of
a third one gives the growth of the numbers of messages and steps, which may be quadratic. The times of a fourth rank
count are predicted and compared with its simulation, on every rank; a plan with a difference is refused.

Ranks below the middle keep their distance from the first rank, ranks above it their distance from the last one, and the
clocks and bytes of the ranks between them are interpolated between ranks with the same place in their nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm

import numpy as np

from hpccoll.errors import UsageError
from hpccoll.plan import Simulation
from hpccoll.plan.step import Floats
from hpccoll.units import format_count

LEAST_RANKS = 96  # the smallest simulated rank count is at least this
PIPELINE_ROOM = 3  # a pipelined plan is simulated with at least this many ranks per chunk
SIMULATED_MOST = 2**13  # the largest simulated rank count; with more ranks, the simulations would take minutes


class GrowthError(UsageError):
    """Raised if the simulation of many ranks cannot be extrapolated from simulations of a few nodes."""


@dataclass(frozen=True, slots=True)
class GrowthSizes:
    """The four rank counts that are simulated instead of a much larger one."""

    counts: tuple[int, ...]  # four counts with equal differences
    low: int  # the first ranks, which keep their distance from rank 0 in every count; added ranks come after them


def choose_growth_sizes(n: int, per_node: int, chunks: int) -> GrowthSizes | None:
    """Return the `GrowthSizes` to simulate instead of n ranks; None if n is too small, or too many ranks are needed.

    The four rank counts differ from n by whole nodes and an even number of ranks, so that the last node is as full as
    with n ranks.
    """
    block = lcm(per_node, 2)
    half = -(-max(LEAST_RANKS, PIPELINE_ROOM * chunks) // (2 * block)) * block
    low, least = half, 2 * half + n % block
    counts = tuple(least + half * step for step in range(4))
    return None if counts[-1] >= n or counts[-1] > SIMULATED_MOST else GrowthSizes(counts, low)


def simulate_by_growth(
    run: Callable[[int, int], Simulation], n: int, root: int, per_node: int, chunks: int, name: str
) -> Simulation:
    """Return the simulation of n ranks, extrapolated from simulations of four small rank counts.

    The result has no critical path (`path` is None).

    Args:
        run: function of a number of ranks and a root, which simulates every rank of the plan.
        per_node: the number of ranks on a node; 1 if all ranks share one node.
        chunks: the number of chunks of a pipelined plan, else 1.
        name: the name of the plan in error messages.

    Raises GrowthError if the results do not grow linearly, or too many ranks would have to be simulated.
    """
    sizes = choose_growth_sizes(n, per_node, chunks)
    shift = root - root % per_node  # the machine looks the same from every node if all are full
    if sizes is None or (shift and n % per_node):
        why = "the root is not on the first node and the last node is not full" if sizes else f"it has {chunks} chunks"
        raise GrowthError(f"{name} on {n} ranks cannot be simulated from a few nodes, because {why}; use fewer ranks")
    *runs, last = (run(count, root - shift) for count in sizes.counts)
    _require_same(_extrapolate(runs, last.plan.ranks, sizes.low, per_node), last, sizes, name)
    return _roll(_extrapolate(runs, n, sizes.low, per_node), shift)


def _require_same(predicted: Simulation, simulated: Simulation, sizes: GrowthSizes, name: str) -> None:
    """Raise GrowthError if a simulation differs on any rank from its extrapolation from smaller rank counts.

    `predicted` is the extrapolation to the fourth rank count of `sizes`, and `simulated` the simulation of it.
    """
    fields = ("clocks_s", "within", "between", "busiest_shared", "rounds", "steps", "messages")
    if not all(
        np.allclose(getattr(predicted, field), getattr(simulated, field), rtol=1e-9, atol=0) for field in fields
    ):
        counts = ", ".join(map(str, sizes.counts[:-1]))
        raise GrowthError(
            f"{name} on {format_count(simulated.plan.ranks, 'rank')} does not take the time that {counts} ranks "
            "suggest, so that a few nodes cannot represent many; use fewer ranks, or a message size that divides evenly"
        )


def _extrapolate(runs: Sequence[Simulation], n: int, low: int, per_node: int) -> Simulation:
    """Return the simulation of n ranks, extrapolated from `runs`, the simulations of three equidistant rank counts.

    The first `low` ranks keep their distance from rank 0, and the last ranks their distance from the last rank. The
    clocks and bytes of ranks in the middle are interpolated. `per_node` is the number of ranks of a node.
    """
    first, second, third = runs
    few, more = first.plan.ranks, second.plan.ranks
    steps = Fraction(n - few, more - few)

    def grow(name: str) -> int:
        """Return the field `name` for n ranks, a whole number that grows at most quadratically with ranks."""
        a, b, c = (int(getattr(simulation, name)) for simulation in (first, second, third))
        return int(a + (b - a) * steps + (c - 2 * b + a) * steps * (steps - 1) / 2)

    def grow_array(name: str) -> Floats:
        """Return the field `name` for n ranks, an array with one value per rank."""
        here, there = getattr(first, name), getattr(second, name)
        added, step = n - few, more - few  # multiplied before divided, which is exact for exact costs
        head = here[:low] + (there[:low] - here[:low]) * added / step
        tail = here[low:] + (there[step + low :] - here[low:]) * added / step
        nodes = (n - few) // per_node
        number = np.arange(1, nodes + 1)[:, None]
        between = head[low - per_node :] + (tail[:per_node] - head[low - per_node :]) * number / (nodes + 1)
        return np.concatenate([head, between.ravel(), tail])

    return replace(
        first,
        plan=replace(first.plan, ranks=n),
        nbytes=grow("nbytes"),
        rounds=grow("rounds"),
        steps=grow("steps"),
        messages=grow("messages"),
        clocks_s=grow_array("clocks_s"),
        within=grow_array("within"),
        between=grow_array("between"),
        busiest_shared=first.busiest_shared + (second.busiest_shared - first.busiest_shared) * float(steps),
        path=None,
    )


def _roll(simulation: Simulation, shift: int) -> Simulation:
    """Return the simulation with the results of rank r moved to rank r + `shift`, modulo the number of ranks."""
    if not shift:
        return simulation
    clocks, within, between = (
        np.roll(values, shift) for values in (simulation.clocks_s, simulation.within, simulation.between)
    )
    plan = replace(simulation.plan, root=simulation.plan.root + shift)
    return replace(simulation, plan=plan, clocks_s=clocks, within=within, between=between)
