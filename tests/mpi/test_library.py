"""The MPI library's own collectives, called by hpccoll, have the same results in any order of waits."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import get_algorithm, list_algorithm_names
from hpccoll.arrays import DTYPES, Reduction, get_dtype
from hpccoll.arrays.interface import view_host_memory
from hpccoll.errors import UsageError
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import check_call
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.messages.mpi_calls import explain_refusal
from hpccoll.runtime.messages.mpi_collectives import MpiCollectives
from hpccoll.runtime.progress import InFlight, Progress
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from tests.mpi.calls import Call
from tests.mpi.cases import NAMES, OPS, Case, bits, legal

FORMS = ("run", "bind", "beside", "start")
COUNTS = (0, 1, 7, 500)


@pytest.fixture(scope="module")
def hpc(comm) -> Iterator[hpccoll.Communicator]:
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


@pytest.fixture
def progress() -> Progress:
    return Progress()


@pytest.fixture
def library(comm, progress) -> Iterator[MpiCollectives]:
    own = comm.Dup()
    yield MpiCollectives(own, progress, CallRecorder(), lambda: False)
    own.Free()


def asked(call: Call) -> CollectiveCall:
    """The job of a call, as the communicator makes it."""
    x, how = call.arguments()
    operation, root = call.case.operation, how.get("root", 0)
    return check_call(operation, x, how.get("out"), call.rank, call.n, root, how.get("op", "sum"))


def carried(library: MpiCollectives, call: Call, form: str) -> list[Any]:
    """Run a call in one of the forms, and return the result of each time."""
    job, found = asked(call), []
    assert library.can_run(job)
    if form == "start":
        call.load()
        under_way = library.start(job)
        while not under_way.advance():
            pass
        assert under_way.done
        return [call.result()]
    if form == "beside":
        library.use_non_blocking()
    bound = None if form == "run" else library.bind(job)
    for _ in range(3):
        call.load()
        if bound is None:
            library.run(job)
        else:
            bound()
        found.append(call.result())
    if bound is not None:
        bound.free()
        with pytest.raises(UsageError, match="prepare it again"):
            bound()
    return found


def rows() -> list[tuple[Operation, str, str]]:
    return [
        (operation, dtype, op)
        for operation, dtype, op in product(Operation, NAMES, ("none", *OPS))
        if legal(operation, dtype, op)
        and not op.startswith("premul")
        and not explain_refusal(operation, get_dtype(dtype), Reduction.parse("sum" if op == "none" else op))
    ]


@pytest.mark.full_except_on(2, 3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("operation", Operation)
def test_results_are_what_hpccoll_promises(comm, hpc, library, operation, form):
    for turn, (_, dtype, op) in enumerate(row for row in rows() if row[0] is operation):
        count = COUNTS[(turn + FORMS.index(form)) % len(COUNTS)]
        algorithm = get_algorithm(operation, list_algorithm_names(operation)[0])
        for in_place in (False, True):
            case = Case(
                algorithm, dtype, op, count, turn % comm.size, in_place, special=not operation.reduces, seed=turn
            )
            wanted = case.replayed(comm.size, hpc._engine.selector.select_for(asked(Call(hpc, case))).chunks)[comm.rank]
            for found in carried(library, Call(hpc, case), form):
                if found is None:
                    continue
                if operation.reduces and case.kind.kind in "fc":
                    assert case.wrong(comm.rank, comm.size, found) == 0, case
                else:
                    assert bits(found) == bits(wanted), case
                if operation is Operation.ALL_REDUCE:
                    assert len(set(comm.allgather(bits(found)))) == 1, (case, "ranks differ")


def sums(rank: int, n: int, count: int) -> tuple[CollectiveCall, np.ndarray, list[int]]:
    """An all-reduce in place: its array and the expected contents afterwards."""
    x = np.arange(count, dtype=np.int64) + rank
    job = check_call(Operation.ALL_REDUCE, x, None, rank, n)
    return job, x, (n * np.arange(count) + n * (n - 1) // 2).tolist()


def test_ranks_may_wait_in_other_orders_and_block_between(comm, library, progress):
    """One rank has waited for an earlier operation, another has not: their blocking calls must still match."""
    n, rank = comm.size, comm.rank
    early = [library.bind(sums(rank, n, 4)[0]) for _ in range(3)]
    for turn in range(20):
        begun = [sums(rank, n, 1 + 50 * i) for i in range(4)]
        started = [library.start(job) for job, _, _ in begun]
        for operation in started:
            progress.add(operation)
        mine = list(range(4))
        random.Random(100 * turn + rank).shuffle(mine)
        if rank % 2:  # these wait before they block, the others after
            progress.wait_until(lambda: not progress)
        job, x, wanted = sums(rank, n, 9)
        library.run(job)
        assert x.tolist() == wanted
        for each in early:
            each()
        for i in mine:
            progress.wait_until(started[i].advance)
            assert begun[i][1].tolist() == begun[i][2]


class Answering(InFlight):
    """Something under way at rank 0 that answers each other rank's message, and only when it is carried on."""

    def __init__(self, gate: MPI.Intracomm) -> None:
        super().__init__()
        self.gate = gate
        self.asked = {peer: gate.irecv(source=peer) for peer in range(1, gate.size)}

    def _advance(self) -> bool:
        for peer, request in list(self.asked.items()):
            if request.test()[0]:
                del self.asked[peer]
                self.gate.send(None, peer)
        return not self.asked


