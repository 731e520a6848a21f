"""Symmetric device memory on a simulated device: the real fences, kernels and lifetimes on streams that run late.

`late_device` replaces the CUDA driver. Its memory is really shared by the ranks of the run, and the source of the
kernels runs in it. Some tests use fences without the record of the event, the host barrier or the wait, and then
require wrong results.
"""

from __future__ import annotations

import gc
import time
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpccoll
from hpccoll.algorithms import list_algorithms
from hpccoll.arrays import Buffer, as_buffer
from hpccoll.errors import MismatchError, UnavailableError, UsageError
from hpccoll.native import NodeBarrier
from hpccoll.plan import Operation
from hpccoll.runtime import arguments
from hpccoll.runtime.cuda.device import SharedDeviceMemory, StreamFences, device_empty
from hpccoll.runtime.cuda.ipc import SLOTS, IpcCloseCounters, free_ready
from hpccoll.runtime.progress import Progress
from tests.mpi import calls
from tests.mpi.calls import Call, check
from tests.mpi.cases import Case
from tests.mpi.late_device import SPOILT, LateDriver, LateModule
from tests.mpi.test_matrix import SAMPLE, counts
from tests.mpi.test_symmetric import Pool
from tests.unit.runtime.cuda.host_kernels import COMPILER

pytestmark = pytest.mark.skipif(COMPILER is None, reason="g++ is not here")

SHARED = {known.full_name: known for known in list_algorithms() if known.uses_shared_memory and not known.is_two_level}
COUNT = 3000


class World:
    """A communicator whose ranks have simulated devices; `as_buffer` returns the memory of these as device buffers.

    Args:
        comm: the MPI communicator.
        folder: a directory for compiled kernels.
    """

    def __init__(self, comm, folder):
        self.comm = comm
        self.hpc = hpccoll.Communicator(comm)
        self.driver: Any = LateDriver(comm.rank, folder)
        self.module = LateModule(self.driver)
        self.node = self.hpc._engine.node
        self.node.device = SharedDeviceMemory(
            self.hpc._engine.comm, self.node.ranks, self.node.barrier, lambda: self.driver
        )

    def empty(self, shape, dtype="float32"):
        """Return a new symmetric array in device memory. Collective."""
        return device_empty(self.node, shape, dtype)

    def as_buffer(self, array, role, writable):
        found = as_buffer(array, role, writable)
        if found.nbytes and self.node.symmetric.find(found.address, 1) is None:
            return found
        return Buffer(found.flat, self.module, found.dtype, found.address, found.shape)

    def synchronize(self):
        """Block until all work that is queued on this rank's simulated device has run."""
        self.driver.synchronize()

    def close(self):
        """Close the communicator and free all device memory that other ranks have closed."""
        self.hpc.close()
        free_ready()


@pytest.fixture(scope="module")
def world(comm, tmp_path_factory):
    made = World(comm, tmp_path_factory.mktemp("kernels"))
    yield made
    made.close()
    comm.Barrier()
    free_ready()
    made.driver.end()


@pytest.fixture(autouse=True)
def device_buffers(world, monkeypatch):
    """Make all calls treat arrays in the simulated device's memory as device buffers."""
    monkeypatch.setattr(arguments, "as_buffer", world.as_buffer)


def queue_kernel(world, step):
    """Queue the function `step` on the current stream, in place of a kernel of the user's program."""
    world.module.later(step)()


def queue_all_reduce(world, x, turn, **options):
    """Queue a kernel that writes an input of this rank and `turn` into `x`, and an all-reduce; return the right result.

    `options` are arguments of `all_reduce`; without `out`, the result is in `x`.
    """
    n, rank = world.hpc.size, world.hpc.rank
    queue_kernel(world, partial(np.add, np.arange(len(x), dtype=x.dtype), rank + turn, x))
    world.hpc.all_reduce(x, algorithm=options.pop("algorithm", "shared_two_shot"), **options)
    return n * np.arange(len(x), dtype=x.dtype) + n * turn + n * (n - 1) // 2


class LateCall(Call):
    """A call that waits for all streams before it writes its input and before it reads its result."""

    world: World

    def load(self):
        self.world.synchronize()
        super().load()

    def result(self):
        self.world.synchronize()
        return super().result()


