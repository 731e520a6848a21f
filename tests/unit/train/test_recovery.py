"""The choice of the copy from which survivors continue, and of the mesh on which they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from hpccoll.errors import UnavailableError, UsageError
from hpccoll.failures.rank_losses import FAULT, read_fault
from hpccoll.parallel.mesh import Mesh
from hpccoll.train.options import MlpConfig, TrainOptions

pytest.importorskip("torch")

from hpccoll.train.recovery import SurvivorReport, choose_copy
from hpccoll.train.state_copies import CopyKey
from hpccoll.train.survival import fit_mesh

PLAIN = TrainOptions(MlpConfig(), 10)
SHARDED = replace(PLAIN, zero=1)
FOUR = Mesh(dp=4)


def make_key(step: int, mesh: Mesh = FOUR, generation: int = 0) -> CopyKey:
    return CopyKey(step, generation, 64 * step, mesh)


def make_reports(steps: Sequence[int], held: Sequence[Mapping[CopyKey, Sequence[int]]]) -> list[SurvivorReport]:
    return [SurvivorReport(step, None, 0, copies) for step, copies in zip(steps, held, strict=True)]


def test_survivors_of_zero_take_the_state_of_the_dead_rank_from_its_neighbour():
    """Rank 2 has died; rank 1 keeps its state."""
    key = make_key(5)
    reports = make_reports([5, 5, 5], [{key: (0, 1)}, {key: (1, 2)}, {key: (3, 0)}])
    assert choose_copy(reports, SHARDED) == (key, {0: 0, 1: 0, 2: 1, 3: 2})


def test_a_rank_and_its_neighbour_are_too_many():
    key = make_key(5)
    assert choose_copy(make_reports([5, 5], [{key: (0, 1)}, {key: (3, 0)}]), SHARDED) is None
    assert choose_copy(make_reports([5, 5], [{key: (0,)}, {key: (3,)}]), PLAIN) == (key, {0: 0})


def test_the_state_after_a_step_without_record_is_not_used():
    """The dead rank may have died before it had sent its state after step 6."""
    old, new = make_key(5), make_key(6)
    held: list[dict[CopyKey, tuple[int, ...]]] = [
        {old: (0, 1), new: (0, 1)},
        {old: (1, 2), new: (1, 2)},
        {old: (3, 0), new: (3, 0)},
    ]
    assert choose_copy(make_reports([5, 5, 5], held), SHARDED) == (old, {0: 0, 1: 0, 2: 1, 3: 2})
    held[0].pop(old)  # a rank that has the record of step 6
    assert choose_copy(make_reports([6, 5, 5], held), SHARDED) == (new, {0: 0, 1: 0, 2: 1, 3: 2})


def test_a_death_before_all_ranks_have_copied_on_the_new_mesh_uses_the_copy_of_the_old_one():
    old, new = make_key(5), make_key(5, Mesh(dp=3), 1)
    held: list[dict[CopyKey, tuple[int, ...]]] = [{old: (0, 1), new: (0, 1)}, {old: (1, 2, 3)}]
    assert choose_copy(make_reports([5, 5], held), SHARDED) == (old, {0: 0, 1: 0, 2: 1, 3: 1})


def test_one_rank_per_stage_and_tp_index_suffices_without_zero():
    key = make_key(1, Mesh(dp=2, tp=2))
    reports = make_reports([1, 1], [{key: (1,)}, {key: (2,)}])
    assert choose_copy(reports, PLAIN) == (key, {1: 0, 2: 1})
    assert choose_copy(make_reports([1, 1], [{key: (1,)}, {key: (3,)}]), PLAIN) is None


def test_dp_is_as_large_as_the_ranks_allow():
    assert fit_mesh(FOUR, 3) == Mesh(dp=3)
    assert fit_mesh(Mesh(dp=2, tp=2, pp=2), 7) == Mesh(tp=2, pp=2)
    assert fit_mesh(Mesh(dp=2), 5) == Mesh(dp=2)
    with pytest.raises(UnavailableError, match="3 of 8 ranks are left, but tp=2,pp=2 needs 4"):
        fit_mesh(Mesh(dp=2, tp=2, pp=2), 3)


def test_several_faults_are_separated_by_semicolons(monkeypatch):
    monkeypatch.setenv(FAULT, "kill:rank=3,call=20;kill:rank=1,call=50")
    assert [read_fault(rank) for rank in range(4)] == [0, 50, 0, 20]
    monkeypatch.setenv(FAULT, "kill:rank=3,call=20;")
    with pytest.raises(UsageError, match="is no fault"):
        read_fault(3)
