"""Program that is the init process of a node: it sets the node up, runs slurmd, and ends all processes of the node.

With namespaces, the program first waits until a line `go` on standard input says that the network device exists. The
program ends when slurmd ends or standard input closes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

from hpccoll.lab import processes

REAP_INTERVAL_S = 0.2


def set_up_node(name: str, task: dict[str, list[str] | str]) -> None:
    """Set this node's host name, mount its own /dev/shm and /tmp with the shared paths, and set its address.

    Args:
        name: the node's host name.
        task: a dict with the keys `tmp` (the directory that becomes /tmp), `shares` (shared paths) and `ip` (input of
            `ip -batch`).
    """
    socket.sethostname(name)
    mount = ["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs"]
    subprocess.run([*mount, "/dev/shm"], check=True)  # noqa: S108 - the node's own
    tmp = str(task["tmp"])
    subprocess.run([*mount, tmp], check=True)
    for share in task["shares"]:
        inside = Path(tmp + share.removeprefix("/tmp"))  # noqa: S108 - the node's own /tmp would hide it
        if Path(share).is_dir():
            inside.mkdir(parents=True, exist_ok=True)
        else:
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.touch()
        subprocess.run(["mount", "--rbind", share, str(inside)], check=True)
    subprocess.run(["mount", "--rbind", tmp, "/tmp"], check=True)  # noqa: S108 - the node's own
    subprocess.run(["ip", "-batch", "-"], input=str(task["ip"]), text=True, check=True)


def run_daemon(command: list[str]) -> None:
    """Start the daemon `command`; return when it ends or standard input closes; meanwhile reap children that end."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    process.returncode = 0  # `reap_children` reaps the daemon, so Popen must not wait for the daemon
    while True:
        ready, _, _ = select.select([0], [], [], REAP_INTERVAL_S)
        if process.pid in processes.reap_children() or (ready and not os.read(0, 4096)):
            return


def main() -> int:
    """Run the node that the first argument of the command line (JSON) describes, and return the exit status.

    At the end, all processes of the node are killed.
    """
    task = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if task["isolated"]:
        if os.read(0, 3) != b"go\n":
            return 1
        set_up_node(task["name"], task)
    else:
        processes.become_subreaper()
    try:
        run_daemon(task["slurmd"])
    finally:
        processes.kill_descendants()
    return 0


if __name__ == "__main__":
    sys.exit(main())
