"""The records of `hpccoll profile --json` satisfy the JSON Schema, and say what the screen says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpccoll.profile import explain_profile
from hpccoll.profile.explanation_records import make_records
from hpccoll.profile.findings import list_findings
from hpccoll.profile.what_if import DEFAULT_CHANGES, WhatIf
from tests.record_schema import require_valid
from tests.unit.profile.test_findings import HOSTS, RANKS, emulate

CAUSES: dict[str, tuple[str, dict[str, Any]]] = {
    "imbalance": ("late_rank", {"rank": 2, "lateness": "imbalance", "op": "recv"}),
    "io": ("late_rank", {"rank": 1, "lateness": "outside"}),
    "link": ("slow_link", {"rank": 2, "dest": 3, "node": "host", "nbytes": 8}),
    "node": ("late_node", {"node": "slow", "node_ranks": [2, 3], "lateness": "imbalance", "rank": None}),
    "split": ("calls_in_a_row", {"op": "all_reduce", "calls": 4000, "nbytes": 8}),
}


def list_records(explanation, changes=()):
    """Return the records as a script reads them, by kind."""
    predictions = WhatIf(explanation.graph).predict(changes)
    lines = [json.loads(json.dumps(record.as_dict())) for record in make_records(explanation, predictions)]
    for line in lines:
        require_valid(line)
    return {kind: [line for line in lines if line["kind"] == kind] for kind in {line["kind"] for line in lines}}


@pytest.mark.parametrize("fault", CAUSES)
def test_the_first_finding_names_the_cause(fault):
    hosts = HOSTS if fault == "node" else ()
    explanation = explain_profile(emulate(fault, 0, hosts=hosts)[0])
    cause, fields = CAUSES[fault]
    records = list_records(explanation)
    assert records["profile"][0]["nodes"] == max(len(set(hosts)), 1)
    finding = records["profile_finding"][0]
    assert finding["cause"] == cause
    assert {name: finding[name] for name in fields} == fields
    assert finding["found"] == list_findings(explanation)[0].found
    assert finding["site"] is None or "{file}:{line}".format(**finding["site"]) in finding["found"]
    assert finding["share"] == pytest.approx(finding["saved_s"] / explanation.graph.run_s)


def test_the_times_of_the_ranks_and_of_the_lines_add_up():
    explanation = explain_profile(emulate("imbalance", 0)[0])
    records = list_records(explanation)
    (job,) = records["profile"]
    assert job["ranks"] == len(job["rank_times"]) == RANKS
    assert job["nodes"] == 1
    assert job["parallel_efficiency"] == pytest.approx(job["load_balance"] * job["serialisation"] * job["transfer"])
    for row in job["rank_times"]:
        assert row["useful_s"] + row["wait_s"] + row["transfer_s"] == pytest.approx(job["run_s"])
    assert sum(site["calls"] for site in records["profile_site"]) == job["calls"]
    waited = sum(row["wait_s"] for row in job["rank_times"]) / RANKS
    at_end = explanation.graph.wait_s[explanation.graph.site < 0].sum() / RANKS
    assert sum(site["wait_s"] for site in records["profile_site"]) + at_end == pytest.approx(waited)


def test_each_change_has_a_prediction_under_its_own_name():
    explanation = explain_profile(emulate("imbalance", 0)[0])
    changes = (*DEFAULT_CHANGES, "heal=2")
    predictions = list_records(explanation, changes)["profile_prediction"]
    assert [each["change"] for each in predictions] == list(changes)
    for each in predictions:
        if each["predicted_s"] is None:
            assert each["saving"] is None
        else:
            assert each["saving"] == pytest.approx(1 - each["predicted_s"] / each["recorded_s"])
    assert predictions[-1]["description"] == "rank 2 as fast as the others"
