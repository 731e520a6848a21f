"""`Lab` starts, controls and ends a throw-away SLURM cluster on this machine.

    with Lab(ClusterSpec(nodes=4, bytes_per_s=50e6)) as lab:
        print(lab.run(["srun", "-N4", "hostname"]).stdout)

The lab's processes, networks and state directory are removed after the `with` block, or if this process is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from hpccoll.errors import CommunicationError, UsageError
from hpccoll.lab import isolation, launch, requirements
from hpccoll.lab.client import LabClient, connect_lab
from hpccoll.lab.cluster_spec import ClusterSpec, parse_rate
from hpccoll.lab.state_dir import clear_state_dir

GRACE_S = 2.0
# All nodes share this machine's cores, so Open MPI must accept more ranks than cores and must not bind ranks to them.
_MAPPING = "PRTE_MCA_rmaps_default_mapping_policy"
_OPEN_MPI = {
    _MAPPING: "slot:oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
_OPEN_MPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# Prefixes of environment variables by which SLURM or MPI describes a job that contains this process.
_OUTER_JOB = ("SLURM_", "PMI_", "PMIX_", "OMPI_COMM_WORLD_")


class Lab:
    """A lab, a SLURM cluster on this machine, that runs during a `with` block, and ends early if this process ends.

    Args:
        spec: nodes, CPUs, links and shared paths; by default four nodes of two CPUs with unlimited links.
        state_dir: directory for the lab's files, of which only those in the subdirectory `shared` outlive the lab. The
            default is a temporary directory that is removed with all its files.
        flat: run all daemons on 127.0.0.1 without Linux namespaces.

    Raises:
        UnavailableError: SLURM is not installed, or a link rate or latency was requested but namespaces do not work.
        CommunicationError: the nodes did not start.
    """

    def __init__(self, spec: ClusterSpec | None = None, *, state_dir: Path | None = None, flat: bool = False) -> None:
        self.spec, self.flat = spec or ClusterSpec(), flat
        self._given_dir = state_dir
        self._client: LabClient | None = None
        self._lifeline = -1  # the write end of a pipe; the lab ends when this end closes
        self._started: list[subprocess.Popen[str]] = []

    @classmethod
    def attach(cls, state_dir: Path) -> Self:
        """Return the lab that already runs in `state_dir` and outlives this process.

        Raises UnavailableError if no lab runs there.
        """
        client = connect_lab(state_dir)
        lab = cls(client.spec, state_dir=state_dir)
        lab._client = client
        return lab

    def __enter__(self) -> Self:
        if self._client is not None:  # attached
            return self
        requirements.require_programs()
        state_dir = self._given_dir or Path(tempfile.mkdtemp(prefix="hpccoll-lab-"))
        keep = self._given_dir is not None
        read_end, self._lifeline = os.pipe()
        try:
            chosen, reason = isolation.choose_isolation(self.flat)
            self._client = launch.launch_lab(self.spec, state_dir, chosen, reason, read_end, keep=keep)
        except BaseException:
            self.close()
            if not keep:
                clear_state_dir(state_dir, keep=False)
            raise
        finally:
            os.close(read_end)
        return self

    def __exit__(self, *_: object) -> None:
        if self._lifeline >= 0:
            self.close()

    def close(self) -> None:
        """Kill the commands that `start` started, end the lab and wait until its processes are gone."""
        for process in self._started:
            if process.poll() is None:  # in flat mode no PID namespace kills the process
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        self._started.clear()
        if self._client is not None:
            self._client.shut_down()
            self._client = None
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    @property
    def client(self) -> LabClient:
        """The client that sends requests to the lab's supervisor; raises UsageError if the lab has not been started."""
        if self._client is None:
            raise UsageError("this lab is not up; use it inside `with Lab() as lab:`")
        return self._client

    @property
    def state_dir(self) -> Path:
        """The lab's state directory, visible to all nodes; its subdirectory `log` has the logs of SLURM's daemons."""
        return self.client.paths.dir

    @property
    def shared_dir(self) -> Path:
        """The directory for the files of SLURM jobs, visible to all nodes."""
        return self.client.paths.shared

    def build_environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return this process's environment variables, changed for commands in the lab and overridden by `extra`.

        SLURM_CONF is set to the lab's slurm.conf. Variables that allow Open MPI to run as root and with more ranks than
        cores are added unless they are set already. If this process belongs to a SLURM or MPI job, the variables of
        this job are removed.
        """
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(_OUTER_JOB)}
        defaults = _OPEN_MPI | (_OPEN_MPI_AS_ROOT if os.geteuid() == 0 else {})
        own = {"PATH": requirements.extend_path(), "SLURM_CONF": str(self.client.paths.conf)}
        merged = defaults | inherited | own | dict(extra or {})
        if merged[_MAPPING] == ":oversubscribe":  # this mapping would place all ranks on the first host
            merged[_MAPPING] = _OPEN_MPI[_MAPPING]
        return merged

    def wrap_command(self, argv: Sequence[str], cwd: Path | None = None) -> list[str]:
        """Return a command that runs the command `argv` on the lab's control node, in the directory `cwd`.

        The command is killed when the process that starts it ends. None as `cwd` means the present directory. In a flat
        lab, `cwd` is ignored, and the starting process sets the directory.
        """
        nsenter = self.client.isolation.build_nsenter_command(self.client.pid)
        if not nsenter:
            return ["setpriv", "--pdeathsig", "KILL", *argv]
        # Entering a mount namespace resets the working directory, so `env --chdir` sets it again.
        # Signals to `nsenter` do not reach the command, so `setpriv` lets the kernel kill it when `nsenter` ends.
        return [*nsenter, "setpriv", "--pdeathsig", "KILL", "env", f"--chdir={cwd or Path.cwd()}", *argv]

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.Popen[str]:
        """Start the command `argv` on the lab's control node, in a session of its own, and return its `Popen`.

        The process has pipes for output and errors. `env` has additional environment variables, and `cwd` is the
        working directory, by default the present one.
        """
        process = subprocess.Popen(
            self.wrap_command(argv, cwd),
            env=self.build_environment(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
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
        """Run the command `argv` on the lab's control node to its end; return a `CompletedProcess` with its output.

        After `timeout_s` seconds, kills the command and raises CommunicationError with its output. An exit status other
        than 0 raises no error. `env` and `cwd` are as in `start`.
        """
        process = self.start(argv, env=env, cwd=cwd)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            out, err = end_session(process)
            late = f"`{' '.join(argv)}` did not end within {timeout_s:g} s and was killed"
            raise CommunicationError(f"{late}; its output: {(err or out).strip()[-2000:] or 'none'}") from error
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def set_link(self, node: str, *, rate: str | None = None, up: bool | None = None) -> None:
        """Change the network link of a node, or of all nodes if `node` is `all`.

        Args:
            node: name of the node, or `all`.
            rate: limit in bits per second such as `400M`, or `max` for no limit; None keeps the rate.
            up: whether the link is up; None keeps its state.

        Raises:
            UnavailableError: the lab is flat, so its nodes have no links.
        """
        change: dict[str, Any] = {} if up is None else {"up": up}
        if rate is not None:
            change["bytes_per_s"] = None if rate == "max" else ClusterSpec(bytes_per_s=parse_rate(rate)).bytes_per_s
        self.client.request("link", node=node, **change)

    def set_power(self, node: str, *, on: bool) -> None:
        """Start a node that is off or, if `on` is false, kill all processes of a node as a power cut would.

        `node` is a name or `all`. SLURM notices the change after some seconds.
        """
        self.client.request("power", node=node, on=on)

    def throttle(self, node: str, percent: float) -> None:
        """Reduce the CPU time of a node's processes, except SLURM's, by `percent`; 0 restores full speed.

        `node` is a name or `all`.
        """
        self.client.request("throttle", node=node, percent=percent)

    def restore(self) -> None:
        """Cancel all jobs, restore all nodes' initial links, power and speed, and wait until all nodes are idle."""
        self.run(["scancel", "--full", "--user", self.client.paths.user], timeout_s=30)
        self.client.request("restore")

    def get_status(self) -> dict[str, Any]:
        """Return the state of the lab as a dict.

        The keys are `isolation` (the kind of isolation), `why` (the reason why no stronger isolation works), `shape`
        (the configuration) and `nodes`.
        """
        return self.client.request("status")


def end_session(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a process of `Lab.start` and its session by SIGTERM, then SIGKILL; return its output and error output."""
    partial: subprocess.TimeoutExpired | None = None
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            return process.communicate(timeout=GRACE_S)
        except subprocess.TimeoutExpired as error:
            partial = error
    # A process outside the session still holds the pipes, so return the output so far without waiting for end of file.
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    process.wait(GRACE_S)
    return _decode(partial.output if partial else ""), _decode(partial.stderr if partial else "")


def _decode(output: bytes | str | None) -> str:
    """Return a process's output, bytes or a string, as a string; an empty string for None."""
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
