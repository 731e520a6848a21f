"""Faults in synthetic results: slow nodes, slow links of nodes, slow links between two nodes; no fault by chance."""

from __future__ import annotations

import json
from itertools import permutations

import jsonschema
import numpy as np
import pytest

from hpccoll.preflight.faults import find_faults, get_low_ratio, list_excluded_nodes
from hpccoll.preflight.link_benchmark import LinkSample
from hpccoll.preflight.node_benchmark import NodeSpeed
from hpccoll.preflight.results import PreflightResults
from hpccoll.records import make_json_schema

NBYTES, RATE, LATENCY_S = 1 << 20, 50e6, 50e-6
THRESHOLD = 0.6


def healthy(nodes, seed=0, noise=0.1):
    """Return results of equal nodes, each value a little worse than the best one, by chance."""
    random = np.random.default_rng(seed)
    results = PreflightResults(tuple(f"node{node + 1}" for node in range(nodes)), NBYTES)

    def worse():
        return 1 + abs(random.normal(0, noise))

    for a, b in permutations(range(nodes), 2):
        results.links[a, b] = [LinkSample(LATENCY_S * worse(), NBYTES / RATE * worse()) for _ in range(5)]
    for node in range(nodes):
        results.speeds[node] = [NodeSpeed(5e9 / worse(), 1e9 / worse()) for _ in range(5)]
    return results


def slow_down(results, times, *, chosen=lambda a, b: True, latency=1.0):
    """Multiply the transfer times, and latencies, of the chosen links."""
    for (a, b), seen in results.links.items():
        if chosen(a, b):
            results.links[a, b] = [
                LinkSample(each.latency_seconds * latency, each.transfer_seconds * times) for each in seen
            ]


def find_kinds(results):
    return [(fault.kind, fault.nodes) for fault in find_faults(results, THRESHOLD)]


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 16])
def test_healthy_nodes_have_no_faults(nodes):
    for seed in range(40):
        assert find_kinds(healthy(nodes, seed, noise=0.2)) == [], seed


@pytest.mark.parametrize("nodes", [3, 4, 5, 8, 16])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_node_link_with_a_quarter_of_the_rate_is_a_fault(nodes, which):
    which %= nodes
    for seed in range(15):
        results = healthy(nodes, seed)
        slow_down(results, 4, chosen=lambda a, b: which in (a, b))
        assert find_kinds(results) == [("slow_node_link", (f"node{which + 1}",))], seed
        assert list_excluded_nodes(find_faults(results, THRESHOLD)) == [f"node{which + 1}"]


@pytest.mark.parametrize("verb", ["sends", "receives"])
def test_slow_direction_of_a_node_link_is_named(verb):
    results = healthy(4)
    slow_down(results, 4, chosen=lambda a, b: (a if verb == "sends" else b) == 2)
    (fault,) = find_faults(results, THRESHOLD)
    assert (fault.kind, fault.nodes) == ("slow_node_link", ("node3",))
    assert f"it {verb} 0.01" in fault.found
    assert ("sends" in fault.found) != ("receives" in fault.found)


def test_node_link_with_high_latency_is_a_fault():
    results = healthy(4)
    slow_down(results, 1, chosen=lambda a, b: 1 in (a, b), latency=20)
    (fault,) = find_faults(results, THRESHOLD)
    assert (fault.kind, fault.nodes) == ("slow_node_link", ("node2",))
    assert "answers in" in fault.found


@pytest.mark.parametrize("nodes", [2, 3, 4, 8])
def test_slow_node_explains_its_slow_links(nodes):
    for seed in range(15):
        results = healthy(nodes, seed)
        results.speeds[1] = [
            NodeSpeed(each.copy_bytes_per_s / 3, each.operations_per_s / 3) for each in results.speeds[1]
        ]
        slow_down(results, 3, chosen=lambda a, b: 1 in (a, b), latency=30)
        assert find_kinds(results) == [("slow_node", ("node2",))], seed


