"""Float16 and bfloat16 results have the bits of NumPy and ml_dtypes by every method of computation."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from hpccoll.runtime.arrays import NumPyModule
from hpccoll.runtime.arrays.half_precision import (
    ARITHMETIC,
    BLOCK,
    FEWEST,
    FEWEST_ORDERED,
    FEWEST_WIDENED,
    NAMES,
    PIECE,
    WORTH_IMPORTING,
    HalfPrecision,
)

NEEDS_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
DTYPES = [pytest.param(dtype, id=name) for dtype, name in NAMES.items()]
FLOAT16, BFLOAT16 = NAMES
ORDER = ("minimum", "maximum")
BY_TORCH = [
    pytest.param(True, dtype, function, id=f"torch-{name}-{function}", marks=NEEDS_TORCH)
    for dtype, name in NAMES.items()
    for function in (*ARITHMETIC, *ORDER)
]
WIDENED = [pytest.param(False, BFLOAT16, function, id=f"widened-bfloat16-{function}") for function in ARITHMETIC]
WAYS = BY_TORCH + WIDENED

PAIRS = 300_007
# Of either type: zeros, ones, least and greatest subnormals and normals, infinities, NaNs quiet and signalling.
SPECIAL = [0x0000, 0x0001, 0x0002, 0x007F, 0x0080, 0x03FF, 0x0400, 0x1400, 0x3C00, 0x3C01, 0x3F80, 0x3F81, 0x4248]
SPECIAL += [0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0x7FFF]
SPECIAL += [bits | 0x8000 for bits in SPECIAL]


def drawn(dtype, seed=0):
    """All 65,536 numbers beside each special one on either side, then random pairs; of odd length."""
    random = np.random.default_rng(seed)
    everything, special = np.arange(65536, dtype=np.uint16), np.array(SPECIAL, np.uint16)
    many, few = np.tile(everything, len(special)), np.repeat(special, len(everything))
    pairs = random.integers(0, 65536, (2, PAIRS)).astype(np.uint16)
    left, right = np.concatenate([many, few, pairs[0]]), np.concatenate([few, many, pairs[1]])
    assert len(left) % 2
    return left.view(dtype), right.view(dtype)


def compute_reference(function, left, right):
    """Return NumPy's result."""
    with np.errstate(all="ignore"):
        return getattr(np, function)(left, right)


def get_fewest(torch, function):
    """Return the least number of elements for which a function is bound."""
    return FEWEST_WIDENED if not torch else FEWEST if function in ARITHMETIC else FEWEST_ORDERED


def bind_function(torch, function, left, right, out):
    """Return the bound function."""
    if torch:
        pytest.importorskip("torch")  # `bind` imports torch only when enough elements have been reduced
    step = HalfPrecision(torch=torch).bind(function, left, right, out)
    assert step is not None
    return step


def run(step):
    """Run a bound function without NumPy's warnings."""
    with np.errstate(all="ignore"):
        step()


def assert_same_bits(found, expected):
    """Assert that two arrays have equal bits, or NaN in the same places."""
    with np.errstate(all="ignore"):
        nan = np.isnan(expected)
        assert (np.isnan(found) == nan).all()
    differ = np.flatnonzero((found.view(np.uint16) != expected.view(np.uint16)) & ~nan)
    assert differ.size == 0, f"{differ.size}, first at {differ[0]}: {found[differ[0]]} for {expected[differ[0]]}"


@pytest.mark.parametrize(("torch", "dtype", "function"), WAYS)
def test_every_number_beside_every_special_one_and_random_pairs(torch, dtype, function):
    left, right = drawn(dtype)
    out = np.zeros_like(left)
    run(bind_function(torch, function, left, right, out))
    assert_same_bits(out, compute_reference(function, left, right))


@pytest.mark.parametrize("more", [0, 1, 31, PIECE - 1, PIECE, PIECE + 1, 2 * BLOCK + 5])
@pytest.mark.parametrize(("torch", "dtype", "function"), WAYS)
def test_any_length_at_any_alignment_and_in_place(torch, dtype, function, more):
    count = get_fewest(torch, function) + more
    pool = np.random.default_rng(count).integers(0, 65536, (2, count + 3)).astype(np.uint16).view(dtype)
    for start in (0, 1, 3):
        left, right = (row[start : start + count] for row in pool.copy())
        expected = compute_reference(function, left, right)
        run(bind_function(torch, function, left, right.copy(), left))
        assert_same_bits(left, expected)
        left[:] = pool[0, start : start + count]
        run(bind_function(torch, function, left, right, right))
        assert_same_bits(right, expected)


@pytest.mark.parametrize("at", ["left", "right", "both", "neither"])
@pytest.mark.parametrize(("torch", "dtype", "function"), [way for way in BY_TORCH if way.values[2] in ORDER])
def test_zeros_of_both_signs_in_every_place(torch, dtype, function, at):
    left, right = np.zeros((2, FEWEST_ORDERED + 7), dtype)
    left[::2] = 3
    for operand, name, phase in ((left, "left", 1), (right, "right", 3)):
        if at in (name, "both"):
            operand[phase::4] = -0.0
    expected = compute_reference(function, left, right)
    for out in (np.ones_like(left), left):
        run(bind_function(torch, function, left, right, out))
        assert_same_bits(out, expected)


