"""Arguments that are no arrays of NumPy, CuPy or torch: lists of arrays, numbers, arrays of other libraries."""

from __future__ import annotations

import numpy as np
import pytest

import hpccoll
from hpccoll.errors import BufferError, ReductionError, UsageError
from tests.mpi.foreign_arrays import ArrayApiArray, ImmutableArray


@pytest.fixture
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


def rows(hpc, make=np.full):
    """Return one array per rank; element values name sender and receiver."""
    return [make((2, 3), 10.0 * hpc.rank + to) for to in range(hpc.size)]


def torch_full(shape, value):
    return pytest.importorskip("torch").full(shape, value)


MAKERS = [np.full, torch_full]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("make", MAKERS)
def test_lists_go_in_and_out(hpc, make, asynchronous):
    n, rank = hpc.size, hpc.rank

    def call(method, *arguments, **options):
        result = method(*arguments, async_op=asynchronous, **options)
        return result.wait() if asynchronous else result

    for _ in range(3):
        x = rows(hpc, make)
        outs = [make((2, 3), -1.0) for _ in range(n)]
        assert call(hpc.all_gather, x[0], out=outs) is outs
        assert [each[1, 2] for each in outs] == [10 * source for source in range(n)]
        sent = call(hpc.all_to_all, x)
        assert type(sent) is list
        assert [(tuple(each.shape), each[0, 0]) for each in sent] == [
            ((2, 3), 10 * source + rank) for source in range(n)
        ]
        assert call(hpc.all_to_all, x, out=outs) is outs
        assert [each[1, 2] for each in outs] == [10 * source + rank for source in range(n)]
        assert call(hpc.all_to_all, make((n, 6), 10.0 * rank), out=outs) is outs
        assert [each[1, 2] for each in outs] == [10 * source for source in range(n)]
        block = call(hpc.reduce_scatter, x)
        assert tuple(block.shape) == (2, 3)
        assert block[0, 0] == sum(10 * source + rank for source in range(n))
        out = make((6,), 0.0)
        assert call(hpc.reduce_scatter, x, op="max", out=out) is out
        assert out[5] == 10 * (n - 1) + rank
        last = n - 1
        assert call(hpc.scatter, x if rank == last else None, last, out=out) is out
        assert out[0] == 10 * last + rank
        gathered = call(hpc.gather, x[0], last, out=outs if rank == last else None)
        assert gathered is (outs if rank == last else None)
        if rank == last:
            assert [each[1, 2] for each in outs] == [10 * source for source in range(n)]


def shapes_from(source, n):
    """Return the shapes of the arrays that a rank sends to each rank; some arrays are empty, and dims differ."""
    return [((source + to) % 3, 2) if to % 2 else (source + 2 * to + 1,) for to in range(n)]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("make", MAKERS)
def test_arrays_of_a_list_may_differ_in_shape(hpc, make, asynchronous):
    n, rank = hpc.size, hpc.rank

    def call(method, *arguments, **options):
        result = method(*arguments, async_op=asynchronous, **options)
        return result.wait() if asynchronous else result

    def check(arrays, shapes, values):
        assert [tuple(each.shape) for each in arrays] == shapes
        assert [set(each.reshape(-1).tolist()) for each in arrays] == [
            {value} if np.prod(shape) else set() for shape, value in zip(shapes, values, strict=True)
        ]

    for turn in range(3):
        shapes = shapes_from(turn, n)
        outs = [make(shape, -1.0) for shape in shapes]
        assert call(hpc.all_gather, make(shapes[rank], 5.0 + rank), out=outs) is outs
        check(outs, shapes, [5.0 + source for source in range(n)])
        block = call(hpc.reduce_scatter, [make(shape, to + 1.0) for to, shape in enumerate(shapes)])
        check([block], [shapes[rank]], [n * (rank + 1.0)])
        sent = [make(shape, 10.0 * rank + to) for to, shape in enumerate(shapes_from(rank, n))]
        received = [shapes_from(source, n)[rank] for source in range(n)]
        outs = [make(shape, -1.0) for shape in received]
        assert call(hpc.all_to_all, sent, out=outs) is outs
        check(outs, received, [10.0 * source + rank for source in range(n)])


