"""Progress without a terminal: few lines on standard error."""

from __future__ import annotations

import io

from hpccoll.cli.progress import LINE_INTERVAL_S, ProgressLines
from hpccoll.cli.train_output import format_progress
from hpccoll.parallel import Mesh
from hpccoll.records import TrainStepRecord
from hpccoll.train.options import MlpConfig, TrainOptions
from hpccoll.train.record import describe_mesh


def test_lines_are_rare_and_say_how_much_is_left():
    stream, clock = io.StringIO(), iter([0.0, 1.0, LINE_INTERVAL_S, LINE_INTERVAL_S + 1, 2 * LINE_INTERVAL_S])
    progress = ProgressLines("rows", 8, stream, lambda: next(clock))
    for size in ("8 B", "16 B", "32 B", "64 B"):
        progress.advance(f"all_reduce {size}")
    assert stream.getvalue().splitlines() == [
        "# 2 of 8 rows, 15 s left: all_reduce 16 B",
        "# 4 of 8 rows, 10 s left: all_reduce 64 B",
    ]


def test_a_short_command_prints_nothing():
    stream = io.StringIO()
    progress = ProgressLines("rows", 2, stream)
    progress.advance("8 B")
    assert not stream.getvalue()


def test_training_shows_the_measurements_of_the_step():
    step = TrainStepRecord(
        **describe_mesh(Mesh(pp=2), TrainOptions(MlpConfig(), 7)),
        step=7,
        loss=0.51234,
        step_s=0.025,
        tokens_per_s=2560.0,
        comm_s=0.002,
        exposed_comm_s=0.0015,
        bubble=0.25,
        peak_bytes=1 << 28,
        grad_norm=1.0,
    )
    assert format_progress(step, "samples") == (
        "loss 0.5123, 2,560 samples/s, step 25 ms, comm 2 ms (1.5 exposed), bubble 0.25, 256 MiB"
    )
