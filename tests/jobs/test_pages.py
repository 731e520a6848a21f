"""The examples of the documentation's pages run: commands in their order, and Python on MPI ranks.

In a page, `sh` blocks are commands and `python` blocks are programs. A program whose first line is `# NAME.py` is a
file that commands start. A `text` block after commands holds lines that the last of them prints. Blocks of another
language, such as `console`, are not run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.launch import BIN, LIMIT_S, environment

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["installation", "tutorial", "coming-from", "timing", "troubleshooting", "flight-recorder", "reference/records"]
PAGES += ["mpi4py", "torch", "schedules", *sorted(f"howto/{path.stem}" for path in (DOCS / "howto").glob("*.md"))]
SLOW_PAGES = ("torch", "tutorial", "howto/compare-results")  # `make test-rest` runs their commands
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
IN_EVERY_NAMESPACE = """
import runpy, sys
for path in sys.argv[1:]:
    runpy.run_path(path, run_name="__main__")
"""


def list_blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((DOCS / f"{page}.md").read_text(encoding="utf-8"))


def find_name(code: str) -> str | None:
    named = re.match(r"# (\w+\.py)\n", code)
    return named[1] if named else None


def run_command(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command line, which may begin with variables, and require the exit status in its comment."""
    command, _, comment = line.partition("#")
    words = shlex.split(command)
    variables = {}
    while re.fullmatch(r"[A-Z0-9_]+=\S*", words[0]):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    env = environment(PATH=f"{BIN}:{os.environ['PATH']}", **variables)
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=env, cwd=folder)
    stated = re.search(r"exit status (\d+)", comment)
    assert done.returncode == (int(stated[1]) if stated else 0), (line, done.stdout, done.stderr)
    return done


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page in SLOW_PAGES else [])
        for page in PAGES
        if any(kind == "sh" for kind, _ in list_blocks(page))
    ],
)
def test_commands_run_in_their_order_and_print_what_is_shown(tmp_path: Path, page: str) -> None:
    printed: list[str] = []
    for kind, text in list_blocks(page):
        if kind == "python" and (name := find_name(text)):
            (tmp_path / name).write_text(text)
        for line in text.splitlines() if kind == "sh" else ():
            if "hpccoll lab" in line and shutil.which("slurmctld") is None:
                printed = []
                continue
            done = run_command(line, tmp_path)
            printed = [*done.stdout.splitlines(), *done.stderr.splitlines()]
        for line in text.splitlines() if kind == "text" and printed else ():
            assert any(real.startswith(line.rstrip(" .")) for real in printed), (line, printed)


@pytest.mark.parametrize("page", [page for page in PAGES if any(kind == "python" for kind, _ in list_blocks(page))])
def test_python_runs(tmp_path: Path, page: str) -> None:
    """A program without a name runs on two ranks; one with a name is started by some command of the page."""
    unnamed = []
    shown = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    (tmp_path / "bench.jsonl").write_text("")
    for number, (kind, code) in enumerate(list_blocks(page)):
        if kind == "python" and (name := find_name(code)):
            assert f"python {name}" in shown
        elif kind == "python":
            unnamed.append(tmp_path / f"block_{number}.py")
            unnamed[-1].write_text(code)
    if unnamed:
        words = [str(BIN / "mpirun"), "-n", "2", sys.executable, "-c", IN_EVERY_NAMESPACE, *map(str, unnamed)]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment(), cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr


def test_every_page_with_examples_is_tested() -> None:
    """The commands of the other pages take long or need a cluster; tests/unit/test_docs.py checks their options."""
    others = {"course", "write-your-own", "parity"}  # test_guides.py, test_parity.py
    others |= {"24576-ranks", "barriers", "lab", "pictures", "report", "strategies", "training", "tuning"}
    others |= {"which-algorithm", "failures", "optimum", "profile"}
    pages = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")}
    with_examples = {page for page in pages if any(kind in ("sh", "python") for kind, _ in list_blocks(page))}
    assert with_examples <= {*PAGES, *others}
