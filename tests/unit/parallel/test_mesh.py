"""Strategies, meshes and training options; these tests need neither MPI nor torch."""

from __future__ import annotations

import pytest

from hpccoll.errors import PlanError, UsageError
from hpccoll.parallel.mesh import AXES, REPLICAS, Mesh, slice_microbatches, split_evenly
from hpccoll.train.options import GptConfig, MlpConfig, TrainOptions


@pytest.mark.parametrize(
    ("strategy", "ranks", "mesh"),
    [
        ("dp", 4, Mesh(dp=4)),
        ("tp", 3, Mesh(tp=3)),
        ("pp", 1, Mesh()),
        ("dp=2,tp=2,pp=2", 8, Mesh(2, 2, 2)),
        ("pp=3, dp=2", 6, Mesh(dp=2, pp=3)),
        ("tp=2,dp", 6, Mesh(dp=3, tp=2)),
        ("cp=2,ep,tp=2", 12, Mesh(tp=2, cp=2, ep=3)),
        ("dp=1", 1, Mesh()),
    ],
)
def test_a_strategy_names_a_mesh(strategy, ranks, mesh):
    assert Mesh.parse(strategy, ranks) == mesh
    assert Mesh.parse(str(mesh), ranks) == mesh


@pytest.mark.parametrize(
    ("strategy", "ranks", "told"),
    [
        ("zero1", 4, "unknown strategy 'zero1'; choose dp, tp, pp, cp or ep for all ranks, or"),
        ("", 4, "unknown strategy ''"),
        ("dp=2,zero=2", 4, "unknown strategy 'zero'"),
        ("dp=2,tp=2", 8, "dp=2,tp=2 is a mesh of 4 ranks, but this job has 8 ranks; start 4 with mpirun -n 4, or"),
        ("dp=2", 1, "this job has 1 rank; start 2 with mpirun -n 2"),
        ("dp=0", 4, "dp=0 has no number of ranks; write dp=2, or only dp"),
        ("dp=", 4, "dp= has no number"),
        ("dp=x", 4, "dp=x has no number"),
        ("dp=2,dp=2", 4, "dp is named twice"),
        ("dp,tp", 4, "dp and tp have no number"),
        ("dp,tp=3", 4, "this job has 4 ranks, which 3 does not divide; name axes whose product is 2 or 4, or"),
        ("dp,tp=3", 4, "or start 3 or 6 ranks"),
        ("dp,tp=2", None, "dp has no number of ranks; write dp=2"),
        ("dp,tp=8", 4, "name axes whose product is 4, or start 8 ranks"),
    ],
)
def test_invalid_strategies_are_refused(strategy, ranks, told):
    with pytest.raises(UsageError) as caught:
        Mesh.parse(strategy, ranks)
    assert told in str(caught.value)


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(2, 3, 4), Mesh(dp=5), Mesh(tp=2, pp=3), Mesh(2, 2, 2, 3, 2)])
def test_every_rank_is_in_one_group_per_axis_at_its_index(mesh):
    for axis in AXES:
        groups = {tuple(mesh.get_group_ranks(rank, axis)) for rank in range(mesh.ranks)}
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.ranks))
        assert {len(group) for group in groups} == {getattr(mesh, axis)}
        for group in groups:
            assert [mesh.get_coordinates(rank)[axis] for rank in group] == list(range(len(group)))


def test_tp_is_innermost_and_pp_outermost():
    mesh = Mesh(dp=2, tp=2, pp=2)
    assert mesh.get_group_ranks(5, "tp") == [4, 5]
    assert mesh.get_group_ranks(5, "dp") == [5, 7]
    assert mesh.get_group_ranks(5, "pp") == [1, 5]


def test_replicas_differ_along_dp_cp_and_ep_and_samples_along_dp_and_ep():
    mesh = Mesh(dp=2, tp=2, pp=2, cp=2, ep=2)
    assert [mesh.stride(axis) for axis in ("tp", "ep", "cp", "dp", "pp")] == [1, 2, 4, 8, 16]
    assert mesh.get_group_ranks(1, *REPLICAS) == [1, 3, 5, 7, 9, 11, 13, 15]
    assert [mesh.get_sampler(rank) for rank in (1, 3, 5, 7, 9, 11, 17)] == [0, 1, 0, 1, 2, 3, 0]


@pytest.mark.parametrize(("total", "parts"), [(10, 3), (3, 3), (2, 3), (0, 2), (64, 8)])
def test_split_evenly_covers_the_range_with_even_lengths(total, parts):
    cut = split_evenly(total, parts)
    assert [place for part in cut for place in range(part.start, part.stop)] == list(range(total))
    sizes = [part.stop - part.start for part in cut]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("batch", [7, 12, 64])
