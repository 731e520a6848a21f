"""Symmetric device memory on a GPU. Ranks may share one device: mpirun -n 2 python -m pytest --with-mpi tests/gpu."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpccoll
from hpccoll.algorithms import get_algorithm
from hpccoll.errors import UsageError
from hpccoll.measure.data import get_reduction_function, make_input
from hpccoll.plan import Operation, replay
from hpccoll.runtime.arrays import DTYPES
from hpccoll.runtime.arrays.reductions import _KINDS
from hpccoll.runtime.cuda import probe as cuda_probe
from tests.mpi.cases import bits, sprinkled

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
    cupy.cuda.Device(comm.rank % cupy.cuda.runtime.getDeviceCount()).use()
    with hpccoll.Communicator(comm) as made:
        yield made


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("dtype", "op"), REDUCED)
def test_sums_are_bit_equal_to_replay(hpc, cupy, dtype, op, algorithm):
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
        pytest.skip("this torch has no CUDA")
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
