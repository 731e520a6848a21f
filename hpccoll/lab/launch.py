"""Start a lab: create its state directory, write its configuration and start its supervisor."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from hpccoll.errors import UsageError
from hpccoll.lab.client import LabClient, connect_lab, get_user_name, kill_lab, parse_answer
from hpccoll.lab.cluster_spec import ClusterSpec
from hpccoll.lab.isolation import Isolation, require_node_networks
from hpccoll.lab.requirements import extend_path
from hpccoll.lab.slurm_conf import find_free_ports, format_hosts_file, format_slurm_conf
from hpccoll.lab.state_dir import LabPaths, clear_state_dir, locate_state_dir, open_state_dir, remove_path

MAX_DIR = 60  # a daemon's socket path is 44 characters longer than the state directory, and limited to 107
_ALLOWED_DIR = re.compile(rf"[\w./+-]{{1,{MAX_DIR}}}", re.ASCII)


def launch_lab(
    spec: ClusterSpec, state_dir: Path, isolation: Isolation, reason: str, lifeline: int | None, *, keep: bool
) -> LabClient:
    """Start a lab, a local SLURM cluster, wait until all its nodes are idle, and return a client of the lab.

    Args:
        spec: the requested nodes and links.
        state_dir: directory that this function creates and the lab removes when it ends.
        isolation: how nodes are isolated from each other.
        reason: the reason, shown in the lab's status, why no better isolation was chosen.
        lifeline: read end of a pipe; the lab ends when the write end is closed. If `lifeline` is None, the lab outlives
            this process.
        keep: whether the files of jobs in the shared directory outlive the lab.

    Raises:
        UsageError: `state_dir` contains files that are not a lab's, or cannot be written.
        UnavailableError: a rate or latency was requested in flat mode, or `ip` or `tc` cannot set up the network.
        CommunicationError: the nodes did not start.
    """
    if spec.bytes_per_s is not None or spec.latency_s:
        require_node_networks(isolation, reason, "--link or --latency")
    paths = LabPaths(locate_state_dir(state_dir), get_user_name())
    _write_state_dir(paths, spec, isolation)
    read_end, write_end = os.pipe()
    try:
        task: dict[str, object] = {"dir": str(paths.dir), "user": paths.user, "spec": spec.to_dict()}
        task |= {"isolation": isolation.value, "why": reason, "keep": keep}
        program = [sys.executable, "-S", "-m", "hpccoll.lab.supervisor", json.dumps(task), str(write_end)]
        _start_supervisor(paths, [*isolation.unshare_command, *program], lifeline, write_end)
    finally:
        os.close(write_end)
    with os.fdopen(read_end, "rb") as answer:
        try:
            parse_answer(answer.readline(), paths)
        except KeyboardInterrupt:
            kill_lab(paths, isolation)
            clear_state_dir(paths.dir, keep=keep)
            raise
    return connect_lab(state_dir)


def _start_supervisor(paths: LabPaths, command: list[str], lifeline: int | None, write_end: int) -> None:
    """Start a lab's init process, the supervisor, in a session of its own.

    The supervisor may outlive this process, and does not get Ctrl-C.

    Args:
        paths: the lab's files.
        command: the command that runs the supervisor.
        lifeline: read end of a pipe; the lab ends when the write end is closed. None means that no pipe ends the lab.
        write_end: write end of a pipe on which the supervisor reports that it is ready, or an error.
    """
    with paths.log("supervisor").open("wb") as log:
        subprocess.run(
            ["setsid", "--fork", *command],
            stdin=lifeline if lifeline is not None else subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(write_end,),
            env=_build_daemon_environment(paths),
            cwd="/",
            check=True,
        )


def _build_daemon_environment(paths: LabPaths) -> dict[str, str]:
    """Return the environment variables of a lab's daemons; jobs get the variables of the command that submits them."""
    root = str(Path(__file__).parents[2])
    return {"PATH": extend_path(), "SLURM_CONF": str(paths.conf), "PYTHONPATH": root, "LC_ALL": "C.UTF-8"}


def _empty_state_dir(paths: LabPaths) -> None:
    """Mark a directory as the state directory of a lab, and remove an earlier lab's files except those in `shared`.

    Raises:
        UsageError: the directory has files, and no marker of a lab.
    """
    names = [path.name for path in paths.dir.iterdir() if path.name not in (paths.shared.name, paths.marker.name)]
    if names and not (paths.marker.is_file() and not paths.marker.is_symlink()):
        raise UsageError(f"--dir {paths.dir} holds {names[0]} and is not a lab's; name an empty or a new directory")
    paths.marker.touch(mode=0o600)
    for name in names:
        remove_path(paths.dir / name)


def _write_state_dir(paths: LabPaths, spec: ClusterSpec, isolation: Isolation) -> None:
    """Create the state directory, remove files of an earlier lab from it, and write slurm.conf and the hosts file."""
    if not _ALLOWED_DIR.fullmatch(str(paths.dir)):
        raise UsageError(
            f"--dir {paths.dir}: SLURM needs at most {MAX_DIR} characters, each a letter, a digit or one of _ . - + /; "
            "name a shorter or plainer directory"
        )
    try:
        paths.dir.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            paths.dir.mkdir(mode=0o700)
        descriptor = open_state_dir(paths.dir)
        try:
            _empty_state_dir(paths)
            os.fchmod(descriptor, 0o700)
        finally:
            os.close(descriptor)
        for name in ("state", "spool", "log", "shared"):
            (paths.dir / name).mkdir(exist_ok=True)
        ports = find_free_ports(spec.nodes + 1) if isolation is Isolation.FLAT else []
        paths.conf.write_text(format_slurm_conf(spec, paths, ports), encoding="utf-8")
        paths.hosts.write_text(format_hosts_file(spec), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--dir {paths.dir}: cannot write there ({error.strerror or error})") from error
