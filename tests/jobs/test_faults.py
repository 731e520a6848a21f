"""One rank commits a fault: the job ends in time, and the guilty rank and its last operation are named."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.depth import keep, keep_every, mark_full
from tests.jobs.fault_program import FAULTS
from tests.jobs.launch import BIN, LIMIT_S, run_script
from tests.jobs.random_faults import ROOT, FaultCase, run_campaign, run_case
from tests.requirements import skip_or_fail

ALLOWED_S = 60.0  # more than any job takes on a busy machine
SEED = 4  # its call number 4 is an all_reduce
REPRESENTATIVES = ("kill inside", "stop")


def require(case: FaultCase) -> str:
    """Run a case, require that the guilty rank is named, and return the output of the job and of the analysis."""
    output = ""
    for _ in range(4):  # on a loaded machine, the launcher may kill the ranks before they record who was first
        outcome = run_case(case, 2.0, ALLOWED_S)
        assert not outcome.problem, f"{outcome.problem}\n{outcome.output}"
        output = outcome.output
        if not outcome.is_unnamed:
            return output
    pytest.fail(f"no rank is named\n{output}")


@pytest.mark.slow
@pytest.mark.parametrize("fault", keep(FAULTS, lambda fault: fault in REPRESENTATIVES))
def test_the_guilty_rank_is_named(fault):
    require(FaultCase(SEED, 3, fault, 1, 4))


@pytest.mark.parametrize("guilty", [mark_full(rank) for rank in range(4)])
@pytest.mark.parametrize("fault", ["kill inside", "stop inside"])
def test_each_rank_in_turn_inside_a_collective(fault, guilty):
    require(FaultCase(SEED, 4, fault, guilty, 4))


@pytest.mark.parametrize("fault", keep_every(20, FAULTS))
def test_emulated_nodes(fault):
    require(FaultCase(SEED, 4, fault, 2, 4, "2"))


@pytest.mark.slow
@pytest.mark.parametrize("fault", keep_every(20, ["stop inside", "operation", "sleep", "mpi4py"]))
def test_recordings_of_other_nodes_arrive_by_messages(fault):
    output = require(FaultCase(SEED, 4, fault, 3, 4, "2", separate=True))
    assert "No recording" not in output.partition("--- afterwards")[0]


@pytest.mark.slow
def test_the_report_tells_the_last_operations():
    output = require(FaultCase(SEED, 3, "sleep", 2, 4))
    assert "Guilty: rank 2 is in no call, and other ranks wait for it (its last operation was after call " in output
    assert re.search(r"arrived ranks 0-1; not arrived rank 2\.", output)
    assert re.search(r"  rank 2: after call .*\[at fault_program.py:\d+ in commit\]", output)


STOPPED_AT_THE_END = """
import os, signal
import numpy as np
import hpccoll

comm = hpccoll.Communicator()
comm.all_reduce(np.ones(3))
if comm.rank == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.slow
def test_a_rank_that_is_stopped_after_its_last_call_ends_the_job():
    done = run_script(STOPPED_AT_THE_END, 3, HPCCOLL_TIMEOUT="2")
    assert done.returncode == 4, done.stderr
    assert "rank 0 is stopped" in done.stderr
    assert done.stderr.count("ends the job: its program has ended, but that of another rank") == 1


STOPPED_TOGETHER = """
import os, subprocess
import numpy as np
from mpi4py import MPI
import hpccoll

comm = hpccoll.Communicator()
first, second = MPI.COMM_WORLD.allgather(os.getpid())
if comm.rank == 1:
    stop = f"sleep 1; kill -STOP {first} {second}; sleep 5; kill -CONT {first}; sleep 0.3; kill -CONT {second}"
    subprocess.run(["/bin/sh", "-c", stop])
comm.all_reduce(np.ones(3))
"""


@pytest.mark.slow
def test_time_in_which_the_job_is_stopped_does_not_count():
    done = run_script(STOPPED_TOGETHER, 2, HPCCOLL_TIMEOUT="4")
    assert (done.returncode, done.stderr) == (0, "")


