"""`hpccoll profile` and `hpccoll replay` on real jobs: results stay equal, records survive, and faults are named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpccoll.profile import explain_profile, read_profile
from hpccoll.profile.dependencies import build_graph
from hpccoll.profile.lateness import LatenessKind
from hpccoll.profile.traced_methods import list_methods
from tests.jobs.launch import BIN, environment

LIMIT_S = 120
CALLS = Path(__file__).with_name("profiled_calls.py")


def run(words, ranks, *, status=0):
    words = [str(BIN / "mpirun"), "-n", str(ranks), *map(str, words)] if ranks else list(map(str, words))
    result = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, env=environment(), check=False)
    assert status is None or result.returncode == status, result.stdout + result.stderr
    return result


def list_digests(output):
    return sorted(line for line in output.splitlines() if line.startswith("digest"))


@pytest.mark.slow
@pytest.mark.parametrize("drop_in", [False, True])
def test_results_are_equal_bit_for_bit(drop_in, tmp_path):
    plain = [sys.executable, *(["-m", "hpccoll.mpi4py"] if drop_in else []), CALLS]
    option = ["--drop-in"] if drop_in else []
    expected = list_digests(run(plain, 3).stdout)
    recorded = run([BIN / "hpccoll", "profile", "-o", tmp_path / "job", *option, CALLS], 3)
    assert len(expected) == 3
    assert list_digests(recorded.stdout) == expected
    profile = read_profile(str(tmp_path / "job"))
    graph = explain_profile(profile).graph
    names = {profile.names[op] for rank in profile.ranks for op in rank.entries["op"].tolist()}
    classes = ("Comm", "Intracomm", "Topocomm", "Cartcomm", "Request", "Prequest")
    assert {method.name for method in list_methods() if method.owner in classes} <= names
    assert profile.size == 3
    assert all(rank.has_ended for rank in profile.ranks)
    assert np.all(graph.matches.sent[graph.dest >= 0] >= 0)  # sends found their receives
    blocking = np.array([name == "Allreduce" for name in (*profile.names, "end")])[graph.op]
    assert (graph.nbytes[blocking] > 0).all()  # also of calls with MPI.IN_PLACE
    prepared = np.array([name.endswith("_init") for name in (*profile.names, "end")])[graph.op]
    started = prepared & (graph.matches.instance >= 0)
    assert started.sum() == 3 * 2 * (2 * 2 + 17 + 4)  # ranks, rounds; two starts of two requests, collectives, sends
    assert {Path(site.file).stem for site in profile.sites} == {"profiled_calls", "profiled_forms"}


def test_a_killed_job_leaves_its_record(tmp_path):
    program = tmp_path / "killed.py"
    program.write_text(
        "import os, signal\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\n"
        "for i in range(10):\n    comm.allreduce(i)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run([BIN / "hpccoll", "profile", "-o", tmp_path / "job", program], 2, status=None)
    profile = read_profile(str(tmp_path / "job"))
    assert [len(rank.entries) for rank in profile.ranks] == [10, 10]
    assert not any(rank.has_ended for rank in profile.ranks)
    shown = run([BIN / "hpccoll", "profile", tmp_path / "job"], 0).stdout
    assert "rank 1 has not ended its program" in shown
    for rank in (0, 1):
        line = (tmp_path / "job" / f"rank-{rank}.names").read_text().splitlines()[0]
        Path(json.loads(line)["calls"]).unlink()


LATE = """
import time
from mpi4py import MPI
comm = MPI.COMM_WORLD
for step in range(12):
    time.sleep(0.1 if comm.rank == 1 else 0.01)
    comm.allreduce(step)
"""


@pytest.mark.slow
def test_a_late_rank_is_named_and_replayed(tmp_path):
    program, job = tmp_path / "late.py", tmp_path / "job"
    program.write_text(LATE)
    run([BIN / "hpccoll", "profile", "-o", job, program], 2)
    late = explain_profile(read_profile(str(job))).late[0]
    assert (late.rank, late.kind, late.calls) == (1, LatenessKind.IMBALANCE, 12)
    assert late.last_share > 0.9
    assert late.saved_s == pytest.approx(12 * 0.09, rel=0.5)  # other programs share the cores
    files = [tmp_path / f"out{suffix}" for suffix in (".html", ".json", ".csv", ".goal", ".sh")]
    options = ["-o", files[0], "--what-if", "--what-if", "heal=1"]
    options += [word for file in files[1:4] for word in ("--export", file)]
    records = tmp_path / "job.jsonl"
    shown = run([BIN / "hpccoll", "profile", job, *options, "--apply", files[4], "--json", records], 0).stdout
    assert "rank 1 as fast as the others" in shown
    assert "late.py:7" in shown
    assert all(file.stat().st_size for file in files)
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert [line["kind"] for line in lines[:3]] == ["run", "profile", "profile_finding"]
    assert lines[2]["rank"] == 1
    assert lines[-1]["change"] == "heal=1"
    refused = run([BIN / "hpccoll", "profile", "--json", records, job], 0, status=2)
    assert "add --overwrite" in refused.stderr
    only = run([BIN / "hpccoll", "profile", "--json", "-", "--overwrite", job], 0).stdout.splitlines()
    assert [json.loads(line)["kind"] for line in only[:2]] == ["run", "profile"]
    replayed = run([BIN / "hpccoll", "replay", job, "--engine", "mpi,hpccoll,all_reduce/ring", "-n", 1], 2).stdout
    seconds = {line.split()[0]: float(line.split()[1]) for line in replayed.splitlines() if " s" in line}
    assert seconds["mpi"] == pytest.approx(seconds["recorded"], rel=0.5)
    assert {"hpccoll", "all_reduce/ring"} <= seconds.keys()
    assert "0.1 ns per byte" in run([BIN / "hpccoll", "profile", files[3], "--what-if", "balance"], 0).stdout
    replayed = run([BIN / "hpccoll", "replay", files[3], "--engine", "mpi", "-n", 1], 2).stdout
    seconds = {line.split()[0]: float(line.split()[1]) for line in replayed.splitlines() if " s" in line}
    assert seconds["mpi"] == pytest.approx(seconds["recorded"], rel=0.5)


SUMS = """
import time
import numpy as np
from mpi4py import MPI
comm, x, y = MPI.COMM_WORLD, np.ones(1000), np.empty(1000)
for step in range(12):
    time.sleep(0.01)
    comm.Allreduce(x, y)
