"""Wrong arguments raise the same error on every rank before anything is sent; the communicator remains usable."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import hpccoll
from hpccoll.algorithms import get_algorithm
from hpccoll.arrays import DTYPES
from hpccoll.errors import BufferError, HpccollError, ReductionError, UnknownNameError, UsageError
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import check_call


@pytest.fixture(scope="module")
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


@pytest.fixture(autouse=True)
def goes_on(hpc):
    """After every refusal the next collective works."""
    yield
    x = np.ones(3)
    hpc.all_reduce(x)
    assert x.tolist() == [hpc.size] * 3


def test_an_unknown_reduction_names_the_known_ones(hpc):
    with pytest.raises(UnknownNameError, match=r"unknown reduction 'mean'.*avg, band, bor") as caught:
        hpc.all_reduce(np.ones(3), op="mean")
    assert caught.value.exit_status == 2


def test_an_unknown_algorithm_names_the_known_ones(hpc):
    with pytest.raises(UnknownNameError, match=r"algorithm for all_reduce 'rings'.*double_tree.*ring"):
        hpc.all_reduce(np.ones(3), algorithm="rings")
    with pytest.raises(UnknownNameError, match=r"algorithm for barrier 'ring'.*dissemination"):
        hpc.barrier(algorithm="ring")


def test_an_algorithm_of_another_operation_is_refused(hpc):
    with pytest.raises(UsageError, match=r"broadcast/chain is not an algorithm for all_reduce"):
        hpc.all_reduce(np.ones(3), algorithm=get_algorithm(Operation.BROADCAST, "chain"))


@pytest.mark.parametrize("x", [np.array(["a"]), np.array([None]), np.zeros(2, "M8[s]"), np.zeros(2, "f4,i4")])
def test_an_unknown_dtype_names_the_known_ones(hpc, x):
    with pytest.raises(UnknownNameError, match=r"unknown dtype.*bfloat16, bool, complex128"):
        hpc.all_reduce(x)


def test_bytes_in_another_order_are_an_unknown_dtype(hpc):
    with pytest.raises(UnknownNameError, match=r"unknown dtype '>f4'"):
        hpc.all_reduce(np.zeros(2, ">f4"))


DEFINED = {
    "b": {"min", "max", "band", "bor", "bxor"},
    "i": {"sum", "prod", "min", "max", "band", "bor", "bxor"},
    "f": {"sum", "prod", "min", "max", "avg"},
    "c": {"sum", "prod", "avg"},
}


@pytest.mark.parametrize("name", DTYPES)
def test_reductions_that_a_dtype_does_not_have_are_refused(hpc, name):
    dtype = DTYPES[name]
    for op in ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor"):
        x = np.ones(hpc.size, dtype.numpy)
        if op in DEFINED[dtype.kind]:
            hpc.all_reduce(x, op=op)
            continue
        for call in (hpc.all_reduce, hpc.reduce, hpc.reduce_scatter):
            with pytest.raises(ReductionError, match=rf"'{op}' is not defined for dtype {name}: ."):
                call(x, op=op)


@pytest.mark.parametrize(
    ("dtype", "factor", "match"),
    [
        ("int32", 0.5, "float64 does not fit dtype int32"),
        ("int32", np.full(4, 0.5, np.float32), "float32 does not fit dtype int32"),
        ("float32", 1j, "complex128 does not fit dtype float32"),
        ("float32", "2", "does not fit dtype float32"),
        ("float32", None, "needs a factor"),
        ("float32", np.ones(3), r"shape \(3,\) does not broadcast against x of shape \(2, 2\)"),
        ("float32", np.ones((5, 2, 2)), r"does not broadcast"),
        ("bool", 1, "not defined for dtype bool"),
    ],
)
def test_factors_that_do_not_fit_are_refused(hpc, dtype, factor, match):
    with pytest.raises(ReductionError, match=match):
        hpc.all_reduce(np.ones((2, 2), dtype), op=hpccoll.premul_sum(factor))


def test_factors_broadcast_against_the_array(hpc):
    for factor in (2, np.float32(2), np.array(2.0), np.full(3, 2.0), np.full((4, 1), 2), [[2, 2, 2]]):
        x = np.ones((4, 3), np.float32)
        hpc.all_reduce(x, op=hpccoll.premul_sum(factor))
        assert set(x.reshape(-1)) == {2 * hpc.size}


def test_an_output_that_is_not_contiguous_is_refused(hpc):
    x = np.ones((6, 4))
    for y in (x[:, ::2], x.T, x[::-1]):
        with pytest.raises(BufferError, match=r"x of shape .* is not C-contiguous.*ascontiguousarray"):
            hpc.all_reduce(y)
        with pytest.raises(BufferError, match=r"out of shape .* is not C-contiguous"):
            hpc.all_reduce(y.copy(), out=y)


def test_an_input_may_be_strided_reversed_or_read_only(hpc):
    x = np.arange(24.0).reshape(6, 4)
    for strided in (x[:, ::2], x.T, x[::-1], x[1:3, 1:3]):
        y = strided.view()
        y.flags.writeable = False
        out = np.zeros(y.shape)
        hpc.all_reduce(y, out=out)
        assert out.tolist() == (y * hpc.size).tolist()
        assert hpc.all_gather(y).tolist() == [y.tolist()] * hpc.size


def test_a_read_only_output_is_refused(hpc):
    x = np.ones(4)
    x.flags.writeable = False
    for call in (lambda: hpc.all_reduce(x), lambda: hpc.all_reduce(np.ones(4), out=x), lambda: hpc.recv(x, 0)):
        with pytest.raises(BufferError, match=r"\(4,\) is read-only and would be written"):
            call()
    if hpc.rank != 0:
        with pytest.raises(BufferError, match="read-only"):
            check_call(Operation.BROADCAST, x, None, hpc.rank, hpc.size)
    else:
        check_call(Operation.BROADCAST, x, None, hpc.rank, hpc.size)  # the root only reads


@pytest.mark.parametrize("root", [-1, 99])
def test_a_root_that_is_no_rank_is_refused(hpc, root):
    for call in (hpc.broadcast, hpc.reduce, hpc.gather, hpc.scatter):
        with pytest.raises(UsageError, match=rf"root {root} is not a rank of 0..{hpc.size - 1}"):
            call(np.ones(hpc.size), root=root)


def test_shapes_that_do_not_fit_are_refused_with_both(hpc):
    n = hpc.size
    refused = [
        (lambda: hpc.all_reduce(np.ones(3), out=np.ones(4)), r"out has shape \(4,\).*x of shape \(3,\) gives 3"),
        (lambda: hpc.all_gather(np.ones(3), out=np.ones((n, 4))), rf"\({n}, 4\).*gives {3 * n}"),
        (lambda: hpc.reduce_scatter(np.ones((n, 3)), out=np.ones(3 * n + 1)), r"gives 3"),
        (lambda: hpc.all_to_all(np.ones((n, 2)), out=np.ones(2 * n + 1)), rf"gives {2 * n}"),
        (lambda: hpc.all_to_all(np.array(1.0)), rf"first dim is not divisible by {n}"),
    ]
    for call, match in refused:
        with pytest.raises(BufferError, match=match):
            call()
    for operation in (hpc.reduce_scatter, hpc.all_to_all) if n > 1 else ():
        with pytest.raises(BufferError, match=rf"\({n + 1},\).*first dim is not divisible by {n}"):
            operation(np.ones(n + 1))


def test_dtypes_of_input_and_output_must_agree(hpc):
    with pytest.raises(BufferError, match=r"x is float32 \(numpy\) and out is float64"):
        hpc.all_reduce(np.ones(3, np.float32), out=np.ones(3))


def test_arrays_that_are_missing_or_too_many_are_named(hpc):
    for call in (
        hpc.all_reduce,
        hpc.reduce,
        hpc.broadcast,
        hpc.all_gather,
        hpc.gather,
        hpc.all_to_all,
        hpc.reduce_scatter,
    ):
        with pytest.raises(BufferError, match=rf"rank {hpc.rank} passed no array"):
            call(None)
    with pytest.raises(BufferError, match="broadcast works in place"):
        hpc.prepare(Operation.BROADCAST, np.ones(2), out=np.ones(2))
    with pytest.raises(BufferError, match="passed no x" if hpc.rank == 0 else "needs out"):
        hpc.scatter(None, root=0)


@pytest.mark.parametrize("thing", ["array", {}, memoryview(b"ab"), 3.0, [1.0, 2.0], (1, 2)])
def test_what_is_no_array_is_refused(hpc, thing):
    message = rf"x is of type {type(thing).__name__}; pass an array of NumPy"
    if not isinstance(thing, float | list | tuple):
        with pytest.raises(BufferError, match=message):
            hpc.all_reduce(thing)
    with pytest.raises(BufferError, match=message):
        hpc.isend(thing, 0)


def test_input_and_output_that_overlap_otherwise_than_in_place_are_refused(hpc):
    n, memory = hpc.size, np.ones(100)
    overlapping = [
        lambda: hpc.all_reduce(memory[:10], out=memory[5:15]),
        lambda: hpc.all_reduce(memory[5:15], out=memory[:10]),
        lambda: hpc.all_to_all(memory[: 2 * n], out=memory[1 : 1 + 2 * n]),
        lambda: hpc.all_gather(memory[hpc.rank * 4 + 1 : hpc.rank * 4 + 5], out=memory[: 4 * n + 4][: 4 * n]),
        lambda: hpc.reduce_scatter(memory[: 4 * n], out=memory[hpc.rank * 4 + 1 : hpc.rank * 4 + 5]),
    ]
    for call in overlapping[: 4 if n == 1 else 5]:
        with pytest.raises(BufferError, match=rf"x and out overlap on rank {hpc.rank}"):
            call()
    with pytest.raises(BufferError, match="overlap"):
        hpc.all_reduce(memory[:10], out=memory[5:15], async_op=True)
    with pytest.raises(BufferError, match="overlap"):
        hpc.all_reduce_init(memory[:10], out=memory[5:15])


def test_neighbours_in_memory_do_not_overlap(hpc):
    memory = np.ones(20)
    hpc.all_reduce(memory[:10], out=memory[10:])
    assert memory.tolist() == [1] * 10 + [hpc.size] * 10


# -1 and -2 are MPI.ANY_SOURCE of Open MPI and of MPICH.
@pytest.mark.parametrize("peer", [-3, -7, 99])
def test_messages_to_no_rank_are_refused(hpc, peer):
    with pytest.raises(UsageError, match=rf"dest {peer} is not a rank of 0..{hpc.size - 1}"):
        hpc.send(np.ones(1), peer)
    with pytest.raises(UsageError, match=rf"source {peer} is not a rank"):
        hpc.recv(np.ones(1), peer)


def test_tags_out_of_range_are_refused(hpc):
    for tag in (-1, 2**15, 2**40):
        with pytest.raises(UsageError, match=f"tag {tag} is not between 0 and 32767"):
            hpc.isend(np.ones(1), 0, tag)


def test_a_blocking_send_to_oneself_is_refused(hpc):
    """It would wait for a receive that the same rank can only post afterwards."""
    with pytest.raises(UsageError, match=rf"rank {hpc.rank} would wait for itself in send; use isend"):
        hpc.send(np.ones(1), hpc.rank)


def test_shapes_of_shared_memory_are_checked(hpc):
    with pytest.raises(UsageError, match="negative extent"):
        hpc.empty((3, -1))
    with pytest.raises(UsageError, match="unknown dtype 'float31'"):
        hpc.empty(3, "float31")


def test_a_closed_communicator_says_so(hpc, comm):
    closed = hpccoll.Communicator(comm)
    x = np.ones(3)
    for _ in range(3):
        closed.all_reduce(x)
    closed.close()
    uses: list[Callable[[], object]] = [
        lambda: closed.all_reduce(x),
        closed.barrier,
        lambda: closed.all_reduce(x, async_op=True),
        lambda: closed.all_reduce_init(x),
        lambda: closed.isend(x, 0),
        lambda: closed.recv(x, 0),
        lambda: closed.new_group([0]),
        lambda: closed.empty(3),
    ]
    for use in uses:
        with pytest.raises(HpccollError, match="communicator was closed"):
            use()
    closed.close()


def test_floating_point_trouble_stays_within_the_numbers(hpc):
    """Overflow gives infinity with any NumPy error setting, because an exception on one rank would block the others."""
    big = np.full(5, np.finfo(np.float32).max, np.float32)
    with np.errstate(all="raise"):
        for _ in range(3):
            x, nothing = big.copy(), np.array([np.inf if hpc.rank % 2 else -np.inf])
            hpc.all_reduce(x, op="prod", algorithm="ring")
            hpc.all_reduce(nothing, algorithm="recursive_doubling")
            assert hpc.size == 1 or set(x) == {np.inf}
            assert hpc.size == 1 or np.isnan(nothing).all()
        hpc.all_reduce(big.copy(), op=hpccoll.premul_sum(4.0))
        assert np.geterr()["over"] == "raise"
