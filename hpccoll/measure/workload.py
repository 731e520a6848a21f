"""The buffers of a timed collective on this rank, allocated, filled and validated without communication."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccoll.measure.bandwidth import TimedOperation
from hpccoll.measure.data import ExpectedResult, compute_expected_result, make_input
from hpccoll.plan import Operation
from hpccoll.runtime.arrays import ArrayModule, DType, FlatArray

_POISON = 0xA5  # fills outputs before a call, so that the result of an earlier call cannot count as right
_WHOLE_IN = (Operation.REDUCE_SCATTER, Operation.SCATTER, Operation.ALL_TO_ALL)
IDENTICAL_RESULTS = (Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.BROADCAST)


def list_places(operation: TimedOperation, places: tuple[bool, ...]) -> tuple[bool, ...]:
    """Return those of `places` (True: in place) in which an operation is timed; always in place if it has no output."""
    return (True,) if operation in (Operation.BROADCAST, Operation.BARRIER) else places


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """The arguments of a collective on rank `rank` of `ranks`, with `count` elements per vector or block."""

    operation: Operation
    count: int
    dtype: DType
    redop: str
    root: int
    in_place: bool
    rank: int
    ranks: int
    seed: int = 0


class Workload:
    """The buffers of a collective on this rank, allocated by `module`, and the expected result.

    `source` is the input and `result` the output, or None if the rank has none. In place, `source` is a view of
    `result`, or `result` of `source`. `inputs` has every rank's input in host memory, or None for a rank without input.
    """

    def __init__(self, task: WorkloadSpec, module: ArrayModule) -> None:
        self.task, self.module = task, module
        sizes = task.count * (task.ranks if task.operation in _WHOLE_IN else 1)
        self.inputs = [self._make_input(rank, sizes) for rank in range(task.ranks)]
        self._expected = compute_expected_result(task.operation, self.inputs, task.redop, task.rank, task.root)
        self._mine = self.inputs[task.rank]
        self.source, self.result = self._allocate(module)
        nbytes = 0 if self._expected is None else self._expected.values.size * task.dtype.itemsize
        self._poison = np.full(nbytes, _POISON, np.uint8)
        self._golden: dict[str, NDArray[np.uint8]] = {}

    def _make_input(self, rank: int, count: int) -> Any:
        """Return the input of a rank as a host array; None if the rank has no input."""
        task = self.task
        silent = task.operation in (Operation.BROADCAST, Operation.SCATTER) and rank != task.root
        if silent or task.operation is Operation.BARRIER:
            return None
        return make_input(task.dtype, task.seed, rank, count, task.redop)

    def _allocate(self, module: ArrayModule) -> tuple[FlatArray | None, FlatArray | None]:
        """Allocate input and output with undefined contents; in place, one of the two is a view of the other."""
        task = self.task
        mine, out = self._mine, self._expected
        source = None if mine is None else module.empty(len(mine), task.dtype)
        if out is None:
            return source, None
        if not task.in_place or source is None:
            return source, module.empty(len(out.values), task.dtype)
        block = slice(task.rank * task.count, (task.rank + 1) * task.count)
        if task.operation in (Operation.ALL_GATHER, Operation.GATHER):
            whole = module.empty(len(out.values), task.dtype)
            return whole[block], whole
        if task.operation in (Operation.REDUCE_SCATTER, Operation.SCATTER):
            return source, source[block]
        return source, source

    def reset(self) -> None:
        """Overwrite the output with a fill pattern and restore the input; return after copies to a device are done."""
        if self.result is not None:
            self.module.bind_copy_from_host(self.result, self._poison)()
        if self.source is not None and self._mine is not None:
            self.module.bind_copy_from_host(self.source, self._mine.view(np.uint8))()
        self.module.synchronize()

    def read_output(self) -> NDArray[Any]:
        """Return the output as a host array: a view if it is in host memory, a copy if it is on a device."""
        if not self.module.on_device:
            return np.asarray(self.result)
        host = self.module.empty_pinned(len(self.result or ()) * self.task.dtype.itemsize)
        self.module.bind_copy_to_host(host, self.result)()
        self.module.synchronize()
        return np.asarray(host).view(self.task.dtype.numpy)

    def count_wrong(self, contender: str) -> int:
        """Return how many elements of this rank's output are wrong; 0 if this rank has no output to check.

        The first correct result of each `contender` is kept; later results with the same bits need no numerical check.
        """
        expected: ExpectedResult | None = self._expected
        if expected is None:
            return 0
        output = self.read_output()
        bits, golden = output.view(np.uint8), self._golden.get(contender)
        if golden is not None and np.array_equal(bits, golden):
            return 0
        wrong = expected.count_wrong(output)
        if not wrong:
            self._golden[contender] = bits.copy()
        return wrong

    def checksum_output(self) -> int:
        """Return a CRC-32 of this rank's output, to compare across ranks; 0 if the rank has no output."""
        return 0 if self._expected is None else zlib.crc32(self.read_output().view(np.uint8).data)
