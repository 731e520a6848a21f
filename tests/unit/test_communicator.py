"""The public communicator on one rank: results, outputs, kept references, and refused calls. No mpirun needed."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import hpccoll
from hpccoll.algorithms import get_algorithm, list_algorithms
from hpccoll.arrays import NUMPY
from hpccoll.communicator.cartesian import divide_ranks
from hpccoll.errors import BufferError, MismatchError, ReductionError, UnknownNameError, UsageError
from hpccoll.plan import Operation
from hpccoll.runtime.argument_check import ArgumentCheck
from hpccoll.runtime.node_memory import symmetric
from hpccoll.runtime.progress import InFlight

IN_PLACE = ("all_reduce", "reduce", "broadcast", "scan", "exscan")  # results have the shape of the input
NEW = {  # the shape of a new result on one rank, for an input of shape (4, 3)
    "reduce_scatter": (4, 3),
    "all_gather": (1, 4, 3),
    "gather": (1, 4, 3),
    "scatter": (4, 3),
    "all_to_all": (4, 3),
}
EVERY = (*IN_PLACE, *NEW)
REDUCES = [each.name for each in list_algorithms() if each.operation is Operation.REDUCE]
ALGORITHMS = [each.full_name for each in list_algorithms() if each.operation is not Operation.BARRIER]


@pytest.fixture(scope="module")
def hpc():
    with hpccoll.Communicator() as made:
        yield made


@pytest.fixture
def fresh():
    with hpccoll.Communicator() as made:
        yield made


def matrix():
    return np.arange(12.0).reshape(4, 3)


def test_one_rank_is_rank_zero_of_one(hpc):
    assert (hpc.rank, hpc.size) == (0, 1)


@pytest.mark.parametrize("name", IN_PLACE)
def test_results_of_the_same_shape_are_in_place(hpc, name):
    x = matrix()
    for _ in range(4):  # the first call lowers, the second binds, later ones find the executable by the array
        assert getattr(hpc, name)(x) is x
        assert x.tolist() == matrix().tolist()


@pytest.mark.parametrize("name", NEW)
def test_results_of_another_shape_are_new_arrays(hpc, name):
    x = matrix()
    results = [getattr(hpc, name)(x) for _ in range(4)]
    for result in results:
        assert result.shape == NEW[name] if name != "reduce_scatter" else result.size == x.size
        assert result.reshape(-1).tolist() == x.reshape(-1).tolist()
        assert not np.shares_memory(result, x)
    assert len({id(result) for result in results}) == 4


@pytest.mark.parametrize("name", [name for name in EVERY if name != "broadcast"])
def test_results_go_to_out_where_it_is_given(hpc, name):
    x, out = matrix(), np.full(12, -1.0)
    for turn in range(4):
        x[:] = matrix() + turn
        assert getattr(hpc, name)(x, out=out) is out
        assert out.tolist() == ([-1.0] * 12 if name == "exscan" else x.reshape(-1).tolist())


@pytest.mark.parametrize("full_name", ALGORITHMS)
def test_every_algorithm_runs_on_one_rank(hpc, full_name):
    operation, name = full_name.split("/")
    x = matrix()
    result = getattr(hpc, operation)(x, algorithm=name)
    assert result.reshape(-1).tolist() == matrix().reshape(-1).tolist()


@pytest.mark.parametrize("name", EVERY)
def test_the_librarys_own_collectives_give_the_same(hpc, name):
    x = matrix()
    for _ in range(3):
        assert getattr(hpc, name)(x, algorithm="mpi").reshape(-1).tolist() == matrix().reshape(-1).tolist()


def test_a_barrier_returns_nothing(hpc):
    assert hpc.barrier() is None
    assert hpc.barrier(algorithm="mpi") is None
    assert hpc.barrier(async_op=True).wait() is None


@pytest.mark.parametrize("algorithm", ["auto", "ring", "shared_two_shot"])
def test_reductions_scale_and_divide(hpc, algorithm):
    for op, expected in (("avg", [2, 4]), ("max", [2, 4]), (hpccoll.premul_sum(1.5), [3, 6])):
        x = np.array([2.0, 4.0])
        assert hpc.all_reduce(x, op=op, algorithm=algorithm).tolist() == expected
        for _ in range(3):
            out = np.zeros(2)
            hpc.all_reduce(np.array([2.0, 4.0]), op=op, out=out, algorithm=algorithm)
            assert out.tolist() == expected


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "complex64"])
def test_every_kind_of_element_is_moved(hpc, dtype):
    x = np.array([0, 1, 1], dtype)
    assert hpc.all_gather(x).dtype == x.dtype
    assert hpc.all_reduce(x, op="max" if dtype == "bool" else "sum").tolist() == np.array([0, 1, 1], dtype).tolist()


def test_empty_and_scalar_arrays_are_arrays(hpc):
    assert hpc.all_reduce(np.zeros(0)).shape == (0,)
    assert hpc.all_gather(np.array(3.0)).tolist() == [3.0]
    assert hpc.all_to_all(np.zeros((0, 2))).shape == (0, 2)


def test_a_call_on_a_known_array_runs_its_executable_without_checks(fresh, monkeypatch):
    x, out = matrix(), matrix()
    for _ in range(3):
        fresh.all_reduce(x)
        fresh.all_reduce(x, out=out)
    monkeypatch.setattr(fresh, "_check", None)
    assert fresh.all_reduce(x) is x
    assert fresh.all_reduce(x, out=out) is out
    with pytest.raises(TypeError):  # an array of another kind is checked
        fresh.all_reduce(matrix().astype(np.float32))


def test_a_call_with_other_arguments_is_checked(fresh, monkeypatch):
    x, out, other = matrix(), matrix(), np.asfortranarray(matrix())
    for _ in range(3):
        fresh.all_reduce(x)
        fresh.reduce(x, op="max", algorithm=REDUCES[0], out=out)
    monkeypatch.setattr(fresh, "_check", None)
    reduce = partial(fresh.reduce, x)
    differing = [
        lambda: fresh.all_reduce(x, "max"),
        lambda: fresh.all_reduce(x, algorithm="ring"),
        lambda: fresh.all_reduce(x, out=out),
        lambda: fresh.all_reduce(x, async_op=True),
        lambda: fresh.broadcast(x),
        lambda: reduce(op="max", algorithm=REDUCES[0]),
        lambda: reduce(op="max", algorithm=REDUCES[0], out=other),
        lambda: reduce(op="max", algorithm=REDUCES[0], out=out, root=1),
        lambda: reduce(op="min", algorithm=REDUCES[0], out=out),
        lambda: reduce(op="max", algorithm=REDUCES[1], out=out),
    ]
    assert reduce(op="max", algorithm=REDUCES[0], out=out) is out
    for call in differing:
        with pytest.raises(TypeError):
            call()


def test_an_array_that_changed_its_dtype_is_checked(fresh, monkeypatch):
    x = np.zeros(4, np.int32)
    for _ in range(3):
        fresh.all_reduce(x)
    monkeypatch.setattr(fresh, "_check", None)
    x.dtype = np.float32  # type: ignore[misc, assignment]
    with pytest.raises(TypeError):
        fresh.all_reduce(x)


def test_while_an_operation_is_in_flight_a_call_of_a_known_kind_is_not_checked(fresh, monkeypatch):
    x, out = matrix(), matrix()
    for _ in range(3):
        fresh.all_reduce(x)
        fresh.all_reduce(x, out=out)
    monkeypatch.setattr(fresh, "_check", None)

    class Pending(InFlight):
        def _advance(self):
            return True

    for options in ({}, {"out": out}):
        fresh._engine.progress.add(Pending())
        assert fresh.all_reduce(x, **options) is options.get("out", x)
        fresh._engine.progress.advance()


def test_results_that_the_communicator_allocates_are_not_kept(fresh):
    x = matrix()
    fresh.all_gather(x)
    result = fresh.all_gather(x)
    gone = weakref.ref(result)
    del result
    assert gone() is None


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("algorithm", ["auto", "mpi"], ids=["auto", "library"])
def test_asynchronous_collectives_return_their_result_when_they_are_waited_for(hpc, name, algorithm):
    x = matrix()
    work = getattr(hpc, name)(x, async_op=True, algorithm=algorithm)
    result = work.wait(timeout=30)
    assert result.reshape(-1).tolist() == matrix().reshape(-1).tolist()
    assert (result is x) is (name in IN_PLACE)
    assert work.test()
    assert work.wait() is result


def test_asynchronous_operations_may_be_waited_for_in_any_order(hpc):
    arrays = [np.full(4, turn) for turn in range(5)]
    works = [hpc.all_reduce(x, async_op=True, algorithm=("ring", "mpi")[at % 2]) for at, x in enumerate(arrays)]
    for turn in (3, 0, 4, 1, 2):
        assert works[turn].wait(timeout=30).tolist() == [turn] * 4


@pytest.mark.parametrize("name", [name for name in EVERY if name != "exscan"])  # gives rank 0 no result
def test_prepared_collectives_read_and_write_the_same_arrays_in_every_run(hpc, name):
    x, out = matrix(), None if name == "broadcast" else np.zeros(12)
    run = hpc.prepare(Operation(name), x, out=out)
    for turn in range(3):
        x[:] = matrix() + turn
        run()
        assert (x if out is None else out).reshape(-1).tolist() == x.reshape(-1).tolist()
    assert run.live
    run.free()
    assert not run.live
    with pytest.raises(UsageError, match="prepare it again"):
        run()
    run.free()


def test_a_prepared_all_reduce_takes_its_arguments(hpc):
    x = np.array([2.0, 4.0])
    run = hpc.all_reduce_init(x, op=hpccoll.premul_sum(3.0), algorithm="ring")
    assert run.plan is not None
    run()
    run()
    assert x.tolist() == [18.0, 36.0]
    run.free()


def test_messages_to_oneself_arrive(hpc):
    x, received = matrix(), np.zeros((4, 3))
    work = hpc.isend(x, 0, tag=3)
    assert hpc.recv(received, 0, tag=3) is received
    assert work.wait() is None
    assert received.tolist() == x.tolist()
    other = hpc.irecv(received, 0)
    assert not other.test()
    hpc.isend(x + 1, 0).wait()
    assert other.wait(timeout=30) is received
    assert received.tolist() == (x + 1).tolist()


def test_messages_and_collectives_do_not_mix(hpc):
    received = np.zeros(3)
    work = hpc.irecv(received, 0, tag=2)
    assert hpc.all_reduce(np.ones(3), async_op=True, algorithm="mpi").wait(timeout=30).tolist() == [1.0] * 3
    assert not work.test()
    hpc.isend(np.full(3, 5.0), 0, tag=2).wait()
    assert work.wait(timeout=30).tolist() == [5.0] * 3


def test_a_blocking_send_to_oneself_is_refused(hpc):
    with pytest.raises(UsageError, match="rank 0 would wait for itself in send; use isend, then recv"):
        hpc.send(np.ones(3), 0)


def test_groups_are_communicators_of_their_own(hpc):
    with hpc.new_group([0]) as group:
        assert (group.rank, group.size) == (0, 1)
        received = np.zeros(3)
        work = hpc.irecv(received, 0)
        sent = group.isend(np.ones(3), 0)
        assert not work.test(), "the message of a group arrived in another communicator"
        group.recv(np.zeros(3), 0)
        sent.wait()
        hpc.isend(np.full(3, 2.0), 0).wait()
        assert work.wait(timeout=30).tolist() == [2.0] * 3
        x = group.empty(4)
        with pytest.raises(UsageError, match="belongs to another communicator"):
            hpc.all_reduce(x)
    assert hpc.all_reduce(np.ones(2)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("ranks", [[], [0, 0], [1], [-1], [0, 1]])
def test_groups_of_other_ranks_are_refused(hpc, ranks):
    with pytest.raises(UsageError, match=r"are not distinct ranks of 0\.\.0; name each member once"):
        hpc.new_group(ranks)


@pytest.mark.parametrize("name", EVERY)
def test_collectives_take_symmetric_buffers(fresh, name):
    x = fresh.empty((4, 3), "float64")
    assert (x.shape, x.dtype) == ((4, 3), np.dtype("float64"))
    for _ in range(3):
        x[:] = matrix()
        assert getattr(fresh, name)(x).reshape(-1).tolist() == matrix().reshape(-1).tolist()


def test_a_freed_symmetric_buffer_is_refused(fresh):
    x, other = fresh.empty(4), fresh.empty(4)
    x[:] = other[:] = 1
    run = fresh.all_reduce_init(x, algorithm="shared_two_shot")
    for _ in range(3):
        fresh.all_reduce(x, algorithm="shared_two_shot")
        fresh.all_reduce(x)
    fresh.free(x)
    uses = [lambda: fresh.all_reduce(x, algorithm="shared_two_shot"), lambda: fresh.all_reduce(x)]
    for use in (*uses, lambda: fresh.free(x)):
        with pytest.raises(UsageError, match="this symmetric buffer was freed"):
            use()
    with pytest.raises(UsageError, match="prepare it again"):
        run()
    assert fresh.all_reduce(other).tolist() == [1.0] * 4
    x[:] = 2  # the memory lasts as long as the array


def test_symmetric_buffers_of_no_such_shape_or_dtype_are_refused(hpc):
    with pytest.raises(UsageError, match=r"rank 0: shape \(3, -1\) has a negative extent"):
        hpc.empty((3, -1))
    with pytest.raises(UsageError, match="unknown dtype 'float31'"):
        hpc.empty(3, "float31")
    with pytest.raises(UsageError, match="free takes an array that this communicator's `empty` returned"):
        hpc.free(np.ones(3))
    assert hpc.empty(0).shape == (0,)


def test_ranks_that_ask_for_different_symmetric_buffers_are_named(hpc, monkeypatch):
    requests = [((4,), "float32"), ((5,), "float32")]
    monkeypatch.setattr(symmetric, "gather_or_raise", lambda *_: requests)
    with pytest.raises(MismatchError, match=r"rank 0 asked for .* shape \(4,\) of float32, rank 1 for \(5,\)"):
        hpc.empty(4)


def test_torch_tensors_lie_in_symmetric_buffers():
    torch = pytest.importorskip("torch")
    with hpccoll.Communicator() as own:
        x = own.torch_empty((2, 3), torch.float64)
        for device in ("mps", "gpu", 0, "cuda:x"):
            with pytest.raises(UsageError, match="use cpu, cuda or cuda:0"):
                own.torch_empty(3, device=device)
        assert (tuple(x.shape), x.dtype) == ((2, 3), torch.float64)
        x[:] = 2
        for _ in range(3):
            assert own.all_reduce(x) is x
        assert x.tolist() == [[2.0] * 3] * 2
        own.free(x)
        with pytest.raises(UsageError, match="was freed"):
            own.all_reduce(x)


def test_host_memory_does_not_pass_through_pinned_memory(hpc):
    assert not hpc.stages(NUMPY)


def test_closing_twice_is_closing_once():
    own = hpccoll.Communicator()
    run = own.all_reduce_init(np.ones(3))
    own.close()
    own.close()
    assert not run.live


def test_a_closed_communicator_refuses_every_use():
    own = hpccoll.Communicator()
    x, out = matrix(), matrix()
    for _ in range(3):  # so that the short way through the cache exists
        own.all_reduce(x)
        own.all_reduce(x, out=out)
    own.close()
    calls: list[Callable[[], object]] = [
        *(partial(getattr(own, name), x) for name in EVERY),
        own.barrier,
        lambda: own.all_reduce(x, out=out),
        lambda: own.all_reduce(x, async_op=True),
        lambda: own.all_reduce_init(x),
        lambda: own.prepare(Operation.BARRIER, None),
        lambda: own.isend(x, 0),
        lambda: own.irecv(x, 0),
        lambda: own.recv(x, 0),
        lambda: own.new_group([0]),
        lambda: own.empty(3),
        lambda: own.cupy_empty(3),
        lambda: own.torch_empty(3),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="this communicator was closed; use one that is open"):
            call()


def test_leaving_the_body_closes_unless_an_error_leaves_it():
    with hpccoll.Communicator() as own:
        pass
    with pytest.raises(UsageError, match="was closed"):
        own.barrier()
    with pytest.raises(OSError, match="disk"), hpccoll.Communicator() as own:
        raise OSError("disk is full")
    own.barrier()  # closing is collective: after an error it could wait for ever
    own.close()


def test_closing_waits_for_operations_in_flight():
    own, advanced = hpccoll.Communicator(), []

    class Pending(InFlight):
        def _advance(self):
            advanced.append(True)
            return len(advanced) == 5

    own._engine._started.add(pending := Pending())
    own._engine.progress.add(pending)
    own.close()
    assert len(advanced) == 5


def test_a_communicator_duplicates_the_one_it_is_given_unless_it_adopts_it(comm):
    given = comm.Dup()
    with hpccoll.Communicator(given) as own:
        assert own._comm != given
    assert given.allreduce(1) == 1
    with hpccoll.Communicator(given, adopt=True) as own:
        assert own._comm == given
    assert own._comm == type(given)()  # freed: MPI.COMM_NULL


def test_another_process_is_refused(hpc, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: -1)
    hpc._cache.abandon()  # as a fork does
    calls: list[Callable[[], object]] = [
        lambda: hpc.all_reduce(matrix()),
        lambda: hpc.isend(matrix(), 0),
        lambda: hpc.empty(3),
        lambda: hpc.free(matrix()),
        hpc.close,
    ]
    for call in calls:
        with pytest.raises(UsageError, match="MPI cannot be used after a fork"):
            call()


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda hpc, x: hpc.all_reduce(x, op="mean"), UnknownNameError, r"unknown reduction 'mean'.*avg, band"),
        (lambda hpc, x: hpc.all_reduce(x, op=["sum"]), UnknownNameError, "unknown reduction .*did you mean sum"),
        (lambda hpc, x: hpc.all_reduce(x, algorithm=None), UsageError, "algorithm None is no algorithm; pass the name"),
        (lambda hpc, x: hpc.all_reduce(x, algorithm="rings"), UnknownNameError, r"all_reduce 'rings'.*double_tree"),
        (
            lambda hpc, x: hpc.all_reduce(x, algorithm=get_algorithm(Operation.BROADCAST, "chain")),
            UsageError,
            "broadcast/chain is not an algorithm for all_reduce",
        ),
        (lambda hpc, x: hpc.all_reduce(x, op="bor"), ReductionError, "'bor' is not defined for dtype float64"),
        (lambda hpc, x: hpc.broadcast(x, root=1), UsageError, r"root 1 is not a rank of 0\.\.0"),
        (lambda hpc, x: hpc.prepare(Operation.BROADCAST, x, out=x), BufferError, "broadcast works in place"),
        (lambda hpc, x: hpc.reduce(x, root=-1), UsageError, "root -1 is not a rank"),
        (lambda hpc, x: hpc.all_reduce(x, out=np.ones(5)), BufferError, r"out has shape \(5,\)"),
        (lambda hpc, x: hpc.all_gather(x, out=np.ones((1, 12), "f4")), BufferError, "x is float64 .* out is float32"),
        (lambda hpc, x: hpc.all_reduce(x.T), BufferError, "not C-contiguous"),
        (lambda hpc, x: hpc.all_reduce(x[:3], out=x[1:]), BufferError, "x and out overlap on rank 0"),
        (lambda hpc, x: hpc.all_to_all(np.array(1.0)), BufferError, "first dim is not divisible by 1"),
        (lambda hpc, x: hpc.all_reduce([1.0]), BufferError, "all_reduce: x is a list; pass one array"),
        (lambda hpc, x: hpc.gather(None), BufferError, "rank 0 passed no array"),
        (lambda hpc, x: hpc.scatter(None), BufferError, "passed no x"),
        (lambda hpc, x: hpc.all_reduce_init(x, op="mean"), UnknownNameError, "unknown reduction"),
        (lambda hpc, x: hpc.all_reduce(x, op="mean", async_op=True), UnknownNameError, "unknown reduction"),
        (lambda hpc, x: hpc.all_reduce(x, op="max", algorithm="mpi"), UsageError, "of NaN"),
        (lambda hpc, x: hpc.isend(x, 1), UsageError, r"dest 1 is not a rank of 0\.\.0"),
        (lambda hpc, x: hpc.irecv(x, -7), UsageError, "source -7 is not a rank"),
        (lambda hpc, x: hpc.isend(x, 0, tag=2**15), UsageError, "tag 32768 is not between 0 and 32767"),
        (lambda hpc, x: hpc.isend([1.0], 0), BufferError, "x is of type list"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_and_the_communicator_goes_on(hpc, call, error, match):
    x = matrix()
    with pytest.raises(error, match=match):
        call(hpc, x)
    assert x.tolist() == matrix().tolist()
    assert not hpc._engine.progress
    assert hpc.all_reduce(np.ones(3)).tolist() == [1.0] * 3


def test_an_unknown_argument_is_a_type_error(hpc):
    with pytest.raises(TypeError, match="asynchronous"):
        hpc.all_reduce(matrix(), asynchronous=True)


def test_with_debugging_arguments_are_compared_before_every_call(monkeypatch):
    monkeypatch.setenv("HPCCOLL_DEBUG", "1")
    own = hpccoll.Communicator()
    compared = []
    exchange = ArgumentCheck._exchange

    def record(check, arguments):
        compared.append(arguments)
        return exchange(check, arguments)

    monkeypatch.setattr(ArgumentCheck, "_exchange", record)
    x, out = np.ones(3), np.ones(3)
    for _ in range(4):
        own.all_reduce(x)
        own.all_reduce(x, out=out, algorithm="ring")
    assert len(compared) == 8, "a call took the short way through the cache"
    arguments = {"shape": (3,), "dtype": "float64", "op": "sum", "root": 0, "call": "blocking", "memory": "host"}
    assert compared[-1] == ("all_reduce", "", {**arguments, "algorithm": "all_reduce/ring"})
    with pytest.raises(UnknownNameError):
        own.all_reduce(x, op="mean")
    operation, refusal, _ = compared[-1]
    assert (operation, "unknown reduction 'mean'" in refusal) == ("all_reduce", True)
    own.close()


@pytest.mark.parametrize("name", ["scan", "exscan"])
def test_a_scan_has_no_average(hpc, name):
    with pytest.raises(ReductionError, match=f"{name}: avg is not defined for scans; use sum"):
        getattr(hpc, name)(matrix(), op="avg")


@pytest.mark.parametrize("ranks", [range(1), (0,), np.arange(1), [np.int8(0)]])
def test_ranks_of_groups_and_roots_are_any_integers(hpc, ranks):
    with hpc.new_group(ranks) as group:
        assert group.broadcast(matrix(), root=np.int64(0)).shape == (4, 3)
        assert group.empty(np.array([2, 3]), np.int16).shape == (2, 3)


@pytest.mark.parametrize("ranks", [[False], [0.0], ["0"], np.zeros(1)])
def test_ranks_of_groups_that_are_no_integers_are_refused(hpc, ranks):
    with pytest.raises(UsageError, match="are not distinct ranks"):
        hpc.new_group(ranks)


def test_reductions_of_mpi4py_and_torch_are_accepted(hpc):
    from mpi4py import MPI

    for _ in range(3):
        assert hpc.all_reduce(np.array([2.0]), op=MPI.MAX).tolist() == [2.0]
    with pytest.raises(ReductionError, match=r"this MPI\.Op has no counterpart"):
        hpc.all_reduce(np.array([2.0]), op=MPI.LAND)
    distributed = pytest.importorskip("torch.distributed")
    for op in (distributed.ReduceOp.PRODUCT, distributed.ReduceOp(distributed.ReduceOp.MIN)):
        assert hpc.all_reduce(np.array([2.0]), op=op).tolist() == [2.0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Allreduce", r"use comm\.all_reduce\(x, op='sum'\), or mpi4py's own method: comm\.mpi\.Allreduce"),
        ("Iallgather", r"use comm\.all_gather\(x, async_op=True\)"),
        ("Ibarrier", r"use comm\.barrier\(async_op=True\)"),
        ("Allreduce_init", r"use comm\.all_reduce_init\(x, op='sum'\)"),
        ("Isend", r"use comm\.isend\(x, dest\)"),
        ("bcast", r"use comm\.broadcast_object\(obj\)"),
        ("Get_rank", r"use comm\.rank,"),
        ("Create_cart", r"use comm\.cart\(dims, periods\)"),
        ("nothing", "no attribute 'nothing'$"),
    ],
)
def test_names_of_mpi4py_are_answered_with_those_of_hpccoll(hpc, name, words):
    with pytest.raises(AttributeError, match=words):
        getattr(hpc, name)


@pytest.mark.parametrize(
    ("dtype", "op", "words"),
    [
        ("f8", "max", "MPI does not define max of NaN"),
        ("i1", "sum", "saturate sums of 8-bit and 16-bit integers"),
        ("f2", "sum", "not every MPI library reduces 16-bit floats"),
    ],
)
def test_mpi_says_why_it_refuses_a_reduction(hpc, dtype, op, words):
    with pytest.raises(UsageError, match=f"{words}.*; use algorithm='auto', or one of .*ring"):
        hpc.all_reduce(np.ones(3, dtype), op=op, algorithm="mpi")


@pytest.mark.parametrize(("name", "dtype"), [("f4", np.float32), ("single", np.float32), ("?", bool), ("u1", np.uint8)])
def test_dtypes_have_all_names_of_numpy(hpc, name, dtype):
    assert hpc.empty(3, name).dtype == dtype


@pytest.mark.parametrize("name", [np.dtype(">f4"), ">f4", "f4,f4", "flaot32", "O"])
def test_other_dtypes_are_refused(hpc, name):
    with pytest.raises(UsageError, match="unknown dtype"):
        hpc.empty(3, name)


@pytest.mark.parametrize(
    ("ranks", "dims", "expected"),
    [
        (12, 2, (4, 3)),
        (24, 3, (4, 3, 2)),
        (7, 2, (7, 1)),
        (36, 2, (6, 6)),
        (12, [0, 2], (6, 2)),
        (12, [3, 0, 0], (3, 2, 2)),
        (5, [2, 2], (2, 2)),
    ],
)
def test_dims_of_a_grid_are_as_even_as_possible(ranks, dims, expected):
    assert divide_ranks(ranks, dims) == expected
