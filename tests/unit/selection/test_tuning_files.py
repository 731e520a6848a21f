"""The paths of tuning tables, invalid tables, and the log of selections."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hpccoll.errors import UsageError
from hpccoll.measure.interleaved import Contender, TimingOptions
from hpccoll.measure.stopping import StoppingRule
from hpccoll.measure.tuning import PruningBenchmark
from hpccoll.plan import Operation
from hpccoll.records import StopReason
from hpccoll.selection import tuning_files
from hpccoll.selection.selector import LOG_VARIABLE, SelectionKey, Selector, make_selection_log
from hpccoll.selection.tuning_files import (
    TUNING_VARIABLE,
    default_table_path,
    find_table_path,
    read_table,
    read_table_to_extend,
    write_table,
)
from hpccoll.selection.tuning_table import BufferKind, CandidateTiming, TuningPoint, TuningSeries, TuningTable
from hpccoll.units import MiB


def make_site(*ranks_per_node, oversubscribed=False):
    """Return the site of a job with `ranks_per_node` ranks on each node."""
    return tuning_files.describe_site("MPI 1.0", ranks_per_node, oversubscribed=oversubscribed)


def make_series(name, nbytes=8, operation=Operation.ALL_REDUCE):
    """Return the tuning series of `operation` on four ranks, with one algorithm, `name`, timed at one size."""
    point = TuningPoint(nbytes, "2026-01-02", (CandidateTiming(name, 1.0, 1.0, 1.0),))
    return TuningSeries(operation, 4, BufferKind.HOST, (point,))


@pytest.fixture
def this_site(monkeypatch, tmp_path):
    """The site of four ranks on one node, with an empty directory for tuning tables."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv(TUNING_VARIABLE, raising=False)
    tuning_files._warn.cache_clear()
    return make_site(4)


def test_a_site_describes_the_layout_of_the_ranks():
    layouts = [make_site(*counts).layout for counts in ((1,), (2,), (2, 2), (2, 1))]
    assert layouts == ["1 rank on 1 node", "2 ranks on 1 node", "2 ranks on each of 2 nodes", "2+1 ranks on 2 nodes"]
    crowded = make_site(2, oversubscribed=True)
    assert crowded.layout == "2 ranks on 1 node, more than cores"
    assert crowded.mpi == "MPI 1.0"
    assert " cores, " in crowded.host


def test_every_place_has_a_file_of_its_own(this_site):
    places = [this_site, *(replace(this_site, **{name: "other"}) for name in ("mpi", "host", "layout"))]
    paths = [default_table_path(place) for place in places]
    assert len(set(paths)) == 4
    assert all(path.parent.name == "tuning" and "hpccoll" in path.parts for path in paths)
    assert default_table_path(this_site) == paths[0]


def test_the_environment_names_another_file_or_none(this_site):
    assert find_table_path(this_site, {}) == default_table_path(this_site)
    assert find_table_path(this_site, {TUNING_VARIABLE: "some.json"}) == Path("some.json")
    assert find_table_path(this_site, {TUNING_VARIABLE: "off"}) is None
    assert find_table_path(this_site, {TUNING_VARIABLE: ""}) == default_table_path(this_site)


def test_what_is_stored_is_found_again(this_site, capsys):
    path = default_table_path(this_site)
    assert tuning_files.load_tuning_table(this_site, whole_job=True) is None
    write_table(path, read_table_to_extend(path, this_site).merge([make_series("ring")]))
    write_table(
        path, read_table_to_extend(path, this_site).merge([make_series("bruck", operation=Operation.ALL_GATHER)])
    )
    found = tuning_files.load_tuning_table(this_site, whole_job=True)
    assert found is not None
    assert {each.operation for each in found.series} == {Operation.ALL_REDUCE, Operation.ALL_GATHER}
    assert [each.name for each in path.parent.iterdir()] == [path.name], "no scratch file is left"
    assert capsys.readouterr().err == ""


def test_off_reads_nothing(this_site, monkeypatch):
    write_table(default_table_path(this_site), TuningTable(this_site, (make_series("ring"),)))
    monkeypatch.setenv(TUNING_VARIABLE, "off")
    assert tuning_files.load_tuning_table(this_site, whole_job=True) is None


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
    this_site, monkeypatch, capsys, tmp_path, content, why, named
):
    path = tmp_path / "table.json" if named else default_table_path(this_site)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if named:
        monkeypatch.setenv(TUNING_VARIABLE, str(path))
    assert tuning_files.load_tuning_table(this_site, whole_job=True) is None
    said = capsys.readouterr().err
    assert said.startswith("hpccoll: warning: ")
    assert all(each in said for each in (str(path), why, "hpccoll tune", "HPCCOLL_TUNING=off"))


