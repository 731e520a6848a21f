"""`Lab`: a throw-away SLURM cluster from Python.

    with Lab(ClusterSpec(nodes=4, bytes_per_s=50e6)) as lab:
        print(lab.run(["srun", "-N4", "hostname"]).stdout)

All of it, processes, networks and folder, is gone after the `with`, however its process ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self, TypeAlias

from hpccoll.errors import CommunicationError, UsageError
from hpccoll.lab import client as contact
from hpccoll.lab import isolation, launch
from hpccoll.lab import requirements as packages
from hpccoll.lab.client import LabClient
from hpccoll.lab.cluster_spec import ClusterSpec, parse_rate
from hpccoll.lab.state_dir import clear

Stream: TypeAlias = IO[Any] | int | None
FREE = "max"
GRACE_S = 2.0
# Nodes are emulated: their ranks share this machine's cores, whatever SLURM was told of them.
_MAPPING = "PRTE_MCA_rmaps_default_mapping_policy"
_MPI = {
    _MAPPING: "slot:oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
_MPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_FOREIGN = ("SLURM_", "PMI_", "PMIX_", "OMPI_COMM_WORLD_")  # of a job around this process: not of the lab


def default_dir() -> Path:
    """Return the folder of the lab that `hpccoll lab up` starts without --dir."""
    return Path(tempfile.gettempdir()) / f"hpccoll-lab-{os.geteuid()}"


class Lab:
    """A lab of this process: it is built by `with`, and ends with it or with the process.

    Args:
        shape: nodes, CPUs, links and what nodes share; four nodes of two CPUs without limits by default.
        folder: where it keeps its state, and its `shared` folder with results, which stay; by default a temporary one,
            of which nothing stays.
        flat: run daemons side by side, without namespaces.

    Raises:
        UnavailableError: SLURM is not installed, or links were asked for where there are no namespaces.
        CommunicationError: the nodes did not come up.
    """

    def __init__(self, shape: ClusterSpec | None = None, *, folder: Path | None = None, flat: bool = False) -> None:
        self.shape, self.flat = shape or ClusterSpec(), flat
        self._folder = folder
        self._contact: LabClient | None = None
        self._lifeline = -1
        self._started: list[subprocess.Popen[str]] = []

    @classmethod
    def attach(cls, folder: Path) -> Self:
        """Return the lab that runs in `folder`, which this process does not own.

        Raises:
            UnavailableError: there is none.
        """
        found = contact.running(folder)
        lab = cls(found.shape, folder=folder)
        lab._contact = found
        return lab

    def __enter__(self) -> Self:
        if self._contact is not None:  # of another process: see `attach`
            return self
        packages.require()
        folder = self._folder or Path(tempfile.mkdtemp(prefix="hpccoll-lab-"))
        read, self._lifeline = os.pipe()
        try:
            way, why = isolation.find(self.flat)
            self._contact = launch.launch(self.shape, folder, way, why, read, keep=self._folder is not None)
        except BaseException:
            os.close(self._lifeline)
            self._lifeline = -1
            if self._folder is None:
                clear(folder, keep=False)
            raise
        finally:
            os.close(read)
        return self

    def __exit__(self, *_: object) -> None:
        if self._lifeline >= 0:
            self.close()

    def close(self) -> None:
        """Take the lab down, and what was started on it by `start`."""
        for process in self._started:
            if process.poll() is None:  # without namespaces nothing else ends it
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        self._started.clear()
        if self._contact is not None:
            self._contact.end()
            self._contact = None
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    @property
    def contact(self) -> LabClient:
        """The way to the keeper.

        Raises:
            UsageError: the lab is not up.
        """
        if self._contact is None:
            raise UsageError("this lab is not up; use it inside `with Lab() as lab:`")
        return self._contact

    @property
    def dir(self) -> Path:
        """Its folder, seen by all nodes, with the daemons' logs in `log`."""
        return self.contact.place.dir

    @property
    def shared(self) -> Path:
        """A folder for what jobs read and write, seen by all nodes."""
        return self.contact.place.shared

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return this process's environment made fit for the lab, with `more` on top.

        That is: slurm.conf, no word of another job around this process, and what Open MPI needs to run as root and
        with more ranks than cores, unless it says otherwise.
        """
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
        mpi = _MPI | (_MPI_AS_ROOT if os.geteuid() == 0 else {})
        own = {"PATH": packages.extend_path(), "SLURM_CONF": str(self.contact.place.conf)}
        found = mpi | kept | own | dict(more or {})
        if found[_MAPPING] == ":oversubscribe":  # right on one host; over several, Open MPI then fills the first alone
            found[_MAPPING] = _MPI[_MAPPING]
        return found

    def command(self, argv: Sequence[str], cwd: Path | None = None) -> list[str]:
        """Return the command that runs `argv` on the control node, and dies with whoever starts it."""
        entering = self.contact.isolation.entering(self.contact.pid)
        if not entering:
            return ["setpriv", "--pdeathsig", "KILL", *argv]
        # Entering a mount namespace forgets the working directory, so it is entered again; a signal to whoever waits
        # outside would not reach the command, so it dies with it.
        return [*entering, "setpriv", "--pdeathsig", "KILL", "env", f"--chdir={cwd or Path.cwd()}", *argv]

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = subprocess.PIPE,
        stderr: Stream = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a command on the control node, in a session of its own, and return at once.

        Args:
            argv: the command.
            env: variables on top of `environment()`.
            cwd: working directory; default this process's.
            stdin: as subprocess.Popen takes it; the same for `stdout` and `stderr`.
        """
        words = self.command(argv, cwd)
        process = subprocess.Popen(
            words,
            env=self.environment(env),
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        self._started = [process, *(other for other in self._started if other.poll() is None)]
        return process

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 120.0,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the control node to its end.

        Raises:
            CommunicationError: it did not end within `timeout_s` and was killed; the message holds what it said.
        """
        process = self.start(argv, env=env, cwd=cwd)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            out, err = end_session(process)
            what = f"`{' '.join(argv)}` did not end within {timeout_s:g} s and was killed"
            raise CommunicationError(f"{what}; it said: {(err or out).strip()[-2000:] or 'nothing'}") from error
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def link(self, node: str, *, rate: str | None = None, up: bool | None = None) -> None:
        """Reshape the link of a node, or of `all`, while it runs.

        Args:
            node: its name.
            rate: bits per second such as `400M`, or `max` for no limit; None leaves it.
            up: plug it in or pull it out; None leaves it.

        Raises:
            UnavailableError: the lab is flat.
        """
        asked: dict[str, Any] = {} if up is None else {"up": up}
        if rate is not None:
            asked["bytes_per_s"] = None if rate == FREE else ClusterSpec(bytes_per_s=parse_rate(rate)).bytes_per_s
        self.contact.ask("link", node=node, **asked)

    def power(self, node: str, *, on: bool) -> None:
        """Switch a node off as a power cut would, or on again; SLURM notices after some seconds."""
        self.contact.ask("power", node=node, on=on)

    def slow(self, node: str, percent: float) -> None:
        """Stop the processes of a node, but for SLURM's, for that percentage of the time; 0 lets it run freely."""
        self.contact.ask("slow", node=node, percent=percent)

    def mend(self) -> None:
        """Make the lab as it was when it came up: jobs ended, all nodes on, idle and at full speed, links reshaped."""
        self.run(["scancel", "--full", "--user", self.contact.place.user], timeout_s=30)
        self.contact.ask("mend")

    def told(self) -> dict[str, Any]:
        """Return what the lab says of itself: `isolation`, `why`, `shape`, and `nodes` with their links."""
        return self.contact.ask("status")


def end_session(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a process of `Lab.start` with all that it started in its session; return what it said."""
    so_far: subprocess.TimeoutExpired | None = None
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            return process.communicate(timeout=GRACE_S)
        except subprocess.TimeoutExpired as error:
            so_far = error
    # Something left the session and holds the pipes: what came through them so far must do.
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    process.wait(GRACE_S)
    return _text(so_far.output if so_far else ""), _text(so_far.stderr if so_far else "")


def _text(said: bytes | str | None) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else said or ""
