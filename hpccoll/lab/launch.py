"""Starting a lab: its folder, its configuration and its first process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from hpccoll.errors import UsageError
from hpccoll.lab.client import LabClient, kill, running, said, user
from hpccoll.lab.cluster_spec import ClusterSpec
from hpccoll.lab.isolation import Isolation, require_node_networks
from hpccoll.lab.requirements import extend_path
from hpccoll.lab.slurm_conf import find_free_ports, format_hosts_file, format_slurm_conf
from hpccoll.lab.state_dir import LabPaths, clear, remove

LONGEST_DIR = 60  # a daemon's socket is 44 characters longer, and none may be longer than 107
_PLAIN = re.compile(rf"[\w./+-]{{1,{LONGEST_DIR}}}", re.ASCII)


def launch(
    shape: ClusterSpec, folder: Path, isolation: Isolation, why: str, lifeline: int | None, *, keep: bool
) -> LabClient:
    """Start a lab and return when all its nodes are idle.

    Args:
        shape: what it is to look like.
        folder: where it keeps its state; created, and removed with the lab.
        isolation: how nodes are to be kept apart.
        why: why not better.
        lifeline: the end of a pipe to read from; the lab ends when it closes. None: the lab outlives its maker.
        keep: whether what jobs leave in the shared folder is to outlive the lab.

    Raises:
        UsageError: the folder holds something else, or cannot be written.
        UnavailableError: links were asked for in flat mode, or something is not installed.
        CommunicationError: the nodes did not come up.
    """
    if shape.bytes_per_s is not None or shape.latency_s:
        require_node_networks(isolation, why, "--link or --latency")
    place = LabPaths(folder.resolve(), user())
    _prepare(place, shape, isolation)
    hear, tell = os.pipe()
    try:
        given: dict[str, object] = {"dir": str(place.dir), "user": place.user, "shape": shape.as_dict()}
        given |= {"isolation": isolation.value, "why": why, "keep": keep}
        program = [sys.executable, "-S", "-m", "hpccoll.lab.supervisor", json.dumps(given), str(tell)]
        _start(place, [*isolation.words, *program], lifeline, tell)
    finally:
        os.close(tell)
    with os.fdopen(hear, "rb") as news:
        try:
            said(news.readline(), place)
        except KeyboardInterrupt:
            kill(place, isolation)
            clear(place.dir, keep=keep)
            raise
    return running(folder)


def _start(place: LabPaths, words: list[str], lifeline: int | None, tell: int) -> None:
    """Start the keeper as nobody's child: its maker may end first, and no Ctrl-C of this terminal reaches it."""
    with place.log("keeper").open("wb") as log:
        subprocess.run(
            ["setsid", "--fork", *words],
            stdin=lifeline if lifeline is not None else subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(tell,),
            env=_environment(place),
            cwd="/",
            check=True,
        )


def _environment(place: LabPaths) -> dict[str, str]:
    """Return the environment of daemons: what they need and no more; jobs bring that of whoever submits them."""
    root = str(Path(__file__).parents[2])
    return {"PATH": extend_path(), "SLURM_CONF": str(place.conf), "PYTHONPATH": root, "LC_ALL": "C.UTF-8"}


def _prepare(place: LabPaths, shape: ClusterSpec, isolation: Isolation) -> None:
    """Create the folder with the configuration."""
    if not _PLAIN.fullmatch(str(place.dir)):
        raise UsageError(
            f"--dir {place.dir}: SLURM takes at most {LONGEST_DIR} letters, digits and any of _ . - + / here; "
            "name a shorter or plainer folder"
        )
    try:
        place.dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = [path.name for path in place.dir.iterdir() if path.name != place.shared.name]
        if held and not place.conf.exists():
            raise UsageError(f"--dir {place.dir} holds {held[0]} and is no lab's; name an empty or a new folder")
        for name in held:
            remove(place.dir / name)
        for name in ("state", "spool", "log", "shared"):
            (place.dir / name).mkdir(exist_ok=True)
        ports = find_free_ports(shape.nodes) if isolation is Isolation.FLAT else None
        place.conf.write_text(format_slurm_conf(shape, place, ports), encoding="utf-8")
        place.hosts.write_text(format_hosts_file(shape), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--dir {place.dir}: cannot write there ({error.strerror or error})") from error
