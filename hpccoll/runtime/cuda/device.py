"""Symmetric buffers in CUDA memory, and stream fences: barriers of the work queued on several ranks' CUDA streams.

A stream fence does not make the host wait for the device. In a stream fence, each rank first records a CUDA event on
its current stream, behind all work queued so far. The hosts then pass a barrier (`NodeBarrier`), after which all events
are recorded, and each rank makes its stream wait for the events of the other ranks.

Work queued after a stream fence starts once everything queued before the fence is done on every rank. A stream fence
needs the barrier of the hosts because a stream does not wait at all for an event that was never recorded.

Each rank has two CUDA events, one for even-numbered and one for odd-numbered stream fences. Stream fences are numbered
together with the host barriers (`NodeBarrier`) that collectives in host memory pass. Two events per rank are enough,
because a rank records the event of fence k again only for fence k + 2. Before fence k + 2, a rank has passed the host
barrier of fence k + 1, which every rank enters only after it has called cudaStreamWaitEvent for the events of fence k.
Recording an event again does not affect a wait for this event that was called before. With a single event per rank, a
fast rank could record its event for fence k + 1 before a slow rank waits for fence k. Results would still be right with
a single event per rank, but work of a slow rank would wait for work that a fast rank queued after the fence. Source:
CUDA Runtime API, "Event Management", cudaEventRecord and cudaStreamWaitEvent; "Device Management", IPC.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from mpi4py import MPI

from hpccoll.arrays import FlatArray
from hpccoll.arrays.interface import ExternalMemory
from hpccoll.errors import UnavailableError
from hpccoll.native import NodeBarrier
from hpccoll.runtime.agreement import gather_or_raise, run_or_raise, wait_for_ranks
from hpccoll.runtime.cuda.ipc import SLOTS, CudaRuntime, IpcCloseCounters, defer_free, free_ready
from hpccoll.runtime.node_memory.node import NodeMemory
from hpccoll.runtime.node_memory.segment import map_segment, words
from hpccoll.runtime.node_memory.symmetric import SymmetricBuffers
from hpccoll.runtime.progress import get_progress

_EVENTS: Final = 0  # the number of the event handles in `IpcCloseCounters`; buffers have the numbers from 1
_REMEDY: Final = (
    "CUDA IPC needs Linux (not WSL), cudaMalloc memory, no MIG slices, and ranks of one user that all see all GPUs of "
    "the node: with SLURM --gpus-per-node, not --gpus-per-task. Or pass ordinary device buffers, which go by messages"
)


class StreamFences:
    """Barriers of the work that the ranks of a node have queued on their CUDA streams; the hosts do not wait for it.

    `own` holds this rank's two CUDA events, for even-numbered and odd-numbered fences; `theirs` holds the two events of
    each other rank.
    """

    __slots__ = ("_barrier", "_cuda", "_own", "_theirs")

    def __init__(
        self, cuda: CudaRuntime, barrier: NodeBarrier, own: Sequence[int], theirs: Sequence[Sequence[int]]
    ) -> None:
        self._cuda, self._barrier = cuda, barrier
        self._own, self._theirs = tuple(own), tuple(tuple(events[turn] for events in theirs) for turn in (0, 1))

    def fence(self, stream: int) -> None:
        """Delay later work on `stream` until all work that any rank queued before this fence is done.

        Collective over the node: blocks the host until every rank has called `fence`; does not wait for the devices.
        """
        turn = self._barrier.parity
        self._cuda.record_event(self._own[turn], stream)
        self._barrier.fence()
        self._wait_for_others(turn, stream)

    def enter(self, stream: int, entry: int, source: int, result: int) -> bool | None:
        """Run the fence at the beginning of a collective, with the arguments of `NodeBarrier.enter`.

        Return whether all ranks' buffers can be accessed in place; None if the ranks called different collectives.
        """
        turn = self._barrier.parity
        self._cuda.record_event(self._own[turn], stream)
        direct = self._barrier.enter(entry, source, result)
        self._wait_for_others(turn, stream)
        return direct

    def _wait_for_others(self, turn: int, stream: int) -> None:
        """Make later work on `stream` wait for the other ranks' events of even (`turn` 0) or odd (1) fences."""
        for event in self._theirs[turn]:
            self._cuda.stream_wait_event(event, stream)

    def close(self) -> None:
        """Destroy this process's handles of the other ranks' events."""
        for events in self._theirs:
            _destroy_events(self._cuda, events)
        self._theirs = ((), ())


