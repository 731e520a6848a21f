"""Runs `hpccoll train --survive` under Open MPI, kills ranks, and compares the losses with those of restarted runs.

    .venv/bin/python -m tests.jobs.surviving_training --jobs 10 --seed 1 [WORDS OF hpccoll train...]

Each job of the campaign has 4 ranks and 200 steps in float64. Three ranks are killed by SIGKILL at random instants. The
losses of all steps must be those of a run that is restarted from a checkpoint on the smaller mesh at the same steps.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hpccoll.runtime.job import get_mpi_library
from tests.jobs.launch import BIN, LIMIT_S, environment

# What torch imports; links to these packages let the environment of Open MPI, which has no torch, use torch.
TORCH_PACKAGES = "torch torchgen functorch sympy mpmath networkx filelock fsspec jinja2 markupsafe typing_extensions"
WORDS = ("--dtype", "float64")


@dataclass(frozen=True, slots=True)
class SurvivalLauncher:
    """The programs of an environment with Open MPI, and the folder with torch for it."""

    folder: Path
    torch: Path | None

    @classmethod
    def find(cls, scratch: Path) -> SurvivalLauncher | None:
        """Return the launcher of this environment or of HPCCOLL_OTHER_MPIRUN; None without Open MPI or torch."""
        if importlib.util.find_spec("torch") is None:
            return None
        if get_mpi_library().startswith("Open MPI"):
            return cls(BIN, None)
        other = os.environ.get("HPCCOLL_OTHER_MPIRUN")
        if other is None:
            return None
        links = scratch / "torch-links"
        links.mkdir()
        for name in TORCH_PACKAGES.split():
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.origin is not None:
                source = Path(spec.origin)
                source = source.parent if source.name == "__init__.py" else source
                (links / source.name).symlink_to(source)
        return cls(Path(other).parent, links)

    def make_command(self, ranks: int, *words: str) -> list[str]:
        """Return the command of a training job."""
        mpirun, program = str(self.folder / "mpirun"), str(self.folder / "hpccoll")
        return [mpirun, "--with-ft", "ulfm", "-n", str(ranks), program, "train", *words]

    def make_environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a training job."""
        return environment(**more) | ({} if self.torch is None else {"PYTHONPATH": str(self.torch)})

    def run(self, ranks: int, *words: str, **more: str) -> str:
        """Run a training job, which must end with status 0, and return its standard error."""
        return self.execute(self.make_command(ranks, *words), **more).stderr

    def execute(self, command: list[str], **more: str) -> subprocess.CompletedProcess[str]:
        """Run the command of a job, which must end with status 0, in the environment of training jobs."""
        done = subprocess.run(
            command,
            env=self.make_environment(**more),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done


def read_records(file: Path, kind: str) -> list[dict[str, Any]]:
    """Return the records of a kind from the whole lines of a file."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def read_losses(file: Path) -> dict[int, tuple[str, float, float]]:
    """Return mesh, loss and norm of the gradient of each step; of a step that is there twice, those of the last one."""
    return {each["step"]: (each["strategy"], each["loss"], each["grad_norm"]) for each in read_records(file, "train")}


def run_restarted(launcher: SurvivalLauncher, survived: Path, scratch: Path, words: Sequence[str], steps: int) -> Path:
    """Run the reference of a run with deaths: each mesh starts from the checkpoint of the one before.

    Args:
        survived: the records of the run with deaths.
        words: the words of both runs, the strategy first.
    """
    out, directory = scratch / "restarted.jsonl", scratch / "checkpoint"
    recoveries = read_records(survived, "train_recovery")
    ranks = [read_records(survived, "train")[0]["ranks"], *(each["ranks"] for each in recoveries)]
    ends = [*(each["steps"] for each in recoveries), steps]
    for number, end in zip(ranks, ends, strict=True):
        last = ["--steps", str(end), "--checkpoint", str(directory), "--json", str(out)]
        launcher.run(number, *words, *last)
    return out


def kill_randomly(launcher: SurvivalLauncher, out: Path, words: Sequence[str], seed: int) -> list[float]:
    """Run a job on 4 ranks, and kill three of them at random; return the seconds from each kill to the next record.

    The first kill comes after the first step, so that the ranks have started.
    """
    draw, seconds = random.Random(seed), list[float]()
    with tempfile.TemporaryFile("w+") as errors:
        job = subprocess.Popen(
            launcher.make_command(4, *words, "--survive", "--json", str(out)),
            env=launcher.make_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        try:
            _wait_for_records(job, out, 1)
            living = {int(p.environ()["OMPI_COMM_WORLD_RANK"]): p for p in _list_ranks(job)}
            for _ in range(3):
                time.sleep(draw.uniform(0.05, 0.5))
                seconds.append(_kill(job, out, living.pop(draw.choice(sorted(living)))))
            status = job.wait(LIMIT_S)
        finally:
            job.kill()
        errors.seek(0)
        assert status == 0, errors.read()
    return seconds


def _kill(job: subprocess.Popen[bytes], out: Path, process: psutil.Process) -> float:
    """Kill a rank; return the seconds until the record of a step on the smaller mesh is written."""
    recoveries = len(read_records(out, "train_recovery"))
    began = time.monotonic()
    process.send_signal(signal.SIGKILL)
    while True:
        lines = [json.loads(line)["kind"] for line in out.read_text().split("\n")[:-1]]
        if lines.count("train_recovery") > recoveries and lines[-1] == "train":
            return time.monotonic() - began
        assert job.poll() is None
        assert time.monotonic() - began < LIMIT_S
        time.sleep(0.005)


def _wait_for_records(job: subprocess.Popen[bytes], out: Path, count: int) -> None:
    """Wait until a job has written so many records of steps."""
    end = time.monotonic() + LIMIT_S
    while len(read_records(out, "train")) < count:
        assert job.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)


def _list_ranks(job: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the processes of a job's ranks."""
    children = psutil.Process(job.pid).children(recursive=True)
    return [process for process in children if "OMPI_COMM_WORLD_RANK" in process.environ()]


def main() -> None:
    """Run a campaign from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    given, words = parser.parse_known_args()
    seconds: list[float] = []
    for seed in range(given.seed, given.seed + given.jobs):
        with tempfile.TemporaryDirectory() as name:
            scratch, own = Path(name), [*(words or ["dp"]), *WORDS]
            launcher = SurvivalLauncher.find(scratch)
            if launcher is None:
                sys.exit("install torch, and set HPCCOLL_OTHER_MPIRUN to the mpirun of an environment with Open MPI")
            seconds += kill_randomly(launcher, scratch / "survived.jsonl", own, seed)
            restarted = run_restarted(launcher, scratch / "survived.jsonl", scratch, own, 200)
            survived = read_losses(scratch / "survived.jsonl")
            assert survived == read_losses(restarted), f"seed {seed}: other losses than after restarts"
            assert sorted(survived) == list(range(1, 201)), f"seed {seed}: steps are missing"
            middle = statistics.median(seconds)
            print(
                f"{len(seconds)} kills: next step after a median of {middle:.3f} s, at most {max(seconds):.3f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
