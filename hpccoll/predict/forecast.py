"""Forecasts the time of an algorithm by simulation, for a rank count, a machine model and a message size."""

from __future__ import annotations

from dataclasses import replace
from math import gcd, lcm

import numpy as np

from hpccoll.algorithms import Algorithm
from hpccoll.algorithms.pipelining import MESSAGE_BYTES, choose_segment_count
from hpccoll.plan import Machine, Operation, Plan, Simulation, simulate
from hpccoll.plan.simulation.chunk_bytes import ChunkBytes
from hpccoll.plan.simulation.repeated_rounds import LEAST_ROUNDS, MOST_RANKS
from hpccoll.plan.simulation.symmetry import find_period
from hpccoll.predict.linear_growth import GrowthError, simulate_by_growth
from hpccoll.selection import choose_chunk_count

MOST_DIRECT_RANKS = 2**13  # with more ranks, the times of some plans are extrapolated from simulations of a few nodes
MOST_UNSYMMETRIC_RANKS = 2**17  # with more ranks, the simulation of every rank would take minutes
ITEMSIZE = 4  # float32, the default of `hpccoll bench`


def fill_nodes(n: int, machine: Machine) -> tuple[int, ...]:
    """Return the number of ranks on each node if n ranks fill the nodes of `machine` one after the other."""
    full, rest = divmod(n, machine.ranks_per_node)
    return (machine.ranks_per_node,) * full + ((rest,) if rest else ())


def can_run_on(algorithm: Algorithm, n: int, machine: Machine) -> bool:
    """Whether n ranks of `machine` can run `algorithm`.

    An algorithm that only accesses shared memory needs all ranks on one node. An algorithm for links of unequal speed
    needs their rates, which machine models do not have.
    """
    if "rates" in algorithm.parameters and not algorithm.rates:
        return False
    return not algorithm.uses_shared_memory or "nodes" in algorithm.parameters or n <= machine.ranks_per_node


def choose_forecast_chunks(algorithm: Algorithm, n: int, nbytes: int) -> int:
    """Return the number of chunks into which a real run on n ranks would cut a message of `nbytes` bytes."""
    return choose_chunk_count(algorithm, n, nbytes, algorithm.operation.count_elements(nbytes, ITEMSIZE, n))


def forecast(
    algorithm: Algorithm,
    n: int,
    machine: Machine,
    nbytes: int,
    *,
    chunks: int | None = None,
    root: int = 0,
    full: bool = False,
    trace: bool = False,
) -> Simulation:
    """Return the simulation of `algorithm` on n ranks of `machine` with a message of about `nbytes` bytes.

    Args:
        n: number of ranks, which fill the nodes of `machine` in order.
        nbytes: message size (S of nccl-tests); rounded down to whole float32 elements, in n equal blocks if the
            operation has blocks, but to at least one element per vector or block (none in a barrier).
        chunks: number of chunks; None for the number that a run would use.
        full: simulate every rank, even if a few ranks would be enough because of symmetry.
        trace: find the critical path, unless the time is extrapolated from a few nodes; with `trace`, two-level plans
            that are not extrapolated are not split into pipelined segments.
    """
    if chunks is None:
        chunks = choose_forecast_chunks(algorithm, n, nbytes)
    count = algorithm.operation.count_elements(nbytes, ITEMSIZE, n)
    if not full and _needs_growth(algorithm, n, machine, count, chunks, root):
        try:
            return _forecast_by_growth(algorithm, n, machine, count, chunks, root)
        except GrowthError:
            if n > MOST_UNSYMMETRIC_RANKS:
                raise
    plan = algorithm.plan(n, root, chunks, fill_nodes(n, machine))
    if algorithm.is_two_level and not trace:
        return simulate_pipelined(plan, machine, count, ITEMSIZE, full=full)
    return simulate(plan, machine, count, ITEMSIZE, full=full, trace=trace)