@pytest.mark.parametrize("make", MAKERS)
def test_lists_with_counts(hpc, make):
    n, rank = hpc.size, hpc.rank
    root, counts = n - 1, [(each + 1) % 3 for each in range(n)]
    shapes = [(count, 2) for count in counts]
    for _ in range(3):
        outs = [make(shape, -1.0) for shape in shapes]
        x = make(shapes[rank], 7.0 + rank)
        assert hpc.all_gather(x, counts=counts, out=outs) is outs
        assert [each.tolist() for each in outs] == [[[7.0 + at] * 2] * count for at, count in enumerate(counts)]
        outs = [make(shape, -1.0) for shape in shapes]
        result = hpc.gather(x, root, counts=counts, out=outs if rank == root else None)
        if rank == root:
            assert result is outs
            assert [each.tolist() for each in outs] == [[[7.0 + at] * 2] * count for at, count in enumerate(counts)]
        else:
            assert result is None
        sent = [make(shape, 3.0 + at) for at, shape in enumerate(shapes)]
        block = make(shapes[rank], 0.0)
        assert hpc.scatter(sent if rank == root else None, root, counts=counts, out=block) is block
        assert block.tolist() == [[3.0 + rank] * 2] * counts[rank]
        block = hpc.reduce_scatter(sent, counts=counts)
        assert block.tolist() == [[n * (3.0 + rank)] * 2] * counts[rank]
        swapped = hpc.all_to_all(sent, counts=counts, out_counts=[counts[rank]] * n)
        assert [each.tolist() for each in swapped] == [[[3.0 + rank] * 2] * counts[rank]] * n
        assert type(swapped) is list


@pytest.mark.needs_ranks(2)
def test_uneven_lists_that_other_ranks_cannot_know_are_refused(hpc):
    n = hpc.size
    uneven = [np.ones(2 + (at == 1)) for at in range(n)]
    calls = [
        (lambda: hpc.all_to_all(uneven), r"x\[1\] has shape \(3,\), which other ranks cannot know; pass out, a list"),
        (lambda: hpc.all_to_all(uneven, out=uneven, algorithm="bruck"), "choose algorithm auto, mpi or pairwise"),
        (lambda: hpc.reduce_scatter(uneven, counts=[2] * n), r"x\[1\] has shape \(3,\), but counts requires a first"),
        (lambda: hpc.all_gather(np.ones(2), counts=[2] * n, out=uneven), r"out\[1\] has 3 elements"),
        (lambda: hpc.all_gather(np.ones(7), out=uneven), rf"out\[{hpc.rank}\] has . elements .* an array of 7"),
    ]
    if hpc.rank == 0:
        calls += [
            (lambda: hpc.scatter(uneven, out=np.ones(2)), "cannot know; pass counts on all ranks"),
            (lambda: hpc.gather(np.ones(2), out=uneven), r"out\[1\] has 3 .* or counts on all ranks"),
        ]
    for call, message in calls:
        with pytest.raises(BufferError, match=message):
            call()
    assert hpc.all_reduce(np.ones(3)).tolist() == [n] * 3


def test_the_root_of_a_scatter_gets_an_array_like_those_of_its_list(hpc):
    root = hpc.size - 1
    if hpc.rank == root:
        block = hpc.scatter(rows(hpc), root)
        assert (block.shape, block[0, 0]) == ((2, 3), 10 * root + root)
    else:
        hpc.scatter(None, root, out=np.empty(6))


def test_lists_that_do_not_fit_are_refused(hpc):
    x, n = np.ones(3), hpc.size
    calls = [
        (lambda: hpc.all_reduce([x] * n), "all_reduce: x is a list; pass one array"),
        (lambda: hpc.all_gather([x] * n), "all_gather: x is a list"),
        (lambda: hpc.reduce_scatter([x] * n, out=[x]), "reduce_scatter: out is a list"),
        (
            lambda: hpc.all_to_all([x] * (n + 1)),
            rf"x is a list of {n + 1} arrays; pass one array for each of {n} ranks",
        ),
        (lambda: hpc.all_gather(x, out=[x] * (n + 1)), rf"out is a list of {n + 1} arrays"),
        (lambda: hpc.all_gather(x, out=[np.ones(4)] * n), r"out\[0\] has 4 elements of float64; pass an array of 3"),
        (lambda: hpc.all_gather(x, out=[np.ones(3, "f4")] * n), r"out\[0\] has 3 elements of float32"),
        (lambda: hpc.all_to_all([1.0] * n), r"x\[0\] is of type float"),
        (lambda: hpc.all_to_all([x, *[np.ones(4)] * (n - 1)]), r"x\[1\] has shape \(4,\)") if n > 1 else None,
        (lambda: hpc.all_to_all([x, *[x.astype("f4")] * (n - 1)]), r"x\[1\] .* float32") if n > 1 else None,
        (lambda: hpc.prepare(hpccoll.plan.Operation.ALL_TO_ALL, [x] * n), "prepared collectives are bound"),
    ]
    for call, message in filter(None, calls):
        with pytest.raises(BufferError, match=message):
            call()
    assert hpc.all_reduce(x).tolist() == [n] * 3


