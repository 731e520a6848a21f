"""Blocks of different sizes, and scans: bit for bit as replay of the same plan, and as mpi4py's own results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

import hpccoll
from hpccoll.plan import Operation
from tests.mpi.calls import Call, check
from tests.mpi.cases import NAMES, PATHS, Array, Case, bits, legal, variants

EQUAL_BLOCKS_ONLY = (
    "all_to_all/bruck",
    "all_to_all/hierarchical",
    "all_to_all/hierarchical_pairwise",
    "all_to_all/shared",
)
VARIANTS = {
    name: known
    for name, known in variants().items()
    if known.operation.has_blocks and known.full_name not in EQUAL_BLOCKS_ONLY
}
SCANS = {name: known for name, known in variants().items() if known.operation.is_scan}
REDUCTIONS = ("sum", "prod", "max", "premul")
SIZES = (0, 0, 1, 2, 3, 7, 20, 1500)
CASES = 6  # per example


@pytest.fixture(scope="module")
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


def draw_case(data: st.DataObject, algorithm: Any, n: int, turn: int) -> Case:
    """Draw a case of an algorithm; counts only if it has blocks."""
    operation = algorithm.operation
    dtype = data.draw(st.sampled_from(NAMES), label="dtype")
    ops = [op for op in REDUCTIONS if legal(operation, dtype, op)] or ["none" if not operation.reduces else "max"]
    op = data.draw(st.sampled_from(ops), label="op")
    if not legal(operation, dtype, op):
        dtype = "int64"
    length = n * n if operation is Operation.ALL_TO_ALL else n
    counts = data.draw(st.lists(st.sampled_from(SIZES), min_size=length, max_size=length), label="counts")
    return Case(
        algorithm,
        dtype,
        op,
        counts[0],
        data.draw(st.integers(0, n - 1), label="root"),
        data.draw(st.booleans(), label="in place"),
        data.draw(st.sampled_from(PATHS), label="path"),
        seed=turn,
        counts=tuple(counts) if operation.has_blocks else None,
    )


@pytest.mark.parametrize("name", [*VARIANTS, *SCANS])
@settings(max_examples=2)
@given(data=st.data())
def test_drawn_counts_are_bit_equal_to_replay(hpc, comm, name, data):
    algorithm = (VARIANTS | SCANS)[name]
    check(hpc, comm, [draw_case(data, algorithm, comm.size, turn) for turn in range(CASES)])


def call_mpi4py(raw: MPI.Intracomm, case: Case) -> Array | None:
    """The result of the MPI library's own collective, called by mpi4py, for a sum of integers."""
    n, rank, operation = raw.size, raw.rank, case.operation
    x, out = case.brought(rank, n), np.zeros(case.taken(n, rank), case.kind.numpy)
    sent, received = list(case.sent(n, rank)), list(case.received(n, rank))
    match operation:
        case Operation.SCAN:
            raw.Scan(x, out)
        case Operation.EXSCAN:
            raw.Exscan(x, out)
        case Operation.ALL_GATHER:
            raw.Allgatherv(x, [out, received])
        case Operation.GATHER:
            raw.Gatherv(x, [out, received], case.root)
        case Operation.SCATTER:
            raw.Scatterv(None if x is None else [x, sent], out, case.root)
        case Operation.REDUCE_SCATTER:
            raw.Reduce_scatter(x, out, sent)
        case _:
            raw.Alltoallv([x, sent], [out, received])
    return out if case.wants(rank) else None


@pytest.mark.parametrize("operation", [each for each in Operation if each.has_blocks or each.is_scan])
@settings(max_examples=5)
@given(data=st.data())
def test_drawn_counts_are_bit_equal_to_mpi4py(hpc, comm, operation, data):
    known = [each for each in (VARIANTS | SCANS).values() if each.operation is operation]
    for turn in range(CASES):
        case = draw_case(data, data.draw(st.sampled_from(known)), comm.size, turn)
        dtype = data.draw(st.sampled_from(("int32", "int64", "uint64")))
        op = "sum" if operation.reduces else "none"
        case = Case(
            case.algorithm, dtype, op, case.count, case.root, case.in_place, case.path, seed=turn, counts=case.counts
        )
        wanted = call_mpi4py(comm, case)
        names = ("auto", "mpi", case.algorithm)
        for algorithm in names:
            call = Call(hpc, case)
            call.algorithm = algorithm
            for found in call.results():
                assert (found is None) == (wanted is None)
                assert found is None or wanted is None or bits(found) == bits(wanted), (case, algorithm)


@pytest.mark.parametrize("form", ["blocking", "repeated", "again", "async", "mixed"])
def test_a_long_block_for_the_own_rank_arrives_in_its_place(comm, form):
    """hpccoll copies such a block itself where the MPI library exchanges the others."""
    n, rank, rows, own = comm.size, comm.rank, 3, 40_000
    sent = [own if to == rank else rows + rank + to for to in range(n)]
    blocks = {
        (a, b): np.full(sent[b] if a == rank else rows + a + b, 100 * a + b + 1.0) for a in range(n) for b in range(n)
    }
    x = np.concatenate([blocks[rank, to] for to in range(n)])
    expected = np.concatenate([blocks[rank, rank] if at == rank else blocks[at, rank] for at in range(n)])
    received = [own if at == rank else rows + at + rank for at in range(n)]
    with hpccoll.Communicator(comm, mixed_forms=form == "mixed") as own_comm:
        call: dict[str, Any] = {"counts": sent, "out_counts": received}
        out = np.zeros(sum(received))
        if form == "async":
            own_comm.all_to_all(x, **call, out=out, async_op=True).wait()
        elif form == "repeated":
            for _ in range(3):
                out[:] = 0
                own_comm.all_to_all(x, **call, out=out)
        elif form == "again":
            for _ in range(3):  # new arrays in every call
                out = own_comm.all_to_all(x.copy(), **call)
        else:
            own_comm.all_to_all(x, **call, out=out)
    assert bits(out) == bits(expected)
