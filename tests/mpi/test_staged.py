"""Messages in device memory, tested on the host with a stream that runs no work before it is synchronised.

`Stream` is an array module whose kernels and copies are only queued. If the runtime forgets a synchronisation, a send
sends the previous contents of its buffer, and a receive that starts too early is overwritten. The tests run with
messages through pinned host memory, and with an MPI that accepts the memory itself.
"""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import hpccoll
from hpccoll.algorithms import get_algorithm, list_algorithms
from hpccoll.arrays import DTYPES, Buffer, NumPyModule, Reduction
from hpccoll.arrays.interface import view_host_memory
from hpccoll.errors import ReductionError, UsageError
from hpccoll.lowering import message_lowering
from hpccoll.measure.data import get_reduction_function, make_input
from hpccoll.peers import library_engine, start_engine
from hpccoll.plan import Operation, replay
from hpccoll.processes.command import CommandResult
from hpccoll.runtime.arguments import check_call
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.cuda import probe
from hpccoll.runtime.engine import Engine
from hpccoll.runtime.messages import executable
from hpccoll.runtime.messages import point_to_point as messaging
from hpccoll.runtime.messages.executable import MessageExecutable, message_calls
from hpccoll.runtime.messages.library_call import LibraryCall
from hpccoll.runtime.queued_run import NativeRun

FLOAT = DTYPES["float32"]
JUNK, SPOILT = np.float32(-777), 0xDD


class Owner:
    """Keeps pinned memory alive; afterwards the memory is overwritten, as if another allocation used it."""


class Stream(NumPyModule):
    """NumPy's memory behind two queues: steps happen when they are synchronised, in order, or not at all.

    Work goes to the queue number `current`. A queued copy keeps no pinned memory alive, as on a device.
    """

    name, on_device = "stream", True

    def __init__(self) -> None:
        super().__init__()
        self.queues: tuple[deque[Any], deque[Any]] = deque(), deque()
        self.current = 0
        self.log: list[str] = []
        self._pinned: list[Any] = []

    @property
    def queue(self):
        """The current queue."""
        return self.queues[self.current]

    def later(self, name, step, keep=None):
        """Return a function that queues `step` under `name`; the function keeps `keep` alive."""

        def queue():
            self.log.append(name)
            self.queue.append(step)

        return partial(lambda queue, _: queue(), queue, keep)

    def join_stream(self, previous):
        """Return the number of the current queue, after queueing a wait for the other queue's work."""
        if previous not in (None, self.current) and self.queues[previous]:
            last = self.queues[previous][-1]
            self.queue.append(partial(self._run_until, self.queues[previous], last))
        return self.current

    def _run_until(self, queue, last):
        """Run a queue up to and including a step, which may have run already."""
        while any(step is last for step in queue):
            queue.popleft()()

    def empty(self, count, dtype):
        """Return a new array filled with JUNK."""
        return np.full(count, JUNK, dtype.numpy)

    def bind_reduce(self, function, left, right, out):
        """Return a function that queues the reduction."""
        return self.later("combine", super().bind_reduce(function, left, right, out))

    def bind_copy(self, out, source):
        """Return a function that queues the copy."""
        return self.later("copy", super().bind_copy(out, source))

    def bind_scale(self, out, source, factor, shape):
        """Return a function that queues the scaling."""
        return self.later("scale", super().bind_scale(out, source, factor, shape))

    def bind_divide(self, out, divisor):
        """Return a function that queues the division."""
        return self.later("divide", super().bind_divide(out, divisor))

    def bind_copy_to_host(self, host, flat):
        """Return a function that queues the copy into pinned memory."""
        return self.later("fetch", super().bind_copy_to_host(self.as_unowned(host), flat), keep=host)

    def bind_copy_from_host(self, flat, host):
        """Return a function that queues the copy out of pinned memory."""
        return self.later("deliver", super().bind_copy_from_host(flat, self.as_unowned(host)), keep=host)

    def synchronize(self):
        """Run all steps of the current queue."""
        self.log.append("synchronize")
        while self.queue:
            self.queue.popleft()()

    def empty_pinned(self, nbytes):
        """Return new pinned memory, which is overwritten once it is unreferenced."""
        self._pinned.append(memory := np.full(nbytes, 0x77, np.uint8))
        owner = Owner()
        weakref.finalize(owner, memory.fill, SPOILT)
        return view_host_memory(self.get_address(memory), nbytes, owner)


