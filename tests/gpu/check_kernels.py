"""Check every fused kernel on a GPU in one process, without MPI, and then measure the kernels' rate.

The results are compared with NumPy's bit for bit, for every element type and reduction, aligned and not, with
infinities, NaN, signed zeros and subnormal numbers among the inputs. Then the rates of the fused kernel of a two-shot
all-reduce and of a plain copy are printed. With --dry, the same kernels run on the host, compiled by g++, without a
rate.

    python tests/gpu/check_kernels.py
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folder that has the packages hpccoll and tests

import numpy as np

from hpccoll.arrays import DTYPES, FUNCTIONS, DType
from hpccoll.arrays.reductions import _KINDS
from hpccoll.lowering import Copy, LocalInstruction, MemoryKind, MemoryRange, Reduce
from hpccoll.measure.data import make_input
from hpccoll.runtime.cuda.executable import bind_launch
from hpccoll.runtime.cuda.fuse import address_range, plan_launches
from hpccoll.units import GB, MiB
from tests.mpi.cases import bits, sprinkled
from tests.unit.runtime.cuda import host_kernels

OPERATIONS = ("sum", "prod", "min", "max", "bxor")
SHAPES = ((1, 0), (1023, 1), (200_003, 0))  # elements, and elements before the first one in memory
DRY_DTYPES, DRY_SHAPES = ("float32", "bfloat16", "complex64", "bool"), ((333, 1),)
SIZES, TIMES = (16 * MiB, 256 * MiB, 1024 * MiB), 20


class HostDevice(host_kernels.HostKernels):
    """Replaces a GPU by the host: memory is in NumPy arrays, and a launched kernel runs immediately."""

    processors = 1
    empty = staticmethod(lambda nbytes: np.zeros(nbytes, np.uint8))
    address = staticmethod(lambda array: array.ctypes.data)
    write, read = staticmethod(np.copyto), staticmethod(np.copy)

    def launch_kernel(self, function: Any, grid: tuple[int, int], parameters: int, stream: int) -> None:  # noqa: ARG002
        """Run a kernel immediately; `parameters` is the address of its parameters, and `stream` is ignored."""
        host_kernels.run(function, grid[1], parameters)


def open_gpu() -> Any:
    """Return the driver of the current GPU, with functions for its memory."""
    import cupy

    from hpccoll.runtime.cuda.ipc import CudaRuntime

    class Gpu(CudaRuntime):
        """The current GPU and its memory."""

        empty = staticmethod(lambda nbytes: cupy.zeros(nbytes, np.uint8))
        address = staticmethod(lambda array: array.data.ptr)
        write = staticmethod(lambda array, values: array.set(values))
        read = staticmethod(lambda array: array.get())

    return Gpu()


def bind_launches(
    device: Any, instructions: list[LocalInstruction], locate: Callable[..., range], function: str, dtype: DType
) -> Any:
    """Return functions that launch the kernels of `instructions`, given a stream (0: the default stream).

    Args:
        device: the GPU, or a `HostDevice`.
        instructions: the copies and reductions to run.
        locate: returns the addresses of a memory range of the instructions, as a range of bytes.
        function: NumPy's name of the function of a reduction, such as `add`.
        dtype: the type of the elements.
    """
    phases = plan_launches(instructions, locate, range(0), function, dtype)
    return [bind_launch(launch, device) for phase in phases for launch in phase]


def count_wrong(device: Any, dtype: DType, operation: str, count: int, offset: int) -> int:
    """Reduce two arrays into a third, copy it into a fourth, and return the number of wrong elements of both.

    The arrays have `count` elements and begin `offset` elements after an aligned address.
    """
    inputs = [sprinkled(make_input(dtype, 3, rank, count, operation), 9 * rank) for rank in range(2)]
    arrays = [device.empty((count + 1) * dtype.itemsize) for _ in range(4)]
    cut = slice(offset * dtype.itemsize, (offset + count) * dtype.itemsize)
    for array, values in zip(arrays, inputs, strict=False):
        device.write(array[cut], values.view(np.uint8))
    with np.errstate(all="ignore"):
        right = getattr(np, FUNCTIONS[operation])(*inputs)
    places = [MemoryRange(MemoryKind.SOURCE, 0, count, owner) for owner in range(4)]

    def locate(place: MemoryRange) -> range:
        """Return the addresses of the bytes of a memory range: here, of the whole array of its owner."""
        return address_range(device.address(arrays[place.owner]) + cut.start, count * dtype.itemsize)

    steps: list[LocalInstruction] = [Reduce(*places[:3]), Copy(places[2], places[3])]
    for call in bind_launches(device, steps, locate, FUNCTIONS[operation], dtype):
        call(0)
    wrong = 0
    for array in arrays[2:]:
        found = device.read(array)[cut].view(dtype.numpy)
        if bits(found) != bits(right):
            differ = [at for at in range(count) if bits(found[at : at + 1]) != bits(right[at : at + 1])]
            wrong, at = wrong + len(differ), differ[0]
            print(f"WRONG {dtype.name} {operation}, {count} elements at {offset}: {len(differ)} elements differ, the")
            print(f"  first is element {at}: {inputs[0][at]}, {inputs[1][at]} give {found[at]} and not {right[at]}")
    return wrong


def locate_by_owner(addresses: list[range], place: MemoryRange) -> range:
    """Return the addresses of the bytes of the array of a memory range's owner; `addresses` has those of each owner."""
    return addresses[place.owner]


def print_rates(device: Any) -> None:
    """Print the rates of a copy and of rank 0's kernel in a two-shot all-reduce of two ranks, for each of SIZES."""
    import cupy

    events = [cupy.cuda.Event() for _ in range(2)]

    def measure(call: Callable[[], object], moved: int) -> float:
        """Return the median rate of a call that moves `moved` bytes, in GB/s."""
        seconds = []
        for _ in range(TIMES):
            events[0].record()
            call()
            events[1].record()
            events[1].synchronize()
            seconds.append(cupy.cuda.get_elapsed_time(*events) * 1e-3)
        return moved / float(np.median(seconds)) / GB

    for size in SIZES:
        a, b = (device.empty(size) for _ in range(2))
        places = [MemoryRange(MemoryKind.SOURCE, 0, size // 4, owner) for owner in range(2)]
        steps: list[LocalInstruction] = [Reduce(places[0], places[1], places[0]), Copy(*places)]
        addresses = [address_range(device.address(array), size) for array in (a, b)]
        (call,) = bind_launches(device, steps, partial(locate_by_owner, addresses), "add", DTYPES["float32"])
        copy, fused = measure(partial(cupy.copyto, b, a), 2 * size), measure(partial(call, 0), 4 * size)
        print(f"{size // MiB} MiB: copy {copy:.0f} GB/s, fused two-shot kernel {fused:.0f} GB/s", flush=True)


def main() -> int:
    """Check all kernels, then measure; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="run a few kernels on the host, without a GPU")
    dry = parser.parse_args().dry
    with tempfile.TemporaryDirectory() as folder:
        device = HostDevice(Path(folder)) if dry else open_gpu()
        cases = [
            (DTYPES[name], operation, count, offset)
            for name in (DRY_DTYPES if dry else DTYPES)
            for operation in OPERATIONS
            if DTYPES[name].kind in _KINDS[operation]
            for count, offset in (DRY_SHAPES if dry else SHAPES)
        ]
        wrong = sum(count_wrong(device, *case) for case in cases)
    print(f"{len(cases)} cases, {wrong} wrong elements", flush=True)
    if not wrong and not dry:
        print_rates(device)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
