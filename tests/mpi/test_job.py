"""The properties of the running job (hosts, nodes, versions), on real ranks."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hpccoll.processes import launcher
from hpccoll.runtime import job


def test_the_world_is_the_launcher_s():
    world = job.get_world()
    assert world == job.load_mpi().COMM_WORLD
    claim = launcher.claimed_ranks(os.environ, job.get_mpi_library())
    assert claim is None or claim[1] == world.size


def test_the_start_file_appears_once_when_all_ranks_have_started(comm, tmp_path, monkeypatch):
    path = comm.bcast(str(tmp_path / "started"))
    monkeypatch.setenv(job.START_FILE, path)
    if comm.rank == comm.size - 1:
        time.sleep(0.3)
        assert not Path(path).exists()  # the others wait for this rank
    job.get_world()
    comm.Barrier()
    assert Path(path).exists()
    assert job.START_FILE not in os.environ  # the children of a rank do not create it
    comm.Barrier()


def test_mpi_runs_with_threads_and_raises_its_errors(comm):
    mpi = job.load_mpi()
    assert mpi.Query_thread() == mpi.THREAD_MULTIPLE
    with pytest.raises(mpi.Exception):
        comm.Send(np.ones(1), comm.size)


def test_persistent_collectives_are_expected_of_mpi_4_and_open_mpi_5(comm, monkeypatch):
    assert job.has_persistent_collectives()
    comm.Barrier_init().Free()
    monkeypatch.setattr(job.load_mpi(), "Get_version", lambda: (3, 1))
    assert job.has_persistent_collectives() == job.get_mpi_library().startswith("Open MPI")


def test_the_layout_is_the_same_on_every_rank_and_one_node_here(comm):
    layout = job.detect_layout(comm)
    assert len(set(comm.allgather(layout))) == 1
    assert (layout.ranks, layout.nodes, layout.ranks_per_node) == (comm.size, 1, (comm.size,))
    assert layout.hosts[comm.rank] == job.load_mpi().Get_processor_name()
    assert layout.cores[comm.rank] == len(os.sched_getaffinity(0))
    assert socket.gethostname().startswith(layout.hosts[comm.rank].partition(".")[0])


def test_pinned_ranks_are_counted_against_the_cores_that_they_see_together(comm):
    before = os.sched_getaffinity(0)
    mine = sorted(before)[comm.rank % len(before)]
    try:
        os.sched_setaffinity(0, {mine})
        spread = job.detect_layout(comm)
        os.sched_setaffinity(0, {min(before)})
        crowded = job.detect_layout(comm)
    finally:
        os.sched_setaffinity(0, before)
    assert spread.cores == crowded.cores == (1,) * comm.size
    assert spread.oversubscribed is (comm.size > len(before))
    assert crowded.oversubscribed is (comm.size > 1)
    assert crowded.cores_per_rank == 1 / comm.size


def test_nodes_are_numbered_by_their_lowest_rank():
    layout = job.RankLayout(("a", "b", "a", "b", "b"), (0, 1, 0, 1, 1), (2,) * 5, oversubscribed=False)
    assert (layout.nodes, layout.ranks_per_node) == (2, (2, 3))


def test_versions_come_without_importing_what_is_not_needed():
    script = (
        "import sys; from hpccoll.runtime import job; found = job.collect_versions();"
        "print(sorted(found), found['mpi'], found['numpy'], [m for m in ('torch', 'cupy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env=launcher.without_launcher(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    names = ["cupy", "hpccoll", "mpi", "mpi4py", "mpi_wheel", "numpy", "python", "torch"]
    assert done.stdout == f"{names} {job.get_mpi_library()} {np.__version__} []\n", done.stderr
    assert re.fullmatch(r"(MPICH|Open MPI|Intel MPI) \d+\.\d+\S*", job.get_mpi_library())


def test_a_process_of_its_own_can_be_started_from_a_rank():
    script = "from hpccoll.runtime import job; print(job.get_world().size)"
    command, env = [sys.executable, "-W", "error", "-c", script], launcher.without_launcher(os.environ)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.parametrize("start", ["job.get_world(); ", ""])
def test_abort_ends_the_job_with_its_status_and_keeps_what_was_printed(start):
    script = f"from hpccoll.runtime import job; {start}print('kept'); job.abort(4); print('lost')"
    command, env = [sys.executable, "-c", script], launcher.without_launcher(os.environ)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.splitlines()[0], "lost" in done.stdout) == (4, "kept", False), done
