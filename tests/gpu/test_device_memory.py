"""Device memory on a GPU. Ranks may share one device: mpirun -n 2 python -m pytest --with-mpi -W default tests/gpu."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpccoll
from hpccoll.algorithms import get_algorithm
from hpccoll.arrays import DTYPES, get_array_module
from hpccoll.arrays.reductions import _KINDS
from hpccoll.errors import ReductionError, UsageError
from hpccoll.measure.data import get_reduction_function, make_input
from hpccoll.plan import Operation, replay
from hpccoll.runtime.cuda import probe as cuda_probe
from tests.mpi.cases import bits, sprinkled
from tests.requirements import skip_or_fail

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(not cuda_probe.list_device_names(), reason="no CUDA device is here")]

COUNTS = (1, 1023, 200_003)
ALGORITHMS = ("shared_one_shot", "shared_two_shot")
REDUCED = [(name, op) for name, kind in DTYPES.items() for op in ("sum", "prod", "min", "max", "bxor")
           if kind.kind in _KINDS[op]]  # fmt: skip


@pytest.fixture(scope="module")
def cupy() -> Any:
    """CuPy, on this rank's device: ranks go around the devices of the host."""
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def hpc(comm, cupy):
    with hpccoll.Communicator(comm) as made:
        get_array_module("cuda", made.local_rank)
        yield made


@pytest.fixture(params=["cupy", "torch"])
def from_numpy(request, cupy):
    """Returns CuPy arrays or torch tensors on this rank's device."""
    if request.param == "cupy":
        return cupy.asarray
    torch = pytest.importorskip("torch")
    return lambda values: torch.from_numpy(values).cuda()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("dtype", "op"), REDUCED)
def test_kernels_are_bit_equal_to_replay(hpc, cupy, dtype, op, algorithm):
    """In place and out, aligned and not, infinities and NaN among them, three calls in a row each."""
    kind = DTYPES[dtype]
    x, out = hpc.cupy_empty(COUNTS[-1] + 1, dtype), hpc.cupy_empty(COUNTS[-1] + 1, dtype)
    for turn, count in enumerate(COUNTS):
        inputs = [sprinkled(make_input(kind, turn, rank, count, op), turn + 9 * rank) for rank in range(hpc.size)]
        plan = get_algorithm(Operation.ALL_REDUCE, algorithm).plan(hpc.size, 0, 1)
        with np.errstate(all="ignore"):
            right = bits(replay(plan, count, inputs, get_reduction_function(op))[hpc.rank])
        for first, target in ((0, None), (1, None), (0, out), (1, out)):
            mine = x[first : first + count]
            for _ in range(3):
                mine.view(np.uint8).set(inputs[hpc.rank].view(np.uint8))
                hpc.all_reduce(mine, op, out=None if target is None else target[:count], algorithm=algorithm)
            found = (mine if target is None else target[:count]).view(np.uint8).get().view(kind.numpy)
            assert bits(found) == right, (count, first, target is None)