@pytest.mark.parametrize("form", ["run", "bound before", "bound after"])
def test_a_rank_that_waits_carries_on_what_another_waits_for_first(comm, library, progress, form):
    gate = comm.Dup()
    job, x, wanted = sums(comm.rank, comm.size, 3)
    early = library.bind(job)
    library.use_non_blocking()
    if comm.rank:
        gate.send(comm.rank, 0)
        gate.recv(source=0)
    else:
        progress.add(Answering(gate))
    if form == "run":
        library.run(job)
    else:
        (early if form == "bound before" else library.bind(job))()
    assert x.tolist() == wanted
    assert not progress or comm.size == 1
    gate.Free()


def test_prepared_operations_live_until_they_are_freed(hpc, library):
    for operation in Operation:
        reduction = "sum" if operation.reduces else "none"
        case = Case(get_algorithm(operation, list_algorithm_names(operation)[0]), "uint8", reduction, 3)
        prepared = library.bind(asked(Call(hpc, case)))
        assert prepared.plan is None
        assert prepared.live
        prepared.free()
        assert not prepared.live
        prepared.free()  # twice does no harm
        with pytest.raises(UsageError, match="was freed"):
            prepared()


@pytest.mark.full_except_on(2, 3)
def test_prepared_operations_do_not_run_out(comm, hpc, library):
    """Ranks free them in other orders."""
    case = Case(get_algorithm(Operation.ALL_TO_ALL, "pairwise"), "int64", "none", 2)
    calls = [Call(hpc, case) for _ in range(50)]
    barrier = asked(Call(hpc, Case(get_algorithm(Operation.BARRIER, "dissemination"), "uint8", "none", 0)))
    for _ in range(60):
        made = [library.bind(asked(call)) for call in calls]
        made += [library.bind(barrier) for _ in range(20)]
        for each in made[::7]:
            each()
        random.Random(comm.rank).shuffle(made)
        for each in made:
            each.free()
    calls[0].load()
    library.run(asked(calls[0]))
    found = calls[0].result()
    assert found is not None
    assert bits(found) == bits(case.replayed(comm.size, 2 * comm.size)[comm.rank])


def test_what_is_bound_keeps_its_memory(comm, library):
    n, rank = comm.size, comm.rank
    bound = []
    for _ in range(20):
        job, x, wanted = sums(rank, n, 5000)
        assert job.result is not None
        bound.append((library.bind(job), job.result.address, wanted))
        del job, x
    gc.collect()
    fresh = [np.full(5000, -1, np.int64) for _ in range(40)]
    for run, *_ in bound:
        run()
    assert all((each == -1).all() for each in fresh)
    for _, address, wanted in bound:
        assert view_host_memory(address, 40_000).view(np.int64).tolist() == wanted


def test_counts_that_mpi_cannot_take_are_refused(library):
    far = CollectiveCall(Operation.BROADCAST, None, 0, Reduction("sum"), None, None, 2**31)
    assert library.can_run(far) == (MPI.Get_version()[0] >= 4)
    assert library.can_run(CollectiveCall(Operation.BROADCAST, None, 0, Reduction("sum"), None, None, 2**31 - 1))


def test_only_what_means_the_same_is_offered():
    def reductions(dtype: str) -> set[str]:
        kinds = ("sum", "prod", "min", "max", "avg", "premul_sum", "band", "bor", "bxor")
        return {op for op in kinds if not explain_refusal(Operation.ALL_REDUCE, DTYPES[dtype], Reduction(op, 2))}

    whole = {"sum", "prod", "min", "max", "band", "bor", "bxor"}
    for name in (name for name in NAMES if DTYPES[name].kind == "i"):
        assert reductions(name) == (whole if DTYPES[name].itemsize >= 4 else whole - {"sum"})
    assert all(reductions(name) == {"sum", "prod", "avg"} for name in ("float32", "float64", "complex64", "complex128"))
    assert reductions("bool") == {"min", "max", "band", "bor", "bxor"}
    assert reductions("float16") == reductions("bfloat16") == set()
    assert all(not explain_refusal(Operation.ALL_GATHER, dtype, Reduction("sum")) for dtype in DTYPES.values())
