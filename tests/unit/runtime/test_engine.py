"""The engine on one rank: selected algorithms, bound calls, cached and freed objects. MPI runs without mpirun."""

from __future__ import annotations

import weakref
from dataclasses import replace

import numpy as np
import pytest

from hpccoll import lowering
from hpccoll.algorithms import get_algorithm
from hpccoll.arrays import NUMPY, NumPyModule, premul_sum
from hpccoll.errors import UnavailableError, UsageError
from hpccoll.native import ArrivalCounter
from hpccoll.plan import Operation
from hpccoll.runtime import engine as module
from hpccoll.runtime.arguments import check_call
from hpccoll.runtime.engine import FIRST_ASYNC_TAG, Engine
from hpccoll.runtime.messages import native_executable
from hpccoll.runtime.node_memory import node
from hpccoll.runtime.progress import InFlight, Progress
from hpccoll.runtime.two_level.executable import PipelineExecutable
from hpccoll.selection import BufferKind, Selection, SelectionKey, choose_chunk_count

ALL_REDUCE = Operation.ALL_REDUCE
SHARED = "shared_two_shot"

# An argument that is just "mpi" would make pytest-mpi skip the test.
EVERY_KIND = pytest.mark.parametrize("name", ["ring", "shared_two_shot", pytest.param("mpi", id="library")])


class Pending(InFlight):
    """An operation that is complete once `done` is set."""

    def _advance(self):
        return False


@pytest.fixture
def engine(comm, monkeypatch):
    for name in ("HPCCOLL_TUNING", "HPCCOLL_LOG", "HPCCOLL_RANKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    own = comm.Dup()
    made = Engine(own, lambda: False)
    yield made
    made.free()
    own.Free()


def recorded(monkeypatch, owner, name):
    """Return a list to which each call of a method or function adds its positional arguments."""
    calls, original = [], getattr(owner, name)

    def record(*arguments, **options):
        calls.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, record)
    return calls


def request(x, operation=ALL_REDUCE, **arguments):
    """Return the checked call of an operation on one rank."""
    out = arguments.pop("out", None)
    return check_call(operation, x, out, 0, 1, **arguments)


def test_a_named_algorithm_is_selected(engine):
    selection = engine.selector.select_for(request(np.ones(3), algorithm="ring"))
    assert (selection.name, selection.why) == ("ring", "asked for")


def test_an_algorithm_gets_no_more_chunks_than_elements(engine, monkeypatch):
    monkeypatch.setattr("hpccoll.runtime.call_selector.choose_chunk_count", lambda *_: 64)
    for count, chunks in ((100, 64), (3, 3), (0, 1)):
        call = request(np.ones(count), algorithm="chain", operation=Operation.BROADCAST)
        assert engine.selector.select_for(call).chunks == chunks


def test_the_chunk_count_of_a_named_algorithm_is_that_of_the_cost_model(engine):
    x, chain = np.ones(2**20), get_algorithm(Operation.BROADCAST, "chain")
    selection = engine.selector.select_for(request(x, operation=Operation.BROADCAST, algorithm=chain))
    assert selection == Selection(chain, choose_chunk_count(chain, 1, x.nbytes), "asked for")


def test_the_librarys_own_collective_is_selected_by_name(engine):
    assert engine.selector.select_for(request(np.ones(3), algorithm="mpi")) == Selection(None, 1, "asked for")


