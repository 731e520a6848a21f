"""The algorithms of the MPI library itself are timed within their shares of the budget, on one rank."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpccoll.arrays import NUMPY, get_dtype
from hpccoll.library_rules import DEFAULT
from hpccoll.measure.interleaved import TimingOptions
from hpccoll.measure.library_tuning import LibraryTuning
from hpccoll.measure.stopping import StoppingRule
from hpccoll.peers.forced_algorithms import open_library
from hpccoll.plan import Operation
from hpccoll.records import CollectiveRecord
from hpccoll.runtime import job


@pytest.fixture
def tuning():
    """The measurement of one operation at two sizes."""
    world = job.load_mpi().COMM_SELF
    library = open_library("mpich" if job.get_mpi_library().startswith("MPICH") else "openmpi", world)
    method = TimingOptions(StoppingRule(6, 6, 0.5, 1.0), warmup=1, check=False, seed=1)
    return LibraryTuning(world, library, (Operation.ALL_REDUCE,), (8, 64), get_dtype("float32"), NUMPY, method, 0.01)


def test_only_an_algorithm_other_than_the_default_is_timed_once_more_beside_it(tuning):
    records: list[CollectiveRecord] = []
    sizes = list(tuning.run(records.append))
    assert [size.nbytes for size in sizes] == [8, 64]
    assert len(records) == sum(len(size.samples) for size in sizes) == tuning.count_cases()
    for size in sizes:
        assert set(size.repeated) == (set() if size.selected == DEFAULT else {DEFAULT, size.selected})


def test_the_algorithms_and_two_repetitions_per_size_share_the_budget(tuning):
    algorithms = len(tuning.library.list_engines(Operation.ALL_REDUCE))
    assert algorithms > 2
    assert replace(tuning, budget_s=60.0).compute_case_budget_s() == 60 / (2 * algorithms + 2 * 2)
    assert replace(tuning, sizes=()).compute_case_budget_s() == 0.01
