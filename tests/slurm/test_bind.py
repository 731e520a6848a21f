"""bind.sh without a cluster: the cores to which a rank is bound, with scripts in place of nvidia-smi and taskset."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

BIND = Path(__file__).parents[2] / "slurm/bind.sh"
TOOLS = {
    # GPU i has the PCI slot 0000000i:01:00.0; `--id` takes a number or the UUID of GPU 3.
    "nvidia-smi": """
        for word in "$@"; do case "$word" in
            --id=[0-3]) echo "0000000${word#--id=}:01:00.0"; exit ;;
            --id=GPU-three) echo "00000003:01:00.0"; exit ;;
            --id=*) exit 6 ;;
        esac; done
        for i in 0 1 2 3; do echo "0000000$i:01:00.0"; done""",
    "cat": 'path=${1#/sys/bus/pci/devices/000}; echo "cores-${path%%:*}"',
    "taskset": 'echo "$3"; :',
}


@pytest.fixture
def bound(tmp_path):
    """Returns the cores that a rank is bound to; none if it runs unbound."""
    for name, text in TOOLS.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/bash\n{text.replace('; :', f' >> {tmp_path}/bound')}\n")
        path.chmod(0o755)

    def run(rank, visible):
        environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_LOCALID": str(rank)}
        if visible is not None:
            environ["CUDA_VISIBLE_DEVICES"] = visible
        (tmp_path / "bound").write_text("")
        done = subprocess.run([str(BIND), "echo", "ran"], env=environ, capture_output=True, text=True, check=True)
        assert done.stdout == "ran\n"
        return (tmp_path / "bound").read_text().strip()

    return run


@pytest.mark.parametrize(
    ("visible", "cores"),
    [
        (None, ["cores-0", "cores-1", "cores-2", "cores-3", "cores-0"]),
        ("2,1", ["cores-2", "cores-1", "cores-2"]),
        ("GPU-three", ["cores-3", "cores-3"]),
        ("1,9,2", ["cores-1", "cores-1"]),
        ("", [""]),
    ],
)
def test_a_rank_is_bound_next_to_its_visible_gpu(bound, visible, cores):
    assert [bound(rank, visible) for rank in range(len(cores))] == cores
