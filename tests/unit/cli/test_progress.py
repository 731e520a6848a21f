"""Progress without a terminal: few lines on standard error."""

from __future__ import annotations

import io

from hpccoll.cli.progress import LINE_INTERVAL_S, ProgressLines


def test_lines_are_rare_and_say_how_much_is_left():
    stream, clock = io.StringIO(), iter([0.0, 1.0, LINE_INTERVAL_S, LINE_INTERVAL_S + 1, 2 * LINE_INTERVAL_S])
    progress = ProgressLines("rows", 8, stream, lambda: next(clock))
    for size in ("8 B", "16 B", "32 B", "64 B"):
        progress.advance(f"all_reduce {size}")
    assert stream.getvalue().splitlines() == [
        "# 2 of 8 rows, 30 s left: all_reduce 16 B",
        "# 4 of 8 rows, 20 s left: all_reduce 64 B",
    ]


def test_a_short_command_prints_nothing():
    stream = io.StringIO()
    progress = ProgressLines("rows", 2, stream)
    progress.advance("8 B")
    assert not stream.getvalue()
