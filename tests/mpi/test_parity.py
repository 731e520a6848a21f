"""Planted faults in training steps are found and named, and right training steps are not blamed."""

from __future__ import annotations

from dataclasses import replace

import pytest

import hpccoll

torch = pytest.importorskip("torch")

from hpccoll.parity import ParityOptions, check_parity  # noqa: E402 - torch may not be here
from tests.mpi.parity_faults import DP_FAULTS, no_reduction, right_step  # noqa: E402
from tests.mpi.parity_tp_faults import PP_FAULTS, TP_FAULTS, plant_in_blocks, plant_in_gathers, plant_in_vocabulary  # noqa: E402

ON_TWO = {
    **{f"dp: {name}": ("dp", *planted) for name, planted in DP_FAULTS.items()},
    **{f"tp: {name}": ("tp", *planted) for name, planted in TP_FAULTS.items()},
    **{f"pp: {name}": ("pp", *planted) for name, planted in PP_FAULTS.items()},
}
IN_BLOCKS = ("no sum in backward pass", "bias added on each rank", "all_gather: reduce-scatter instead of split")
ON_FOUR = {
    **{f"dp=2,tp=2: {name}": ("dp=2,tp=2", TP_FAULTS[name][0], TP_FAULTS[name][1]) for name in IN_BLOCKS},
    **{f"tp=4: {name}": ("tp", *TP_FAULTS[name]) for name in ("swapped shards", "vocabulary without the rank")},
    **{f"dp=4: {name}": ("dp", *DP_FAULTS[name]) for name in ("bucket ends early", "shared dropout seed")},
}


@pytest.fixture
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    torch.set_num_threads(1)
    with hpccoll.Communicator(comm) as made:
        yield made


def find(hpc, mesh, build, **options):
    return check_parity(hpc, build, mesh, ParityOptions(lr=0.2, **options)).summary


@pytest.mark.needs_ranks(2, 2)
@pytest.mark.parametrize("name", ON_TWO)
def test_a_planted_fault_is_named(hpc, name):
    mesh, kind, build = ON_TWO[name]
    summary = find(hpc, mesh, build)
    assert summary.fault == kind, summary


@pytest.mark.needs_ranks(4, 4)
@pytest.mark.parametrize("name", ON_FOUR)
def test_a_planted_fault_is_named_on_four_ranks(hpc, name):
    mesh, kind, build = ON_FOUR[name]
    summary = find(hpc, mesh, build if "=4" in name else lambda: replace(build(), backward=right_step))
    assert summary.fault == kind, summary


RIGHT = {
    "blocks": plant_in_blocks(),
    "gathers": plant_in_gathers(True, False),
    "vocabulary": plant_in_vocabulary((0, 0)),
}


@pytest.mark.needs_ranks(2, 2)
@pytest.mark.parametrize("name", RIGHT)
def test_the_models_without_a_fault_are_right(hpc, name):
    summary = find(hpc, "tp", RIGHT[name])
    assert summary.wrong == 0, summary
    assert summary.tensors > 10


@pytest.mark.needs_ranks(4, 4)
def test_a_missing_reduction_over_dp_is_named_beside_tp(hpc):
    summary = find(hpc, "dp=2,tp=2", lambda: replace(plant_in_blocks()(), backward=no_reduction))
    assert summary.fault == "missing_average_dp", summary