MESSAGES = [known for known in list_algorithms() if not known.uses_shared_memory]


@pytest.fixture
def stream():
    return Stream()


@pytest.fixture(params=[False, True], ids=["staged", "direct"])
def takes(request):
    """Whether MPI takes device memory."""
    return request.param


@pytest.fixture
def space(comm):
    made = comm.Dup()
    yield made
    made.Free()


@pytest.fixture
def eng(space, takes):
    made = Engine(space, lambda: takes)
    yield made
    made.free()


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    monkeypatch.setattr(message_lowering, "SEGMENT", 400)


def buffer(stream, flat) -> Buffer:
    return Buffer(flat, stream, FLOAT, flat.__array_interface__["data"][0], flat.shape)


def job(stream, algorithm, root, op, x, out, count) -> CollectiveCall:
    ends = [None if flat is None else buffer(stream, flat) for flat in (x, out)]
    call = CollectiveCall(algorithm.operation, algorithm, root, Reduction.parse(op), ends[0], ends[1], count)
    return replace(call, in_place=x is not None and x is out)


def wanted(eng, made, inputs) -> list[Any]:
    plan = made.algorithm.plan(eng.size, made.root, eng.selector.select_for(made).chunks)
    return replay(plan, made.count, inputs, get_reduction_function("sum") if made.operation.reduces else None)


def data(rank, length):
    return make_input(FLOAT, 5, rank, length)


@pytest.mark.full_except_on(2, 3)
@pytest.mark.parametrize("count", [1, 333])
@pytest.mark.parametrize("algorithm", MESSAGES, ids=lambda known: known.full_name)
def test_values_are_right_although_the_stream_runs_late(eng, stream, algorithm, count):
    """The user's own kernel that writes the input is still queued when the collective is called."""
    operation, n, rank, root = algorithm.operation, eng.size, eng.rank, eng.size - 1
    if operation is Operation.BARRIER:
        return
    blocks = operation in (Operation.REDUCE_SCATTER, Operation.SCATTER, Operation.ALL_TO_ALL)
    brings = operation not in (Operation.BROADCAST, Operation.SCATTER) or rank == root
    takes_part = operation not in (Operation.REDUCE, Operation.GATHER) or rank == root
    if operation is Operation.EXSCAN:
        takes_part = rank > 0
    length, total = count * (n if blocks else 1), 0
    if takes_part:
        total = count * (n if operation in (Operation.ALL_GATHER, Operation.GATHER, Operation.ALL_TO_ALL) else 1)
    x = stream.empty(length, FLOAT) if brings else None
    out = stream.empty(total, FLOAT) if takes_part else None
    if operation is Operation.BROADCAST:
        x = out if brings else None
    made = job(stream, algorithm, root, "sum", x, out, count)
    inputs = [
        data(r, length) if operation not in (Operation.BROADCAST, Operation.SCATTER) or r == root else None
        for r in range(n)
    ]
    right = wanted(eng, made, inputs)[rank]
    prepared = eng.prepare(made)
    for run in (partial(eng.run, made), partial(eng.run, made), prepared, prepared):
        if out is not None:
            stream.later("mine", partial(out.fill, JUNK))()
        if x is not None:
            stream.later("mine", partial(np.copyto, x, data(rank, length)))()
        run()
        stream.synchronize()  # the user's own, before looking
        if out is not None:
            assert out.tobytes() == right.tobytes()


