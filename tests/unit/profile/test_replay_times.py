"""Savings of other algorithms that a replay of the job has measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hpccoll.errors import UsageError
from hpccoll.profile.replay_times import FILE, EngineTime, compare_engines, read_replays, write_replays
from hpccoll.profile.what_if import WhatIf
from tests.unit.profile.test_predictions import make_one_size_graph

TIMES = (
    EngineTime("all_reduce/ring", (0.30, 0.31, 0.31, 0.31, 0.31, 0.32)),
    EngineTime("all_reduce/tree", (0.20, 0.20, 0.20, 0.20, 0.20, 0.22)),
)


def predict(times, algorithm="ring", change="algorithm=all_reduce/tree", **fields):
    """Return the recorded run time and the prediction for a job that was replayed with the given times."""
    graph = make_one_size_graph(2**18, algorithm)
    what_if = WhatIf(replace(graph, profile=replace(graph.profile, replays=times, **fields)))
    return graph.run_s, what_if.predict([change])[0]


def test_the_times_of_a_replay_are_kept_beside_the_recording(tmp_path):
    assert read_replays(tmp_path) == ()
    write_replays(str(tmp_path), TIMES)
    assert read_replays(tmp_path) == TIMES


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"schema": "hpccoll-replays/1"})])
def test_a_damaged_file_is_refused(content, tmp_path):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(UsageError, match="is damaged"):
        read_replays(tmp_path)


def test_a_replay_states_the_saving():
    recorded_s, predicted = predict(TIMES)
    assert predicted.seconds == pytest.approx(recorded_s * 0.20 / 0.31)
    assert predicted.bounds_s == pytest.approx((recorded_s * 0.20 / 0.31, recorded_s * 0.22 / 0.32))
    assert predicted.error == pytest.approx(abs(0.31 / recorded_s - 1))
    assert "measured by hpccoll replay" in predicted.assumption


def test_a_replay_whose_times_vary_gives_bounds_only():
    times = (TIMES[0], EngineTime("all_reduce/tree", (0.30, 0.20, 0.22, 0.20, 0.30, 0.22)))
    predicted = predict(times)[1]
    assert predicted.seconds is None
    assert predicted.bounds_s is not None
    assert "-n" in predicted.assumption


@pytest.mark.parametrize(
    ("algorithms", "library", "engine"),
    [
        ("all_reduce=ring", "", "all_reduce/ring"),
        ("", "", "hpccoll"),
        ("", "gloo", "gloo"),
        ("", "nccl", None),
        ("all_reduce:0-8=ring", "", None),  # not for all sizes
        ("all_reduce=ring,broadcast=tree", "", None),
    ],
)
def test_the_recorded_engine(algorithms, library, engine):
    times = (EngineTime(engine or "all_reduce/ring", (1.0,) * 6), EngineTime("all_reduce/tree", (0.9,) * 6))
    predicted = predict(times, algorithms=algorithms, library=library)[1]
    assert ("measured by hpccoll replay" in predicted.assumption) == (engine is not None)


def test_auto_is_what_hpccoll_selects():
    recorded_s, predicted = predict((TIMES[0], replace(TIMES[1], engine="hpccoll")), change="algorithm=auto")
    assert predicted.seconds == pytest.approx(recorded_s * 0.20 / 0.31)


def test_disturbed_turns_are_left_out():
    quiet, disturbed = (2.0, 1.0), (9.0, 30.0)
    turns = [disturbed if turn % 2 else quiet for turn in range(14)]
    times = [EngineTime(name, each) for name, each in zip(("mpi", "hpccoll"), zip(*turns, strict=True), strict=True)]
    ratio = compare_engines(times, "mpi", "hpccoll")
    assert ratio is not None
    assert (ratio.low, ratio.median, ratio.high, ratio.recorded_engine_s) == (0.5, 0.5, 0.5, 2.0)


def test_engines_of_different_replays_are_not_compared():
    assert compare_engines((TIMES[0], EngineTime("hpccoll", (0.1,))), "all_reduce/ring", "hpccoll") is None
    assert compare_engines(TIMES, None, "all_reduce/tree") is None
    assert compare_engines(TIMES, "all_reduce/ring", "all_reduce/tree") is not None


def test_few_turns_predict_nothing():
    few = [EngineTime(timed.engine, timed.seconds[:5]) for timed in TIMES]
    assert compare_engines(few, "all_reduce/ring", "all_reduce/tree") is None