def test_numbers_are_reduced_to_numbers(hpc):
    n, rank = hpc.size, hpc.rank
    for _ in range(3):
        total = hpc.all_reduce(rank + 1)
        assert (total, type(total)) == (n * (n + 1) // 2, int)
        mean = hpc.all_reduce(float(rank), op="avg")
        assert (mean, type(mean)) == ((n - 1) / 2, float)
        assert hpc.all_reduce(rank == 0, op="max") is True
        assert hpc.all_reduce(1j * rank) == 1j * n * (n - 1) / 2
        small = hpc.all_reduce(np.float32(2), "prod", algorithm="ring")
        assert (small, type(small)) == (2.0**n, np.float32)
        assert hpc.reduce(rank + 1, root=n - 1, op="max") == (n if rank == n - 1 else rank + 1)


def test_ranks_may_reduce_integers_and_floats_together(hpc):
    n = hpc.size
    total = hpc.all_reduce(1 if hpc.rank == 0 else 1.5)
    assert total == 1 + 1.5 * (n - 1)
    assert hpc.all_reduce(2**62 if hpc.rank == n - 1 else True, op="max") == 2**62


def test_numbers_without_a_dtype_are_refused_on_every_rank(hpc):
    with pytest.raises(UsageError, match=f"rank {hpc.size - 1} passed a number that fits no dtype"):
        hpc.all_reduce(2**80 if hpc.rank == hpc.size - 1 else 1)
    with pytest.raises(UsageError, match="a number is reduced by a blocking call"):
        hpc.all_reduce(1, async_op=True)
    with pytest.raises(ReductionError):
        hpc.all_reduce(1, op="avg")
    with pytest.raises(BufferError, match="x is of type float"):
        hpc.all_gather(1.0)


def jax_array(values, dtype):
    jax = pytest.importorskip("jax")
    return jax.numpy.asarray(values, dtype)


LIBRARIES = [ImmutableArray, ArrayApiArray, jax_array]


@pytest.mark.parametrize("make", LIBRARIES)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_arrays_of_other_libraries_go_in_and_come_out(hpc, make, asynchronous):
    n, rank = hpc.size, hpc.rank
    x, blocks = make([rank, 1], "float32"), make([[rank, to] for to in range(n)], "float32")
    kind = np.ndarray if make is ImmutableArray else type(x)

    def call(method, *arguments, **options):
        result = method(*arguments, async_op=asynchronous, **options)
        result = result.wait() if asynchronous else result
        assert isinstance(result, kind)
        return result.tolist()

    for _ in range(3):
        total = [n * (n - 1) / 2, n]
        assert call(hpc.all_reduce, x) == total
        assert call(hpc.broadcast, x, n - 1) == [n - 1, 1]
        assert call(hpc.all_gather, x) == [[source, 1] for source in range(n)]
        assert call(hpc.all_to_all, blocks) == [[source, rank] for source in range(n)]
        assert call(hpc.reduce_scatter, blocks) == [[n * (n - 1) / 2, n * rank]]
        assert x.tolist() == [rank, 1]
        reduced = hpc.reduce(x, root=n - 1)
        assert reduced.tolist() == total if rank == n - 1 else reduced is x
        out = np.zeros(2, np.float32)
        assert hpc.all_reduce(x, out=out) is out
        assert out.tolist() == total
        lists = hpc.all_to_all([x] * n)
        assert [each.tolist() for each in lists] == [[source, 1] for source in range(n)]
        received = np.zeros(2, np.float32)
        work = hpc.isend(x, (rank + 1) % n)
        assert hpc.recv(received, (rank - 1) % n).tolist() == [(rank - 1) % n, 1]
        work.wait()


@pytest.mark.parametrize("make", LIBRARIES)
def test_immutable_arrays_are_refused_where_they_would_be_written(hpc, make):
    x = make([1, 2], "float32")
    for call in (lambda: hpc.all_reduce(np.ones(2, np.float32), out=x), lambda: hpc.recv(x, 0)):
        with pytest.raises(BufferError, match="read-only and would be written"):
            call()
    with pytest.raises(BufferError, match="prepared collectives are bound"):
        hpc.all_reduce_init(x)


def test_bfloat16_of_another_library_is_reduced(hpc):
    x = jax_array([1.5, 2], "bfloat16")
    result = hpc.all_reduce(x)
    assert (result.dtype, result.tolist()) == (x.dtype, [1.5 * hpc.size, 2 * hpc.size])
