"""Find the likely fault behind wrong gradients: first from the gradients alone, then by simulating faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpccoll.parallel.mesh import Mesh
from hpccoll.parity.fault import UNKNOWN, ComparedTensor, Fault
from hpccoll.parity.reference import ReferenceRun
from hpccoll.parity.simulated_faults import simulate_faults
from hpccoll.parity.tensor_faults import (
    find_factor,
    find_missing_elements,
    find_missing_reduction,
    find_not_finite,
    find_previous_step,
    find_shift,
    find_swapped_shards,
    find_zero,
    list_factors,
)


def diagnose(run: ReferenceRun, tensors: Mapping[str, ComparedTensor], wrong: Sequence[str]) -> dict[str, Fault]:
    """Return the likely mistake of the training step behind each wrong gradient, by the gradient's name.

    Args:
        run: the run in one process, at the step in which the tensors differ.
        tensors: all compared gradients by name, in the order of the model.
        wrong: the names of the gradients that differ, in the order of the model.
    """
    faults = {name: fault for name in wrong if (fault := _find_in_tensor(run, tensors[name])) is not None}
    unexplained = [name for name in wrong if name not in faults]
    if unexplained:
        for simulated in simulate_faults(run, tensors, unexplained):
            for name in unexplained:
                if name not in faults and simulated.explains(tensors[name], run.sizes):
                    faults[name] = Fault(simulated.kind, simulated.text)
            if len(faults) == len(wrong):
                break
    fallback = find_permuted_shards(run.sizes, tensors) or UNKNOWN
    return {name: faults.get(name, fallback) for name in wrong}


def find_permuted_shards(sizes: Mesh, tensors: Mapping[str, ComparedTensor]) -> Fault | None:
    """Return a fault if some tensors, but not all, are split over tp in another order than that of the ranks."""
    is_ordered = {}
    for name, tensor in tensors.items():
        rows = {sizes.get_coordinates(shard.rank)["tp"]: shard.index.rows for shard in tensor.shards}
        starts = [int(rows[tp][0]) for tp in sorted(rows) if rows[tp] is not None]
        if len(starts) > 1:
            is_ordered[name] = starts == sorted(starts)
    permuted = [name for name, ordered in is_ordered.items() if not ordered]
    if not permuted or len(permuted) == len(is_ordered):
        return None
    return Fault("swapped_shards", f"the shards of {permuted[0]} are not in the order of the ranks of tp")


def choose_fault(wrong: Sequence[str], faults: Mapping[str, Fault]) -> tuple[str, Fault]:
    """Return the name of the wrong gradient whose layer is closest to the fault, and the likely fault.

    A wrong gradient makes the gradients of earlier layers wrong, too, so the last wrong gradient with an explanation is
    returned. If the first wrong gradient has the same kind of fault as the last explained one, the first is returned.
    `wrong` has the names of wrong gradients, at least one, in the order of the model, and `faults` the likely fault of
    each.
    """
    last = next((name for name in reversed(wrong) if faults[name] is not UNKNOWN), wrong[0])
    name = wrong[0] if faults[wrong[0]].kind == faults[last].kind else last
    return name, faults[name]


def _find_in_tensor(run: ReferenceRun, wrong: ComparedTensor) -> Fault | None:
    """Return the fault that the values of a wrong gradient show, such as a factor or a missing sum; None if unknown."""
    factors = list_factors(run.sizes, run.case.microbatches, run.case.samples)
    previous = run.previous.gradients if run.previous else {}
    gradients = {name: x.cpu().double() for name, x in run.gradients.items()}
    return (
        find_not_finite(wrong)
        or find_zero(wrong)
        or find_factor(wrong, factors)
        or find_previous_step(wrong, previous)
        or find_missing_elements(wrong, run.sizes)
        or find_missing_reduction(wrong, run.sizes)
        or find_swapped_shards(wrong)
        or find_shift(wrong, gradients)
    )
