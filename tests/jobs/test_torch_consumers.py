"""DDP, FSDP, tensor and pipeline parallelism and others train over hpccoll as over gloo and in one process."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.jobs.launch import run_script
from tests.requirements import skip_or_fail

pytestmark = pytest.mark.slow

pytest.importorskip("torch")


CASES = [
    (2, "FSDP pipeline", 11),
    pytest.param(2, "", 31, marks=pytest.mark.full),
    pytest.param(4, "", 33, marks=pytest.mark.full),
]


@pytest.mark.parametrize(("ranks", "names", "consumers"), CASES)
def test_consumers_train_as_over_gloo_and_in_one_process(ranks: int, names: str, consumers: int) -> None:
    done = run_script(["-m", "tests.mpi.torch_consumers", *names.split()], ranks, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": right, ") == consumers * ranks, done.stdout


@pytest.mark.full
@pytest.mark.parametrize("library", ["accelerate", "lightning"])
def test_libraries_train_as_over_gloo_and_in_one_process(library: str) -> None:
    if find_spec(library) is None:
        skip_or_fail(f"{library} is not installed: pip install {library}")
    done = run_script(["-m", "tests.mpi.torch_consumers", "--library", library], 2, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": right, ") == 2, done.stdout
