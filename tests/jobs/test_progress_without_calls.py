"""Operations in flight complete although their rank makes no call of hpccoll, but is in another library's call."""

from __future__ import annotations

import pytest

from tests.jobs.launch import run_script

PROGRAM = """
import fcntl, os, socket, sys, time
import numpy as np
from mpi4py import MPI
import hpccoll

place, algorithm, folder, kind = {place!r}, {algorithm!r}, {folder!r}, {kind!r}
comm, world = hpccoll.Communicator(), MPI.COMM_WORLD
last = world.size - 1
path = os.path.join(folder, "place")

def block():
    # Rank 0 blocks until the last rank has its result.
    if place == "barrier":
        world.Barrier()
    elif place == "socket":
        listener.accept()[0].recv(1)
    elif place == "lock":
        with open(path, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
    elif place == "sleep":
        while not os.path.exists(path):
            time.sleep(0.5)

def release():
    if place == "barrier":
        world.Barrier()
    elif place == "socket" and world.rank == last:
        with socket.socket(socket.AF_UNIX) as own:
            own.connect(path)
            own.send(b"x")
    elif place == "lock" and world.rank == last:
        fcntl.flock(held, fcntl.LOCK_UN)
    elif place == "sleep" and world.rank == last:
        open(path, "w").close()

if place == "socket" and world.rank == 0:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
if place == "lock" and world.rank == last:
    held = open(path, "a")
    fcntl.flock(held, fcntl.LOCK_EX)
world.Barrier()
x, symmetric = np.empty(100_000), comm.empty(100_000, "float64")
if kind == "symmetric" or kind == "mixed" and world.rank == 0:
    x = symmetric
x[:] = world.rank + 1
work = comm.all_reduce(x, async_op=True, algorithm=algorithm)
if world.rank == 0:
    block()
else:
    work.wait()
    release()
assert set(work.wait()) == {{world.size * (world.size + 1) / 2}}
print("rank", world.rank, "ends", flush=True)
"""
PLACES = "barrier", "socket", "lock", "sleep"


def check_progress(tmp_path, place, algorithm, ranks, kind="ordinary", **settings):
    """Run the program, and check that the operation ends on every rank."""
    program = PROGRAM.format(place=place, algorithm=algorithm, folder=str(tmp_path), kind=kind)
    run = run_script(program, ranks, **settings)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("ends") == ranks


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ring", "auto"])
@pytest.mark.parametrize("place", PLACES)
def test_an_operation_ends_while_its_rank_is_elsewhere(tmp_path, place, algorithm):
    check_progress(tmp_path, place, algorithm, 2)


def test_an_operation_on_several_nodes_ends_while_its_rank_is_elsewhere(tmp_path):
    check_progress(tmp_path, "lock", "auto", 4, HPCCOLL_RANKS_PER_NODE="1")


def test_a_plan_of_messages_between_nodes_of_two_ranks_ends_while_its_rank_is_elsewhere(tmp_path):
    check_progress(tmp_path, "lock", "ring", 4, HPCCOLL_RANKS_PER_NODE="2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("barrier", "ordinary"),
        ("sleep", "ordinary"),
        ("barrier", "symmetric"),
        ("sleep", "symmetric"),
        ("barrier", "mixed"),
    ],
)
def test_a_two_level_operation_ends_while_its_rank_is_elsewhere(tmp_path, place, kind):
    check_progress(tmp_path, place, "auto", 4, kind, HPCCOLL_RANKS_PER_NODE="2")


@pytest.mark.parametrize("kind", ["symmetric", "mixed"])
def test_an_operation_on_symmetric_buffers_ends_while_its_rank_is_elsewhere(tmp_path, kind):
    check_progress(tmp_path, "barrier", "auto", 2, kind)


def test_a_socket_does_not_hold_a_two_level_operation(tmp_path):
    check_progress(tmp_path, "socket", "auto", 4, HPCCOLL_RANKS_PER_NODE="2")


def test_shared_memory_needs_no_thread_support_of_mpi(tmp_path):
    program = "import mpi4py; mpi4py.rc.thread_level = 'funneled'" + PROGRAM
    program = program.format(place="lock", algorithm="auto", folder=str(tmp_path), kind="symmetric")
    run = run_script(program, 2)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("ends") == 2


SCALED = """
import numpy as np
from mpi4py import MPI
import hpccoll

# Rank 0 starts a scaled sum while it waits for rank 1 in an earlier operation, and then blocks in MPI.
comm, world = hpccoll.Communicator(), MPI.COMM_WORLD
x, y = np.ones(1000), np.ones(1000)
if world.rank:
    world.Barrier()
works = [comm.all_reduce(x, async_op=True, algorithm={algorithm!r})]
works.append(comm.all_reduce({second}, hpccoll.premul_sum(0.5), async_op=True, algorithm={algorithm!r}))
if world.rank == 0:
    world.Barrier()
else:
    [work.wait() for work in works]
{last}
[work.wait() for work in works]
assert set({second}) == {{{result}}}
print("rank", world.rank, "ends", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "settings"), [(2, {}), (4, {"HPCCOLL_RANKS_PER_NODE": "2"})])
@pytest.mark.parametrize("second", ["y", "x"])
def test_an_input_is_scaled_at_once_unless_an_earlier_operation_writes_to_it(second, ranks, settings):
    scaled_sum = ranks / 2 if second == "y" else ranks * ranks / 2
    algorithm = "hierarchical_ring" if settings else "shared_two_shot"
    last = "world.Barrier()" if second == "y" else ""  # with x, rank 0 must wait, because its program scales x
    program = SCALED.format(second=second, algorithm=algorithm, result=scaled_sum, last=last)
    run = run_script(program, ranks, **settings)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("ends") == ranks
