"""A collective by loads and stores of CUDA memory, bound to buffers: fused kernels and fences on the current stream.

Ranks meet on the host when they enter, tell each other where their buffers are, and queue kernels and fences; nobody
waits for a device. Every buffer that others touch must be symmetric (`cupy_empty`). Which stream is current, CuPy's or
torch's, is asked in every call.

Cost: a launch for each chain of joins between two fences (see `fuse`), and for each fence a record, a meeting of the
hosts and a wait for each other rank.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import numpy as np

from hpccoll.errors import UsageError
from hpccoll.plan import Plan
from hpccoll.runtime.arrays import BoundCall
from hpccoll.runtime.cuda.device import SharedDeviceMemory
from hpccoll.runtime.cuda.fuse import AddressRange, KernelLaunch, plan_launches
from hpccoll.runtime.cuda.ipc import CudaRuntime
from hpccoll.runtime.cuda.kernels import THREADS, KernelSpec, round_up_rows
from hpccoll.runtime.lowering import OWN, MemoryKind, MemoryRange, Program
from hpccoll.runtime.shared_memory.executable import NodeExecutable, fingerprint, is_direct, where
from hpccoll.runtime.shared_memory.node import Node
from hpccoll.runtime.shared_memory.node_barrier import DIRECT, DisagreementError
from hpccoll.runtime.shared_memory.symmetric import is_token, parsed
from hpccoll.runtime.shared_memory.task import Task, local

BLOCKS_A_PROCESSOR = 2048 // THREADS  # as many threads as are resident at once


class DeviceExecutable:
    """A collective bound to symmetric device memory: call it as often as you like.

    Args:
        node: the ranks of the node, which are all ranks.
        task: the collective.
        disagree: is called where ranks came with different arguments; raises.
    """

    __slots__ = (
        "__weakref__",
        "_direct",
        "_disagree",
        "_entry",
        "_node",
        "_own",
        "_places",
        "_spare",
        "_steps",
        "_task",
        "live",
    )

    def __init__(self, node: Node, task: Task, disagree: Callable[[], NoReturn]) -> None:
        self._node, self._task, self._disagree = node, task, disagree
        self._entry, self._own = fingerprint(task.facts), where(node, task)
        self._direct, self.live = _is_symmetric(task, self._own), True
        self._places: tuple[int, ...] | None = None
        self._steps: list[Callable[[int], object]] = []
        self._spare: Any = None

    @property
    def plan(self) -> Plan:
        """The plan that is carried out."""
        return self._task.plan

    @property
    def steps(self) -> tuple[BoundCall, ...]:
        """What a call does: the host only queues, and all of it at once."""
        return (self,)

    def __call__(self) -> None:
        """Queue it once, on the stream that is current for the buffers' module."""
        if not self.live:
            raise UsageError("this prepared operation was freed, or its communicator closed; prepare it again")
        device = self._node.gpu
        if device is None or not self._direct:
            self._refuse()
        before = device.cuda.make_current()
        try:
            self._queue(device)
        except DisagreementError:
            self._disagree()
        finally:
            device.cuda.restore_current(before)

    def free(self) -> None:
        """Let go of all memory; the executable cannot run after."""
        self.live, self._steps, self._spare = False, [], None

    def _queue(self, device: SharedDeviceMemory) -> None:
        stream, keeper = self._task.module.current_stream()
        device.order_after_previous(stream, keeper)
        for step in self._task.before:
            step()
        if not device.fences.enter(stream, self._entry | DIRECT, *self._own):
            self._refuse(entered=True)
        places = self._node.gate.places()
        if places != self._places:
            self._bind(device, places)
        for queue in self._steps:
            queue(stream)
        for step in self._task.after:
            step()

    def _refuse(self, *, entered: bool = False) -> NoReturn:
        """Say on every rank that some rank's buffers cannot be reached."""
        try:
            if not entered:
                self._node.gate.enter(self._entry)
        except DisagreementError:
            self._disagree()
        raise UsageError(
            f"{self.plan.operation.value}: this algorithm loads and stores, and a device buffer of some rank is not "
            "symmetric; make the buffers with cupy_empty or torch_empty(..., device='cuda'), or choose another "
            "algorithm, or auto"
        )

    def _bind(self, device: SharedDeviceMemory, places: tuple[int, ...]) -> None:
        task = self._task
        program = task.lowered(None)
        there = dict(zip(self._node.others, zip(places[::2], places[1::2], strict=True), strict=True))
        self._spare = task.scratch(program.work + program.landing)  # kept: kernels know only addresses
        find, scratch = _extents(self._node, task, program, there, task.module.get_address(self._spare))
        phases = plan_launches(local(program), find, scratch, task.function, task.dtype)
        steps: list[Callable[[int], object]] = [bound(each, device.cuda) for each in phases[0]]
        for at, phase in enumerate(phases[1:]):
            if at:  # the first meeting is behind us: it told where the others' buffers are
                steps.append(device.fences.fence)
            steps += [bound(each, device.cuda) for each in phase]
        self._steps, self._places = steps, places


