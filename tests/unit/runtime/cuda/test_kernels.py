"""The fused kernels: their source run on the host has NumPy's bits, and compiles for all devices."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpccoll.arrays import DTYPES, get_dtype
from hpccoll.arrays.reductions import _KINDS, FUNCTIONS
from hpccoll.lowering import OWN, Copy, MemoryKind, MemoryRange, NodeFence, Reduce
from hpccoll.measure.data import make_input
from hpccoll.runtime.cuda.executable import bind_launch
from hpccoll.runtime.cuda.fuse import address_range, plan_launches
from hpccoll.runtime.cuda.kernels import EDGES, OPTIONS, WIDEST, FusedChain, KernelSpec, round_up_rows
from tests.depth import keep
from tests.mpi.cases import bits, sprinkled
from tests.unit.runtime.cuda import host_kernels
from tests.unit.runtime.cuda.host_kernels import COMPILER, HostKernels, together

NVCC = shutil.which("nvcc")
ARCHITECTURES = ("80", "90")
COUNTS = (1, 7, 333)
SIDES = 4  # operands of the longest chain
NOWHERE = range(0)

FULL = pytest.mark.full
needs_gxx = pytest.mark.skipif(COMPILER is None, reason="g++ is not here")


def list_functions(dtype):
    """Return the functions of the reductions of a dtype."""
    return sorted({FUNCTIONS[op] for op, kinds in _KINDS.items() if DTYPES[dtype].kind in kinds})


class HostDriver(HostKernels):
    """Runs a launch at once, on the host."""

    processors = 1

    def launch_kernel(self, function, grid, parameters, stream):  # noqa: ARG002 - it runs at once
        host_kernels.run(function, grid[1], parameters)


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    return HostDriver(tmp_path_factory.mktemp("kernels"))


class Field:
    """The memories of a program in one array, `SOURCE` of several owners, with guard elements that must not change."""

    def __init__(self, dtype, count, offsets):
        self.kind, self.count = get_dtype(dtype), count
        nbytes = count * self.kind.itemsize
        self.memory = np.full((len(offsets), nbytes + 128), 0xA5, np.uint8)
        self.starts = [
            32 + -(row.ctypes.data + 32) % 16 + offset for row, offset in zip(self.memory, offsets, strict=True)
        ]
        self.nbytes = nbytes

    def array(self, at):
        """Return a memory's elements."""
        return self.memory[at, self.starts[at] : self.starts[at] + self.nbytes].view(self.kind.numpy)

    def extent(self, place):
        """Return the addresses of a memory range."""
        begin = self.memory[place.owner].ctypes.data + self.starts[place.owner]
        return address_range(begin + place.start * self.kind.itemsize, place.count * self.kind.itemsize)

    def places(self):
        """Return the ranges of all memories."""
        return [MemoryRange(MemoryKind.SOURCE, 0, self.count, owner) for owner in range(len(self.memory))]

    def intact(self):
        """Whether the guard elements are unchanged."""
        outside = np.ones(self.memory.shape, np.bool_)
        for at, start in enumerate(self.starts):
            outside[at, start : start + self.nbytes] = False
        return bool((self.memory[outside] == 0xA5).all())


def fill_field(field, function, seed):
    """Fill a field with random inputs and special values."""
    op = "prod" if function == "multiply" else "sum"
    for at in range(len(field.memory)):
        field.array(at)[:] = sprinkled(make_input(field.kind, seed, at, field.count, op), seed + 100 * at)


def steps_of(field, pattern):
    """A chain over the first places, in the order of `pattern`, into the last but one; then a copy into the last."""
    *sources, target, other = field.places()
    steps: list[Any] = []
    found = sources[0]
    for source, own_first in zip(sources[1:], pattern, strict=True):
        steps.append(Reduce(found, source, target) if own_first else Reduce(source, found, target))
        found = target
    return [*steps, Copy(target, other)]


def carried_out(steps, field, function):
    """Return the result of the steps, carried out one after the other by NumPy: the bits of replay."""
    held = {place: field.array(place.owner).copy() for place in field.places()}
    with np.errstate(all="ignore"):
        for step in steps:
            if isinstance(step, Copy):
                held[step.out] = held[step.source].copy()
            else:
                held[step.out] = getattr(np, function)(held[step.left], held[step.right])
    return held


def launch_steps(steps, field, function, driver, scratch=NOWHERE):
    """Run the kernels of steps on the host; return their launches."""
    phases = plan_launches(steps, field.extent, scratch, function, field.kind)
    found = [launch for phase in phases for launch in phase]
    for launch in found:
        bind_launch(launch, driver)(0)
    return found


