"""The page on parity is correct: its model passes, its faulty step is named, and its fixture works."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.jobs.launch import hpccoll, run_script

pytest.importorskip("torch")

PAGE = (Path(__file__).parents[2] / "docs" / "parity.md").read_text(encoding="utf-8")


def list_blocks(language: str) -> list[str]:
    """Return the code blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the page shows, in the present directory."""
    for block in list_blocks("python"):
        (tmp_path / re.match(r"# (\S+)", block)[1]).write_text(block)  # type: ignore[index]
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_commands_of_the_page_print_what_is_shown(folder: Path) -> None:
    lines = [line for block in list_blocks("sh") for line in block.splitlines()]
    assert len(lines) == 3
    printed = ""
    for line in lines[1:]:  # the test of the fixture runs the model of the first command
        done = hpccoll(2, *shlex.split(line.partition("#")[0])[4:], OMP_NUM_THREADS="1")
        assert done.returncode == ("status 1" in line), done.stdout + done.stderr
        printed += done.stdout
    assert " ".join(list_blocks("text")[0].split()) in " ".join(printed.split())
    records = [json.loads(line) for line in (folder / "parity.jsonl").read_text().splitlines()]
    summaries = [record for record in records if record["kind"] == "parity_summary"]
    assert [(each["mesh"], each["wrong"]) for each in summaries] == [("dp=2", 0), ("tp=2", 0)]
    gradients = [record for record in records if record.get("quantity") == "gradient" and record["mesh"] == "tp=2"]
    assert [each["name"] for each in gradients] == ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.mark.slow
def test_the_fixture_of_the_page_works(folder: Path) -> None:
    done = run_script(["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_model.py"], 2, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("1 passed") == 2


@pytest.mark.slow
def test_right_steps_of_random_models_are_not_called_wrong() -> None:
    done = run_script(["-m", "tests.mpi.parity_clean", "3"], 2, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right, largest error") == 3