def test_slow_node_and_slow_node_link_are_both_faults():
    results = healthy(6)
    results.speeds[0] = [NodeSpeed(1e9, 1e9)] * 5
    slow_down(results, 4, chosen=lambda a, b: 5 in (a, b))
    assert find_kinds(results) == [("slow_node", ("node1",)), ("slow_node_link", ("node6",))]
    assert list_excluded_nodes(find_faults(results, THRESHOLD)) == ["node1", "node6"]


@pytest.mark.parametrize("nodes", [3, 4, 8])
def test_slow_link_between_two_nodes_names_both(nodes):
    results = healthy(nodes)
    slow_down(results, 4, chosen=lambda a, b: {a, b} == {0, 1})
    (fault,) = find_faults(results, THRESHOLD)
    assert (fault.kind, fault.nodes) == ("slow_link", ("node1", "node2"))
    assert fault.exclude in fault.nodes


def test_fewest_nodes_are_excluded():
    results = healthy(10)
    slow_down(results, 4, chosen=lambda a, b: {a, b} in ({2, 0}, {2, 5}, {2, 7}))
    found = find_faults(results, THRESHOLD)
    assert [fault.nodes for fault in found] == [("node1", "node3"), ("node3", "node6"), ("node3", "node8")]
    assert list_excluded_nodes(found) == ["node3"]


def test_single_bad_samples_are_no_fault():
    results = healthy(4)
    for pair in [(0, 1), (1, 0), (1, 2), (2, 1), (1, 3), (3, 1)]:
        results.links[pair][:4] = [LinkSample(LATENCY_S * 50, NBYTES / RATE * 50)] * 4  # one good repetition is enough
    results.speeds[2][:2] = [NodeSpeed(1e8, 1e8)] * 2  # but of a node most count
    assert find_kinds(results) == []
    results.speeds[2][:3] = [NodeSpeed(1e8, 1e8)] * 3
    assert find_kinds(results) == [("slow_node", ("node3",))]


def test_tapered_network_has_no_faults():
    results = healthy(8)
    slow_down(results, 2.5, chosen=lambda a, b: (a < 4) != (b < 4))
    assert find_kinds(results) == []


def test_two_nodes_are_too_few_to_find_a_slow_link():
    results = healthy(2)
    slow_down(results, 100)
    assert find_kinds(results) == []


def test_lost_nodes_and_broken_links_come_first():
    results = healthy(4)
    results.links[0, 1] = results.links[1, 0] = [LinkSample(broken="no answer within 20 s")]
    results.lost[3] = "rank 3 did not answer"
    found = find_faults(results, THRESHOLD)
    assert [(fault.kind, fault.nodes, fault.ratio) for fault in found] == [
        ("lost_node", ("node4",), None),
        ("broken_link", ("node1", "node2"), None),
    ]
    assert "no answer within 20 s" in found[1].found


def test_records_match_the_schema():
    from hpccoll.cli.preflight import _make_records, _make_summary

    results = healthy(4)
    slow_down(results, 4, chosen=lambda a, b: 2 in (a, b))
    results.links[0, 1] = [LinkSample(broken="no answer")]
    results.speeds.pop(3)
    results.lost[3] = "gone"
    validator = jsonschema.Draft202012Validator(make_json_schema())
    records = [*_make_records(results), _make_summary(results, THRESHOLD, find_faults(results, THRESHOLD))]
    for record in records:
        validator.validate(json.loads(json.dumps(record, allow_nan=False)))
    assert [record["kind"] for record in records] == ["preflight_pair"] * 12 + ["preflight_node"] * 4 + [
        "preflight_summary"
    ]
    assert list(records[-1]["exclude"]) == ["node2", "node4"]
    broken, sound = records[0], records[1]
    assert (broken["bandwidth_GBps"], broken["broken"]) == (None, "no answer")
    assert sound["bandwidth_GBps"] == pytest.approx(NBYTES / min(sound["transfer_us"]) / 1e3, rel=1e-3)


@pytest.mark.parametrize(
    ("value", "others", "expected"),
    [
        (10, [40, 40, 40], 0.25),
        (30, [40, 40, 40], None),  # not far enough
        (10, [], None),
        (10, [10, 40, 70], None),  # the others do not agree either
    ],
)
def test_get_low_ratio(value, others, expected):
    assert get_low_ratio(value, others, THRESHOLD) == expected