WITHOUT_THREADS = """
import mpi4py
mpi4py.rc.thread_level = "funneled"
import numpy as np, time
import hpccoll
comm = hpccoll.Communicator()
comm.all_reduce(np.ones(10))
if comm.rank == 1:
    time.sleep(100)
comm.all_reduce(np.ones(10))
"""


def test_without_thread_multiple():
    done = run_script(WITHOUT_THREADS.replace("import hpccoll\n", "from mpi4py import MPI\nimport hpccoll\n", 1), 2,
                      HPCCOLL_TIMEOUT="1")  # fmt: skip
    assert done.returncode == 4, done.stderr
    assert "Guilty: rank 1 is in no call" in done.stderr


def test_a_wrong_limit_is_refused():
    done = run_script("import hpccoll; hpccoll.Communicator()", 2, HPCCOLL_TIMEOUT="soon")
    assert done.returncode != 0
    assert "HPCCOLL_TIMEOUT='soon' is not a number of seconds" in done.stderr


@pytest.mark.full
def test_finished_records_stay_readable(tmp_path):
    """A benchmark whose rank is stopped keeps the records that it has written."""
    script = f"""
import os, signal, sys, threading
from mpi4py import MPI
from hpccoll.cli.main import main
if MPI.COMM_WORLD.rank == 1:
    threading.Timer(4.0, lambda: os.kill(os.getpid(), signal.SIGSTOP)).start()
sys.exit(main(["bench", "-b", "8", "-e", "64M", "--engine", "mpi,hpccoll", "--json", "{tmp_path}/bench.jsonl"]))
"""
    done = run_script(script, 2, HPCCOLL_TIMEOUT="3", HPCCOLL_RECORDER=str(tmp_path / "crash"))
    assert done.returncode == 4, done.stderr
    assert "Guilty: rank 1 is stopped" in done.stderr
    lines = (tmp_path / "bench.jsonl").read_text().splitlines()
    assert {json.loads(line)["schema"] for line in lines} == {"hpccoll/1"}
    report = [str(BIN / "hpccoll"), "report", str(tmp_path / "bench.jsonl"), "-o", str(tmp_path / "report.html")]
    assert subprocess.run(report, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_random_faults():
    """`python -m tests.jobs.random_faults --count 200` runs more."""
    outcomes = run_campaign(8, 1, 4, allowed_s=ALLOWED_S)
    assert not [f"{each.problem}: {each.case}\n{each.output}" for each in outcomes if each.problem]


@pytest.mark.slow
def test_random_faults_with_the_other_mpi():
    mpirun = os.environ.get("HPCCOLL_OTHER_MPIRUN")
    if not mpirun:
        skip_or_fail("HPCCOLL_OTHER_MPIRUN does not name the mpirun of a second MPI library")
    command = [str(Path(mpirun).parent / "python"), "-m", "tests.jobs.random_faults", "--count", "2", "--seed", "3"]
    command += ["--allowed", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_report_in_the_documentation_is_today_s():
    """All but times and the rank that reports is equal; `python docs/make_crash_report.py` writes the report anew."""
    loaded = importlib.util.spec_from_file_location("make_crash_report", ROOT / "docs" / "make_crash_report.py")
    assert loaded is not None
    assert loaded.loader is not None
    script = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(script)
    written = script.BLOCK.search(script.PAGE.read_text())[0]
    shown, today = (re.sub(r"(?<=Error: rank )\d|\d+\.\d", "", text).split() for text in (written, script.run_job()))
    assert shown[4:-4] == today


@pytest.mark.full
def test_clean_programs_with_a_limit_are_not_reported():
    for seed in range(3):
        case = FaultCase(seed, 4, "none", 0, 0, calls=60)
        assert not run_case(case, ALLOWED_S).problem
        assert not run_case(replace(case, ranks_per_node="2"), ALLOWED_S).problem