@pytest.mark.parametrize("op", ["avg", "premul"])
def test_scaling_is_in_the_stream_too(eng, stream, op):
    n, rank, x = eng.size, eng.rank, stream.empty(500, FLOAT)
    factors = [np.float32(0.5 + r) for r in range(n)]
    reduction = Reduction("premul_sum", factors[rank]) if op == "premul" else op
    made = job(stream, get_algorithm(Operation.ALL_REDUCE, "ring"), 0, reduction, x, x, 500)
    inputs = [data(r, 500) * (factors[r] if op == "premul" else 1) for r in range(n)]
    right = wanted(eng, made, inputs)[rank] / np.float32(n if op == "avg" else 1)
    for _ in range(3):
        stream.later("mine", partial(np.copyto, x, data(rank, 500)))()
        eng.run(made)
        stream.synchronize()
        assert x.tobytes() == right.tobytes()


def test_asynchronous_ones_share_the_stream(eng, stream):
    n, rank = eng.size, eng.rank
    arrays, runs = [stream.empty(100 + i, FLOAT) for i in range(8)], []
    for i, x in enumerate(arrays):
        stream.later("mine", partial(np.copyto, x, data(rank, 100 + i)))()
        runs.append(eng.start(job(stream, get_algorithm(Operation.ALL_REDUCE, "ring"), 0, "sum", x, x, 100 + i)))
    order = list(range(8))
    random.Random(rank).shuffle(order)
    for i in order:
        while not runs[i].advance():
            eng.progress.advance()
    stream.synchronize()
    for i, x in enumerate(arrays):
        made = job(stream, get_algorithm(Operation.ALL_REDUCE, "ring"), 0, "sum", x, x, 100 + i)
        assert x.tobytes() == wanted(eng, made, [data(r, 100 + i) for r in range(n)])[rank].tobytes()


@pytest.mark.parametrize("op", ["sum", "avg"])
def test_a_run_goes_on_behind_what_it_queued_on_another_stream(eng, stream, op):
    """The user changes streams while the run is in flight; the result is then complete on every stream."""
    n, x = eng.size, stream.empty(1000, FLOAT)
    made = job(stream, get_algorithm(Operation.ALL_REDUCE, "ring"), 0, op, x, x, 1000)
    right = wanted(eng, made, [data(r, 1000) for r in range(n)])[eng.rank] / np.float32(n if op == "avg" else 1)
    stream.later("mine", partial(np.copyto, x, data(eng.rank, 1000)))()
    run = eng.start(made)
    while not run.done:
        stream.current ^= 1
        run.advance()
    assert x.tobytes() == right.tobytes()


def by_library(stream, x, op="sum", asked=True):
    """An all-reduce in place, by the MPI library or by `auto`."""
    made = job(stream, get_algorithm(Operation.ALL_REDUCE, "ring"), 0, op, x, x, len(x))
    return replace(made, algorithm=None, library=asked)


@pytest.mark.parametrize("all_pass", [True, False])
def test_the_ranks_agree_whether_the_library_takes_device_memory(space, stream, all_pass):
    """The probe of one rank fails, for instance by a time limit: all ranks must still make the same selection."""
    eng = Engine(space, lambda: all_pass or space.rank > 0)
    for x in (stream.empty(5, FLOAT), stream.empty(2**20, FLOAT)):
        found = space.allgather(eng.selector.select_for(by_library(stream, x, asked=False)).name)
        assert len(set(found)) == 1
        assert eng.library.can_run(by_library(stream, x)) is all_pass
    eng.free()


def test_asynchronous_calls_run_plans_in_device_memory(space, stream):
    """MPI libraries lack non-blocking reductions of device memory; such a call does not wait for other ranks."""
    eng, x = Engine(space, lambda: True), stream.empty(5, FLOAT)
    for _ in range(2):
        selection = eng.selector.select_for(by_library(stream, x, asked=False), asynchronous=True)
        assert selection.algorithm is not None
        with pytest.raises(UsageError, match="device memory"):
            eng.start(by_library(stream, x))
        assert eng.selector.select_for(by_library(stream, x)).algorithm is None
    eng.free()


