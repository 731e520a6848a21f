"""The calls of CuPy and torch for device memory, tested with substitutes on the host that enforce their rules."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpccoll import communicator
from hpccoll.arrays import (
    DTYPES,
    Buffer,
    CupyModule,
    NumPyModule,
    Scratch,
    buffer,
    get_array_module,
    get_dtype,
    take_scratch,
)
from hpccoll.arrays.cuda_arrays import TorchCudaModule
from hpccoll.errors import BufferError, ReductionError, UnavailableError
from hpccoll.peers import TorchEngine
from hpccoll.plan import Operation
from hpccoll.runtime import arguments
from hpccoll.runtime.cuda.device import device_empty
from hpccoll.runtime.cuda.ipc import BLOCK, CudaRuntime
from hpccoll.runtime.cuda.kernels import OPTIONS, WIDEST, FusedChain, KernelSpec, generate_source
from tests.unit.runtime.cuda.host_cupy import CUPY

FLOAT = DTYPES["float32"]


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", CUPY)
    CUPY.reset()
    return CUPY


def on_device(number, *values):
    with CUPY.cuda.Device(number):
        return CUPY.asarray(np.array(values, np.float32))


def test_kernels_are_compiled_without_flushing_subnormals(cupy):
    """CuPy's RawKernel would append -ftz=true to the options."""
    kernel, runtime = KernelSpec(FusedChain("add", "float32", 2, ((0, 1),), (2,)), WIDEST, 1), CudaRuntime()
    assert runtime.compile_kernel(kernel) == runtime.compile_kernel(kernel) == "fused"
    assert cupy.calls == [("compile", generate_source(kernel), OPTIONS)]
    assert not any("ftz" in option for option in OPTIONS)


