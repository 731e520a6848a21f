"""The helpers of these tests leave no processes behind."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from tests.jobs.launch import JOB_MARK, environment, run_script
from tests.remaining_processes import end_processes, find_processes

# The rank starts a process in a session of its own, as launchers start their ranks.
LEAVES_A_PROCESS = """
import subprocess, sys
null = subprocess.DEVNULL  # the launcher waits until nothing can write to the pipes of the rank
words = [sys.executable, "-c", "while True: pass"]
print(subprocess.Popen(words, stdout=null, stderr=null, start_new_session=True).pid)
"""


def is_running(process: int) -> bool:
    """Whether a process exists that has not ended; one that has ended may wait for its parent."""
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("ends", [True, False])
def test_run_script_ends_all_processes_of_its_job(ends, monkeypatch):
    if not ends:
        monkeypatch.setattr("tests.jobs.launch.LIMIT_S", 4)
    done = run_script(LEAVES_A_PROCESS + ("" if ends else "sys.stdout.flush()\nwhile True: pass"), 1)
    assert done.returncode == (0 if ends else -1), done.stderr
    process = int(done.stdout.split()[0])
    end = time.monotonic() + 20
    while is_running(process):
        assert time.monotonic() < end


def test_only_the_processes_of_a_job_are_ended():
    words = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(words, env=environment()) as own, subprocess.Popen(words) as other:
        while own.pid not in find_processes(JOB_MARK):
            assert own.poll() is None
        assert end_processes(JOB_MARK) == 1
        assert own.wait(20) < 0
        assert other.poll() is None
        other.kill()
