"""`hpccoll profile` of a job on two nodes of a lab: it names the late node, and predicts the run on faster links."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpccoll.profile import explain_profile, read_profile
from hpccoll.profile.findings import list_findings
from hpccoll.profile.what_if import WhatIf

pytestmark = pytest.mark.full  # its figures vary beside other tests
BIN = Path(sys.executable).parent
STEPS, LATE_S, NBYTES = 10, 0.05, 2**20
BURST = 131072  # the bytes that a link of the lab does not slow down
PROGRAM = f"""
import os, time
import numpy as np
from mpi4py import MPI
comm, data = MPI.COMM_WORLD, np.zeros({NBYTES}, np.uint8)
is_second = comm.rank > 1
for step in range({STEPS}):
    time.sleep({LATE_S} * is_second)
    comm.allreduce(step)
    for source, dest in ((0, 1), (2, 3), (0, 2), (3, 1)):
        if comm.rank == source:
            comm.Send(data, dest)
        elif comm.rank == dest:
            comm.Recv(data, source)
"""


def record(lab, tmp_path, rate):
    """Return the explanation of the program on two nodes of two ranks, whose links carry `rate`."""
    lab.set_link("all", rate=rate)
    program, job = tmp_path / "exchange.py", tmp_path / f"job-{rate}"
    program.write_text(PROGRAM)
    words = [BIN / "mpirun", BIN / "hpccoll", "profile", "-o", job, program]
    done = lab.run(["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", "--", *map(str, words)])
    assert done.returncode == 0, done.stderr
    return explain_profile(read_profile(str(job)))


@pytest.mark.skipif((BIN.parent / "lib" / "libmpi.so.40").exists(), reason="this environment has Open MPI")
def test_a_late_node_is_named_and_faster_links_are_predicted(lab, tmp_path):
    slow = record(lab, tmp_path, "100M")
    assert [rank.host for rank in slow.profile.ranks] == ["node1", "node1", "node2", "node2"]
    assert slow.profile.clock_error_s < 2e-3
    named = next(finding for finding in list_findings(slow) if finding.cause == "late_node")
    assert named.found.startswith("node node2 (ranks 2-3) arrives last in ")
    assert named.saved_s == pytest.approx(STEPS * LATE_S, rel=0.4)  # other programs share the cores
    what_if = WhatIf(slow.graph)
    limited = 1 - BURST / NBYTES  # of a message, which is sent at 100 Mbit/s
    assert 1 / what_if.network.beta_s_per_byte == pytest.approx(12.5e6 / limited, rel=0.3)
    assert what_if.network.within.beta_s_per_byte < what_if.network.beta_s_per_byte / 10
    fast = record(lab, tmp_path, "400M")
    predicted = what_if.predict(["bandwidth=4"])[0]
    assert predicted.seconds == pytest.approx(fast.graph.run_s, rel=0.3)
    assert fast.graph.run_s < 0.7 * slow.graph.run_s