def _destroy_events(cuda: CudaRuntime, events: Sequence[int]) -> None:
    """Destroy CUDA events, given their handles."""
    for event in events:
        cuda.destroy_event(event)


def _hold(address: int, nbytes: int) -> ExternalMemory:
    """Return an object for device memory of this rank, or of another rank mapped by IPC.

    The caller arranges that the memory is released with the last reference to the object.
    """
    return ExternalMemory("__cuda_array_interface__", address, nbytes)


class SharedDeviceMemory:
    """The CUDA memory that the ranks of one node share for one communicator; `here` lists these ranks.

    The constructor is collective over `comm`, runs when the communicator makes its first device buffer, and selects the
    device that is current at that moment.

    Raises:
        UnavailableError: on every rank, if one rank has no CUDA device or its memory cannot be shared.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        here: Sequence[int],
        barrier: NodeBarrier,
        make_cuda: Callable[[], CudaRuntime] = CudaRuntime,
    ) -> None:
        self._comm, self._others = comm, tuple(rank for rank in here if rank != comm.rank)
        self.cuda = run_or_raise(comm, make_cuda, _cannot_share)
        self.device = self.cuda.get_device_uuid()
        segment = map_segment(comm, here, 8 * SLOTS * len(here), reserve=False)
        lines = words(segment, len(here), SLOTS)
        own, *others = (memoryview(lines[here.index(rank)]) for rank in (comm.rank, *self._others))
        self._close_counters = IpcCloseCounters(own, others)
        self._number = _EVENTS
        self._last: tuple[int, object] | None = None
        self._events: list[int] = []
        handles = gather_or_raise(comm, self._export_events, _cannot_share)
        exported = [handles[rank] for rank in self._others]
        theirs = run_or_raise(
            comm, lambda: [[self.cuda.open_event(handle) for handle in events] for events in exported], _cannot_share
        )
        self._close_counters.add_buffer(_EVENTS)
        self._switch = self.cuda.create_event(shared=False)
        self.fences = StreamFences(self.cuda, barrier, self._events, theirs)

    def empty(self, symmetric: SymmetricBuffers, shape: Any, dtype: Any) -> FlatArray:
        """Return this rank's uninitialised array of a new symmetric device buffer; collective.

        `empty` also frees earlier buffers whose free was deferred and that no rank maps any more. Raises the errors of
        `device_empty`, and UnavailableError on every rank if a rank's current device is not the device of this
        communicator's first device buffer.
        """
        extents, kind = symmetric.agree_on(shape, dtype)
        nbytes = math.prod(extents) * kind.itemsize
        free_ready()
        owner, mappings = self._allocate_shared(nbytes)
        self._number += 1
        self._close_counters.add_buffer(self._number)
        self._close_when_unused(self._number, mappings)
        is_closed = partial(self._close_counters.is_closed_by_all, self._number)
        free = partial(self._release_when_idle, self.cuda.free, owner.address)
        weakref.finalize(owner, defer_free, is_closed, free).atexit = False
        symmetric.register(owner, owner.address, nbytes, dict(zip(self._others, mappings, strict=True)))
        return self.cuda.wrap_memory(owner.address, nbytes, owner).view(kind.numpy).reshape(extents)

    def order_after_previous(self, stream: int, keeper: object) -> None:
        """Make the current `stream` wait for this rank's previous collective, if that was queued on another stream.

        The object `keeper`, which keeps the stream alive, is referenced until the next collective.
        """
        last = self._last
        if last is None or last[0] != stream:
            if last is not None:
                self.cuda.record_event(self._switch, last[0])
                self.cuda.stream_wait_event(self._switch, stream)
            self._last = stream, keeper

    def free(self) -> None:
        """Wait for the device and destroy the fences' events; each buffer is freed after its last array is gone."""
        before = self.cuda.make_current()
        self.cuda.synchronize()
        self.fences.close()
        self._close_counters.count_close(_EVENTS)
        self.cuda.destroy_event(self._switch)
        self.cuda.restore_current(before)
        self._last = None
        # A slow rank may still make its stream wait for this rank's events, so these events are destroyed later.
        is_closed = partial(self._close_counters.is_closed_by_all, _EVENTS)
        defer_free(is_closed, partial(_destroy_events, self.cuda, self._events))

    def _allocate_shared(self, nbytes: int) -> tuple[ExternalMemory, list[ExternalMemory]]:
        """Allocate this rank's memory, map the memory of each other rank, and return both. Collective.

        If an error occurs on a rank, all ranks release the memory and raise UnavailableError.
        """
        own: list[ExternalMemory] = []
        mappings: list[ExternalMemory] = []
        try:
            handles = gather_or_raise(self._comm, lambda: self._allocate(own, nbytes), _cannot_share)
            others = [handles[rank] for rank in self._others]
            run_or_raise(
                self._comm,
                lambda: mappings.extend(_hold(self.cuda.open_memory(handle), nbytes) for handle in others),
                _cannot_share,
            )
        except UnavailableError:
            for mapping in mappings:
                self.cuda.close_memory(mapping.address)
            self._comm.Barrier()
            for allocation in own:
                self.cuda.free(allocation.address)
            raise
        return own[0], mappings

    def _release_when_idle(self, release: Callable[[int], object], address: int) -> None:
        """Block until all work queued on this device is done, since work may access `address`; then call `release`."""
        before = self.cuda.make_current()
        self.cuda.synchronize()
        release(address)
        self.cuda.restore_current(before)

    def _allocate(self, own: list[ExternalMemory], nbytes: int) -> bytes:
        """Allocate memory, append it to `own`, and return its IPC handle."""
        device = self.cuda.get_device_uuid()
        if device != self.device:
            raise UnavailableError(
                f"device {device} is current, but this communicator's first device buffer was made on {self.device}; "
                "make that one current again, or another communicator"
            )
        own.append(_hold(self.cuda.allocate(nbytes), nbytes))
        return bytes(self.cuda.export_memory(own[0].address))

    def _export_events(self) -> tuple[bytes, ...]:
        """Create this rank's two events and return their IPC handles."""
        self._events += [self.cuda.create_event(shared=True) for _ in range(2)]
        return tuple(map(self.cuda.export_event, self._events))

    def _close_when_unused(self, number: int, mappings: Sequence[ExternalMemory]) -> None:
        """Unmap each mapping of a buffer once it is unreferenced; after the last one, count the buffer as closed."""
        left = len(mappings)

        def close(address: int) -> None:
            """Unmap one mapping; after the last one, count the buffer as closed."""
            nonlocal left
            left -= 1
            self._release_when_idle(self.cuda.close_memory, address)
            if not left:
                self._close_counters.count_close(number)

        for mapping in mappings:
            weakref.finalize(mapping, close, mapping.address).atexit = False


