"""The call cache on one rank: which calls skip the checks, which are checked in full, and what is kept."""

from __future__ import annotations

import os
import pickle
import sys
import weakref
from collections.abc import Hashable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hpccoll
from hpccoll.errors import BufferError, ReductionError, UsageError
from hpccoll.plan import Operation
from hpccoll.runtime.call_cache import CallCache
from hpccoll.selection import round_message_size

ONE_ARRAY = ("all_reduce", "reduce", "broadcast", "scan", "exscan")
BLOCKS = ("all_gather", "gather", "reduce_scatter", "all_to_all")


@pytest.fixture
def hpc():
    with hpccoll.Communicator() as made:
        yield made


@pytest.fixture
def learn(hpc, monkeypatch):
    """A function that makes a call, after which all calls of its communicator fail unless they skip the checks."""

    def learn(name, *arguments, **how):
        getattr(hpc, name)(*arguments, **how)
        monkeypatch.setattr(hpc, "_check", None)
        return hpc

    return learn


def make_array(torch=False, count=6):
    """Return an array of NumPy or a tensor."""
    x = np.arange(float(count))
    if not torch:
        return x
    return pytest.importorskip("torch").from_numpy(x)


def assert_checked(call):
    """Assert that a call goes through the full check, which the fixture `learn` has removed."""
    with pytest.raises(TypeError, match="NoneType"):
        call()


@pytest.mark.parametrize("algorithm", ["auto", "mpi"])
@pytest.mark.parametrize("torch", [False, True])
@pytest.mark.parametrize("name", ONE_ARRAY)
def test_calls_on_new_arrays_are_not_checked_in_full(learn, name, torch, algorithm):
    call = getattr(learn(name, make_array(torch), algorithm=algorithm), name)
    arrays = [make_array(torch) for _ in range(5)]
    for x in arrays:
        assert call(x, algorithm=algorithm) is x
        assert x.tolist() == make_array().tolist()


@pytest.mark.parametrize("algorithm", ["auto", "mpi"])
@pytest.mark.parametrize("torch", [False, True])
@pytest.mark.parametrize("name", [*BLOCKS, "all_reduce", "reduce"])
def test_outputs_may_be_given(learn, name, torch, algorithm):
    call = getattr(learn(name, make_array(torch), out=make_array(torch), algorithm=algorithm), name)
    for x, out in [(make_array(torch), 0 * make_array(torch)) for _ in range(3)]:
        assert call(x, out=out, algorithm=algorithm) is out
        assert out.tolist() == x.tolist() == make_array().tolist()


@pytest.mark.parametrize("torch", [False, True])
@pytest.mark.parametrize("name", BLOCKS)
def test_missing_outputs_are_allocated_with_the_shape_that_a_checked_call_gives(hpc, monkeypatch, name, torch):
    call, x = getattr(hpc, name), make_array(torch).reshape(2, 3)
    first = call(x)
    monkeypatch.setattr(hpc, "_check", None)
    for _ in range(3):
        again = call(x)
        assert again is not first
        assert again.shape == first.shape
        assert again.tolist() == first.tolist()


def test_sizes_with_the_same_leading_bits_are_of_one_kind(learn):
    hpc = learn("all_reduce", np.ones(1000), algorithm="mpi")
    x, larger = np.ones(1001), np.ones(2000)
    assert hpc.all_reduce(x, algorithm="mpi") is x
    assert_checked(lambda: hpc.all_reduce(larger, algorithm="mpi"))


def test_a_plan_is_known_for_the_sizes_that_were_checked(learn):
    hpc = learn("all_reduce", np.ones(1000), algorithm="ring")
    x, longer = np.ones(1000), np.ones(1001)
    assert hpc.all_reduce(x, algorithm="ring") is x
    assert_checked(lambda: hpc.all_reduce(longer, algorithm="ring"))


