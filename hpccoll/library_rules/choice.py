"""Chooses a library's algorithms from measured times; the library's default stays unless another is proven faster.

A candidate replaces the default at a message size if the default's median time divided by the candidate's is at least
`LEAST_SPEEDUP`, and the 95 % interval of this ratio excludes 1. The fastest of many candidates is fast partly by
chance, so it is measured once more, beside the default alone, and must be proven faster again.
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
    """The measured times of a library's algorithms for one collective at one message size.

    `samples` has the times of all algorithms. `selected` is the result of `select_candidate` for these times: the
    fastest (or one hardly slower, selected at the next smaller size), or the default if none is proven faster.
    `repeated` has a second measurement of the default and `selected`; it is empty if `selected` is the default.
    """

    operation: Operation
    nbytes: int
    selected: LibraryAlgorithm
    samples: AlgorithmSamples  # times of all algorithms
    repeated: AlgorithmSamples

    @property
    def chosen(self) -> LibraryAlgorithm:
        """The selected algorithm if the second measurement confirms that it is faster, else the library's default."""
        return self.selected if self.repeated and is_faster(self.repeated, self.selected) else DEFAULT

    @property
    def speedup(self) -> float:
        """The default's median time divided by the chosen algorithm's, in the second measurement; 1 for the default."""
        if self.chosen == DEFAULT:
            return 1.0
        return ratio_of_medians(self.repeated[DEFAULT], self.repeated[self.chosen]).value


def is_faster(samples: AlgorithmSamples, algorithm: LibraryAlgorithm) -> bool:
    """Whether an algorithm is at least LEAST_SPEEDUP times as fast as the library's default, and significantly faster.

    An algorithm is significantly faster if the 95 % interval of default median / algorithm median is above 1.
    """
    ratio = ratio_of_medians(samples[DEFAULT], samples[algorithm])
    return ratio.value >= LEAST_SPEEDUP and ratio.low > 1


def select_candidate(samples: AlgorithmSamples, previous: LibraryAlgorithm) -> LibraryAlgorithm:
    """Return the fastest algorithm that is proven faster than the library's default, or the default.

    Args:
        samples: the times of all algorithms at one message size.
        previous: the algorithm selected at the next smaller size, which is kept unless it is significantly slower than
            the fastest.
    """
    faster = [algorithm for algorithm in samples if algorithm != DEFAULT and is_faster(samples, algorithm)]
    if not faster:
        return DEFAULT
    medians = {algorithm: median_interval(samples[algorithm]) for algorithm in faster}
    fastest = min(faster, key=lambda algorithm: medians[algorithm].value)
    if previous in medians and medians[previous].low <= medians[fastest].high:
        return previous
    return fastest


def choose_rules(measured: Sequence[SizeSamples]) -> tuple[LibraryRule, ...]:
    """Return rules that select an algorithm by message size; neighbouring sizes with equal algorithms share a rule.

    A rule reaches half-way (by ratio) to the next smaller and the next larger measured size. Beyond the smallest and
    the largest measured size, a rule extends by the same ratio as on its other side. The rule of 8 bytes includes all
    shorter messages.
    """
    rules: list[LibraryRule] = []
    for operation in dict.fromkeys(point.operation for point in measured):
        points = sorted((point for point in measured if point.operation is operation), key=lambda point: point.nbytes)
        rules += _join_rules(list(_make_single_rules(points)))
    return tuple(rules)


def _make_single_rules(points: Sequence[SizeSamples]) -> Iterator[LibraryRule]:
    """Yield a rule per measured size at which another algorithm than the library's default is chosen.

    `points` are the measurements of one operation in ascending order of size.
    """
    sizes = [point.nbytes for point in points]
    for index, point in enumerate(points):
        if point.chosen == DEFAULT:
            continue
        first, last = _find_range(sizes, index)
        yield LibraryRule(point.operation, first, last, point.chosen, (point.speedup,))


def _find_range(sizes: Sequence[int], index: int) -> tuple[int, int | None]:
    """Return (smallest, largest) of the range of message sizes that the measured size `sizes[index]` represents.

    `sizes` are the measured sizes in ascending order. A barrier has the only size 0, which represents all sizes: the
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
