"""Rows printed as they finish: the cells of a line, and the columns left out on a narrow terminal."""

from __future__ import annotations

import io

import pytest

from hpccoll.measure.display.result_rows import ResultRows
from tests.unit.measure.verdict.test_fastest import auto, record

NAMES = ("auto", "recursive_doubling", "ring")
BLOCK = [
    record("ring", 50.0),
    record("mpi", 100.0),
    auto(101.0, "mpi"),
    record("gloo", 123456.0),
    record("recursive_doubling", 40.0, wrong=2),
]


def print_rows(records, width=120, *, memory=False, place=False):
    """Return the printed rows of records."""
    stream = io.StringIO()
    rows = ResultRows(stream, width, NAMES, memory=memory, place=place)
    rows.print_block(records)
    return stream.getvalue()


def list_rows(text):
    """Return the lines of an output that are rows."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_a_line_has_size_engine_algorithm_time_and_ratio():
    found = list_rows(print_rows(BLOCK))
    assert [line.split()[2] for line in found] == ["mpi", "gloo", *["hpccoll"] * 3]
    assert found[0].split() == ["1", "KiB", "mpi", "-", "100.00", "[99.00,101.00]", "0.015", "-", "-", "0"]
    assert found[2].split()[3:6] == ["auto:", "mpi", "101.00"]
    assert found[4].split()[3:] == ["ring", "50.00", "[49.50,50.50]", "0.031", "2.00x", "[1.96,2.04]", "0", "*"]


def test_only_the_fastest_right_result_has_the_star_and_wrong_ones_say_so():
    found = list_rows(print_rows(BLOCK))
    assert [line.endswith("*") for line in found] == [False, False, False, False, True]
    assert found[3].split()[-2:] == ["2", "WRONG"]


def test_headings_stand_above_the_first_block_of_a_table_only():
    stream = io.StringIO()
    rows = ResultRows(stream, 120, NAMES, memory=False, place=False)
    rows.print_block(BLOCK)
    first = stream.getvalue()
    assert first.splitlines()[1] == "# all_reduce, float32, sum, 4 ranks on 1 node, host memory"
    rows.print_block([record("mpi", 1.0, nbytes=8)])
    assert "#" not in stream.getvalue().removeprefix(first)
    rows.print_block([record("mpi", 1.0, dtype="int8")])
    assert "# all_reduce, int8" in stream.getvalue()


def test_columns_are_under_their_headings():
    text = print_rows(BLOCK, memory=True, place=True)
    heading = next(line for line in text.splitlines() if " size " in line)
    for name, cell in (("engine", "hpccoll"), ("algorithm", "ring"), ("memory", "host"), ("place", "in-place")):
        assert list_rows(text)[-1][heading.index(name) :].startswith(cell)


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize("extra", [False, True])
def test_rows_fit_the_terminal_and_are_never_cut(width, extra):
    text = print_rows(BLOCK, width, memory=extra)
    assert max(map(len, text.splitlines())) <= width
    for word in ("100.00", "123456", "2.00x", "recursive_doubling", "WRONG"):
        assert word in text
    assert ("time95" in text) == (width >= 100 + 10 * extra)
    assert ("ratio95" in text) == (width >= 120 + 10 * extra)


def test_nothing_is_printed_for_no_rows():
    assert not print_rows([])


def test_the_legend_explains_question_marks_only_where_there_are_some():
    for iterations, told in ((20, False), (5, True)):
        stream = io.StringIO()
        rows = ResultRows(stream, 120, NAMES, memory=False, place=False)
        rows.print_legend([record("mpi", 1.0, iterations=iterations)])
        assert ("too few iterations" in stream.getvalue()) == told
