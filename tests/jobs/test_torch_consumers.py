"""DDP, FSDP, tensor and pipeline parallelism and others train over hpccoll as over gloo and in one process."""

from __future__ import annotations

import pytest

from tests.jobs.launch import run_script

pytest.importorskip("torch")


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.full)])
def test_consumers_train_as_over_gloo_and_in_one_process(ranks: int) -> None:
    done = run_script(["-m", "tests.mpi.torch_consumers"], ranks, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    consumers = 28 if ranks == 4 else 26
    assert done.stdout.count("equals gloo") == consumers * ranks, done.stdout