PATTERNS = ((True,) * (SIDES - 1), (False, True, False))
ALIGNED, ALIKE, ASKEW = (0,) * (SIDES + 2), (1,) * (SIDES + 2), (0, 1, 2, 3, 0, 1)  # in elements
WAYS = ((PATTERNS[0], ALIGNED), (PATTERNS[1], ALIKE), (PATTERNS[1], ASKEW))


def list_kernels(dtype, function):
    """Yield the kernels of a dtype and function for all patterns of steps."""
    for pattern, offsets in WAYS:
        field = Field(dtype, 333, [offset * get_dtype(dtype).itemsize for offset in offsets])
        phases = plan_launches(steps_of(field, pattern), field.extent, NOWHERE, function, field.kind)
        for launch in phases[0]:
            yield KernelSpec(launch.chain, launch.width, round_up_rows(launch.chain, 1))


SOME_DTYPES = ("bool", "int8", "uint32", "int64", "float16", "bfloat16", "float32", "float64", "complex64")


@pytest.mark.slow
@needs_gxx
@pytest.mark.parametrize("dtype", keep(DTYPES, SOME_DTYPES.__contains__))
def test_chains_are_numpy_bit_for_bit(driver, dtype):
    """Every function, in both orders, wide words and narrow, infinities, NaN and signed zeros among them."""
    driver.compile([kernel for function in list_functions(dtype) for kernel in list_kernels(dtype, function)])
    for function, (pattern, offsets), count in itertools.product(list_functions(dtype), WAYS, COUNTS):
        field = Field(dtype, count, [offset * get_dtype(dtype).itemsize for offset in offsets])
        fill_field(field, function, seed=count)
        steps = steps_of(field, pattern)
        right = carried_out(steps, field, function)
        (launch,) = launch_steps(steps, field, function, driver)
        assert launch.chain.loads == SIDES
        for place in field.places():
            assert bits(field.array(place.owner)) == bits(right[place]), (function, pattern, offsets, count, place)
        assert field.intact()


@needs_gxx
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_elements_may_lie_at_any_byte(driver, dtype):
    field = Field(dtype, 100, (1,) * 6)
    fill_field(field, "add", seed=3)
    steps = steps_of(field, PATTERNS[0])
    right = carried_out(steps, field, "add")
    (launch,) = launch_steps(steps, field, "add", driver)
    assert launch.width == 1
    assert all(bits(field.array(place.owner)) == bits(right[place]) for place in field.places())


def test_places_that_lie_alike_take_whole_words():
    for dtype, offset, width in (("float32", 0, 16), ("float32", 4, 16), ("int8", 3, 16), ("complex128", 8, 8)):
        field = Field(dtype, 50, (offset,) * 6)
        ((launch,),) = plan_launches(steps_of(field, PATTERNS[0]), field.extent, NOWHERE, "add", field.kind)
        assert launch.width == width
    field = Field("float32", 50, (0, 4, 0, 0, 0, 0))
    ((launch,),) = plan_launches(steps_of(field, PATTERNS[0]), field.extent, NOWHERE, "add", field.kind)
    assert launch.width == 4


@needs_gxx
def test_a_place_may_be_both_operand_and_result(driver):
    """In place: the last operand is where the sum goes, by way of scratch that is then not written at all."""
    field = Field("float32", 500, (0,) * 4)
    fill_field(field, "add", seed=1)
    a, b, landing, home = field.places()
    steps = [Reduce(a, b, landing), Reduce(landing, home, landing), Copy(landing, home)]
    right, untouched = carried_out(steps, field, "add"), field.array(2).copy()
    (launch,) = launch_steps(steps, field, "add", driver, scratch=field.extent(landing))
    assert launch.chain == FusedChain("add", "float32", 3, ((0, 1), (3, 2)), (4,))
    assert bits(field.array(3)) == bits(right[home])
    assert bits(field.array(2)) == bits(untouched)


@needs_gxx
def test_scratch_that_is_read_after_a_meeting_is_written(driver):
    field = Field("float32", 50, (0,) * 4)
    fill_field(field, "add", seed=1)
    a, b, landing, home = field.places()
    steps = [Reduce(a, b, landing), NodeFence(), Copy(landing, home)]
    right = carried_out([step for step in steps if not isinstance(step, NodeFence)], field, "add")
    first, second = launch_steps(steps, field, "add", driver, scratch=field.extent(landing))
    assert (first.chain.function, second.chain.function) == ("add", "")
    assert bits(field.array(3)) == bits(right[home])


