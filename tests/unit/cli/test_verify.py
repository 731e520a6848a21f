"""`hpccoll verify`, and the output and exit statuses that all commands share."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import click
import psutil
import pytest
from click.testing import CliRunner

from hpccoll.algorithms import get_algorithm, list_algorithm_names, list_algorithms, loader, make_algorithm
from hpccoll.cli import main as cli
from hpccoll.cli import verify as command
from hpccoll.errors import CommunicationError, UnavailableError, UsageError
from hpccoll.plan import Cost, Groups, Move, Operation, Rounds, Span, empty_rounds
from hpccoll.plan.interchange.json_plans import to_json
from hpccoll.processes import launched_rank
from tests.record_schema import require_valid

ROOT = Path(__file__).parents[3]
# What a process must not have loaded when a proof is done.
HEAVY = ("mpi4py", "torch", "matplotlib", "scipy", "cupy")


def hpccoll(*arguments: str, code: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own; `code` runs before it."""
    program = f"import sys\n{code}\nfrom hpccoll.cli.main import COMMANDS, main\nsys.exit(main(sys.argv[1:]))"
    clean = {name: value for name, value in os.environ.items() if name not in launched_rank.RANK_VARIABLES}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=clean | {"PYTHONPATH": str(ROOT)} | environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in launched_rank.RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def verify(*arguments: str):
    return CliRunner().invoke(command.verify, list(arguments))


@pytest.mark.slow
def test_all_plans_are_proven_and_shown():
    result = verify("--ranks", "1:6")
    assert result.exit_code == 0, result.output
    for algorithm in list_algorithms():
        row = next(line for line in result.stdout.splitlines() if line.startswith(algorithm.full_name + " "))
        plans = sum(len(list(command.list_variants(algorithm, n))) for n in range(1, 7))
        assert f" {plans}/{plans} " in row
        assert (algorithm.cost.__doc__ or "").split("\n", 1)[0] in row
    ring = next(line for line in result.stdout.splitlines() if line.startswith("all_reduce/ring"))
    assert ring.split()[1:5] == ["6/6", "10", "1.66667", "1.66667"]


