"""Peers on real ranks return exact values, for every operation, dtype and reduction that they offer."""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from hpccoll.arrays import NUMPY, get_dtype
from hpccoll.errors import (
    ReductionError,
    UsageError,
)
from hpccoll.measure.contenders import prepare_peer
from hpccoll.measure.interleaved import Contender, InterleavedBenchmark, TimingOptions
from hpccoll.measure.stopping import StoppingRule
from hpccoll.measure.workload import Workload, WorkloadSpec
from hpccoll.peers import LibraryEngine, MpiEngine, TorchEngine
from hpccoll.plan import Operation
from hpccoll.records import StartMethod
from hpccoll.runtime import job

Array = NDArray[Any]
pytestmark = pytest.mark.mpi
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = ["float32", "float64", "complex64", "complex128"]
FUNCTIONS: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
BITWISE = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
REDUCING: list[Operation] = [operation for operation in Operation if operation.reduces]
MOVING: list[Operation] = [
    operation for operation in Operation if not operation.reduces and operation is not Operation.BARRIER
]


@pytest.fixture(scope="module")
def gloo(comm):
    peer = TorchEngine(comm, "gloo")
    yield peer
    peer.close()


@pytest.fixture(scope="module")
def torch_own(comm):
    peer = TorchEngine(comm, "torch-hpccoll")
    yield peer
    peer.close()


@pytest.fixture(params=["mpi", *(pytest.param(name, marks=needs_torch) for name in ("gloo", "torch_own"))])
def peer(request, comm):
    return MpiEngine(comm) if request.param == "mpi" else request.getfixturevalue(request.param)


