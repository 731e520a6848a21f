"""Collectives in CUDA memory, bound to buffers: they queue fused kernels and fences on the current stream.

A collective starts with a barrier of the hosts, in which the ranks exchange the locations of their buffers. After the
barrier, each rank queues kernels and fences without waiting for its device. Every buffer that other ranks access must
be symmetric (made by `cupy_empty` or `torch_empty`). Every call looks up the current stream of CuPy or torch.

Cost: at most one kernel launch for each chain of reduces between two fences (see `fuse`). Each fence costs an event
record, a barrier of the node's ranks, and a stream wait for each other rank.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NoReturn

import numpy as np

from hpccoll.arrays import FUNCTIONS, BoundCall, FlatArray, Scratch
from hpccoll.errors import UsageError
from hpccoll.runtime.address_space import AddressSpace
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.cuda.device import SharedDeviceMemory
from hpccoll.runtime.cuda.fuse import KernelLaunch, address_range, plan_launches
from hpccoll.runtime.cuda.ipc import CudaRuntime
from hpccoll.runtime.cuda.kernels import THREADS, KernelSpec, round_up_rows
from hpccoll.runtime.node_memory.node import compute_fingerprint
from hpccoll.runtime.node_memory.node_barrier import DIRECT
from hpccoll.runtime.plan_executable import PlanContext, PlanExecutable
from hpccoll.runtime.shared_memory.access import add_peer_buffers, can_access_in_place, local_instructions

BLOCKS_PER_PROCESSOR = 2048 // THREADS  # as many threads as a multiprocessor holds at once


class DeviceExecutable(PlanExecutable):
    """A collective bound to symmetric device memory of one node; see `Executable` and `PlanExecutable`."""

    __slots__ = ("_entry", "_facts", "_in_place_everywhere", "_kept_scratch", "_location", "_locations", "_queued")

    def __init__(self, context: PlanContext, call: CollectiveCall, scratch: Scratch | None = None) -> None:
        super().__init__(context, call, scratch)
        symmetric, call = context.node.symmetric, self._call
        self._facts = self._call_without_arrays.compared_arguments
        self._entry = compute_fingerprint(self._facts)
        self._location = symmetric.locate(call.source), symmetric.locate(call.result)
        self._in_place_everywhere = can_access_in_place(context, call)
        self._locations: tuple[int, ...] | None = None
        self._queued: list[Callable[[int], object]] = []
        self._kept_scratch: FlatArray = None

    @property
    def calls(self) -> tuple[BoundCall, ...]:
        """The calls that can be timed one by one: only the whole executable, because its kernels run asynchronously."""
        return (self,)

    def run(self) -> None:
        """Wait until all ranks of the node call `run`, then queue the collective on the current stream. Collective.

        The current stream is that of the buffers' module (CuPy or torch). Only the hosts wait for each other; `run` may
        return before the device has completed the collective.

        Raises:
            UsageError: a buffer of some rank is not symmetric, or the executable was freed.
            MismatchError: the ranks called different collectives.
        """
        self._require_live()
        with self._state.record(self._begin):
            device = self._context.node.device
            if device is None or not self._in_place_everywhere:
                self._raise_not_symmetric(self._context.node.barrier.enter(self._entry))
            before = device.cuda.make_current()
            try:
                self._queue(device)
            finally:
                device.cuda.restore_current(before)

    __call__ = run

    def free(self) -> None:
        """Free the executable and drop its prepared launches; a later run raises UsageError."""
        super().free()
        self._queued, self._kept_scratch = [], None

    def _queue(self, device: SharedDeviceMemory) -> None:
        """Wait for the node's ranks, then queue kernels and fences; prepare both again if a buffer has moved."""
        stream, keeper = self._call.module.current_stream()
        device.order_after_previous(stream, keeper)
        for step in self._before:
            step()
        alike = device.fences.enter(stream, self._entry | DIRECT, *self._location)
        if not alike:
            self._raise_not_symmetric(alike)
        locations = self._context.node.barrier.locations()
        if locations != self._locations:
            self._prepare_launches(device, locations)
        for queue in self._queued:
            queue(stream)
        for step in self._after:
            step()

    def _raise_not_symmetric(self, alike: bool | None) -> NoReturn:
        """Raise MismatchError if `alike` is None (the ranks' calls differ), else UsageError."""
        if alike is None:
            self._context.node.raise_mismatch(self._facts)
        raise UsageError(
            f"{self._call.operation.value}: this algorithm loads and stores, and a device buffer of some rank is not "
            "symmetric; make the buffers with cupy_empty or torch_empty(..., device='cuda'), or choose another "
            "algorithm, or auto"
        )

    def _prepare_launches(self, device: SharedDeviceMemory, locations: tuple[int, ...]) -> None:
        """Prepare fences, and kernels that access each rank's input and output at `locations`; launch nothing.

        The plan's first fence is left out, because `_queue` already fences on entry.
        """
        call, program = self._call, self._find_program()
        count = program.work + program.landing
        self._kept_scratch = self._take_scratch(count)  # kept alive here, because kernels contain only addresses
        space = AddressSpace(call, program, self._kept_scratch)
        add_peer_buffers(space, self._context.node, locations)
        phases = plan_launches(
            local_instructions(program),
            lambda place: address_range(space.address(place), place.count * space.itemsize),
            address_range(call.module.get_address(self._kept_scratch), count * space.itemsize),
            FUNCTIONS[call.reduction.name],
            call.dtype,
        )
        queued: list[Callable[[int], object]] = [bind_launch(launch, device.cuda) for launch in phases[0]]
        for at, phase in enumerate(phases[1:]):
            if at:
                queued.append(device.fences.fence)
            queued += [bind_launch(launch, device.cuda) for launch in phase]
        self._queued, self._locations = queued, locations


def bind_launch(launch: KernelLaunch, cuda: CudaRuntime) -> Callable[[int], object]:
    """Compile a launch's kernel, and return a function that queues it on a stream, given the stream's handle."""
    chain, count = launch.chain, len(launch.rows)
    kernel = KernelSpec(chain, launch.width, round_up_rows(chain, count))
    function = cuda.compile_kernel(kernel)
    words = np.zeros((kernel.rows, chain.words), np.uint64)
    words[:count] = launch.rows
    parameters = np.array([words.ctypes.data], np.uint64)  # the address of each parameter; there is one
    wanted = -(-launch.units // (THREADS * kernel.unrolled))
    most = max(cuda.processors * BLOCKS_PER_PROCESSOR // count, 1)
    grid = (min(max(wanted, 1), most), count)
    queue = partial(cuda.launch_kernel, function, grid, int(parameters.ctypes.data))
    queue.__dict__["kept"] = words, parameters  # must stay allocated as long as the kernel may be queued
    return queue