@pytest.mark.parametrize("op", ["min", "sum"])
def test_the_librarys_own_collective_is_refused_where_its_result_differs(engine, op):
    """MPI has no bfloat16, and does not define the minimum of NaN."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.ones(3, np.float32) if op == "min" else np.ones(3, ml_dtypes.bfloat16)
    with pytest.raises(
        UsageError, match=rf"'mpi' does not run all_reduce of {x.dtype.name} by {op}: .*; use algorithm='auto'"
    ):
        engine.selector.select_for(request(x, op=op, algorithm="mpi"))


def test_auto_asks_the_selector_with_what_all_ranks_know(engine):
    asked = []

    def select(key):
        asked.append(key)
        return Selection(get_algorithm(key.operation, "ring"), 1, "measured")

    engine.selector.select = select
    assert engine.selector.select_for(request(np.ones(3, np.float32))).why == "measured"
    assert asked == [SelectionKey(ALL_REDUCE, 12, 4, BufferKind.HOST, library=True, shared=True, is_blocking=True)]
    engine.node.problem = "no memory"
    engine.selector.select_for(request(np.ones(6), operation=Operation.ALL_GATHER))
    assert asked[1] == SelectionKey(Operation.ALL_GATHER, 48, 8, BufferKind.HOST, library=True, shared=False)
    engine.prepare(request(np.ones(6))).free()
    assert (asked[2].shared, asked[2].is_blocking) == (False, True)


@pytest.mark.parametrize(
    ("ranks", "nodes", "asynchronous", "name"),
    [
        (2, ((0, 1),), False, "pairwise"),
        (2, ((0, 1),), True, "mpi"),
        (2, ((0,), (1,)), False, "mpi"),
        (3, ((0, 1, 2),), False, "mpi"),
    ],
)
def test_an_all_to_all_with_counts_is_a_plan_on_two_ranks_of_a_node(
    engine, monkeypatch, ranks, nodes, asynchronous, name
):
    monkeypatch.setattr(engine.selector, "_ranks", ranks)
    monkeypatch.setattr(engine.selector, "_members", nodes)
    counts = tuple(range(ranks))
    call = check_call(Operation.ALL_TO_ALL, np.ones(sum(counts)), None, 0, ranks, counts=(counts, counts))
    assert engine.selector.select_for(call, asynchronous=asynchronous).name == name


def test_selections_of_auto_are_logged(engine):
    lines = []
    engine.selector.log = lambda *line: lines.append(line)
    selection = engine.selector.select_for(request(np.ones(3)))
    engine.selector.select_for(request(np.ones(3), algorithm="ring"))
    assert lines == [(ALL_REDUCE, 24, BufferKind.HOST, selection, "float64", "sum")]


def test_runs_keep_nothing_but_native_calls_of_their_kind(engine):
    """Calls that differ in addresses alone have one native call, which keeps no memory alive."""
    x, name = np.ones(3), "shared_two_shot"
    for _ in range(3):
        engine.run(request(x, algorithm=name))
    kept = len(engine.native)
    for _ in range(3):
        engine.run(request(np.ones(3), algorithm=name))
    assert len(engine.native) == kept > 0
    gone = weakref.ref(x)
    del x
    assert gone() is None


def test_calls_of_another_kind_have_native_calls_of_their_own(engine):
    memory, name = np.arange(8.0), "shared_two_shot"
    calls = [
        request(memory, algorithm=name),
        request(memory[:4], algorithm=name),
        request(memory.view(np.int64), algorithm=name),
        request(memory, op="prod", algorithm=name),
        request(memory, operation=Operation.BROADCAST, algorithm="shared"),
    ]
    kept = []
    for call in calls:
        engine.run(call)
        kept.append(len(engine.native))
    assert kept == sorted(set(kept))


def test_a_premultiplied_sum_has_the_factor_of_each_call(engine):
    x = np.ones(3)
    for factor in (2.0, 3.0, 5.0):
        engine.run(request(x, op=premul_sum(factor), algorithm="shared_two_shot"))
    assert x.tolist() == [30.0] * 3


def test_asynchronous_plans_of_messages_take_tags_in_turn_and_wait_for_a_tag_in_use(engine, monkeypatch):
    monkeypatch.setattr(module, "ASYNC_TAGS", 2)
    pending = [Pending() for _ in range(3)]
    started = iter(pending)
    monkeypatch.setattr(native_executable.NativeMessageExecutable, "start", lambda _: next(started))
    for _ in range(2):
        engine.start(request(np.ones(3), algorithm="ring"))
    assert dict(engine._with_tag) == {FIRST_ASYNC_TAG: pending[0], FIRST_ASYNC_TAG + 1: pending[1]}
    waited = []

    def wait_until(_, done):
        waited.append(done())
        pending[0].done = True
        assert done()

    monkeypatch.setattr(Progress, "wait_until", wait_until)
    engine.start(request(np.ones(3), algorithm="ring"))
    assert waited == [False]
    assert engine._with_tag[FIRST_ASYNC_TAG] is pending[2]
    engine.progress.operations.clear()


def test_a_started_message_algorithm_is_in_flight_under_its_own_tag(engine, monkeypatch):
    made = recorded(monkeypatch, native_executable, "NativeMessageExecutable")
    pools = recorded(monkeypatch, native_executable, "make_message_call")
    operation = engine.start(request(np.ones(3), algorithm="ring"))
    [(_, _, tag)], [(_, _, pool)] = made, pools
    assert tag == FIRST_ASYNC_TAG
    assert pool is not engine.scratch
    engine.progress.wait_until(operation.advance)


def test_a_started_shared_memory_algorithm_is_in_flight_until_it_is_waited_for(engine):
    x, out = np.ones(3), np.zeros(3)
    operation = engine.start(request(x, out=out, algorithm="shared_two_shot"))
    engine.progress.wait_until(operation.advance)
    assert out.tolist() == [1.0] * 3
    assert not engine.progress


def test_pipelines_run_in_the_order_of_their_calls(engine):
    queue = engine.node.pipelines
    engine.node.pipeline_slots = engine.node.slots  # one node has none for pipelines
    engine.node.pipeline_counters = tuple(ArrivalCounter(np.zeros((1, 8), np.uint64), 0) for _ in engine.node.slots)
    first = PipelineExecutable(engine, request(np.ones(3), algorithm=SHARED)).start()
    second = PipelineExecutable(engine, request(np.ones(3), algorithm=SHARED)).start()
    assert list(queue) == [first, second]
    assert not second.advance()
    assert first.advance()
    assert second.advance()
    first.raise_error()
    second.raise_error()
    assert not queue


def test_freeing_a_buffer_waits_for_the_operations_on_it(engine):
    x = engine.node.symmetric.empty(3, "float32")
    x[:] = 1
    operation = engine._start_plan(request(x, algorithm=SHARED))
    engine.progress.add(operation)
    engine.node.symmetric.free(x)
    assert operation.done
    operation.raise_error()


def test_the_library_uses_its_non_blocking_form_from_the_first_asynchronous_operation_on(engine):
    assert not engine.library.uses_non_blocking
    engine.start(request(np.ones(3), algorithm="shared_two_shot"))
    assert engine.library.uses_non_blocking


def test_a_bound_collective_of_the_library_advances_plans_of_other_communicators(engine):
    bound, advanced = engine.library.bind(request(np.ones(3))), []

    class Other(InFlight):
        def _advance(self):
            advanced.append(True)
            return False

    other = Other()
    engine.progress.add(other)
    bound()
    engine.library.run(request(np.ones(3)))
    engine.progress.operations.pop(other)
    assert len(advanced) >= 2


@EVERY_KIND
def test_a_prepared_collective_runs_until_the_engine_frees_it(engine, name):
    x, out = np.zeros(3), np.zeros(3)
    run = engine.prepare(request(x, out=out, algorithm=name))
    for turn in (1, 2):
        x[:] = turn
        run()
        assert out.tolist() == [turn] * 3
    engine.free()
    assert not run.live
    calls = engine.state.count
    with pytest.raises(UsageError, match="prepare it again"):
        run()
    assert engine.state.count == calls


def test_plans_are_lowered_once_for_the_same_arguments(engine, monkeypatch):
    lowered = recorded(monkeypatch, lowering, "lower_plan")
    for count in (3, 3, 4, 4):
        engine.run(request(np.ones(count), algorithm="ring"))
    assert [arguments[2] for arguments in lowered] == [3, 4]
    engine.run(request(np.ones(3), out=np.ones(3), algorithm="ring"))
    assert [arguments[4] for arguments in lowered] == [True, True, False], (
        "a call that is not in place needs a program of its own"
    )


def test_the_kind_of_buffers_is_that_of_those_which_all_ranks_have(engine):
    kind, host = engine.selector.buffer_kind, np.ones(4)
    x, out = engine.node.symmetric.empty(4, "float64"), engine.node.symmetric.empty(4, "float64")
    assert kind(request(host)) is BufferKind.HOST
    assert kind(request(x)) is BufferKind.SYMMETRIC
    assert kind(request(x[1:3])) is BufferKind.SYMMETRIC
    assert kind(request(x, out=out)) is BufferKind.SYMMETRIC
    assert kind(request(x, out=host)) is BufferKind.HOST
    assert kind(request(host, out=x)) is BufferKind.HOST
    assert kind(request(None, operation=Operation.BARRIER)) is BufferKind.HOST
    # The root alone has the output of a gather and the input of a scatter.
    assert kind(request(x, operation=Operation.GATHER, out=host)) is BufferKind.SYMMETRIC
    assert kind(request(host, operation=Operation.SCATTER, out=x)) is BufferKind.SYMMETRIC
    assert kind(request(host, operation=Operation.GATHER, out=x)) is BufferKind.HOST


class DeviceModule(NumPyModule):
    """NumPy's module, marked as a module of device memory."""

    on_device = True


