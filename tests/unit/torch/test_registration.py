"""The registration of the backend "hpccoll": its entry point, and the modules that its import does not load."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).parents[3]
GROUP = "torch.distributed.backends"


def read_entry_point() -> EntryPoint:
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"][GROUP]
    return EntryPoint("hpccoll", entries["hpccoll"], GROUP)


def run_python(code: str, **more: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | more, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_entry_point_registers_without_mpi4py():
    code = (
        "import sys, torch.distributed as dist\n"
        f"from {read_entry_point().module} import {read_entry_point().attr} as load\n"
        "load(); load()\n"
        "assert 'HPCCOLL' in dist.Backend._plugins\n"
        "assert not [name for name in sys.modules if name.startswith(('mpi4py', 'hpccoll.communicator'))]\n"
    )
    run_python(code)


@pytest.mark.slow
def test_the_entry_point_does_not_raise_if_torch_has_no_table_of_rendezvous_handlers():
    code = (
        "import sys, torch.distributed, torch.distributed.rendezvous\n"
        "del sys.modules['torch.distributed.rendezvous']._rendezvous_handlers\n"
        f"import {read_entry_point().module} as module; module.register()\n"
    )
    run_python(code)


@pytest.mark.slow
def test_the_variables_of_slurm_give_rank_and_size():
    code = "import os, hpccoll.torch\nprint(*(os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK')))"
    found = run_python(code, SLURM_PROCID="3", SLURM_STEP_NUM_TASKS="8", SLURM_LOCALID="1")
    assert found.split() == ["3", "8", "1"]


@pytest.mark.slow
def test_a_rank_of_the_user_stays():
    code = "import os, hpccoll.torch\nprint(os.environ['RANK'], os.environ.get('LOCAL_RANK'))"
    assert run_python(code, RANK="0", WORLD_SIZE="1", SLURM_PROCID="3", SLURM_LOCALID="1").split() == ["0", "None"]


@pytest.mark.slow
def test_groups_are_made_again_and_again_without_a_launcher():
    code = (
        "import os, torch, torch.distributed as dist, hpccoll.torch\n"
        "for _ in range(3):\n"
        "    dist.init_process_group('hpccoll')\n"
        "    assert dist.get_world_size() == 1\n"
        "    dist.all_reduce(torch.ones(2))\n"
        "    dist.destroy_process_group()\n"
        "assert 'MASTER_PORT' not in os.environ\n"
    )
    run_python(code)
