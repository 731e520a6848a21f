"""Check over TCP that every node can reach every other node, without MPI, which hangs at startup if a link is broken.

Each node listens on one port, connects to every other node and reports failures to node 0, which combines the reports.
A node counts as lost if no other node reached it and it sent no report. MPI starts over the TCP network, even if it
sends data over another network.

Anybody who reaches a node can connect to its port, so a report counts only with a code (HMAC-SHA256) that needs the
secret of the job, SECRET, and the random number that the server sent when the connection began. The lengths of lines
and reports and the number of connections are limited.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import secrets
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
from hpccoll.printable import escape_unprintable

SECRET = "HPCCOLL_PREFLIGHT_SECRET"  # noqa: S105 - an environment variable; its value is the same on all nodes
FIRST_PORT, PORTS = 20_000, 10_000
RETRY_S, MAX_CONNECTIONS = 0.1, 64
REPORT_LIMIT_S = 300.0  # seconds for a report and its acknowledgement over a connection that works
MESSAGE_LIMIT_S = 30.0  # seconds until the first message over a connection must arrive
BYTES_PER_NODE, BASE_BYTES = 400, 4096  # the longest line has BASE_BYTES + BYTES_PER_NODE * nodes bytes
MAX_REASON = 200  # characters
_HELLO = b"hpccoll preflight "
_CODE_BYTES = 16  # random bytes that a server sends when a connection begins


def read_slurm_step(environ: Mapping[str, str]) -> tuple[list[str], int, int, bytes]:
    """Return the data with which this node checks its connections to the nodes of its SLURM job step; runs scontrol.

    Args:
        environ: the environment variables of the process: those that SLURM sets, and the one that SECRET names.

    Returns:
        The host names of the step, this node's index among them, a TCP port for this job, and the job's secret.

    Raises:
        UnavailableError: this process is not in a SLURM job step.
        UsageError: the step does not have one task per node, or SECRET is not set.
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
    if len(environ.get(SECRET, "")) < _CODE_BYTES:
        raise UsageError(
            "--reach needs a secret of the job, so that nobody else can report; run slurm/preflight.sh, or run before "
            f"srun: export {SECRET}=$(openssl rand -hex 16)"
        )
    return hosts, node, FIRST_PORT + job % PORTS, environ[SECRET].encode()


def make_code(secret: bytes, number: bytes, message: bytes) -> bytes:
    """Return the HMAC-SHA256 of `number` and `message`, in hexadecimal digits, by which the sender proves its secret.

    `number` is the random number that the server sent when the connection began, in hexadecimal digits.
    """
    return hmac.digest(secret, number + b" " + message, "sha256").hex().encode()


def choose_address(host: str) -> str:
    """Return the IP address of this host, named `host`, at which other nodes reach it; empty if it is unknown.

    Some hosts resolve their own name to a loopback address, which other nodes cannot reach. A server with an empty
    address listens on all addresses.
    """
    try:
        address = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    except (OSError, IndexError):
        return ""
    return "" if ipaddress.ip_address(address).is_loopback and address != host else str(address)


def listen(host: str, port: int) -> socket.socket:
    """Return a TCP socket that listens on `port` of this host, named `host`, or on all addresses if that fails."""
    with suppress(OSError):  # the name may have an address that is not this host's
        return socket.create_server((choose_address(host), port), backlog=1024)
    try:
        return socket.create_server(("", port), backlog=1024)
    except OSError as error:
        raise UnavailableError(
            f"--reach cannot listen on port {port} of {host} ({error.strerror or error}); another program uses it: "
            "submit the job again, whose number chooses the port"
        ) from error


