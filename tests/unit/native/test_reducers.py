"""Reductions of native programs against NumPy, bit by bit: all dtypes and functions, lengths, NaN, signed zeros."""

from __future__ import annotations

import numpy as np
import pytest

from hpccoll.arrays import host_reducers
from hpccoll.arrays.dtypes import DTYPES
from hpccoll.arrays.host_reducers import make_reducer
from hpccoll.arrays.reductions import FUNCTIONS, Reduction
from hpccoll.errors import ReductionError

LENGTHS = (0, 1, 2, 3, 7, 8, 9, 31, 255, 256, 257, 1000)
# Bits of float16 or bfloat16: zeros, ones, least and greatest subnormals and normals, infinities, NaNs; both signs.
_POSITIVE = (
    0x0000, 0x0001, 0x0002, 0x007F, 0x0080, 0x03FF, 0x0400, 0x1400, 0x3C00, 0x3C01, 0x3F80, 0x3F81, 0x4248, 0x7BFF,
    0x7C00, 0x7C01, 0x7E00, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0x7FFF,
)  # fmt: skip
SPECIAL = np.array([sign | bits for sign in (0, 0x8000) for bits in _POSITIVE], np.uint16)


@pytest.fixture(autouse=True)
def _quiet():
    """Ignore float errors, as hpccoll does: conversions of signalling NaNs raise them."""
    with np.errstate(all="ignore"):
        yield


def cases():
    """Return the pairs of reduction and dtype that hpccoll defines."""
    for name in ("sum", "prod", "min", "max", "band", "bor", "bxor"):
        for dtype in DTYPES.values():
            try:
                Reduction(name).require(dtype)
            except Exception:  # noqa: BLE001 - this reduction is not defined for the dtype
                continue
            yield pytest.param(FUNCTIONS[name], dtype, id=f"{name}-{dtype.name}")


def draw(rng, dtype, length):
    """Return random elements, of which many are special values."""
    nbytes = rng.integers(0, 256, length * dtype.itemsize, np.uint8).view(dtype.numpy)
    if dtype.kind == "b":
        return rng.integers(0, 2, length).astype(bool)
    if dtype.kind == "i":
        return nbytes
    usual = (rng.normal(size=length) * 100).astype(dtype.numpy)
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]).astype(dtype.numpy)[rng.integers(0, 7, length)]
    chosen = rng.integers(0, 3, length)
    return np.where(chosen == 0, usual, np.where(chosen == 1, special, nbytes))


def same_bits(got, wanted):
    """Whether two arrays have the same bits, except for the payloads of NaNs."""
    if got.dtype.kind == "c":
        return same_bits(got.view(f"f{got.itemsize // 2}"), wanted.view(f"f{got.itemsize // 2}"))
    bits = f"u{got.itemsize}"
    equal = got.view(bits) == wanted.view(bits)
    if got.dtype.kind not in "biu":
        equal |= np.isnan(got.astype(np.float64)) & np.isnan(wanted.astype(np.float64))
    return bool(equal.all())


def get_address(array):
    """Return the address of an array's first element."""
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize(("function", "dtype"), [*cases()])
def test_results_have_the_bits_of_numpy(function, dtype):
    rng, reducer = np.random.default_rng(7), make_reducer(function, dtype)
    for length in LENGTHS:
        for aliased in (None, 0, 1):
            operands = [np.ascontiguousarray(draw(rng, dtype, length)) for _ in range(2)]
            wanted = getattr(np, function)(*operands)
            out = np.empty(length, dtype.numpy) if aliased is None else operands[aliased]
            reducer(get_address(operands[0]), get_address(operands[1]), get_address(out), out.nbytes)
            assert same_bits(out, wanted), (length, aliased)


