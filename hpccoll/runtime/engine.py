"""Runs the collectives of one communicator: selects algorithms, and makes the executables that run their plans.

Blocking collectives that only send messages share one MPI tag, since each ends before the next begins. Asynchronous
plans of messages are numbered in the order of their calls, and the tag of a plan is derived from its number modulo
ASYNC_TAGS. All ranks make the same calls in the same order, so they give a call the same tag.

Calls on plain arrays reach the engine only if no earlier call was of the same kind (call_cache.py). Plans on symmetric
device memory are bound to their buffers, and cached by address.

The modules that execute plans are imported when the first plan runs, because imports dominate the start of a job of
many ranks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import numpy as np
from mpi4py import MPI

from hpccoll.arrays import ArrayModule, Scratch
from hpccoll.errors import ReductionError, UsageError
from hpccoll.native import CallTable
from hpccoll.runtime.call_cache import CallCache, Request
from hpccoll.runtime.call_selector import CallSelector
from hpccoll.runtime.collective_call import CollectiveCall, as_unowned
from hpccoll.runtime.executable import Executable
from hpccoll.runtime.job import RankLayout, detect_layout, get_mpi_library, list_world_ranks
from hpccoll.runtime.messages.mpi_collectives import MpiCollectives
from hpccoll.runtime.messages.mpi_functions import get_mpi_functions
from hpccoll.runtime.node_memory.node import NodeMemory
from hpccoll.runtime.node_memory.symmetric import shared_buffers
from hpccoll.runtime.plan_executable import BLOCKING_TAG, PlanContext, PlanExecutable
from hpccoll.runtime.progress import InFlight, get_progress
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.recorder.flight_recorder import get_recorder
from hpccoll.runtime.started_operations import StartedOperations
from hpccoll.runtime.work import MpiTransfer, explain_mpi_error
from hpccoll.selection.link_rates import load_relative_rates
from hpccoll.selection.selector import make_selection_log
from hpccoll.selection.tuning_files import describe_site, load_tuning_table
from hpccoll.selection.tuning_table import TuningTable

if TYPE_CHECKING:
    from hpccoll.runtime.messages.executable import MessageExecutable
    from hpccoll.runtime.messages.native_executable import NativeMessageExecutable

FIRST_ASYNC_TAG: Final = 2
ASYNC_TAGS: Final = 4096
DEVICE_EXECUTABLES: Final = 256


def _load_measurements(layout: RankLayout, *, whole_job: bool) -> tuple[TuningTable | None, tuple[int, ...] | None]:
    """Return the tuning table and the relative rates of the nodes' links, each None if it was not measured.

    Only rank 0 calls this function, and broadcasts the result, because all ranks must use the same table and rates.
    """
    site = describe_site(get_mpi_library(), layout.ranks_per_node, oversubscribed=layout.oversubscribed)
    hosts = [layout.hosts[members[0]] for members in layout.members]
    return load_tuning_table(site, whole_job=whole_job), load_relative_rates(hosts)


class Engine(PlanContext):
    """Selects algorithms for the collectives of one communicator and runs their plans; creation is collective.

    Args:
        takes_device_memory: returns whether MPI accepts device memory.
        mixed_forms: whether some ranks may call a collective blocking while others call it asynchronously.
        name: the name of the communicator in recordings.
    """

    def __init__(
        self, comm: MPI.Intracomm, takes_device_memory: Callable[[], bool], *, mixed_forms: bool = False, name: str = ""
    ) -> None:
        mixed_forms = mixed_forms and comm.size > 1
        progress, state = get_progress(), CallRecorder(get_recorder())
        # The constructor does all set-up in which all ranks take part; later set-up could block operations in flight.
        layout = detect_layout(comm, (state.recorder.path or "").rpartition("/")[2])
        self.hosts, world_ranks = layout.hosts, list_world_ranks(comm)
        progress.cores_per_rank = min(progress.cores_per_rank, layout.cores_per_rank)
        progress.connect(get_mpi_functions())
        node = NodeMemory(comm, layout, progress)
        super().__init__(comm, layout.members, node, progress, state, takes_device_memory)
        self.library = MpiCollectives(comm, progress, state, takes_device_memory, node)
        whole_job = comm.size == MPI.COMM_WORLD.size
        tuning, rates = _load_measurements(layout, whole_job=whole_job) if self.rank == 0 else (None, None)
        tuning, rates, number = comm.bcast((tuning, rates, state.recorder.make_communicator_id()))  # of rank 0
        state.open(number, comm.rank, comm.size, world_ranks, name)
        self.processes = dict(zip(world_ranks or (), layout.processes, strict=False))  # by rank in MPI.COMM_WORLD
        self.selector = CallSelector(self.nodes, node, self.library, tuning, mixed_forms=mixed_forms, rates=rates)
        self.selector.log = make_selection_log(comm.rank, comm.size)
        tables = (CallTable(np.ndarray, progress.operations, shared_buffers(), node.symmetric) for _ in range(2))
        self.cache = CallCache(tables, self.library)
        self._on_device: OrderedDict[Hashable, PlanExecutable] = OrderedDict()
        self.get_owner: Callable[[], object] = lambda: None  # operations in flight keep the communicator alive
        self._mixed_forms = mixed_forms
        if mixed_forms:
            self.library.use_non_blocking()
        self._message_plans = 0  # the number of asynchronous plans of messages so far
        self._with_tag: WeakValueDictionary[int, InFlight] = WeakValueDictionary()  # the latest operation of each tag
        self._started = StartedOperations(progress, state, node.retract)
        state.on_interruption, state.settle = self._started.fail, self._started.settle

    def run(self, call: CollectiveCall, request: Request | None = None) -> None:
        """Run a collective and wait for its end.

        If `request`, from which `call` was made, is given, later calls of the same kind skip the argument checks.
        """
        try:
            self._run(call, request)
        except MPI.Exception as error:
            raise explain_mpi_error(error, call.operation.value) from None  # without MPI's own stack of calls

    def _run(self, call: CollectiveCall, request: Request | None) -> None:
        """Run a collective as `run` does, but let an MPI.Exception propagate."""
        self.selector.buffer_kind(call)  # raises if a symmetric buffer was freed
        call, executable = self._resolve(call), None
        algorithm = call.algorithm
        if algorithm is None:
            self.library.run(call)
        elif self._mixed_forms and not algorithm.uses_shared_memory:
            self._wait_for(self._start_resolved(call))
        elif call.module.on_device and algorithm.uses_shared_memory and call.reduction.factor is None:
            self._find_on_device(call)()
        else:
            executable = self._make_executable(call)
            executable.run()
        self._remember(call, request, None if executable is None else lambda: executable)

    def _remember(
        self, call: CollectiveCall, request: Request | None, get_executable: Callable[[], Any] | None, *,
        asynchronous: bool = False,
    ) -> None:  # fmt: skip
        """Let later calls like `call`, which was made from `request`, skip the argument checks; see `CallCache.add`.

        With a selection log, which lists the size of every message, every call must go through `select_for`.
        """
        if request is not None and self.selector.log is None:
            self.cache.add(call, request, get_executable, asynchronous=asynchronous)

    def _resolve(self, call: CollectiveCall, *, asynchronous: bool = False) -> CollectiveCall:
        """Return `call` with the selected algorithm (None for the MPI library's own collective) and chunk count."""
        selection = self.selector.select_for(call, asynchronous=asynchronous)
        return replace(call, algorithm=selection.algorithm, chunks=selection.chunks)

    def _find_on_device(self, call: CollectiveCall) -> PlanExecutable:
        """Return the executable of a plan in device memory; a new one if none is cached for these buffers."""
        key, cached = _key(call), self._on_device
        executable = cached.get(key)
        if executable is None or not executable.live:
            executable = cached[key] = self._make_executable(as_unowned(call))
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

    def start(self, call: CollectiveCall, request: Request | None = None) -> InFlight | None:
        """Begin a collective without waiting for other ranks, and return the operation in flight.

        A shared-memory plan on device memory waits for the node's ranks, queues its kernels, and returns None.
        `request` is as in `run`.
        """
        call = self._resolve(call, asynchronous=True)
        started, algorithm = self._start_resolved(call), call.algorithm
        is_shared = algorithm is not None and algorithm.uses_shared_memory
        self._remember(call, request, partial(self._make_executable, call) if is_shared else None, asynchronous=True)
        return started

    def _start_resolved(self, call: CollectiveCall) -> InFlight | None:
        """Begin a collective as `start` does, by the algorithm of `call`."""
        algorithm = call.algorithm
        if not self.library.uses_non_blocking:
            self.library.use_non_blocking()
            self.cache.forget()  # its calls of the library have the blocking form
        if algorithm is not None and call.module.on_device and algorithm.uses_shared_memory:
            self._make_executable(call, {})()
            return None
        begin = partial(self.library.start if algorithm is None else self._start_plan, call)
        return self.launch(call.operation.value, call.describe(self.state, asynchronous=True), begin)

    def launch(self, name: str, description: bytes, begin: Callable[[], InFlight]) -> InFlight:
        """Begin an asynchronous collective by `begin`, and return the operation in flight that `begin` returns.

        The flight recorder notes `name` and `description`.
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

    def _start_plan(self, call: CollectiveCall) -> InFlight:
        """Begin a plan of messages, a shared-memory plan or a two-level plan, and return the operation in flight."""
        if call.algorithm is None or not call.algorithm.uses_shared_memory:
            return self._start_messages(call)
        executable: Any = self._make_executable(call)
        operation: InFlight = executable.start()
        return operation

    def _start_messages(self, call: CollectiveCall) -> InFlight:
        """Begin a plan of messages, and return the operation in flight.

        An MPI tag is used again only after the previous operation with this tag is complete on this rank.
        """
        tag = FIRST_ASYNC_TAG + self._message_plans % ASYNC_TAGS
        self._message_plans += 1
        previous = self._with_tag.get(tag)
        if previous is not None:
            self.progress.wait_until(lambda: previous.done)
        executable: Any = self._make_message_executable(call, {}, tag)
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
        call = self._resolve(call)
        executable: Executable
        if call.algorithm is None:
            executable = self.library.bind(call)
        else:
            executable = self._make_executable(call)
            executable.bind()
        self.node.symmetric.free_with(executable, call.source, call.result)
        self.cache.keep(executable)
        return executable

    def uses_pinned_memory(self, module: ArrayModule) -> bool:
        """Whether messages from an array module's memory pass through pinned host memory.

        For device memory, the first call starts processes that test the MPI library, and waits for them.
        """
        return module.on_device and not self.takes_device_memory()

    def list_kept(self) -> list[object]:
        """Return the objects that keep alive the memory of operations that were ended by the death of a rank."""
        return [*self.state.kept, *self._started.failed]

    def free(self) -> None:
        """Free all requests and shared memory; to be called before MPI is finalized."""
        self.cache.clear()
        while self._on_device:
            self._on_device.popitem()[1].free()
        self.native.clear()
        self.library.ops.free()
        self.node.free()
        self.state.close()

    def _make_executable(self, call: CollectiveCall, scratch: Scratch | None = None) -> PlanExecutable:
        """Return an executable of the plan of a call's algorithm; `prepare` also calls its method `bind`.

        Args:
            scratch: the scratch memory of a plan in device memory; None means the scratch memory that blocking calls
                share.

        Raises:
            UnavailableError: the algorithm needs shared memory, but the ranks cannot share memory.
            UsageError: the call has no algorithm; or the ranks are on several nodes, and the algorithm works on one
                node only, or on several nodes only in host memory.
            ReductionError: the algorithm cannot reduce by a Python function in device memory.
        """
        algorithm = call.algorithm
        if algorithm is None:
            raise UsageError(f"{call.operation.value} by the MPI library has no plan")
        if not algorithm.uses_shared_memory:
            return self._make_message_executable(call, scratch)
        if algorithm.is_two_level and len(self.nodes) > 1:
            from hpccoll.runtime.two_level.executable import PipelineExecutable

            return PipelineExecutable(self, call)
        self.node.require(algorithm.full_name)
        if call.module.on_device:
            if call.reduction.combine is not None:
                raise ReductionError(
                    f"{algorithm.full_name} on CUDA memory cannot reduce by a Python function; choose an algorithm of "
                    "messages, or auto"
                )
            from hpccoll.runtime.cuda.executable import DeviceExecutable

            return DeviceExecutable(self, call, scratch)
        from hpccoll.runtime.shared_memory.executable import SharedMemoryExecutable

        return SharedMemoryExecutable(self, call)

    def _make_message_executable(
        self, call: CollectiveCall, scratch: Scratch | None, tag: int = BLOCKING_TAG
    ) -> MessageExecutable | NativeMessageExecutable:
        """Return an executable of a plan of messages, for host memory or device memory."""
        if call.module.on_device:
            from hpccoll.runtime.messages.executable import MessageExecutable

            return MessageExecutable(self, call, scratch, tag)
        from hpccoll.runtime.messages.native_executable import NativeMessageExecutable

        return NativeMessageExecutable(self, call, tag)


def _key(call: CollectiveCall) -> tuple[Hashable, ...]:
    """Return the cache key of a call on device memory: arguments, dtype, count and addresses."""
    return *call.plan_key, call.module.name, *call.addresses
