"""Tables fit the width of the terminal: broken headings, columns left out, and no number is ever cut."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccoll.text_table import GAP, TextColumn, find_output_width, format_table

SHAPE = (
    TextColumn("algorithm"),
    TextColumn("ranks", is_number=True),
    TextColumn("sent by the busiest rank", is_number=True),
    TextColumn("least important", is_number=True, drop_priority=2),
    TextColumn("remark", wraps=True, drop_priority=1),
)
ROWS = [
    ["all_reduce/rabenseifner", "24576", "12.25 MiB", "[3.02,3.31]", "every rank sends the same number of bytes as S"],
    ["all_reduce/ring", "2", "1 B", "-", "[bold]slow[/bold]"],
]


def format_rows(width: int | None) -> str:
    """Return the example table in a width."""
    return format_table(SHAPE, ROWS, width)


def measure_width(text: str) -> int:
    """Return the length of the longest line."""
    return max(map(len, text.splitlines()), default=0)


def test_without_a_width_every_row_is_one_line():
    lines = format_rows(None).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("algorithm                ranks  sent by the busiest rank  least important  remark")
    assert lines[2].split() == [*ROWS[1][:2], "1", "B", *ROWS[1][3:]]


@pytest.mark.parametrize("width", [200, 120, 100, 80, 60, 50])
def test_a_table_is_no_wider_than_asked(width):
    assert measure_width(format_rows(width)) <= width
    for row in ROWS:
        assert all(cell in format_rows(width) for cell in row[:3])


def test_headings_break_before_cells_and_cells_before_columns_are_left_out():
    everything = format_rows(None)
    heading_broken = format_rows(measure_width(everything) - 1)
    assert "least important" in everything
    assert "least important" not in heading_broken
    assert "every rank sends the same number of bytes as S" in heading_broken
    cells_broken = format_rows(90)
    assert "every rank sends the same" in cells_broken
    assert "bytes as S" in cells_broken
    assert "as S" not in cells_broken.splitlines()[3]
    assert "left out" not in cells_broken


def test_columns_are_left_out_by_importance_and_named():
    assert format_rows(70).splitlines()[-1].startswith("(left out at 70 characters per line: ")
    assert "least important" in format_rows(70).splitlines()[-1]
    assert "3.31" not in format_rows(70)


def test_what_may_not_be_left_out_is_printed_in_blocks_that_repeat_the_first_column():
    shape = [TextColumn("node"), *(TextColumn(f"n{k}", is_number=True) for k in range(9))]
    rows = [[f"node{r}", *(f"{r}.{k}7531" for k in range(9))] for r in range(3)]
    text = format_table(shape, rows, 30)
    assert measure_width(text) <= 30
    blocks = text.split("\n\n")
    assert len(blocks) > 2
    assert all(re.findall(r"^node\d", block, re.MULTILINE) == ["node0", "node1", "node2"] for block in blocks)
    assert all(cell in text for row in rows for cell in row)


words = st.text("abcdef0123456789._/", min_size=1, max_size=12)
headings = st.lists(words, max_size=4).map(" ".join)
shapes = st.builds(TextColumn, headings, st.booleans(), drop_priority=st.integers(0, 3))


def tables_of(columns: int) -> st.SearchStrategy[tuple[list[TextColumn], list[list[str]]]]:
    """Return a strategy for the columns and cells of tables."""
    rows = st.lists(st.lists(words, min_size=columns, max_size=columns), max_size=4)
    return st.tuples(st.lists(shapes, min_size=columns, max_size=columns), rows)


@given(st.integers(1, 7).flatmap(tables_of), st.integers(26, 130))
def test_no_cell_is_cut_at_any_width(table, width):
    columns, rows = table
    text = format_table(columns, rows, width)
    left_out = text.partition("(left out at")[2].split()
    assert measure_width(text) <= max(width, 12 + GAP + 12)
    for row in rows:
        for column, cell in zip(columns, row, strict=True):
            assert cell in text or (column.drop_priority and left_out)


def test_styles_and_lines_are_for_terminals():
    styled = format_table(SHAPE, ROWS, 120, styled=True)
    assert "\x1b[1m" in styled
    assert "────" in styled
    plain = re.sub(r"\x1b\[[0-9;]*m", "", styled)
    assert measure_width(plain) <= 120


ASK = "from hpccoll.text_table import find_output_width; import sys; print(find_output_width(), file=sys.stderr)"
ROOT = Path(__file__).parents[2]


def ask(columns: int, *command: str, **variables: str) -> str:
    """Return the result of `find_output_width` in a process whose standard output is a terminal of so many columns."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | variables
    done = subprocess.run(
        [*command, sys.executable, "-c", ASK],
        stdout=terminal,
        stderr=subprocess.PIPE,
        text=True,
        env=environ | {"PYTHONPATH": str(ROOT)},
        timeout=60,
        check=True,
    )
    os.close(terminal)
    os.close(controller)
    return done.stderr.strip()


def test_the_width_is_that_of_the_terminal_and_columns_come_first():
    assert ask(93) == "93"
    assert ask(93, COLUMNS="71") == "71"
    assert ask(93, COLUMNS="0") == "93"
    assert ask(0) == "None"  # the terminal that Open MPI gives to a rank if mpirun itself has none


def test_under_mpirun_the_width_is_that_of_the_terminal_of_mpirun():
    mpirun = str(Path(sys.executable).parent / "mpirun")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    assert ask(93, mpirun, "-n", "1", **root) == "93"
    assert ask(93, mpirun, "-n", "1", COLUMNS="71", **root) == "71"


def test_a_pipe_and_a_file_have_no_width(tmp_path):
    with (tmp_path / "file").open("w") as file:
        assert find_output_width(file, {}) is None
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"PYTHONPATH": str(ROOT)},
        timeout=60,
        check=True,
    )
    assert done.stderr.strip() == "None"
