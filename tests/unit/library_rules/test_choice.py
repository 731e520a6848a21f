"""The choice of algorithms from measured times: the default wins ties, and a rule covers a range of sizes."""

from __future__ import annotations

from hpccoll.library_rules import DEFAULT, LibraryAlgorithm, SizeSamples, choose_rules, select_candidate
from hpccoll.plan import Operation

RING, TREE = LibraryAlgorithm("ring", 4), LibraryAlgorithm("tree", 6)
SPREAD = (0.97, 0.98, 0.99, 0.995, 1.0, 1.005, 1.01, 1.02, 1.03)


def times(us: float) -> list[float]:
    """Return nine times with the median `us` and a 95 % interval of about 2 %."""
    return [us * each for each in SPREAD]


def measured(nbytes: int, default: float, ring: float, again: float | None = None) -> SizeSamples:
    """Return the times at a size; the repeated measurement of the ring takes `again` microseconds."""
    samples = {DEFAULT: times(default), RING: times(ring)}
    selected = select_candidate(samples, DEFAULT)
    repeated = {DEFAULT: times(default), RING: times(ring if again is None else again)}
    return SizeSamples(Operation.ALL_REDUCE, nbytes, selected, samples, {} if selected == DEFAULT else repeated)


def test_the_default_wins_unless_a_candidate_is_proven_faster() -> None:
    assert select_candidate({DEFAULT: times(100), RING: times(50)}, DEFAULT) == RING
    assert select_candidate({DEFAULT: times(100), RING: times(97)}, DEFAULT) == DEFAULT, "less than 5 %"
    noisy = [20.0, 30.0, 40.0, 50.0, 60.0, 90.0, 110.0, 150.0, 300.0]
    assert select_candidate({DEFAULT: times(100), RING: noisy}, DEFAULT) == DEFAULT, "the interval includes 1"
    assert select_candidate({DEFAULT: times(100)}, RING) == DEFAULT


def test_of_candidates_that_tie_the_previous_one_wins() -> None:
    samples = {DEFAULT: times(100), RING: times(50), TREE: times(50.5)}
    assert select_candidate(samples, DEFAULT) == RING
    assert select_candidate(samples, TREE) == TREE
    assert select_candidate(samples | {TREE: times(70)}, TREE) == RING


def test_a_choice_that_the_repeated_measurement_does_not_confirm_gets_no_rule() -> None:
    assert choose_rules([measured(64, 100, 50, again=100)]) == ()
    assert choose_rules([measured(64, 100, 100)]) == ()


def test_rules_reach_half_way_to_the_neighbours_and_join() -> None:
    points = [measured(size, 100, us) for size, us in ((8, 50), (128, 40), (2048, 100), (32768, 25))]
    first, second = choose_rules(points)
    assert (first.first, first.last, first.algorithm) == (0, 512, RING)
    assert [round(each, 2) for each in first.speedups] == [2.0, 2.5]
    assert (second.first, second.last) == (8193, 131072)
    (middle,) = choose_rules([measured(size, 100, us) for size, us in ((64, 100), (256, 50), (4096, 100))])
    assert (middle.first, middle.last) == (129, 1024)
    (single,) = choose_rules([measured(1000, 100, 50)])
    assert (single.first, single.last) == (1000, 1000)


def test_the_rule_of_a_barrier_has_no_sizes() -> None:
    samples = {DEFAULT: times(100), RING: times(50)}
    (rule,) = choose_rules([SizeSamples(Operation.BARRIER, 0, RING, samples, samples)])
    assert (rule.first, rule.last) == (0, None)