@pytest.mark.parametrize(("width", "remark"), [("200", True), ("80", False)])
def test_a_terminal_gets_a_line_below_headings_and_remarks_where_there_is_room(width, remark, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert cli.main(["verify", "all_reduce", "--ranks", "3"]) == 0
    printed = capsys.readouterr().out
    assert "\u2500" * 20 in printed
    assert "all_reduce/recursive_doubling " in printed
    assert ("ceil(log2 n)" in printed) is remark


def test_roots_and_chunks_that_are_tried():
    chain = get_algorithm(Operation.REDUCE, "chain")
    assert {root for root, *_ in command.list_variants(chain, 9)} == {0, 1, 4, 8}
    assert {chunks for _, chunks, _ in command.list_variants(chain, 9)} == {1, 2, 3, 8}
    assert list(command.list_variants(chain, 1)) == [(0, 1, None), (0, 2, None), (0, 3, None), (0, 8, None)]
    assert list(command.list_variants(get_algorithm(Operation.ALL_REDUCE, "ring"), 9)) == [(0, 1, None)]
    dealt = ((0, 3, 6), (1, 4, 7), (2, 5, 8))
    on_nodes = {nodes for *_, nodes in command.list_variants(get_algorithm(Operation.BARRIER, "hierarchical"), 9)}
    assert on_nodes == {None, (3, 3, 3), (6, 3), (1, 8), dealt}


def test_no_two_layouts_are_one_division_of_the_ranks():
    for n in range(1, 129):
        groups = [Groups.from_nodes(n, nodes) for nodes in command.list_node_layouts(n).values()]
        assert len(set(groups)) == len(groups)


def test_two_ways_to_write_one_node_give_the_same_plan():
    takes_nodes = [each for each in list_algorithms() if "nodes" in each.parameters]
    assert len(takes_nodes) > 10
    for algorithm in takes_nodes:
        assert to_json(algorithm.plan(7, nodes=(7,))) == to_json(algorithm.plan(7))
        assert to_json(algorithm.plan(7, nodes=(4, 3))) != to_json(algorithm.plan(7))


def test_the_layouts_that_were_proven_are_listed():
    rows = verify("barrier", "--ranks", "1:9").stdout.splitlines()
    listed = rows[next(at for at, row in enumerate(rows) if row.startswith("node layouts")) + 1 :]
    assert {kind: layouts for kind, *layouts in (re.split("  +", row) for row in listed)} == {
        "one node": ["9", "1x1", "1x9"],
        "nodes of equal size": ["4", "2x2", "3x3"],
        "nodes of 6 ranks, one with the rest": ["3", "1x6+1x1", "1x6+1x3"],
        "nodes of 1 and n-1 ranks": ["7", "1x1+1x2", "1x1+1x8"],
        "three nodes with interleaved ranks": ["6", "1x2+2x1 interleaved", "3x3 interleaved"],
    }
    assert "node layouts" not in verify("barrier/tree", "--ranks", "4").stdout


@pytest.mark.slow
def test_records_one_a_line(tmp_path):
    target = tmp_path / "proofs.jsonl"
    assert verify("all_reduce/ring", "broadcast", "--ranks", "4:5", "--json", str(target)).exit_code == 0
    run, *records = [json.loads(line) for line in target.read_text().splitlines()]
    assert (run["kind"], run["versions"]["mpi4py"]) == ("run", None)
    for record in (run, *records):
        require_valid(record)
    assert all((r["schema"], r["kind"], r["command"]) == ("hpccoll/1", "plan", "verify") for r in records)
    found = {(r["op"], r["algorithm"], r["ranks"]) for r in records}
    asked = [("all_reduce", "ring"), *(("broadcast", name) for name in list_algorithm_names(Operation.BROADCAST))]
    assert found == {(op, a, n) for op, a in asked for n in (4, 5)}
    ring = next(r for r in records if r["algorithm"] == "ring" and r["ranks"] == 4)
    assert ring["proven"] is True
    assert ring["failures"] == []
    assert (ring["plans"], ring["rounds"], ring["steps"], ring["messages"]) == (1, 6, 6, 24)
    assert (ring["sent_mean"], ring["sent_most"]) == (1.5, 1.5)


def test_records_to_standard_output_come_alone():
    result = verify("barrier/tree", "barrier/dissemination", "--ranks", "3", "--json", "-")
    assert [json.loads(line)["kind"] for line in result.stdout.splitlines()] == ["run", "plan", "plan"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rings"], "unknown operation 'rings'; choose one of: all_gather, all_reduce"),
        (
            ["all_reduce/rings"],
            "algorithm for all_reduce 'rings'; did you mean ring or swing? choose one of: bine",
        ),
        (["/ring"], "unknown operation ''"),
        (["--ranks", "9:2"], "range of ranks '9:2' is empty"),
        (["--ranks", "0:2"], "starts below 1"),
        (["--ranks", "some"], "'some' is not a list of rank counts"),
        (["--json", "/nowhere/x.jsonl"], "--json /nowhere/x.jsonl: cannot write this file (No such file or directory)"),
        (["--rank", "4"], "No such option"),
    ],
)
def test_usage_errors(arguments, message, capsys):
    assert cli.main(["verify", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""


def test_wrong_plans_are_all_listed_and_end_in_1(monkeypatch, capsys, tmp_path):
    ring, tree = get_algorithm(Operation.ALL_REDUCE, "ring"), get_algorithm(Operation.ALL_REDUCE, "tree")
    lazy = replace(ring, name="lazy", make_rounds=lambda rank, n: empty_rounds(n), parameters=frozenset())
    broken = replace(tree, name="broken", make_rounds=lambda rank, n: empty_rounds(1 // 0))
    dear = replace(tree, name="dear", cost=lambda n: Cost(0, Fraction(0), Fraction(0)))
    monkeypatch.setattr(command, "list_algorithms", lambda: [ring, lazy, broken, dear])
    target = tmp_path / "proofs.jsonl"
    assert cli.main(["verify", "--ranks", "2:3", "--json", str(target)]) == 1
    printed = capsys.readouterr()
    assert "Error: 6 plans are wrong:" in printed.err
    for n in (2, 3):
        assert f"all_reduce/lazy on {n} ranks: in the end rank 0 chunk 0 is wrong" in printed.err
        assert f"all_reduce/broken on {n} ranks raised ZeroDivisionError: " in printed.err
        assert f"all_reduce/dear on {n} ranks states 0 steps" in printed.err
    assert "Traceback" not in printed.err
    assert [line.split()[1] for line in printed.out.splitlines()[2:]] == ["2/2", "0/2", "0/2", "0/2"]
    _, *records = [json.loads(line) for line in target.read_text().splitlines()]
    assert {r["algorithm"]: r["proven"] for r in records} == {
        "ring": True,
        "lazy": False,
        "broken": False,
        "dear": False,
    }
    assert next(r for r in records if r["algorithm"] == "broken")["steps"] is None


def list_lines_without_progress(errors):
    """Return the lines of standard error without progress lines, which only a slow machine prints."""
    return [line for line in errors.splitlines() if not line.startswith("# ")]


@pytest.mark.slow
def test_a_process_that_has_no_mpi_proves_by_a_pool_of_workers():
    # More work than is done alone, so that workers start; none of them may need what is not there.
    code = "sys.modules['mpi4py'] = None"
    result = hpccoll("verify", "all_gather/bruck", "barrier/tree", "--ranks", "1:40", code=code)
    assert result.returncode == 0, result.stderr
    assert "40/40" in result.stdout
    assert list_lines_without_progress(result.stderr) == []


def test_help_and_proofs_load_nothing_heavy():
    code = f"import atexit; atexit.register(lambda: print('LOADED', [m for m in {HEAVY} if m in sys.modules]))"
    for arguments in (["--help"], ["verify", "--help"], ["verify", "barrier", "--ranks", "2:3"]):
        result = hpccoll(*arguments, code=code)
        assert result.returncode == 0, result.stderr
        assert "LOADED []" in result.stdout


@pytest.mark.slow
def test_the_module_runs_as_a_program():
    command_line = [sys.executable, "-m", "hpccoll.cli.main", "verify", "reduce_scatter", "--ranks", "1:30"]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(command_line, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, list_lines_without_progress(result.stderr)) == (0, [])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rank"), [("PMI_RANK", "1"), ("OMPI_COMM_WORLD_RANK", "3"), ("SLURM_PROCID", "2")])
def test_under_a_launcher_only_rank_0_prints(name, rank):
    silent = hpccoll("verify", "barrier", "--ranks", "2", **{name: rank})
    assert (silent.returncode, silent.stdout, silent.stderr) == (0, "", "")
    assert "barrier/tree" in hpccoll("verify", "barrier", "--ranks", "2", **{name: "0"}).stdout
    wrong = hpccoll("verify", "nothing", **{name: rank})
    assert (wrong.returncode, wrong.stderr) == (2, "")


def test_the_mpiruns_word_comes_before_slurms():
    assert launched_rank.get_launched_rank({"SLURM_PROCID": "0", "PMI_RANK": "3"}) == 3
    assert launched_rank.get_launched_rank({"SLURM_PROCID": "5"}) == 5
    assert launched_rank.get_launched_rank({"PMI_RANK": "x"}) is None
    assert launched_rank.get_launched_rank({}) is None


def test_a_reader_that_goes_away_leaves_no_traceback():
    command_line = f'"{sys.executable}" -m hpccoll.cli.main verify --ranks 1:3 --json - | head -n 1'
    result = subprocess.run(
        ["bash", "-c", f"{command_line}; exit ${{PIPESTATUS[0]}}"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert json.loads(result.stdout)["kind"] == "run"
    assert list_lines_without_progress(result.stderr) == []
    assert result.returncode == cli.CLOSED_PIPE


def test_output_to_a_full_device_leaves_no_traceback():
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        command = [sys.executable, "-m", "hpccoll.cli.main", "verify", "--ranks", "2", "barrier/tree"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        result = subprocess.run(
            command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert list_lines_without_progress(result.stderr) == [
        "Error: output cannot be written: No space left on device; free some space"
    ]
    assert result.returncode == 3


def test_an_interrupted_run_keeps_its_records_and_ends_at_once_in_130(tmp_path):
    target, before = tmp_path / "proofs.jsonl", os.times()
    process = subprocess.Popen(
        [sys.executable, "-m", "hpccoll.cli.main", "verify", "--ranks", "1:128", "--json", str(target)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    limit = time.monotonic() + 60
    while time.monotonic() < limit and not (target.exists() and target.read_text().count("\n") > 1):
        time.sleep(0.05)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]
    worked = sum(each.cpu_times().user for each in family)
    os.killpg(process.pid, 2)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == cli.INTERRUPTED, errors
    lines = [line for line in list_lines_without_progress(errors) if line]  # progress ends with an empty line
    assert lines == ["interrupted; finished records are kept"]
    assert os.times().children_user - before.children_user - worked < 0.3  # the rest of a batch takes longer
    assert all(json.loads(line)["proven"] for line in target.read_text().splitlines()[1:])


@pytest.mark.full
def test_workers_end_when_their_parent_is_killed():
    command_line = [sys.executable, "-m", "hpccoll.cli.main", "verify", "--ranks", "1:512"]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen(command_line, env=environ, stdout=subprocess.DEVNULL)
    limit = time.monotonic() + 60
    workers: list[psutil.Process] = []
    while time.monotonic() < limit and not (workers and all(each.cpu_times().user > 1 for each in workers)):
        time.sleep(0.05)
        workers = [each for each in psutil.Process(parent.pid).children() if "spawn_main" in " ".join(each.cmdline())]
    parent.kill()
    parent.wait()
    assert workers
    left = psutil.wait_procs(workers, timeout=10)[1]
    for each in left:
        each.kill()
    assert not left


def test_a_disk_that_is_full(capsys):
    assert cli.main(["verify", "barrier/tree", "--ranks", "2", "--json", "/dev/full"]) == 2
    assert "--json /dev/full: cannot write this file (No space left on device)" in capsys.readouterr().err


def test_help_lists_commands_and_every_command_has_an_example():
    runner = CliRunner()
    result = runner.invoke(cli.hpccoll, ["--help"])
    assert result.exit_code == 0
    assert "Example:" in result.output
    assert all(name in result.output for name in cli.COMMANDS)
    assert "Example" in runner.invoke(command.verify, ["--help"]).output
    assert runner.invoke(cli.hpccoll, ["--version"]).output.startswith("hpccoll, version ")


@pytest.mark.parametrize("name", ["", *cli.COMMANDS])
def test_examples_keep_their_lines(name):
    said = CliRunner().invoke(cli.hpccoll, [*([name] if name else []), "--help"], prog_name="hpccoll").output
    assert "\\b" not in said
    assert re.search(r"Example:[^\n]*\n", said), said
    if name in ("", "bench", "lab", "tune"):  # of several lines
        assert len(re.findall(r"^ +(?:mpirun -n \d+ )?hpccoll", said.partition("Example:\n")[2], re.MULTILINE)) >= 2


def test_unknown_commands_list_the_valid_ones(capsys):
    assert cli.main(["verfy"]) == 2
    choice = ", ".join(sorted(cli.COMMANDS))
    assert f"unknown command 'verfy'; did you mean verify? choose one of: {choice}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("this"), 2),
        (UnavailableError("this"), 3),
        (CommunicationError("this"), 4),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
    ],
)
def test_exit_statuses(error, status, monkeypatch, capsys):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(command, "resolve_algorithms", fail)
    assert cli.main(["verify"]) == status
    printed = capsys.readouterr()
    assert ("this" in printed.err) == (status < 130)
    assert "Traceback" not in printed.err


def test_errors_that_were_not_foreseen_keep_their_traceback(monkeypatch):
    monkeypatch.setattr(command, "resolve_algorithms", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["verify"])


def test_a_rank_that_fails_in_a_job_takes_the_others_along(monkeypatch, capsys):
    from hpccoll.runtime import job

    ended: list[int] = []
    monkeypatch.setattr(job, "abort", ended.append)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", object())
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setattr(command, "resolve_algorithms", lambda *_: 1 / 0)
    assert cli.main(["verify"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err  # from the rank that failed, although it is not rank 0
    assert cli.main(["verify", "--ranks", "nonsense"]) == 1
    assert ended == [1, 1]


def test_plans_of_blocks_are_proven_for_blocks_of_different_sizes():
    drawn = {each.full_name: command.draw_block_sizes(each, 9) for each in list_algorithms()}
    assert not drawn["all_reduce/ring"]
    assert not drawn["all_to_all/bruck"]
    for name, length in (("all_gather/ring", 9), ("all_to_all/pairwise", 81)):
        some_empty, all_different = (each for each in drawn[name] if isinstance(each, tuple))
        assert len(some_empty) == len(set(all_different)) == length
        assert 0 in some_empty


def test_a_plan_that_is_right_for_equal_blocks_only_is_refused(monkeypatch):
    ring = get_algorithm(Operation.ALL_GATHER, "ring")

    def turned(rank, n):
        """Each block arrives in its place, but is sent from the place of the next rank's block at first."""
        rounds = ring.make_rounds(rank, n)
        copy = Move(rank, rank, Span(rank, 1, n), Span(rank + 1, 1, n))
        back = Move(rank, rank, Span(rank + 1, 1, n), Span(rank, 1, n))
        first = Rounds(2, n, lambda t: [(copy, back)[t]])
        return first + rounds

    made = make_algorithm(Operation.ALL_GATHER, "turned", turned)
    monkeypatch.setattr(command, "draw_block_sizes", lambda _algorithm, _ranks: ())
    assert command.prove_variants(made, 3).proven
    monkeypatch.undo()
    monkeypatch.setattr(loader, "is_user_defined", lambda _: False)
    result = command.prove_variants(made, 3)
    assert not result.proven
    assert "differ in elements for some counts" in result.failures[0]