def test_device_buffers_are_their_own_kind_and_pass_through_pinned_memory_where_mpi_cannot_take_them(comm, engine):
    call = request(np.ones(4))
    on_device = replace(call, result=replace(call.result, module=DeviceModule()))
    assert engine.selector.buffer_kind(on_device) is BufferKind.CUDA
    assert engine.uses_pinned_memory(on_device.module)
    assert not engine.uses_pinned_memory(NUMPY)


def test_shared_memory_that_cannot_be_had_is_refused_with_its_reason(comm, monkeypatch):
    def refuse(*_, **__):
        raise UnavailableError("rank 0: /dev/shm is full")

    monkeypatch.setattr(node, "map_segment", refuse)
    engine = Engine(comm, lambda: False)
    with pytest.raises(UnavailableError, match=r"shared_two_shot needs shared memory: rank 0: /dev/shm is full"):
        engine.run(request(np.ones(3), algorithm="shared_two_shot"))
    engine.run(request(np.ones(3)))  # auto selects an algorithm that does without
    engine.free()


@pytest.mark.parametrize(("ranks", "expected"), [(2, 4 * 2**20), (64, 4 * 2**20), (128, 2**21), (256, 2**20)])
def test_the_slots_of_a_node_are_bounded(ranks, expected):
    assert node.choose_slot_bytes(4 * 2**20, 4, ranks) == expected
    assert node.choose_slot_bytes(4 * 2**20, 6, 192) % 4096 == 0
    assert 192 * 6 * node.choose_slot_bytes(4 * 2**20, 6, 192) <= 2**30