def dtype_from_numpy(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def brought(rank: int, length: int, dtype: np.dtype[Any]) -> Array:
    """Small whole numbers that differ by rank and place, and stay exact in every dtype and reduction."""
    values = (np.arange(length) * 5 + rank * 3) % 7 + 1
    return (values % 2 if dtype == np.bool_ else values).astype(dtype)


def expected(
    operation: Operation, function: Any, rank: int, n: int, count: int, dtype: np.dtype[Any], root: int
) -> Any:
    """Return the expected result of `rank` for the inputs of all ranks; None on a rank without a result."""
    blocks = n * count if operation in (Operation.REDUCE_SCATTER, Operation.SCATTER, Operation.ALL_TO_ALL) else count
    every = [brought(r, blocks, dtype) for r in range(n)]
    mine = slice(rank * count, (rank + 1) * count)
    if operation in (Operation.REDUCE, Operation.GATHER) and rank != root:
        return None
    if operation is Operation.EXSCAN and not rank:
        return None
    if operation.is_scan:
        every = every[: rank + (operation is Operation.SCAN)]
    if operation.reduces:
        total = every[0]
        for other in every[1:]:
            total = function(total, other)
        return total[mine] if operation is Operation.REDUCE_SCATTER else total
    if operation is Operation.BROADCAST:
        return every[root]
    if operation is Operation.SCATTER:
        return every[root][mine]
    if operation is Operation.ALL_TO_ALL:
        return np.concatenate([other[mine] for other in every])
    return np.concatenate(every)


def run(
    peer: LibraryEngine,
    comm: Any,
    operation: Operation,
    count: int = 5,
    *,
    dtype: str = "int32",
    redop: str = "sum",
    root: int = 0,
    in_place: bool = False,
) -> None:
    """Run a collective twice (once in place) and compare the results with the expected ones, bit for bit."""
    n, rank, kind = comm.size, comm.rank, dtype_from_numpy(dtype)
    want = expected(operation, (FUNCTIONS | BITWISE).get(redop), rank, n, count, kind, root)
    blocks = n * count if operation in (Operation.REDUCE_SCATTER, Operation.SCATTER, Operation.ALL_TO_ALL) else count
    source: Any = brought(rank, blocks, kind)
    if operation in (Operation.BROADCAST, Operation.SCATTER) and rank != root:
        source = None
    result: Any = None if want is None else np.zeros(len(want), kind)
    if in_place and source is not None and result is not None:
        source, result = shared(source, result, rank, count)
    elif in_place and operation is Operation.BROADCAST:
        source = result
    before = None if source is None else source.copy()
    call = peer.prepare(operation, source, result, redop, root)
    for _ in range(1 if in_place else 2):
        if result is not None and not in_place:
            result[:] = 0
        assert call() is None
    if want is not None:
        right = result.tobytes() == want.tobytes()  # of long arrays, pytest would take minutes to show the difference
        assert right, (operation, rank, result, want)
    if before is not None and not in_place:
        assert source.tobytes() == before.tobytes(), "the source was changed"


def refused(peer: LibraryEngine, dtype: str, redop: str) -> None:
    """Prepare an all_reduce that the peer must refuse."""
    x: Any = np.ones(3, dtype_from_numpy(dtype))
    peer.prepare(Operation.ALL_REDUCE, x, x, redop, 0)


def shared(source: Array, result: Array, rank: int, count: int) -> tuple[Array, Array]:
    """Return source and result in one memory, the rank's own block in its place."""
    mine = slice(rank * count, (rank + 1) * count)
    if len(source) == len(result):
        return source, source
    if len(source) > len(result):
        return source, source[mine]
    result[mine] = source
    return result[mine], result


def is_refused(peer: LibraryEngine, comm: Any, operation: Operation) -> bool:
    """Whether the peer lacks an operation (torch.distributed has no scans); assert that its error names it."""
    if not operation.is_scan or peer.name == "mpi":
        return False
    with pytest.raises(UsageError, match="scan"):
        run(peer, comm, operation)
    return True


@pytest.mark.parametrize("count", [0, 1, 5, 70_001])
@pytest.mark.parametrize("operation", MOVING + REDUCING, ids=lambda operation: operation.value)
def test_every_operation_on_counts_and_roots(peer, comm, operation, count):
    if is_refused(peer, comm, operation):
        return
    for root in {0, comm.size - 1} if operation.has_root else {0}:
        run(peer, comm, operation, count, root=root)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
@pytest.mark.parametrize("redop", ["sum", "prod", "min", "max", "band", "bor", "bxor"])
def test_mpi_reduces_every_dtype_for_which_the_reduction_is_defined(comm, dtype, redop):
    peer, kind = MpiEngine(comm), np.dtype(dtype).kind
    allowed = {"c": ["sum", "prod"], "f": list(FUNCTIONS)}.get(kind, [*FUNCTIONS, *BITWISE])
    if redop in allowed:
        run(peer, comm, Operation.ALL_REDUCE, dtype=dtype, redop=redop)
        run(peer, comm, Operation.REDUCE_SCATTER, dtype=dtype, redop=redop)
    else:
        with pytest.raises(ReductionError, match=rf"{redop}.*{dtype}"):
            refused(peer, dtype, redop)


@pytest.mark.parametrize("redop", ["min", "max", "band", "bor", "bxor"])
def test_truth_values_reduce_logically(peer, comm, redop):
    run(peer, comm, Operation.ALL_REDUCE, dtype="bool", redop=redop)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_reduced_where_the_mpi_library_has_it_and_refused_where_not(comm, dtype):
    mpi, name = job.load_mpi(), {"float16": "FLOAT16_T", "bfloat16": "BFLOAT16_T"}[dtype]
    if getattr(mpi, name) != mpi.DATATYPE_NULL:
        run(MpiEngine(comm), comm, Operation.ALL_REDUCE, dtype=dtype)
        return
    with pytest.raises(UsageError, match=f"engine mpi.*{dtype}.*{job.get_mpi_library()}"):
        refused(MpiEngine(comm), dtype, "sum")


@pytest.mark.parametrize("dtype", ["bool", "float16", "bfloat16", *INTEGERS, *FLOATS])
@pytest.mark.parametrize("operation", MOVING, ids=lambda operation: operation.value)
def test_every_dtype_can_be_moved(peer, comm, operation, dtype):
    run(peer, comm, operation, count=3, dtype=dtype, root=comm.size - 1)


IN_PLACE = [o for o in Operation if o not in (Operation.BARRIER, Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL)]


@pytest.mark.parametrize("operation", IN_PLACE, ids=lambda operation: operation.value)
def test_in_place_keeps_the_own_block_in_its_place(peer, comm, operation):
    if is_refused(peer, comm, operation):
        return
    for root in {0, comm.size - 1}:
        run(peer, comm, operation, root=root, in_place=True)


def test_in_place_forms_that_only_one_peer_has(comm):
    run(MpiEngine(comm), comm, Operation.ALL_TO_ALL, in_place=True)
    with pytest.raises(UsageError, match=r"engine mpi.*reduce_scatter in place"):
        run(MpiEngine(comm), comm, Operation.REDUCE_SCATTER, in_place=True)


@needs_torch
def test_in_place_forms_of_gloo(comm, gloo):
    run(gloo, comm, Operation.REDUCE_SCATTER, in_place=True)
    with pytest.raises(UsageError, match=r"engine gloo.*all_to_all in place"):
        run(gloo, comm, Operation.ALL_TO_ALL, in_place=True)


def test_a_block_given_as_the_whole_is_in_place_too(peer, comm):
    whole = np.zeros(comm.size * 4, np.int64)
    whole[comm.rank * 4 : comm.rank * 4 + 4] = brought(comm.rank, 4, np.dtype(np.int64))
    peer.prepare(Operation.ALL_GATHER, whole, whole, "sum", 0)()
    assert whole.tolist() == expected(Operation.ALL_GATHER, None, comm.rank, comm.size, 4, np.dtype("i8"), 0).tolist()


@needs_torch
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("redop", ["sum", "min", "max", "band", "avg"])
def test_gloo_reduces_what_torch_offers(comm, gloo, dtype, redop):
    whole = dtype_from_numpy(dtype).kind in "iu"
    if (redop == "avg" and whole) or (redop == "band" and not whole):
        with pytest.raises(ReductionError, match=redop):
            refused(gloo, dtype, redop)
    elif redop == "avg":
        x: Any = np.full(3, comm.rank * 2, dtype_from_numpy(dtype))
        gloo.prepare(Operation.ALL_REDUCE, x, x, "avg", 0)()
        assert x.astype(float).tolist() == [comm.size - 1] * 3
    else:
        run(gloo, comm, Operation.ALL_REDUCE, dtype=dtype, redop=redop)


@needs_torch
@pytest.mark.parametrize(("dtype", "redop"), [("uint32", "sum"), ("int16", "max"), ("complex64", "prod")])
def test_gloo_refuses_what_torch_does_not_reduce(gloo, dtype, redop):
    with pytest.raises(UsageError, match=f"engine gloo does not offer reduction {redop} of {dtype}"):
        refused(gloo, dtype, redop)


@needs_torch
def test_complex_sums_pass_through_gloo_as_pairs(comm, gloo):
    x = np.full(3, comm.rank + 2j, np.complex64)
    y = np.zeros_like(x)
    gloo.prepare(Operation.ALL_REDUCE, x, y, "sum", 0)()
    assert y.tolist() == [sum(range(comm.size)) + 2j * comm.size] * 3


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_tensors_share_their_memory_with_both_peers(peer, comm, dtype):
    import torch

    x = torch.full((4,), comm.rank + 1, dtype=getattr(torch, dtype))
    out = torch.zeros(4 * comm.size, dtype=x.dtype)
    peer.prepare(Operation.ALL_GATHER, x, out, "sum", 0)()
    assert out.tolist() == [float(rank + 1) for rank in range(comm.size) for _ in range(4)]


def test_a_barrier_waits_for_the_last_rank(peer, comm):
    call = peer.prepare(Operation.BARRIER, None, None, "sum", 0)
    call()
    comm.Barrier()
    began = time.perf_counter()
    if comm.rank == comm.size - 1:
        time.sleep(0.2)
    assert call() is None
    assert time.perf_counter() - began > 0.15


@pytest.mark.needs_ranks(2)
def test_ranks_that_wait_for_an_iteration_leave_their_core_to_the_threads_of_a_library(comm):
    options = TimingOptions(StoppingRule(1, 1, 1.0, 1.0), warmup=0, check=False, seed=0)
    contender = Contender("gloo", None, print, print, works_in_threads=TorchEngine.works_in_threads)
    workload: Any = None
    benchmark = InterleavedBenchmark(comm, workload, [contender], options)
    comm.Barrier()
    if comm.rank == 0:
        time.sleep(0.3)
    began, begin = time.monotonic(), time.process_time()
    benchmark.barrier.wait(contender.works_in_threads)
    spent, waited = time.process_time() - begin, time.monotonic() - began
    if comm.rank:  # rank 0 may come later than after 0.3 s
        assert spent < waited / 2, "the rank was busy while it waited for rank 0"


def test_the_barrier_of_a_library_with_threads_wakes_them_before_a_timed_call(peer, comm):
    task = WorkloadSpec(Operation.ALL_REDUCE, 8, get_dtype("float32"), "sum", 0, True, comm.rank, comm.size)
    workload, calls = Workload(task, NUMPY), []
    contender = prepare_peer(peer, workload)
    assert (contender.wake_threads is not None) == (peer.name == "gloo")
    contender.call, contender.wake_threads = lambda: calls.append("call"), lambda: calls.append("barrier")
    options = TimingOptions(StoppingRule(1, 1, 1.0, 1.0), warmup=0, check=False, seed=0)
    InterleavedBenchmark(comm, workload, [contender], options).time_iteration(contender)
    assert calls == ["barrier", "call"]
    assert contender.start is StartMethod.BARRIER