def test_the_library_blocks_in_device_memory_beside_plans_in_flight(space, stream, monkeypatch):
    """The user's thread queues work on the user's stream; only MPI's call runs in another thread."""
    eng, x, y = Engine(space, lambda: True), stream.empty(1000, FLOAT), stream.empty(7, FLOAT)
    get_native = LibraryCall.get_native

    def get_blocking(self, *, is_nonblocking, is_recorded=True):
        assert not is_nonblocking
        return get_native(self, is_nonblocking=False, is_recorded=is_recorded)

    monkeypatch.setattr(LibraryCall, "get_native", get_blocking)
    threads = set()
    queue = Stream.later

    def noted(self, name, step, keep=None):
        call = queue(self, name, step, keep)

        def note():
            threads.add(threading.current_thread())
            call()

        return note

    monkeypatch.setattr(Stream, "later", noted)
    made = job(stream, get_algorithm(Operation.ALL_REDUCE, "ring"), 0, "sum", x, x, 1000)
    x[:] = data(eng.rank, 1000)
    average = by_library(stream, y, "avg")
    prepared = eng.prepare(average)
    for step in (partial(eng.run, average), prepared):
        if eng.rank:
            time.sleep(0.1)  # the plan of rank 0 is in flight for so long
        run = eng.start(made)
        stream.later("mine", partial(y.fill, eng.rank))()
        step()
        stream.synchronize()
        assert (y == np.float32((eng.size - 1) / 2)).all()
        while not run.advance():
            eng.progress.advance()
    assert threads == {threading.main_thread()}
    eng.free()


@pytest.mark.parametrize("op", ["sum", "premul"])
def test_a_reduction_without_kernels_is_refused_before_anything_is_sent(eng, stream, monkeypatch, op):
    def refuse(_, function, dtype):
        raise ReductionError(f"no kernel for {function} of {dtype.name}")

    monkeypatch.setattr(Stream, "require_reduction", refuse)
    monkeypatch.setattr(executable, "message_calls", lambda *_, **__: pytest.fail("a message was about to be sent"))
    x = stream.empty(5, FLOAT)
    reduction = Reduction("premul_sum", np.float32(2)) if op == "premul" else op
    made = job(stream, get_algorithm(Operation.ALL_REDUCE, "ring"), 0, reduction, x, x, 5)
    for call in (eng.run, eng.start, eng.prepare):
        with pytest.raises(ReductionError, match="no kernel"):
            call(made)
    assert not stream.log


class Watched:
    """A communicator that notes how much is queued whenever a message starts."""

    def __init__(self, comm, stream, queued):
        self.comm, self.stream, self.queued = comm, stream, queued

    def note(self):
        self.queued.append(len(self.stream.queue))

    def Isend(self, message, peer, tag):  # noqa: N802 - mpi4py's names
        self.note()
        return self.comm.Isend(message, peer, tag)

    def Irecv(self, message, peer, tag):  # noqa: N802
        self.note()
        return self.comm.Irecv(message, peer, tag)

    def Send_init(self, message, peer, tag):  # noqa: N802
        return Started(self.comm.Send_init(message, peer, tag), self.note)

    def Recv_init(self, message, peer, tag):  # noqa: N802
        return Started(self.comm.Recv_init(message, peer, tag), self.note)


class Started:
    """A persistent request that calls `note` when it starts."""

    def __init__(self, request, note):
        self.request, self.note, self.Wait = request, note, request.Wait

    def Start(self):  # noqa: N802
        self.note()
        self.request.Start()


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.needs_ranks(2)
def test_nothing_is_queued_when_a_message_starts(eng, stream, takes, persistent):
    """A synchronisation lies between queued work and the next start of a message."""
    queued: list[int] = []

    x = stream.empty(700, FLOAT)
    made = job(stream, get_algorithm(Operation.ALL_REDUCE, "rabenseifner"), 0, "sum", x, x, 700)
    bound = MessageExecutable(eng, eng._resolve(made))
    stream.later("mine", partial(np.copyto, x, data(eng.rank, 700)))()
    watched: Any = Watched(eng.comm, stream, queued)
    taken = message_calls(bound._program, bound._space, watched, 1, persistent=persistent, pinned=not takes)
    for _, step, _ in list(taken) if persistent else taken:
        step()
    stream.synchronize()
    assert queued
    assert set(queued) == {0}
    assert x.tobytes() == wanted(eng, made, [data(r, 700) for r in range(eng.size)])[eng.rank].tobytes()


