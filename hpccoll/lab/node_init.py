"""The first process of a node: prepares it and starts slurmd. Run as a program of its own.

It reads `go` from standard input when the link is there, and ends the node when that closes.
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

REAP_S = 0.2


def prepare(name: str, task: dict[str, list[str] | str]) -> None:
    """Give the node its name, shared memory, /tmp and address; the link is there already."""
    socket.sethostname(name)
    mount = ["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs"]
    subprocess.run([*mount, "/dev/shm"], check=True)  # noqa: S108 - the node's own
    tmp = str(task["tmp"])
    subprocess.run([*mount, tmp], check=True)
    for share in task["shares"]:
        inside = Path(tmp + share.removeprefix("/tmp"))  # noqa: S108 - what the node's own /tmp would hide
        if Path(share).is_dir():
            inside.mkdir(parents=True, exist_ok=True)
        else:
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.touch()
        subprocess.run(["mount", "--rbind", share, str(inside)], check=True)
    subprocess.run(["mount", "--rbind", tmp, "/tmp"], check=True)  # noqa: S108 - see above
    subprocess.run(["ip", "-batch", "-"], input=str(task["ip"]), text=True, check=True)


def serve(daemon: list[str]) -> None:
    """Start slurmd and wait until it ends or standard input closes."""
    process = subprocess.Popen(daemon, stdin=subprocess.DEVNULL)
    process.returncode = 0  # reaped here with all others
    while True:
        ready, _, _ = select.select([0], [], [], REAP_S)
        if process.pid in processes.reap() or (ready and not os.read(0, 4096)):
            return


def main() -> int:
    """Be the node that the only argument describes."""
    task = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if task["apart"]:
        if os.read(0, 3) != b"go\n":
            return 1
        prepare(task["name"], task)
    else:
        processes.adopt()
    try:
        serve(task["slurmd"])
    finally:
        processes.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
