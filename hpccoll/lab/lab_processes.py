"""The processes of a lab: the controller, the nodes and the delaying switch; started, reshaped, slowed and ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from hpccoll.errors import CommunicationError, UsageError
from hpccoll.lab import network, processes
from hpccoll.lab.cluster_spec import ClusterSpec, find_paths_under_tmp
from hpccoll.lab.isolation import Isolation, require_node_networks
from hpccoll.lab.state_dir import LabPaths

APART = ("unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
START_LIMIT_S = 10.0


@dataclass(slots=True)
class NodeState:
    """What is known of a node; `process` is None while it is off."""

    name: str
    end: str
    process: subprocess.Popen[bytes] | None
    bytes_per_s: float | None
    up: bool = True
    percent: float = 0.0
    brake: subprocess.Popen[bytes] | None = None


class LabProcesses:
    """Everything that runs in a lab.

    Args:
        place: the lab's folder.
        shape: what it looks like.
        isolation: how nodes are kept apart.
    """

    def __init__(self, place: LabPaths, shape: ClusterSpec, isolation: Isolation) -> None:
        self.place, self.shape, self.isolation = place, shape, isolation
        self.others: list[subprocess.Popen[bytes]] = []
        self.nodes = {
            name: NodeState(name, f"v{at}", None, shape.bytes_per_s) for at, name in enumerate(shape.names, 1)
        }

    def start_controller(self) -> None:
        """Start slurmctld."""
        self.others.append(self._started([_found("slurmctld"), "-D"], "slurmctld", stdin=subprocess.DEVNULL))

    def start_switch(self) -> None:
        """Start the switch that delays frames, where a latency was asked for."""
        if not self.shape.latency_s:
            return
        ends = [network.CONTROL_END, *(node.end for node in self.nodes.values())]
        words = [*_program("switch"), str(self.shape.latency_s), *ends]
        self.others.append(self._started(words, "switch", stdin=subprocess.DEVNULL))

    def begin(self, name: str) -> None:
        """Start a node's first process, which waits for its link."""
        node, apart = self.nodes[name], self.isolation is not Isolation.FLAT
        tmp = self.place.dir / "spool" / name / "tmp"
        tmp.mkdir(parents=True, exist_ok=True)
        task = {
            "name": name,
            "apart": apart,
            "tmp": str(tmp),
            "shares": find_paths_under_tmp([*self.shape.shares, str(self.place.dir)]),
            "ip": network.node_batch(self.shape.address(name)),
            "slurmd": [_found("slurmd"), "-D", *([] if apart else ["-N", name])],
        }
        program = [*_program("node"), json.dumps(task)]
        node.process = self._started([*(APART if apart else ()), *program], name, stdin=subprocess.PIPE)

    def connect(self, name: str) -> None:
        """Give a node its link, once it has a network of its own, and let it go on."""
        node = self.nodes[name]
        if self.isolation is Isolation.FLAT or node.process is None:
            return
        pid = node.process.pid
        end = time.monotonic() + START_LIMIT_S
        while _namespace(pid) in (None, _namespace(os.getpid())):
            if node.process.poll() is not None or time.monotonic() > end:
                raise CommunicationError(f"{name} did not start; see {self.place.log(name)}")
            time.sleep(0.002)
        network.call(["ip", "-batch", "-"], network.link_batch(node.end, pid, bool(self.shape.latency_s)))
        if node.bytes_per_s is not None:
            self._apply(node)
        if not node.up:
            network.call(["ip", "link", "set", node.end, "down"])
        assert node.process.stdin is not None  # noqa: S101 - opened by `begin`
        node.process.stdin.write(b"go\n")
        node.process.stdin.flush()

    def link(self, name: str, asked: dict[str, Any]) -> None:
        """Give a running node's link the rate `bytes_per_s` (None: no limit), or take it `up` or down.

        Raises:
            UnavailableError: the lab is flat.
        """
        require_node_networks(self.isolation, "see `hpccoll lab status`", "a link's rate")
        node = self.nodes[name]
        if "bytes_per_s" in asked:
            node.bytes_per_s = asked["bytes_per_s"]
            if node.process is not None:
                self._apply(node)
        if "up" in asked:
            node.up = asked["up"]
            if node.process is not None:
                network.call(["ip", "link", "set", node.end, "up" if node.up else "down"])

    def _apply(self, node: NodeState) -> None:
        assert node.process is not None  # noqa: S101 - its callers have looked
        network.call(network.shape_words(node.end, node.bytes_per_s))
        network.call(network.in_network_of(node.process.pid, network.shape_words("eth0", node.bytes_per_s)))

    def power(self, name: str, *, on: bool) -> None:
        """Switch a node off as a power cut would, or on again."""
        node = self.nodes[name]
        if on and node.process is None:
            self.begin(name)
            self.connect(name)
        elif not on and node.process is not None:
            self._cut(node)
            if self.isolation is not Isolation.FLAT:  # the kernel takes its time to remove a dead namespace's devices
                network.call(["ip", "link", "del", node.end], check=False)

    def _cut(self, node: NodeState) -> None:
        self._release(node)
        if node.process is None:
            return
        if self.isolation is Isolation.FLAT:  # no namespace ends its processes: it does so itself
            assert node.process.stdin is not None  # noqa: S101 - opened by `begin`
            node.process.stdin.close()
        else:
            node.process.kill()
        try:
            node.process.wait(START_LIMIT_S)
        except subprocess.TimeoutExpired:
            node.process.kill()
            node.process.wait()
        node.process = None

    def slow(self, name: str, percent: float) -> None:
        """Stop a node's processes for that percentage of the time; 0 lets it run freely.

        Raises:
            UsageError: the percentage is none, or the node is off.
        """
        node = self.nodes[name]
        if not 0 <= percent <= 95:
            raise UsageError(f"--percent {percent:g}: give 0 (as fast as it can) to 95 (a twentieth of its speed)")
        if node.process is None:
            raise UsageError(f"{name} is off; `hpccoll lab power {name} on` first")
        self._release(node)
        node.percent = percent
        if percent:
            others = [self._root(other) for other in self.nodes.values() if other is not node]
            roots = [str(root) for root in (self._root(node), *others) if root is not None]
            node.brake = self._started([*_program("brake"), str(percent), *roots], name, stdin=subprocess.DEVNULL)

    def _release(self, node: NodeState) -> None:
        """End a node's brake, which lets its processes go."""
        node.percent = 0.0
        if node.brake is not None:
            node.brake.terminate()
            node.brake.wait()
            node.brake = None

    def _root(self, node: NodeState) -> int | None:
        """Return a node's first process, below which is all that it runs."""
        if node.process is None or self.isolation is Isolation.FLAT:
            return node.process.pid if node.process else None
        return next(iter(processes.below(node.process.pid)), None)

    def mend(self, name: str) -> None:
        """Make a node as it was when the lab came up."""
        node = self.nodes[name]
        if not node.up:
            self.link(name, {"up": True})
        if node.bytes_per_s != self.shape.bytes_per_s:
            self.link(name, {"bytes_per_s": self.shape.bytes_per_s})
        self.power(name, on=True)
        if node.percent:
            self.slow(name, 0.0)

    def resume(self) -> None:
        """Have SLURM take nodes back that it has drained or given up."""
        asked = ["sinfo", "-h", "-N", "-t", "down,drain,fail", "-o", "%N"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
        for name in sorted({*done.stdout.split()} & {*self.nodes}):
            subprocess.run(["scontrol", "update", f"NodeName={name}", "State=RESUME"], timeout=30, check=False)

    def _started(self, words: list[str], name: str, *, stdin: int) -> subprocess.Popen[bytes]:
        with self.place.log(name).open("ab") as log:
            return subprocess.Popen(words, stdin=stdin, stdout=log, stderr=log)

    def reap(self) -> None:
        """Collect what has ended: processes of its own and, as the first of its namespace, orphans."""
        ended = processes.reap()
        braking = [node.brake for node in self.nodes.values() if node.brake is not None]
        nodes = [node.process for node in self.nodes.values() if node.process is not None]
        for process in (*self.others, *braking, *nodes):
            process.returncode = ended.get(process.pid, process.returncode)
        for node in self.nodes.values():
            if node.process is not None and node.process.returncode is not None:
                node.process = None

    def lost(self) -> str:
        """Return the name of a node that is off, or of the controller if it has ended; empty where all run."""
        if self.others[0].returncode is not None:
            return "slurmctld"
        return next((node.name for node in self.nodes.values() if node.process is None), "")

    def told(self) -> list[dict[str, Any]]:
        """Return the state of each node, for JSON."""
        return [
            {
                "name": node.name,
                "address": self.shape.address(node.name) if self.isolation is not Isolation.FLAT else "127.0.0.1",
                "power": node.process is not None,
                "link_up": node.up,
                "bytes_per_s": node.bytes_per_s,
                "slow_percent": node.percent,
            }
            for node in self.nodes.values()
        ]

    def end(self) -> None:
        """End all that was started here."""
        for node in self.nodes.values():
            self._cut(node)
        for process in self.others:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _program(name: str) -> list[str]:
    """Return the command of a program of this folder: without the environment's packages it starts in 20 ms."""
    return [sys.executable, "-S", "-m", f"hpccoll.lab.{name}"]


def _found(program: str) -> str:
    """Return where a daemon is; its folder is on the PATH that the lab was given."""
    return shutil.which(program) or program


def _namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")  # noqa: PTH115 - no path, but a name such as net:[4026531840]
    except OSError:
        return None
