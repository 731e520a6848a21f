"""The job steps that a lab ends because of lines in the logs of its nodes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpccoll.lab.lost_messages import LostMessageWatch, describe_lost_message
from hpccoll.lab.state_dir import LabPaths

LOST = "[2026-01-01T00:00:00.000] [{step}] error: mpi/pmi2: {message}\n"
CUT = "value not properly terminated in client request"


@pytest.fixture
def watched(tmp_path):
    """A watch on a lab of two nodes, its logs, and the commands that the lab was asked for."""
    (tmp_path / "log").mkdir()
    commands = tmp_path / "commands"
    paths = LabPaths(tmp_path, "jane")
    logs = [paths.log("node1"), paths.log("node2")]
    logs[0].write_text(LOST.format(step="3.0", message=CUT))  # before the watch began
    lab: Any = SimpleNamespace(
        client=SimpleNamespace(paths=paths),
        spec=SimpleNamespace(names=("node1", "node2")),
        wrap_command=lambda argv: ["sh", "-c", f"echo {' '.join(argv)} >>{commands}"],
        build_environment=dict,
    )
    commands.touch()
    return LostMessageWatch(lab), logs, commands


def append(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def test_a_step_that_lost_a_message_is_ended_once(watched):
    watch, (first, second), commands = watched
    assert watch.end_broken_steps() == []
    append(first, LOST.format(step="7.0", message=CUT) + LOST.format(step="8.1", message="invalid client request"))
    append(second, LOST.format(step="7.0", message=CUT))
    assert watch.end_broken_steps() == ["7.0", "8.1"]
    append(second, LOST.format(step="7.0", message="invalid client request"))
    assert watch.end_broken_steps() == []
    assert commands.read_text().splitlines() == [f"scancel --quiet --signal=KILL {step}" for step in ("7.0", "8.1")]


def test_other_lines_and_incomplete_lines_end_nothing(watched):
    watch, (first, _), commands = watched
    line = LOST.format(step="9.0", message=CUT)
    append(first, "[x] [9.0] error: mpi/pmi2: failed to send temp kvs\n[x] [9.batch] done\n" + line[:-20])
    assert watch.end_broken_steps() == []
    append(first, line[-20:])
    assert watch.end_broken_steps() == ["9.0"]
    assert commands.read_text()


def test_the_message_names_the_step_and_a_launcher():
    assert "step 9.0" in describe_lost_message("9.0")
    assert "mpirun" in describe_lost_message("9.0")
