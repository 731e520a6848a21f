"""The output that a rank of a benchmark must have, as segments that each repeat a short array.

Inputs repeat every PERIOD elements, so every block of an output repeats a reduction or a rotation of the inputs'
periods. A segment keeps one period of its values and is compared with the output a period at a time, so that the
compared data stays in the cache. The expected output of a message of any size takes the memory of at most PERIOD
elements per block, and the comparison allocates no array of the message's size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccoll.measure.data import PERIOD, ExpectedResult, HostArray, expect_reduced, make_period
from hpccoll.plan import Operation

if TYPE_CHECKING:
    from hpccoll.measure.workload import WorkloadSpec

INPUT_HAS_BLOCKS = (Operation.REDUCE_SCATTER, Operation.SCATTER, Operation.ALL_TO_ALL)  # inputs have one block per rank
_ONLY_ROOT_RECEIVES = (Operation.REDUCE, Operation.GATHER)
_ONLY_ROOT_SENDS = (Operation.BROADCAST, Operation.SCATTER)


@dataclass(frozen=True, slots=True)
class ExpectedRange:
    """The range of correct values of each element of an output, from `low` to `high`, in the output's element type.

    The comparison is fast, because it does not convert the output to double precision.
    """

    low: HostArray
    high: HostArray

    def __len__(self) -> int:
        return len(self.low)

    def take(self, count: int) -> ExpectedRange:
        """Return the range of the first `count` elements."""
        return ExpectedRange(self.low[:count], self.high[:count])

    def count_wrong(self, output: HostArray) -> int:
        """Return how many elements of `output` lie outside the range; a NaN counts as outside."""
        return int(output.size - np.count_nonzero((output >= self.low) & (output <= self.high)))


@dataclass(frozen=True, slots=True)
class ExpectedSegment:
    """The expected values of `count` successive elements of an output, which repeat the elements of `period`."""

    period: ExpectedRange | ExpectedResult
    count: int

    def count_wrong(self, output: HostArray) -> int:
        """Return how many elements of `output`, which has `count` elements, are wrong."""
        wrong, length = 0, len(self.period)
        for begin in range(0, self.count, max(length, 1)):
            compared = output[begin : begin + length]
            whole = len(compared) == length
            wrong += (self.period if whole else self.period.take(len(compared))).count_wrong(compared)
        return wrong


@dataclass(frozen=True, slots=True)
class ExpectedOutput:
    """A rank's expected output, as periodic segments in the order of the output."""

    segments: tuple[ExpectedSegment, ...]

    @property
    def count(self) -> int:
        """The number of elements of the output."""
        return sum(segment.count for segment in self.segments)

    def count_wrong(self, output: HostArray) -> int:
        """Return how many elements of `output` are wrong; it must have `count` elements."""
        begin = wrong = 0
        for segment in self.segments:
            wrong += segment.count_wrong(output[begin : begin + segment.count])
            begin += segment.count
        return wrong


def _narrow(expected: ExpectedResult, dtype: np.dtype[Any]) -> ExpectedRange | ExpectedResult:
    """Return the range of correct values in `dtype`, float32 or float64.

    For other types, and if `expected` allows no error, the result is `expected` itself.
    """
    if expected.bound is None or dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        return expected
    least, most = expected.values - expected.bound, expected.values + expected.bound
    low, high = least.astype(dtype), most.astype(dtype)
    low = np.where(low < least, np.nextafter(low, dtype.type(np.inf)), low)
    high = np.where(high > most, np.nextafter(high, dtype.type(-np.inf)), high)
    return ExpectedRange(low, high)


def make_own_period(task: WorkloadSpec, rank: int) -> HostArray | None:
    """Return the elements that the periodic input of `rank` repeats; None if the rank has no input."""
    if task.operation is Operation.BARRIER or (task.operation in _ONLY_ROOT_SENDS and rank != task.root):
        return None
    return make_period(task.dtype, task.seed, rank, count_input(task), task.redop)


def count_input(task: WorkloadSpec) -> int:
    """Return the number of elements of a rank's input, on ranks that have one."""
    return task.count * (task.ranks if task.operation in INPUT_HAS_BLOCKS else 1)


def make_expected_output(task: WorkloadSpec) -> ExpectedOutput | None:
    """Return the expected output of the rank of `task`; None if the rank has no output.

    Cost: at most PERIOD elements of every rank's input are computed.
    """
    if task.operation is Operation.BARRIER or (task.operation in _ONLY_ROOT_RECEIVES and task.rank != task.root):
        return None
    blocks = [_narrow(block, task.dtype.numpy) for block in _list_blocks(task)]
    return ExpectedOutput(tuple(ExpectedSegment(block, task.count) for block in blocks)) if blocks else None


def _list_blocks(task: WorkloadSpec) -> Iterator[ExpectedResult]:
    """Yield the expected values of each block of the output, as the elements that the block repeats.

    Yields nothing if the rank has no output.
    """
    operation = task.operation
    first = task.rank * task.count if operation in INPUT_HAS_BLOCKS else 0
    if operation.reduces:
        last = task.rank + (operation is Operation.SCAN) if operation.is_scan else task.ranks
        if last:
            yield expect_reduced((_rotate(task, rank, first) for rank in range(last)), task.redop)
    elif operation in _ONLY_ROOT_SENDS:
        yield ExpectedResult(_rotate(task, task.root, first))
    else:
        for rank in range(task.ranks):
            yield ExpectedResult(_rotate(task, rank, first))


def _rotate(task: WorkloadSpec, rank: int, first: int) -> HostArray:
    """Return one period of the input of `rank`, which begins at the element `first` of the input.

    The result is cut to `task.count` elements.
    """
    period = make_period(task.dtype, task.seed, rank, count_input(task), task.redop)
    places: NDArray[np.int64] = (first + np.arange(min(task.count, PERIOD))) % max(len(period), 1)
    return period[places]
