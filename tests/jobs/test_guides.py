"""The guides for learners are correct: every command runs, prints the shown lines, and every Python program works."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpccoll.cli.main import COMMANDS
from tests.depth import keep, keep_every
from tests.jobs.launch import BIN, LIMIT_S, environment

ROOT = Path(__file__).parents[2]
COURSE, OWN = ((ROOT / "docs" / name).read_text() for name in ("course.md", "write-your-own.md"))
PATH = f"{BIN}:{os.environ['PATH']}"


def list_blocks(text: str, language: str) -> list[str]:
    """Return the code blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def list_commands(text: str) -> list[str]:
    """Return the commands in the `sh` blocks of a page."""
    return [line for block in list_blocks(text, "sh") for line in block.splitlines() if line]


def shown_after(text: str, command: str) -> list[str]:
    """The lines of the text block that follows a command, if one does before the next."""
    after = text.split(f"{command}\n", 1)[1]
    match = re.match(r"```\n\n```text\n(.*?)```", after, re.DOTALL)
    return match[1].splitlines() if match else []


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of a page in a folder."""
    words = command.partition("#")[0].split()
    return subprocess.run(
        words, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment(PATH=PATH), cwd=folder
    )


def parse_status(command: str) -> int:
    """Return the exit status that a command's comment states, or 0."""
    stated = re.search(r"# exit status (\d)", command)
    return int(stated[1]) if stated else 0


def is_unlike_other_tests(command: str) -> bool:
    """Whether a command of the course shows its output, or is not a plain demo, all of which test_demo.py runs."""
    return " demo " not in command or bool(shown_after(COURSE, command))


@pytest.mark.parametrize("command", keep(list_commands(COURSE), is_unlike_other_tests))
def test_each_command_of_the_course_runs_and_prints_what_is_shown(tmp_path: Path, command: str) -> None:
    done = run(command, tmp_path)
    assert done.returncode == parse_status(command), done.stderr
    for line in shown_after(COURSE, command):
        assert any(printed.startswith(line) for printed in done.stdout.splitlines()), line


def test_the_course_shows_outputs_and_every_example() -> None:
    from hpccoll.demo.examples import EXAMPLES

    assert all(block.strip() for block in list_blocks(COURSE, "text"))
    assert sum(bool(shown_after(COURSE, command)) for command in list_commands(COURSE)) >= 5
    for example in EXAMPLES:
        assert any(f"-n {example.ranks} hpccoll demo {example.name}" in command for command in list_commands(COURSE))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="timing is shown with torch")
def test_the_timing_code_of_the_course_runs(tmp_path: Path) -> None:
    code = "\n".join(list_blocks(COURSE, "python"))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "aten::mm" in done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the file that the guide shows."""
    (tmp_path / "my_file.py").write_text(list_blocks(OWN, "python")[0])
    return tmp_path


def test_the_file_is_about_twenty_lines() -> None:
    assert len([line for line in list_blocks(OWN, "python")[0].splitlines() if line.strip()]) <= 20


def test_the_cost_of_the_guide_is_proven_and_another_cost_is_refuted(folder: Path) -> None:
    file = folder / "my_file.py"
    head, end = '"my_all_reduce"', "@algorithm"
    text = file.read_text().replace(head, f"{head}, cost").replace(end, list_blocks(OWN, "python")[2] + f"\n\n{end}")
    command = "hpccoll verify my_file.py:my_all_reduce --ranks 1:6"
    file.write_text(text)
    assert run(command, folder).returncode == 0
    file.write_text(text.replace("Cost(steps=2 * (n - 1)", "Cost(steps=2 * n"))
    done = run(command, folder)
    assert done.returncode == 1
    assert "steps" in done.stderr


@pytest.mark.slow
def test_every_command_of_the_guide_runs_in_its_order(folder: Path) -> None:
    for command in list_commands(OWN):
        if command.split("hpccoll ")[1].split()[0] not in COMMANDS:
            continue
        done = run(command, folder)
        assert done.returncode == 0, (command, done.stderr)
        if " bench " in command:
            rows = [line for line in done.stdout.splitlines() if " my_all_reduce " in line]
            assert rows
        for file in re.findall(r"-o (\S+)", command):
            assert (folder / file).stat().st_size > 0


@pytest.mark.parametrize("name", ["verify", "draw", "export", "bench", "demo"])
def test_the_guide_shows_each_use(name: str) -> None:
    assert name in COMMANDS
    assert any(f"hpccoll {name} " in command for command in list_commands(OWN))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "told"),
    keep_every(
        3,
        [
            ("(rank - 1) % n", "(rank + 1) % n", "round 0: rank 0 (and 2 more) sends to 1, which receives from 2"),
            (", Op.OWN_FIRST", "", "in the end rank 0 chunk 0 is wrong: the contributions of ranks 0, 2 are missing"),
            ("done = t", "done = later", "NameError: name 'later' is not defined"),
        ],
    ),
)
def test_what_the_guide_breaks_is_refuted_everywhere(folder: Path, old: str, new: str, told: str) -> None:
    file = folder / "my_file.py"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    tries = [
        "hpccoll verify my_file.py:my_all_reduce --ranks 3",
        "hpccoll export my_file.py:my_all_reduce --ranks 3 -o x.json",
        "hpccoll draw my_file.py:my_all_reduce --ranks 3 -o x.txt",
        "mpirun -n 3 hpccoll demo my_file.py:my_all_reduce",
        "mpirun -n 3 hpccoll bench --algorithm my_file.py:my_all_reduce -b 8 -e 8 -n 1",
    ]
    for command in tries:
        done = run(command, folder)
        assert done.returncode == 1, (command, done.stdout, done.stderr)
        assert told in done.stderr, (command, done.stderr)
        assert "Traceback" not in done.stderr
        if "NameError" in told:
            assert "my_file.py, line" in done.stderr


def test_the_algorithm_without_a_file_runs(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    check = "comm = hpccoll.Communicator()\nrows = comm.all_gather(np.full(3, comm.rank), algorithm=mine)\n"
    right = "assert (rows == np.arange(comm.size)[:, None]).all(), rows\n"
    script.write_text(list_blocks(OWN, "python")[1] + "import hpccoll, numpy as np\n" + check + right)
    words = [str(BIN / "mpirun"), "-n", "3", sys.executable, str(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", [COURSE, OWN], ids=["course", "write-your-own"])
def test_links_lead_somewhere(text: str) -> None:
    for target in re.findall(r"\]\((?!http)(.*?)\)", text):
        assert (ROOT / "docs" / target).exists(), target