def test_a_library_collective_is_no_plan(engine):
    with pytest.raises(UsageError, match="all_reduce by the MPI library has no plan"):
        engine._make_executable(request(np.ones(3)))


@EVERY_KIND
def test_a_prepared_collective_ends_with_the_symmetric_buffer_that_it_accesses(engine, name):
    x = engine.node.symmetric.empty(4, "float64")
    x[:] = 1
    call = request(x, algorithm=name)
    prepared = engine.prepare(call)
    engine.run(call)
    assert prepared.live
    engine.node.symmetric.free(x)
    assert not prepared.live
    with pytest.raises(UsageError, match="symmetric buffer was freed"):
        engine.run(call)


def test_free_frees_native_calls_and_symmetric_buffers(engine):
    x = engine.node.symmetric.empty(4, "float64")
    x[:] = 1
    engine.run(request(x, algorithm="shared_two_shot"))
    engine.free()
    assert not engine.native
    with pytest.raises(UsageError, match="symmetric buffer was freed"):
        engine.node.symmetric.free(x)
    engine.free()


def test_auto_runs_short_asynchronous_calls_on_several_nodes_without_shared_memory(engine, monkeypatch):
    asked = []

    def select(key):
        asked.append((key.nbytes, key.shared))
        return Selection(get_algorithm(ALL_REDUCE, "ring"), 1, "measured")

    monkeypatch.setattr(engine.selector, "select", select)
    monkeypatch.setattr(engine.selector, "_members", ((0,), (1,)))
    for count in (8, 2**14):
        engine.selector.select_for(request(np.ones(count)), asynchronous=True)
        engine.selector.select_for(request(np.ones(count)))
    assert asked == [(64, False), (64, True), (2**17, True), (2**17, True)]