def bound_in(node: Node, task: Task, disagree: Callable[[], NoReturn]) -> NodeExecutable | DeviceExecutable:
    """Bind a collective by loads and stores to its buffers, in whichever memory they are; see the two classes."""
    if task.module.on_device:
        return DeviceExecutable(node, task, disagree)
    return NodeExecutable(node, task, is_direct(node, task), disagree)


def bound(launch: KernelLaunch, cuda: CudaRuntime) -> Callable[[int], object]:
    """Compile a launch and return what queues it on a stream."""
    chain, count = launch.chain, len(launch.rows)
    kernel = KernelSpec(chain, launch.width, round_up_rows(chain, count))
    function = cuda.compile_kernel(kernel)
    words = np.zeros((kernel.rows, chain.words), np.uint64)
    words[:count] = launch.rows
    parameters = np.array([words.ctypes.data], np.uint64)  # where each parameter lies; there is one
    wanted = -(-launch.units // (THREADS * kernel.unrolled))
    most = max(cuda.processors * BLOCKS_A_PROCESSOR // count, 1)
    grid = (min(max(wanted, 1), most), count)
    return _Queued(cuda, function, grid, words, parameters)


class _Queued:
    """A kernel with its parameters, which must stay where they are until it was queued for the last time."""

    __slots__ = ("_call", "_words")

    def __init__(self, cuda: CudaRuntime, function: Any, grid: tuple[int, int], words: Any, parameters: Any) -> None:
        self._words = words, parameters
        self._call = partial(cuda.launch_kernel, function, grid, int(parameters.ctypes.data))

    def __call__(self, stream: int) -> None:
        self._call(stream)


def _is_symmetric(task: Task, own: tuple[int, int]) -> bool:
    """Whether the others can touch what they need of this rank's buffers."""
    program = task.lowered(None)
    places = [place for step in local(program) for place in step.ranges]
    if any(place.memory is MemoryKind.ARENA for place in places):  # there is none on the device
        return False
    for memory, buffer in ((MemoryKind.SOURCE, task.source), (MemoryKind.RESULT, task.result)):
        if memory in program.accessed and buffer is not None and buffer.nbytes and not is_token(own[memory]):
            return False
    return True


def _extents(
    node: Node, task: Task, program: Program, there: dict[int, tuple[int, int]], spare: int
) -> tuple[Callable[[MemoryRange], AddressRange], AddressRange]:
    """Return where the places of a program are, and where its scratch is, which begins at `spare`."""
    itemsize = task.dtype.itemsize
    begins = {
        (MemoryKind.SOURCE, OWN): task.source.address if task.source else 0,
        (MemoryKind.RESULT, OWN): task.result.address if task.result else 0,
        (MemoryKind.WORK, OWN): spare,
        (MemoryKind.LANDING, OWN): spare + program.work * itemsize,
    }
    for owner, tokens in there.items():
        for memory in (MemoryKind.SOURCE, MemoryKind.RESULT):
            if is_token(tokens[memory]):
                number, offset = parsed(tokens[memory])
                begins[memory, owner] = node.symmetric.numbered(number).pieces[owner].address + offset

    def find(place: MemoryRange) -> AddressRange:
        return AddressRange(begins[place.memory, place.owner] + place.start * itemsize, place.count * itemsize)

    return find, AddressRange(spare, (program.work + program.landing) * itemsize)