@pytest.mark.parametrize("name", [dtype.name for dtype in DTYPES.values() if dtype.kind in "fc"])
@pytest.mark.parametrize("divisor", [2, 3, 7])
def test_quotients_have_the_bits_of_numpy(name, divisor):
    rng, dtype = np.random.default_rng(7), DTYPES[name]
    divider = make_reducer("divide", dtype, divisor)
    for length in LENGTHS:
        x = draw(rng, dtype, length)
        wanted = np.divide(x, np.asarray(dtype.numpy.type(divisor), dtype.numpy))
        divider(get_address(x), 0, get_address(x), x.nbytes)
        assert same_bits(x, wanted), length


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("function", ["add", "multiply", "minimum", "maximum", "divide"])
def test_every_16_bit_float_with_every_special_one_has_the_bits_of_numpy(function, name):
    """The special one is either operand, as an array, or one number for all elements."""
    dtype = DTYPES[name]
    x, out = np.arange(2**16, dtype=np.uint16).view(dtype.numpy), np.empty(2**16, dtype.numpy)
    arrays = [x[::-1].copy(), *(np.full_like(x, special) for special in SPECIAL.view(dtype.numpy))]
    for number, other in enumerate(arrays):
        for left, right in [(x, other)] if function == "divide" else [(x, other), (other, x)]:
            if function != "divide":  # hpccoll divides by one number only
                make_reducer(function, dtype)(get_address(left), get_address(right), get_address(out), x.nbytes)
                assert same_bits(out, getattr(np, function)(left, right)), other[0]
        if number and function in ("multiply", "divide"):
            make_reducer(function, dtype, other[0])(get_address(x), 0, get_address(out), x.nbytes)
            assert same_bits(out, getattr(np, function)(x, other)), other[0]


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("function", ["add", "minimum"])
def test_16_bit_floats_at_any_alignment_have_the_bits_of_numpy(function, name):
    rng, dtype = np.random.default_rng(7), DTYPES[name]
    reducer, (left, right) = make_reducer(function, dtype), (draw(rng, dtype, 1000) for _ in range(2))
    for start in (1, 3, 7):
        for length in (33, 256, 801):
            one, other = left[start : start + length], right[2 * start : 2 * start + length].copy()
            memory = np.zeros(start + length + 1, dtype.numpy)
            out = memory[start:-1]
            reducer(get_address(one), get_address(other), get_address(out), out.nbytes)
            assert same_bits(out, getattr(np, function)(one, other)), (start, length)
            assert not memory[:start].any()
            assert not memory[-1:].any()


def test_a_function_of_the_user_gets_arrays_of_the_dtype():
    seen = []

    def subtract(left, right):
        seen.append((left.dtype, right.shape))
        return left - right

    x, y = np.arange(5.0), np.ones(5)
    make_reducer(subtract, DTYPES["float64"])(get_address(x), get_address(y), get_address(y), y.nbytes)
    assert y.tolist() == [-1.0, 0.0, 1.0, 2.0, 3.0]
    assert seen == [(np.dtype("f8"), (5,))]


UFUNCS = (
    (np.hypot, "float32"), (np.hypot, "float64"), (np.logaddexp, "float16"), (np.copysign, "float64"),
    (np.multiply, "complex64"), (np.gcd, "int32"), (np.left_shift, "uint8"), (np.logical_xor, "bool"),
)  # fmt: skip


@pytest.mark.parametrize(("function", "name"), UFUNCS)
def test_a_ufunc_of_the_user_is_computed_without_python(function, name, monkeypatch):
    monkeypatch.setattr(host_reducers, "combine_into", None)
    rng, dtype = np.random.default_rng(7), DTYPES[name]
    reducer = make_reducer(function, dtype)
    for length in LENGTHS[1:]:
        left, right = (draw(rng, dtype, length) for _ in range(2))
        wanted, out = function(left, right), np.empty(length, dtype.numpy)
        for target in (out, left):
            reducer(get_address(left), get_address(right), get_address(target), out.nbytes)
            assert same_bits(target, wanted), length


def test_a_ufunc_that_raises_is_called_as_a_function():
    x, exponents, out = np.ones(3, np.int64), np.full(3, -1), np.zeros(3, np.int64)
    with pytest.raises(ValueError, match="negative integer powers"):
        make_reducer(np.power, DTYPES["int64"])(get_address(x), get_address(exponents), get_address(out), x.nbytes)


@pytest.mark.parametrize("function", [np.logical_and, np.matmul])
def test_other_ufuncs_are_called_as_functions(function):
    """`logical_and` has no loop with results of the dtype, and `matmul` none by element."""
    x, out = np.ones(3), np.zeros(3)
    with pytest.raises(ReductionError, match="returned"):
        make_reducer(function, DTYPES["float64"])(get_address(x), get_address(x), get_address(out), x.nbytes)
