"""PyTorch's own tests of torch.distributed pass over hpccoll where they pass over Gloo."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.jobs.launch import run_script

pytestmark = pytest.mark.slow

pytest.importorskip("torch")

PAGE = Path(__file__).parents[2] / "docs" / "torch.md"
CASES = [
    (2, 3),  # each third test by name
    *(pytest.param(ranks, 1, marks=pytest.mark.full) for ranks in (2, 3, 4)),
]


def read_exceptions() -> set[str]:
    """Return the tests that do not pass over hpccoll, with reasons on the page."""
    return set(re.findall(r"^\| `(test_\w+)` \|", PAGE.read_text(), re.MULTILINE))


def run_tests(backend: str, ranks: int, path: Path, *arguments: str) -> dict[str, str]:
    """Return the outcomes of PyTorch's tests over a backend."""
    words = ["-W", "ignore", "-m", "tests.mpi.torch_own_tests", "--backend", backend, str(path), *arguments]
    done = run_script(words, ranks, OMP_NUM_THREADS="1")
    outcomes: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    assert done.returncode == 0, f"after {list(outcomes)[-1:]}: {done.stderr[-10000:]}"
    return outcomes


@pytest.mark.parametrize(("ranks", "every"), CASES)
def test_tests_that_pass_over_gloo_pass_over_hpccoll(tmp_path: Path, ranks: int, every: int) -> None:
    by_gloo = run_tests("gloo", ranks, tmp_path / "gloo", "--every", str(every))
    passed = [name for name, outcome in by_gloo.items() if outcome == "pass" and name not in read_exceptions()]
    assert len(passed) > 75 / every
    ours = run_tests("hpccoll", ranks, tmp_path / "hpccoll", *passed)
    assert {name for name in passed if ours[name] != "pass"} == set()


FILE = """
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcContinuousTest, MultiProcessTestCase


class PairTest(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_sum(self):
        dist.init_process_group("gloo", rank=self.rank, world_size=2, init_method=f"file://{self.file_name}")
        x = torch.ones(1)
        dist.all_reduce(x)
        assert dist.get_backend() == "hpccoll" and x.item() == 2

    def test_one_rank_fails(self):
        assert self.rank == 0


class TrioTest(PairTest):
    world_size = 3


class ContinuousTest(MultiProcContinuousTest):
    world_size = 2

    def test_rank(self):
        assert dist.get_rank() == self.rank

    def test_skipped(self):
        self.skipTest("always")
"""


@pytest.mark.full
def test_tests_of_a_file_run_if_they_start_as_many_processes_as_the_job_has_ranks(tmp_path: Path) -> None:
    (tmp_path / "test_pairs.py").write_text(FILE)
    outcomes = run_tests("hpccoll", 2, tmp_path / "outcomes", "--file", str(tmp_path / "test_pairs.py"))
    assert outcomes == {
        "test_pairs.ContinuousTest.test_rank": "pass",
        "test_pairs.ContinuousTest.test_skipped": "skip",
        "test_pairs.PairTest.test_one_rank_fails": "fail",
        "test_pairs.PairTest.test_sum": "pass",
    }


def test_the_page_lists_at_most_five_exceptions() -> None:
    assert 0 < len(read_exceptions()) <= 5
