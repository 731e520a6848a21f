"""MPI over the nodes of a lab: MPICH by srun and by its mpirun, Open MPI by its mpirun."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hpccoll.lab import ClusterSpec, Lab
from tests.requirements import skip_or_fail

BIN = Path(sys.executable).parent
OTHER_MPIRUN = os.environ.get("HPCCOLL_OTHER_MPIRUN")
PROGRAM = """
import platform
from mpi4py import MPI
comm = MPI.COMM_WORLD
total = comm.allreduce(comm.rank)
print(*comm.gather(f"{platform.node()}:{comm.size}:{total}") or [], sep="\\n", end="")
"""
EXPECTED = [f"node{1 + rank // 2}:8:28" for rank in range(8)]


def run_ranks(lab, *launcher):
    """Return `NODE:RANKS:SUM` of each rank of a program that is started within an allocation."""
    words = ["salloc", "--quiet", "--nodes=4", "--ntasks-per-node=2", "--", *map(str, launcher), "-c", PROGRAM]
    done = lab.run(words, timeout_s=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif((BIN.parent / "lib" / "libmpi.so.40").exists(), reason="this environment has Open MPI")
@pytest.mark.parametrize("by", ["srun", "mpirun"])
def test_mpich_reaches_all_nodes(lab, by):
    launcher = ["srun", "--mpi=pmi2"] if by == "srun" else [str(BIN / "mpirun")]
    assert run_ranks(lab, *launcher, sys.executable) == EXPECTED


@pytest.mark.skipif((BIN.parent / "lib" / "libmpi.so.40").exists(), reason="this environment has Open MPI")
def test_ranks_of_an_uneven_distribution_share_the_memory_of_their_node(lab):
    """MPICH takes each rank for a node of its own there."""
    program = "import hpccoll\nwith hpccoll.Communicator() as comm:\n    print(comm.node_count)"
    hosts = lab.shared_dir / "hosts"
    hosts.write_text("node1\nnode2\nnode2\n")
    launcher = ["env", f"SLURM_HOSTFILE={hosts}", "srun", "--mpi=pmi2", "-n", "3", "--distribution=arbitrary"]
    done = lab.run([*launcher, sys.executable, "-c", program], timeout_s=120)
    assert done.stdout.split() == ["2"] * 3, done.stderr


def test_open_mpi_reaches_all_nodes_in_order(needs_namespaces, shares):
    if OTHER_MPIRUN is None:
        skip_or_fail("set HPCCOLL_OTHER_MPIRUN to the mpirun of an environment with Open MPI, as `make slurm` does")
    other = Path(OTHER_MPIRUN).parent
    with Lab(ClusterSpec(shares=(*shares, str(other.parent)))) as lab:
        assert run_ranks(lab, OTHER_MPIRUN, other / "python") == EXPECTED


def test_a_mapping_for_one_host_is_replaced(lab):
    one_host = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    assert lab.build_environment(one_host)["PRTE_MCA_rmaps_default_mapping_policy"] == "slot:oversubscribe"
