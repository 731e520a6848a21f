"""Users' arrays become buffers without a copy, or are refused with a reason."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from hpccoll.arrays import (
    DTYPES,
    NUMPY,
    Buffer,
    Scratch,
    as_buffer,
    get_array_module,
    get_dtype,
    import_array,
    take_scratch,
)
from hpccoll.errors import BufferError, UnavailableError
from tests.mpi.foreign_arrays import ArrayApiArray
from tests.requirements import without_gpu


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (4, 0, 2)])
def test_a_contiguous_array_is_adopted_as_it_lies(name, shape):
    x = np.zeros(shape, DTYPES[name].numpy)
    buffer = as_buffer(x, "x", writable=True)
    assert (buffer.count, buffer.nbytes, buffer.shape, buffer.dtype.name) == (x.size, x.nbytes, shape, name)
    assert buffer.flat.shape == (x.size,)
    assert buffer.address == x.__array_interface__["data"][0]
    buffer.flat[:] = 1
    assert (x == 1).all()


def test_a_strided_input_is_copied_and_a_strided_output_refused():
    x = np.arange(12).reshape(3, 4)
    for view in (x.T, x[:, 1:], x[::-1]):
        buffer = as_buffer(view, "x", writable=False)
        assert buffer.flat.tolist() == view.reshape(-1).tolist()
        assert buffer.shape == view.shape
        with pytest.raises(BufferError, match=r"out of shape \(\d, \d\) is not C-contiguous.*numpy.ascontiguousarray"):
            as_buffer(view, "out", writable=True)


def test_a_read_only_output_is_refused():
    x = np.ones((2, 2))
    x.flags.writeable = False
    as_buffer(x, "x", writable=False)
    with pytest.raises(BufferError, match=r"out of shape \(2, 2\) is read-only") as caught:
        as_buffer(x, "out", writable=True)
    assert caught.value.exit_status == 2


def test_a_foreign_array_in_host_memory_is_shared():
    foreign = ArrayApiArray([1.0, 2.0, 3.0])
    one, other = (import_array(foreign, "x") for _ in range(2))
    assert one.tolist() == [1, 2, 3]
    assert np.shares_memory(one, other)


def test_subclasses_are_seen_as_plain_memory():
    x = np.ma.masked_array(np.ones(3), mask=[False, True, False])
    assert as_buffer(x, "x", writable=True).count == 3
    assert type(as_buffer(x, "x", writable=True).flat) is np.ndarray


@pytest.mark.parametrize("thing", [None, 1, 1.0, "x", [1], (1,), b"x", object()])
def test_what_is_no_array_is_refused_by_its_type(thing):
    with pytest.raises(BufferError, match=rf"out is of type {type(thing).__name__}; pass an array of NumPy"):
        as_buffer(thing, "out", writable=True)


@pytest.mark.parametrize(
    ("a", "b", "shared"),
    [
        ((0, 5), (5, 9), False),
        ((5, 9), (0, 5), False),
        ((0, 5), (4, 9), True),
        ((4, 9), (0, 5), True),
        ((0, 9), (3, 4), True),
    ],
)
def test_overlap(a, b, shared):
    x = np.zeros(10)
    one, other = (as_buffer(x[start:stop], "x", writable=True) for start, stop in (a, b))
    assert one.overlaps(other) is shared


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 6])
def test_borrowed_memory_is_the_same_and_not_kept_alive(name, count):
    x = np.zeros(count, DTYPES[name].numpy)
    borrowed = NUMPY.as_unowned(x)
    assert (borrowed.dtype, len(borrowed)) == (x.dtype, count)
    borrowed[:] = 1
    assert (x == 1).all()
    gone = weakref.ref(x)
    del x
    gc.collect(1)  # the young generations: a full collection of all modules takes a second
    assert gone() is None


def test_messages_are_the_bytes_of_the_very_memory():
    x = np.arange(3, dtype=np.int16)
    NUMPY.as_bytes(x)[:] = 1
    assert x.tolist() == [257] * 3


def test_steps_are_bound_not_run():
    out, a, b = np.zeros(2), np.ones(2), np.full(2, 5.0)
    steps = [
        NUMPY.bind_reduce("add", a, b, out),
        NUMPY.bind_copy(out, b),
        NUMPY.bind_scale(out, a, 3, (2,)),
        NUMPY.bind_divide(out, 2),
    ]
    assert out.tolist() == [0, 0]
    found = []
    for step in steps:
        step()
        found.append(out[0])
    assert found == [6, 5, 3, 1.5]


@pytest.mark.parametrize("name", ["bool", "bfloat16", "complex64", "float64"])
@pytest.mark.parametrize("count", [0, 1, 2**14 + 1])
def test_copies_of_all_lengths_keep_the_bits_and_may_overlap(count, name):
    memory = np.random.default_rng(count).integers(0, 2, (count + 1) * 16, np.uint8)
    flat = memory[: (count + 1) * DTYPES[name].itemsize].view(DTYPES[name].numpy)
    wanted = flat[:-1].tobytes()
    flat.flags.writeable = False
    source = flat[:-1]
    flat.flags.writeable = True
    NUMPY.bind_copy(flat[1:], source)()
    assert flat[1:].tobytes() == wanted


@pytest.mark.parametrize("count", [2, 4096])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("function", ["add", "multiply"])
def test_a_step_neither_warns_nor_raises_whatever_numpy_was_told(function, name, count):
    dtype = DTYPES[name].numpy
    most = {"float16": 6e4, "bfloat16": 3e38, "float32": 3e38, "float64": 1e308}[name]
    out, left, right = np.zeros(count, dtype), np.full(count, most).astype(dtype), np.full(count, most).astype(dtype)
    left[1], right[1] = np.inf, -np.inf
    step = NUMPY.bind_reduce(function, left, right, out)
    step()
    with np.errstate(all="raise"):
        step()
        assert np.geterr()["over"] == "raise"
    assert np.isinf(out[0])


@pytest.mark.parametrize("name", ["float16", "bfloat16", "complex64"])
@pytest.mark.parametrize("count", [1, 40_001])
def test_scaled_and_divided_arrays_have_the_bits_of_numpy(name, count):
    dtype, rng = DTYPES[name].numpy, np.random.default_rng(count)
    x, out = rng.normal(size=count).astype(dtype), np.empty(count, dtype)
    for factor in (0.3, rng.normal(size=count)):
        NUMPY.bind_scale(out, x, factor, x.shape)()
        assert out.tobytes() == np.multiply(x, np.asarray(factor).astype(dtype)).tobytes()
    NUMPY.bind_divide(out, 6)()
    assert out.tobytes() == np.divide(np.multiply(x, np.asarray(factor).astype(dtype)), dtype.type(6)).tobytes()


def test_a_factor_that_the_dtype_cannot_hold_neither_warns_nor_raises():
    out, x = np.zeros(2, np.float16), np.ones(2, np.float16)
    with np.errstate(all="raise"):
        NUMPY.bind_scale(out, x, np.array([1e300, 1e-300]), (2,))()
    assert out.tolist() == [np.inf, 0]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_steps_on_borrowed_memory_keep_nothing_alive(name):
    x = np.ones(4096, DTYPES[name].numpy)
    borrowed, own = NUMPY.as_unowned(x), np.zeros_like(x)
    steps = [
        *(NUMPY.bind_reduce(function, borrowed, own, borrowed) for function in ("add", "minimum")),
        NUMPY.bind_scale(borrowed, borrowed, 2, x.shape),
        NUMPY.bind_divide(borrowed, 2),
    ]
    for step in steps:
        step()
    gone = weakref.ref(x)
    del x
    gc.collect(1)  # the young generations: a full collection of all modules takes a second
    assert gone() is None


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_steps_on_own_memory_keep_it(name):
    out, x = (np.zeros(4096, DTYPES[name].numpy) for _ in range(2))
    step, gone = NUMPY.bind_reduce("add", x, x, out), weakref.ref(x)
    del x
    gc.collect(1)  # the young generations: a full collection of all modules takes a second
    assert gone() is not None
    step()


def test_host_memory_stages_nothing():
    assert not NUMPY.on_device
    assert get_array_module("host") is NUMPY


@without_gpu
def test_device_memory_without_a_device_is_unavailable():
    with pytest.raises(UnavailableError, match="--buffer host") as caught:
        get_array_module("cuda")
    assert caught.value.exit_status == 3


def test_scratch_grows_by_doubling_and_is_shared():
    dtype = get_dtype("float64")
    scratch: Scratch = {}
    first = take_scratch(scratch, NUMPY, dtype, 10)
    assert np.shares_memory(first, take_scratch(scratch, NUMPY, dtype, 4))
    second = take_scratch(scratch, NUMPY, dtype, 11)
    assert not np.shares_memory(first, second)
    assert np.shares_memory(second, take_scratch(scratch, NUMPY, dtype, 20))
    assert len(take_scratch(scratch, NUMPY, dtype, 0)) == 0
    assert not np.shares_memory(second, take_scratch(scratch, NUMPY, get_dtype("float32"), 10))


class TestTorch:
    """Tensors on the CPU, seen as NumPy."""

    @pytest.fixture(autouse=True)
    def torch(self):
        return pytest.importorskip("torch")

    @pytest.mark.parametrize("name", DTYPES)
    @pytest.mark.parametrize("shape", [(), (1,), (0, 2), (2, 3)])
    def test_a_tensor_is_adopted_as_it_lies(self, torch, name, shape):
        x = torch.zeros(shape, dtype=getattr(torch, name))
        buffer = as_buffer(x, "x", writable=True)
        assert (buffer.module, buffer.dtype.name, buffer.shape) == (NUMPY, name, shape)
        assert buffer.address == x.data_ptr()
        buffer.flat[:] = 1
        assert (x == 1).all()

    def test_one_element_of_any_stride_is_contiguous(self, torch):
        x = torch.ones(1, dtype=torch.bfloat16).as_strided((1,), (0,))
        assert as_buffer(x, "x", writable=True).flat.tolist() == [1]

    def test_a_buffer_keeps_its_tensor_and_leaves_it_resizable(self, torch):
        x = torch.full((5,), 3.0)
        buffer: Buffer = as_buffer(x, "x", writable=True)
        x.resize_(2)
        x.resize_(5)
        del x
        gc.collect(1)  # the young generations: a full collection of all modules takes a second
        assert buffer.flat.tolist() == [3] * 5

    def test_a_conjugate_is_resolved_to_be_read(self, torch):
        x = torch.tensor([1 + 2j]).conj()
        assert as_buffer(x, "x", writable=False).flat.tolist() == [1 - 2j]
        with pytest.raises(BufferError, match="lazily conjugated"):
            as_buffer(x, "x", writable=True)
