"""Unbound collectives on one rank: which calls they carry out, which are checked in full, and what is kept."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import hpccoll
from hpccoll.errors import BufferError, ReductionError, UsageError
from hpccoll.plan import Operation
from hpccoll.runtime.unbound import UnboundCollectives
from hpccoll.selection import round_message_size

ONE_ARRAY = ("all_reduce", "reduce", "broadcast", "scan", "exscan")
BLOCKS = ("all_gather", "gather", "reduce_scatter", "all_to_all")


@pytest.fixture
def hpc():
    with hpccoll.Communicator() as made:
        yield made


@pytest.fixture
def unbound(hpc, monkeypatch):
    """A communicator whose calls fail unless they are unbound; `learn` makes calls of a kind known.

    The first arrays are kept, so that no later array has their id.
    """
    kept = []

    def learn(name, *arguments, **how):
        kept.append((arguments, how))
        getattr(hpc, name)(*arguments, **how)
        monkeypatch.setattr(hpc, "_check", None)
        return hpc

    return learn


def make(torch=False, count=6):
    x = np.arange(float(count))
    if not torch:
        return x
    return pytest.importorskip("torch").from_numpy(x)


def assert_checked(call):
    """Assert that a call goes through the full check, which the fixture `unbound` has removed."""
    with pytest.raises(TypeError, match="NoneType"):
        call()


@pytest.mark.parametrize("algorithm", ["auto", "mpi"])
@pytest.mark.parametrize("torch", [False, True])
@pytest.mark.parametrize("name", ONE_ARRAY)
def test_calls_on_new_arrays_are_not_checked_in_full(unbound, name, torch, algorithm):
    call = getattr(unbound(name, make(torch), algorithm=algorithm), name)
    arrays = [make(torch) for _ in range(5)]
    for x in arrays:
        assert call(x, algorithm=algorithm) is x
        assert x.tolist() == make().tolist()


@pytest.mark.parametrize("algorithm", ["auto", "mpi"])
@pytest.mark.parametrize("torch", [False, True])
@pytest.mark.parametrize("name", [*BLOCKS, "all_reduce", "reduce"])
def test_outputs_may_be_given(unbound, name, torch, algorithm):
    call = getattr(unbound(name, make(torch), out=make(torch), algorithm=algorithm), name)
    for x, out in [(make(torch), 0 * make(torch)) for _ in range(3)]:
        assert call(x, out=out, algorithm=algorithm) is out
        assert out.tolist() == x.tolist() == make().tolist()


@pytest.mark.parametrize("torch", [False, True])
@pytest.mark.parametrize("name", BLOCKS)
def test_missing_outputs_are_allocated_with_the_shape_that_a_checked_call_gives(hpc, monkeypatch, name, torch):
    call, x = getattr(hpc, name), make(torch).reshape(2, 3)
    first = call(x)
    monkeypatch.setattr(hpc, "_check", None)
    for _ in range(3):
        again = call(x)
        assert again is not first
        assert again.shape == first.shape
        assert again.tolist() == first.tolist()


def test_sizes_with_the_same_leading_bits_are_of_one_kind(unbound):
    hpc = unbound("all_reduce", np.ones(1000), algorithm="mpi")
    x, larger = np.ones(1001), np.ones(2000)
    assert hpc.all_reduce(x, algorithm="mpi") is x
    assert_checked(lambda: hpc.all_reduce(larger, algorithm="mpi"))


def test_a_plan_is_unbound_for_the_sizes_that_were_checked(unbound):
    hpc = unbound("all_reduce", np.ones(1000), algorithm="ring")
    x, longer = np.ones(1000), np.ones(1001)
    assert hpc.all_reduce(x, algorithm="ring") is x
    assert_checked(lambda: hpc.all_reduce(longer, algorithm="ring"))


def test_a_kind_has_an_average(unbound):
    x = make()
    hpc = unbound("all_reduce", make(), "avg", algorithm="mpi")
    assert hpc.all_reduce(x, "avg", algorithm="mpi").tolist() == make().tolist()


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
def test_unusual_arrays_are_checked(unbound, case, algorithm):
    hpc = unbound("all_reduce", make(), out=make(), algorithm=algorithm)
    x, out = DIFFERING[case](make(), make())
    if case == "output overlaps":
        out = x.base[3:]
    assert_checked(lambda: hpc.all_reduce(x, out=out, algorithm=algorithm))


def test_unusual_tensors_are_checked(unbound):
    torch = pytest.importorskip("torch")
    x = torch.ones(6, dtype=torch.complex64)
    hpc = unbound("all_reduce", x, algorithm="mpi")
    tracked = x.clone().requires_grad_()
    for odd in (x.clone().conj(), x.conj().imag.to(torch.complex64)[::2], torch.nn.Parameter(x), x.to_sparse()):
        assert_checked(lambda odd=odd: hpc.all_reduce(odd, algorithm="mpi"))
    assert hpc.all_reduce(tracked, algorithm="mpi") is tracked


def test_an_input_that_the_ranks_do_not_divide_is_checked(hpc, monkeypatch):
    hpc.all_to_all(make())
    monkeypatch.setattr(hpc, "_check", None)
    assert_checked(lambda: hpc.all_to_all(np.array(1.0)))


def test_calls_on_symmetric_buffers_are_checked(unbound):
    hpc = unbound("all_reduce", make(), out=make(), algorithm="mpi")
    buffer, x, out = hpc.empty(6, "float64"), make(), make()
    assert_checked(lambda: hpc.all_reduce(buffer, out=make(), algorithm="mpi"))
    assert_checked(lambda: hpc.all_reduce(make(), out=buffer, algorithm="mpi"))
    assert hpc.all_reduce(x, out=out, algorithm="mpi").tolist() == make().tolist()


def test_errors_of_a_known_kind_are_those_of_a_checked_call(hpc):
    hpc.all_reduce(make(), out=make())
    with pytest.raises(BufferError, match="out has shape"):
        hpc.all_reduce(make(), out=make(count=5))
    with pytest.raises(ReductionError):
        hpc.all_reduce(make(), "bxor")


def test_a_first_call_binds_nothing_and_refers_to_no_array(hpc, monkeypatch):
    first = make()
    hpc.all_reduce(first, algorithm="mpi")
    monkeypatch.setattr(hpc._engine, "bind", None)
    arrays = [make() for _ in range(100)]
    for x in arrays:
        hpc.all_reduce(x, algorithm="mpi")
        assert not weakref.getweakrefcount(x)
    assert not hpc._cache.by_array


def test_a_direct_call_is_not_bound_to_new_arrays_with_the_id_of_a_deleted_one(hpc):
    ids = set()
    for _ in range(20):
        x = make()
        ids.add(id(x))
        hpc.all_reduce(x, algorithm="mpi")
        del x
    assert len(ids) < 20
    assert not len(hpc._cache)  # no executable was made


class Stale:
    """Stands for the executable of an array that has changed since."""

    live = True

    def run(self):
        pytest.fail("the executable of the earlier array ran")


CHANGES = {
    "dtype": lambda x: setattr(x, "dtype", np.int64),
    "address": lambda x: x.set_(x.clone()),
    "length": lambda x: x.set_(x.untyped_storage(), 0, (3,)),
    "contiguity": lambda x: x.t_(),
    "freed": lambda _: None,
}


@pytest.mark.filterwarnings("ignore:.*dtype:DeprecationWarning")
@pytest.mark.parametrize("how", [{}, {"op": "max"}])
@pytest.mark.parametrize("change", CHANGES)
def test_an_executable_never_runs_after_its_array_changed(hpc, monkeypatch, change, how):
    monkeypatch.setattr(Stale, "live", change != "freed")
    empty = hpc.empty if change in ("dtype", "freed") else hpc.torch_empty
    x, how = empty((2, 3), "float64"), {"algorithm": "shared_two_shot"} | how  # a plan that accesses x in place
    for _ in range(2):
        hpc.all_reduce(x, **how)
    ((key, (_, *bound_to)),) = hpc._cache.by_array.items()
    hpc._cache.by_array[key] = Stale(), *bound_to
    CHANGES[change](x)
    with pytest.raises(BufferError, match="contiguous") if change == "contiguity" else nullcontext():
        hpc.all_reduce(x, **how)


def test_an_array_of_repeated_direct_calls_is_not_kept_alive(hpc):
    first, x = make(), make()
    hpc.all_reduce(first, algorithm="mpi")
    for _ in range(2):
        hpc.all_reduce(x, algorithm="mpi")
    gone = weakref.ref(x)
    del x
    assert gone() is None


def test_scaled_sums_and_barriers_are_never_unbound(hpc):
    for _ in range(3):
        assert hpc.all_reduce(make(), hpccoll.premul_sum(2)).tolist() == (2 * make()).tolist()
        hpc.barrier()
        hpc.scatter(make())
    assert not hpc._cache.by_kind


def test_kinds_are_bounded(hpc, monkeypatch):
    monkeypatch.setattr("hpccoll.runtime.unbound.KINDS", 3)
    algorithm = "ring"
    for count in range(1, 60):
        for _ in range(2):
            assert hpc.all_reduce(np.ones(count, np.int8), algorithm=algorithm).tolist() == [1] * count
        assert len(hpc._cache.by_kind) <= 3


def test_a_closed_communicator_is_refused():
    hpc = hpccoll.Communicator()
    hpc.all_reduce(make())
    hpc.close()
    with pytest.raises(UsageError, match="closed"):
        hpc.all_reduce(make())


def test_a_debugged_communicator_checks_every_call(monkeypatch):
    monkeypatch.setenv("HPCCOLL_DEBUG", "1")
    with hpccoll.Communicator() as hpc:
        for _ in range(3):
            hpc.all_reduce(make())
        assert not hpc._cache.by_kind


def test_the_selection_log_sees_every_call(monkeypatch, capsys):
    monkeypatch.setenv("HPCCOLL_LOG", "1")
    with hpccoll.Communicator() as hpc:
        for count in (1000, 1001):
            hpc.all_reduce(np.ones(count, np.int8))
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_the_operations_have_the_arrays_that_kinds_assume(hpc):
    """All operations but barrier and scatter take an input on every rank."""
    assert {each.value for each in Operation} == {*ONE_ARRAY, *BLOCKS, "barrier", "scatter"}


@pytest.mark.parametrize("operation", [Operation.ALL_REDUCE, Operation.ALL_GATHER])
def test_sizes_of_one_kind_have_messages_with_the_same_leading_bits_on_three_ranks(operation):
    """Otherwise ranks with other arrays, which make a selection for the exact size, could select a plan."""
    nothing: Any = None
    three = UnboundCollectives({}, nothing, nothing, 3, 0, nothing, nothing, nothing)
    selections: dict[Hashable, set[int]] = {}
    for nbytes in range(4, 4096, 4):
        key = three._generalize((operation, np.dtype("f4"), nbytes, "sum", 0, "auto", True))
        message = nbytes * 3 if operation is Operation.ALL_GATHER else nbytes
        selections.setdefault(key, set()).add(round_message_size(message))
    assert max(map(len, selections.values())) == 1
    assert len(selections) < 100
