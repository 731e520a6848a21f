"""Schedules, shards and initial parameters, without MPI."""

from __future__ import annotations

import pytest

from hpccoll.parallel.mesh import Mesh
from hpccoll.train.options import MlpConfig

torch = pytest.importorskip("torch")

from hpccoll.parallel.pipeline_parallel import SCHEDULES, PassDirection  # noqa: E402 - torch may not be here
from hpccoll.train import model as models  # noqa: E402
from hpccoll.train.gradient_check import count_replica_differences  # noqa: E402

MESHES = [Mesh(), Mesh(tp=3), Mesh(pp=3), Mesh(2, 2, 2), Mesh(tp=5, pp=2)]


def spelled(actions):
    return " ".join(f"{turn.name[0]}{micro}" for turn, micro in actions)


def test_schedules_are_the_published_ones():
    assert spelled(SCHEDULES["gpipe"](0, 3, 3)) == "F0 F1 F2 B0 B1 B2"
    one = SCHEDULES["1f1b"]
    assert spelled(one(0, 3, 4)) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert spelled(one(1, 3, 4)) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert spelled(one(2, 3, 4)) == "F0 B0 F1 B1 F2 B2 F3 B3"
    assert spelled(one(0, 4, 2)) == "F0 F1 B0 B1"


def ends(schedule, stages, micros):
    """Carry the lists out side by side, a message at a time; return whether all came to their end."""
    lists = [SCHEDULES[schedule](stage, stages, micros) for stage in range(stages)]
    at, sent = [0] * stages, set()
    moved = True
    while moved:
        moved = False
        for stage in range(stages):
            while at[stage] < len(lists[stage]):
                turn, micro = lists[stage][at[stage]]
                needs = stage - 1 if turn is PassDirection.FORWARD else stage + 1
                if 0 <= needs < stages and (turn, micro, needs) not in sent:
                    break
                sent.add((turn, micro, stage))
                at[stage], moved = at[stage] + 1, True
    return at == [2 * micros] * stages


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_cannot_deadlock_and_run_forward_before_backward(schedule):
    for stages in range(1, 7):
        for micros in range(1, 9):
            assert ends(schedule, stages, micros)
            for stage in range(stages):
                actions = SCHEDULES[schedule](stage, stages, micros)
                held = most = 0
                for turn in PassDirection:
                    assert [micro for what, micro in actions if what is turn] == list(range(micros))
                for turn, _ in actions:
                    held += 1 if turn is PassDirection.FORWARD else -1
                    assert held >= 0
                    most = max(most, held)
                assert most == (micros if schedule == "gpipe" else min(stages - stage, micros))


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize(
    "mlp", [MlpConfig(width=7, layers=4), MlpConfig(width=10, layers=5), MlpConfig(width=6, layers=3)]
)
def test_the_shards_of_a_replica_make_the_full_model(mesh, mlp):
    seen = {piece.name: torch.zeros(piece.full_shape, dtype=torch.int64) for piece in models.list_full_parameters(mlp)}
    for rank in range(mesh.ranks):
        if mesh.get_coordinates(rank)["dp"]:
            continue
        for piece in models.list_shards(mlp, mesh, rank):
            if not (piece.is_replicated and mesh.get_coordinates(rank)["tp"]):
                seen[piece.name][piece.slices] += 1
    assert all(bool((each == 1).all()) for each in seen.values())


def test_layers_and_shards_start_with_different_parameters():
    full = models.init_parameters(MlpConfig(width=64, layers=4), 0, torch.float64)
    weights = [full[f"layers.{layer}.weight"] for layer in range(3)]
    assert not any(bool((a == b).any()) for a, b in [(weights[0], weights[1]), (weights[1], weights[2])])
    top, bottom = weights[1].split(32)
    assert not bool((top == bottom).any())
    for name, each in full.items():
        into = 64
        assert float(each.abs().max()) <= into**-0.5, name
        if each.numel() > 1000:
            assert float(each.std()) == pytest.approx(into**-0.5 / 3**0.5, rel=0.05)
    single = models.init_parameters(MlpConfig(width=64, layers=4), 0, torch.float32)
    assert all(bool((single[name] == each.to(torch.float32)).all()) for name, each in full.items())


def test_replicas_are_compared_bit_by_bit():
    model, mesh = MlpConfig(width=4, layers=2), Mesh(dp=2)
    full = {piece.name: torch.zeros(piece.full_shape) for piece in models.list_full_parameters(model)}
    ranks = [[torch.zeros(piece.shape) for piece in models.list_shards(model, mesh, rank)] for rank in range(2)]
    assert count_replica_differences(model, mesh, ranks, full) == 0
    ranks[1][0].flatten()[1] = -0.0
    assert count_replica_differences(model, mesh, ranks, full) == 1
