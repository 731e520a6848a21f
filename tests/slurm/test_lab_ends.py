"""Tests that a lab leaves nothing behind, however it ends, and that it runs without root and without namespaces."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hpccoll.errors import UnavailableError
from hpccoll.lab import ClusterSpec, Lab, isolation
from hpccoll.lab.isolation import Isolation
from tests.record_schema import require_valid
from tests.requirements import skip_or_fail

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HPCCOLL = [sys.executable, "-c", "import sys; from hpccoll.cli.main import main; sys.exit(main())"]
NOBODY = "65534"
PRINT_ISOLATION = """
from hpccoll.lab.isolation import choose_isolation
isolation, reason = choose_isolation(flat=False)
print(isolation.value, "|", reason)
"""
USE_LAB = """
import os, sys
from hpccoll.lab import ClusterSpec, Lab
with Lab(ClusterSpec(nodes=2, bytes_per_s=12.5e6)) as lab:
    done = lab.run(["srun", "-N2", "bash", "-c", "hostname; id -u"], timeout_s=60)
    print(lab.get_status()["isolation"], *sorted(done.stdout.split()))
    lab.set_link("node2", rate="40M")
    lab.set_power("node2", on=False)
"""
HOLD_LAB = """
import sys, time
from hpccoll.lab import ClusterSpec, Lab
with Lab(ClusterSpec(nodes=2), flat=sys.argv[1] == "flat") as lab:
    (lab.shared_dir / "result").touch()
    lab.start(["srun", "-N2", "sleep", "600"])
    while "node2" not in lab.run(["squeue", "-h", "-o", "%N"]).stdout.replace("[1-2]", "2"):
        time.sleep(0.05)
    print(lab.state_dir, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def folder():
    """A short path for a lab's state directory, removed afterwards."""
    path = Path("/tmp") / f"lab-{os.getpid()}-{time.monotonic_ns() % 100_000}"
    yield path
    shutil.rmtree(path, ignore_errors=True)


def environment():
    return os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


def hpccoll(*arguments, **more):
    """Run `hpccoll ARGUMENTS` as a user would."""
    words = [*HPCCOLL, *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, env=environment(), **more)


def find_leftovers(folder):
    """Return the processes and mounts that refer to a directory."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        try:
            told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in told:
            found.append(f"process {process.name}: {(process / 'cmdline').read_bytes()!r}")
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    return found + [line for line in mounts.splitlines() if str(folder) in line]


def wait_for_removal(folder, limit_s=60.0):
    """Wait until everything of a lab is removed; return the remains at the time limit."""
    end = time.monotonic() + limit_s
    while (folder.exists() or find_leftovers(folder)) and time.monotonic() < end:
        time.sleep(0.1)
    return [*(str(path) for path in ([folder] if folder.exists() else [])), *find_leftovers(folder)]


@pytest.mark.parametrize("flat", [False, True], ids=["apart", "flat"])
def test_a_closed_lab_leaves_nothing(needs_slurm, folder, flat):
    with Lab(ClusterSpec(nodes=2), state_dir=folder, flat=flat) as lab:
        sleeping = lab.start(["srun", "-N2", "sleep", "600"])
        assert find_leftovers(folder)
    assert wait_for_removal(folder) == []
    assert sleeping.wait(60) != 0
    sleeping.communicate()


def test_close_waits_for_the_process_that_holds_the_namespaces(needs_namespaces, folder):
    with Lab(ClusterSpec(nodes=1), state_dir=folder) as lab:
        status = Path(f"/proc/{lab.client.pid}/status").read_text(encoding="ascii")
        parent = int(status.partition("PPid:")[2].split()[0])
        os.kill(parent, signal.SIGSTOP)  # as if a busy machine delayed it after the end of the supervisor
        late = threading.Timer(1.0, os.kill, (parent, signal.SIGCONT))
        late.start()
    assert find_leftovers(folder) == []
    late.join()


@pytest.mark.parametrize("mode", ["apart", "flat"])
def test_a_lab_whose_creator_was_killed_leaves_nothing(needs_slurm, mode):
    words = [sys.executable, "-c", HOLD_LAB, mode]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment()) as maker:
        folder = Path(maker.stdout.readline().strip())
        assert find_leftovers(folder)
        maker.kill()
    assert wait_for_removal(folder) == []


def test_ctrl_c_ends_the_command_and_its_lab(needs_slurm, folder):
    words = [*HPCCOLL, "lab", "run", "--nodes", "2", "--dir", str(folder), "--", "srun", "-N2", "-l", "bash", "-c"]
    words += ["echo ready; sleep 600"]
    out = subprocess.PIPE
    with subprocess.Popen(
        words, stdout=out, stderr=out, text=True, env=environment(), start_new_session=True
    ) as running:
        assert "ready" in running.stdout.readline()
        os.killpg(running.pid, signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert "Traceback" not in said
    assert wait_for_removal(folder) == []


def test_up_to_down_on_the_command_line(needs_namespaces, folder):
    where = ["--dir", str(folder)]
    up = hpccoll("lab", "up", "--nodes", "2", "--link", "100M", *where)
    try:
        assert up.returncode == 0, up.stderr
        assert "2 nodes are idle" in up.stdout
        assert hpccoll("lab", "up", *where).returncode == 2
        assert hpccoll("lab", "run", "--nodes", "3", *where, "--", "true").returncode == 2
        done = hpccoll("lab", "run", *where, "--", "srun", "-N2", "bash", "-c", "hostname; exit 3")
        assert sorted(done.stdout.split()) == ["node1", "node2"], done.stderr
        assert done.returncode == 3
        assert hpccoll("lab", "link", "all", "--rate", "40M", *where).returncode == 0
        assert hpccoll("lab", "link", "node1", "--off", *where).returncode == 0
        assert hpccoll("lab", "power", "node2", "off", *where).returncode == 0
        assert hpccoll("lab", "slow", "node1", "--percent", "25", *where).returncode == 0
        assert hpccoll("lab", "link", "node9", "--on", *where).returncode == 2
        record = json.loads(hpccoll("lab", "status", "--json", "-", *where).stdout)
        first, second = record["nodes"]
        assert (first["bytes_per_s"], first["link_up"], first["slow_percent"]) == (5e6, False, 25)
        assert (second["power"], second["bytes_per_s"]) == (False, 5e6)
        table = hpccoll("lab", "status", *where).stdout
        assert "node2" in table
        assert "off" in table
    finally:
        down = hpccoll("lab", "down", *where)
    assert down.returncode == 0, down.stderr
    assert wait_for_removal(folder) == []


def test_the_status_record_matches_the_schema(lab):

    record = json.loads(hpccoll("lab", "status", "--json", "-", "--dir", str(lab.state_dir)).stdout)
    require_valid(record)


def test_results_in_the_shared_directory_stay(needs_slurm, folder):
    with Lab(ClusterSpec(nodes=1), state_dir=folder) as lab:
        lab.run(["srun", "bash", "-c", f"echo 42 > {lab.shared_dir}/result"])
    result = folder / "shared" / "result"
    assert result.read_text(encoding="ascii") == "42\n"
    assert find_leftovers(folder) == []
    with Lab(ClusterSpec(nodes=1), state_dir=folder):  # a second lab uses the same directory
        assert result.exists()
    result.unlink()
    result.parent.rmdir()
    folder.rmdir()


def python_of_nobody():
    """Return the command that runs Python as an ordinary user, or None if that user cannot read this checkout."""
    if os.geteuid():
        return [sys.executable]
    lower = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "env", "HOME=/nonexistent"]
    for python in (sys.executable, "/usr/bin/python3"):
        words = [*lower, python]
        tried = subprocess.run([*words, "-c", "import hpccoll.lab.cluster"], check=False, env=environment())
        if not tried.returncode:
            return words
    return None


def test_an_ordinary_user_needs_no_root(needs_slurm):
    python = python_of_nobody()
    if python is None:
        skip_or_fail("no Python that an ordinary user may run sees this folder")
    words = [
        *python,
        "-c",
        "from hpccoll.lab.isolation import choose_isolation; print(choose_isolation(False)[0].value)",
    ]
    chosen = subprocess.run(words, capture_output=True, text=True, check=True, env=environment()).stdout
    if not chosen.startswith("user"):
        skip_or_fail("this kernel lets ordinary users have no namespaces")
    words = [*python, "-c", USE_LAB]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, env=environment())
    uid = NOBODY if os.geteuid() == 0 else str(os.geteuid())
    assert done.stdout.split() == ["user", uid, uid, "node1", "node2"], done.stderr


def test_flat_mode_runs_jobs_but_has_no_links(needs_slurm):
    with Lab(ClusterSpec(nodes=3), flat=True) as lab:
        done = lab.run(["srun", "-N3", "bash", "-c", "echo $SLURMD_NODENAME"], timeout_s=60)
        assert sorted(done.stdout.split()) == ["node1", "node2", "node3"], done.stderr
        with pytest.raises(UnavailableError, match="lab is flat"):
            lab.set_link("node1", rate="1M")
        lab.set_power("node2", on=False)
        assert [node["power"] for node in lab.get_status()["nodes"]] == [True, False, True]
        listening = lab.run(["ss", "-Hltn"]).stdout.splitlines()
        ports = re.findall(r"Port=(\d+)", (lab.state_dir / "slurm.conf").read_text(encoding="utf-8"))
        places = [line.split()[3] for line in listening if line.split()[3].rpartition(":")[2] in ports]
        assert places, "the daemons listen nowhere"
        assert all(place.startswith("127.") for place in places), "daemons with auth/none are reachable from outside"


def test_flat_mode_is_chosen_where_namespaces_are_refused(needs_slurm):
    # A user namespace can forbid namespaces below it; this simulates a kernel that refuses them.
    inner = "for kind in user net pid mnt; do echo 0 > /proc/sys/user/max_${kind}_namespaces; done; "
    inner += f'exec {sys.executable} -c "$0"'
    words = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", inner, PRINT_ISOLATION]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=environment())
    if "unshare" in done.stderr:
        skip_or_fail(f"there is no user namespace to try it in: {done.stderr}")
    way, why = done.stdout.split("|")
    assert way.strip() == Isolation.FLAT.value, done.stderr
    assert "unshare" in why


@pytest.mark.skipif(os.geteuid() != 0, reason="shows what root needs")
def test_root_needs_no_user_namespace():
    way, why = isolation.choose_isolation(flat=False)
    assert (way, why) == (Isolation.ROOT, "") or why
