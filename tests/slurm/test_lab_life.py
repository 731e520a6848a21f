"""Tests of a running lab: jobs on all nodes, isolation of nodes, link rates, power cuts, throttling, failed starts."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from hpccoll.errors import CommunicationError, UsageError
from hpccoll.lab import ClusterSpec, Lab, parse_rate

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ALL = ["node1", "node2", "node3", "node4"]


def wait_for(found, limit_s=120.0):
    """Wait until `found()` is true; SLURM polls its nodes every few seconds."""
    end = time.monotonic() + limit_s
    while not found():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


def state(lab, node):
    """Return the SLURM state of a node: `idle`, `down*`, ..."""
    return lab.run(["sinfo", "-h", "-n", node, "-o", "%T"], timeout_s=30).stdout.strip()


def traffic(lab, sender="node1", receiver="node2", mib=16):
    """Return the bytes per second of a connection between two nodes, and its shortest round trip in seconds."""
    program = [sys.executable, str(HERE / "traffic.py")]
    serving = lab.start(["srun", "-N1", "-w", receiver, "--overlap", *program, "serve"])
    sent = lab.run(["srun", "-N1", "-w", sender, *program, "send", receiver, str(mib)], timeout_s=100)
    served, errors = serving.communicate(timeout=60)
    assert sent.returncode == 0, sent.stderr + errors
    return json.loads(served)["bytes_per_s"], json.loads(sent.stdout)["round_trip_s"]


def count_iterations(lab, *where):
    """Return how many loop iterations each node completed within the same 1.5 seconds."""
    said = ["-1"]
    for delay_s in (1.5, 6.0, 24.0):  # until every process begins before the start of the window
        words = [sys.executable, str(HERE / "count_iterations.py"), str(time.time() + delay_s), "1.5"]
        said = lab.run(["srun", *where, *words], timeout_s=90).stdout.split()
        if "-1" not in said:
            break
    return {name: sum(int(n) for at, n in zip(said[::2], said[1::2], strict=True) if at == name) for name in said[::2]}


def test_a_job_runs_on_every_node(lab):
    done = lab.run(["srun", "--nodes=4", "--ntasks-per-node=2", "hostname"], timeout_s=60)
    assert sorted(done.stdout.split()) == sorted(ALL * 2), done.stderr


def test_nodes_share_only_the_shared_directory(lab):
    said = "echo $SLURMD_NODENAME > /tmp/mine; cp /tmp/mine /dev/shm/mine; cp /tmp/mine $0/$SLURMD_NODENAME; "
    said += "sleep 0.5; cat /tmp/mine /dev/shm/mine; ls /tmp/mine /dev/shm | wc -l; readlink /proc/self/ns/ipc; "
    said += "ip -4 -o addr show eth0 | grep -o 'inet [0-9.]*'"
    done = lab.run(["srun", "--nodes=4", "--label", "bash", "-c", said, str(lab.shared_dir)], timeout_s=60)
    lines = sorted(done.stdout.splitlines())
    by_rank = [[line.split(": ", 1)[1] for line in lines if line.startswith(f"{rank}:")] for rank in range(4)]
    for rank, name in enumerate(ALL):
        assert by_rank[rank].count(name) == 2, done.stdout
        assert f"inet 10.77.0.{rank + 1}" in by_rank[rank]
    assert len({line for line in done.stdout.split() if line.startswith("ipc:")}) == 4
    assert sorted(path.name for path in lab.shared_dir.glob("node*")) == ALL


def test_the_exit_status_and_both_streams_come_back(lab):
    done = lab.run(["bash", "-c", "echo out; echo err >&2; pwd; exit 7"], cwd=HERE, env={"X": "1"})
    assert (done.returncode, done.stdout, done.stderr) == (7, f"out\n{HERE}\n", "err\n")


def test_a_command_past_its_time_limit_is_killed_and_named(lab):
    with pytest.raises(CommunicationError, match="did not end within 1 s"):
        lab.run(["bash", "-c", "echo here; sleep 1000 & sleep 1000"], timeout_s=1)


@pytest.mark.parametrize("rate", ["400M", "80M"])
def test_a_link_keeps_its_rate(lab, rate):
    lab.set_link("node2", rate=rate)
    wanted = parse_rate(rate)
    found = []
    for _ in range(4):  # a busy machine slows a repetition down, or delays the receiver, which then finds data waiting
        found.append(traffic(lab, mib=max(8, int(wanted / 3e6)))[0] / wanted)
        if 0.94 <= found[-1] < 1.06:
            return
    pytest.fail(f"fractions of the nominal rate: {found}")


def test_slurm_detects_a_power_cut_and_a_cut_link_and_restore_undoes_them(lab):
    sleeping = lab.start(["srun", "-w", "node3,node4", "--ntasks=2", "sleep", "600"])
    wait_for(lambda: {state(lab, "node3"), state(lab, "node4")} <= {"mixed", "allocated"})
    lab.set_link("node1", up=False)
    lab.set_power("node4", on=False)
    told = [(node["power"], node["link_up"]) for node in lab.get_status()["nodes"]]
    assert told == [(True, False), (True, True), (True, True), (False, True)]
    wait_for(lambda: state(lab, "node4").startswith("down") and state(lab, "node1").startswith("down"))
    _, said = sleeping.communicate(timeout=60)
    assert sleeping.returncode != 0
    assert "node4" in said
    assert state(lab, "node2") == "idle"
    lab.restore()
    assert [state(lab, node) for node in ALL] == ["idle"] * 4


def test_a_throttled_node_is_slow_alone_and_beside_others(lab):
    lab.throttle("node3", percent=75)
    together = count_iterations(lab, "--nodes=4", "--ntasks-per-node=2")
    alone = {name: count_iterations(lab, "--nodes=1", "-w", name)[name] for name in ("node2", "node3")}
    assert together["node3"] < 0.7 * min(together[name] for name in ALL if name != "node3"), together
    assert alone["node3"] < 0.6 * alone["node2"], alone
    lab.throttle("node3", percent=0)
    free = count_iterations(lab, "--nodes=4", "--ntasks-per-node=2")
    assert free["node3"] > 0.7 * sum(free.values()) / 4, free


def test_invalid_requests_are_refused(lab):
    with pytest.raises(UsageError, match="all, node1"):
        lab.set_power("node9", on=False)
    with pytest.raises(UsageError, match="--percent 100"):
        lab.throttle("node1", percent=100)
    with pytest.raises(UsageError, match="not a rate"):
        lab.set_link("node1", rate="slow")
    lab.set_power("node1", on=False)
    with pytest.raises(UsageError, match="node1 is off"):
        lab.throttle("node1", percent=50)


def test_a_round_trip_takes_twice_the_latency(needs_namespaces, shares):
    with Lab(ClusterSpec(nodes=2, latency_s=5e-3, bytes_per_s=parse_rate("100M"), shares=shares)) as lab:
        found = [traffic(lab, mib=8)]
        while len(found) < 4 and not (found[-1][0] < 1.06 * parse_rate("100M") and found[-1][1] < 0.013):
            found.append(traffic(lab, mib=8))  # a busy machine delays messages and receivers
    assert all(round_trip_s >= 0.010 for _, round_trip_s in found)
    assert min(bytes_per_s for bytes_per_s, _ in found) < 1.06 * parse_rate("100M")
    assert min(round_trip_s for _, round_trip_s in found) < 0.013


def test_a_failed_start_names_the_reason_and_leaves_nothing(needs_namespaces, tmp_path, monkeypatch):
    fake = tmp_path / "slurmd"
    fake.write_text("#!/bin/sh\necho no such luck\nexit 1\n", encoding="ascii")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    folder = Path("/tmp") / f"lab-{os.getpid()}"
    with (
        pytest.raises(CommunicationError, match=r"(?s)node1 ended.*no such luck"),
        Lab(ClusterSpec(nodes=1, shares=(str(tmp_path),)), state_dir=folder),
    ):
        pytest.fail("it started")
    assert not folder.exists()
