"""`hpccoll simulate`: output, records, and refused options."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner

from hpccoll.algorithms import get_algorithm
from hpccoll.cli import main as cli
from hpccoll.cli.machine_options import parse_seconds, parse_seconds_per_byte
from hpccoll.cli.simulate import simulate as command
from hpccoll.errors import UsageError
from hpccoll.measure.results.collective_record import make_collective_record
from hpccoll.plan import Operation
from hpccoll.processes import launched_rank
from tests.record_schema import require_valid


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in launched_rank.RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str):
    return CliRunner().invoke(command, list(arguments), catch_exceptions=False)


def test_a_ring_and_its_critical_path_are_told():
    arguments = "all_reduce/ring", "--ranks", "5", "--size", "20", "--alpha", "1us"
    assert "round 2" not in run(*arguments).stdout
    result = run(*arguments, "--path")
    assert result.exit_code == 0
    row = next(line for line in result.stdout.splitlines() if line.startswith("all_reduce/ring "))
    assert row.split()[1:] == ["5", "5", "20", "B", "-", "8", "32", "B", "32", "B", "100.0%", "8", "us", "2.67x", "-"]
    assert "after 8 waits in a row, 8 of them across nodes (one rank represents all)" in result.stdout
    assert "round 2: rank 2 waits for 4 B from rank 1 across nodes, which began the round at 1 us" in result.stdout


@pytest.mark.slow
def test_records_fulfil_the_schema(tmp_path):
    target = tmp_path / "found.jsonl"
    names = ("all_reduce/ring", "all_reduce/hierarchical", "broadcast/tree", "barrier/tree")
    assert (
        run(*names, "--ranks", "12,24", "--size", "8,64K", "--machine", "summit", "--json", str(target)).exit_code == 0
    )
    first, *records = [json.loads(line) for line in target.read_text().splitlines()]
    assert (first["kind"], len(records)) == ("run", 16)
    for record in (first, *records):
        require_valid(record)
    ring = next(r for r in records if r["algorithm"] == "ring" and r["ranks"] == 24 and r["nbytes"] == 65536)
    assert (ring["nodes"], ring["steps"], ring["simulated_ranks"], ring["root"]) == (4, 46, 6, None)
    assert ring["within"] + ring["between"] == 2 * 23 * 65536
    assert ring["between"] == pytest.approx((ring["within"] + ring["between"]) * 4 / 24, rel=0.01)
    assert ring["time_us"] > max(ring["latency_bound_us"], ring["bandwidth_bound_us"])
    assert ring["critical_path"]["waits"] == 46
    assert len(ring["critical_path"]["ends"]) == 46
    with pytest.raises(jsonschema.ValidationError):
        require_valid({key: value for key, value in ring.items() if key != "time_us"})


def test_nodes_spread_the_ranks():
    machine = ["--machine", "laptop", "--size", "1M", "--json", "-"]
    for nodes in (1, 4):
        out = run("all_reduce/ring", "--ranks", "8", "--nodes", str(nodes), *machine).stdout
        record = json.loads(out.splitlines()[1])
        assert record["nodes"] == nodes
        assert (record["between"] > 0) is (nodes > 1)


def test_a_chunk_per_rank_has_an_element_by_default_beyond_131072_ranks():
    names = "all_reduce/swing", "broadcast/chain", "all_reduce/hierarchical_ring"
    for ranks, sizes in ((2**18, [2**20, 8192, 2**20]), (16, [8192] * 3)):
        out = run(*names, "--ranks", str(ranks), "--json", "-").stdout
        assert [json.loads(line)["nbytes"] for line in out.splitlines()[1:]] == sizes
    with pytest.raises(UsageError, match="too long"):
        run(names[0], "--ranks", str(2**18), "--size", "8K")


def test_full_gives_the_same_of_all_ranks():
    common = ["all_reduce/ring", "--ranks", "24", "--size", "96", "--machine", "summit", "--json", "-"]
    few, every = (json.loads(run(*common, *more).stdout.splitlines()[1]) for more in ([], ["--full"]))
    assert (few["simulated_ranks"], every["simulated_ranks"]) == (6, 24)
    assert few["time_us"] == every["time_us"]
    assert few["critical_path"] == every["critical_path"]


def bench_record(path, ranks: int = 2) -> None:
    """A result file of a bench that took 1 us a call, 2 us a message and 1 ns a byte."""
    from hpccoll.records import CollectiveCase, StopReason

    lines = []
    for name, steps, share in (("ring", 2, 0.5), ("recursive_doubling", 1, 1.0), ("auto", 1, 1.0)):
        for nbytes in (64 * 2**k for k in range(8)):
            row = CollectiveCase(
                "all_reduce", "hpccoll", name, "host", True, nbytes, nbytes // 4, "float32", "sum", None, ranks, 1
            )
            us = 1 + steps * (2 + share * nbytes * 1e-3)
            lines.append(json.dumps(make_collective_record(row, (us,), StopReason.CONVERGED, 0).as_dict()))
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(("ranks", "nodes", "layout"), [(8, 4, [2, 2, 2, 2]), (7, 3, [3, 3, 1]), (4, 1, [4])])
def test_plans_of_two_levels_are_laid_out_on_the_nodes_of_their_rows(tmp_path, ranks, nodes, layout):
    from hpccoll.cli.machine_options import read_measured_rows
    from hpccoll.records import CollectiveCase, StopReason

    row = CollectiveCase(
        "all_reduce", "hpccoll", "hierarchical_ring", "host", True, 64, 16, "float32", "sum", None, ranks, nodes
    )
    path = tmp_path / "bench.jsonl"
    path.write_text(json.dumps(make_collective_record(row, (5.0,), StopReason.CONVERGED, 0).as_dict()) + "\n")
    (found,) = read_measured_rows(str(path), "FILE")
    expected = get_algorithm(Operation.ALL_REDUCE, "hierarchical_ring").plan(ranks, nodes=layout)
    column, same = (plan.make(np.arange(ranks)) for plan in (found.plan, expected))
    assert (column.count, column.chunks) == (same.count, same.chunks)
    assert [repr(column.at(t)) for t in range(column.count)] == [repr(same.at(t)) for t in range(same.count)]
    assert found.nodes == nodes


def test_a_machine_is_fitted_to_a_record(tmp_path):
    path = tmp_path / "bench.jsonl"
    bench_record(path)
    result = run("all_reduce/ring", "--ranks", "2", "--size", "1K", "--machine", f"fit:{path}")
    assert f"Simulated on fit:{path}; median error 0.0% on sizes left out, 0.0% on those fitted" in result.stdout
    record = json.loads(
        run(
            "all_reduce/ring", "--ranks", "2", "--size", "1K", "--machine", f"fit:{path}", "--json", "-"
        ).stdout.splitlines()[1]
    )
    assert record["time_us"] == pytest.approx(1 + 2 * (2 + 0.512), rel=1e-2)
    assert record["fit"]["left_out"] < 0.01
    require_valid(record)


@pytest.mark.slow
def test_a_map_is_drawn(tmp_path):
    path = tmp_path / "map.svg"
    result = run("all_gather", "--ranks", "8", "--machine", "workstation", "--map", str(path))
    assert (result.exit_code, result.stdout) == (0, "")
    assert path.read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rings"], "unknown operation 'rings'"),
        (["--ranks", "0"], "--ranks '0': need whole numbers from 1 to"),
        (["--ranks", "-4"], "--ranks '-4': need whole numbers"),
        (["--ranks", "99999999999"], "--ranks '99999999999': need whole numbers from 1 to 1048576"),
        (["--ranks", "4:8"], "--ranks '4:8': need whole numbers"),
        (["--size", "large"], "'large' is not a size"),
        (["--machine", "cray"], "unknown machine 'cray'"),
        (["--machine", "summit", "--alpha", "1us"], "--machine summit and --alpha both say what a message costs"),
        (["--nodes", "17"], "--nodes 17 is more than --ranks 16"),
        (["--nodes", "0"], "Invalid value for '--nodes'"),
        (["--alpha", "quick"], "--alpha 'quick' is not a time; write seconds or a unit, such as 3.7us"),
        (["--beta", "1GB"], "--beta '1GB' is neither a time per byte, such as 8e-11, nor a bandwidth"),
        (["--beta", "0GB/s"], "--beta '0GB/s' is not a bandwidth above 0"),
        (["broadcast/tree", "--root", "16"], "root=16"),
        (["--chunks", "0"], "Invalid value for '--chunks'"),
        (["--map", "map.jpg"], "--map map.jpg: the suffix gives the format; use one of .png"),
        (["--map", "/nowhere/map.png"], "--map /nowhere/map.png: cannot write this file"),
        (["all_reduce/ring", "broadcast", "--map", "map.png"], "--map compares algorithms of one OP"),
        (["--machine", "fit:/nowhere"], "--machine fit: /nowhere: cannot read it"),
        (["--json", "/nowhere/x.jsonl"], "--json /nowhere/x.jsonl: cannot write this file"),
    ],
)
def test_usage_errors(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["simulate", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "value"), [("3.7us", 3.7e-6), ("1e-6", 1e-6), ("2 ms", 2e-3), ("5ns", 5e-9), ("1.5µs", 1.5e-6), ("0", 0)]
)
def test_times(text, value):
    assert parse_seconds(text, "--alpha") == pytest.approx(value)


def test_bandwidths():
    assert parse_seconds_per_byte("12.5GB/s", "--beta") == pytest.approx(8e-11)
    assert parse_seconds_per_byte("8e-11", "--beta") == pytest.approx(8e-11)
    for wrong in ("", "-1", "nan", "1e99"):
        with pytest.raises(UsageError, match="--beta"):
            parse_seconds_per_byte(wrong, "--beta")


def test_help_has_an_example():
    assert "Example: hpccoll simulate" in run("--help").output