def _cannot_share(reason: str) -> UnavailableError:
    """Return the UnavailableError that says why device memory cannot be shared, and what to do."""
    return UnavailableError(f"device memory cannot be shared here ({reason}). {_REMEDY}")


def device_empty(node: NodeMemory, shape: Any, dtype: Any, device: int | None = None) -> FlatArray:
    """Return this rank's uninitialised CuPy array of a new symmetric buffer on device number `device`; collective.

    `device` None means the current device. All device buffers of a rank on one communicator must be on one device;
    several ranks may share a device.

    Raises:
        UsageError: a negative extent, an unknown dtype, or ranks on several nodes.
        MismatchError: ranks asked for different shapes or dtypes.
        UnavailableError: on every rank, if a rank has no CuPy, no device, too little memory, or memory that cannot be
            shared.
    """
    node.require("a symmetric buffer of device memory")
    wait_for_ranks(node.comm, get_progress())
    with ExitStack() as stack:
        run_or_raise(node.comm, partial(_make_current, device, stack), _cannot_share)
        if node.device is None:
            node.device = SharedDeviceMemory(node.comm, node.ranks, node.barrier)
        return node.device.empty(node.symmetric, shape, dtype)


def _make_current(device: int | None, stack: ExitStack) -> None:
    """Make device number `device` current until `stack` is closed; None keeps the current device."""
    if device is not None:
        import cupy

        stack.enter_context(cupy.cuda.Device(device))
