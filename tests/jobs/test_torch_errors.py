"""Errors of the backend "hpccoll", the life of its groups, and the ways to start a script of torch.distributed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.depth import mark_full
from tests.jobs.launch import LIMIT_S, environment, run_script
from tests.jobs.torch_error_program import CASES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DATA_PARALLEL = """
import os, sys
import torch
import torch.distributed as dist

before = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
dist.init_process_group("hpccoll")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
model(torch.full((4, 3), float(dist.get_rank()))).sum().backward()
gradient = model.module.weight.grad[0, 0].item()
sys.stdout.write(f"{dist.get_rank()} {dist.get_world_size()} {before} {sys.argv[1:]} {gradient}\\n")
sys.stdout.flush()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("cases", [list(CASES), mark_full(["blocking_calls_time_out=1"])], ids=len)
@pytest.mark.parametrize("ranks", [2, mark_full(3)])
def test_errors_and_the_life_of_groups(ranks: int, cases: list[str]) -> None:
    done = run_script(["-m", "tests.jobs.torch_error_program", *cases], ranks, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == ranks * len(cases), done.stdout


ENDINGS = {"os.kill(os.getpid(), signal.SIGKILL)": "", "sys.exit()": "other ranks still wait for it"}


@pytest.mark.parametrize(("ending", "handle"), [*((each, "") for each in ENDINGS), ("sys.exit()", ".get_future()")])
def test_a_rank_that_ends_ends_the_others(ending: str, handle: str) -> None:
    script = (
        "import os, signal, sys, torch, torch.distributed as dist, hpccoll.torch\n"
        "from datetime import timedelta\n"
        "dist.init_process_group('hpccoll', timeout=timedelta(seconds=30))\n"
        "dist.all_reduce(torch.ones(2))\n"
        f"if dist.get_rank() == 1: {ending}\n"
        f"dist.all_reduce(torch.ones(2), async_op=True){handle}.wait()\n"
        "print('not ended', flush=True)\n"
    )
    done = run_script(script, 2)
    assert done.returncode > 0, done.stdout + done.stderr
    assert "not ended" not in done.stdout
    assert ENDINGS[ending] in done.stderr


@pytest.mark.parametrize("calls", [3000, mark_full(100_000)])
def test_many_calls_leave_nothing_behind(calls: int) -> None:
    done = run_script(["-m", "tests.mpi.torch_leaks", "--calls", str(calls)], 2, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("'descriptors': 0") == 2, done.stdout


def test_a_script_changes_one_word_and_its_launch_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(DATA_PARALLEL, encoding="utf-8")
    done = run_script(["-m", "hpccoll.torch", str(script), "--steps", "3"], 2, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    expected = [f"{rank} 2 ['{rank}', '2', '{rank}', '2'] ['--steps', '3'] 2.0" for rank in range(2)]
    assert sorted(done.stdout.splitlines()) == expected


def install_entry_points(site: Path) -> None:
    """Make the entry points of pyproject.toml known to Python programs that have `site` in PYTHONPATH."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    information = site / "hpccoll_entry_points-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: hpccoll-entry-points\nVersion: 1.0\n")
    lines = [f"[{group}]\n" + "\n".join(f"{name} = {at}" for name, at in groups[group].items()) for group in groups]
    (information / "entry_points.txt").write_text("\n".join(lines))


def test_an_installed_hpccoll_needs_no_import(tmp_path: Path) -> None:
    install_entry_points(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(DATA_PARALLEL, encoding="utf-8")
    done = run_script([str(script)], 2, PYTHONPATH=f"{tmp_path}:{ROOT}", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in sorted(done.stdout.splitlines())] == [["0", "2"], ["1", "2"]]


@pytest.mark.slow
def test_importing_torch_loads_nothing_of_hpccoll_and_leaves_other_backends_alone(tmp_path: Path) -> None:
    install_entry_points(tmp_path)
    script = (
        "import gc, os, sys, torch, torch.distributed as dist\n"
        "try: dist.init_process_group('gloo')\n"
        "except ValueError as error: print('RANK expected' in str(error))\n"
        "print(sorted(name for name in sys.modules if name.startswith('hpccoll')), 'RANK' in os.environ)\n"
        "gc.disable()\n"
        f"dist.init_process_group('gloo', init_method='file://{tmp_path}/store', rank=0, world_size=1)\n"
        "dist.destroy_process_group()\n"
        "codes = [x.gi_code for x in gc.get_objects() if type(x).__name__ == 'generator']\n"
        "print([code.co_filename for code in codes if 'hpccoll' in code.co_filename])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
        env=environment(PYTHONPATH=f"{tmp_path}:{ROOT}", PMI_RANK="0", PMI_SIZE="1"),
    )
    assert done.stdout == "True\n['hpccoll', 'hpccoll.errors', 'hpccoll.torch_autoload'] False\n[]\n", done.stderr


@pytest.mark.full
@pytest.mark.parametrize("words", [["-m", "hpccoll.torch"], []], ids=["launch form", "import"])
def test_torchrun_is_refused_with_a_remedy(tmp_path: Path, words: list[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import hpccoll.torch\n{DATA_PARALLEL}", encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, *words, str(script)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=environment(),
    )
    assert done.returncode != 0
    assert "the launcher started 2 processes (WORLD_SIZE=2, torchrun)" in done.stderr
    assert "Start the job with the mpirun of" in done.stderr


@pytest.mark.slow
def test_without_a_launcher_the_job_has_one_rank(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(DATA_PARALLEL, encoding="utf-8")
    run = [sys.executable, "-m", "hpccoll.torch", str(script)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=LIMIT_S, check=True, env=environment())
    assert done.stdout == "0 1 ['0', '1', '0', '1'] [] 0.0\n", done.stderr
