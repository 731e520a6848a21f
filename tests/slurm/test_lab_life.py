"""The lab itself: it starts, runs jobs over all nodes, keeps its promises on links and power, and leaves nothing."""

from __future__ import annotations


def test_a_job_runs_on_every_node(lab):
    done = lab.run(["srun", "--nodes=4", "--ntasks-per-node=2", "hostname"], timeout_s=60)
    assert sorted(done.stdout.split()) == [f"node{at}" for at in range(1, 5) for _ in range(2)], done.stderr


def test_nodes_come_back_after_a_power_cut(lab):
    lab.power("node3", on=False)
    lab.mend()
    done = lab.run(["srun", "--nodes=4", "hostname"], timeout_s=60)
    assert sorted(done.stdout.split()) == ["node1", "node2", "node3", "node4"], done.stderr
