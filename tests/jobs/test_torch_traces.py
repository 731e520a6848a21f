"""PyTorch's analyser of flight recorder dumps reads what ranks did through torch.distributed over hpccoll."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from tests.jobs.launch import run_script
from tests.requirements import needs_torch_analyser

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, needs_torch_analyser]

# Rank 1 starts the last collective only after rank 0 has written the traces, as if it were late.
PROGRAM = """
import os, sys
from pathlib import Path
import torch, torch.distributed as dist
import hpccoll.torch
from mpi4py import MPI
from hpccoll.recordings import read_recordings, write_torch_traces

dist.init_process_group("hpccoll")
rank, n = dist.get_rank(), dist.get_world_size()
x, whole = torch.ones(10), torch.ones(10 * n)
pair = dist.new_group(list(range(n)), group_desc="pair")
dist.all_reduce(x)
dist.broadcast(x.double(), 1)
dist.all_gather_into_tensor(whole, x)
dist.all_gather([torch.zeros(3 + each) for each in range(n)], torch.ones(3 + rank))
dist.reduce_scatter_tensor(x, whole)
dist.all_to_all_single(whole, whole.clone())
dist.reduce(torch.ones(4, dtype=torch.int64), 0)
dist.all_reduce(torch.ones(7, dtype=torch.bfloat16), group=pair, async_op=True).get_future().wait()
if rank == 0:
    dist.send(x, 1)
if rank == 1:
    dist.recv(x, 0)
dist.barrier()
late = dist.all_reduce(x, group=pair, async_op=True) if rank == 0 else None
MPI.COMM_WORLD.Barrier()
if rank == 0:
    write_torch_traces(read_recordings(os.environ["HPCCOLL_RECORDER"]).recordings, Path(sys.argv[1]))
MPI.COMM_WORLD.Barrier()
late = late or dist.all_reduce(x, group=pair, async_op=True)
late.wait()
dist.destroy_process_group()
"""
COMPLETED = (
    ("all_reduce", 10), ("broadcast", 10), ("all_gather", 10), ("all_gather_v", 7), ("reduce_scatter", 20),
    ("all_to_all", 20), ("reduce", 4), ("barrier", 0),
)  # fmt: skip


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    done = run_script(["-c", PROGRAM, str(folder / "out")], 2, HPCCOLL_RECORDER=str(folder / "recordings"))
    assert done.returncode == 0, done.stderr
    return folder / "out"


def analyse(traces):
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.config_manager import JobConfig
    from torch.distributed.flight_recorder.components.loader import read_dir

    arguments = JobConfig().parse_args([str(traces)])
    details, version = read_dir(arguments)
    return build_db(details, arguments, version)


def test_every_collective_is_complete_with_its_group_and_its_size(traces):
    found = [each for each in analyse(traces).collectives if each.group_id == "0"]
    assert [(each.collective_name.removeprefix("gloo:"), each.input_sizes[0][0]) for each in found] == list(COMPLETED)
    assert all(each.pass_check and each.expected_ranks == {0, 1} for each in found)
    assert {each.collective_state for each in found} == {"completed"}


def test_the_late_rank_is_missing_from_its_collective(traces):
    late = [each for each in analyse(traces).collectives if each.group_id == "1" and each.missing_ranks]
    assert [(each.collective_seq_id, each.collective_state, each.missing_ranks) for each in late] == [
        (2, "started", {1})
    ]


def test_the_dtypes_are_recorded(traces):
    entries = pickle.loads((traces / "rank_1").read_bytes())["entries"]
    assert {"Float", "Double", "Long", "BFloat16"} <= {each["input_dtypes"][0] for each in entries}


def test_the_command_of_torch_names_the_late_rank(traces):
    words = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(traces)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "missing ranks: {1}" in done.stdout + done.stderr
