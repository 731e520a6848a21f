"""`LabProcesses`: the SLURM controller, the nodes and the delay switch of a lab, child processes of its supervisor."""

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
from hpccoll.lab.cluster_spec import ClusterSpec, find_paths_below_tmp
from hpccoll.lab.isolation import Isolation, require_node_networks
from hpccoll.lab.state_dir import LabPaths

NODE_NAMESPACES = ("unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
START_LIMIT_S = 10.0


@dataclass(slots=True)
class NodeState:
    """One node of a lab: its init process, the state of its network link, and the throttle of its CPU time."""

    name: str
    device: str  # the control node's end of the node's link
    process: subprocess.Popen[bytes] | None  # the init process or its parent `unshare`; None while the node is off
    bytes_per_s: float | None  # rate of the link; None for no limit
    up: bool = True  # whether the link is up
    percent: float = 0.0  # percentage of CPU time taken away
    throttle: subprocess.Popen[bytes] | None = None  # the process that throttles the node


class LabProcesses:
    """Starts, changes and ends the processes of a lab (SLURM controller, nodes, switch) and the links of its nodes.

    The lab's supervisor, which is the parent of these processes, uses this class.
    """

    def __init__(self, paths: LabPaths, spec: ClusterSpec, isolation: Isolation) -> None:
        self.paths, self.spec, self.isolation = paths, spec, isolation
        self.daemons: list[subprocess.Popen[bytes]] = []  # slurmctld, then the program `switch` if it runs
        rate = spec.bytes_per_s
        self.nodes = {name: NodeState(name, f"v{index}", None, rate) for index, name in enumerate(spec.names, 1)}

    def start_controller(self) -> None:
        """Start SLURM's controller, slurmctld; return before it is ready."""
        self.daemons.append(self._start([_find_daemon("slurmctld"), "-D"], "slurmctld"))

    def start_switch(self) -> None:
        """Start the program switch.py, which adds latency to the nodes' network, if a latency was requested."""
        if not self.spec.latency_s:
            return
        devices = [network.CONTROL_DEVICE, *(node.device for node in self.nodes.values())]
        command = [*_build_program_command("switch"), str(self.spec.latency_s), *devices]
        self.daemons.append(self._start(command, "switch"))

    def start_node(self, name: str) -> None:
        """Start a node's init process, which, except in a flat lab, waits until `connect_node` has made the link."""
        isolated = self.isolation is not Isolation.FLAT
        tmp = self.paths.dir / "spool" / name / "tmp"
        tmp.mkdir(parents=True, exist_ok=True)
        task = {
            "name": name,
            "isolated": isolated,
            "tmp": str(tmp),
            "shares": find_paths_below_tmp([*self.spec.shares, str(self.paths.dir)]),
            "ip": network.build_node_batch(self.spec.get_address(name)),
            "slurmd": [_find_daemon("slurmd"), "-D", *([] if isolated else ["-N", name])],
        }
        command = [*(NODE_NAMESPACES if isolated else ()), *_build_program_command("node_init"), json.dumps(task)]
        self.nodes[name].process = self._start(command, name, stdin=subprocess.PIPE)

    def connect_node(self, name: str) -> None:
        """Wait until a node has a network namespace, create its link, and let its init process continue."""
        node = self.nodes[name]
        if self.isolation is Isolation.FLAT or node.process is None:
            return
        pid = node.process.pid
        end = time.monotonic() + START_LIMIT_S
        while _read_namespace(pid) in (None, _read_namespace(os.getpid())):
            if node.process.poll() is not None or time.monotonic() > end:
                raise CommunicationError(f"{name} did not start; see {self.paths.log(name)}")
            time.sleep(0.002)
        batch = network.build_link_batch(node.device, pid, bool(self.spec.latency_s))
        network.run_network_command(["ip", "-batch", "-"], batch)
        if node.bytes_per_s is not None:
            self._apply_rate(node)
        if not node.up:
            network.run_network_command(["ip", "link", "set", node.device, "down"])
        assert node.process.stdin is not None  # noqa: S101 - opened by `start_node`
        node.process.stdin.write(b"go\n")
        node.process.stdin.flush()

    def set_link(self, name: str, change: dict[str, Any]) -> None:
        """Apply `change`, a dict with the keys `bytes_per_s` (None removes the limit) and `up`, to a node's link.

        Each key of `change` is optional. If the node is off, the change takes effect when the node is switched on.
        Raises UnavailableError if the lab is flat, because the nodes of a flat lab have no links.
        """
        require_node_networks(self.isolation, "see `hpccoll lab status`", "a link's rate")
        node = self.nodes[name]
        if "bytes_per_s" in change:
            node.bytes_per_s = change["bytes_per_s"]
            if node.process is not None:
                self._apply_rate(node)
        if "up" in change:
            node.up = change["up"]
            if node.process is not None:
                network.run_network_command(["ip", "link", "set", node.device, "up" if node.up else "down"])

    def _apply_rate(self, node: NodeState) -> None:
        """Limit the rate of a running node's link to `node.bytes_per_s` in both directions."""
        assert node.process is not None  # noqa: S101 - checked by the callers
        network.run_network_command(network.build_rate_command(node.device, node.bytes_per_s))
        inside = ["nsenter", "--net", "--target", str(node.process.pid)]
        network.run_network_command([*inside, *network.build_rate_command("eth0", node.bytes_per_s)])

    def set_power(self, name: str, *, on: bool) -> None:
        """Start a node if it is off and `on` is true; if `on` is false, kill its processes and remove its link."""
        node = self.nodes[name]
        if on and node.process is None:
            self.start_node(name)
            self.connect_node(name)
        elif not on and node.process is not None:
            self._kill_node(node)
            if self.isolation is not Isolation.FLAT:  # the kernel is slow to remove the devices of a dead namespace
                network.run_network_command(["ip", "link", "del", node.device], check=False)

    def _kill_node(self, node: NodeState) -> None:
        """Kill a node's processes and wait until they have ended."""
        self._end_throttle(node)
        if node.process is None:
            return
        if self.isolation is Isolation.FLAT:
            # Without a PID namespace, a node's init process kills the node's processes when its standard input closes.
            assert node.process.stdin is not None  # noqa: S101 - opened by `start_node`
            node.process.stdin.close()
        else:
            node.process.kill()
        try:
            node.process.wait(START_LIMIT_S)
        except subprocess.TimeoutExpired:
            node.process.kill()
            node.process.wait()
        node.process = None

    def throttle_node(self, name: str, percent: float) -> None:
        """Let a process that often stops the node reduce its CPU time by `percent` (0 to 95); 0 restores full speed.

        Raises UsageError if the node is off or `percent` is out of range.
        """
        node = self.nodes[name]
        if not 0 <= percent <= 95:
            raise UsageError(f"--percent {percent:g}: give 0 (full speed) to 95 (a twentieth of the speed)")
        if node.process is None:
            raise UsageError(f"{name} is off; `hpccoll lab power {name} on` first")
        self._end_throttle(node)
        node.percent = percent
        if percent:
            others = [self._find_init(other) for other in self.nodes.values() if other is not node]
            roots = [str(root) for root in (self._find_init(node), *others) if root is not None]
            command = [*_build_program_command("throttle"), str(percent), *roots]
            node.throttle = self._start(command, name)

    def _end_throttle(self, node: NodeState) -> None:
        """End a node's throttling: terminate the process that throttles, and wait for its end.

        At its end, the throttling process lets the processes that it has stopped continue.
        """
        node.percent = 0.0
        if node.throttle is not None:
            node.throttle.terminate()
            node.throttle.wait()
            node.throttle = None

    def _find_init(self, node: NodeState) -> int | None:
        """Return the ID of a node's init process, the ancestor of its other processes; None if the node is off."""
        if node.process is None or self.isolation is Isolation.FLAT:
            return node.process.pid if node.process else None
        return next(iter(processes.find_descendants(node.process.pid)), None)  # the child of `unshare`

    def restore_node(self, name: str) -> None:
        """Undo all changes to a node: link up at the initial rate, power on, no throttling."""
        node = self.nodes[name]
        if not node.up:
            self.set_link(name, {"up": True})
        if node.bytes_per_s != self.spec.bytes_per_s:
            self.set_link(name, {"bytes_per_s": self.spec.bytes_per_s})
        self.set_power(name, on=True)
        if node.percent:
            self.throttle_node(name, 0.0)

    def resume_nodes(self) -> None:
        """Run sinfo and scontrol to resume nodes that SLURM has drained or marked as down."""
        command = ["sinfo", "-h", "-N", "-t", "down,drain,fail", "-o", "%N"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        for name in sorted({*done.stdout.split()} & {*self.nodes}):
            subprocess.run(["scontrol", "update", f"NodeName={name}", "State=RESUME"], timeout=30, check=False)

    def _start(self, command: list[str], log_name: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """Start a process with the standard input `stdin` and return it; append its output to the log `log_name`."""
        with self.paths.log(log_name).open("ab") as log:
            return subprocess.Popen(command, stdin=stdin, stdout=log, stderr=log)

    def collect_ended_processes(self) -> None:
        """Reap children that have ended, including adopted orphans; mark nodes whose init process has ended as off."""
        statuses = processes.reap_children()
        throttles = [node.throttle for node in self.nodes.values() if node.throttle is not None]
        inits = [node.process for node in self.nodes.values() if node.process is not None]
        for process in (*self.daemons, *throttles, *inits):
            process.returncode = statuses.get(process.pid, process.returncode)
        for node in self.nodes.values():
            if node.process is not None and node.process.returncode is not None:
                node.process = None

    def find_ended_process(self) -> str:
        """Return `slurmctld` if this daemon has ended, else the name of a node that is off, else an empty string."""
        if self.daemons[0].returncode is not None:
            return "slurmctld"
        return next((node.name for node in self.nodes.values() if node.process is None), "")

    def get_status(self) -> list[dict[str, Any]]:
        """Return the state of each node (address, power, link, throttle) as dictionaries that `json.dumps` accepts."""
        return [
            {
                "name": node.name,
                "address": self.spec.get_address(node.name) if self.isolation is not Isolation.FLAT else "127.0.0.1",
                "power": node.process is not None,
                "link_up": node.up,
                "bytes_per_s": node.bytes_per_s,
                "slow_percent": node.percent,
            }
            for node in self.nodes.values()
        ]

    def end(self) -> None:
        """Kill the nodes' processes and the daemons, and wait until they have ended."""
        for node in self.nodes.values():
            self._kill_node(node)
        for process in self.daemons:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _build_program_command(name: str) -> list[str]:
    """Return the command that runs the module `name` of hpccoll.lab, without site-packages (-S) to start in 20 ms."""
    return [sys.executable, "-S", "-m", f"hpccoll.lab.{name}"]


def _find_daemon(program: str) -> str:
    """Return the path of a daemon's program in PATH, or the program's name if no directory of PATH has it."""
    return shutil.which(program) or program


def _read_namespace(pid: int) -> str | None:
    """Return the network namespace of a process, such as `net:[4026531840]`; None if the process has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")  # noqa: PTH115 - the link's target is a name, not a path
    except OSError:
        return None
