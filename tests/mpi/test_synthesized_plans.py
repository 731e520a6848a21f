"""Synthesized plans and weighted all-reduces give the same results as the MPI library on every rank."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import hpccoll
from hpccoll.algorithms import registry
from hpccoll.algorithms.loader import load_and_prove
from hpccoll.plan import Operation
from hpccoll.plan.interchange.json_plans import to_json
from hpccoll.processes import joint_failure
from hpccoll.synthesis import NetworkBuilder
from hpccoll.synthesis.forest_plan import synthesize

COUNT = 1003


@pytest.fixture(scope="module")
def hpc(comm):
    with hpccoll.Communicator(comm) as made:
        yield made


def make_star(ranks: int):
    """Return a star whose last link has a quarter of the rate of the others."""
    network = NetworkBuilder("star", [f"rank {rank}" for rank in range(ranks)])
    for rank in range(ranks):
        network.connect(f"rank {rank}", "switch", Fraction(4 if rank < ranks - 1 else 1))
    return network.build()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("operation", [Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.BROADCAST])
def test_plan_file_runs(operation, hpc, comm, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "REGISTERED", dict(registry.REGISTERED))  # other tests run all registered algorithms
    path = comm.bcast(str(tmp_path / f"{operation.value}_plan.json"))

    def write_plan():
        Path(path).write_text(to_json(synthesize(make_star(comm.size), operation, pieces=2)[0]), encoding="utf-8")

    joint_failure.run_on_first_rank(comm, write_plan)
    comm.Barrier()
    (name,) = load_and_prove([path], [operation], comm.size)
    data = np.arange(COUNT * comm.size, dtype=np.int64)
    own = data[COUNT * comm.rank : COUNT * (comm.rank + 1)]
    if operation is Operation.ALL_GATHER:
        gathered = np.zeros_like(data)
        hpc.all_gather(own.copy(), out=gathered, algorithm=name)
        assert np.array_equal(gathered, data)
    elif operation is Operation.REDUCE_SCATTER:
        reduced = np.zeros(COUNT, np.int64)
        hpc.reduce_scatter(data * (comm.rank + 1), out=reduced, algorithm=name)
        assert np.array_equal(reduced, own * (comm.size * (comm.size + 1) // 2))
    else:
        x = data.copy() if comm.rank == 0 else np.zeros_like(data)
        hpc.broadcast(x, algorithm=name)
        assert np.array_equal(x, data)


@pytest.mark.parametrize("name", ["weighted@4:1", "weighted@3:4:1", "hierarchical_weighted@4:1:4"])
@pytest.mark.parametrize("count", [0, 1, COUNT, 300_000])
def test_weighted_all_reduce(name, count, hpc, comm):
    x = np.arange(count, dtype=np.int64) + comm.rank
    hpc.all_reduce(x, algorithm=name)
    assert np.array_equal(x, comm.size * np.arange(count) + comm.size * (comm.size - 1) // 2)
