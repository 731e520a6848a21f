"""Expected outputs of benchmarks: the same as those computed from whole inputs, without memory of their size."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from hpccoll.arrays import NUMPY, get_dtype
from hpccoll.measure.data import PERIOD, ExpectedResult, make_input
from hpccoll.measure.expected_output import INPUT_HAS_BLOCKS, make_expected_output
from hpccoll.measure.workload import Workload, WorkloadSpec
from hpccoll.plan import Operation
from tests.expected_result import compute_expected_result

SEED = 3
COUNTS = (0, 1, 7, PERIOD, PERIOD + 1, PERIOD + 4500)


def make_spec(operation, count, dtype, redop, rank, ranks, *, in_place=False):
    """Return the arguments of a collective on `rank`; the last rank is the root."""
    return WorkloadSpec(operation, count, get_dtype(dtype), redop, ranks - 1, in_place, rank, ranks, SEED)


def whole_inputs(task):
    """Return the inputs of all ranks, made as whole arrays."""
    silent = task.operation in (Operation.BROADCAST, Operation.SCATTER)
    length = task.count * (task.ranks if task.operation in INPUT_HAS_BLOCKS else 1)
    return [
        None
        if task.operation is Operation.BARRIER or (silent and rank != task.root)
        else make_input(task.dtype, SEED, rank, length, task.redop)
        for rank in range(task.ranks)
    ]


def damage(output, place):
    """Return a copy of the output with other bits in one element."""
    damaged = output.copy()
    damaged.view(np.uint8).reshape(len(output), -1)[place] ^= 0x5A if output.dtype != np.bool_ else 1
    return damaged


def assert_same_judgement(task):
    """Compare the judgements of right and damaged outputs with those by the result of whole inputs."""
    inputs = whole_inputs(task)
    reference = compute_expected_result(task.operation, inputs, task.redop, task.rank, task.root)
    expected = make_expected_output(task)
    assert (reference is None) == (expected is None)
    if reference is None or expected is None:
        return
    output = reference.values.astype(task.dtype.numpy)
    assert expected.count == len(output)
    assert expected.count_wrong(output) == 0
    for place in {0, len(output) // 2, len(output) - 1} if len(output) else ():
        damaged = damage(output, place)
        assert expected.count_wrong(damaged) == reference.count_wrong(damaged) == 1


@pytest.mark.slow
@pytest.mark.parametrize("operation", list(Operation))
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "complex64", "bool"])
def test_the_same_outputs_are_right_as_by_whole_inputs(operation, dtype):
    redops: tuple[str, ...] = ("sum", "avg", "max", "prod") if operation.reduces else ("sum",)
    if dtype == "bool" or (dtype == "int8" and operation.reduces):
        redops = ("max",)
    if dtype == "complex64":
        redops = tuple(redop for redop in redops if redop != "max")
    for ranks in (1, 3, 4):
        for count in COUNTS if dtype in ("float32", "int8") else COUNTS[:3]:
            for redop in redops:
                for rank in range(ranks):
                    assert_same_judgement(make_spec(operation, count, dtype, redop, rank, ranks))


@pytest.mark.parametrize("dtype", ["float32", "complex64", "bfloat16"])
def test_nan_is_right_only_where_it_is_expected(dtype):
    expected, output = (np.array(values, get_dtype(dtype).numpy) for values in ([np.nan, 1, 2], [np.nan, np.nan, 2]))
    assert ExpectedResult(expected, None).count_wrong(output) == 1


@pytest.mark.parametrize("operation", [each for each in Operation if each is not Operation.BARRIER])
@pytest.mark.parametrize("in_place", [False, True])
def test_reset_restores_the_input_and_makes_the_output_wrong(operation, in_place):
    for rank in range(3):
        task = make_spec(operation, PERIOD + 5, "float32", "sum", rank, 3, in_place=in_place)
        workload, mine = Workload(task, NUMPY), whole_inputs(task)[rank]
        workload.reset()
        if mine is not None:
            assert workload.source is not None
            assert (workload.source == mine).all()
        sends_in_place = in_place and operation in (Operation.BROADCAST, Operation.SCATTER) and rank == task.root
        if workload.result is not None and not sends_in_place and not (operation.is_scan and rank == 0):
            assert workload.count_wrong() > 0
            workload.result[...] = 0
            workload.reset()
            assert mine is None or (workload.source == mine).all()


def test_a_workload_holds_its_buffers_and_no_other_memory_of_their_size():
    count = 4 << 20
    for operation, in_place in ((Operation.ALL_REDUCE, True), (Operation.ALL_GATHER, False)):
        task = make_spec(
            operation, count // (4 if operation.has_blocks else 1), "float32", "sum", 1, 4, in_place=in_place
        )
        tracemalloc.start()
        workload = Workload(task, NUMPY)
        workload.reset()
        workload.count_wrong()
        workload.checksum_output()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        buffers = 4 * count * (1 if in_place else 1.25)
        assert peak < buffers + 8e6, f"{operation.value}: {peak / 1e6:.0f} MB for buffers of {buffers / 1e6:.0f} MB"
