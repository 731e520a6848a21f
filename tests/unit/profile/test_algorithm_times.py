"""Other algorithms for broadcasts whose recording does not show how long they take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpccoll.mpi4py.configuration import read_choices
from hpccoll.plan import Operation
from hpccoll.profile.algorithm_times import AlgorithmTimes, TimeRatio
from hpccoll.profile.dependencies import CallGraph, build_graph
from hpccoll.profile.network_model import NetworkModel
from hpccoll.profile.transfer_kinds import classify_transfers, measure_transfers
from hpccoll.profile.what_if import WhatIf
from hpccoll.selection.tuning_files import write_table
from hpccoll.selection.tuning_table import (
    BufferKind,
    CandidateTiming,
    TuningPoint,
    TuningSeries,
    TuningSite,
    TuningTable,
)
from tests.unit.profile.traces import TraceBuilder, make_profile

RANKS, CALLS, CALL_S = 4, 10, 1e-3


def make_graph_of_early_roots() -> CallGraph:
    """Return the graph of a job whose ranks enter each broadcast long after its root, rank 0."""
    builders = [TraceBuilder() for _ in range(RANKS)]
    for call in range(CALLS):
        for rank, builder in enumerate(builders):
            begin = call * 4 * CALL_S + 2 * CALL_S * (rank > 0)
            builder.add("broadcast", begin, begin + CALL_S, peer=0, nbytes=2**16)
    site = TuningSite("MPICH 5", "processor", "4 ranks on 1 node")
    profile = make_profile(builders, CALLS * 4 * CALL_S)
    return build_graph(replace(profile, algorithms="broadcast=chain", tuning_site=site))


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CallGraph:
    """The job, with a tuning table in which `tree` takes a quarter of the time of `chain`, the recorded algorithm."""
    timings = (CandidateTiming("chain", 400, 380, 420), CandidateTiming("tree", 100, 95, 105))
    series = TuningSeries(Operation.BROADCAST, RANKS, BufferKind.HOST, (TuningPoint(2**16, "today", timings),))
    graph = make_graph_of_early_roots()
    assert graph.profile.tuning_site is not None
    write_table(tmp_path / "table.json", TuningTable(graph.profile.tuning_site, (series,)))
    monkeypatch.setenv("HPCCOLL_TUNING", str(tmp_path / "table.json"))
    return graph


def test_broadcasts_of_unknown_duration_have_the_bounds_of_the_tuning_table(graph: CallGraph) -> None:
    transfers = classify_transfers(graph)
    assert not measure_transfers(graph, transfers)[0].is_known
    ratio = AlgorithmTimes(
        graph, transfers, [NetworkModel(1e-6, 1e-9, choices=tuple(read_choices("broadcast=chain")))]
    ).estimate_ratio(0, "tree")
    assert ratio == TimeRatio("tree", 100 / 400, 95 / 420 * (1 - 1 / 3), 105 / 380 * (1 + 1 / 3), is_measured=True)


def test_another_algorithm_changes_broadcasts_of_unknown_duration(graph: CallGraph) -> None:
    predicted = WhatIf(graph).predict(["algorithm=broadcast/tree"])[0]
    assert predicted.seconds == pytest.approx(graph.run_s - CALLS * CALL_S * 3 / 4)
