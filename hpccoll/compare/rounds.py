"""Runs two benchmark commands in turns, each run in a process of its own that writes its own result file.

A machine's speed drifts over minutes, and runs that follow each other differ less than runs on different days. The
order of the two runs of a round is drawn at random, so that neither side profits from being first. Round K writes
`a/K.jsonl` and `b/K.jsonl` below the output directory. While a run is in progress, its result file has the suffix
`.part`, and the command's output goes to `K.log`. If a run is cut short, its result file keeps the suffix `.part` and
is not compared.
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpccoll.errors import CommunicationError, HpccollError, UnavailableError, UsageError
from hpccoll.measure.results.output_file import explain_write_errors
from hpccoll.processes import launcher

PLACEHOLDER = "{json}"  # in a command, stands for the result file that it writes
SIDES = ("a", "b")
WRONG = 1  # exit status of a benchmark with wrong results; its other rows can be compared
_ERRORS: dict[int, type[HpccollError]] = {2: UsageError, 3: UnavailableError, 4: CommunicationError}
_GRACE_S = 5.0  # seconds from the SIGTERM that ends a run to the SIGKILL


@dataclass(frozen=True, slots=True)
class BenchmarkCommand:
    """The benchmark command (`text`) of one side of `hpccoll compare --rounds`, and the option that states it."""

    text: str
    option: str  # the command-line option that named the command, for messages

    def make_words(self, file: Path) -> list[str]:
        """Return the program and its arguments for a run that writes its results to `file`."""
        words = self._split()
        if any(PLACEHOLDER in word for word in words):
            return [word.replace(PLACEHOLDER, str(file)) for word in words]
        return [*words, "--json", str(file), "--overwrite"]

    def require_program(self) -> None:
        """Raise UsageError if the command cannot be parsed, UnavailableError if its program is not found."""
        words = self._split()
        if not words:
            raise UsageError(f"{self.option}: the command is empty; write one such as 'mpirun -n 2 hpccoll bench'")
        if shutil.which(words[0]) is None:
            raise UnavailableError(
                f"{self.option} {self.text!r}: the program {words[0]!r} was not found; name its path, or activate its "
                "environment"
            )

    def _split(self) -> list[str]:
        """Return the words of the command; raise UsageError for an unclosed quotation mark."""
        try:
            return shlex.split(self.text)
        except ValueError as error:
            raise UsageError(f"{self.option} {self.text!r}: {error}; close all quotation marks") from error


@dataclass(frozen=True, slots=True)
class RoundOptions:
    """The options of `hpccoll compare --rounds`: two commands, the number of rounds, and the directory for results."""

    commands: tuple[BenchmarkCommand, BenchmarkCommand]  # of A and B
    rounds: int
    directory: Path  # directory for result files and the programs' output
    limit_s: float  # seconds that a run may take
    seed: int  # of the random order of A and B in each round


def run_rounds(options: RoundOptions) -> Iterator[str]:
    """Run both commands in turns, with results in `options.directory`; yield, after each run, its name (`round 1 A`).

    Raises:
        UsageError: a command or the directory cannot be used, or a command ended with exit status 2.
        UnavailableError: a program was not found, or a command ended with exit status 3.
        CommunicationError: a command took too long, was killed, or ended with exit status 4.
        HpccollError: a command ended with another exit status, or wrote no result.
    """
    for command in options.commands:
        command.require_program()
    _prepare_directory(options.directory)
    draw = random.Random(options.seed)  # noqa: S311 - the order of runs, not a secret
    for number in range(1, options.rounds + 1):
        for side in draw.sample(range(2), 2):
            _run_once(options, side, number)
            yield f"round {number} {SIDES[side].upper()}"


def list_finished_pairs(directory: Path) -> tuple[list[Path], list[Path]]:
    """Return the result files of A and those of B of all rounds that both sides have finished, in order of rounds."""
    names = [{file.name for file in (directory / side).glob("*.jsonl")} for side in SIDES]
    common = sorted(names[0] & names[1])
    return [directory / SIDES[0] / name for name in common], [directory / SIDES[1] / name for name in common]


def _prepare_directory(directory: Path) -> None:
    """Create the directory for the files of both sides; raise UsageError if it contains results already."""
    if any(list_finished_pairs(directory)):
        raise UsageError(
            f"--output {directory}: contains the results of earlier rounds; name another directory, or compare these "
            f"results by `hpccoll compare {directory}/a {directory}/b --paired`"
        )
    with explain_write_errors(directory, "--output"):
        for side in SIDES:
            (directory / side).mkdir(parents=True, exist_ok=True)


def _run_once(options: RoundOptions, side: int, number: int) -> None:
    """Run the command of one side in round `number`, until it has written its result file; raise an error if it fails.

    `side` is 0 for A and 1 for B.
    """
    command = options.commands[side]
    final = options.directory / SIDES[side] / f"{number:03}.jsonl"
    part, log = final.with_suffix(".part"), final.with_suffix(".log")
    status = _wait_for(command.make_words(part), log, options.limit_s)
    if status not in (0, WRONG) or not part.is_file():
        raise _explain_failure(command, number, status, log)
    part.rename(final)


def _wait_for(words: list[str], log: Path, limit_s: float) -> int | None:
    """Run a command with its output in `log` and return its exit status; None if killed after `limit_s` seconds."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=launcher.without_launcher(os.environ),
            start_new_session=True,
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end_session(process)


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """End a program, if it still runs, and kill all processes of its session.

    The program gets SIGTERM first, which MPI launchers pass on to ranks.
    """
    if process.poll() is None:
        with suppress(ProcessLookupError):
            process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _explain_failure(command: BenchmarkCommand, number: int, status: int | None, log: Path) -> HpccollError:
    """Return the error for a run that failed or wrote no result file.

    Args:
        status: the exit status, which determines the class of the error; None if the run took too long.
        log: the file with the command's output.
    """
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    said = f": {lines[-1].strip()[:300]}" if lines else ""
    if status is None:
        outcome, remedy = "took too long and was ended", f"raise --limit, or read its output in {log}"
    elif status in (0, WRONG):
        outcome = f"wrote no result file (exit status {status})"
        remedy = f"its output is in {log}; it must accept --json FILE, or contain {PLACEHOLDER} where the file belongs"
    else:
        outcome = f"failed with exit status {status}" if status > 0 else f"was killed by signal {-status}"
        remedy = f"its output is in {log}"
    kind = CommunicationError if status is None or status < 0 else _ERRORS.get(status, HpccollError)
    return kind(f"{command.option} {command.text!r}: round {number} {outcome}{said}; {remedy}")
