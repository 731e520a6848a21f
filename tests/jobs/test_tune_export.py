"""`hpccoll tune --export` in real jobs: the MPI library reads the files, and takes the algorithms that they name.

The MPI library is that of the environment; `make jobs` runs this file with MPICH and with Open MPI.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from hpccoll.library_rules import LibraryAlgorithm, LibraryRule, LibraryRules, mpich, open_mpi
from hpccoll.peers.forced_algorithms import find_mpi_library_file
from hpccoll.plan import Operation
from hpccoll.runtime.job import get_mpi_library, load_mpi
from tests.jobs.launch import hpccoll, run_script

RANKS = 4
IS_MPICH = get_mpi_library().startswith("MPICH")
LIBRARY, OTHER = ("mpich", "openmpi") if IS_MPICH else ("openmpi", "mpich")
# An algorithm that the library does not take by itself for 16 KiB, and the one that it takes. They add in other orders.
FORCED, USUAL = ("ring", "recursive_doubling") if IS_MPICH else ("basic_linear", "recursive_doubling")
NUMBER = 1  # of Open MPI's basic_linear
VARIABLE = "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM" if IS_MPICH else "coll_tuned_allreduce_algorithm"
SWITCH = {"MPIR_CVAR_ALLREDUCE_COMPOSITION": 2} if IS_MPICH else {"coll_tuned_use_dynamic_rules": 1}

SUMS = f"""
import zlib
import numpy as np
from hpccoll.runtime import job
job.load_mpi()
from mpi4py import MPI
from hpccoll.peers.control_variables import ControlVariables
world, variables = MPI.COMM_WORLD, ControlVariables()
x = np.random.default_rng(world.rank).random(4096, np.float32)
def add(comm):
    out = np.empty_like(x)
    comm.Allreduce(x, out)
    return zlib.crc32(out)
found = [add(world)]
for name in {(FORCED, USUAL)!r}:
    with variables.change({SWITCH!r} | {{{VARIABLE!r}: variables.list_values({VARIABLE!r})[name]}}):
        comm = world.Dup()  # Open MPI reads the variables here, MPICH in the call
        found.append(add(comm))
if world.rank == 0:
    print("sums", *found)
"""


def write_rules(folder: Path) -> dict[str, str]:
    """Write the file of a rule for all_reduce on RANKS ranks of one node; return the variables that name it."""
    algorithm = LibraryAlgorithm(FORCED, NUMBER, "beta")
    rule = LibraryRule(Operation.ALL_REDUCE, 1024, 65536, algorithm, (2.0,))
    rules = LibraryRules(("A test wrote this file.",), RANKS, 1, (rule,))
    if not IS_MPICH:
        path = folder / "rules.conf"
        path.write_text(open_mpi.format_rules_file(rules))
        return open_mpi.list_variables(path, has_han_file=False)
    load_mpi()
    trees = mpich.add_rules(mpich.read_default_trees(find_mpi_library_file()), rules)
    path = folder / "rules.json"
    path.write_text(mpich.format_tree(trees.algorithms))
    mpich.name_compositions_file(path).write_text(mpich.format_tree(trees.compositions))
    return mpich.list_variables(path)


def add_in_job(variables: Mapping[str, str]) -> tuple[list[int], str]:
    """Return checksums of the sum: as the library adds, with the algorithm FORCED, and with USUAL; and the output."""
    done = run_script(SUMS, RANKS, **variables)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("sums"))
    return list(map(int, line.split()[1:])), done.stdout + done.stderr


def test_the_library_takes_the_algorithm_of_the_file(tmp_path: Path) -> None:
    """Float sums depend on the order of addition, so equal bits show the algorithm."""
    (plain, forced, usual), _ = add_in_job({})
    assert plain == usual != forced
    variables = write_rules(tmp_path)
    # The library's own report: MPICH names the files, Open MPI prints every rank's messages.
    report = {"MPIR_CVAR_DEBUG_SUMMARY": "1"} if IS_MPICH else {}
    (by_file, forced, usual), printed = add_in_job(variables | report)
    assert by_file == forced != usual
    if IS_MPICH:
        for path in variables.values():
            assert f": {path}" in printed


@pytest.mark.skipif(IS_MPICH, reason="MPICH does not count messages")
def test_open_mpi_sends_the_messages_of_the_algorithm(tmp_path: Path) -> None:
    """Open MPI counts the messages of each pair of ranks: with `basic_linear`, all go to or come from rank 0."""
    program = "from mpi4py import MPI; x = bytearray(4096); MPI.COMM_WORLD.Allreduce(x, bytearray(4096), op=MPI.BOR)"
    report = {"OMPI_MCA_pml_monitoring_enable": "2", "OMPI_MCA_pml_monitoring_enable_output": "1"}
    pairs = []
    for variables in (write_rules(tmp_path), {}):
        done = run_script(program, RANKS, **report, **variables)
        assert done.returncode == 0, done.stderr
        lines = [line.split() for line in (done.stdout + done.stderr).splitlines() if line.startswith(("I\t", "E\t"))]
        pairs.append({(int(words[1]), int(words[2])) for words in lines})
    assert pairs[0] == {(0, 1), (0, 2), (0, 3), (1, 0), (2, 0), (3, 0)}
    assert (1, 3) in pairs[1], "recursive doubling"


def test_every_algorithm_is_measured(tmp_path: Path) -> None:
    words = ("all_reduce", "-b", "1K", "-e", "1K", "--budget", "0.05", "--json", str(tmp_path / "times.jsonl"))
    done = hpccoll(2, "tune", "--export", LIBRARY, "-o", str(tmp_path / "rules"), *words)
    assert done.returncode == 0, done.stderr
    assert "proven faster than" in done.stdout
    records = [json.loads(line) for line in (tmp_path / "times.jsonl").read_text().splitlines()][1:]
    assert {record["wrong"] for record in records} == {0}
    labels = {record["algorithm"] for record in records}
    assert {"default", f"beta/{FORCED}" if IS_MPICH else f"tuned/{FORCED}"} <= labels
    assert len(labels) == len(records) >= 6


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    output = ("-o", str(tmp_path / "rules"))
    other = hpccoll(2, "tune", "--export", OTHER, *output)
    assert (other.returncode, "this job runs" in other.stderr) == (3, True)
    variable = "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE" if IS_MPICH else "OMPI_MCA_coll_tuned_use_dynamic_rules"
    value = write_rules(tmp_path)[variable]
    forced = hpccoll(2, "tune", "--export", LIBRARY, *output, **{variable: value})
    assert (forced.returncode, f"unset {variable}" in forced.stderr) == (2, True), forced.stderr
    scan = hpccoll(2, "tune", "scan", "--export", LIBRARY, *output)
    assert (scan.returncode, "has no rules for scan" in scan.stderr) == (2, True)
    nccl = hpccoll(2, "tune", "--export", "nccl", *output, CUDA_VISIBLE_DEVICES="")
    assert (nccl.returncode, "nccl" in nccl.stderr) == (3, True)
    assert not Path(output[1]).exists()
