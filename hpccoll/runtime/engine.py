"""Runs the collectives of one communicator: selects algorithms, and makes what runs their plans.

Blocking collectives that only send messages share one MPI tag, since each ends before the next begins. An asynchronous
collective of messages gets its tag from the number of asynchronous collectives of messages so far, modulo ASYNC_TAGS.
All ranks make the same calls in the same order, so they count the same number.

Calls on plain arrays reach the engine only if no earlier call was of the same kind (call_cache.py). Plans on symmetric
device memory are bound to their buffers, and cached by address.

The modules that execute plans are imported when the first plan runs, because imports dominate the start of a job of
many ranks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import numpy as np
from mpi4py import MPI

from hpccoll.algorithms import Algorithm
from hpccoll.errors import ReductionError, UsageError
from hpccoll.native import CallTable
from hpccoll.plan import Count
from hpccoll.runtime.arrays import ArrayModule, ScratchPool
from hpccoll.runtime.call_cache import CallCache, Request
from hpccoll.runtime.call_selector import CallSelector
from hpccoll.runtime.collective_call import CollectiveCall, as_unowned, describe_call
from hpccoll.runtime.executable import Executable
from hpccoll.runtime.job import RankLayout, detect_layout, get_mpi_library, list_world_ranks
from hpccoll.runtime.messages.mpi_collectives import MpiCollectives
from hpccoll.runtime.messages.mpi_functions import get_mpi_functions
from hpccoll.runtime.node_memory.node import NodeMemory
from hpccoll.runtime.node_memory.symmetric import shared_buffers
from hpccoll.runtime.plan_executable import BLOCKING_TAG, Context, PlanExecutable
from hpccoll.runtime.progress import InFlight, get_progress
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.recorder.flight_recorder import get_recorder
from hpccoll.runtime.started_operations import StartedOperations
from hpccoll.runtime.work import MpiTransfer, explain_mpi_error
from hpccoll.selection import Selection, Selector
from hpccoll.selection.link_rates import load_relative_rates
from hpccoll.selection.selector import make_selection_log
from hpccoll.selection.tuning_files import describe_site, load_tuning_table
from hpccoll.selection.tuning_table import TuningTable

if TYPE_CHECKING:
    from hpccoll.runtime.lowering import Program
    from hpccoll.runtime.messages.executable import MessageExecutable
    from hpccoll.runtime.messages.native_executable import NativeMessageExecutable

FIRST_ASYNC_TAG: Final = 2
ASYNC_TAGS: Final = 4096
PROGRAMS: Final = 256
DEVICE_EXECUTABLES: Final = 256


def _load_measurements(layout: RankLayout, *, whole_job: bool) -> tuple[TuningTable | None, tuple[int, ...] | None]:
    """Return the tuning table and the relative rates of the nodes' links, each None if it was not measured.

    Rank 0 alone calls this function, because all ranks must use the same table and rates.
    """
    site = describe_site(get_mpi_library(), layout.ranks_per_node, oversubscribed=layout.oversubscribed)
    hosts = [layout.hosts[members[0]] for members in layout.members]
    return load_tuning_table(site, whole_job=whole_job), load_relative_rates(hosts)


class Engine:
    """The runtime of one communicator; creation is collective.

    Args:
        takes_device_memory: returns whether MPI accepts device memory.
        mixed_forms: whether some ranks may call a collective blocking while others call it asynchronously.
        name: the name of the communicator in recordings.
    """

    def __init__(
        self, comm: MPI.Intracomm, takes_device_memory: Callable[[], bool], *, mixed_forms: bool = False, name: str = ""
    ) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        mixed_forms = mixed_forms and comm.size > 1
        self.progress, self.state = get_progress(), CallRecorder(get_recorder())
        # All collective set-up is in the constructor, because later set-up could block operations in flight.
        layout = detect_layout(comm, (self.state.recorder.path or "").rpartition("/")[2])
        self.hosts = layout.hosts
        self.nodes, world_ranks = layout.members, list_world_ranks(comm)
        self.progress.cores_per_rank = min(self.progress.cores_per_rank, layout.cores_per_rank)
        self.progress.connect(get_mpi_functions())
        self.node = NodeMemory(comm, layout, self.progress)
        self.library = MpiCollectives(comm, self.progress, self.state, takes_device_memory, self.node)
        lower_cached = lru_cache(PROGRAMS)(self._lower)
        self._context = Context(
            comm, self.node, self.progress, self.state, ScratchPool(), lower_cached, takes_device_memory
        )
        whole_job = comm.size == MPI.COMM_WORLD.size
        tuning, rates = _load_measurements(layout, whole_job=whole_job) if self.rank == 0 else (None, None)
        tuning, rates, number = comm.bcast((tuning, rates, self.state.recorder.make_communicator_id()))  # of rank 0
        self.state.open(number, comm.rank, comm.size, world_ranks, name)
        self.processes = dict(zip(world_ranks or (), layout.processes, strict=False))  # by rank in MPI.COMM_WORLD
        selector = Selector(comm.size, layout.nodes, tuning, mixed_forms=mixed_forms, rates=rates)
        self.call_selector = CallSelector(self.size, self.nodes, self.node, self.library, selector, mixed_forms)
        self.call_selector.log = make_selection_log(comm.rank, comm.size)
        self.select, self.buffer_kind = self.call_selector.select, self.call_selector.buffer_kind
        shared = shared_buffers(), self.node.symmetric
        tables = (CallTable(np.ndarray, self.progress.operations, *shared) for _ in range(2))
        self.cache = CallCache(tables, self.library, self.size, self.rank, self.select, self._make_cacheable)
        self._on_device: OrderedDict[Hashable, PlanExecutable] = OrderedDict()
        self.get_owner: Callable[[], object] = lambda: None  # operations in flight keep the communicator alive
        self._mixed_forms = mixed_forms
        if mixed_forms:
            self.library.use_non_blocking()
        self._message_plans = 0  # the number of asynchronous plans of messages so far
        self._with_tag: WeakValueDictionary[int, InFlight] = WeakValueDictionary()  # the latest operation of each tag
        self._started = StartedOperations(self.progress, self.state, self.node.retract)
        self.state.on_interruption, self.state.settle = self._started.fail, self._started.settle

    def run(self, call: CollectiveCall) -> None:
        """Run a collective and wait for its end."""
        try:
            self._run(call)
        except MPI.Exception as error:
            raise explain_mpi_error(error, call.operation.value) from None  # without MPI's own stack of calls

    def _run(self, call: CollectiveCall) -> None:
        """Run a collective as `run` does, but let an MPI.Exception propagate."""
        self.buffer_kind(call)  # raises if a symmetric buffer was freed
        selection = self.select(call)
        algorithm = selection.algorithm
        if algorithm is None:
            self.library.run(call)
        elif self._mixed_forms and not algorithm.uses_shared_memory:
            self._wait_for(self.start(call))
        elif call.module.on_device and algorithm.uses_shared_memory and call.reduction.factor is None:
            self._find_on_device(call, selection)()
        else:
            self._make_executable(call, selection).run()

    def _find_on_device(self, call: CollectiveCall, selection: Selection) -> PlanExecutable:
        """Return the executable of a plan in device memory; a new one if none is cached for these buffers."""
        key, cached = _key(call), self._on_device
        executable = cached.get(key)
        if executable is None or not executable.live:
            executable = cached[key] = self._make_executable(as_unowned(call), selection)
            self.node.symmetric.free_with(executable, call.source, call.result)
            while len(cached) > DEVICE_EXECUTABLES:
                cached.popitem(last=False)[1].free()
        cached.move_to_end(key)
        return executable

    def _wait_for(self, operation: InFlight | None) -> None:
        """Block until an operation in flight is done; raise its error, if any."""
        if operation is not None:
            try:
                with operation.awaited or nullcontext():
                    self.progress.wait_until(operation.advance)
            except BaseException as error:
                if operation.awaited is not None:
                    self.state.take_exception(operation.awaited.name, error)
                raise
            operation.raise_error()

    def start(self, call: CollectiveCall) -> InFlight | None:
        """Begin a collective without waiting for other ranks, and return the operation in flight.

        A shared-memory plan on device memory waits for the node's ranks, queues its kernels, and returns None.
        """
        selection = self.select(call, asynchronous=True)
        algorithm = selection.algorithm
        if not self.library.uses_non_blocking:
            self.library.use_non_blocking()
            self.cache.forget()  # its calls of the library have the blocking form
        if algorithm is not None and call.module.on_device and algorithm.uses_shared_memory:
            self._make_executable(call, selection, ScratchPool())()
            return None
        description = describe_call(self.state, call, algorithm, asynchronous=True)
        begin = partial(self.library.start, call) if algorithm is None else partial(self._start_plan, call, selection)
        return self.launch(call.operation.value, description, begin)

    def launch(self, name: str, description: bytes, begin: Callable[[], InFlight]) -> InFlight:
        """Begin an asynchronous collective by calling `begin`, which returns the operation in flight; return it, too.

        `name` and `description` are what the flight recorder notes.
        """
        record = self.state.start(name, description)
        try:
            operation = begin()
        except BaseException as error:
            record.end(failed=True)
            self.state.take_exception(record.name, error)
            raise
        is_transfer = type(operation) is MpiTransfer  # isinstance takes longer for a class with abstract methods
        if is_transfer:
            self.progress.add_transfer(operation)
        operation.awaited, operation.owner = record, self.get_owner()  # keeps the communicator alive until its end
        operation.mark_started()
        self._started.add(operation)
        if self.state.interruption is not None:  # a notice has arrived since the call began
            self._started.fail(partial(self.state.interruption.make_error, self.rank))
        if not is_transfer:
            self.progress.add(operation)
            self.progress.advance()
        return operation

    def _start_plan(self, call: CollectiveCall, selection: Selection) -> InFlight:
        """Begin a plan: of messages, of loads and stores on one node, or a two-level plan as a pipeline of segments."""
        algorithm = selection.algorithm
        if algorithm is None or not algorithm.uses_shared_memory:
            return self._start_messages(call, selection)
        executable: Any = self._make_executable(call, selection)
        operation: InFlight = executable.start()
        return operation

    def _start_messages(self, call: CollectiveCall, selection: Selection) -> InFlight:
        """Begin a plan of messages; its tag is used again only after its last operation is complete on this rank."""
        tag = FIRST_ASYNC_TAG + self._message_plans % ASYNC_TAGS
        self._message_plans += 1
        previous = self._with_tag.get(tag)
        if previous is not None:
            self.progress.wait_until(lambda: previous.done)
        executable: Any = self._make_message_executable(call, selection, ScratchPool(), tag)
        operation: InFlight = executable.start()
        self._with_tag[tag] = operation
        return operation

    def finish(self) -> None:
        """Block until all asynchronous collectives of this communicator are done."""
        for operation in self._started.list_live():
            self.progress.wait_until(operation.advance)
        self.progress.advance()  # forgets the completed operations

    def prepare(self, call: CollectiveCall) -> Executable:
        """Return an executable that can run many times until it or the engine is freed; run nothing. Collective."""
        selection = self.select(call, prepared=True)
        executable: Executable
        if selection.algorithm is None:
            executable = self.library.bind(call)
        else:
            executable = self._make_executable(call, selection)
            executable.bind()
        self.node.symmetric.free_with(executable, call.source, call.result)
        self.cache.keep(executable)
        return executable

    def uses_pinned_memory(self, module: ArrayModule) -> bool:
        """Whether messages from an array module's memory pass through pinned host memory.

        For device memory, the first call starts probe processes and waits for them.
        """
        return module.on_device and not self._context.takes_device_memory()

    def list_kept(self) -> list[object]:
        """Return what refers to the memory of operations that a death has ended."""
        return [*self.state.kept, *self._started.list_failed()]

    def free(self) -> None:
        """Free all requests and shared memory; to be called before MPI is finalized."""
        self.cache.clear()
        while self._on_device:
            self._on_device.popitem()[1].free()
        self._context.native.clear()
        self.library.ops.free()
        self.node.free()
        self.state.close()

    def _make_executable(
        self, call: CollectiveCall, selection: Selection, scratch: ScratchPool | None = None
    ) -> PlanExecutable:
        """Return an executable of the selected plan; one of messages in device memory must still be bound by `bind`.

        Args:
            scratch: the scratch memory of a plan in device memory; None for that of blocking calls.

        Raises:
            UnavailableError: the algorithm needs shared memory, but the ranks cannot share memory.
            UsageError: the algorithm works on one node only, but the ranks are on several nodes.
        """
        algorithm, context = selection.algorithm, self._context
        if algorithm is None:
            raise UsageError(f"{call.operation.value} by the MPI library has no plan")
        if not algorithm.uses_shared_memory:
            return self._make_message_executable(call, selection, scratch)
        if algorithm.is_two_level and len(self.nodes) > 1:
            from hpccoll.runtime.two_level.executable import PipelineExecutable

            return PipelineExecutable(context, call, selection)
        self.node.require(algorithm.full_name)
        if call.module.on_device:
            if call.reduction.combine is not None:
                raise ReductionError(
                    f"{algorithm.full_name} on CUDA memory cannot reduce by a Python function; choose an algorithm of "
                    "messages, or auto"
                )
            from hpccoll.runtime.cuda.executable import DeviceExecutable

            return DeviceExecutable(context, call, selection, scratch)
        from hpccoll.runtime.shared_memory.executable import SharedMemoryExecutable

        return SharedMemoryExecutable(context, call, selection)

    def _make_message_executable(
        self, call: CollectiveCall, selection: Selection, scratch: ScratchPool | None, tag: int = BLOCKING_TAG
    ) -> MessageExecutable | NativeMessageExecutable:
        """Return an executable of a plan of messages, for host memory or device memory."""
        if call.module.on_device:
            from hpccoll.runtime.messages.executable import MessageExecutable

            return MessageExecutable(self._context, call, selection, scratch, tag)
        from hpccoll.runtime.messages.native_executable import NativeMessageExecutable

        return NativeMessageExecutable(self._context, call, selection, tag)

    def remember(self, call: CollectiveCall, request: Request, *, asynchronous: bool = False) -> None:
        """Let later calls of the same kind as `call`, the checked call of a request, skip the checks.

        With a selection log, which lists the size of every message, every call must go through `select` instead.
        """
        if self.call_selector.log is None:
            self.cache.add(call, request, asynchronous=asynchronous)

    def _make_cacheable(self, call: CollectiveCall, selection: Selection) -> PlanExecutable | None:
        """Return an executable of a selected plan; None if blocking and asynchronous calls run it the same way."""
        if self._mixed_forms and selection.algorithm is not None and not selection.algorithm.uses_shared_memory:
            return None
        return self._make_executable(call, selection)

    def _lower(
        self,
        algorithm: Algorithm,
        chunks: int,
        root: int,
        count: Count,
        itemsize: int,
        in_place: bool,
        on_device: bool,
        staged: bool,
        sizes: tuple[int, ...] | None,
    ) -> Program:
        """Lower an algorithm's plan to this rank's program; `Context` describes the arguments."""
        from hpccoll.runtime.lowering import lower_plan

        return lower_plan(
            algorithm.plan(self.size, root, chunks, self.nodes),
            self.rank,
            count,
            itemsize,
            in_place,
            on_device=on_device,
            staged=staged,
            sizes=None if sizes is None else np.array(sizes, np.int64),
        )


def _key(call: CollectiveCall) -> tuple[Hashable, ...]:
    """Return the cache key of a call on device memory: arguments, dtype, count and addresses."""
    addresses = tuple(buffer.address if buffer else 0 for buffer in (call.source, call.result))
    request = (call.operation, call.algorithm, call.root, call.reduction.key)
    return (*request, call.dtype.name, call.module.name, call.count, *addresses)
