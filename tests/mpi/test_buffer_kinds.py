"""Calls whose arrays differ between ranks, or change between calls, in ways that must not change what the ranks run."""

from __future__ import annotations

import json
import mmap

import numpy as np
import pytest

import hpccoll
from hpccoll.errors import BufferError
from hpccoll.plan import Operation
from hpccoll.runtime.job import detect_layout, get_mpi_library
from hpccoll.selection.tuning_files import TUNING_VARIABLE, describe_site
from hpccoll.selection.tuning_table import BufferKind, CandidateTiming, TuningPoint, TuningSeries, TuningTable

pytestmark = pytest.mark.mpi
COUNT = 1024


@pytest.fixture
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


def series(operation, kind, fastest, slower):
    timings = CandidateTiming(fastest, 1, 1, 1), CandidateTiming(slower, 50, 50, 50)
    return TuningSeries(operation, 4, kind, (TuningPoint(4 * COUNT, "2026-01-01", timings),))


@pytest.fixture
def tuned(comm, tmp_path, monkeypatch):
    """A communicator whose `auto` takes other algorithms for symmetric buffers than for ordinary memory."""
    layout = detect_layout(comm)
    site = describe_site(get_mpi_library(), layout.ranks_per_node, oversubscribed=layout.oversubscribed)
    kinds = (BufferKind.HOST, "mpi", "ring"), (BufferKind.SYMMETRIC, "ring", "mpi")
    scans = (BufferKind.HOST, "mpi", "chain"), (BufferKind.SYMMETRIC, "chain", "mpi")
    operations = {Operation.ALL_GATHER: kinds, Operation.REDUCE_SCATTER: kinds, Operation.EXSCAN: scans}
    table = TuningTable(site, tuple(series(each, *row) for each, rows in operations.items() for row in rows))
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table.as_json()))
    monkeypatch.setenv(TUNING_VARIABLE, str(path))
    with hpccoll.Communicator(comm) as made:
        yield made


def assert_same_selection(hpc, operation, x, out, counts=None):
    call = hpc._check("blocking", operation, x, out, "sum", 0, "auto", None if counts is None else (counts, None))
    assert len(set(hpc._comm.allgather(hpc._engine.selector.select_for(call).name))) == 1


@pytest.mark.parametrize("algorithm", ["auto", "mpi", "ring", "shared_two_shot", "shared_one_shot"])
@pytest.mark.parametrize("torch", [False, True])
def test_a_strided_input_is_read_anew_in_every_call(hpc, algorithm, torch):
    base, out = np.zeros((256, 2), np.float32), np.zeros(256, np.float32)
    x = base[:, 0]
    given = (x, out)
    if torch:
        module = pytest.importorskip("torch")
        given = module.from_numpy(base)[:, 0], module.from_numpy(out)
    others = []
    for value in range(1, 9):
        x[:] = (hpc.rank + 1) * value
        hpc.all_reduce(given[0], out=given[1], algorithm=algorithm)
        assert (out == hpc.size * (hpc.size + 1) / 2 * value).all()
        others.append(np.full(256, -1, np.float32))


def test_a_strided_input_with_counts_is_read_anew_in_every_call(hpc):
    base = np.zeros((hpc.rank + 1, 2))
    out = np.zeros(hpc.size * (hpc.size + 1) // 2)
    for value in range(1, 9):
        base[:, 0] = value
        hpc.all_gather(base[:, 0], out=out, counts=range(1, hpc.size + 1))
        assert (out == value).all()


def test_a_prepared_collective_refuses_a_strided_input(hpc):
    with pytest.raises(BufferError, match="not a C-contiguous array"):
        hpc.all_reduce_init(np.zeros((256, 2))[:, 0], out=np.zeros(256))


def test_a_tensor_that_is_transposed_in_place_is_checked_again(hpc):
    torch = pytest.importorskip("torch")
    x = torch.ones(3, 4)
    for _ in range(4):
        hpc.all_reduce(x)
    x.t_()
    with pytest.raises(BufferError, match="contiguous"):
        hpc.all_reduce(x)


def test_rank_zero_selects_for_the_memory_of_an_exscan_as_the_others_do(tuned):
    x, out = tuned.empty(COUNT), np.zeros(COUNT, np.float32)
    x[:] = tuned.rank + 1
    assert_same_selection(tuned, Operation.EXSCAN, x, out)
    tuned.exscan(x, out=out)
    assert tuned.rank == 0 or (out == tuned.rank * (tuned.rank + 1) / 2).all()


@pytest.mark.parametrize("is_symmetric", [False, True])
def test_a_rank_with_an_empty_block_selects_as_the_others_do(tuned, is_symmetric):
    counts = [0] * (tuned.size - 1) + [COUNT]
    block, whole = np.ones(counts[tuned.rank], np.float32), tuned.empty(COUNT) if is_symmetric else np.zeros(COUNT)
    whole = whole.astype(np.float32, copy=False)
    assert_same_selection(tuned, Operation.ALL_GATHER, block, whole, counts)
    assert (tuned.all_gather(block, out=whole, counts=counts) == 1).all()
    assert_same_selection(tuned, Operation.REDUCE_SCATTER, whole, block, counts)
    assert (tuned.reduce_scatter(whole, out=block, counts=counts) == tuned.size).all()


def test_a_symmetric_buffer_at_the_address_of_a_freed_array_is_selected_for(hpc):
    memory = mmap.mmap(-1, 4 * COUNT * hpc.size)  # as large as the symmetric buffers of the node
    x = np.frombuffer(memory, np.float32)[COUNT * hpc.rank : COUNT * (hpc.rank + 1)]
    for _ in range(4):
        hpc.all_reduce(x)
    before = x.ctypes.data
    kept = (x, memory) if hpc.rank else None
    del x, memory
    x = hpc.empty(COUNT)
    x[:] = 1
    hpc.all_reduce(x)
    assert (x == hpc.size).all()
    assert kept is None or x.ctypes.data != before


@pytest.mark.parametrize("algorithm", ["auto", "mpi", "tree"])
def test_an_output_that_a_rank_does_not_need_is_ignored_in_every_call(hpc, algorithm):
    for _ in range(4):
        out = np.zeros(5000, np.float32)
        other = out.view(np.memmap) if hpc.rank else out
        hpc.reduce(np.ones(5000, np.float32), 0, out=other, algorithm=algorithm)
        assert (out == (0 if hpc.rank else hpc.size)).all()
