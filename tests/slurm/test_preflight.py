"""Tests of preflight on a real lab: it names the degraded node or link, and no other."""

from __future__ import annotations

import pytest

from tests.slurm.batch import submit

pytestmark = pytest.mark.slow

FILE = "preflight.jsonl"
RATE, QUARTER = "400M", "100M"


def preflight(lab, tmp_path, *arguments):
    job = submit(lab, tmp_path, "preflight.sh", *arguments)
    state, code = job.ended()
    (summary,) = job.records(FILE, "preflight_summary")
    named = [(fault["kind"], fault["nodes"]) for fault in summary["faults"]]
    return job, (state, code), named


def test_a_healthy_lab_has_no_faults(lab, tmp_path):
    lab.set_link("all", rate=RATE)
    job, ended, named = preflight(lab, tmp_path, "--sweeps", "3")
    assert (ended, named) == (("COMPLETED", "0:0"), []), job.output
    pairs = job.records(FILE, "preflight_pair")
    assert sorted((each["source"], each["destination"]) for each in pairs) == sorted(
        (f"node{a}", f"node{b}") for a in range(1, 5) for b in range(1, 5) if a != b
    )
    assert all(each["broken"] is None and each["repeats"] == 3 for each in pairs)
    assert all(0.02 < each["bandwidth_GBps"] < 0.07 for each in pairs)  # 400 Mbit/s are 0.05
    assert len(job.records(FILE, "preflight_node")) == 4
    assert "no slow or broken node or link: 4 nodes, 6 pairs" in job.output
    assert (job.results / "exclude.txt").read_text() == ""


def test_a_link_at_a_quarter_of_the_rate_is_named(lab, tmp_path):
    lab.set_link("all", rate=RATE)
    lab.set_link("node3", rate=QUARTER)
    job, ended, named = preflight(lab, tmp_path, "--sweeps", "3")
    assert (ended, named) == (("FAILED", "1:0"), [("slow_node_link", ["node3"])]), job.output
    assert "\n--exclude=node3\n" in job.output
    assert (job.results / "exclude.txt").read_text() == "--exclude=node3\n"


@pytest.mark.full
def test_a_throttled_node_is_named(lab, tmp_path):
    lab.set_link("all", rate=RATE)
    lab.throttle("node2", 75)
    job, ended, named = preflight(lab, tmp_path)
    assert (ended, named) == (("FAILED", "1:0"), [("slow_node", ["node2"])]), job.output


def test_a_broken_link_is_named_before_mpi_hangs(lab, tmp_path):
    """Frames from node2 to node4 go to an unused address."""
    lost = ["ip", "neigh", "replace", "10.77.0.4", "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "eth0"]
    try:
        assert lab.run(["srun", "--nodelist=node2", *lost]).returncode == 0
        job, ended, named = preflight(lab, tmp_path, "--limit", "5")
    finally:
        lab.run(["srun", "--nodelist=node2", "ip", "neigh", "del", "10.77.0.4", "dev", "eth0"])
    assert (ended, named) == (("FAILED", "4:0"), [("broken_link", ["node2", "node4"])]), job.output
    assert "the link between node2 and node4 is broken: no answer by TCP within 5 s" in job.output
    assert (job.results / "exclude.txt").read_text() == "--exclude=node4\n"