class ReachabilityServer:
    """Listens on a port, accepts connections of other nodes in background threads, and collects their reports.

    Args:
        hosts: the names of all nodes.
        node: index of this node.
        port: the port.
        secret: the secret of the job.

    Attributes:
        reports: for each node that sent a report, the nodes that it could not reach, each with the reason.
        all_reported: `threading.Event` that node 0 sets when it needs no more reports, before it acknowledges any
            report. A node listens until its report is acknowledged, so that nodes that start later can reach it.
    """

    def __init__(self, hosts: Sequence[str], node: int, port: int, secret: bytes) -> None:
        self.reports: dict[int, dict[int, str]] = {}
        self.all_reported = threading.Event()
        self._nodes, self._secret = len(hosts), secret
        self._places = threading.BoundedSemaphore(4 * len(hosts) + MAX_CONNECTIONS)
        self._socket = listen(hosts[node], port)
        threading.Thread(target=self._accept_connections, daemon=True).start()

    def _accept_connections(self) -> None:
        """Accept connections until the socket is closed; serve each in a thread, a limited number at a time."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # `close` was called
            if self._places.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            else:
                connection.close()  # the node tries again

    def _serve(self, connection: socket.socket) -> None:
        """Serve one connection: send a greeting with a random number, then store and acknowledge a report, if any.

        The acknowledgement is sent once `all_reported` is set, or after REPORT_LIMIT_S seconds. The first line of a
        client must arrive within MESSAGE_LIMIT_S seconds. Network errors and invalid messages close the connection
        silently.
        """
        number = secrets.token_hex(_CODE_BYTES).encode()
        try:
            with (
                connection,
                suppress(OSError, ValueError, TypeError, LookupError),
                connection.makefile("rwb") as stream,
            ):
                connection.settimeout(MESSAGE_LIMIT_S)
                stream.write(_HELLO + number + b"\n")
                stream.flush()
                line = stream.readline(BASE_BYTES + BYTES_PER_NODE * self._nodes)
                if self._store_report(line, number):
                    self.all_reported.wait(REPORT_LIMIT_S)
                    stream.write(_HELLO + make_code(self._secret, number, b"acknowledged") + b"\n")
                    stream.flush()
        finally:
            self._places.release()

    def _store_report(self, line: bytes, number: bytes) -> bool:
        """Store the report of `line` in `reports` and return True; return False if its code is wrong or missing.

        Args:
            line: the code (see `make_code`), a space, and the report as JSON; empty if the node sends no report.
            number: the random number that was sent when the connection began, in hexadecimal digits.

        Raises:
            ValueError, TypeError, LookupError: the code is right, but the report is malformed, or names a node that
                does not exist.
        """
        code, _, message = line.rstrip(b"\n").partition(b" ")
        if not hmac.compare_digest(code, make_code(self._secret, number, message)):
            return False
        report = json.loads(message)
        failed = {int(node): escape_unprintable(str(reason)[:MAX_REASON]) for node, reason in report["failed"].items()}
        if not all(0 <= node < self._nodes for node in (report["node"], *failed)):
            raise ValueError(report["node"])
        self.reports[report["node"]] = failed
        return True

    def close(self) -> None:
        """Close the listening socket, so that no more connections are accepted."""
        self._socket.close()


def contact_node(
    host: str, port: int, secret: bytes, limit_s: float, report: dict[str, object] | None = None
) -> str | None:
    """Connect to a node and send it a report, if any; return the reason if that failed, else None.

    Args:
        host: name of the node.
        port: port on which the node listens.
        secret: the secret of the job, which signs the report.
        limit_s: seconds for which a failed connection is retried, because the node may not listen yet.
        report: message for the node, whose acknowledgement is awaited; None to test the connection only.
    """
    deadline = time.monotonic() + limit_s
    while True:
        try:
            timeout = max(deadline - time.monotonic(), RETRY_S)
            with socket.create_connection((host, port), timeout=timeout) as connection:
                stream = connection.makefile("rwb")
                greeting = stream.readline(BASE_BYTES)
                if not greeting:
                    raise ConnectionAbortedError(0, "the node closed the connection")
                if not greeting.startswith(_HELLO):
                    return f"port {port} of {host} belongs to another program"
                number = greeting.removeprefix(_HELLO).rstrip(b"\n")
                if report is not None:
                    message = json.dumps(report).encode()
                    stream.write(make_code(secret, number, message) + b" " + message)
                stream.write(b"\n")
                stream.flush()
                if report is not None:
                    connection.settimeout(REPORT_LIMIT_S)
                    stream.readline(BASE_BYTES)
                return None
        except OSError as error:
            if time.monotonic() + RETRY_S > deadline:
                return f"no answer by TCP within {limit_s:g} s ({error.strerror or error})"
            time.sleep(RETRY_S)


def check_reachability(
    hosts: Sequence[str], node: int, port: int, secret: bytes, limit_s: float
) -> PreflightResults | None:
    """Connect to all other nodes, and collect on node 0 which nodes cannot reach each other. Collective over the nodes.

    Returns the combined results of all nodes on node 0, and None on other nodes.

    Args:
        hosts: names of all nodes, in the same order on every node.
        node: index of this node.
        port: a free port, the same on every node.
        secret: the secret of the job, the same on every node.
        limit_s: seconds after which a node counts as unreachable.
    """
    server = ReachabilityServer(hosts, node, port, secret)
    others = [other for other in range(len(hosts)) if other != node]
    with ThreadPoolExecutor(min(MAX_CONNECTIONS, max(len(others), 1))) as pool:
        reasons = pool.map(lambda other: contact_node(hosts[other], port, secret, limit_s), others)
        failed = {other: reason for other, reason in zip(others, reasons, strict=True) if reason is not None}
    if node != 0:
        contact_node(hosts[0], port, secret, limit_s, {"node": node, "failed": failed})
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
    """Return preflight results with the broken links and lost nodes that the nodes' reports imply.

    Args:
        hosts: names of all nodes.
        reports: by node whose report arrived, the nodes that it could not reach, each with the reason.
        limit_s: seconds for which node 0 waited for reports, which the reasons of lost nodes state.
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
