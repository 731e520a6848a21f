"""Reachability by TCP between nodes on loopback addresses, each in a thread."""

from __future__ import annotations

import json
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

from hpccoll.errors import UnavailableError, UsageError
from hpccoll.preflight import tcp_reachability
from hpccoll.preflight.faults import find_faults, list_excluded_nodes
from hpccoll.preflight.tcp_reachability import ReachabilityServer, choose_address, contact_node, make_code

SECRET = b"0123456789abcdef"
LOST = {"node": 1, "failed": {"0": "no \x1b[31mroute"}}


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def run_nodes(hosts, port, present):
    """Let the nodes `present` check all of `hosts`, each from an address of its own; return the result of node 0."""
    with ThreadPoolExecutor(len(present)) as pool:
        calls = [
            pool.submit(tcp_reachability.check_reachability, hosts, node, port, SECRET, 1.0)
            for node in sorted(present, reverse=True)
        ]
        found = [call.result() for call in reversed(calls)]
    assert all(each is None for each in found[1:])
    return found[0]


def test_all_nodes_reach_each_other(port):
    results = run_nodes(["127.0.0.1", "127.0.0.2", "127.0.0.3"], port, [0, 1, 2])
    assert (results.lost, results.links) == ({}, {})


def test_absent_node_is_lost(port):
    results = run_nodes(["127.0.0.1", "127.0.0.2", "127.0.0.3"], port, [0, 1])
    assert list(results.lost) == [2]
    found = find_faults(results, 0.6)
    assert [fault.kind for fault in found] == ["lost_node"]
    assert list_excluded_nodes(found) == ["127.0.0.3"]


def test_link_reported_by_both_ends_is_broken():
    why = "no answer"
    results = tcp_reachability.combine_reports(["a", "b", "c", "d"], {0: {}, 1: {3: why}, 2: {}, 3: {1: why}}, 1)
    assert [(fault.kind, fault.nodes) for fault in find_faults(results, 0.6)] == [("broken_link", ("b", "d"))]


def test_node_that_cannot_report_to_node_0_has_a_broken_link_to_it():
    results = tcp_reachability.combine_reports(["a", "b", "c"], {0: {2: "no answer"}, 1: {}}, 1)
    assert [(fault.kind, fault.nodes) for fault in find_faults(results, 0.6)] == [("broken_link", ("a", "c"))]


@pytest.fixture
def server(port):
    """Node 0 of two nodes."""
    listening = ReachabilityServer(["127.0.0.1", "127.0.0.2"], 0, port, SECRET)
    listening.all_reported.set()
    yield listening
    listening.close()


def send(port, line):
    """Send a line, built from the number of the greeting, and return the server's answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection, connection.makefile("rwb") as stream:
        number = stream.readline().split()[-1]
        stream.write(line(number))
        stream.flush()
        return stream.readline()


def test_a_report_with_the_secret_counts_and_its_terminal_commands_are_escaped(server, port):
    assert contact_node("127.0.0.1", port, SECRET, 5.0, LOST) is None
    assert server.reports == {1: {0: r"no \x1b[31mroute"}}


def test_a_report_may_have_400_bytes_for_each_node(server, port):
    report = {"node": 1, "failed": {"0": "x" * 4600}}
    assert contact_node("127.0.0.1", port, SECRET, 5.0, report) is None
    assert list(server.reports) == [1]


@pytest.mark.parametrize(
    "line",
    [
        lambda _: json.dumps(LOST).encode() + b"\n",
        lambda number: make_code(b"another", number, b'{"node":1,"failed":{}}') + b' {"node":1,"failed":{}}\n',
        lambda _: make_code(SECRET, b"0", json.dumps(LOST).encode()) + b" " + json.dumps(LOST).encode() + b"\n",
        lambda number: make_code(SECRET, number, b'{"node":7,"failed":{}}') + b' {"node":7,"failed":{}}\n',
        lambda number: make_code(SECRET, number, b'{"node":1}') + b' {"node":1}\n',
        lambda number: make_code(SECRET, number, b"[1]") + b" [1]\n",
        lambda _: b"x" * 2**20,
    ],
    ids=["no code", "another secret", "replayed", "unknown node", "no report", "no object", "no end"],
)
def test_other_messages_are_dropped(server, port, line):
    with suppress(ConnectionError):  # the server closes the connection before it has read all
        assert send(port, line) == b""
    assert server.reports == {}
    assert contact_node("127.0.0.1", port, SECRET, 5.0) is None


def test_connections_beyond_a_number_are_closed(server, port, monkeypatch):
    with ExitStack() as stack:
        for _ in range(4 * 2 + tcp_reachability.MAX_CONNECTIONS):
            kept = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            assert kept.recv(100)
        extra = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        assert extra.recv(100) == b""
    assert contact_node("127.0.0.1", port, SECRET, 5.0) is None


def test_a_node_listens_on_the_address_of_its_name_alone(server, port):
    assert server._socket.getsockname()[0] == "127.0.0.1"
    assert choose_address("localhost") == ""


def test_reach_needs_a_secret(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, "node1\n"))
    step = {"SLURM_STEP_NODELIST": "node1", "SLURM_NODEID": "0", "SLURM_JOB_ID": "1", "SLURM_STEP_NUM_TASKS": "1"}
    with pytest.raises(UsageError, match="export HPCCOLL_PREFLIGHT_SECRET="):
        tcp_reachability.read_slurm_step(step)
    assert tcp_reachability.read_slurm_step(step | {tcp_reachability.SECRET: SECRET.decode()})[-1] == SECRET


def test_reach_needs_slurm():
    with pytest.raises(UnavailableError, match="start it by srun"):
        tcp_reachability.read_slurm_step({})