def is_symmetric(name, op, in_place):
    """Whether other ranks access only the symmetric buffers of a case, and no scaled or saved copy of its input."""
    operation = SHARED[name].operation
    scaled = op.startswith("premul") and operation is not Operation.ALL_REDUCE
    return operation is not Operation.BARRIER and not scaled and not (operation is Operation.ALL_TO_ALL and in_place)


@pytest.mark.full_except_on(2, 3)
@pytest.mark.parametrize("name", [name for name in SHARED if SHARED[name].operation is not Operation.BARRIER])
@settings(max_examples=1)
@given(data=st.data())
def test_symmetric_device_buffers_are_bit_equal_to_replay(world, comm, name, data):
    """In place and out of place, all reductions and element types, at any alignment, with a random delay per step."""
    pool = Pool(world.empty(2**20, "uint8"))
    cases = []
    for turn, (_, dtype, op, size, in_place, path, special) in enumerate(row for row in SAMPLE if row[0] == name):
        count = data.draw(counts(size, world.hpc.size, turn), label="count")
        root = (data.draw(st.integers(0, world.hpc.size - 1), label="root") + turn) % world.hpc.size
        if is_symmetric(name, op, in_place):
            cases.append(Case(SHARED[name], dtype, op, count, root, in_place, path, special, seed=turn))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LateCall, "world", world, raising=False)
        patch.setattr(calls, "Call", LateCall)
        check(world.hpc, comm, cases, pool)
    assert "launch" in world.driver.log or world.hpc.size == 1 or not cases


@pytest.mark.parametrize("algorithm", ["shared_one_shot", "shared_two_shot"])
def test_calls_do_not_wait_on_the_host_for_the_stream(world, monkeypatch, algorithm):
    """Repeated calls never wait on the host for queued work."""
    x, out = world.empty(COUNT, "int64"), world.empty(COUNT, "int64")
    queue_all_reduce(world, x, 0, out=out, algorithm=algorithm)

    def never(*_):
        raise AssertionError("the host waited for the device")

    with monkeypatch.context() as patch:
        patch.setattr(LateModule, "synchronize", never)
        patch.setattr(LateDriver, "synchronize", never)
        rights = [queue_all_reduce(world, x, turn, out=out, algorithm=algorithm) for turn in range(20)]
    world.synchronize()
    assert (out == rights[-1]).all()


def test_a_two_shot_call_makes_few_driver_calls(world):
    """Two fences (one record each, and one wait per other rank) and one kernel launch."""
    x, out = world.empty(COUNT), world.empty(COUNT)
    for _ in range(3):
        world.hpc.all_reduce(x, out=out, algorithm="shared_two_shot")
    world.driver.log.clear()
    world.hpc.all_reduce(x, out=out, algorithm="shared_two_shot")
    others = world.hpc.size - 1
    if others:
        assert world.driver.log == ["record", *["wait"] * others, "launch", "record", *["wait"] * others]


def test_a_call_on_another_stream_runs_after_earlier_calls(world):
    """The user changes streams between calls: the second call must not overtake the first."""
    x = world.empty(COUNT, "int64")
    try:
        for turn in range(12):
            world.driver.current = 7 + turn % 2
            right = queue_all_reduce(world, x, turn)
            if turn % 3 == 0:
                world.synchronize()
                assert (x == right).all()
            # The user must order the kernel that writes the next input, on the other stream, after this call.
            world.synchronize()
    finally:
        world.driver.current = 7


@pytest.mark.needs_ranks(2)
def test_a_call_on_another_stream_waits_for_scratch(world):
    """In-place one-shot calls share scratch memory; the first call's stream is late, that of the second is idle."""
    x, y = world.empty(COUNT, "int64"), world.empty(COUNT, "int64")
    wrong = 0
    for turn in range(6):
        world.driver.streams[7].lateness_s = 0.03
        try:
            first = queue_all_reduce(world, x, turn, algorithm="shared_one_shot")
            world.driver.current = 8
            second = queue_all_reduce(world, y, turn + 5, algorithm="shared_one_shot")
        finally:
            world.driver.current = 7
            world.driver.streams[7].lateness_s = 1e-3
        world.synchronize()
        wrong += int((x != first).any() or (y != second).any())
    assert world.comm.allreduce(wrong) == 0