def _needs_growth(algorithm: Algorithm, n: int, machine: Machine, count: int, chunks: int, root: int) -> bool:
    """Whether to extrapolate the simulation from a few nodes, because too many ranks would have to be simulated.

    Ranks that do the same are simulated once, so symmetric plans need few simulated ranks. `count` is the number of
    elements of a rank's vector or of one block; `chunks` and `root` are the plan's number of chunks and its root.
    """
    if not algorithm.grows_linearly or n <= MOST_DIRECT_RANKS:
        return False
    plan = algorithm.plan(n, root, chunks, fill_nodes(n, machine))
    rounds = plan.column(0)
    # Simulating all ranks takes long if each round has messages to all ranks, or if no two rounds have equal costs.
    exchanges = plan.operation is Operation.ALL_TO_ALL
    if plan.period is None or len(rounds) < LEAST_ROUNDS or exchanges or algorithm.is_two_level:
        return True
    sizes = ChunkBytes(plan.operation.chunk_sizes(count, n, rounds.chunks) * ITEMSIZE)
    return find_period(plan, machine, sizes) > MOST_RANKS


def _forecast_by_growth(
    algorithm: Algorithm, n: int, machine: Machine, count: int, chunks: int, root: int
) -> Simulation:
    """Return the simulation of `algorithm` on n ranks, extrapolated from simulations of a few nodes.

    The arguments are those of `_needs_growth`. Raises GrowthError if the times on n ranks cannot be extrapolated.
    """
    is_one_node = n <= machine.ranks_per_node
    whole = algorithm.plan(n, root, chunks, fill_nodes(n, machine))
    # If every rank owns some chunks of the vector, fewer ranks are simulated with proportionally fewer elements.
    is_shared_out = not algorithm.operation.has_blocks and whole.column(0).chunks >= n
    unit = n // gcd(n, count) if is_shared_out else 1

    def run(ranks: int, root_rank: int) -> Simulation:
        """Return the simulation of the algorithm on `ranks` ranks with root `root_rank`, without use of symmetry."""
        smaller = machine.with_ranks_per_node(ranks) if is_one_node else machine
        plan = algorithm.plan(ranks, root_rank, chunks, fill_nodes(ranks, smaller))
        elements = count * ranks // n if is_shared_out else count
        if algorithm.is_two_level:
            return simulate_pipelined(plan, smaller, elements, ITEMSIZE, full=True)
        return simulate(plan, smaller, elements, ITEMSIZE, full=True, trace=False)

    repeats = lcm(unit, 1 if is_one_node else machine.period)
    return replace(simulate_by_growth(run, n, root, repeats, chunks, algorithm.full_name), plan=whole, machine=machine)


def simulate_pipelined(
    plan: Plan, machine: Machine, count: int, itemsize: int, *, full: bool = False, segments: int | None = None
) -> Simulation:
    """Return the simulation of a two-level plan (shared memory inside nodes, messages between them) in segments.

    As in a run, segments pass one after the other, so that work inside nodes overlaps with messages between nodes. The
    first segment takes the simulated time of the plan. Each later segment adds its time on the busiest link, which is a
    node's own link or a link that several nodes share.

    Args:
        count: number of elements of each rank's vector, or of one block.
        segments: number of segments; None for the number of a real run, which is 1 on a single node.
    """
    if segments is None:
        sizes = plan.operation.chunk_sizes(count, plan.ranks, plan.column(0).chunks)
        segments = choose_segment_count(plan, sizes, itemsize) if plan.ranks > machine.ranks_per_node else 1
    first = simulate(plan, machine, -(-count // segments), itemsize, full=full, trace=False)
    if segments == 1:
        return first
    nodes = np.arange(len(first.between)) // machine.ranks_per_node
    busiest = max(float(np.bincount(nodes, first.between).max()) / machine.nics_per_node, first.busiest_shared)
    message = np.array([float(MESSAGE_BYTES)])
    later = (segments - 1) * busiest * float(machine.between.transfer_s(message)[0]) / MESSAGE_BYTES
    whole = plan.operation.message_bytes(count, itemsize, plan.ranks)
    within, between = first.within * segments, first.between * segments
    shared, clocks = first.busiest_shared * segments, first.clocks_s + later
    return replace(first, nbytes=whole, clocks_s=clocks, within=within, between=between, busiest_shared=shared)
