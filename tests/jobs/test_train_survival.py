"""`hpccoll train --survive`: training continues after deaths, with the losses of restarted runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.launch import hpccoll
from tests.jobs.surviving_training import (
    WORDS,
    SurvivalLauncher,
    kill_randomly,
    read_losses,
    read_records,
    run_restarted,
)
from tests.record_schema import require_valid

pytest.importorskip("torch")

SMALL = ("--width", "16", "--batch", "33", *WORDS)
ADAMW = ("--optimizer", "adamw", "--decay", "none", "--warmup", "5")


def survive(launcher: SurvivalLauncher, out: Path, ranks: int, *words: str, fault: str) -> str:
    """Run a surviving job, check its records, and return its standard error."""
    told = launcher.run(ranks, *words, "--survive", "--json", str(out), HPCCOLL_FAULT=fault)
    for kind in ("train", "train_recovery", "train_summary"):
        for record in read_records(out, kind):
            require_valid(record)
    return told


def test_training_continues_after_the_death_of_the_rank_that_writes_records(launcher, tmp_path):
    out = tmp_path / "train.jsonl"
    told = survive(launcher, out, 2, "zero1", *SMALL, *ADAMW, "--steps", "40", fault="kill:rank=0,call=60")
    (recovery,) = read_records(out, "train_recovery")
    assert (recovery["strategy"], recovery["lost_ranks"], recovery["source"]) == ("dp=1", [0], "memory")
    losses = read_losses(out)
    assert list(losses) == list(range(1, 41))
    assert [losses[step][0] for step in (recovery["steps"], recovery["steps"] + 1)] == ["dp=2", "dp=1"]
    assert (
        f"# lost rank 0 ({recovery['lost_hosts'][0]}); dp=1 on 1 rank continues after step {recovery['steps']}" in told
    )
    (summary,) = read_records(out, "train_summary")
    assert (summary["steps"], summary["ranks"], summary["stop"]) == (40, 1, "complete")


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["dp", "zero1", "zero2", "zero3"])
def test_losses_are_those_of_restarted_runs(launcher, tmp_path, strategy):
    out, words = tmp_path / "survived.jsonl", (strategy, *SMALL, *ADAMW)
    calls = (20, 50, 80) if strategy == "dp" else (100, 300, 700)
    fault = ";".join(f"kill:rank={rank},call={call}" for rank, call in zip((3, 1, 2), calls, strict=True))
    survive(launcher, out, 4, *words, fault=fault)
    assert len(read_records(out, "train_recovery")) == 3
    assert read_losses(out) == read_losses(run_restarted(launcher, out, tmp_path, words, 200))


@pytest.mark.full
def test_the_next_step_comes_within_a_second_of_a_random_kill(launcher, tmp_path):
    out, words = tmp_path / "survived.jsonl", ("dp", "--width", "256", "--layers", "6", *WORDS)
    seconds = kill_randomly(launcher, out, words, 1)
    step_s = max(record["step_s"] for record in read_records(out, "train")[10:])
    assert max(seconds) < 1 + step_s, seconds
    assert read_losses(out) == read_losses(run_restarted(launcher, out, tmp_path, words, 200))


@pytest.mark.full
@pytest.mark.parametrize(
    ("ranks", "strategy", "dead", "call"),
    [(4, "dp=2", 0, 40), (5, "tp=2,pp=2", 1, 100), (5, "dp=2,tp=2,zero2", 2, 100), (3, "pp=2", 0, 30)],
)
def test_a_spare_keeps_the_mesh_and_the_losses(launcher, tmp_path, ranks, strategy, dead, call):
    """The losses are those of a run without a death, because the mesh is the same."""
    out, words = tmp_path / "survived.jsonl", (strategy, *SMALL, *ADAMW, "--steps", "60")
    spares = str(ranks - (2 if strategy in ("dp=2", "pp=2") else 4))
    survive(launcher, out, ranks, *words, "--spares", spares, fault=f"kill:rank={dead},call={call}")
    (recovery,) = read_records(out, "train_recovery")
    assert 0 < recovery["steps"] < 60
    undisturbed = tmp_path / "undisturbed.jsonl"
    launcher.run(recovery["ranks"], *words, "--json", str(undisturbed))
    assert read_losses(out) == read_losses(undisturbed)


@pytest.mark.full
def test_the_checkpoint_replaces_a_copy_that_has_died_with_its_owner(launcher, tmp_path):
    """Ranks 1 and 2 die at the same call: rank 1 has kept the state of rank 2."""
    out, words = tmp_path / "survived.jsonl", ("zero1", *SMALL, *ADAMW, "--steps", "60")
    more = ("--checkpoint", str(tmp_path / "state"), "--checkpoint-every", "10")
    told = survive(launcher, out, 4, *words, *more, fault="kill:rank=1,call=160;kill:rank=2,call=160")
    assert [each["source"] for each in read_records(out, "train_recovery")] == ["checkpoint"]
    assert "# resumed after step" in told
    assert list(dict.fromkeys(read_losses(out))) == list(range(1, 61))


def test_the_error_without_ulfm_names_a_command():
    done = hpccoll(2, "train", "dp", "--survive")
    assert done.returncode == 3
    assert "mpirun --with-ft ulfm" in done.stderr
