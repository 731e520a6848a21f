"""Search the meshes of a given number of ranks for the fastest training step of a model on a machine, by estimates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf

from hpccoll.parallel.mesh import INNERMOST_FIRST, Mesh
from hpccoll.plan import Machine
from hpccoll.sizing.communication import GRADIENTS, list_traffic
from hpccoll.sizing.estimate import Estimate, compute_step_time, compute_usable_bytes, make_estimate
from hpccoll.sizing.memory import compute_memory, compute_rank_memory
from hpccoll.sizing.training_setup import RECOMPUTE, ZERO_STAGES, ModelShape, Recompute, TrainingSetup


@dataclass(slots=True)
class MeshSearch:
    """The result of a search: estimates of meshes that fit into memory, fastest first, and of meshes that do not fit.

    `misfits` has the meshes on which the training step is impossible, each with the reason.
    """

    fitting: list[Estimate] = field(default_factory=list)
    too_large: list[Estimate] = field(default_factory=list)
    misfits: dict[Mesh, str] = field(default_factory=dict)


def list_meshes(ranks: int, model: ModelShape, machine: Machine) -> Iterator[Mesh]:
    """Yield the meshes of `ranks` ranks with tp at most the ranks per node, and ep at most the number of experts."""
    limits = {"tp": machine.ranks_per_node, "ep": model.experts}

    def extend(sizes: tuple[int, ...], rest: int) -> Iterator[Mesh]:
        """Yield the meshes whose first axes have these sizes; `rest` is the number of ranks left to divide."""
        if len(sizes) == len(INNERMOST_FIRST) - 1:
            tp, ep, cp, dp = sizes
            yield Mesh(dp, tp, rest, cp, ep)
            return
        limit = min(limits.get(INNERMOST_FIRST[len(sizes)], rest), rest)
        for size in range(1, limit + 1):
            if rest % size == 0:
                yield from extend((*sizes, size), rest // size)

    return extend((), ranks)


def search_meshes(
    base: TrainingSetup,
    machine: Machine,
    efficiency: float,
    ranks: int,
    zeros: Sequence[int] = ZERO_STAGES,
    recomputes: Sequence[Recompute] = RECOMPUTE,
) -> MeshSearch:
    """Return all meshes of `ranks` ranks as a `MeshSearch`, each with the fastest settings that fit into memory.

    The settings are ZeRO stages, recomputation and the size of micro-batches; sequence parallelism is used with tp.
    Raises UsageError if the machine model states no peak rate or no memory.

    Args:
        base: the training step, from which model, batch, sequence, schedule and precision are taken.
        efficiency: the fraction of the peak rate at which ranks compute.
    """
    search = MeshSearch()
    for mesh in list_meshes(ranks, base.model, machine):
        setups = list(_list_setups(base, mesh))
        possible = [setup for setup in setups if setup.find_misfit() is None]
        if not possible:
            search.misfits[mesh] = str(setups[0].find_misfit())
            continue
        if fastest := _find_fastest(possible, machine, efficiency, zeros, recomputes):
            search.fitting.append(make_estimate(fastest, machine, efficiency))
            continue
        settings = product(possible, zeros, recomputes)
        tried = [replace(setup, zero=zero, recompute=recompute) for setup, zero, recompute in settings]
        smallest = min(tried, key=lambda setup: compute_memory(setup).total)
        search.too_large.append(make_estimate(smallest, machine, efficiency))
    search.fitting.sort(key=lambda estimate: estimate.time.total_s)
    search.too_large.sort(key=lambda estimate: estimate.memory.total)
    return search


def _list_setups(base: TrainingSetup, mesh: Mesh) -> Iterator[TrainingSetup]:
    """Yield the training step `base` on a mesh with micro-batches of 1, 2, 4, ... samples that divide the batch."""
    has_sp = mesh.tp > 1 and base.sequence // mesh.cp % mesh.tp == 0
    samples, size = base.batch // mesh.samplers, 1
    while size == 1 or samples % size == 0:
        yield replace(base, mesh=mesh, microbatches=max(samples // size, 1), sequence_parallel=has_sp)
        size *= 2


def _find_fastest(
    possible: Sequence[TrainingSetup],
    machine: Machine,
    efficiency: float,
    zeros: Sequence[int],
    recomputes: Sequence[Recompute],
) -> TrainingSetup | None:
    """Return the training step that is fastest among those that fit into memory, or None.

    Each size of micro-batches (`possible`) and ZeRO stage uses the least recomputation with which the step fits into
    memory. Settings are skipped if a lower bound of their time is not below the fastest time so far.
    """
    usable = compute_usable_bytes(machine)
    fastest, least_s = None, inf
    for setup in possible:
        bounds: dict[Recompute, float] = {}
        for zero in zeros:
            for recompute in recomputes:
                tried = replace(setup, zero=zero, recompute=recompute)
                if recompute not in bounds:
                    bounds[recompute] = compute_step_time(tried, machine, efficiency, []).total_s
                if bounds[recompute] >= least_s:
                    break
                if any(compute_rank_memory(tried, rank).total > usable for rank in tried.compared_ranks):
                    continue
                time = compute_step_time(tried, machine, efficiency, list_traffic(tried, machine))
                # A lower bound for the other stages of ZeRO: the time without the communication of ZeRO.
                others = {
                    strategy: seconds for strategy, seconds in time.exposed_s.items() if strategy not in GRADIENTS
                }
                bounds[recompute] = replace(time, exposed_s=others).total_s
                if time.total_s < least_s:
                    fastest, least_s = tried, time.total_s
                break
    return fastest