def test_every_sample_is_in_one_microbatch(batch):
    mesh = Mesh(dp=3, tp=2)
    seen = [place for dp in range(3) for part in slice_microbatches(batch, mesh, dp, 2) for place in range(batch)[part]]
    assert seen == list(range(batch))


@pytest.mark.parametrize(
    ("mesh", "settings", "told"),
    [
        (
            Mesh(pp=5),
            TrainOptions(MlpConfig(layers=4), 1),
            "pp=5 stages cannot share 4 layers; give --layers 5 or more",
        ),
        (
            Mesh(tp=9),
            TrainOptions(MlpConfig(width=8), 1),
            "tp=9 ranks cannot share a width of 8; give --width 9 or more",
        ),
        (
            Mesh(dp=3),
            TrainOptions(MlpConfig(), 1, batch=8, microbatches=3),
            "--batch 8 leaves micro-batches empty: dp=3 times 3",
        ),
        (Mesh(pp=2), TrainOptions(MlpConfig(), 1, batch=3), "need at least 4 samples"),
        (
            Mesh(pp=2),
            TrainOptions(MlpConfig(layers=3), 1, schedule="zbv"),
            "4 stages of zbv on pp=2 cannot share 3 layers; give --layers 4 or more",
        ),
        (
            Mesh(pp=4),
            TrainOptions(MlpConfig(layers=9), 1, schedule="dualpipev"),
            "dualpipev with 4 ranks needs at least as many micro-batches as stages, 8, not 4",
        ),
        (
            Mesh(tp=2),
            TrainOptions(MlpConfig(), 1, sequence_parallel=True),
            "--sequence-parallel splits sequences, but --model mlp has none; add --model gpt",
        ),
        (Mesh(dp=2), TrainOptions(GptConfig(), 1, sequence_parallel=True), "dp=2 has no ranks along tp"),
        (
            Mesh(tp=3),
            TrainOptions(GptConfig(width=12, heads=3, context=128), 1, sequence_parallel=True),
            "tp=3: --context 128 cannot be split into 3 equal parts (tp); give --context 126 or",
        ),
        (Mesh(cp=2), TrainOptions(MlpConfig(), 1), "cp=2 splits sequences, but --model mlp has none; add --model gpt"),
        (
            Mesh(cp=3),
            TrainOptions(GptConfig(), 1),
            "cp=3: --context 128 cannot be split into 6 equal parts (twice cp); give --context 126 or 132",
        ),
        (
            Mesh(tp=4, cp=2),
            TrainOptions(GptConfig(context=12), 1, sequence_parallel=True),
            "--context 12 cannot be split into 8 equal parts (cp times tp); give --context 8 or 16",
        ),
        (Mesh(pp=2), TrainOptions(MlpConfig(), 1, schedule="1f2b"), "unknown pipeline schedule '1f2b'"),
    ],
)
def test_a_model_or_batch_that_does_not_fit_the_mesh_is_refused(mesh, settings, told):
    with pytest.raises(UsageError) as caught:
        settings.require_mesh_fits(mesh)
    assert told in str(caught.value)


def test_a_schedule_file_must_fit_the_mesh_and_the_microbatches(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    settings = TrainOptions(MlpConfig(), 1, microbatches=2, schedule=str(file))
    assert settings.make_schedule(Mesh(pp=2)).stage_ranks == (0, 1)
    with pytest.raises(UsageError, match=r"is for 2 ranks and 2 micro-batches, not for pp=3 and 2 .*; give pp=2 and"):
        settings.require_mesh_fits(Mesh(pp=3))
    file.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1B1,1F1\n")
    with pytest.raises(PlanError, match=r"mine.csv: rank 1, action 3 \(1B1\): it needs the forward pass 1F1"):
        settings.require_mesh_fits(Mesh(pp=2))


def test_stages_are_on_the_ranks_of_the_schedule():
    mesh = Mesh(dp=2, pp=2)
    assert [mesh.list_stages(rank) for rank in range(4)] == [[0], [0], [1], [1]]
    placed = mesh.place_stages((0, 1, 1, 0))
    assert [placed.list_stages(rank) for rank in range(4)] == [[0, 3], [0, 3], [1, 2], [1, 2]]
    assert (mesh.stages, placed.stages) == (2, 4)


def test_the_model_counts_its_parameters():
    assert MlpConfig(width=32, layers=3).parameter_count == 64 * 32 + 32 + 32 * 32 + 32 + 32 * 10 + 10
    assert MlpConfig(layers=1).parameter_count == 650