def test_a_named_file_that_is_not_there_or_no_file_is_a_warning(this_site, monkeypatch, capsys, tmp_path):
    for path in (tmp_path / "nothing.json", tmp_path):
        monkeypatch.setenv(TUNING_VARIABLE, str(path))
        assert tuning_files.load_tuning_table(this_site, whole_job=True) is None
        assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize("name", ["mpi", "host", "layout"], ids=lambda name: f"{name} differs")
def test_the_table_of_another_place_is_not_used(this_site, monkeypatch, capsys, tmp_path, name):
    path = tmp_path / "table.json"
    write_table(path, TuningTable(replace(this_site, **{name: "another"}), (make_series("ring"),)))
    monkeypatch.setenv(TUNING_VARIABLE, str(path))
    for _ in range(2):
        assert tuning_files.load_tuning_table(this_site, whole_job=True) is None
    said = capsys.readouterr().err
    assert said.count("warning") == 1
    assert f"is for another, this is {getattr(this_site, name)}" in said
    tuning_files._warn.cache_clear()
    assert tuning_files.load_tuning_table(this_site, whole_job=False) is None
    assert bool(capsys.readouterr().err) == (name != "layout"), "a group of some ranks is no mistake"


def test_what_is_no_table_of_this_place_is_not_overwritten(this_site, tmp_path):
    path = tmp_path / "thesis.json"
    path.write_text('{"chapters": 7}')
    with pytest.raises(UsageError, match="not overwritten"):
        read_table_to_extend(path, this_site)
    write_table(path, TuningTable(replace(this_site, layout="8 ranks on 1 node"), ()))
    with pytest.raises(UsageError, match="8 ranks on 1 node"):
        read_table_to_extend(path, this_site)
    with pytest.raises(UsageError, match=r"cannot be read .Is a directory.; it is not overwritten"):
        read_table_to_extend(tmp_path, this_site)
    path.write_text(json.dumps({"schema": "hpccoll-tuning/0", "old": True}))
    assert read_table_to_extend(path, this_site) == TuningTable(this_site, ()), "older versions are overwritten"


def test_a_place_that_cannot_be_written_is_named(this_site, tmp_path):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "table.json"
    with pytest.raises(UsageError, match="--output"):
        write_table(path, TuningTable(this_site, ()))


def test_the_log_tells_each_decision_once(capsys):
    log = make_selection_log(0, 4, {LOG_VARIABLE: "1"})
    assert log is not None
    table = TuningTable(make_site(4), (make_series("ring", MiB),))
    host = BufferKind.HOST
    key = SelectionKey(Operation.ALL_REDUCE, MiB, 4, host, library=True, shared=True)
    selection = Selector(4, 1, table).select(key)
    for _ in range(3):
        log(Operation.ALL_REDUCE, MiB, host, selection, "float32", "sum")
    log(Operation.BARRIER, 0, host, selection, "", "sum")
    first, second = capsys.readouterr().err.splitlines()
    assert first == "hpccoll: all_reduce 1 MiB float32 sum on 4 ranks (host): ring, measured 2026-01-02 (1 us)"
    assert second.startswith("hpccoll: barrier 0 B on 4 ranks (host): ring")


@pytest.mark.parametrize(("rank", "environ"), [(0, {}), (0, {"HPCCOLL_LOG": "0"}), (1, {"HPCCOLL_LOG": "1"})])
def test_nothing_is_logged_unless_asked_and_on_one_rank_only(rank, environ):
    assert make_selection_log(rank, 2, environ) is None


def test_a_candidate_far_behind_has_no_more_time_and_others_have():
    method = TimingOptions(StoppingRule(9, 100, 0.01, 60.0), warmup=0, check=False, seed=0)
    fast, close, slow = (Contender("hpccoll", name, print, print) for name in ("fast", "close", "slow"))
    benchmark = PruningBenchmark(None, None, [fast, close, slow], method)  # type: ignore[arg-type]
    fast.samples_us, close.samples_us = [10.0, 14.0] * 3, [25.0, 31.0] * 3
    slow.samples_us = [31.0, 40.0, 45.0, 33.0]
    assert benchmark.decide_stop(slow) is None, "too few to tell"
    slow.samples_us.append(41.0)
    assert [benchmark.decide_stop(each) for each in (fast, close, slow)] == [None, None, StopReason.BUDGET]
    benchmark.running.remove(fast)
    assert benchmark.decide_stop(slow) is StopReason.BUDGET, "the best counts even when it is done"


def test_two_jobs_that_tune_at_once_lose_no_times(this_site, tmp_path):
    """Threads read, merge and write the same file; without a lock, some would overwrite the times of others."""
    path, operations = tmp_path / "new" / "table.json", list(Operation)[:6]

    def store(operation):
        point = TuningPoint(8, "2026-01-01", (CandidateTiming("ring", 2.0, 1.0, 3.0),))
        series = TuningSeries(operation, 4, BufferKind.HOST, (point,))
        tuning_files.extend_stored_table(path, TuningTable(this_site, (series,)))

    threads = [threading.Thread(target=store, args=(operation,)) for operation in operations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {series.operation for series in read_table(path).series} == set(operations)