class WithoutRecord(StreamFences):
    """Fences that do not record an event after this rank's work."""

    def fence(self, stream):
        self._barrier.fence()
        self._wait_for_others(self._barrier.parity ^ 1, stream)

    def enter(self, stream, entry, source, result):
        direct = self._barrier.enter(entry, source, result)
        self._wait_for_others(self._barrier.parity ^ 1, stream)
        return direct


class WithoutBarrier(StreamFences):
    """Fences that wait before the host barrier, when other ranks may not have recorded their events."""

    def fence(self, stream):
        turn = self._barrier.parity
        self._cuda.record_event(self._own[turn], stream)
        self._wait_for_others(turn, stream)
        self._barrier.fence()

    def enter(self, stream, entry, source, result):
        turn = self._barrier.parity
        self._cuda.record_event(self._own[turn], stream)
        self._wait_for_others(turn, stream)
        return self._barrier.enter(entry, source, result)


class WithoutWait(StreamFences):
    """Fences whose streams do not wait for other ranks' events."""

    def _wait_for_others(self, turn, stream):
        pass


FENCES = {"complete": StreamFences, "no record": WithoutRecord, "no barrier": WithoutBarrier, "no wait": WithoutWait}


@pytest.mark.parametrize("kind", FENCES)
@pytest.mark.needs_ranks(2)
def test_every_part_of_a_fence_is_needed(world, comm, kind):
    """Rank 0's stream and the last rank's host are late: results are right with complete fences only."""
    fences, driver = world.node.device.fences, world.driver
    made = FENCES[kind](driver, world.node.barrier, fences._own, list(zip(*fences._theirs, strict=True)))
    x = world.empty(COUNT, "int64")
    wrong = 0
    world.synchronize()
    comm.Barrier()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.node.device, "fences", made)
        driver.streams[7].lateness_s = 0.02 if comm.rank == 0 else 0
        for turn in range(8):
            if comm.rank == comm.size - 1:
                time.sleep(5e-3)
            right = queue_all_reduce(world, x, turn)
            world.synchronize()
            wrong += int((x != right).any())
    driver.streams[7].lateness_s = 1e-3
    world.synchronize()
    assert (comm.allreduce(wrong) > 0) == (kind != "complete")


def test_ranks_use_the_same_event_between_collectives_on_host_memory(world):
    """Host barriers of collectives on host memory count as well, so all ranks use the same one of two events."""
    x, host = world.empty(COUNT, "int64"), np.zeros(10)
    for turn in range(9):
        for _ in range(turn % 3):
            world.hpc.all_reduce(host, algorithm="shared_one_shot")
        right = queue_all_reduce(world, x, turn)
        world.synchronize()
        assert (x == right).all()


@pytest.mark.needs_ranks(2)
def test_ordinary_device_memory_is_refused_on_all_ranks(world):
    """If one rank's buffer is not symmetric, all ranks raise UsageError, and the next call is right."""
    x = world.empty(COUNT)
    lonely = np.zeros(COUNT, np.float32)
    mine = lonely if world.hpc.rank == 0 else x
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            arguments,
            "as_buffer",
            lambda array, role, writable: Buffer(
                array,
                world.module,
                as_buffer(array, role, writable).dtype,
                array.__array_interface__["data"][0],
                array.shape,
            ),
        )
        with pytest.raises(UsageError, match="cupy_empty"):
            world.hpc.all_reduce(mine, algorithm="shared_two_shot")
    right = queue_all_reduce(world, x, 3)
    world.synchronize()
    assert (x == right).all()


@pytest.mark.needs_ranks(2)
def test_host_memory_on_one_rank_and_device_memory_on_others_is_refused(world):
    x = world.empty(COUNT) if world.hpc.rank else (world.empty(COUNT), np.zeros(COUNT, np.float32))[1]
    with pytest.raises(MismatchError, match="memory"):
        world.hpc.all_reduce(x, algorithm="shared_two_shot")


@pytest.mark.needs_ranks(2)
def test_memory_is_freed_only_after_all_ranks_have_unmapped_it(world, comm):
    """The owner frees its array first; the memory keeps its values until the last mapping of it is closed."""
    x = world.empty(COUNT, "uint8")
    block = world.node.symmetric.find(x.__array_interface__["data"][0], 1)
    there = world.driver.opened[next(iter(block.peers.values())).address]
    x[:] = 1
    comm.Barrier()
    if comm.rank == 0:
        world.hpc.free(x)
        del x, block
        gc.collect()
        assert free_ready() >= 1
    comm.Barrier()
    if comm.rank == 1:
        assert (there.bytes[:COUNT] == 1).all()
        world.hpc.free(x)
        del x, block
        gc.collect()
    comm.Barrier()
    if comm.size == 2:
        assert free_ready() == 0
        comm.Barrier()
        assert (there.bytes[:COUNT] == SPOILT).all()


