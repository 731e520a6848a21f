"""Tables and CSV files: columns side by side, and lines that parsers of nccl-tests can read."""

from __future__ import annotations

import csv

import pytest
from msgspec.structs import replace

from hpccoll.errors import UsageError
from hpccoll.measure.display.table import format_plain_table, list_table_columns
from hpccoll.measure.results.collective_record import make_collective_record
from hpccoll.measure.results.csv_file import COLUMNS, write_csv
from hpccoll.measure.results.measured_case import find_best, list_cases, list_implementations, pair_places
from hpccoll.records import CollectiveCase, StopReason

ROW = CollectiveCase("all_reduce", "mpi", None, "host", False, 1_048_576, 262_144, "float32", "sum", None, 4, 1)
NCCL_TESTS = ["size", "count", "type", "redop", "root", *["time", "algbw", "busbw", "#wrong"] * 2]


def record(engine="mpi", algorithm=None, us=100.0, wrong=0, iterations=20, **row):
    """A row all of whose iterations took about `us` microseconds."""
    samples = tuple(us * (1 + 0.001 * (at % 5 - 2)) for at in range(iterations))
    return make_collective_record(
        replace(ROW, engine=engine, algorithm=algorithm, **row), samples, StopReason.CONVERGED, wrong
    )


def both(engine="mpi", algorithm=None, us=100.0, **row):
    """The same row out of place and in place, where it takes half the time."""
    return [record(engine, algorithm, us / (1 + place), in_place=bool(place), **row) for place in (0, 1)]


RACE = [*both("hpccoll", "ring", 50.0), *both(), *both("gloo", None, 400.0), *both("hpccoll", "bruck", 120.0)]


