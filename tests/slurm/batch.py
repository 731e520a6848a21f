"""Submits the scripts of slurm/ to a lab as a user would, and reads what became of them."""

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
UNDER_WAY = ("PENDING", "RUNNING", "COMPLETING", "REQUEUED")


@dataclass(frozen=True)
class Job:
    """A job that was submitted, in the folder that sbatch was called in."""

    lab: Lab
    number: str
    folder: Path

    def facts(self) -> dict[str, str]:
        """Return what `scontrol show job` says; of an array, of its last task."""
        told = self.lab.run(["scontrol", "show", "job", "-o", self.number]).stdout.splitlines()
        return dict(re.findall(r"(\w+)=(\S*)", told[-1]))

    def until(self, true: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Wait until something is the case; what the job printed is in the message where it never is."""
        end = time.monotonic() + limit_s
        while not true():
            assert time.monotonic() < end, f"{self.facts()}\n{self.output}\n{self.ending}"
            time.sleep(POLL_S)

    def ended(self, limit_s: float = LIMIT_S) -> tuple[str, str]:
        """Wait for the end; return state and exit code as SLURM tells them."""
        self.until(lambda: self.facts()["JobState"] not in UNDER_WAY, limit_s)
        facts = self.facts()
        return facts["JobState"], facts["ExitCode"]

    @property
    def output(self) -> str:
        """What the job printed."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.out")))

    @property
    def results(self) -> Path:
        """The directory of results."""
        (found,) = (self.folder / "results").glob(f"*-{self.number}")
        return found

    @property
    def ending(self) -> str:
        """The log of what happened to the job."""
        return "".join(path.read_text() for path in (self.folder / "results").glob("*/ending.txt"))

    def records(self, name: str, kind: str = "collective") -> list[dict[str, Any]]:
        """Return the records of a kind in a result file; none where it is not there yet, whole lines only."""
        files = list((self.folder / "results").glob(f"*-{self.number}/{name}"))
        if not files:
            return []
        lines = files[0].read_text().split("\n")[:-1]
        return [record for record in map(json.loads, lines) if record["kind"] == kind]


def environment(**more: str) -> dict[str, str]:
    """Return what the jobs of tests are told: this Python, this source, and no table of this machine."""
    return {"HPCCOLL_VENV": sys.prefix, "PYTHONPATH": str(ROOT), "HPCCOLL_TUNING": "off"} | more


def submit(
    lab: Lab, folder: Path, script: str, *arguments: str, options: tuple[str, ...] = (), env: Mapping[str, str] = {}
) -> Job:
    """Submit a script as it is, with sbatch's `options` before it and its own `arguments` behind."""
    words = ["sbatch", "--parsable", *options, str(SCRIPTS / script), *arguments]
    done = lab.run(words, cwd=folder, env=environment(**env))
    assert done.returncode == 0, done.stderr
    return Job(lab, done.stdout.strip(), folder)