@pytest.mark.full_except_on(2)
def test_freed_buffers_leave_no_memory_and_no_mappings(world, comm):
    def count_allocations():
        """Return the numbers of owned and of mapped allocations of the simulated device."""
        gc.collect()
        comm.Barrier()
        world.node.device.cuda.synchronize()
        left = free_ready()
        return len(world.driver.owned) - left, len(world.driver.opened)

    def cycle(turn):
        x = world.empty(COUNT, "int64")
        rights = [queue_all_reduce(world, x, each + turn) for each in range(3)]
        world.synchronize()
        assert (x == rights[-1]).all()
        if turn % 2:
            world.hpc.free(x)

    for turn in range(4):
        cycle(turn)
    before = count_allocations()
    for turn in range(40):
        cycle(turn)
    assert count_allocations() == before


def test_use_of_a_freed_buffer_raises(world):
    x = world.empty(COUNT)
    world.hpc.all_reduce(x, algorithm="shared_two_shot")
    world.hpc.free(x)
    with pytest.raises(UsageError, match="was freed"):
        world.hpc.all_reduce(x, algorithm="shared_two_shot")


def test_an_allocation_that_fails_on_one_rank_raises_on_all(world, comm):
    """All ranks raise the same error, which names a remedy, and free what they had allocated."""

    def fails(*_):
        raise RuntimeError("cudaErrorMapBufferObjectFailed")

    gc.collect()
    comm.Barrier()  # now all mappings of buffers that are gone are closed, and their memory can go, too
    free_ready()
    before = len(world.driver.owned), len(world.driver.opened)
    for name in ("allocate", "export_memory", "open_memory"):
        with pytest.MonkeyPatch.context() as patch:
            if comm.rank == comm.size - 1:
                patch.setattr(world.driver, name, fails)
            if name == "open_memory" and comm.size == 1:
                continue
            with pytest.raises(UnavailableError, match=rf"rank {comm.size - 1}.*MapBuffer.*gpus-per-node"):
                world.empty(COUNT)
    assert (len(world.driver.owned), len(world.driver.opened)) == before
    x = world.empty(COUNT, "int64")
    right = queue_all_reduce(world, x, 1)
    world.synchronize()
    assert (x == right).all()


def test_a_second_device_is_refused_on_all_ranks(world, comm):
    with pytest.MonkeyPatch.context() as patch:
        if comm.rank == 0:
            patch.setattr(world.driver, "get_device_uuid", lambda: "another")
        with pytest.raises(UnavailableError, match="first device buffer"):
            world.empty(COUNT)


@pytest.mark.skipif(find_spec("cupy") is not None, reason="shows what happens without CuPy")
def test_without_cupy_every_rank_raises(comm):
    with hpccoll.Communicator(comm) as hpc, pytest.raises(UnavailableError, match="CuPy cannot be imported"):
        hpc.cupy_empty(3)


def test_buffers_that_share_a_counter_are_closed_together():
    """Buffers 3 and 3 + SLOTS share a counter: both count as closed only after both have been closed."""
    mine, theirs = (memoryview(bytearray(8 * SLOTS)).cast("Q") for _ in range(2))
    here, there = IpcCloseCounters(mine, [theirs]), IpcCloseCounters(theirs, [mine])
    for each in (here, there):
        each.add_buffer(3)
        each.add_buffer(3 + SLOTS)
    there.count_close(3 + SLOTS)
    assert not here.is_closed_by_all(3)
    there.count_close(3)
    assert here.is_closed_by_all(3)
    assert here.is_closed_by_all(3 + SLOTS)
    assert not there.is_closed_by_all(3)


def test_the_parity_alternates_with_every_host_barrier():
    progress = Progress()
    waits = progress.attend, progress.operations, progress.transfers
    barrier = NodeBarrier(np.zeros((1, 8), np.uint64), 0, False, *waits)
    seen = []
    for _ in range(4):
        seen.append(barrier.parity)
        barrier.fence()
    assert seen == [1, 0, 1, 0]
