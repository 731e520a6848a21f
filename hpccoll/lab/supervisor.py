"""The keeper: the first process of a lab. It builds the cluster, does what it is asked at a socket, and takes all down.

Standard input is the lifeline: where it is a pipe, its end (the death of whoever made the lab) ends the lab as well.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from hpccoll.errors import CommunicationError, HpccollError, UsageError
from hpccoll.lab import network, processes
from hpccoll.lab.cluster_spec import ClusterSpec
from hpccoll.lab.isolation import Isolation
from hpccoll.lab.lab_processes import LabProcesses
from hpccoll.lab.state_dir import LabPaths, clear

IDLE_LIMIT_S = 30.0
POLL_S = 0.03


class Supervisor:
    """A running lab, seen from inside.

    Args:
        place: its folder.
        shape: what it is to look like.
        isolation: how its nodes are kept apart.
        why: why they are not better apart.
        keep: whether results in the shared folder outlive it.
    """

    def __init__(self, place: LabPaths, shape: ClusterSpec, isolation: Isolation, why: str, *, keep: bool) -> None:
        self.place, self.shape, self.isolation, self.why, self.keep = place, shape, isolation, why, keep
        self.crew = LabProcesses(place, shape, isolation)
        self.ended = False

    def build(self) -> None:
        """Start everything and wait until every node is idle."""
        if self.isolation is not Isolation.FLAT:
            subprocess.run(["mount", "--bind", str(self.place.hosts), "/etc/hosts"], check=True)
            socket.sethostname("ctl")
            batch = network.control_batch(self.shape.address("ctl"), bool(self.shape.latency_s))
            network.call(["ip", "-batch", "-"], batch)
        self.crew.start_controller()
        for name in self.shape.names:
            self.crew.begin(name)
        for name in self.shape.names:
            self.crew.connect(name)
        self.crew.start_switch()
        self.wait_idle()

    def wait_idle(self) -> None:
        """Wait until SLURM calls all nodes idle.

        Raises:
            CommunicationError: they are not in time; the message holds what the logs end with.
        """
        end = time.monotonic() + IDLE_LIMIT_S
        while time.monotonic() < end:
            asked = ["sinfo", "-h", "-r", "-t", "idle", "-o", "%D"]  # -r: those that answer
            done = subprocess.run(asked, capture_output=True, text=True, timeout=IDLE_LIMIT_S, check=False)
            if done.stdout.strip() == str(self.shape.nodes):
                return
            self.crew.reap()
            if lost := self.crew.lost():
                raise CommunicationError(f"{lost} ended; the logs say last: {last_words(self.place)}")
            self.crew.resume()
            time.sleep(POLL_S)
        late = f"the nodes did not all become idle within {IDLE_LIMIT_S:.0f} s"
        raise CommunicationError(f"{late}; the logs say last: {last_words(self.place)}")

    def serve(self, listener: socket.socket) -> None:
        """Answer until told to end, or until the lifeline breaks."""
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            if sys.stdin is not None and not Path("/dev/null").samefile(f"/proc/self/fd/{sys.stdin.fileno()}"):
                selector.register(sys.stdin, selectors.EVENT_READ)
            while not self.ended:
                for key, _ in selector.select(timeout=1.0):
                    if key.fileobj is not listener:
                        return
                    self.answer(listener.accept()[0])
                self.crew.reap()

    def answer(self, peer: socket.socket) -> None:
        """Do one thing that was asked and say what came of it."""
        with peer:
            peer.settimeout(5.0)
            try:
                asked = json.loads(peer.makefile("rb").readline())
                said = {"said": self.do(asked)}
            except HpccollError as error:
                said = {"error": str(error), "status": error.exit_status}
            except (OSError, ValueError, KeyError, subprocess.SubprocessError):
                said = {"error": traceback.format_exc(), "status": 1}
            try:
                peer.sendall(json.dumps(said).encode() + b"\n")
            except OSError:  # whoever asked is gone
                return

    def do(self, asked: dict[str, Any]) -> Any:
        """Carry out a request: `do` names it, `node` the nodes that it is about."""
        nodes = self.shape.chosen(asked.get("node", "all"))
        match asked["do"]:
            case "link":
                for name in nodes:
                    self.crew.link(name, asked)
            case "power":
                for name in nodes:
                    self.crew.power(name, on=asked["on"])
            case "slow":
                for name in nodes:
                    self.crew.slow(name, float(asked["percent"]))
            case "mend":
                self.mend()
            case "status":
                pass
            case "down":
                self.ended = True
            case other:
                raise UsageError(f"the lab does not know how to {other!r}")
        return self.told()

    def mend(self) -> None:
        """Undo what was done to nodes and links, and wait until all nodes are idle again."""
        for name in self.shape.names:
            self.crew.mend(name)
        self.wait_idle()

    def told(self) -> dict[str, Any]:
        """Return what a lab says of itself."""
        return {
            "isolation": self.isolation.value,
            "why": self.why,
            "shape": self.shape.as_dict(),
            "nodes": self.crew.told(),
        }

    def end(self) -> None:
        """End all processes and remove what the lab wrote, except results that are to be kept."""
        self.crew.end()
        processes.end()
        clear(self.place.dir, keep=self.keep)


def last_words(place: LabPaths) -> str:
    """Return the last line of each log."""
    found = []
    for path in sorted((place.dir / "log").glob("*.log")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found += [f"{path.stem}: {lines[-1]}"] if lines else []
    return "; ".join(found) or "nothing"


def listen(place: LabPaths) -> socket.socket:
    """Open the socket, by way of a descriptor as whoever connects to it does."""
    folder = os.open(place.dir, os.O_RDONLY)
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"/proc/self/fd/{folder}/{place.control.name}")
        listener.listen(16)
    finally:
        os.close(folder)
    return listener


def main() -> None:
    """Build the lab that the first argument describes; say on the descriptor of the second when it stands."""
    given, news = json.loads(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    place = LabPaths(Path(given["dir"]), given["user"])
    shape, isolation = ClusterSpec.from_dict(given["shape"]), Isolation(given["isolation"])
    keeper = Supervisor(place, shape, isolation, given["why"], keep=given["keep"])
    if keeper.isolation is Isolation.FLAT:
        processes.adopt()
    said: dict[str, Any] = {}
    try:
        try:
            with listen(place) as listener:
                keeper.build()
                os.write(news, json.dumps({"said": keeper.told()}).encode() + b"\n")
                os.close(news)
                news = -1
                keeper.serve(listener)
        except HpccollError as error:
            said = {"error": str(error), "status": error.exit_status}
        except Exception:  # noqa: BLE001 - whoever waits must hear of it
            said = {"error": traceback.format_exc(), "status": 1}
    finally:
        keeper.end()
        if news >= 0:
            os.write(news, json.dumps(said).encode() + b"\n")


if __name__ == "__main__":
    main()
