"""Ranks the meshes of a number of ranks for a model on a machine, by the estimated time of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from hpccoll.parallel.mesh import INNERMOST_FIRST, Mesh
from hpccoll.plan import Machine
from hpccoll.sizing.estimate import USABLE_MEMORY, Estimate, make_estimate
from hpccoll.sizing.memory import compute_memory
from hpccoll.sizing.model_shape import ModelShape
from hpccoll.sizing.overlap import require_rate
from hpccoll.sizing.training_setup import RECOMPUTE, ZERO_STAGES, Model, Recompute, TrainingSetup


@dataclass(slots=True)
class MeshSearch:
    """The meshes of a search: those that fit, fastest first; those that need too much memory; the others by reason."""

    fitting: list[Estimate] = field(default_factory=list)
    too_large: list[Estimate] = field(default_factory=list)
    misfits: dict[Mesh, str] = field(default_factory=dict)


def list_meshes(ranks: int, model: Model, machine: Machine) -> Iterator[Mesh]:
    """Yield the meshes of `ranks` ranks whose tp stays in a node, and whose ep has no more ranks than experts."""
    limits = {"tp": machine.ranks_per_node, "ep": model.experts if isinstance(model, ModelShape) else 1}

    def extend(sizes: tuple[int, ...], rest: int) -> Iterator[Mesh]:
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
    """Return all meshes of `ranks` ranks, each with the fastest settings that fit into memory.

    The settings are ZeRO stages, recomputation and the size of micro-batches; sequence parallelism is used with tp. The
    model, batch, sequence, schedule and precision are those of `base`. Raises UsageError if the machine lacks a rate.
    """
    usable = USABLE_MEMORY * require_rate(machine, "memory_bytes")
    found = MeshSearch()
    for mesh in list_meshes(ranks, base.model, machine):
        setups = list(_list_setups(base, mesh))
        possible = [setup for setup in setups if setup.find_misfit() is None]
        if not possible:
            found.misfits[mesh] = str(setups[0].find_misfit())
            continue
        fitting, smallest = _find_fitting(possible, zeros, recomputes, usable)
        estimates = [make_estimate(setup, machine, efficiency) for setup in fitting or [smallest]]
        (found.fitting if fitting else found.too_large).append(min(estimates, key=lambda each: each.time.total_s))
    found.fitting.sort(key=lambda each: each.time.total_s)
    found.too_large.sort(key=lambda each: each.memory.total)
    return found


def _list_setups(base: TrainingSetup, mesh: Mesh) -> Iterator[TrainingSetup]:
    """Yield the setup on a mesh with micro-batches of 1, 2, 4, ... samples, as long as they divide the batch."""
    has_sp = mesh.tp > 1 and base.sequence // mesh.cp % mesh.tp == 0
    samples, size = base.batch // mesh.samplers, 1
    while size == 1 or samples % size == 0:
        yield replace(base, mesh=mesh, microbatches=max(samples // size, 1), sequence_parallel=has_sp)
        size *= 2


def _find_fitting(
    possible: Sequence[TrainingSetup], zeros: Sequence[int], recomputes: Sequence[Recompute], usable: float
) -> tuple[list[TrainingSetup], TrainingSetup]:
    """Return the setups that fit, each with the least recomputation that suffices, and the one of least memory."""
    fitting, needed = [], []
    for setup, zero in product(possible, zeros):
        for recompute in recomputes:
            tried = replace(setup, zero=zero, recompute=recompute)
            needed.append((compute_memory(tried).total, tried))
            if needed[-1][0] <= usable:
                fitting.append(tried)
                break
    return fitting, min(needed, key=lambda each: each[0])[1]
