"""The README is correct: its Python runs, and its make targets and options exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpccoll.algorithms import list_algorithm_names
from hpccoll.plan import Operation
from tests.jobs.launch import BIN, LIMIT_S, environment

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def list_blocks(language: str) -> list[str]:
    """Return the code blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("code", list_blocks("python"))
def test_python_runs(tmp_path: Path, code: str, ranks: int) -> None:
    script = tmp_path / "example.py"
    script.write_text(code)
    words = [str(BIN / "mpirun"), "-n", str(ranks), sys.executable, str(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_make_targets_exist() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    asked = re.findall(r"^make ([a-z-]+)", "\n".join(list_blocks("sh")), re.MULTILINE)
    assert asked
    assert set(asked) <= set(targets)


def print_recipe(target: str, folder: Path) -> str:
    """Return what `make -n TARGET` prints in a folder where nothing may run."""
    shutil.copy(ROOT / "Makefile", folder)
    for name in ("tests/run_mpi.sh", ".venv/bin/python"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch {folder}/ran\n")
        path.chmod(0o755)
    for name in ("pyproject.toml", "constraints.txt"):
        (folder / name).touch()
    words, variables = ["make", "-n", target], {"PATH": os.environ["PATH"]}
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert not (folder / "ran").exists()
    return done.stdout


@pytest.mark.parametrize("target", ["test", "check", "bench"])
def test_make_with_option_n_runs_nothing(tmp_path: Path, target: str) -> None:
    assert "run_mpi.sh" in print_recipe(target, tmp_path) or target == "bench"


def test_every_part_of_the_full_tests_has_their_marks(tmp_path: Path) -> None:
    recipe = print_recipe("test-full", tmp_path)
    for part in ("slurm", "docs unit", "jobs"):
        assert f"MARKED='full or not full' {part}" in recipe
    assert recipe.count("-m 'full or not full'") == 2  # on MPICH and on Open MPI


def test_table_of_algorithms_is_the_registry() -> None:
    page = (ROOT / "docs" / "reference" / "algorithms.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|$", page, re.MULTILINE)
    shown = {name: cells for ops, cells in rows for name in re.findall(r"`(\w+)`", ops)}
    for operation in Operation:
        assert set(shown[operation.value].split(", ")) == set(list_algorithm_names(operation))


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)(.*?)\)", README):
        assert (ROOT / target.partition("#")[0]).exists(), target