def test_a_kind_has_an_average(learn):
    x = make_array()
    hpc = learn("all_reduce", make_array(), "avg", algorithm="mpi")
    assert hpc.all_reduce(x, "avg", algorithm="mpi").tolist() == make_array().tolist()


DIFFERING = {
    "strided": lambda x, out: (np.arange(12.0)[::2], out),
    "read-only": lambda x, out: (np.frombuffer(x.tobytes()), out),
    "other dtype": lambda x, out: (x.astype(np.int64), out.astype(np.int64)),
    "subclass": lambda x, out: (x.view(np.recarray), out),
    "list": lambda x, out: (x.tolist(), out),
    "empty": lambda x, out: (x[:0], out[:0]),
    "other byte order": lambda x, out: (x.astype(">f8"), out),
    "output too short": lambda x, out: (x, out[:-1]),
    "output too long": lambda x, out: (x, np.ones(7)),
    "output strided": lambda x, out: (x, np.ones(12)[::2]),
    "output of other dtype": lambda x, out: (x, out.astype(np.int64)),
    "output in place": lambda x, out: (x, x),
    "output overlaps": lambda x, out: (np.ones(9)[:6], None),
    "output a list": lambda x, out: (x, out.tolist()),
}


@pytest.mark.parametrize("algorithm", ["auto", "mpi"])
@pytest.mark.parametrize("case", DIFFERING)
def test_unusual_arrays_are_checked(learn, case, algorithm):
    hpc = learn("all_reduce", make_array(), out=make_array(), algorithm=algorithm)
    x, out = DIFFERING[case](make_array(), make_array())
    if case == "output overlaps":
        out = x.base[3:]
    assert_checked(lambda: hpc.all_reduce(x, out=out, algorithm=algorithm))


def test_unusual_tensors_are_checked(learn):
    torch = pytest.importorskip("torch")
    x = torch.ones(6, dtype=torch.complex64)
    hpc = learn("all_reduce", x, algorithm="mpi")
    tracked = x.clone().requires_grad_()
    for odd in (x.clone().conj(), x.conj().imag.to(torch.complex64)[::2], torch.nn.Parameter(x), x.to_sparse()):
        assert_checked(lambda odd=odd: hpc.all_reduce(odd, algorithm="mpi"))
    assert hpc.all_reduce(tracked, algorithm="mpi") is tracked


def test_an_input_that_the_ranks_do_not_divide_is_checked(hpc, monkeypatch):
    hpc.all_to_all(make_array())
    monkeypatch.setattr(hpc, "_check", None)
    assert_checked(lambda: hpc.all_to_all(np.array(1.0)))


@pytest.mark.parametrize("algorithm", [pytest.param("mpi", id="library"), "ring", "shared_two_shot"])
def test_calls_on_symmetric_buffers_are_a_kind_of_their_own(learn, hpc, algorithm):
    buffer, other = hpc.empty(6, "float64"), hpc.empty(6, "float64")
    buffer[:] = other[:] = make_array()
    learn("all_reduce", make_array(), out=make_array(), algorithm=algorithm)
    assert_checked(lambda: hpc.all_reduce(buffer, out=make_array(), algorithm=algorithm))
    assert_checked(lambda: hpc.all_reduce(make_array(), out=buffer, algorithm=algorithm))
    x, out = make_array(), make_array()
    assert hpc.all_reduce(x, out=out, algorithm=algorithm).tolist() == make_array().tolist()
    assert buffer.tolist() == other.tolist() == make_array().tolist()


def test_symmetric_buffers_of_one_kind_skip_the_checks(learn, hpc):
    first, second = hpc.empty(6, "float64"), hpc.empty(8, "float64")[:6]
    first[:], second[:] = 1, 2
    learn("all_reduce", first, algorithm="shared_two_shot")
    assert hpc.all_reduce(second, algorithm="shared_two_shot") is second
    assert second.tolist() == [2] * 6


