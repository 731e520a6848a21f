"""Reachability by TCP between nodes on loopback addresses, each in a thread."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from hpccoll.errors import UnavailableError
from hpccoll.preflight import tcp_reachability
from hpccoll.preflight.faults import find_faults, list_excluded_nodes


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def run_nodes(hosts, port, present, monkeypatch):
    """Let the nodes `present` check all of `hosts`, each from an address of its own; return the result of node 0."""
    server = socket.create_server
    addresses = [(hosts[node], port) for node in present]
    monkeypatch.setattr(socket, "create_server", lambda _, backlog: server(addresses.pop(), backlog=backlog))
    with ThreadPoolExecutor(len(present)) as pool:
        calls = [
            pool.submit(tcp_reachability.check_reachability, hosts, node, port, 1.0)
            for node in sorted(present, reverse=True)
        ]
        found = [call.result() for call in reversed(calls)]
    assert all(each is None for each in found[1:])
    return found[0]


def test_all_nodes_reach_each_other(port, monkeypatch):
    results = run_nodes(["127.0.0.1", "127.0.0.2", "127.0.0.3"], port, [0, 1, 2], monkeypatch)
    assert (results.lost, results.links) == ({}, {})


def test_absent_node_is_lost(port, monkeypatch):
    results = run_nodes(["127.0.0.1", "127.0.0.2", "127.0.0.3"], port, [0, 1], monkeypatch)
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


def test_reach_needs_slurm():
    with pytest.raises(UnavailableError, match="start it by srun"):
        tcp_reachability.read_slurm_step({})
