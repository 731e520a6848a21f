"""The buffers of a timed collective on this rank, allocated, filled and validated without communication."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccoll.arrays import ArrayModule, DType, FlatArray
from hpccoll.measure.bandwidth import TimedOperation, compute_message_bytes
from hpccoll.measure.data import HostArray, repeat
from hpccoll.measure.expected_output import count_input, make_expected_output, make_own_period
from hpccoll.plan import Operation
from hpccoll.records import CollectiveCase

_POISON = 0xA5  # fills outputs before a call, so that the result of an earlier call cannot count as right
IDENTICAL_RESULTS = (Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.BROADCAST)


def list_places(operation: TimedOperation, places: tuple[bool, ...]) -> tuple[bool, ...]:
    """Return the values of `in_place` to time for an operation: `places`, or (True,) if it has no separate output."""
    return (True,) if operation in (Operation.BROADCAST, Operation.BARRIER) else places


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """The arguments of one benchmarked collective on rank `rank` of `ranks`.

    `count` is the number of elements of the vector, or of one block in operations with a block per rank. `redop` is the
    name of the reduction, and `seed` determines the values of the input.
    """

    operation: Operation
    count: int
    dtype: DType
    redop: str
    root: int
    in_place: bool
    rank: int
    ranks: int
    seed: int = 0

    @property
    def nbytes(self) -> int:
        """The message size in bytes, nccl-tests' S."""
        return compute_message_bytes(self.operation, self.count, self.dtype.itemsize, self.ranks)

    def make_case(self, engine: str, algorithm: str | None, buffer: str, nodes: int) -> CollectiveCase:
        """Return the fields of a record that are known before the measurement, such as operation and size."""
        return CollectiveCase(
            op=self.operation.value,
            engine=engine,
            algorithm=algorithm,
            buffer=buffer,
            in_place=self.in_place,
            nbytes=self.nbytes,
            count=self.count,
            dtype=self.dtype.name,
            redop=self.redop if self.operation.reduces else None,
            root=self.root if self.operation.has_root else None,
            ranks=self.ranks,
            nodes=nodes,
        )


class Workload:
    """A benchmarked collective with its buffers on this rank, allocated by `module`, and the expected result.

    `source` is the input and `result` the output, or None if the rank has none. In place, one of `source` and `result`
    is a view of the other. No second copy of the input and no copy of the expected result is kept, because both repeat
    short arrays; on a device, `read_output` keeps a copy of the output in host memory.
    """

    def __init__(self, task: WorkloadSpec, module: ArrayModule) -> None:
        self.task, self.module = task, module
        self._expected = make_expected_output(task)
        period = make_own_period(task, task.rank)
        self._period = None if period is None else self._place(period)
        self.source, self.result = self._allocate(module)
        self._host: NDArray[np.uint8] | None = None  # page-locked memory for outputs on a device

    def _place(self, period: HostArray) -> FlatArray:
        """Return a copy of the array `period` in this workload's kind of memory (host or device)."""
        placed = self.module.empty(len(period), self.task.dtype)
        self.module.bind_copy_from_host(placed, period.view(np.uint8))()
        self.module.synchronize()
        return placed

    def make_inputs(self) -> list[HostArray | None]:
        """Return the inputs of all ranks as new host arrays; None in place of a rank without input."""
        task, periods = self.task, (make_own_period(self.task, rank) for rank in range(self.task.ranks))
        return [None if period is None else repeat(period, count_input(task)) for period in periods]

    def _allocate(self, module: ArrayModule) -> tuple[FlatArray | None, FlatArray | None]:
        """Return new arrays for input and output, uninitialized; in place, one of the two is a view of the other."""
        task, expected = self.task, self._expected
        source = None if self._period is None else module.empty(count_input(task), task.dtype)
        if expected is None:
            return source, None
        if not task.in_place or source is None:
            return source, module.empty(expected.count, task.dtype)
        block = slice(task.rank * task.count, (task.rank + 1) * task.count)
        if task.operation in (Operation.ALL_GATHER, Operation.GATHER):
            whole = module.empty(expected.count, task.dtype)
            return whole[block], whole
        if task.operation in (Operation.REDUCE_SCATTER, Operation.SCATTER):
            return source, source[block]
        return source, source

    def reset(self) -> None:
        """Overwrite the output with a fill pattern and restore the input; wait until the GPU, if any, has finished."""
        if self.result is not None and self.result is not self.source:
            self.module.as_bytes(self.result).fill(_POISON)
        if self.source is not None and self._period is not None:
            _fill_repeatedly(self.source, self._period)
        self.module.synchronize()

    def read_output(self) -> NDArray[Any]:
        """Return the output as a host array: a view if it is in host memory, else a copy that the next call overwrites.

        A rank without output gets an empty array.
        """
        if self.result is None:
            return np.empty(0, self.task.dtype.numpy)
        if not self.module.on_device:
            return np.asarray(self.result)
        if self._host is None:
            self._host = self.module.empty_pinned(len(self.result) * self.task.dtype.itemsize)
        self.module.bind_copy_to_host(self._host, self.result)()
        self.module.synchronize()
        return np.asarray(self._host).view(self.task.dtype.numpy)

    def count_wrong(self) -> int:
        """Return how many elements of this rank's output are wrong; 0 if this rank has no output to check."""
        return 0 if self._expected is None else self._expected.count_wrong(self.read_output())

    def checksum_output(self) -> int:
        """Return a CRC-32 of this rank's output, to compare across ranks; 0 if the rank has no output."""
        return 0 if self._expected is None else zlib.crc32(self.read_output().view(np.uint8).data)


def _fill_repeatedly(target: FlatArray, period: FlatArray) -> None:
    """Fill `target` with repetitions of `period`, without temporary memory."""
    if not len(period):
        return
    whole = len(target) // len(period) * len(period)
    target[:whole].reshape(-1, len(period))[...] = period
    target[whole:] = period[: len(target) - whole]