def test_two_hundred_calls_without_a_synchronisation(hpc, cupy):
    """On a stream of the user's own, each input written by a kernel queued just before."""
    x, out = hpc.cupy_empty(2**20, "int64"), hpc.cupy_empty(2**20, "int64")
    with cupy.cuda.Stream(non_blocking=True) as stream:
        total = cupy.zeros(2**20, np.int64)
        for turn in range(200):
            x.fill(hpc.rank + turn)
            hpc.all_reduce(x, out=out, algorithm="shared_two_shot")
            total += out
        stream.synchronize()
    n = hpc.size
    assert bool((total == n * sum(range(200)) + 200 * n * (n - 1) // 2).all())


def test_streams_may_change_between_calls(hpc, cupy):
    x = hpc.cupy_empty(2**22)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    for turn in range(20):
        with streams[turn % 2] as stream:
            x.fill(hpc.rank)
            hpc.all_reduce(x, algorithm="shared_one_shot")
            stream.synchronize()
        assert bool((x == hpc.size * (hpc.size - 1) / 2).all())


def test_torch_tensors_are_reached_where_they_are(hpc, cupy):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        skip_or_fail("this torch has no CUDA")
    x = hpc.torch_empty((300, 500), torch.bfloat16, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(5):
            x.fill_(hpc.rank)
            hpc.all_reduce(x, algorithm="shared_two_shot")
        torch.cuda.current_stream().synchronize()
    assert bool((x == hpc.size * (hpc.size - 1) / 2).all())
    hpc.free(x)


def test_ordinary_device_memory_is_refused_alike(hpc, cupy):
    x = cupy.zeros(1000, np.float32) if hpc.rank == 0 else hpc.cupy_empty(1000)
    if hpc.rank == 0:
        hpc.cupy_empty(1000)
    with pytest.raises(UsageError, match="cupy_empty"):
        hpc.all_reduce(x, algorithm="shared_two_shot")


def test_memory_is_given_back(hpc, cupy):
    """A hundred buffers of 64 MiB, half of them freed, half dropped."""
    free = []
    for turn in range(100):
        x = hpc.cupy_empty(2**24)
        hpc.all_reduce(x, algorithm="shared_two_shot")
        if turn % 2:
            hpc.free(x)
        del x
        free.append(cupy.cuda.runtime.memGetInfo()[0])
    assert max(free[10:]) - min(free[10:]) < 2**30


def test_memory_comes_back_from_the_pools(hpc, cupy):
    """CuPy's pool holds most of the device's memory, unused, when a symmetric buffer asks for it."""
    nbytes = int(0.6 * cupy.cuda.runtime.memGetInfo()[0] / hpc.size)
    hpc.barrier()
    pooled = cupy.empty(nbytes, np.uint8)
    del pooled
    hpc.barrier()
    hpc.free(hpc.cupy_empty(nbytes, "uint8"))


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "auto"])
@pytest.mark.parametrize("op", ["sum", "max", "avg"])
def test_messages_give_right_values(hpc, from_numpy, algorithm, op):
    """Blocking, bound, and asynchronous ones that end in another order, each read at once."""
    values = np.arange(100_003, dtype=np.float32) % 97
    total = hpc.size * (hpc.size + 1) // 2
    right = {"sum": total, "max": hpc.size, "avg": total / hpc.size}[op]
    for _ in range(4):
        x = from_numpy(values * (hpc.rank + 1))
        for _ in range(3):
            y = x + 0
            hpc.all_reduce(y, op, algorithm=algorithm)
            assert (y == from_numpy(values * np.float32(right))).all()
        arrays = [x + 0 for _ in range(5)]
        works = [hpc.all_reduce(y, op, algorithm="ring", async_op=True) for y in arrays]
        for y, work in list(zip(arrays, works, strict=True))[:: -1 if hpc.rank else 1]:
            work.wait()
            assert (y == from_numpy(values * np.float32(right))).all()


def test_messages_between_ranks_outlive_their_pinned_memory(hpc, from_numpy):
    """The pinned memory of a receive is used again, by the next one, while the copy out of it might still be queued."""
    there, back, n = (hpc.rank + 1) % hpc.size, (hpc.rank - 1) % hpc.size, 2**20
    received = []
    for turn in range(20):
        x, y = (from_numpy(np.full(n, value, np.float32)) for value in (100 * turn + hpc.rank, -1))
        works = [hpc.irecv(y, back), hpc.isend(x, there)]
        for work in works:
            work.wait()
        received.append((y, 100 * turn + back))
    assert all((y == value).all() for y, value in received)


def test_subnormal_sums_of_messages(hpc, cupy):
    """torch keeps subnormal numbers; CuPy's own functions turn them into zeros, as docs/runtime.md says."""
    torch = pytest.importorskip("torch")
    x = torch.full((100,), 1e-40, device="cuda")
    hpc.all_reduce(x, algorithm="recursive_doubling")
    right = replay(
        get_algorithm(Operation.ALL_REDUCE, "recursive_doubling").plan(hpc.size, 0, 1),
        100,
        hpc.size * [np.full(100, 1e-40, np.float32)],
        get_reduction_function("sum"),
    )
    assert bits(x.cpu().numpy()) == bits(right[hpc.rank])


def test_empty_arrays_go_through_every_operation(hpc, from_numpy):
    for _ in range(3):
        x = from_numpy(np.zeros((hpc.size, 0), np.float32))
        for operation in (hpc.all_reduce, hpc.broadcast, hpc.all_gather, hpc.all_to_all, hpc.reduce_scatter):
            operation(x)
        hpc.irecv(x, hpc.rank)
        hpc.isend(x, hpc.rank).wait()


def test_unsigned_torch_tensors_are_refused_before_anything_is_sent(hpc):
    torch = pytest.importorskip("torch")
    x = torch.zeros(10, dtype=torch.uint32, device="cuda")
    with pytest.raises(ReductionError, match="no CUDA kernel"):
        hpc.all_reduce(x, algorithm="ring")
    hpc.broadcast(x, algorithm="chain")


def test_a_buffer_is_on_the_device_number_that_is_named(comm, cupy):
    torch = pytest.importorskip("torch")
    last = cupy.cuda.runtime.getDeviceCount() - 1
    with hpccoll.Communicator(comm) as hpc:
        x = hpc.torch_empty(1000, device=f"cuda:{last}")
        assert x.device == torch.device("cuda", last)
        for algorithm in ("shared_two_shot", "ring"):
            x.fill_(hpc.rank)
            torch.cuda.synchronize(x.device)
            hpc.all_reduce(x, algorithm=algorithm)
            assert bool((x == hpc.size * (hpc.size - 1) / 2).all())
        hpc.free(x)
