"""Runs `distributed_test`, the tests that PyTorch ships with itself, over a backend, and writes the outcome of each.

    mpirun -n 2 python -m tests.mpi.torch_own_tests --backend hpccoll --every 3 OUTCOMES [TEST]...

OUTCOMES is a file in JSON with `pass`, `skip`, `fail` or `crash` by test. A test that hangs or crashes ends the job and
has the outcome `crash`; the same command then continues after this test. The tests believe that they run over Gloo:
where they name a backend, they get BACKEND. Rank 0 also plays the process that starts the ranks of a test in PyTorch.
With `--cuda-on-cpu`, tests for CUDA devices run, too, on the CPU.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import multiprocessing
import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.distributed import distributed_c10d

from tests.mpi import torch_cuda_on_cpu

if TYPE_CHECKING:
    from collections.abc import Sequence

LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def substitute_backend(backend: str) -> None:
    """Let `init_process_group` and `new_group` use a backend in place of Gloo."""
    init, new = distributed_c10d.init_process_group, distributed_c10d.new_group

    def init_process_group(*args: Any, **options: Any) -> None:
        init(*args, **options | {"backend": backend})

    def new_group(*args: Any, **options: Any) -> Any:
        return new(*args, **options | ({"backend": backend} if options.get("backend") else {}))

    for module in (distributed_c10d, dist):
        module.init_process_group, module.new_group = init_process_group, new_group


def load_tests() -> Any:
    """Return the class of PyTorch's tests, which reads the environment when it is imported."""
    from torch.testing._internal.distributed import distributed_test

    class TestDistributed(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
        barrier = distributed_test.Barrier
        skip_codes = frozenset(skip.exit_code for skip in distributed_test.TEST_SKIPS.values())

    return TestDistributed


def run_test(tests: Any, name: str, world: MPI.Intracomm, limit: float) -> str:
    """Run a test on all ranks; return its outcome on all of them together, or end the job after `limit` seconds."""
    if getattr(getattr(tests, name), "__unittest_skip__", False):
        return "skip"
    before, launcher = dict(os.environ), None
    if world.rank == 0:
        launcher = tests(name)
        launcher.setUp()
    variables = {each: os.environ[each] for each in ("TEMP_DIR", "INIT_METHOD") if each in os.environ}
    file_name, variables = world.bcast((launcher.file_name, variables) if launcher else None)
    os.environ.update(variables)
    tests.barrier.barrier_id = 0
    faulthandler.dump_traceback_later(limit, exit=True)
    outcomes = allgather_patiently(world, run_rank(tests, name, world.rank, file_name))
    faulthandler.cancel_dump_traceback_later()
    if launcher:
        launcher.tearDown()
    os.environ.clear()
    os.environ.update(before)
    dist.set_debug_level_from_env()
    torch.set_default_dtype(torch.float32)
    return "fail" if "fail" in outcomes else outcomes[0]


def run_rank(tests: Any, name: str, rank: int, file_name: str) -> str:
    """Run this rank's part of a test, which ends by SystemExit in PyTorch's tests; return the outcome."""
    reader, writer = multiprocessing.Pipe()
    status: Any = 0
    try:
        tests._run(rank, name, file_name, writer)
    except SystemExit as end:
        status = end.code
    except Exception:  # noqa: BLE001 - a test may fail in any way
        status = traceback.format_exc()
    if status:
        with suppress(AssertionError, ValueError, RuntimeError):
            dist.destroy_process_group()
    if not status or status in tests.skip_codes:
        return "skip" if status else "pass"
    try:
        error = reader.recv() if reader.poll() else f"exit status {status}"
    except EOFError:  # the test has closed the pipe
        error = f"exit status {status}"
    sys.stderr.write(f"{name} failed on rank {rank}:\n{error}\n")
    return "fail"


def allgather_patiently(world: MPI.Intracomm, outcome: str) -> list[str]:
    """Return the outcomes of all ranks; a waiting rank leaves its core to the others."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(0.002)
    return world.allgather(outcome)


def run_tests(backend: str, names: Sequence[str], path: Path, options: argparse.Namespace) -> None:
    """Run tests without an outcome, and write the outcome of each; without `names`, run each `every`-th test."""
    world = MPI.COMM_WORLD.Dup()
    for name in LAUNCHER_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(world.size), TORCH_DISTRIBUTED_DEBUG="OFF")
    torch.set_num_threads(1)
    if backend == "hpccoll":
        import hpccoll.torch  # noqa: F401 - registers the backend
    substitute_backend(backend)
    if options.cuda_on_cpu:
        torch_cuda_on_cpu.run_cuda_tests_on_cpu(world.size)
    tests = load_tests()
    outcomes = world.bcast(json.loads(path.read_text()) if world.rank == 0 and path.exists() else {})
    named = names or sorted(each for each in dir(tests) if each.startswith("test_"))[:: options.every]
    for name in [each for each in named if each not in outcomes]:
        if world.rank == 0:
            path.write_text(json.dumps({**outcomes, name: "crash"}))
        outcomes[name] = run_test(tests, name, world, options.limit)
    if world.rank == 0:
        path.write_text(json.dumps(outcomes))


def main() -> None:
    """Run the tests that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="hpccoll")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--cuda-on-cpu", action="store_true")
    parser.add_argument("--limit", type=float, default=120, help="seconds of a test, then the job ends")
    parser.add_argument("outcomes", type=Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    sys.argv[1:] = []  # torch's tests read the command line
    run_tests(options.backend, options.names, options.outcomes, options)


if __name__ == "__main__":
    main()