def test_pinned_memory_is_bounded_by_what_is_in_flight(eng, stream, takes):
    x = stream.empty(40_000, FLOAT)
    made = job(stream, get_algorithm(Operation.ALL_REDUCE, "ring"), 0, "sum", x, x, 40_000)
    sizes: list[int] = []

    def noted(nbytes):
        sizes.append(nbytes)
        return np.zeros(nbytes, np.uint8)

    stream.empty_pinned = noted
    eng.run(made)
    message = -(-40_000 // eng.size) * 4
    assert max(sizes, default=0) <= (0 if takes else 2 * 4 * message)


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_messages_between_ranks_keep_the_stream_too(eng, stream, space, monkeypatch, count):
    monkeypatch.setattr(messaging, "as_buffer", lambda flat, role, writable: buffer(stream, flat))
    monkeypatch.setattr(messaging, "is_plain", lambda _: False)  # NumPy's arrays stand for device memory here
    monkeypatch.setattr(messaging, "LONGEST_SEGMENT", 1200)
    there, back = (eng.rank + 1) % eng.size, (eng.rank - 1) % eng.size
    pairs = messaging.PointToPoint(space, eng.progress, eng.state, eng.uses_pinned_memory)
    pairs.messenger.close()  # native code would take NumPy's arrays for host memory
    for _ in range(3):
        x, y = stream.empty(count, FLOAT), stream.empty(count, FLOAT)
        stream.later("mine", partial(np.copyto, x, data(eng.rank, count)))()
        got = pairs.irecv(y, back, 3)
        sent = pairs.isend(x, there, 3)
        got.wait()
        sent.wait()
        stream.synchronize()
        assert y.tobytes() == data(back, count).tobytes()


@pytest.fixture
def probed(monkeypatch):
    """Lets the probe of this rank's MPI return a given answer without starting a process."""

    def answer(passes):
        result = CommandResult("probe", passes, True, "", "worked on 1 rank\n")
        monkeypatch.setattr(probe, "list_device_names", lambda: ("GPU",))
        monkeypatch.setattr(probe, "probe_operation", lambda _, **__: result)
        probe.is_mpi_cuda_aware.cache_clear()

    yield answer
    probe.is_mpi_cuda_aware.cache_clear()


@pytest.mark.parametrize("all_pass", [True, False])
def test_the_mpi_engine_takes_device_memory_if_it_can_on_every_rank(comm, stream, monkeypatch, probed, all_pass):
    monkeypatch.setattr(library_engine, "as_buffer", lambda flat, role, writable: buffer(stream, flat))
    probed(all_pass or comm.rank > 0)
    engine, x = start_engine("mpi", comm), np.zeros(5, np.float32)
    if not all_pass:
        with pytest.raises(UsageError, match="device buffers"):
            engine.prepare(Operation.ALL_REDUCE, x, x, "sum", 0)
        return
    stream.later("mine", partial(x.fill, 1))()
    engine.prepare(Operation.ALL_REDUCE, x, x, "sum", 0)()
    assert (x == comm.size).all()


def test_host_memory_is_neither_staged_nor_synchronised(comm, monkeypatch):
    def never(self):
        raise AssertionError("host memory has no stream")

    with hpccoll.Communicator(comm) as hpc:
        monkeypatch.setattr(NumPyModule, "synchronize", never)
        x = np.ones(10)
        for _ in range(3):
            hpc.all_reduce(x)
        assert not hpc.stages(NumPyModule())
        barrier = check_call(Operation.BARRIER, None, None, hpc.rank, hpc.size, algorithm="dissemination")
        assert isinstance(hpc._engine.start(barrier), NativeRun)
