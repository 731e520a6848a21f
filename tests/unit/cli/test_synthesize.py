"""`hpccoll synthesize`: its plan files go to verify, simulate, draw and export, and commands state the optimum."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpccoll.algorithms import loader
from hpccoll.cli import main as cli
from hpccoll.plan import Operation
from tests.record_schema import require_valid

NETWORK = """
name = "one slow node"
ranks = ["a", "b", "c", "d"]
links = [
    {between = ["a", "switch"], GBps = 4},
    {between = ["b", "switch"], GBps = 4},
    {between = ["c", "switch"], GBps = 4},
    {between = ["d", "switch"], GBps = 1},
]
nodes = [{name = "fast", vertices = ["a", "b", "c"]}, {name = "slow", vertices = ["d"]}]
"""


@pytest.fixture
def network(tmp_path: Path) -> str:
    path = tmp_path / "network.toml"
    path.write_text(NETWORK)
    return str(path)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(arguments) == 0
    return capsys.readouterr().out


def test_plan_file_goes_through_all_commands(network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, goal = str(tmp_path / "gather.json"), str(tmp_path / "gather.goal")
    output = run(capsys, "synthesize", "all_gather", "--machine", network, "-o", plan)
    assert "optimum of all_gather: 750 ms per GB (algbw 1.333 GB/s), set by the downlink of slow (1 GB/s)" in output
    assert "100.00% of the optimum" in output
    row = run(capsys, "verify", plan).splitlines()[2]
    assert row.split()[:3] == ["all_gather/gather", "1/1", "6"]
    records = tmp_path / "simulated.jsonl"
    run(capsys, "simulate", plan, "all_gather/ring", "--size", "1M", "--json", str(records))
    cases = [json.loads(line) for line in records.read_text().splitlines()][1:]
    assert [(case["algorithm"], case["ranks"]) for case in cases] == [("gather", 4), ("ring", 4)]
    assert "gather" in run(capsys, "draw", plan)
    run(capsys, "export", plan, "-o", goal)
    assert Path(goal).read_text().startswith("num_ranks 4")


def test_rooted_plan_is_for_its_root(network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(tmp_path / "spread.json")
    run(capsys, "synthesize", "broadcast", "--machine", network, "-r", "2", "-o", plan)
    assert "1/1" in run(capsys, "verify", plan)
    assert cli.main(["simulate", plan]) == 2
    assert "broadcast/spread is a plan for 4 ranks and root 2, not for 4 ranks and root 0" in capsys.readouterr().err
    assert cli.main(["verify", plan, "--ranks", "5"]) == 1
    assert "broadcast/spread" in run(capsys, "simulate", plan, "--root", "2")
    assert loader.load_and_prove([plan], [Operation.BROADCAST], 4, 2) == ("spread",)


def test_wrong_plan_file_is_refused(network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "gather.json"
    run(capsys, "synthesize", "all_gather", "--machine", network, "-o", str(plan), "--chunks", "1")
    document = json.loads(plan.read_text())
    del document["rounds"][-1][0]
    plan.write_text(json.dumps(document))
    assert cli.main(["verify", str(plan)]) == 1
    assert "in the end rank 2 chunk 3 is wrong: it was never written" in capsys.readouterr().err
    plan.rename(tmp_path / "ring.json")
    assert cli.main(["verify", str(tmp_path / "ring.json")]) == 2
    assert "has the name of the algorithm all_gather/ring" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["all_to_all"], "no optimum of all_to_all"),
        (["all_gather", "--ranks", "5"], "has 4 ranks, and --ranks asks for 5"),
        (["all_gather", "--nodes", "3"], "states its nodes; leave --nodes out"),
        (["broadcast", "-r", "4"], "--root 4 is not a rank of 0..3"),
        (["all_gather", "-o", "plan.xml"], "plans are written as JSON"),
    ],
)
def test_usage_errors(network: str, arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["synthesize", *arguments, "--machine", network]) == 2
    assert reason in " ".join(capsys.readouterr().err.split())


def test_simulate_states_the_share_of_the_optimum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "simulated.jsonl"
    words = ["simulate", "all_gather/hierarchical_ring", "--machine", "summit", "--ranks", "12", "--size", "64M"]
    output = run(capsys, *words, "--json", str(file))
    assert "all_gather/hierarchical_ring of 64 MiB on 12 ranks: " in output
    assert (
        "% of the speed that this network allows (time of the optimum / time of the call), set by the 2 uplinks"
        in output
    )
    record = json.loads(file.read_text().splitlines()[1])
    require_valid(record)
    assert record["binding"] == "the 2 uplinks of node1 (25 GB/s)"
    assert record["bandwidth_bound_us"] == pytest.approx(2**26 / 2 / 25e9 * 1e6, rel=1e-4)


def test_which_states_the_optimum(network: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = run(capsys, "which", "all_reduce", "16M", "--ranks", "4", "--nodes", "4", "--machine", network)
    assert "optimum at least 1.678e+04 us on one slow node, set by the uplink of slow (1 GB/s)" in output
    output = run(capsys, "which", "all_reduce", "16M", "--ranks", "12", "--nodes", "2", "--machine", "summit")
    assert (
        "(time of the largest known lower bound / time of the call), set by the 2 uplinks of node0 (25 GB/s)" in output
    )
