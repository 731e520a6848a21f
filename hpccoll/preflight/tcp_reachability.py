"""Check over TCP that every node can reach every other node, without MPI, which hangs at startup if a link is broken.

Each node listens on one port, connects to every other node and reports failures to node 0, which combines the reports.
A node counts as lost if no other node reached it and it sent no report. MPI starts over the TCP network, even if it
sends data over another network.
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
RETRY_S, MAX_CONNECTIONS = 0.1, 64
REPORT_LIMIT_S = 300.0  # time for a report and its acknowledgement, over a connection that works
_HELLO = b"hpccoll preflight\n"


def read_slurm_step(environ: Mapping[str, str]) -> tuple[list[str], int, int]:
    """Run scontrol; return the host names of this job step, this node's index among them, and a port for this job.

    Raises:
        UnavailableError: this process is not in a SLURM job step.
        UsageError: the step does not have one task per node.
    """
    try:
        nodes, node, job = environ["SLURM_STEP_NODELIST"], int(environ["SLURM_NODEID"]), int(environ["SLURM_JOB_ID"])
        scontrol = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True)
    except (KeyError, OSError, subprocess.CalledProcessError) as error:
        why = f"{error.args[0]} is not set" if isinstance(error, KeyError) else error
        raise UnavailableError(f"--reach asks SLURM for the nodes: start it by srun, inside a job ({why})") from error
    hosts = scontrol.stdout.split()
    if environ.get("SLURM_STEP_NUM_TASKS") != str(len(hosts)):
        raise UsageError(f"--reach needs one task on each of {len(hosts)} nodes; srun --ntasks-per-node=1")
    return hosts, node, FIRST_PORT + job % PORTS


class ReachabilityServer:
    """Listen on `port`, accept connections of other nodes in background threads, and collect their reports.

    Attributes:
        reports: for each node that sent a report, the nodes that it could not reach, each with the reason.
        all_reported: `threading.Event` that node 0 sets when it needs no more reports, before it acknowledges any
            report. A node listens until its report is acknowledged, so that nodes that start later can reach it.
    """

    def __init__(self, port: int) -> None:
        self.reports: dict[int, dict[int, str]] = {}
        self.all_reported = threading.Event()
        self._socket = socket.create_server(("", port), backlog=1024)
        threading.Thread(target=self._accept_connections, daemon=True).start()

    def _accept_connections(self) -> None:
        """Accept connections until the socket is closed, and serve each in a thread of its own."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # `close` was called
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Send a greeting to a connected node; if it sends a report, store the report and acknowledge it.

        The acknowledgement is sent once `all_reported` is set, or after REPORT_LIMIT_S seconds. Each read or write
        fails after REPORT_LIMIT_S seconds. Network errors and invalid JSON close the connection silently.
        """
        with connection, suppress(OSError, ValueError), connection.makefile("rwb") as stream:
            connection.settimeout(REPORT_LIMIT_S)
            stream.write(_HELLO)
            stream.flush()
            message = json.loads(stream.readline() or b"{}")
            if "failed" in message:
                failed = {int(node): str(reason) for node, reason in message["failed"].items()}
                self.reports[int(message["node"])] = failed
                self.all_reported.wait(REPORT_LIMIT_S)
                stream.write(_HELLO)
                stream.flush()

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def contact_node(host: str, port: int, message: dict[str, object], limit_s: float) -> str | None:
    """Connect to a node and send it a message; return the reason if that failed, else None.

    Retries the connection for `limit_s` seconds, because the node may not listen yet. A message with the key `failed`
    is a report, whose acknowledgement this function also waits for.
    """
    deadline = time.monotonic() + limit_s
    while True:
        try:
            timeout = max(deadline - time.monotonic(), RETRY_S)
            with socket.create_connection((host, port), timeout=timeout) as connection:
                stream = connection.makefile("rwb")
                greeting = stream.readline()
                stream.write(json.dumps(message).encode() + b"\n")
                stream.flush()
                if "failed" in message:
                    connection.settimeout(REPORT_LIMIT_S)
                    stream.readline()
                return None if greeting == _HELLO else f"port {port} of {host} belongs to another program"
        except OSError as error:
            if time.monotonic() + RETRY_S > deadline:
                return f"no answer by TCP within {limit_s:g} s ({error.strerror or error})"
            time.sleep(RETRY_S)


def check_reachability(hosts: Sequence[str], node: int, port: int, limit_s: float) -> PreflightResults | None:
    """Try to connect to all other nodes; return all nodes' results on node 0, else None. Collective over all nodes.

    Args:
        hosts: names of all nodes, in the same order on every node.
        node: index of this node.
        port: a free port, the same on every node.
        limit_s: seconds after which a node counts as unreachable.
    """
    server = ReachabilityServer(port)
    others = [other for other in range(len(hosts)) if other != node]
    with ThreadPoolExecutor(min(MAX_CONNECTIONS, max(len(others), 1))) as pool:
        reasons = pool.map(lambda other: contact_node(hosts[other], port, {"node": node}, limit_s), others)
        failed = {other: reason for other, reason in zip(others, reasons, strict=True) if reason is not None}
    if node != 0:
        contact_node(hosts[0], port, {"node": node, "failed": failed}, limit_s)
        server.close()
        return None
    server.reports[0] = failed
    report_limit_s = 2 * limit_s  # a node that started up to limit_s later may itself wait limit_s for others
    deadline = time.monotonic() + report_limit_s
    while len(server.reports) < len(hosts) and time.monotonic() < deadline:
        time.sleep(RETRY_S / 10)
    server.all_reported.set()
    time.sleep(RETRY_S)  # gives the server's threads time to send the acknowledgements
    server.close()
    return combine_reports(hosts, dict(server.reports), report_limit_s)


def combine_reports(hosts: Sequence[str], reports: dict[int, dict[int, str]], limit_s: float) -> PreflightResults:
    """Return results with the broken links and lost nodes that the reports imply.

    `reports` maps node 0, and each node whose report arrived within `limit_s` seconds, to its unreachable nodes.
    """
    results = PreflightResults(tuple(hosts))
    for node in range(len(hosts)):
        if node not in reports and all(node in failed for failed in reports.values()):
            results.lost[node] = reports[0].get(node, f"it did not report to {hosts[0]} within {limit_s:g} s")
    for node, failed in sorted(reports.items()):
        for other, reason in failed.items():
            if node not in results.lost and other not in results.lost:
                results.links[node, other] = [LinkSample(broken=reason)]
    for node in range(1, len(hosts)):
        if node not in reports and node not in results.lost:
            results.links.setdefault((node, 0), [LinkSample(broken=f"it could not report to {hosts[0]}")])
    return results