def test_one_launch_for_all_blocks_that_are_alike():
    """An all-gather's copies are rows of one launch, and so are the chains of a result in two pieces."""
    field = Field("float32", 600, (0,) * 8)
    moves = [Copy(place, field.places()[at + 4]) for at, place in enumerate(field.places()[:2])]
    ((launch,),) = plan_launches(moves, field.extent, NOWHERE, "add", field.kind)
    assert len(launch.rows) == 2
    a, b, c, out = field.places()[:4]
    halves = [(0, 200), (200, 600)]
    steps = [Reduce(a.part(*cut), b.part(*cut), out.part(*cut)) for cut in halves]
    steps += [Reduce(out.part(*cut), c.part(*cut), out.part(*cut)) for cut in halves]
    ((launch,),) = plan_launches(steps, field.extent, NOWHERE, "add", field.kind)
    assert len(launch.rows) == 2
    assert launch.chain.loads == 3


def test_what_depends_on_each_other_is_not_put_together():
    """Steps whose ranges overlap at different offsets must run in order: not in one kernel, and not in one launch."""
    field = Field("float32", 600, (0,) * 3)
    a, b, c = field.places()
    steps = [Copy(a.part(0, 300), b.part(0, 300)), Copy(b.part(100, 400), c.part(0, 300))]
    (phase,) = plan_launches(steps, field.extent, NOWHERE, "add", field.kind)
    assert [len(launch.rows) for launch in phase] == [1, 1]


def test_memory_under_two_names_is_seen_as_one():
    """Input and output in place are one memory: addresses decide, not names."""
    field = Field("float32", 100, (0,) * 2)
    inner, outer = MemoryRange(MemoryKind.SOURCE, 0, 100, 0), MemoryRange(MemoryKind.RESULT, 0, 100, 0)
    assert field.extent(inner) == field.extent(outer)
    steps = [Copy(inner, field.places()[1]), Copy(outer.part(10, 60), inner.part(0, 50))]
    (phase,) = plan_launches(steps, field.extent, NOWHERE, "add", field.kind)
    assert len(phase) == 2
    assert inner.owner != OWN


def test_rows_fit_into_a_kernels_parameters():
    for loads in (1, 2, 8, 64, 300):
        chain = FusedChain("add", "float32", loads, (), (0,))
        assert chain.words == loads + 1 + EDGES
        for wanted in (1, 5, 60, 500):
            assert 8 * chain.words * round_up_rows(chain, min(wanted, chain.most_rows)) <= 4096
            assert round_up_rows(chain, min(wanted, chain.most_rows)) >= min(wanted, chain.most_rows)


def compile_kernels(kernels, folder, kind):
    """Return the compiled code of kernels in one file."""
    path = folder / "kernels.cu"
    path.write_text(together(kernels, "fused"), encoding="utf-8")
    out = path.with_suffix(f".{kind}")
    codes = [f"-gencode=arch=compute_{each},code=sm_{each}" for each in ARCHITECTURES]
    which = [f"-arch=sm_{ARCHITECTURES[-1]}"] if kind == "ptx" else codes
    command = [
        NVCC or "nvcc",
        *OPTIONS,
        *which,
        f"-{kind}",
        *(["-Xptxas=-v"] if kind == "fatbin" else []),
        str(path),
        "-o",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-3000:]
    return out, done.stderr


@pytest.mark.skipif(NVCC is None, reason="nvcc is not here")
def test_wide_words_are_one_access_and_all_loads_come_first(tmp_path):
    chain = FusedChain("add", "float32", 2, ((0, 1),), (2, 2))
    text = compile_kernels([KernelSpec(chain, WIDEST, 1)], tmp_path, "ptx")[0].read_text(encoding="utf-8")
    unrolled = KernelSpec(chain, WIDEST, 1).unrolled
    wide = re.findall(r"\b(ld|st)\.global\.v4\.u32", text)
    assert (
        wide == (["ld"] * 2 + ["st"] * 2) * 0 + ["ld"] * 2 * unrolled + ["st"] * 2 * unrolled + ["ld"] * 2 + ["st"] * 2
    )
    assert ".local" not in text
    assert "fma.rn" not in text


@pytest.mark.slow
@pytest.mark.skipif(NVCC is None, reason="nvcc is not here")
@pytest.mark.parametrize(
    "dtype", [name if name in ("bool", "bfloat16", "float32") else pytest.param(name, marks=FULL) for name in DTYPES]
)
def test_every_kernel_compiles_for_every_architecture(tmp_path, dtype):
    """Nothing is spilled to memory either."""
    kernels = list(
        dict.fromkeys(kernel for function in list_functions(dtype) for kernel in list_kernels(dtype, function))
    )
    _, said = compile_kernels(kernels, tmp_path, "fatbin")
    assert said.count("0 bytes spill stores") == len(kernels) * len(ARCHITECTURES)


@pytest.mark.slow
@needs_gxx
def test_the_check_for_gpus_runs_on_the_host():
    root = Path(__file__).parents[4]
    command = [sys.executable, "tests/gpu/check_kernels.py", "--dry"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "13 cases, 0 wrong elements\n"