@pytest.mark.parametrize("number", [0.0, -0.0, 1, 3, 257, 4097, 1e-7, 65504, np.inf, np.nan])
@pytest.mark.parametrize(
    ("torch", "dtype", "function"), [way for way in WAYS if way.values[2] in ("multiply", "divide")]
)
def test_one_number_for_all(torch, dtype, function, number):
    left = np.arange(65536, dtype=np.uint16).view(dtype)
    with np.errstate(all="ignore"):
        right = np.asarray(number).astype(dtype)
    out = np.zeros_like(left)
    run(bind_function(torch, function, left, right, out))
    assert_same_bits(out, compute_reference(function, left, right))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("torch", [pytest.param(True, marks=NEEDS_TORCH), False])
def test_the_array_module_combines_scales_and_divides(torch, dtype):
    module = NumPyModule(HalfPrecision(torch=torch))
    left, right = (each[-PAIRS:] for each in drawn(dtype))
    out = np.zeros_like(left)
    factor = np.linspace(-2, 2, len(left))
    with np.errstate(all="raise"):  # which no step heeds
        for function in ("add", "multiply", *ORDER):
            module.bind_reduce(function, left, right, out)()
            assert_same_bits(out, compute_reference(function, left, right))
        for each in (0.3, factor):
            module.bind_scale(out, left, each, left.shape)()
            with np.errstate(all="ignore"):
                rounded = np.asarray(each).astype(dtype)
            assert_same_bits(out, compute_reference("multiply", left, rounded))
        np.copyto(out, left)
        module.bind_divide(out, 6)()
        assert_same_bits(out, compute_reference("divide", left, dtype.type(6)))


@pytest.mark.parametrize(
    ("function", "dtype"),
    [*(("bitwise_and", dtype) for dtype in NAMES), ("add", FLOAT16), *((name, BFLOAT16) for name in ORDER)],
)
def test_what_numpy_does_best_is_left_to_it(function, dtype):
    x = np.zeros(FEWEST_WIDENED, dtype)
    assert HalfPrecision(torch=False).bind(function, x, x, x) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_short_crooked_and_overlapping_arrays_are_left_to_numpy(dtype):
    half, count = HalfPrecision(), FEWEST_WIDENED
    x = np.zeros(2 * count, dtype)
    crooked = np.zeros(2 * count + 1, np.uint8)[1:].view(dtype)
    short, first, second = x[: FEWEST - 1], x[:count], x[1 : count + 1]
    for left, right, out in ((short, short, short), (crooked, first, first), (first, first, second)):
        assert half.bind("add", left, right, out) is None
    few = x[: FEWEST_ORDERED - 1]
    assert half.bind("minimum", few, few, few) is None


@NEEDS_TORCH
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_bound_in_inference_mode_runs_outside(dtype):
    import torch

    x = np.ones(FEWEST, dtype)
    with torch.inference_mode():
        step = bind_function(True, "add", x, x, x)
    step()
    assert (x == 2).all()


@NEEDS_TORCH
@pytest.mark.parametrize("dtype", DTYPES)
def test_read_only_operands_are_read_and_kept(dtype):
    x, out = np.ones(PIECE + FEWEST, dtype), np.zeros(PIECE + FEWEST, dtype)
    x.flags.writeable = False
    step = bind_function(True, "add", x, x, out)
    del x
    step()
    assert (out == 2).all()


def test_without_torch_nothing_is_missed(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # as Python marks what cannot be imported
    half = HalfPrecision()
    assert WORTH_IMPORTING >= FEWEST_WIDENED
    x, y = np.full(WORTH_IMPORTING, 3, BFLOAT16), np.full(WORTH_IMPORTING, 3, FLOAT16)
    assert half.bind("add", y, y, y) is None
    step = half.bind("add", x, x, x)
    assert step is not None
    step()
    assert (x == 6).all()


def told(program):
    """Run a program in an interpreter of its own, and return the words that it prints."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.split()


@pytest.mark.slow
@NEEDS_TORCH
def test_torch_is_imported_for_much_half_precision_and_nothing_else():
    assert told(f"""
import sys
import numpy as np
from hpccoll.runtime.arrays import NUMPY
def after(count, dtype):
    x = np.zeros(count, dtype)
    NUMPY.bind_reduce("add", x, x, x)()
    print("torch" in sys.modules)
after({4 * WORTH_IMPORTING}, "float32")
for _ in range({WORTH_IMPORTING}):
    NUMPY.bind_reduce("add", *[np.zeros(2, "float16")] * 3)
after({WORTH_IMPORTING - 1}, "float16")
after({FEWEST}, "float16")
""") == ["False", "False", "True"]


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_long_arrays_start_no_threads_and_leave_the_users_number_alone():
    assert told(f"""
import os
import numpy as np
import torch
torch.set_num_threads(4)
from hpccoll.runtime.arrays import NUMPY
x = np.zeros({16 * PIECE}, "float16")
before = len(os.listdir("/proc/self/task"))
for function in ("add", "multiply", "minimum", "maximum"):
    NUMPY.bind_reduce(function, x, x, x)()
NUMPY.bind_scale(x, x, 0.5, x.shape)()
NUMPY.bind_divide(x, 3)()
print(len(os.listdir("/proc/self/task")) - before, torch.get_num_threads())
y = torch.zeros({16 * PIECE}, dtype=torch.float16)
torch.add(y, y, out=y)
print(len(os.listdir("/proc/self/task")) > before)
""") == ["0", "4", "True"]
