"""Runs what may crash or hang in a process of its own, with a time limit, and says how it ended."""

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

from hpccoll.runtime import launcher

MOST_CHARACTERS = 200_000
_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended.

    `here` is false where there is no such command, `how` is a clause such as `crashed by SIGSEGV`.
    """

    command: str
    worked: bool
    here: bool
    how: str
    output: str = ""
    errors: str = ""

    @property
    def evidence(self) -> str:
        """The command and how it ended, with its last words where it failed."""
        lines = (self.errors.strip() or self.output.strip()).splitlines()
        said = f": {lines[-1].strip()[:300]}" if lines and not self.worked else ""
        return f"`{self.command}` {self.how}{said}"

    def data(self) -> dict[str, Any] | None:
        """Return the JSON object that was printed last; None where it failed or printed none."""
        lines = self.output.strip().splitlines()
        try:
            found = json.loads(lines[-1]) if self.worked and lines else None
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


def run_command(
    words: Sequence[str], limit_s: float, environ: Mapping[str, str] | None = None, shown: str | None = None
) -> CommandResult:
    """Run a command and return how it ended; it never raises and never takes much longer than `limit_s`.

    Args:
        words: the command.
        limit_s: seconds after which it and its children are killed.
        environ: its environment; default ours without what a launcher told this process of its place, so that a
            command that starts MPI is a job of its own.
        shown: the command as people would type it; default the words themselves.
    """
    command = shown or shlex.join(words)
    environ = launcher.without_launcher(os.environ) if environ is None else environ
    # Files and not pipes: a process that cannot be killed (stuck in a driver) would keep a pipe open, and us with it.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                list(words), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environ, start_new_session=True
            )
        except FileNotFoundError:
            return CommandResult(command, False, False, "is not here")
        except OSError as error:
            return CommandResult(command, False, True, f"could not be started ({error.strerror})")
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end(process)
        texts = [_read(stream) for stream in (out, err)]
    return CommandResult(command, status == 0, True, _how(status, limit_s), *texts)


def run_python(
    arguments: Sequence[str], limit_s: float, environ: Mapping[str, str] | None = None, shown: str | None = None
) -> CommandResult:
    """Run this Python with `arguments` (such as `-m`, a module) as `run_command` does."""
    return run_command([sys.executable, *arguments], limit_s, environ, shown or shlex.join(["python", *arguments]))


@contextmanager
def standalone_mpi_environment() -> Iterator[dict[str, str]]:
    """Give the environment for a process that starts MPI as a job of its own, and leaves nothing behind.

    Open MPI puts its shared memory into /dev/shm and leaves it there when it is started without mpirun, or killed; for
    our probes, it goes into a directory that is removed after them.
    """
    with tempfile.TemporaryDirectory(prefix="hpccoll-", ignore_cleanup_errors=True) as directory:
        names = ("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_btl_vader_backing_directory")  # of Open MPI 5, and 4
        yield launcher.without_launcher(os.environ) | dict.fromkeys(names, directory)


def _how(status: int | None, limit_s: float) -> str:
    if status is None:
        return f"gave no answer within {limit_s:g} s and was ended"
    if status < 0:
        return f"crashed by {signal.Signals(-status).name}"
    return "worked" if status == 0 else f"failed with exit status {status}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the command and its children: the session that it was started in."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)


def _read(stream: Any) -> str:
    stream.seek(0)
    return str(stream.read(MOST_CHARACTERS).decode(errors="replace"))
