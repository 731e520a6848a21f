"""bench/torch_backend.py as users start it, with few iterations."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.jobs.launch import run_script

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
SCRIPT = Path(__file__).parents[2] / "bench" / "torch_backend.py"


def test_the_script_compares_all_operations_with_gloo(tmp_path):
    path = tmp_path / "torch.jsonl"
    done = run_script([str(SCRIPT), "--sizes", "8", "--seconds", "0.02", "--json", str(path)], 2)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in path.read_text().splitlines()]
    cases = {each["case"] for each in records if each["kind"] == "comparison"}
    assert {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier"} <= cases