def test_a_full_device_takes_memory_back_from_the_pools(cupy, monkeypatch):
    runtime = CudaRuntime()
    freed: list[str] = []
    cuda = SimpleNamespace(is_initialized=lambda: True, empty_cache=lambda: freed.append("torch"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    cupy.fail = 1
    assert runtime.allocate(10) == 4096
    assert cupy.calls == [("malloc", BLOCK), ("free_all_blocks",), ("malloc", BLOCK)]
    assert freed == ["torch"]
    cupy.fail = 2
    with pytest.raises(RuntimeError, match="out of memory"):
        runtime.allocate(10)


@pytest.mark.parametrize("count", [0, 3])
def test_memory_is_viewed_without_an_owner_whatever_its_size(count):
    """CuPy refuses unowned memory at address zero, where empty arrays are, without the number of a device."""
    x = on_device(1, *range(count))
    view = CupyModule(1).as_unowned(x)
    assert (view.shape, view.device.id) == ((count,), 1)
    x += 1
    assert view.tolist() == x.tolist()


def test_every_call_runs_on_the_device_of_its_arrays(cupy):
    x, y = on_device(1, 1, 2), on_device(1, 3, 4)
    with pytest.raises(ValueError, match="current device"):
        cupy.add(x, y, x)
    module = CupyModule(1)
    out, host = module.empty(2, FLOAT), np.zeros(8, np.uint8)
    assert out.device.id == 1
    module.bind_reduce("add", x, y, out)()
    module.bind_scale(out, out, np.float32(2), (2,))()
    module.bind_divide(out, 4)()
    module.bind_copy(y, out)()
    module.bind_copy_to_host(host, y)()
    module.bind_copy_from_host(x, host)()
    assert x.tolist() == [2, 3]
    assert cupy.current == 0


def test_a_buffer_knows_its_device():
    x = on_device(1, 1, 2, 3)
    for array, writable in ((x, True), (x[::2], False)):
        found = buffer._from_cupy(array, "x", writable)
        assert (found.module.device, found.flat.device.id) == (1, 1)
    assert CupyModule().device == 0


def test_work_goes_on_behind_the_stream_that_it_left(cupy):
    module, other = CupyModule(1), CUPY.streams[0]
    stream = cupy.streams[1]
    assert module.join_stream(None) == stream
    assert module.join_stream(stream) == stream
    assert cupy.calls == []
    assert module.join_stream(other) == stream
    assert cupy.calls == [("record", other.ptr), ("wait", stream.ptr, other.ptr)]
    module.synchronize()
    assert cupy.calls[-1] == ("synchronize", stream.ptr)


def test_ranks_take_the_devices_of_a_node_in_turn(cupy):
    for local_rank in (3, 0, 1):
        module = get_array_module("cuda", local_rank)
        assert cupy.current == module.device == local_rank % 2


def test_a_symmetric_buffer_is_on_the_device_that_is_named(cupy, comm):
    node: Any = SimpleNamespace(comm=comm, symmetric=None, require=lambda _: None)
    node.device = SimpleNamespace(empty=lambda *_: cupy.current)
    assert [device_empty(node, 3, "float32", device) for device in (1, None)] == [1, 0]
    with pytest.raises(UnavailableError, match=r"rank 0: cudaErrorInvalidDevice: device 7"):
        device_empty(node, 3, "float32", 7)


def test_torch_buffers_are_on_the_device_that_is_named(comm, monkeypatch):
    torch = pytest.importorskip("torch")
    named: list[int | None] = []

    def empty(_, shape, dtype, device):
        named.append(device)
        return np.zeros(shape, get_dtype(dtype).numpy)

    monkeypatch.setattr("hpccoll.runtime.cuda.device.device_empty", empty)
    with communicator.Communicator(comm) as hpc:
        for device in ("cuda", "cuda:1", torch.device("cuda:0")):
            assert hpc.torch_empty(3, torch.float64, device=device).dtype is torch.float64
        assert hpc.torch_empty(3).shape == (3,)
    assert named == [None, 1, 0]


class Numbered(NumPyModule):
    """An array module for host memory that counts as device number `device`."""

    def __init__(self, device):
        super().__init__()
        self.device = device


def test_devices_share_no_scratch():
    scratch: Scratch = {}
    first = take_scratch(scratch, Numbered(0), FLOAT, 5)
    assert not np.shares_memory(first, take_scratch(scratch, Numbered(1), FLOAT, 5))
    assert np.shares_memory(first, take_scratch(scratch, Numbered(0), FLOAT, 5))


def test_input_and_output_must_be_on_one_device():
    x, out = (Buffer(np.zeros(3, np.float32), Numbered(device), FLOAT, 0, (3,)) for device in (0, 1))
    with pytest.raises(BufferError, match=r"numpy on device 0.*numpy on device 1.*one device"):
        arguments._require_match(Operation.ALL_REDUCE, out, x, 3)


def test_a_new_output_is_on_the_device_of_the_input(cupy):
    made = []

    class Foreign:
        device = CUPY.cuda.Device(1)

        def __array_function__(self, *_):
            made.append(cupy.current)

    arguments.empty_like(Foreign(), (3,))
    assert made == [1]


def test_torch_refuses_a_reduction_that_it_has_no_kernel_for():
    torch = pytest.importorskip("torch")
    module = TorchCudaModule(torch, torch.device("cuda:1"))
    assert module.device == 1
    for name, dtype in DTYPES.items():
        if name in ("uint16", "uint32", "uint64"):
            with pytest.raises(ReductionError, match=f"no CUDA kernel for add of {name}"):
                module.require_reduction("add", dtype)
        else:
            module.require_reduction("add", dtype)


def test_nccl_gets_the_memory_where_it_is():
    """A tensor on another device would be a copy, whose result the caller never sees."""
    asked: list[str] = []

    def as_tensor(array, device):
        asked.append(device)
        return np.asarray(array)

    engine: Any = TorchEngine.__new__(TorchEngine)
    engine._torch = SimpleNamespace(as_tensor=as_tensor, uint8=np.uint8)
    module: Any = SimpleNamespace(as_bytes=memoryview, device=1)
    engine._tensor(np.zeros(3, np.uint8), module, "uint8")
    assert asked == ["cuda:1"]
