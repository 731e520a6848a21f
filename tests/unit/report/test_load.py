"""The input of a report: files and directories, several runs, and errors for invalid files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hpccoll.errors import UsageError
from hpccoll.report.curves import group_curves
from hpccoll.report.load import load_results
from hpccoll.report.scaling_curves import group_scaling_curves

DATA = Path(__file__).parents[2] / "data"
TWO, FOUR, PAIRS = (DATA / name for name in ("bench-2.jsonl", "bench-4.jsonl", "preflight-4.jsonl"))


@pytest.fixture
def sweep(tmp_path):
    """A directory of results as a job array leaves it, with a log among them."""
    for at, file in enumerate((TWO, FOUR, PAIRS)):
        (tmp_path / f"job{at}").mkdir()
        shutil.copy(file, tmp_path / f"job{at}" / file.name)
    (tmp_path / "job0" / "log.jsonl").write_text('{"level": "info"}\n')
    return tmp_path


def test_a_directory_stands_for_every_result_below_it_and_names_what_is_none(sweep):
    results = load_results([sweep])
    assert [Path(file).name for file in results.files] == ["bench-2.jsonl", "bench-4.jsonl", "preflight-4.jsonl"]
    assert [run.number for run in results.runs] == [1, 2, 3]
    assert {row.run.number for row in results.rows} == {1, 2}
    assert all(row.record.ranks == len(row.run.hosts) for row in results.rows)
    assert len(results.list_preflight_records("preflight_pair")) == 12
    (foreign,) = results.foreign
    assert "log.jsonl" in foreign


def test_runs_of_other_commands_without_a_record_to_show_are_left_out(tmp_path):
    file = tmp_path / "scaling.jsonl"
    file.write_text(
        '{"schema":"hpccoll/1","kind":"run","command":"hpccoll scaling x"}\n{"schema":"hpccoll/1","kind":"x"}\n'
    )
    results = load_results([TWO, file])
    assert [run.number for run in results.runs] == [1]
    assert results.others == {"x": 1}
    file.write_text('{"schema":"hpccoll/1","kind":"run","command":"hpccoll bench"}\n')
    assert [run.number for run in load_results([TWO, file]).runs] == [1, 2]


def test_a_file_that_is_named_twice_counts_once(sweep):
    assert len(load_results([sweep, sweep / "job0" / "bench-2.jsonl"]).rows) == len(load_results([sweep]).rows)


def test_a_torn_last_line_is_left_out_and_told(tmp_path):
    file = tmp_path / "torn.jsonl"
    file.write_bytes(TWO.read_bytes()[:-50])
    results = load_results([file])
    assert results.torn == [str(file)]
    assert len(results.rows) == len(load_results([TWO]).rows) - 1


def test_each_row_belongs_to_the_run_before_it(tmp_path):
    file = tmp_path / "resumed.jsonl"
    head, *rows = TWO.read_text().splitlines()
    file.write_text("\n".join([head, *rows[:10], head, *rows[10:]]) + "\n")
    numbers = [row.run.number for row in load_results([file]).rows]
    assert numbers == [1] * 10 + [2] * (len(rows) - 10)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read it (No such file or directory); name a file that hpccoll wrote with --json"),
        ('{"level": "info"}\n', "line 1: not a record of schema 'hpccoll/1'; name a file"),
        ('{"schema":"hpccoll/1",\n{"schema":"hpccoll/1","ki\n', "line 1 is damaged, as are all other lines"),
        (
            '{"schema":"hpccoll/1","kind":"collective"}\n',
            "line 1: record of kind collective: Object missing required field `op`",
        ),
        ("", "nothing to show: no record"),
        ('{"schema":"hpccoll/1","kind":"run"}\n', "nothing to show: only records 1 of kind run;"),
        (
            '{"schema":"hpccoll/1","kind":"plan"}\n',
            "1 of kind plan; a report shows the measurements",
        ),
    ],
)
def test_what_is_no_result_is_refused_by_name(tmp_path, content, message):
    file = tmp_path / "results.jsonl"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError) as caught:
        load_results([file])
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


def test_an_empty_directory_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no \*\.jsonl in this directory"):
        load_results([tmp_path])


def test_pictures_hold_every_row_once_in_place_first():
    results = load_results([TWO, FOUR])
    drawn = group_curves(results.rows)
    assert sum(len(case.records) for picture in drawn for case in picture.cases) == len(results.rows)
    kinds = [(picture.setting.op, picture.setting.ranks, picture.cases[0].in_place) for picture in drawn]
    ops = ("all_reduce", "all_gather")
    assert kinds == [(op, ranks, place) for ranks in (2, 4) for op in ops for place in (True, False)]
    for picture in drawn:
        for case in picture.cases:
            assert case.fastest is not None
            assert case.records[case.fastest].time_us.p50 == min(record.time_us.p50 for record in case.rows)


def test_runs_on_two_mpi_libraries_are_lines_of_their_own(tmp_path):
    file = tmp_path / "other.jsonl"
    file.write_text(TWO.read_text().replace("MPICH 5.0.2", "Open MPI 5.0.11"))
    names = {name.label for picture in group_curves(load_results([TWO, file]).rows) for name in picture.implementations}
    assert {"mpi (MPICH 5.0.2)", "mpi (Open MPI 5.0.11)", "ring (MPICH 5.0.2)"} <= names
    again = tmp_path / "again.jsonl"
    shutil.copy(TWO, again)
    assert "mpi" in {
        name.label for picture in group_curves(load_results([TWO, again]).rows) for name in picture.implementations
    }


def test_a_sweep_is_followed_over_ranks_or_nodes(tmp_path):
    over_ranks = group_scaling_curves(group_curves(load_results([TWO, FOUR]).rows))
    assert {(each.op, each.over) for each in over_ranks} == {("all_reduce", "ranks"), ("all_gather", "ranks")}
    assert {each.sizes for each in over_ranks} == {(64, 4096, 262144)}
    file = tmp_path / "nodes.jsonl"
    records = [json.loads(line) | {"nodes": 2} for line in FOUR.read_text().splitlines()]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    (scaling, *_) = group_scaling_curves(group_curves(load_results([TWO, file]).rows))
    assert scaling.over == "nodes"
    (ring,) = [name for name in scaling.implementations if name.algorithm == "ring"]
    assert [x for x, _ in scaling.find_records(ring, 4096)] == [1, 2]


def test_sizes_that_were_rounded_to_whole_elements_are_one_size(tmp_path):
    file = tmp_path / "three.jsonl"
    records = [json.loads(line) for line in FOUR.read_text().splitlines()]
    for record in records:
        record["ranks"] = 3
        if "nbytes" in record:
            record["nbytes"] -= record["nbytes"] % 12
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    (scaling, *_) = group_scaling_curves(group_curves(load_results([TWO, file]).rows))
    assert scaling.sizes[-1] == 262140
    assert [x for x, _ in scaling.find_records(scaling.implementations[0], scaling.sizes[-1])] == [2, 3]


def test_a_field_that_no_run_writes_is_refused_by_name(tmp_path):
    file = tmp_path / "edited.jsonl"
    first, row = TWO.read_text().splitlines()[:2]
    for name in ("engine", "in_place", "nbytes", "ranks", "nodes", "bound_us", "wrong", "dtype"):
        other: object = "x" if name in ("nbytes", "ranks", "nodes", "bound_us", "wrong") else 7
        values: list[object] = [[], {}, other, -1]
        for value in values:
            file.write_text(f"{first}\n{json.dumps(json.loads(row) | {name: value})}\n")
            with pytest.raises(UsageError, match="line 2: record of kind collective") as caught:
                load_results([file])
            assert f"{name} is {str(value)!r}: Expected" in str(caught.value)
