"""Runs tests of PyTorch over a backend, and writes the outcome of each.

    mpirun -n 2 python -m tests.mpi.torch_own_tests --backend hpccoll --every 3 OUTCOMES [TEST]...
    mpirun -n 4 python -m tests.mpi.torch_own_tests --file test/distributed/algorithms/test_join.py OUTCOMES [TEST]...

Without --file, the tests are `distributed_test`, which PyTorch ships with itself. The option, which may be repeated,
names a file of PyTorch's source tree; of its tests, those run that start as many processes as the job has ranks.

OUTCOMES is a file in JSON with `pass`, `skip`, `fail` or `crash` by test. A test that hangs or crashes ends the job and
has the outcome `crash`; the same command then continues after this test. The tests believe that they run over Gloo:
where they name a backend, they get BACKEND. Rank 0 also plays the process that starts the ranks of a test in PyTorch.
With `--cuda-on-cpu`, tests for CUDA devices run, too, on the CPU.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import inspect
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
import unittest
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.distributed import distributed_c10d
from torch.testing._internal import common_distributed

from tests.mpi import torch_cuda_on_cpu

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARED_VARIABLES = ("TEMP_DIR", "INIT_METHOD")  # that a test sets before it starts its processes
SKIP_CODE = common_distributed.TEST_SKIPS["generic"].exit_code
LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def substitute_backend(backend: str) -> None:
    """Let `init_process_group` and `new_group` use a backend in place of all but the backend that does nothing."""
    init, new = distributed_c10d.init_process_group, distributed_c10d.new_group

    def init_process_group(given: Any = None, *args: Any, **options: Any) -> None:
        given = options.pop("backend", given)
        init(given if given == "fake" else backend, *args, **options)

    def new_group(*args: Any, **options: Any) -> Any:
        return new(*args, **options | ({"backend": backend} if options.get("backend") else {}))

    for module in (distributed_c10d, dist):
        module.init_process_group, module.new_group = init_process_group, new_group


def load_tests() -> dict[str, Any]:
    """Return the class of each test that PyTorch ships; the module reads the environment when it is imported."""
    from torch.testing._internal.distributed import distributed_test

    class TestDistributed(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
        @classmethod
        def _run(cls, *args: Any) -> None:
            """Forget the barriers of the test before."""
            distributed_test.Barrier.barrier_id = 0
            super()._run(*args)

    return dict.fromkeys(unittest.TestLoader().getTestCaseNames(TestDistributed), TestDistributed)


def load_files(paths: Sequence[Path], ranks: int) -> dict[str, Any]:
    """Return the class of each test in files of PyTorch's source tree that starts this number of processes."""
    bases = common_distributed.MultiProcessTestCase, common_distributed.MultiProcContinuousTest
    for base in bases:
        base._spawn_processes = lambda *_: None  # the ranks of the job take the place of the processes
    tests = {}
    for path in paths:
        sys.path.insert(0, str(path.parent))
        module = importlib.import_module(path.stem)
        classes: list[tuple[str, Any]] = inspect.getmembers(module, inspect.isclass)
        for name, cls in classes:
            if issubclass(cls, bases) and cls.__module__ == module.__name__:
                for test in unittest.TestLoader().getTestCaseNames(cls):
                    if get_world_size(cls, test) == ranks:
                        tests[f"{path.stem}.{name}.{test}"] = cls
    return tests


def get_world_size(cls: Any, test: str) -> int:
    """Return the number of processes that a test starts."""
    if issubclass(cls, common_distributed.MultiProcContinuousTest):
        return int(cls._get_world_size("cpu"))
    return int(cls(test).world_size)


def run_test(cls: Any, name: str, world: MPI.Intracomm, limit: float) -> str:
    """Run a test on all ranks; return its outcome on all of them together, or end the job after `limit` seconds."""
    if getattr(cls, "__unittest_skip__", False) or getattr(getattr(cls, name), "__unittest_skip__", False):
        return "skip"
    before, launcher, shared = dict(os.environ), None, None
    if world.rank == 0:
        with suppress(unittest.SkipTest):
            launcher = start_launcher(cls, name)
            shared = launcher.file_name, {each: os.environ[each] for each in SHARED_VARIABLES if each in os.environ}
    shared = world.bcast(shared)
    if shared is None:
        return "skip"
    file_name, variables = shared
    os.environ.update(variables)
    faulthandler.dump_traceback_later(limit, exit=True)
    outcomes = allgather_patiently(world, run_rank(cls, name, world, file_name))
    faulthandler.cancel_dump_traceback_later()
    if launcher:
        launcher.tearDown()
    os.environ.clear()
    os.environ.update(before)
    dist.set_debug_level_from_env()
    torch.set_default_dtype(torch.float32)
    return "fail" if "fail" in outcomes else outcomes[0]


def start_launcher(cls: Any, name: str) -> Any:
    """Return the object of a test that starts the test's processes in PyTorch, with the name of a file for them."""
    launcher = cls(name)
    if issubclass(cls, common_distributed.MultiProcContinuousTest):
        launcher.file_name = tempfile.mkstemp()[1]
        launcher.tearDown = lambda: None
    else:
        launcher.setUp()
    return launcher


def run_rank(cls: Any, name: str, world: MPI.Intracomm, file_name: str) -> str:
    """Run this rank's part of a test, which ends by SystemExit in PyTorch's tests; return the outcome."""
    reader, writer = multiprocessing.Pipe()
    status: Any = 0
    try:
        if issubclass(cls, common_distributed.MultiProcContinuousTest):
            cls.rank, cls.world_size = world.rank, world.size
            cls._init_pg(world.rank, world.size, file_name)
            cls._run_test_given_id(f"{cls.__name__}.{name}")
        else:
            cls._run(world.rank, name, file_name, writer)
    except SystemExit as end:
        status = end.code
    except unittest.SkipTest:
        status = SKIP_CODE
    except Exception:  # noqa: BLE001 - a test may fail in any way
        status = traceback.format_exc()
    if status or dist.is_initialized():
        with suppress(AssertionError, ValueError, RuntimeError):
            dist.destroy_process_group()
    if not status or status in {skip.exit_code for skip in common_distributed.TEST_SKIPS.values()}:
        return "skip" if status else "pass"
    try:
        error = reader.recv() if reader.poll() else f"exit status {status}"
    except EOFError:  # the test has closed the pipe
        error = f"exit status {status}"
    sys.stderr.write(f"{name} failed on rank {world.rank}:\n{error}\n")
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
    tests = load_files(options.file, world.size) if options.file else load_tests()
    outcomes = world.bcast(json.loads(path.read_text()) if world.rank == 0 and path.exists() else {})
    named = names or sorted(tests)[:: options.every]
    for name in [each for each in named if each not in outcomes]:
        if world.rank == 0:
            path.write_text(json.dumps({**outcomes, name: "crash"}))
        outcomes[name] = run_test(tests[name], name.split(".")[-1], world, options.limit)
    if world.rank == 0:
        path.write_text(json.dumps(outcomes))


def main() -> None:
    """Run the tests that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="hpccoll")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--file", type=Path, action="append", help="a file of tests of PyTorch's source tree")
    parser.add_argument("--cuda-on-cpu", action="store_true")
    parser.add_argument("--limit", type=float, default=120, help="seconds of a test, then the job ends")
    parser.add_argument("outcomes", type=Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    sys.argv[1:] = []  # torch's tests read the command line
    run_tests(options.backend, options.names, options.outcomes, options)


if __name__ == "__main__":
    main()
