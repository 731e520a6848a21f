"""Commands in a process of their own: how a crash, a hang and a failure are reported."""

from __future__ import annotations

import time
from pathlib import Path

from hpccoll.processes.command import run_command, run_python

CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


def test_crash_is_reported_with_its_signal():
    result = run_python(["-c", CRASH], 30)
    assert (result.succeeded, result.exists, result.outcome) == (False, True, "crashed by SIGSEGV")
    assert result.parse_json() is None


def test_hanging_command_is_killed_with_its_children(tmp_path):
    sleeper = "import subprocess as s, time; print(s.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    limit_s, result = 1.5, run_python(["-c", sleeper], 1.5)
    while not result.stdout and limit_s < 60:  # on a busy machine, the command may print nothing for seconds
        limit_s *= 4
        result = run_python(["-c", sleeper], limit_s)
    assert f"no answer within {limit_s:g} s" in result.outcome
    child = Path("/proc") / result.stdout.strip()
    deadline = time.monotonic() + 30
    while child.exists() and "Z" not in (child / "stat").read_text().split()[2] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.exists() or "Z" in (child / "stat").read_text().split()[2]


def test_failure_absence_and_output_are_reported():
    failed = run_python(["-c", "import sys; print('fine'); sys.exit('the reason')"], 30)
    assert failed.evidence.endswith("failed with exit status 1: the reason")
    absent = run_command(["no-such-command-here"], 30)
    assert (absent.exists, absent.outcome) == (False, "was not found")
    worked = run_python(["-c", "print('noise'); print('{\"a\": 1}')"], 30)
    assert worked.parse_json() == {"a": 1}
    assert run_python(["-c", "print('[1]')"], 30).parse_json() is None


def test_command_does_not_inherit_launcher_variables(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "64")
    assert run_python(["-c", "import os; print(os.environ.get('PMI_SIZE'))"], 30).stdout == "None\n"
