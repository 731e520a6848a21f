"""Programs in which ranks end at different times without leaving others waiting: none is ended."""

from __future__ import annotations

import pytest

from tests.depth import keep_every
from tests.jobs.launch import run_script

pytestmark = pytest.mark.slow

# Ranks wait for at most this long, several times the second after which a wait is examined.
SCRIPT = """
import atexit, os, sys, threading, time
import numpy as np
import hpccoll
from hpccoll import Communicator
from mpi4py import MPI

LONG = 4.0
comm = Communicator()
rank, n = comm.rank, comm.size
x = np.ones(1000)
comm.all_reduce(x)

def main():
    BODY

main()
sys.stdout.write(f"rank {rank} is done\\n")
"""
PROGRAMS = {
    "others compute": "if rank != 1: time.sleep(LONG)",
    "others compute and hold the GIL": """
    end = time.monotonic() + LONG
    while rank != 1 and time.monotonic() < end:
        sum(range(1000))""",
    "others call collectives of a group": """
    group = comm.new_group([0, 2])
    for _ in range(40 if group else 0):
        group.all_reduce(x)
        time.sleep(LONG / 40)""",
    "others exchange messages": """
    for number in range(40 if rank != 1 else 0):
        if (rank + number) % 2 == 0:
            comm.send(x, 2 - rank)
        else:
            comm.recv(x, 2 - rank)
        time.sleep(LONG / 40)""".replace("(rank + number)", "(rank // 2 + number)"),
    "a small message arrives after its sender ended": """
    if rank == 0: comm.isend(x, 1)
    if rank == 1:
        time.sleep(LONG)
        x[:] = 0
        assert comm.recv(x, 0)[0] == 3""",
    "a long message arrives after its sender ended": """
    long = np.full(4 * 10**6, rank + 1.0)
    if rank == 0: comm.isend(long, 1)
    if rank == 1:
        time.sleep(LONG)
        assert comm.recv(long, 0)[-1] == 1""",
    "a message is never received": "comm.isend(x, (rank + 1) % n)",
    "a message is received by a rank that ended": """
    long = np.full(4 * 10**6, rank + 1.0)
    if rank == 1: comm.irecv(long, 0)
    if rank == 0:
        time.sleep(LONG)
        comm.send(long, 1)""",
    "a rank is late in shared memory": """
    if rank == 2: time.sleep(LONG)
    comm.all_reduce(x)""",
    "a rank is late in a plan of messages": """
    if rank == 2: time.sleep(LONG)
    comm.all_reduce(x, algorithm="ring")""",
    "a rank is late in a collective of the library": """
    if rank == 2: time.sleep(LONG)
    comm.all_reduce(x, algorithm="mpi")""",
    "the root of a broadcast ends before a late rank": """
    if rank == 1: time.sleep(LONG)
    comm.broadcast(x, algorithm="chain")""",
    "senders of a gather end before the root": """
    if rank == 0: time.sleep(LONG)
    comm.gather(x, algorithm="tree")""",
    "an asynchronous plan goes on in a rank that ended": """
    work = comm.all_reduce(x, algorithm="ring", async_op=True)
    if rank != 1:
        time.sleep(LONG)
        work.wait()
        assert x[0] == 9""",
    "an asynchronous pipeline goes on in a rank that ended": """
    long = np.ones(10**5)
    work = comm.all_reduce(long, async_op=True)
    if rank == 1:
        time.sleep(LONG)
    if rank != 0:
        work.wait()
        assert long[0] == 3""",
    "a communicator is closed late": """
    with Communicator() as other:
        if rank == 1: time.sleep(LONG)
        other.barrier()""",
    "a collected communicator": """
    Communicator().all_reduce(x)
    if rank == 1: time.sleep(LONG)""",
    "a caught exception": """
    try:
        comm.all_reduce([rank])
    except hpccoll.HpccollError:
        pass
    if rank == 1: time.sleep(LONG)
    comm.barrier()""",
    "a caught sys.exit": """
    if rank == 1:
        try: sys.exit(3)
        except SystemExit: time.sleep(LONG)
    comm.barrier()""",
    "an exception in a thread": """
    if rank == 1:
        threading.excepthook = lambda _: None
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        time.sleep(LONG)
    comm.barrier()""",
    "a forked child fails": """
    if rank == 1:
        sys.stderr = open(os.devnull, "w")
        if os.fork() == 0:
            try: raise ValueError
            except ValueError: sys.excepthook(*sys.exc_info())
            os._exit(0)
        os.wait()
        sys.stderr = sys.__stderr__
    comm.barrier()""",
    "a child process by multiprocessing": """
    if rank == 1:
        import multiprocessing
        child = multiprocessing.get_context("fork").Process(target=sys.exit, args=(0,))
        child.start()
        child.join()
        time.sleep(LONG)""",
    "messages of mpi4py after a rank has ended": """
    if rank == 0: MPI.COMM_WORLD.recv(source=2)
    if rank == 2:
        time.sleep(LONG)
        MPI.COMM_WORLD.send(1, 0)""",
    "one rank calls MPI.Finalize itself": """
    if rank == 1: MPI.Finalize()
    else: time.sleep(LONG)""",
    "all ranks call MPI.Finalize": """
    if rank == 1: time.sleep(LONG)
    MPI.Finalize()""",
    "a collective in an exit handler": """
    atexit.register(lambda: comm.all_reduce(x))
    if rank == 1: time.sleep(LONG)""",
    "ranks exit one after the other": """
    time.sleep(LONG / 2 * rank)
    sys.stdout.write(f"rank {rank} is done\\n")
    sys.exit(0)""",
}


@pytest.mark.parametrize("what", keep_every(4, PROGRAMS))
def test_a_correct_program_is_not_ended(what):
    script = SCRIPT.replace("BODY", PROGRAMS[what].strip())
    require_clean_ending(script)


def test_compared_arguments_wait_for_a_late_rank():
    body = PROGRAMS["a rank is late in shared memory"].strip()
    require_clean_ending(SCRIPT.replace("BODY", body), HPCCOLL_DEBUG="1")


def test_without_several_threads_in_mpi():
    script = SCRIPT.replace("BODY", PROGRAMS["others compute"].strip())
    setup = "import mpi4py\nmpi4py.rc.thread_level = 'funneled'\nfrom mpi4py import MPI\n"
    require_clean_ending(f"{setup}assert MPI.Query_thread() < MPI.THREAD_MULTIPLE\n{script}")


def require_clean_ending(script: str, **more: str) -> None:
    """Run a program on three ranks; all must end by themselves, with status 0 and without a word of hpccoll."""
    done = run_script(script, 3, **more)
    assert done.returncode == 0, done.stderr
    assert all(done.stdout.count(f"rank {rank} is done") == 1 for rank in range(3)), done.stdout
    assert "hpccoll" not in done.stderr
    assert "Traceback" not in done.stderr
