"""The end of a job: MPICH reports no requests and no memory that were not freed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.depth import keep_every
from tests.jobs.launch import BIN, LIMIT_S, environment

pytestmark = pytest.mark.slow

SCRIPT = """
import numpy as np
import hpccoll
comm = hpccoll.Communicator()
group = comm.new_group(list(range(comm.size)))
kept = [np.ones(n) for n in range(1, 40)]
for x in kept * 3:
    comm.all_reduce(x)
    group.all_reduce(x)
run = comm.all_reduce_init(kept[0])
run()
work = comm.isend(kept[1], (comm.rank + 1) % comm.size)
comm.recv(kept[2][:2], (comm.rank - 1) % comm.size)
work.wait()
late = [comm.all_reduce(x, async_op=True) for x in kept[:5]]
shared = comm.empty(10)
ENDING
if RANK == 0:
    print("done", flush=True)
"""
ENDINGS = {
    "everything is closed": "for work in late: work.wait()\ngroup.close(); del shared; comm.close()",
    "closed while operations are under way": "group.close(); del shared; comm.close()",
    "nothing is closed": "for work in late: work.wait()",
    "only the group is closed": "for work in late: work.wait()\ngroup.close()",
    "the last reference goes": "for work in late: work.wait()\ndel comm, group, late, run, work, shared",
}


@pytest.mark.parametrize("ending", keep_every(2, ENDINGS))
def test_a_job_ends_quietly(ending):
    script = SCRIPT.replace("ENDING", "RANK = comm.rank\n" + ENDINGS[ending])
    done = subprocess.run(
        [str(BIN / "mpirun"), "-n", "3", sys.executable, "-W", "error", "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    told = [line for line in done.stderr.splitlines() if line.strip() and "osc" not in line]  # Open MPI's windows
    assert not told
