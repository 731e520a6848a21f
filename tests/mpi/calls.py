"""Calls a collective in every possible way on guarded memory, and compares the results with `replay`.

The expected result is that of `replay` of the plan that the runtime lowers. `tests/expected_result.py` computes the
correct result independently of all plans. The elements beside each buffer must not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import numpy as np

from hpccoll import Communicator, Reduction
from hpccoll.arrays import DType, as_buffer
from hpccoll.plan import Operation
from hpccoll.runtime.collective_call import CollectiveCall
from tests.mpi.cases import BRING_BLOCKS, VECTORS, Array, Case, bits

GUARD = 7  # elements, so that buffers are not aligned either


Take = Callable[[int], Array]  # gives that many bytes


def private(nbytes: int) -> Array:
    """Memory of this rank alone."""
    return np.empty(nbytes, np.uint8)


class Guarded:
    """Memory with guard elements on both sides."""

    def __init__(self, count: int, dtype: DType, take: Take) -> None:
        whole = take((count + 2 * GUARD) * dtype.itemsize).view(dtype.numpy)
        self.bytes = whole.view(np.uint8)
        self.bytes[:] = 0xA5
        self.edge = GUARD * dtype.itemsize
        self.flat = whole[GUARD : GUARD + count]

    def intact(self) -> bool:
        """Whether nothing beside the buffer was touched."""
        beside = np.concatenate([self.bytes[: self.edge], self.bytes[len(self.bytes) - self.edge :]])
        return bool((beside == 0xA5).all())


class Call:
    """The buffers of one rank in one case, and the ways to call the collective on them."""

    def __init__(self, comm: Communicator, case: Case, take: Take = private) -> None:
        self.take = take
        self.comm, self.case, self.n, self.rank = comm, case, comm.size, comm.rank
        self.guards: list[Guarded] = []
        self.x, self.out = self._buffers()
        self.given = case.brought(self.rank, self.n)
        self.algorithm: Any = case.algorithm

    def _memory(self, count: int) -> Array:
        guarded = Guarded(count, self.case.kind, self.take)
        self.guards.append(guarded)
        return guarded.flat

    def _buffers(self) -> tuple[Array | None, Array | None]:
        case, n, rank = self.case, self.n, self.rank
        if case.operation is Operation.BARRIER:
            return None, None
        total, mine = case.taken(n, rank), case.block(rank)
        if case.operation is Operation.BROADCAST:
            return self._memory(total), None
        if not case.in_place or not (case.brings(rank) and case.wants(rank)):
            x = self._memory(case.length(n, rank)) if case.brings(rank) else None
            needs = case.wants(rank) and not (case.operation is Operation.REDUCE and case.in_place)
            return x, self._memory(total) if needs else None
        if case.operation in VECTORS:
            return self._memory(total), None
        if case.operation is Operation.ALL_TO_ALL:
            x = self._memory(max(total, case.length(n, rank)))
            return (x, x) if case.counts is None else (x[: case.length(n, rank)], x[:total])
        if case.operation in BRING_BLOCKS:
            x = self._memory(case.length(n, rank))
            return x, x[mine]
        out = self._memory(total)
        return out[mine], out

    def load(self) -> None:
        """Put the input in and junk where the output goes."""
        for guarded in self.guards:
            guarded.flat.view(np.uint8)[:] = 0x5A if self.case.kind.kind != "b" else 1
        if self.given is not None and self.x is not None:
            self.x[:] = self.given

    def arguments(self) -> tuple[Any, dict[str, Any]]:
        """The arguments with which the collective is called."""
        case = self.case
        how: dict[str, Any] = {"algorithm": self.algorithm}
        if case.operation.has_root:
            how["root"] = case.root
        x = self.x
        if case.operation.reduces:
            shape = () if x is None else x.shape
            how["op"] = case.reduction(self.rank, self.n, shape)
        if self.out is not None:
            how["out"] = self.out
        if case.counts is not None:
            how["counts"] = case.sent(self.n, self.rank)
            if case.operation is Operation.ALL_TO_ALL:
                how["out_counts"] = list(case.received(self.n, self.rank))
        return x, how

    def function(self) -> Callable[..., Any]:
        """The method of the communicator."""
        method = getattr(self.comm, self.case.operation.value)
        if self.case.operation is Operation.BARRIER:
            return lambda x, **how: method(**how)
        return method  # type: ignore[no-any-return]

    def results(self) -> list[Array | None]:
        """Run the case by its path and return the result of each call."""
        x, how = self.arguments()
        found = []
        if self.case.path == "prepared":
            how.setdefault("op", "sum")
            run = self.comm.prepare(self.case.operation, x, **how)
            for _ in range(2):
                self.load()
                run()
                found.append(self.result())
            run.free()
            return found
        for _ in range(3 if self.case.path == "bound" else 1):
            self.load()
            if self.case.path == "async":
                value = self.function()(x, async_op=True, **how).wait()
            else:
                value = self.function()(x, **how)
            if self.case.wants(self.rank):
                assert value is (x if self.out is None else self.out), "the wrong array was returned"
            found.append(self.result())
        return found

    def result(self) -> Array | None:
        """Return a copy of this rank's result; check that no other memory has changed."""
        assert all(guarded.intact() for guarded in self.guards), "elements beside a buffer were written"
        reads_only = (self.out is not None and not self.case.in_place) or not self.case.wants(self.rank)
        if reads_only and self.given is not None and self.x is not None:
            assert self.x.tobytes() == self.given.tobytes(), "the input was changed"
        if not self.case.wants(self.rank):
            return None
        held = self.x if self.out is None else self.out
        return None if held is None else held.copy()


def check(comm: Communicator, raw: Any, cases: Sequence[Case], pool: Callable[[], Take] = lambda: private) -> None:
    """Run cases and hold every result against replay, arithmetic and the other ranks.

    The ranks share out the replays, each making those of every n-th case for all ranks. `pool` gives the memory of a
    case, from its beginning again.
    """
    n = comm.size
    shares = [oracle(case, comm) for case in cases[comm.rank :: n]]
    mine = raw.alltoall([[share[rank] for share in shares] for rank in range(n)])
    for i, case in enumerate(cases):
        wanted = mine[i % n][i // n]
        for found in Call(comm, case, pool()).results():
            if found is not None:
                assert bits(found) == wanted, (case, comm.rank, found, np.frombuffer(wanted, found.dtype))
            if case.operation is Operation.ALL_REDUCE and found is not None:
                assert len(set(raw.allgather(crc32(bits(found))))) == 1, (case, "ranks differ")


def oracle(case: Case, comm: Communicator) -> list[bytes]:
    """Return the bits that every rank must hold; replay itself must be right by arithmetic."""
    # Where the engine chooses how many chunks, the plan to replay is the one that it runs.
    sample = as_buffer(np.empty(0, case.kind.numpy), "x", writable=False)
    count = case.count if case.counts is None else case.counts
    job = CollectiveCall(case.operation, case.algorithm, case.root, Reduction("sum"), None, sample, count)
    results = case.replayed(comm.size, comm._engine.selector.select_for(job).chunks, comm._engine.nodes)
    if not case.special:
        wrong = [case.wrong(rank, comm.size, found) for rank, found in enumerate(results)]
        assert not any(wrong), (case, "replay itself is wrong", wrong)
    return [bits(values) for values in results]
