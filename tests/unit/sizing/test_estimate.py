"""The time of a step, models that do not fit, and the ranking of meshes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from hpccoll.errors import UsageError
from hpccoll.parallel import Mesh
from hpccoll.plan import PassTimes, simulate_schedule
from hpccoll.predict.machine_catalogue import load_machine
from hpccoll.schedules import make_schedule
from hpccoll.sizing import TrainingSetup, TransformerShape, load_preset, make_estimate, search_meshes
from hpccoll.sizing.training_setup import RECOMPUTE

DGX = load_machine("dgx-h100")
MODEL = TransformerShape(layers=8, width=1024, heads=8, vocabulary=1024, like_llama=True, context=1024)


def make_setup(**changed: Any) -> TrainingSetup:
    return replace(TrainingSetup(MODEL, Mesh(), 16, 1024, 16), **changed)


def test_one_rank_computes_all_flops_at_the_given_efficiency():
    found = make_estimate(make_setup(), DGX, 0.5)
    assert found.time.total_s == pytest.approx(found.flops.model / (0.5 * 989.4e12))
    assert found.utilisation == pytest.approx(0.5)
    assert found.time.limit == "compute"
    assert found.fits


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb_h1", "interleaved_1f1b", "zbv", "dualpipev"])
def test_the_bubble_agrees_with_the_simulated_schedule(schedule):
    """Without an output layer to speak of, and without transfers, all stages take the same time."""
    model = TransformerShape(layers=8, width=1024, heads=8, vocabulary=8, like_llama=True, context=1024)
    links = {name: replace(getattr(DGX, name), alpha_s=0.0, beta_s_per_byte=1e-20) for name in ("within", "between")}
    found = make_estimate(make_setup(model=model, mesh=Mesh(pp=4), schedule=schedule), replace(DGX, **links))
    stages = found.setup.pipeline.stages
    simulated = simulate_schedule(make_schedule(schedule, stages, 16), PassTimes())
    longest = max(simulated.get_idle_times())
    assert found.time.bubble == pytest.approx(longest / simulated.time, rel=0.01)


def test_the_bubble_of_1f1b_is_that_of_the_formula():
    """Narayanan et al., SC 2021: (p - 1) / (m + p - 1) of the time; messages that fill the pipeline add to it."""
    found = make_estimate(make_setup(mesh=Mesh(pp=4)), DGX)
    assert found.time.bubble == pytest.approx(3 / 19, rel=0.05)
    assert found.time.bubble > 3 / 19


def test_tensor_parallelism_is_exposed_and_data_parallelism_hides_what_the_backward_pass_covers():
    tp = make_estimate(make_setup(mesh=Mesh(tp=8)), DGX)
    assert tp.time.exposed_s["tp"] == sum(each.seconds for each in tp.traffic)
    slow = replace(DGX, within=replace(DGX.within, beta_s_per_byte=1e-7))
    assert make_estimate(make_setup(mesh=Mesh(dp=8), microbatches=2), DGX).time.exposed_s["dp"] >= 0
    dp = make_estimate(make_setup(mesh=Mesh(dp=8), microbatches=2), slow)
    assert 0 < dp.time.exposed_s["dp"] < sum(each.seconds for each in dp.traffic)
    assert dp.time.limit == "dp"


MISFITS = [
    ({"mesh": Mesh(tp=3)}, "tp = 3 does not divide --heads 8"),
    ({"model": load_preset("llama-2-70b"), "mesh": Mesh(tp=16)}, "tp = 16 does not divide --kv-heads 8"),
    ({"mesh": Mesh(ep=2)}, "ep = 2 does not divide --experts 1"),
    ({"mesh": Mesh(pp=3)}, "the number of pipeline stages = 3 does not divide --layers 8"),
    ({"mesh": Mesh(cp=3)}, "2 cp = 6 does not divide --sequence 1024"),
    ({"mesh": Mesh(dp=3)}, "dp times ep times --microbatches = 48 does not divide --batch 16"),
    (
        {"mesh": Mesh(tp=8), "sequence": 1028, "sequence_parallel": True},
        "tp with --sequence-parallel = 8 does not divide --sequence over cp 1028",
    ),
    ({"mesh": Mesh(pp=4), "schedule": "dualpipev", "microbatches": 2}, "--schedule dualpipev needs"),
]


@pytest.mark.parametrize(("changed", "message"), MISFITS)
def test_a_mesh_that_does_not_divide_is_refused(changed, message):
    with pytest.raises(UsageError, match=message):
        make_estimate(make_setup(**changed), DGX)


def test_the_search_finds_every_mesh_and_ranks_those_that_fit():
    setup = TrainingSetup(load_preset("llama-2-7b"), Mesh(), 16, 4096, 1)
    found = search_meshes(setup, DGX, 0.5, 16)
    meshes = [each.setup.mesh for each in (*found.fitting, *found.too_large)] + list(found.misfits)
    assert len(set(meshes)) == len(meshes) == 34  # 2^4 into dp, tp, pp and cp, less the one with tp = 16
    assert {mesh.ranks for mesh in meshes} == {16}
    times = [each.time.total_s for each in found.fitting]
    assert times == sorted(times)
    assert all(each.fits for each in found.fitting)


@pytest.mark.parametrize("machine", ["dgx-h100", "summit"])
def test_the_search_finds_the_fastest_settings_of_every_mesh(machine):
    """Among all sizes of micro-batches and stages of ZeRO that fit, each with the least recomputation that suffices."""
    base = TrainingSetup(load_preset("gpt2-xl"), Mesh(), 16, 1024, 1)
    for found in search_meshes(base, load_machine(machine), 0.5, 8).fitting:
        mesh, times = found.setup.mesh, []
        sizes = [size for size in (1, 2, 4, 8, 16) if 16 // mesh.samplers % size == 0]
        for size, zero in product(sizes, range(4)):
            setup = replace(found.setup, microbatches=16 // mesh.samplers // size, zero=zero)
            tried = (make_estimate(replace(setup, recompute=each), found.machine) for each in RECOMPUTE)
            if fitting := next((each for each in tried if each.fits), None):
                times.append(fitting.time.total_s)
        assert found.time.total_s == min(times), mesh


def test_the_search_keeps_given_settings_and_says_what_does_not_fit():
    setup = TrainingSetup(load_preset("llama-2-70b"), Mesh(), 8, 4096, 1)
    found = search_meshes(setup, DGX, 0.5, 8, zeros=(0,), recomputes=("full",))
    assert found.fitting == []
    assert all(not each.fits and each.setup.zero == 0 for each in found.too_large)
    assert found.too_large[0].memory.total == min(each.memory.total for each in found.too_large)


def test_the_search_includes_experts():
    setup = TrainingSetup(load_preset("mixtral-8x7b"), Mesh(), 16, 4096, 1)
    assert search_meshes(setup, DGX, 0.5, 16, zeros=(3,), recomputes=("full",)).fitting[0].setup.mesh.ep > 1