"""


@pytest.mark.slow
def test_the_saving_of_a_replay_is_stated(tmp_path):
    program, job = tmp_path / "sums.py", tmp_path / "job"
    program.write_text(SUMS)
    run([BIN / "hpccoll", "profile", "-o", job, program], 2)
    graph = build_graph(read_profile(str(job)))
    assert set(graph.itemsize[graph.nbytes == 8000].tolist()) == {8}
    words = ["--json", "-", "--what-if", "algorithm=all_reduce/ring"]
    before, after = "--engine mpi,all_reduce/ring --save", "measured by hpccoll replay"
    assert before in run([BIN / "hpccoll", "profile", job, *words], 0).stdout
    run([BIN / "hpccoll", "replay", job, "--engine", "mpi,all_reduce/ring", "--save", "-n", 6], 2)
    assert after in run([BIN / "hpccoll", "profile", job, *words], 0).stdout
    refused = run([BIN / "hpccoll", "replay", job, "--no-compute", "--save"], 1, status=2)
    assert "--save and --no-compute exclude each other" in refused.stderr
    assert "add -n 12" in run([BIN / "hpccoll", "replay", job, "--save"], 1, status=2).stderr
    refused = run([BIN / "hpccoll", "profile", "-o", job, program], 2, status=2).stderr
    assert refused.count("has a recording; add --overwrite before the script") == 1
    run([BIN / "hpccoll", "profile", "-o", job, "--overwrite", program], 2)  # a new recording has no replay
    assert before in run([BIN / "hpccoll", "profile", job, *words], 0).stdout


def test_old_calls_are_folded(tmp_path):
    program, job = tmp_path / "many.py", str(tmp_path / "job")
    program.write_text(
        "import sys\nfrom hpccoll.profile import RecordingOptions, run_program\n"
        f"options = RecordingOptions({job!r}, capacity=64)\n"
        "run_program([sys.argv[1]], is_module=False, uses_drop_in=False, options=options)\n"
    )
    calls = tmp_path / "calls.py"
    calls.write_text("from mpi4py import MPI\nfor i in range(1000):\n    MPI.COMM_WORLD.allreduce(i)\n")
    run([sys.executable, program, calls], 2)
    for rank in read_profile(job).ranks:
        folded = sum(row[2] for row in rank.folded)
        assert 936 <= folded <= 1000 - len(rank.entries)
        assert 32 <= len(rank.entries) <= 64
        assert rank.entries["number"].tolist() == list(range(1000 - len(rank.entries), 1000))


TORCH = """
import os, torch, torch.distributed as dist
dist.init_process_group("hpccoll")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
for step in range(3):
    model(torch.randn(2, 8)).square().mean().backward()
text = f"digest {dist.get_rank()} {[float(p.grad.sum()).hex() for p in model.parameters()]}\\n"
os.write(1, text.encode())
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ddp_over_hpccoll(tmp_path):
    pytest.importorskip("torch")
    program = tmp_path / "ddp.py"
    program.write_text(TORCH.replace("import os, torch,", "import os, hpccoll.torch, torch,"))
    expected = list_digests(run([sys.executable, program], 2).stdout)
    recorded = run([BIN / "hpccoll", "profile", "-o", tmp_path / "job", program], 2)
    assert list_digests(recorded.stdout) == expected
    graph = explain_profile(read_profile(str(tmp_path / "job"))).graph
    line = next(number for number, text in enumerate(program.read_text().splitlines(), 1) if "backward" in text)
    reductions = [
        call for call in range(len(graph.rank))
        if graph.operations[graph.op[call]] == "all_reduce" and graph.profile.sites[graph.site[call]].line == line
    ]  # fmt: skip
    assert len(reductions) == 2 * 3  # one bucket per step and rank
    assert np.all(graph.nbytes[reductions] == 4 * (8 * 4 + 4))


@pytest.mark.slow
def test_a_part_of_the_time_is_recorded(tmp_path):
    program, job = tmp_path / "timed.py", tmp_path / "job"
    program.write_text(
        "import time\nfrom mpi4py import MPI\n"
        "for step in range(50):\n    time.sleep(0.1)\n    MPI.COMM_WORLD.barrier()\n"
    )
    run([BIN / "hpccoll", "profile", "-o", job, "--from", "0.5", "--every", "2", program], 2)
    explanation = explain_profile(read_profile(str(job)))
    calls = [len(rank.entries) for rank in explanation.profile.ranks]
    assert all(15 <= count <= 30 for count in calls)  # about half of 45
    assert 2.0 < explanation.efficiencies.run_s < 3.5  # the other seconds are left out
    numbers = explanation.profile.ranks[0].entries["number"]
    assert np.diff(numbers).max() > 5
