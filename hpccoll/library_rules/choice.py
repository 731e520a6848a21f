"""Chooses a library's algorithms from measured times; the library's default stays unless another is proven faster.

A candidate replaces the default at a message size if the ratio of their medians is at least `LEAST_SPEEDUP`, and its
95 % interval excludes 1. The fastest of many candidates is fast partly by chance, so it is measured once more, beside
the default alone, and must satisfy the same condition again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpccoll.library_rules.rules import DEFAULT, LibraryAlgorithm, LibraryRule
from hpccoll.plan import Operation
from hpccoll.statistics import median_interval, ratio_of_medians

LEAST_SPEEDUP = 1.05
SHORTEST_BYTES = 8  # the rule for messages of this size includes all shorter ones
AlgorithmSamples = Mapping[LibraryAlgorithm, Sequence[float]]  # microseconds; includes those of DEFAULT


@dataclass(frozen=True, slots=True)
class SizeSamples:
    """The measured times of a library's algorithms for one collective at one message size."""

    operation: Operation
    nbytes: int
    selected: LibraryAlgorithm  # the fastest algorithm in `samples` that is faster than the library's default
    samples: AlgorithmSamples  # times of all algorithms
    repeated: AlgorithmSamples  # second measurement of the default and `selected`; empty if the default was selected

    @property
    def chosen(self) -> LibraryAlgorithm:
        """The selected algorithm if the second measurement confirms that it is faster, else the library's default."""
        return self.selected if self.repeated and is_faster(self.repeated, self.selected) else DEFAULT

    @property
    def speedup(self) -> float:
        """The default's median time divided by that of the chosen algorithm, in the second measurement."""
        if self.chosen == DEFAULT:
            return 1.0
        return ratio_of_medians(self.repeated[DEFAULT], self.repeated[self.chosen]).value


def is_faster(samples: AlgorithmSamples, algorithm: LibraryAlgorithm) -> bool:
    """Whether an algorithm is faster than the library's default by LEAST_SPEEDUP, with an interval that excludes 1."""
    ratio = ratio_of_medians(samples[DEFAULT], samples[algorithm])
    return ratio.value >= LEAST_SPEEDUP and ratio.low > 1


def select_candidate(samples: AlgorithmSamples, previous: LibraryAlgorithm) -> LibraryAlgorithm:
    """Return the fastest algorithm that is proven faster than the library's default, or the default.

    Args:
        samples: the times of all algorithms at one message size.
        previous: the algorithm selected at the next smaller size, which is kept if it is not significantly slower.
    """
    faster = [each for each in samples if each != DEFAULT and is_faster(samples, each)]
    if not faster:
        return DEFAULT
    medians = {each: median_interval(samples[each]) for each in faster}
    fastest = min(faster, key=lambda each: medians[each].value)
    if previous in medians and medians[previous].low <= medians[fastest].high:
        return previous
    return fastest


def choose_rules(measured: Sequence[SizeSamples]) -> tuple[LibraryRule, ...]:
    """Return rules that select an algorithm by message size; one rule covers neighbouring sizes of one algorithm.

    A rule reaches half-way (by ratio) to the next measured size. Beyond the smallest and the largest measured size, it
    reaches as far as to the neighbour on the other side; the rule of 8 bytes includes all shorter messages.
    """
    rules: list[LibraryRule] = []
    for operation in dict.fromkeys(each.operation for each in measured):
        points = sorted((each for each in measured if each.operation is operation), key=lambda each: each.nbytes)
        rules += _join_rules(list(_make_single_rules(points)))
    return tuple(rules)


def _make_single_rules(points: Sequence[SizeSamples]) -> Iterator[LibraryRule]:
    """Yield a rule per measured size at which another algorithm than the library's default is chosen.

    `points` are the measurements of one operation in ascending order of size.
    """
    sizes = [each.nbytes for each in points]
    for index, each in enumerate(points):
        if each.chosen == DEFAULT:
            continue
        first, last = _find_range(sizes, index)
        yield LibraryRule(each.operation, first, last, each.chosen, (each.speedup,))


def _find_range(sizes: Sequence[int], index: int) -> tuple[int, int | None]:
    """Return the smallest and the largest message size for which the measured size number `index` stands.

    `sizes` are the measured sizes in ascending order. The only size of a barrier, 0, stands for all sizes, and the
    result is (0, None).
    """
    size = sizes[index]
    if size == 0:
        return 0, None
    above = math.sqrt(sizes[index + 1] / size) if index + 1 < len(sizes) else 0.0
    below = math.sqrt(size / sizes[index - 1]) if index > 0 else 0.0
    above, below = above or below or 1.0, below or above or 1.0
    first = 0 if size <= SHORTEST_BYTES else math.floor(size / below) + 1
    return min(first, size), max(math.floor(size * above), size)


def _join_rules(rules: Sequence[LibraryRule]) -> list[LibraryRule]:
    """Return the rules of one operation with neighbouring rules for the same algorithm joined into one."""
    joined: list[LibraryRule] = []
    for rule in rules:
        before = joined[-1] if joined else None
        if before and before.algorithm == rule.algorithm and before.last is not None and before.last + 1 == rule.first:
            speedups = (*before.speedups, *rule.speedups)
            joined[-1] = LibraryRule(rule.operation, before.first, rule.last, rule.algorithm, speedups)
        else:
            joined.append(rule)
    return joined
