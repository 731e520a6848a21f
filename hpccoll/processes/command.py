"""Runs commands in separate processes, with a time limit, and returns their exit status and output.

Code that may crash or hang (a driver, an MPI library, a command of the site) runs in a separate process.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from hpccoll.processes import launcher

MAX_OUTPUT_BYTES = 200_000
_KILL_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The outcome and output of a command that has ended or was killed."""

    command: str  # the command as a person would type it
    succeeded: bool  # whether the command ended with exit status 0
    exists: bool  # whether the program was found
    outcome: str  # a clause such as `crashed by SIGSEGV`
    stdout: str = ""  # the start of the command's output, up to MAX_OUTPUT_BYTES
    stderr: str = ""

    @property
    def evidence(self) -> str:
        """A string with the command and its outcome; if the command failed, also the last line that it printed."""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        last_line = f": {lines[-1].strip()[:300]}" if lines and not self.succeeded else ""
        return f"`{self.command}` {self.outcome}{last_line}"

    def parse_json(self) -> dict[str, Any] | None:
        """Return the JSON object in the last line of stdout; None if the line holds none or the command failed."""
        lines = self.stdout.strip().splitlines()
        try:
            value = json.loads(lines[-1]) if self.succeeded and lines else None
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


def run_command(
    words: Sequence[str], limit_s: float, environ: Mapping[str, str] | None = None, shown: str | None = None
) -> CommandResult:
    """Run a command, wait for it and return its result. After `limit_s`, kill the command and its children.

    Args:
        words: the program and its arguments.
        limit_s: seconds after which the command is killed.
        shown: the command as a string for the result; if None, `words` are joined.
        environ: environment of the command. The default is this process's environment without the MPI launcher's
            variables (such as PMI_RANK), so that a command that starts MPI is a separate job.
    """
    command = shown or shlex.join(words)
    environ = launcher.without_launcher(os.environ) if environ is None else environ
    # Output goes to files, since a process that is stuck in a driver cannot be killed and would keep a pipe open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                list(words), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environ, start_new_session=True
            )
        except FileNotFoundError:
            return CommandResult(command, False, False, "was not found")
        except OSError as error:
            return CommandResult(command, False, True, f"could not be started ({error.strerror})")
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _kill_session(process)
        texts = [_read_start(stream) for stream in (out, err)]
    return CommandResult(command, status == 0, True, _format_outcome(status, limit_s), *texts)


def run_python(
    arguments: Sequence[str], limit_s: float, environ: Mapping[str, str] | None = None, shown: str | None = None
) -> CommandResult:
    """Run this Python interpreter with `arguments`, such as `-m MODULE`, by `run_command`, and return the result."""
    return run_command([sys.executable, *arguments], limit_s, environ, shown or shlex.join(["python", *arguments]))


@contextmanager
def standalone_mpi_environment() -> Iterator[dict[str, str]]:
    """Context manager that yields the environment for a command that starts MPI as a separate job.

    Open MPI leaves its shared-memory files behind when it is killed or started without mpirun. The environment moves
    Open MPI's files from /dev/shm to a temporary directory, which is removed on exit.
    """
    with tempfile.TemporaryDirectory(prefix="hpccoll-", ignore_cleanup_errors=True) as directory:
        names = ("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_btl_vader_backing_directory")  # Open MPI 5, Open MPI 4
        yield launcher.without_launcher(os.environ) | dict.fromkeys(names, directory)


def _format_outcome(status: int | None, limit_s: float) -> str:
    """Return a clause that describes an exit status, such as `crashed by SIGSEGV`; status None means a timeout."""
    if status is None:
        return f"gave no answer within {limit_s:g} s and was killed"
    if status < 0:
        return f"crashed by {signal.Signals(-status).name}"
    return "worked" if status == 0 else f"failed with exit status {status}"


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a command and the children in its session; wait up to _KILL_GRACE_S for the command to end."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_GRACE_S)


def _read_start(stream: Any) -> str:
    """Return the first MAX_OUTPUT_BYTES bytes of a file as text."""
    stream.seek(0)
    return str(stream.read(MAX_OUTPUT_BYTES).decode(errors="replace"))
