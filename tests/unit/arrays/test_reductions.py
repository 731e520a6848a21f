"""Reductions and element types: which combinations are defined, and results with NumPy's bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpccoll
from hpccoll.arrays import DTYPES, FUNCTIONS, NUMPY, Reduction, dtype_from_numpy, get_dtype, premul_sum
from hpccoll.errors import ReductionError, UnknownNameError

# Written out: a table of the code under test would agree with itself.
DEFINED = {
    "bool": "min max band bor bxor",
    **dict.fromkeys(
        ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"],
        "sum prod min max band bor bxor premul_sum",
    ),
    **dict.fromkeys(["float16", "bfloat16", "float32", "float64"], "sum prod min max avg premul_sum"),
    **dict.fromkeys(["complex64", "complex128"], "sum prod avg premul_sum"),
}


def test_every_dtype_is_in_the_table():
    assert set(DEFINED) == set(DTYPES)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_a_reduction_is_defined_or_refused_with_a_remedy(name, op):
    reduction = Reduction(op, 2 if op == "premul_sum" else None)
    if op in DEFINED[name].split():
        reduction.require(get_dtype(name))
        return
    with pytest.raises(ReductionError, match=rf"reduction '{op}' is not defined for dtype {name}: \w+") as caught:
        reduction.require(get_dtype(name))
    assert caught.value.exit_status == 2


def test_unknown_names_list_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"'average'; did you mean avg\? choose one of: avg, band"):
        Reduction.parse("average")
    with pytest.raises(UnknownNameError, match=r"unknown dtype 'float8'; did you mean float.* choose one of: bfloat16"):
        get_dtype("float8")
    with pytest.raises(UnknownNameError, match="unknown dtype 'object'"):
        get_dtype(object)
    with pytest.raises(UnknownNameError, match=r"unknown dtype '<U3'"):
        dtype_from_numpy(np.dtype("<U3"))


def test_a_reduction_is_taken_as_it_is():
    scaled = premul_sum(3)
    assert Reduction.parse(scaled) is scaled
    assert Reduction.parse("max").function == "maximum"
    assert hpccoll.premul_sum(2).name == "premul_sum"
    assert hash(premul_sum(np.ones(3))), "an array as a factor must not make it unhashable"


@pytest.mark.parametrize("name", DTYPES)
def test_names_and_numpy_types_match(name):
    dtype = get_dtype(name)
    assert dtype_from_numpy(dtype.numpy) is dtype
    assert dtype.itemsize == np.zeros(1, dtype.numpy).nbytes


@pytest.mark.parametrize(
    ("dtype", "factor", "fits"),
    [
        ("int8", 2, True), ("int8", True, True), ("int8", np.int64(3), True), ("int8", 2.0, False),
        ("int8", np.ones(2, np.float16), False), ("float16", 2, True), ("float16", 0.5, True),
        ("bfloat16", np.float64(0.5), True), ("float32", 1j, False), ("complex64", 1j, True),
        ("complex64", [1, 2], True), ("float32", "1", False), ("float32", object(), False),
    ],
)  # fmt: skip
def test_a_factor_must_not_lose_what_it_is(dtype, factor, fits):
    if fits:
        premul_sum(factor).require(get_dtype(dtype), (2,))
    else:
        with pytest.raises(ReductionError, match=rf"does not fit dtype {dtype}"):
            premul_sum(factor).require(get_dtype(dtype), (2,))


@pytest.mark.parametrize(
    ("factor", "shape", "fits"),
    [((), (4, 3), True), ((3,), (4, 3), True), ((4, 1), (4, 3), True), ((4, 3), (4, 3), True), ((1, 1), (4, 3), True),
     ((4,), (4, 3), False), ((2, 4, 3), (4, 3), False), ((1, 4, 3), (4, 3), False), ((3,), (1,), False), ((), (), True),
     ((0,), (0,), True), ((1,), (), False)],
)  # fmt: skip
def test_a_factor_must_broadcast_against_the_array(factor, shape, fits):
    if fits:
        premul_sum(np.ones(factor)).require(get_dtype("float64"), shape)
    else:
        with pytest.raises(ReductionError, match="does not broadcast against x of shape"):
            premul_sum(np.ones(factor)).require(get_dtype("float64"), shape)


def bits(values):
    """Return the bytes of an array, with one bit pattern for every NaN."""
    parts = values.view(values.real.dtype) if values.dtype.kind == "c" else values
    if parts.dtype.kind in "fV":
        parts = np.where(np.isnan(parts), np.array(np.nan, parts.dtype), parts)
    return parts.tobytes()


FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
SPECIAL = (0.0, -0.0, 1.5, -2.75, 3.1e-5, np.inf, -np.inf, np.nan, 1e30, 0.1)


def some(rng, dtype, count, special):
    """Ordinary numbers, or those that arithmetic trips over."""
    values = np.empty(count, dtype.numpy)
    parts = values.view(values.real.dtype) if dtype.kind == "c" else values
    with np.errstate(over="ignore"):
        parts[:] = (rng.choice(SPECIAL, len(parts)) if special else rng.uniform(-2, 2, len(parts))).astype(parts.dtype)
    return values


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
@given(data=st.data())
def test_an_element_has_the_same_bits_wherever_it_lies_and_wherever_it_goes(name, op, data):
    """Bit-equality with replay rests on this: vector loops, their remainders and in-place loops must agree."""
    if op not in DEFINED[name]:
        return
    dtype, count = get_dtype(name), data.draw(st.integers(1, 70))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    left, right = (some(rng, dtype, count, data.draw(st.booleans())) for _ in range(2))
    with np.errstate(all="ignore"):
        alone = np.concatenate([getattr(np, FUNCTIONS[op])(left[i : i + 1], right[i : i + 1]) for i in range(count)])
    for target in ("new", "left", "right"):
        shift = data.draw(st.integers(0, 9))
        memory = [np.zeros(count + 9, dtype.numpy)[shift : shift + count] for _ in range(3)]
        memory[0][:], memory[1][:] = left, right
        out = {"new": memory[2], "left": memory[0], "right": memory[1]}[target]
        NUMPY.bind_reduce(FUNCTIONS[op], memory[0], memory[1], out)()
        assert bits(out) == bits(alone), target


@pytest.mark.parametrize("name", ["float32", "complex64", "complex128"])
def test_products_in_place_have_the_bits_of_products_elsewhere(name):
    rng = np.random.default_rng(1)
    for count in (1, 2, 9) * 50:
        x = (rng.uniform(-2, 2, count) + 0.3).astype(name) * (1 if name == "float32" else 1 + 0.7j)
        x = x.astype(name)
        factor = rng.uniform(-2, 2, count).astype(name) * (1 if name == "float32" else 0.2 - 1.3j)
        elsewhere, product = np.empty_like(x), x.copy()
        NUMPY.bind_reduce("multiply", x, factor, elsewhere)()
        NUMPY.bind_reduce("multiply", product, factor, product)()
        assert product.tobytes() == elsewhere.tobytes(), count
        NUMPY.bind_scale(elsewhere, x, factor, x.shape)()
        NUMPY.bind_scale(x, x, factor, x.shape)()
        assert x.tobytes() == elsewhere.tobytes(), count


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("half", "float16"),
        ("float", "float32"),
        ("double", "float64"),
        (float, "float64"),
        (np.float32, "float32"),
        (np.dtype("int8"), "int8"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (bool, "bool"),
    ],
)
def test_element_types_are_found_by_the_names_and_types_of_other_libraries(given, name):
    assert get_dtype(given) is DTYPES[name]


def test_element_types_are_found_by_torchs_types():
    torch = pytest.importorskip("torch")
    assert get_dtype(torch.bfloat16) is DTYPES["bfloat16"]
    assert get_dtype(torch.float) is DTYPES["float32"]
