"""Program that is the init process of a lab: it starts the cluster, serves requests on a socket, and ends the cluster.

If standard input is a pipe, the lab ends when the pipe closes, that is, when the process that started the lab dies.
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
from hpccoll.lab.client import read_peer
from hpccoll.lab.cluster_spec import ClusterSpec
from hpccoll.lab.isolation import Isolation
from hpccoll.lab.lab_processes import LabProcesses
from hpccoll.lab.state_dir import LabPaths, clear_state_dir

IDLE_LIMIT_S = 90.0  # a busy machine may start daemons slowly; a daemon that ends is noticed earlier
POLL_S = 0.03
MAX_REQUEST = 65536  # bytes of a request


class Supervisor:
    """The init process of a lab: starts its SLURM cluster, carries out requests of clients, and ends the lab.

    Args:
        paths: the lab's files.
        spec: the requested nodes and links.
        isolation: how nodes are isolated from each other.
        reason: why no better isolation was chosen, for the status.
        keep: whether the files of jobs in the directory `shared` outlive the lab.
    """

    def __init__(self, paths: LabPaths, spec: ClusterSpec, isolation: Isolation, reason: str, *, keep: bool) -> None:
        self.paths, self.spec, self.isolation, self.reason, self.keep = paths, spec, isolation, reason, keep
        self.processes = LabProcesses(paths, spec, isolation)
        self.ended = False

    def start_cluster(self) -> None:
        """Set up the control node, start all daemons, and wait until SLURM reports every node as idle."""
        if self.isolation is not Isolation.FLAT:
            subprocess.run(["mount", "--bind", str(self.paths.hosts), "/etc/hosts"], check=True)
            socket.sethostname("ctl")
            batch = network.build_control_batch(self.spec.get_address("ctl"), bool(self.spec.latency_s))
            network.run_network_command(["ip", "-batch", "-"], batch)
        self.processes.start_controller()
        for name in self.spec.names:
            self.processes.start_node(name)
        for name in self.spec.names:
            self.processes.connect_node(name)
        self.processes.start_switch()
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Wait until SLURM reports all nodes as idle; meanwhile resume nodes that SLURM has drained or marked as down.

        Raises CommunicationError, with the last line of each log, if a daemon ended or IDLE_LIMIT_S have passed.
        """
        end = time.monotonic() + IDLE_LIMIT_S
        while time.monotonic() < end:
            command = ["sinfo", "-h", "-r", "-t", "idle", "-o", "%D"]  # -r selects only responding nodes
            done = subprocess.run(command, capture_output=True, text=True, timeout=IDLE_LIMIT_S, check=False)
            if done.stdout.strip() == str(self.spec.nodes):
                return
            self.processes.collect_ended_processes()
            if lost := self.processes.find_ended_process():
                raise CommunicationError(f"{lost} ended; last lines of the logs: {read_last_log_lines(self.paths)}")
            self.processes.resume_nodes()
            time.sleep(POLL_S)
        late = f"the nodes did not all become idle within {IDLE_LIMIT_S:.0f} s"
        raise CommunicationError(f"{late}; last lines of the logs: {read_last_log_lines(self.paths)}")

    def serve(self, listener: socket.socket) -> None:
        """Answer requests on `listener`, one per connection, until a request ends the lab or standard input closes."""
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            if sys.stdin is not None and not Path("/dev/null").samefile(f"/proc/self/fd/{sys.stdin.fileno()}"):
                selector.register(sys.stdin, selectors.EVENT_READ)
            while not self.ended:
                for key, _ in selector.select(timeout=1.0):
                    if key.fileobj is not listener:
                        return
                    self.answer(listener.accept()[0])
                self.processes.collect_ended_processes()

    def answer(self, connection: socket.socket) -> None:
        """Read one request, carry it out, send the result or the error, and close the connection.

        Requests of other users are ignored.
        """
        with connection:
            if read_peer(connection)[1] != os.geteuid():
                return
            connection.settimeout(5.0)
            try:
                answer: dict[str, Any] = {
                    "result": self.execute(json.loads(connection.makefile("rb").readline(MAX_REQUEST)))
                }
            except HpccollError as error:
                answer = {"error": str(error), "status": error.exit_status}
            except (OSError, ValueError, KeyError, subprocess.SubprocessError):
                answer = {"error": traceback.format_exc(), "status": 1}
            try:
                connection.sendall(json.dumps(answer).encode() + b"\n")
            except OSError:  # the client is gone
                return

    def execute(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request, such as {"action": "power", "node": "node1", "on": false}; return the lab's new status.

        A request without `node` applies to all nodes.
        """
        names = self.spec.select_nodes(request.get("node", "all"))
        match request["action"]:
            case "link":
                for name in names:
                    self.processes.set_link(name, request)
            case "power":
                for name in names:
                    self.processes.set_power(name, on=request["on"])
            case "throttle":
                for name in names:
                    self.processes.throttle_node(name, float(request["percent"]))
            case "restore":
                for name in self.spec.names:
                    self.processes.restore_node(name)
                self.wait_until_idle()
            case "status":
                pass
            case "down":
                self.ended = True
            case other:
                raise UsageError(f"unknown action {other!r}; is the lab of another version? End it: hpccoll lab down")
        return self.get_status()

    def get_status(self) -> dict[str, Any]:
        """Return the lab's isolation, its configuration and each node's state, in types that `json.dumps` accepts."""
        return {
            "isolation": self.isolation.value,
            "why": self.reason,
            "shape": self.spec.to_dict(),
            "nodes": self.processes.get_status(),
        }

    def end(self) -> None:
        """Kill all processes of the lab and remove its state directory, except the directory `shared` if `keep`."""
        self.processes.end()
        processes.kill_descendants()
        clear_state_dir(self.paths.dir, keep=self.keep)


def read_last_log_lines(paths: LabPaths) -> str:
    """Return the last lines of all daemons' logs, as a string joined by semicolons; `all empty` if there are none."""
    last_lines = []
    for path in sorted((paths.dir / "log").glob("*.log")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        last_lines += [f"{path.stem}: {lines[-1]}"] if lines else []
    return "; ".join(last_lines) or "all empty"


def open_listener(paths: LabPaths) -> socket.socket:
    """Create and return the Unix socket on which a lab listens for requests.

    The socket is bound by a short path through /proc, because Linux limits a socket's path to 107 bytes.
    """
    descriptor = os.open(paths.dir, os.O_RDONLY)
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"/proc/self/fd/{descriptor}/{paths.socket.name}")
        listener.listen(16)
    finally:
        os.close(descriptor)
    return listener


def main() -> None:
    """Run the lab that the first argument of the command line (JSON) describes, until it ends.

    The second argument is a file descriptor, to which the program writes the lab's status when the lab is ready, or an
    error.
    """
    task, descriptor = json.loads(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    paths = LabPaths(Path(task["dir"]), task["user"])
    spec, isolation = ClusterSpec.from_dict(task["spec"]), Isolation(task["isolation"])
    supervisor = Supervisor(paths, spec, isolation, task["why"], keep=task["keep"])
    if isolation is Isolation.FLAT:
        processes.become_subreaper()
    answer: dict[str, Any] = {}
    try:
        with open_listener(paths) as listener:
            supervisor.start_cluster()
            os.write(descriptor, json.dumps({"result": supervisor.get_status()}).encode() + b"\n")
            os.close(descriptor)
            descriptor = -1
            supervisor.serve(listener)
    except HpccollError as error:
        answer = {"error": str(error), "status": error.exit_status}
    except Exception:  # noqa: BLE001 - the process that started the lab must receive the error
        answer = {"error": traceback.format_exc(), "status": 1}
    finally:
        supervisor.end()
        if descriptor >= 0:
            os.write(descriptor, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
