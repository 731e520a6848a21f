"""An algorithm at a scale and a size on a machine: the plan, its chunks and its element count, then the simulation."""

from __future__ import annotations

from functools import lru_cache

from hpccoll.algorithms.registry import Algorithm
from hpccoll.plan.operation import Operation
from hpccoll.plan.simulation.machine import Machine
from hpccoll.plan.simulation.simulate import Simulation, simulate
from hpccoll.predict.pipelined import simulate_pipelined

ITEMSIZE = 4  # float32, as `hpccoll bench` sends by default
_MOST_CHUNKS = 128


def count_elements(operation: Operation, nbytes: int, n: int, itemsize: int = ITEMSIZE) -> int:
    """Return the elements a rank whose S is `nbytes` or, where that is not divisible, the next smaller S there is.

    Above zero bytes it is at least one element, as `hpccoll bench` counts.
    """
    if operation is Operation.BARRIER:
        return 0
    return max(nbytes // (itemsize * (n if operation.has_blocks else 1)), min(nbytes, 1))


def fill_nodes(n: int, machine: Machine) -> tuple[int, ...]:
    """Return how many ranks each node of the machine gets."""
    full, rest = divmod(n, machine.ranks_per_node)
    return (machine.ranks_per_node,) * full + ((rest,) if rest else ())


def can_run_on(algorithm: Algorithm, n: int, machine: Machine) -> bool:
    """Return whether n ranks can run it: those that share memory are on one node, unless it goes by nodes itself."""
    return not algorithm.uses_shared_memory or "nodes" in algorithm.parameters or n <= machine.ranks_per_node


@lru_cache(maxsize=4096)
def chunks_for(algorithm: Algorithm, n: int, machine: Machine, nbytes: int) -> int:
    """Return into how many chunks a message is cut: the power of two that the stated cost favours on that machine.

    A step costs an alpha, and a rank sends what it sends evenly over the steps; 1 where nothing is pipelined or stated.
    """
    if "chunks" not in algorithm.parameters or algorithm.cost is None:
        return 1
    link = machine.between if n > machine.ranks_per_node else machine.within
    nodes, most = fill_nodes(n, machine), max(count_elements(algorithm.operation, nbytes, n), 1)

    def seconds(chunks: int) -> float:
        cost = algorithm.plan(n, 0, chunks, nodes).cost
        if cost is None:
            return 0.0
        return cost.steps * (link.alpha_s + float(cost.most) / chunks * nbytes * link.beta_s_per_byte)

    candidates = [1 << k for k in range(_MOST_CHUNKS.bit_length()) if 1 << k <= most]
    return min(candidates, key=seconds)


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
    """Return what `algorithm` takes on n ranks of `machine` for a message of about `nbytes` (nccl-tests' S).

    Args:
        algorithm: any, registered or not.
        n: ranks.
        machine: its nodes are also those that the plan is laid out for.
        nbytes: rounded down to whole float32 elements.
        chunks: into how many the message is cut; None to choose.
        root: of operations that have one.
        full: simulate every rank, also where a period would do.
        trace: find the critical path.
    """
    if chunks is None:
        chunks = chunks_for(algorithm, n, machine, nbytes)
    plan = algorithm.plan(n, root, chunks, fill_nodes(n, machine))
    count = count_elements(plan.operation, nbytes, n)
    if algorithm.is_hybrid and not trace:
        return simulate_pipelined(plan, machine, count, ITEMSIZE, full=full)
    return simulate(plan, machine, count, ITEMSIZE, full=full, trace=trace)