def test_a_freed_symmetric_buffer_is_refused_after_calls_on_it(hpc):
    x = hpc.empty(6, "float64")
    x[:] = 1
    for _ in range(2):
        hpc.all_reduce(x, algorithm="shared_two_shot")
    hpc.free(x)
    with pytest.raises(UsageError, match="symmetric buffer was freed"):
        hpc.all_reduce(x, algorithm="shared_two_shot")


def test_a_buffer_of_another_communicator_is_refused_after_calls_on_own_ones(hpc):
    own = hpc.empty(6, "float64")
    with hpccoll.Communicator() as other:
        foreign = other.empty(6, "float64")
        foreign[:] = own[:] = 1
        for _ in range(2):
            hpc.all_reduce(own, algorithm="shared_two_shot")
        with pytest.raises(UsageError, match="another communicator"):
            hpc.all_reduce(foreign, algorithm="shared_two_shot")


def test_equal_names_roots_and_dtypes_need_not_be_identical(learn, hpc):
    learn("all_reduce", make_array(), "max", algorithm="ring")
    name, op = (word.decode() for word in (b"ring", b"max"))  # new objects
    pickled = pickle.loads(pickle.dumps(make_array()))
    for x in (make_array(), pickled):
        assert hpc.all_reduce(x, op, algorithm=name) is x


def test_an_output_that_is_the_input_is_no_kind_of_other_outputs(hpc):
    for _ in range(2):
        x, out = make_array(), 0 * make_array()
        assert hpc.all_reduce(x, out=x) is x
        assert hpc.all_reduce(x, out=out) is out
        assert out.tolist() == make_array().tolist()


def test_errors_of_a_known_kind_are_those_of_a_checked_call(hpc):
    hpc.all_reduce(make_array(), out=make_array())
    with pytest.raises(BufferError, match="out has shape"):
        hpc.all_reduce(make_array(), out=make_array(count=5))
    with pytest.raises(ReductionError):
        hpc.all_reduce(make_array(), "bxor")


def test_calls_bind_nothing_and_refer_to_no_array(hpc, monkeypatch):
    monkeypatch.setattr(hpc._engine, "prepare", None)
    for algorithm in ("mpi", "ring", "shared_two_shot"):
        arrays = [make_array() for _ in range(100)]
        for x in arrays:
            hpc.all_reduce(x, algorithm=algorithm)
            assert not weakref.getweakrefcount(x)
            assert sys.getrefcount(x) == 3  # `arrays`, `x` and the argument


CHANGES = {
    "dtype": lambda x: setattr(x, "dtype", np.int64),
    "address": lambda x: x.set_(x.clone()),
    "length": lambda x: x.set_(x.untyped_storage(), 0, (3,)),
}


@pytest.mark.filterwarnings("ignore:.*dtype:DeprecationWarning")
@pytest.mark.parametrize("how", [{}, {"op": "max"}])
@pytest.mark.parametrize("change", CHANGES)
def test_an_array_that_has_changed_is_another_array(hpc, change, how):
    empty = hpc.empty if change == "dtype" else hpc.torch_empty
    x, how = empty((2, 3), "float64"), {"algorithm": "shared_two_shot"} | how  # a plan that accesses x in place
    x[:] = 1
    for _ in range(2):
        hpc.all_reduce(x, **how)
    CHANGES[change](x)
    expected = x.tolist()
    assert hpc.all_reduce(x, **how).tolist() == expected


def test_an_array_of_repeated_calls_is_not_kept_alive(hpc):
    first, x = make_array(), make_array()
    hpc.all_reduce(first, algorithm="mpi")
    for _ in range(2):
        hpc.all_reduce(x, algorithm="mpi")
    gone = weakref.ref(x)
    del x
    assert gone() is None


def test_scaled_sums_are_never_known(hpc):
    for _ in range(3):
        assert hpc.all_reduce(make_array(), hpccoll.premul_sum(2)).tolist() == (2 * make_array()).tolist()
    assert not len(hpc._cache.blocking)


