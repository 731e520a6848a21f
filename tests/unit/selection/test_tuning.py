"""Where tuning tables lie, what is done about files that are none, and the log of decisions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hpccoll.errors import UsageError
from hpccoll.measure.benchmark import Contender, Method
from hpccoll.measure.stopping import Stop, StoppingRule
from hpccoll.measure.tune import Heat
from hpccoll.plan.operation import Operation
from hpccoll.runtime import tuning
from hpccoll.runtime.job import Layout
from hpccoll.selection.rules import BufferKind, Chooser, Question
from hpccoll.selection.table import Point, Series, Table, Timing
from hpccoll.units import MiB


def layout(*node, oversubscribed=False):
    """Ranks on these nodes."""
    return Layout(tuple(f"host{each}" for each in node), tuple(node), (2,) * len(node), oversubscribed)


def series(name, nbytes=8, operation=Operation.ALL_REDUCE):
    """One candidate, measured at one size."""
    point = Point(nbytes, "2026-01-02", (Timing(name, 1.0, 1.0, 1.0),))
    return Series(operation, 4, BufferKind.HOST, (point,))


@pytest.fixture
def here(monkeypatch, tmp_path):
    """Four ranks on one node, whose user's data directory is empty."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv(tuning.VARIABLE, raising=False)
    tuning._warn.cache_clear()
    return tuning.where_of(layout(0, 0, 0, 0))


def test_the_place_tells_how_the_ranks_lie():
    told = [tuning.where_of(layout(*nodes)).layout for nodes in ((0,), (0, 0), (0, 0, 1, 1), (0, 0, 1))]
    assert told == ["1 rank on 1 node", "2 ranks on 1 node", "2 ranks on each of 2 nodes", "2+1 ranks on 2 nodes"]
    crowded = tuning.where_of(layout(0, 0, oversubscribed=True))
    assert crowded.layout == "2 ranks on 1 node, more than cores"
    assert crowded.mpi == tuning.where_of(layout(0, 0)).mpi != ""
    assert " cores, " in crowded.host


def test_every_place_has_a_file_of_its_own(here):
    places = [here, *(replace(here, **{name: "other"}) for name in ("mpi", "host", "layout"))]
    paths = [tuning.default_path(place) for place in places]
    assert len(set(paths)) == 4
    assert all(path.parent.name == "tuning" and "hpccoll" in path.parts for path in paths)
    assert tuning.default_path(here) == paths[0]


def test_the_environment_names_another_file_or_none(here):
    assert tuning.path_for(here, {}) == tuning.default_path(here)
    assert tuning.path_for(here, {tuning.VARIABLE: "some.json"}) == Path("some.json")
    assert tuning.path_for(here, {tuning.VARIABLE: "off"}) is None
    assert tuning.path_for(here, {tuning.VARIABLE: ""}) == tuning.default_path(here)


def test_what_is_stored_is_found_again(here, capsys):
    path = tuning.default_path(here)
    assert tuning._found(here, whole_job=True) is None
    tuning.store(path, tuning.stored(path, here).merged([series("ring")]))
    tuning.store(path, tuning.stored(path, here).merged([series("bruck", operation=Operation.ALL_GATHER)]))
    found = tuning._found(here, whole_job=True)
    assert found is not None
    assert {each.operation for each in found.series} == {Operation.ALL_REDUCE, Operation.ALL_GATHER}
    assert [each.name for each in path.parent.iterdir()] == [path.name], "no scratch file is left"
    assert capsys.readouterr().err == ""


def test_off_reads_nothing(here, monkeypatch):
    tuning.store(tuning.default_path(here), Table(here, (series("ring"),)))
    monkeypatch.setenv(tuning.VARIABLE, "off")
    assert tuning._found(here, whole_job=True) is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "Expecting value"),
        (b'{"schema": "hpccoll-tuning/1"}', "lacks 'where'"),
        (b'{"schema": "hpccoll-tuning/9", "series": []}', "hpccoll-tuning/9"),
        (b'{"rows": [1, 2]}', "schema None"),
        (b"\xff\xfe not text", "utf-8"),
        (b"[" * 100_000, ""),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_a_broken_file_is_a_warning_that_names_file_and_remedy(
    here, monkeypatch, capsys, tmp_path, content, why, named
):
    path = tmp_path / "table.json" if named else tuning.default_path(here)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if named:
        monkeypatch.setenv(tuning.VARIABLE, str(path))
    assert tuning._found(here, whole_job=True) is None
    said = capsys.readouterr().err
    assert said.startswith("hpccoll: warning: ")
    assert all(each in said for each in (str(path), why, "hpccoll tune", "HPCCOLL_TUNING=off"))


