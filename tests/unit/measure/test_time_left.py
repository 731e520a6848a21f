"""The time that a benchmark still takes, estimated while its rows differ in duration by orders of magnitude."""

from __future__ import annotations

from hpccoll.measure.time_left import Block, TimeLeft

ROWS = 5
SIZES = [8 * 4**power for power in range(13)]  # to 128 MiB


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.seconds


def run_benchmark(row_s, byte_s, guess_s, guess_byte_s):
    """Run blocks that take `row_s + byte_s * nbytes` per row; return (share of the time passed, left, estimate)."""
    durations = [ROWS * (row_s + byte_s * size) for size in SIZES]
    clock, total, found = Clock(), sum(durations), []
    left = TimeLeft([Block(size, ROWS) for size in SIZES], guess_s, guess_byte_s, clock)
    for duration in durations:
        begun = clock.seconds
        for step in range(1, 8):
            clock.seconds = begun + duration * step / 7
            left.update(step / 7)
            found.append((clock.seconds / total, total - clock.seconds, left.seconds))
        left.end_block()
    assert left.seconds == 0
    return found


def test_the_estimate_is_right_after_a_third_of_the_run():
    for byte_s in (1e-9, 1e-8, 1e-7):
        for wrong in (0.7, 1.4):
            for share, seconds, estimate in run_benchmark(0.3, byte_s, 0.3 * wrong, byte_s * wrong):
                if 1 / 3 <= share < 0.99:
                    assert seconds / 1.5 <= estimate <= seconds * 1.5, (byte_s, wrong, share)


def test_the_estimate_is_right_with_any_guess_once_a_long_message_was_measured():
    for byte_s in (1e-8, 1e-7):
        for wrong in (0.1, 10.0):
            for share, seconds, estimate in run_benchmark(0.3, byte_s, 0.3, byte_s * wrong):
                if 0.85 < share < 0.99:
                    assert seconds / 1.5 <= estimate <= seconds * 1.5 + 0.1, (byte_s, wrong, share)


def test_the_first_estimate_is_that_of_the_guesses():
    left = TimeLeft([Block(1 << 26, 2)], 0.1, 1e-7, Clock())
    assert left.seconds == 2 * (0.1 + 1e-7 * (1 << 26))


def test_a_block_without_rows_takes_no_time():
    clock = Clock()
    left = TimeLeft([Block(8, 0), Block(8, 2)], 1.0, 0.0, clock)
    left.end_block()
    assert left.seconds == 2.0
    clock.seconds = 1.0
    assert left.seconds == 1.0


def test_the_pace_of_a_block_counts_more_than_the_guess():
    clock = Clock()
    left = TimeLeft([Block(8, 2)], 1.0, 0.0, clock)
    clock.seconds = 5.0
    assert left.seconds == 0.0
    left.update(0.25)
    assert left.seconds == 15.0