def test_barriers_and_scatters_are_known(hpc, monkeypatch):
    hpc.barrier(algorithm="shared")
    hpc.scatter(make_array(), algorithm="shared")
    monkeypatch.setattr(hpc, "_check", None)
    assert hpc.barrier(algorithm="shared") is None
    assert hpc.scatter(make_array(), algorithm="shared").tolist() == make_array().tolist()
    x, out = make_array(), 0 * make_array()
    assert_checked(lambda: hpc.scatter(x, out=out, algorithm="shared"))


def test_kinds_are_bounded(hpc):
    for count in range(1, 600):
        for _ in range(2):
            assert hpc.all_reduce(np.ones(count, np.int8), algorithm="ring").tolist() == [1] * count
        assert len(hpc._cache.blocking) <= 512


def test_tables_grow_and_find_all_kinds(learn, hpc):
    for count in range(1, 300):
        hpc.all_reduce(np.ones(count, np.int8), algorithm="ring")
    learn("all_reduce", np.ones(300, np.int8), algorithm="ring")
    for count in range(1, 300):
        assert hpc.all_reduce(np.full(count, 3, np.int8), algorithm="ring").tolist() == [3] * count


def test_a_closed_communicator_is_refused():
    hpc = hpccoll.Communicator()
    hpc.all_reduce(make_array())
    hpc.close()
    with pytest.raises(UsageError, match="closed"):
        hpc.all_reduce(make_array())


def test_a_debugged_communicator_checks_every_call(monkeypatch):
    monkeypatch.setenv("HPCCOLL_DEBUG", "1")
    with hpccoll.Communicator() as hpc:
        for _ in range(3):
            hpc.all_reduce(make_array())
        assert not len(hpc._cache.blocking)


def test_the_selection_log_sees_every_call(monkeypatch, capsys):
    monkeypatch.setenv("HPCCOLL_LOG", "1")
    with hpccoll.Communicator() as hpc:
        for count in (1000, 1001):
            hpc.all_reduce(np.ones(count, np.int8))
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize("operation", [Operation.ALL_REDUCE, Operation.ALL_GATHER])
def test_sizes_of_one_kind_have_messages_with_the_same_leading_bits_on_three_ranks(operation):
    """Otherwise ranks with other arrays, which make a selection for the exact size, could select a plan."""
    nothing: Any = None
    library: Any = SimpleNamespace(comm=SimpleNamespace(size=3, rank=0))
    three = CallCache((nothing, nothing), library)
    selections: dict[Hashable, set[int]] = {}
    for count in range(1, 1024):
        request: Any = operation, np.empty(count, np.float32), None, "sum", 0, "auto", None
        key = three._generalize(request, asynchronous=False)
        message = count * 4 * (3 if operation is Operation.ALL_GATHER else 1)
        selections.setdefault(key, set()).add(round_message_size(message))
    assert max(map(len, selections.values())) == 1
    assert len(selections) < 100


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_forgets_all_kinds(hpc):
    """So that its next call is checked, and refused: MPI cannot be used after a fork."""
    for _ in range(2):
        hpc.all_reduce(make_array(), algorithm="shared_two_shot")
    prepared = hpc.all_reduce_init(make_array())
    child = os.fork()
    if not child:
        os._exit(3 if not len(hpc._cache.blocking) and not prepared.live else 4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert len(hpc._cache.blocking) == 1
    assert prepared.live


def test_an_executable_that_its_user_freed_is_no_longer_kept(hpc):
    gone = [weakref.ref(hpc.all_reduce_init(make_array())) for _ in range(2)]
    hpc.all_reduce_init(make_array()).free()
    hpc.all_reduce_init(make_array())
    assert [each() is not None for each in gone] == [True, True]
    assert len(hpc._cache._prepared) == 3
