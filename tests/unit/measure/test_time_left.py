"""The time that a benchmark still takes, estimated while its rows differ in duration by orders of magnitude."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from hpccoll.measure.time_left import Block, Iterations, RowLimits, TimeLeft

LIMITS = RowLimits(iterations=7, budget_s=0.6)


class Timed(NamedTuple):
    """A measured block: bytes, seconds in all and before the iterations, and (iterations, microseconds) per row."""

    nbytes: int
    seconds: float
    prepared_s: float
    rows: list[tuple[int, int]]


class Run(NamedTuple):
    """A measured run of `hpccoll bench all_reduce` on two cores, with its first guesses."""

    row_s: float
    byte_s: float
    blocks: list[Timed]


# fmt: off
TWO_RANKS = Run(0.192, 6.08e-09, [
    Timed(8, 1.06, 0.06, [(51, 216), (260, 3), (274, 1), (259, 2), (336, 1)]),
    Timed(16, 0.64, 0.02, [(60, 3), (60, 1), (138, 1), (118, 2), (352, 304)]),
    Timed(64, 0.26, 0.01, [(100, 1), (160, 3), (216, 3), (73, 305), (278, 1)]),
    Timed(256, 0.7, 0.01, [(61, 1), (58, 3), (192, 3), (198, 1), (254, 1), (383, 287)]),
    Timed(1024, 0.66, 0.02, [(39, 3), (121, 3), (119, 1), (178, 1), (199, 1), (325, 282)]),
    Timed(4096, 0.67, 0.01, [(60, 4), (61, 4), (198, 2), (216, 2), (282, 273)]),
    Timed(16384, 0.64, 0.03, [(21, 3), (38, 8), (60, 3), (60, 9), (256, 271)]),
    Timed(65536, 0.58, 0.02, [(21, 15), (21, 16), (20, 15), (308, 6), (352, 6), (389, 291)]),
    Timed(262144, 0.66, 0.02, [(19, 41), (21, 21), (38, 40), (20, 21), (40, 42), (68, 51), (324, 372)]),
    Timed(1048576, 0.75, 0.03, [(18, 98), (23, 140), (41, 147), (52, 98), (29, 249), (49, 167), (210, 790)]),
    Timed(4194304, 0.72, 0.05, [(21, 471), (25, 469), (49, 481), (47, 627), (23, 3646), (83, 495), (132, 531)]),
    Timed(16777216, 1.68, 0.14, [(11, 11907), (17, 2004), (20, 1983), (23, 1959), (28, 2451), (67, 1932), (113, 2601)]),
    Timed(67108864, 3.28, 0.71, [(7, 11140), (7, 23507), (7, 53610), (12, 9035), (15, 12766), (23, 9018), (22, 11119)]),
])
FOUR_RANKS = Run(0.203, 1.22e-08, [
    Timed(8, 1.44, 0.13, [(58, 46), (72, 64), (7, 7618), (128, 86), (200, 50)]),
    Timed(16, 0.43, 0.09, [(158, 36), (12, 10322), (229, 62), (281, 41), (304, 61)]),
    Timed(64, 0.45, 0.1, [(99, 47), (114, 83), (7, 12986), (161, 46), (358, 74)]),
    Timed(256, 0.35, 0.05, [(92, 31), (10, 9473), (290, 35), (319, 17), (361, 18)]),
    Timed(1024, 0.41, 0.06, [(94, 33), (115, 37), (8, 11909), (501, 21), (541, 21)]),
    Timed(4096, 0.75, 0.09, [(26, 56), (24, 55), (75, 81), (106, 89), (36, 8331)]),
    Timed(16384, 0.71, 0.11, [(8, 11171), (234, 56), (244, 55), (357, 43), (691, 50), (673, 55)]),
    Timed(65536, 0.57, 0.05, [(114, 84), (9, 11727), (209, 101), (279, 40), (363, 87), (380, 38), (401, 51)]),
    Timed(262144, 1.26, 0.08, [(15, 10676), (231, 161), (291, 163), (184, 332), (204, 394), (296, 292), (339, 297)]),
    Timed(1048576, 1.99, 0.07, [(11, 8699), (158, 826), (259, 538), (200, 844), (337, 537), (229, 831)]),
    Timed(4194304, 1.65, 0.17, [(7, 25771), (38, 2918), (49, 2328), (63, 1388), (77, 1394), (106, 2398)]),
    Timed(16777216, 3.46, 0.42, [(7, 57785), (8, 14429), (38, 10165), (39, 9910), (51, 5385), (56, 5457)]),
    Timed(67108864, 5.88, 1.66, [(7, 56525), (7, 55476), (7, 86830), (7, 137906), (10, 26854), (10, 27499)]),
])
# fmt: on


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.seconds


def replay(run):
    """Return (share of the time passed, seconds left, estimate) at moments of a measured run."""
    clock, total, moments = Clock(), sum(block.seconds for block in run.blocks), []
    left = TimeLeft(
        [Block(block.nbytes, len(block.rows)) for block in run.blocks], run.row_s, run.byte_s, LIMITS, clock
    )
    for block in run.blocks:
        begun = clock.seconds
        for step in range(1, 11):
            clock.seconds = begun + block.prepared_s + (block.seconds - block.prepared_s) * step / 10
            left.update(step / 10)
            moments.append((clock.seconds / total, total - clock.seconds, left.seconds))
        left.end_block([Iterations(number, us * 1e-6) for number, us in block.rows])
    assert left.seconds == 0
    return moments


@pytest.mark.parametrize("run", [TWO_RANKS, FOUR_RANKS], ids=["2", "4"])
@pytest.mark.parametrize("guess_factor", [0.9, 1.0, 1.2])
def test_the_estimate_of_a_measured_run_is_right_after_a_third(run, guess_factor):
    wrong_guess = run._replace(row_s=run.row_s * guess_factor, byte_s=run.byte_s * guess_factor)
    for share, seconds, estimate in replay(wrong_guess):
        if share >= 1 / 3 and seconds > 0.5:
            assert seconds / 1.5 <= estimate <= seconds * 1.5, share


def test_rows_of_a_long_message_take_their_fixed_iterations_or_their_budget():
    clock = Clock()
    left = TimeLeft([Block(1 << 20, 2), Block(1 << 22, 2), Block(1 << 30, 4)], 1.0, 0.0, LIMITS, clock)
    clock.seconds = 0.4
    left.end_block([Iterations(10, 0.01), Iterations(10, 0.01)])  # half of the block's time is overhead
    fixed_s = 4 * 2 * LIMITS.iterations * 0.01 * 1024
    assert left.seconds == pytest.approx(2 * LIMITS.budget_s + fixed_s)


def test_a_row_that_waits_for_latency_does_not_grow_with_the_message():
    clock = Clock()
    left = TimeLeft([Block(1 << 20, 3), Block(1 << 30, 3)], 1.0, 0.0, LIMITS, clock)
    clock.seconds = 1.0
    left.end_block([Iterations(7, 0.0001), Iterations(7, 0.0001), Iterations(7, 0.1)])
    mean_s = 0.001  # the geometric mean of the three rows; MOST_ABOVE_MEAN limits the slow row to 2.5 times it
    overhead = 1.0 / 0.7014  # the block's duration, divided by the time of its iterations
    assert left.seconds == pytest.approx(overhead * 7 * 1024 * (2 * 0.0001 + 2.5 * mean_s), rel=1e-3)


def test_the_first_estimate_is_that_of_the_guesses():
    left = TimeLeft([Block(1 << 26, 2)], 0.1, 1e-7, get_seconds=Clock())
    assert left.seconds == 2 * (0.1 + 1e-7 * (1 << 26))


def test_a_block_without_rows_takes_no_time():
    clock = Clock()
    left = TimeLeft([Block(8, 0), Block(8, 2)], 1.0, get_seconds=clock)
    left.end_block()
    assert left.seconds == 2.0
    clock.seconds = 1.0
    assert left.seconds == 1.0


def test_the_pace_of_a_block_replaces_the_guess():
    clock = Clock()
    left = TimeLeft([Block(8, 2), Block(8, 2)], 1.0, get_seconds=clock)
    clock.seconds = 5.0  # before the first update, which says nothing about the pace
    left.update(0.4)
    assert left.seconds == 2.0
    clock.seconds = 6.0
    left.update(0.6)
    assert left.seconds == pytest.approx(2.0 + 8.0)