def test_a_named_file_that_is_not_there_or_no_file_is_a_warning(here, monkeypatch, capsys, tmp_path):
    for path in (tmp_path / "nothing.json", tmp_path):
        monkeypatch.setenv(tuning.VARIABLE, str(path))
        assert tuning._found(here, whole_job=True) is None
        assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize("name", ["mpi", "host", "layout"], ids=lambda name: f"{name} differs")
def test_the_table_of_another_place_is_not_used(here, monkeypatch, capsys, tmp_path, name):
    path = tmp_path / "table.json"
    tuning.store(path, Table(replace(here, **{name: "another"}), (series("ring"),)))
    monkeypatch.setenv(tuning.VARIABLE, str(path))
    for _ in range(2):
        assert tuning._found(here, whole_job=True) is None
    said = capsys.readouterr().err
    assert said.count("warning") == 1
    assert f"is for another, this is {getattr(here, name)}" in said
    tuning._warn.cache_clear()
    assert tuning._found(here, whole_job=False) is None
    assert bool(capsys.readouterr().err) == (name != "layout"), "a group of some ranks is no mistake"


def test_what_is_no_table_of_this_place_is_not_overwritten(here, tmp_path):
    path = tmp_path / "thesis.json"
    path.write_text('{"chapters": 7}')
    with pytest.raises(UsageError, match="not overwritten"):
        tuning.stored(path, here)
    tuning.store(path, Table(replace(here, layout="8 ranks on 1 node"), ()))
    with pytest.raises(UsageError, match="8 ranks on 1 node"):
        tuning.stored(path, here)
    path.write_text(json.dumps({"schema": "hpccoll-tuning/0", "old": True}))
    assert tuning.stored(path, here) == Table(here, ()), "what an older version wrote makes room"


def test_a_place_that_cannot_be_written_is_named(here, tmp_path):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "table.json"
    with pytest.raises(UsageError, match="--output"):
        tuning.store(path, Table(here, ()))


def test_the_log_tells_each_decision_once(capsys):
    log = tuning.decision_log(0, 4, {tuning.LOG_VARIABLE: "1"})
    assert log is not None
    known = Table(tuning.where_of(layout(0, 0, 0, 0)), (series("ring", MiB),))
    question = Question(Operation.ALL_REDUCE, MiB, 4, BufferKind.HOST, library=True, shared=True)
    choice = Chooser(4, 1, known).choose(question)
    for _ in range(3):
        log(question, choice, "float32", "sum")
    log(question._replace(operation=Operation.BARRIER, nbytes=0), choice, "", "sum")
    first, second = capsys.readouterr().err.splitlines()
    assert first == "hpccoll: all_reduce 1 MiB float32 sum on 4 ranks (host): ring, measured 2026-01-02 (1 us)"
    assert second.startswith("hpccoll: barrier 0 B on 4 ranks (host): ring")


@pytest.mark.parametrize(("rank", "environ"), [(0, {}), (0, {"HPCCOLL_LOG": "0"}), (1, {"HPCCOLL_LOG": "1"})])
def test_nothing_is_logged_unless_asked_and_on_one_rank_only(rank, environ):
    assert tuning.decision_log(rank, 2, environ) is None


def test_a_candidate_far_behind_has_no_more_time_and_others_have():
    method = Method(StoppingRule(9, 100, 0.01, 60.0), warmup=0, check=False, seed=0)
    fast, close, slow = (Contender("hpccoll", name, print, print) for name in ("fast", "close", "slow"))
    heat = Heat(None, None, [fast, close, slow], method)  # type: ignore[arg-type]
    fast.samples_us, close.samples_us = [10.0, 14.0] * 3, [25.0, 31.0] * 3
    slow.samples_us = [31.0, 40.0, 45.0, 33.0]
    assert heat.verdict(slow) is None, "too few to tell"
    slow.samples_us.append(41.0)
    assert [heat.verdict(each) for each in (fast, close, slow)] == [None, None, Stop.BUDGET]
    heat.running.remove(fast)
    assert heat.verdict(slow) is Stop.BUDGET, "the best counts even when it is done"