def data(text):
    """The lines that are not comments, as parsers split them."""
    return [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def test_rows_of_one_size_stand_side_by_side_in_a_fixed_order():
    pairs = pair_places(list_cases([record(nbytes=8), *RACE, record(op="reduce", root=0)]))
    assert [(pair[0].setting.op, pair[0].nbytes) for pair in pairs] == [
        *[("all_reduce", 8), ("all_reduce", 1_048_576), ("reduce", 1_048_576)],
    ]
    names = [(name.engine, name.algorithm) for name in list_implementations(pairs[1])]
    assert names == [("mpi", None), ("gloo", None), ("hpccoll", "bruck"), ("hpccoll", "ring")]


@pytest.mark.parametrize("other", [{"dtype": "int8"}, {"buffer": "cuda"}, {"ranks": 2}, {"root": 1}, {"redop": "max"}])
def test_only_like_is_compared_with_like(other):
    first, second = record(), record("hpccoll", "ring", **other)
    _, other_case = list_cases([first, second])
    assert other_case.ratio_to_mpi(*other_case.records) is None


def test_ratios_are_to_mpi_in_the_same_place_and_above_one_where_faster():
    for case in list_cases(RACE):
        for name in case.records:
            ratio = case.ratio_to_mpi(name)
            if name.engine == "mpi":
                assert ratio is None
                continue
            assert ratio is not None
            expected = {"ring": 2.0, "bruck": 100 / 120, None: 0.25}[name.algorithm]
            assert ratio.value == pytest.approx(expected, rel=0.001)
            assert ratio.low < expected < ratio.high
    lone, _ = list_cases([record(), record("hpccoll", "ring", in_place=True)])
    assert lone.ratio_to_mpi(*lone.records) is None


def best(records):
    """The algorithm of the best of a single case."""
    (pair,) = pair_places(list_cases(records))
    found = find_best(pair)
    return found.algorithm if found else None


def test_the_best_is_the_fastest_whose_results_were_right():
    assert best(RACE) == "ring"
    fast = record("hpccoll", "swift", 1.0, wrong=3)
    assert best([*RACE, fast]) == "ring"
    assert best([*RACE, replace(fast, wrong=None)]) == "swift"
    assert best([fast]) is None


def test_of_a_row_that_was_measured_twice_the_last_counts():
    last = record(us=5.0)
    (case,) = list_cases([record(us=1.0), last])
    assert case.rows == (last,)


@pytest.mark.parametrize("places", [(False,), (True,), (False, True)])
def test_the_first_columns_are_those_of_nccl_tests(places):
    names = [column.name for column in list_table_columns(places)]
    assert names[:13] == NCCL_TESTS
    assert names[13:15] == ["engine", "algorithm"]
    assert names[15:-1] == ["time95", "ratio", "ratio95"] * len(places)


def test_every_line_splits_into_the_columns():
    lines = data(format_plain_table(RACE))
    assert len(lines) == 4
    shape = list_table_columns((False, True))
    assert [len(line) for line in lines] == [len(shape) - 1] * 3 + [len(shape)]  # the best ends in its mark
    ring = lines[3]
    assert ring[:5] == ["1048576", "262144", "float32", "sum", "-1"]
    assert [float(cell) for cell in ring[5:13]] == pytest.approx([50, 20.972, 31.457, 0, 25, 41.943, 62.915, 0], 1e-3)
    assert ring[13:18] == ["hpccoll", "ring", "[49.95,50.05]", "2.00x", "[2.00,2.00]"]
    assert ring[-1] == "*"


def test_a_place_that_was_not_measured_is_not_available():
    (line,) = data(format_plain_table([record(wrong=None)]))
    assert line[5:13] == ["100.00", "10.486", "15.729", "N/A", "N/A", "N/A", "N/A", "N/A"]
    (line,) = data(format_plain_table([record(in_place=True, wrong=2, root=3)]))
    assert line[4:13] == ["3", "N/A", "N/A", "N/A", "N/A", "100.00", "10.486", "15.729", "2"]


def test_columns_are_aligned_under_their_headings():
    lines = format_plain_table([*RACE, *both(us=250_000.0, nbytes=2**30, count=2**28)]).splitlines()
    heading = next(line for line in lines if " size " in line)
    rows = [line for line in lines if line.strip() and not line.startswith("#")]
    for at in (heading.index(name) + len(name) for name in ("size", "count", "type", "redop", "root")):
        assert {row[at] for row in rows} == {" "}
        assert " " not in {row[at - 1] for row in rows}
    above = next(line for line in lines if "out-of-place" in line)
    assert above.index("out-of-place") == heading.index("root") + len("root") + 3
    assert above.index("in-place") == heading.index("#wrong") + len("#wrong") + 3
    assert len(above) == len(heading.removesuffix(" *"))
    start = heading.index("engine")
    assert {row[start - 1] for row in rows} == {" "}
    assert {row[start : start + 3] for row in rows} == {"mpi", "glo", "hpc"}


def test_a_ratio_far_below_one_is_not_zero():
    line = data(format_plain_table([record(), record("gloo", None, 250_000.0)]))[1]
    assert line[16:18] == ["0.0004x", "[0.0004,0.0004]"]


def test_sizes_stand_apart_and_settings_have_headings():
    text = format_plain_table([*RACE, *both(nbytes=8), record(op="reduce", root=1)])
    assert text.count("# all_reduce, float32, sum, 4 ranks on 1 node, host memory") == 1
    assert text.count("# reduce, float32, sum, root 1, 4 ranks on 1 node, host memory") == 1
    blocks = [block for block in text.split("\n\n") if data(block)]
    assert [len(data(block)) for block in blocks] == [1, 4, 1]


@pytest.mark.parametrize(("iterations", "times", "ratios"), [(5, True, True), (6, False, True), (7, False, False)])
def test_intervals_of_too_few_iterations_are_marked(iterations, times, ratios):
    few = [record(iterations=iterations), record("hpccoll", "ring", iterations=iterations)]
    text = format_plain_table(few)
    line = data(text)[1]
    assert line[15].endswith("?") == times
    assert line[17].endswith("?") == ratios
    assert ("too few" in text) == (times or ratios)


def test_a_sheet_has_one_line_a_record(tmp_path):
    path = tmp_path / "rows.csv"
    write_csv(RACE, path)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == len(RACE)
    assert set(rows[0]) == set(COLUMNS)
    ring = next(row for row in rows if row["algorithm"] == "ring" and row["in_place"] == "True")
    assert float(ring["p50_us"]) == pytest.approx(25)
    assert float(ring["busbw_GBps"]) == pytest.approx(62.915, rel=1e-3)
    assert float(ring["ratio_to_mpi"]) == pytest.approx(2)
    assert float(ring["ratio_to_mpi_low"]) < 2 < float(ring["ratio_to_mpi_high"])
    assert (ring["stop"], ring["iterations"], ring["wrong"]) == ("converged", "20", "0")
    mpi = rows[0]
    assert (mpi["engine"], mpi["algorithm"], mpi["root"], mpi["p99_us"], mpi["ratio_to_mpi"]) == ("mpi", *[""] * 4)


def test_a_sheet_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"--csv .*missing"):
        write_csv(RACE, tmp_path / "missing" / "rows.csv")
