"""Whether every node can reach every other by TCP, found out without MPI: over a broken link MPI would not even start.

Each node listens on one port, connects to every other node and says who it is. What failed goes to the first node,
which judges. Nodes that cannot tell it are lost. MPI may use another network for its data, but all of them meet over
this one first.
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from hpccoll.errors import UnavailableError, UsageError
from hpccoll.preflight.link_benchmark import LinkSample
from hpccoll.preflight.results import PreflightResults

FIRST_PORT, PORTS = 20_000, 10_000
RETRY_S, AT_ONCE = 0.1, 64
PATIENCE_S = 300.0  # with whoever has been reached
_HELLO = b"hpccoll preflight\n"


def from_slurm(environ: Mapping[str, str]) -> tuple[list[str], int, int]:
    """Return the nodes of this step, this node's place among them, and a port that is the job's own.

    Raises:
        UnavailableError: this is no step of SLURM.
        UsageError: the step has not one task on each node.
    """
    try:
        nodes, me, job = environ["SLURM_STEP_NODELIST"], int(environ["SLURM_NODEID"]), int(environ["SLURM_JOB_ID"])
        told = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True)
    except (KeyError, OSError, subprocess.CalledProcessError) as error:
        raise UnavailableError(
            f"--reach asks SLURM for the nodes: start it by srun, inside a job ({error!r})"
        ) from error
    hosts = told.stdout.split()
    if environ.get("SLURM_STEP_NUM_TASKS") != str(len(hosts)):
        raise UsageError(f"--reach takes one task on each of {len(hosts)} nodes; srun --ntasks-per-node=1")
    return hosts, me, FIRST_PORT + job % PORTS


class Listener:
    """Answers every node that connects, and keeps what the nodes report."""

    def __init__(self, port: int) -> None:
        self.reports: dict[int, dict[int, str]] = {}
        self.complete = threading.Event()  # until then, who reported goes on listening, for nodes that started later
        self._socket = socket.create_server(("", port), backlog=1024)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                there, _ = self._socket.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._answer, args=(there,), daemon=True).start()

    def _answer(self, there: socket.socket) -> None:
        with there, suppress(OSError, ValueError), there.makefile("rwb") as stream:
            there.settimeout(PATIENCE_S)
            stream.write(_HELLO)
            stream.flush()
            told = json.loads(stream.readline() or b"{}")
            if "failed" in told:
                self.reports[int(told["node"])] = {int(node): str(why) for node, why in told["failed"].items()}
                self.complete.wait(PATIENCE_S)
                stream.write(_HELLO)
                stream.flush()

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()


def call(host: str, port: int, words: dict[str, object], limit_s: float) -> str | None:
    """Say something to a node; return why that failed, or None. A node that does not listen yet is tried again."""
    end = time.monotonic() + limit_s
    while True:
        try:
            with socket.create_connection((host, port), timeout=max(end - time.monotonic(), RETRY_S)) as there:
                stream = there.makefile("rwb")
                heard = stream.readline()
                stream.write(json.dumps(words).encode() + b"\n")
                stream.flush()
                if "failed" in words:
                    there.settimeout(PATIENCE_S)
                    stream.readline()
                return None if heard == _HELLO else f"port {port} of {host} belongs to somebody else"
        except OSError as error:
            if time.monotonic() + RETRY_S > end:
                return f"no answer by TCP within {limit_s:g} s ({error.strerror or error})"
            time.sleep(RETRY_S)


def survey(hosts: Sequence[str], me: int, port: int, limit_s: float) -> PreflightResults | None:
    """Try to reach all nodes; return what all of them found on node 0, None elsewhere. Every node calls it.

    Args:
        hosts: the names of all nodes, in the same order everywhere.
        me: this node's place among them.
        port: a free one, the same everywhere.
        limit_s: seconds after which a node counts as out of reach.
    """
    listener = Listener(port)
    others = [node for node in range(len(hosts)) if node != me]
    with ThreadPoolExecutor(min(AT_ONCE, max(len(others), 1))) as pool:
        answers = pool.map(lambda node: call(hosts[node], port, {"node": me}, limit_s), others)
        failed = {node: why for node, why in zip(others, answers, strict=True) if why is not None}
    if me != 0:
        call(hosts[0], port, {"node": me, "failed": failed}, limit_s)
        listener.close()
        return None
    listener.reports[0] = failed
    slack_s = 2 * limit_s  # for nodes that started later, and waited in vain for others
    end = time.monotonic() + slack_s
    while len(listener.reports) < len(hosts) and time.monotonic() < end:
        time.sleep(RETRY_S / 10)
    listener.complete.set()
    time.sleep(RETRY_S)  # the last answers go out
    listener.close()
    return combine_reports(hosts, dict(listener.reports), slack_s)


def combine_reports(hosts: Sequence[str], reports: dict[int, dict[int, str]], limit_s: float) -> PreflightResults:
    """Return the survey that the nodes' reports make: links that fail, and nodes that nobody reaches."""
    found = PreflightResults(tuple(hosts))
    for node in range(len(hosts)):
        tried = [other for other in reports if other != node]
        if node not in reports and all(node in reports[other] for other in tried):
            found.lost[node] = reports[0].get(node, f"it did not report to {hosts[0]} within {limit_s:g} s")
    for node, failed in sorted(reports.items()):
        for other, why in failed.items():
            if node not in found.lost and other not in found.lost:
                found.links[node, other] = [LinkSample(broken=why)]
    for node in range(1, len(hosts)):
        if node not in reports and node not in found.lost:
            found.links.setdefault((node, 0), [LinkSample(broken=f"it could not report to {hosts[0]}")])
    return found
