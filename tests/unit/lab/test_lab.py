"""Tests of a lab's options and configuration that start no daemons."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpccoll.cli.lab import lab
from hpccoll.cli.main import main
from hpccoll.errors import CommunicationError, UnavailableError, UnknownNameError, UsageError
from hpccoll.lab import isolation, launch, network, requirements
from hpccoll.lab.cluster import Lab
from hpccoll.lab.cluster_spec import ClusterSpec, find_paths_below_tmp, format_rate, parse_latency, parse_rate
from hpccoll.lab.isolation import Isolation
from hpccoll.lab.lab_processes import LabProcesses
from hpccoll.lab.slurm_conf import find_free_ports, format_hosts_file, format_slurm_conf
from hpccoll.lab.state_dir import MARKER, LabPaths, clear_state_dir

PATHS = LabPaths(Path("/tmp/some/lab"), "jane")


@pytest.mark.parametrize(
    ("text", "bytes_per_s"), [("400M", 50e6), ("1G", 125e6), ("10Mbit", 1.25e6), ("8k", 1e3), ("2.5Gbit/s", 312.5e6)]
)
def test_parse_rate_takes_bits_in_powers_of_ten(text, bytes_per_s):
    assert parse_rate(text) == bytes_per_s


@pytest.mark.parametrize("text", ["", "fast", "0", "0M", "-4M", "400MB", "4 T"])
def test_parse_rate_refuses_other_text(text):
    with pytest.raises(UsageError, match="such as 400M"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["400M", "1G", "2.5G", "64K"])
def test_format_rate_inverts_parse_rate(text):
    assert format_rate(parse_rate(text)) == text


def test_format_rate_shows_no_limit_as_a_dash():
    assert format_rate(None) == "-"


@pytest.mark.parametrize(("text", "seconds"), [("1ms", 1e-3), ("250us", 250e-6), ("0.5 s", 0.5), ("0", 0.0)])
def test_parse_latency_takes_units(text, seconds):
    assert parse_latency(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1", "1m", "-1ms", "1 h"])
def test_parse_latency_refuses_other_text(text):
    with pytest.raises(UsageError, match="such as 1ms"):
        parse_latency(text)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"nodes": 0}, "--nodes 0"),
        ({"nodes": 251}, "--nodes 251"),
        ({"cpus": 0}, "--cpus 0"),
        ({"bytes_per_s": 10.0}, "too slow"),
        ({"latency_s": 2.0}, "--latency"),
        ({"subnet": "10.77"}, "--subnet"),
        ({"subnet": "10.77.256"}, "--subnet"),
        ({"shares": ("/tmp/not/there",)}, "create it first"),
    ],
)
def test_a_spec_out_of_range_is_refused(wrong, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        ClusterSpec(**wrong)


def test_a_spec_survives_json():
    spec = ClusterSpec(nodes=3, bytes_per_s=50e6, latency_s=1e-3, shares=("/tmp",))
    assert ClusterSpec.from_dict(spec.to_dict()) == spec


def test_select_nodes_by_name():
    spec = ClusterSpec(nodes=2)
    assert spec.select_nodes("node2") == ("node2",)
    assert spec.select_nodes("all") == ("node1", "node2")
    with pytest.raises(UnknownNameError, match="all, node1, node2"):
        spec.select_nodes("node3")


def test_hosts_file_names_all_hosts():
    lines = format_hosts_file(ClusterSpec(nodes=2, subnet="10.9.8")).splitlines()
    assert lines == ["127.0.0.1 localhost", "10.9.8.254 ctl", "10.9.8.1 node1", "10.9.8.2 node2"]


def settings(text):
    """Return the lines of slurm.conf by key; the line of a node by the node's name."""
    pairs = [line.split("=", 1) for line in text.splitlines()]
    return {key if key != "NodeName" else value.split()[0]: value for key, value in pairs}


def test_slurm_conf_has_hosts_users_nodes_and_paths():
    said = settings(format_slurm_conf(ClusterSpec(nodes=3, cpus=5), PATHS))
    assert said["SlurmctldHost"] == "ctl(10.77.0.254)"
    assert said["SlurmUser"] == said["SlurmdUser"] == "jane"
    assert {"node1", "node2", "node3"} <= said.keys()
    assert "NodeAddr=10.77.0.3" in said["node3"]
    assert "CPUs=5" in said["node3"]
    assert all(str(PATHS.dir) in said[key] for key in ("StateSaveLocation", "SlurmdSpoolDir", "SlurmdLogFile"))


def test_slurm_conf_of_flat_mode_has_one_port_per_daemon(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "laptop")
    said = settings(format_slurm_conf(ClusterSpec(nodes=2), PATHS, [7000, 7001, 7002]))
    assert said["SlurmctldHost"] == "laptop(127.0.0.1)"
    assert said["SlurmctldPort"] == "7000"
    assert said["CommunicationParameters"] == "NoInAddrAny,NoCtldInAddrAny"
    assert "NodeHostname=laptop NodeAddr=127.0.0.1 Port=7002" in said["node2"]


def test_free_ports_differ():
    ports = find_free_ports(3)
    assert len(set(ports)) == 3
    assert min(ports) >= 1024


def test_a_node_is_off_once_its_init_process_has_ended():
    own = LabProcesses(PATHS, ClusterSpec(nodes=3), Isolation.FLAT)
    ended, running = subprocess.Popen(["true"]), subprocess.Popen(["sleep", "60"])
    try:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        own.nodes["node1"].process, own.nodes["node2"].process = ended, running
        own.collect_ended_processes()
        assert [node.process for node in own.nodes.values()] == [None, running, None]
    finally:
        running.kill()
        running.wait()


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("command", "limit_s"), [(["true"], 1000.0), (["sleep", "60"], 0.0)])
def test_a_node_that_ends_or_takes_too_long_at_its_start_is_named(command, limit_s, monkeypatch):
    monkeypatch.setattr("hpccoll.lab.lab_processes.START_LIMIT_S", limit_s)
    own = LabProcesses(PATHS, ClusterSpec(nodes=1), Isolation.USER)
    with subprocess.Popen(command) as process:
        own.nodes["node1"].process = process
        with pytest.raises(CommunicationError, match=r"node1 did not start; see .*node1\.log"):
            own.connect_node("node1")
        process.kill()


def test_a_node_that_is_off_is_not_throttled():
    own = LabProcesses(PATHS, ClusterSpec(nodes=1), Isolation.FLAT)
    with pytest.raises(UsageError, match="node1 is off; `hpccoll lab power node1 on` first"):
        own.throttle_node("node1", 50)
    with pytest.raises(UsageError, match=r"--percent 96: give 0 \(full speed\) to 95"):
        own.throttle_node("node1", 96)


def test_find_paths_below_tmp_drops_nested_paths():
    paths = ["/tmp/a/b", "/home/jane", "/tmp/a", "/tmp/ab", "/tmp"]
    assert find_paths_below_tmp(paths) == ["/tmp/a", "/tmp/ab"]


def test_bucket_and_queue_are_large_enough_for_the_rate():
    assert network.compute_burst_bytes(parse_rate("400M")) >= 131_072
    assert network.compute_burst_bytes(parse_rate("10G")) >= parse_rate("10G") * 0.003
    for rate in map(parse_rate, ("1M", "400M", "10G")):
        assert network.compute_queue_bytes(rate) > 10 * network.compute_burst_bytes(rate)


def test_a_link_without_limit_has_no_bucket():
    assert "tbf" in network.build_rate_command("eth0", 50e6)
    assert "tbf" not in network.build_rate_command("eth0", None)


def test_missing_programs_are_named_with_the_install_command(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(requirements, "_SYSTEM_DIRS", ())
    with pytest.raises(UnavailableError) as caught:
        requirements.require_programs()
    assert caught.value.exit_status == 3
    assert "slurmctld, slurmd, srun" in str(caught.value)
    assert "apt-get install --no-install-recommends slurmctld slurmd slurm-client iproute2" in str(caught.value)


def test_a_command_without_slurm_ends_with_3(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(requirements, "_SYSTEM_DIRS", ())
    assert main(["lab", "run", "--dir", str(tmp_path / "lab"), "--", "hostname"]) == 3
    assert "apt-get install" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["down"], ["status"], ["link", "node1", "--off"], ["power", "node1", "off"]])
def test_commands_without_a_lab_end_with_3(command, tmp_path, capsys):
    assert main(["lab", *command, "--dir", str(tmp_path)]) == 3
    said = capsys.readouterr().err
    assert "no lab runs in" in said
    assert "hpccoll lab up" in said


def test_links_are_refused_in_flat_mode():
    with pytest.raises(UnavailableError, match=r"--link or --latency needs .* flat \(asked for\)"):
        launch.launch_lab(ClusterSpec(bytes_per_s=50e6), Path("/tmp/x"), Isolation.FLAT, "asked for", None, keep=True)


def test_flat_mode_is_chosen_on_request():
    assert isolation.choose_isolation(flat=True) == (Isolation.FLAT, "asked for")


@pytest.mark.parametrize("name", ["with blank", "a#b", "long" * 20])
def test_a_directory_that_slurm_cannot_name_is_refused(name, tmp_path):
    with pytest.raises(UsageError, match="plainer directory"):
        launch.launch_lab(ClusterSpec(), Path("/tmp") / name, Isolation.FLAT, "", None, keep=True)


def test_a_directory_with_other_contents_is_refused_and_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    thesis = Path("/tmp") / f"hpccoll-test-{tmp_path.name}" / "thesis.tex"
    thesis.parent.mkdir()
    thesis.write_text("x", encoding="ascii")
    try:
        with pytest.raises(UsageError, match=r"holds thesis\.tex and is not a lab's"):
            launch.launch_lab(ClusterSpec(), thesis.parent, Isolation.FLAT, "", None, keep=True)
        assert thesis.exists()
    finally:
        thesis.unlink()
        thesis.parent.rmdir()


def test_clear_state_dir_keeps_results_on_request(tmp_path):
    for name in ("state/x", "log/y", "shared/result"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    clear_state_dir(tmp_path, keep=False)
    assert (tmp_path / "log/y").exists()  # the directory has no marker of a lab
    (tmp_path / MARKER).touch()
    clear_state_dir(tmp_path, keep=True)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["shared", "shared/result"]
    (tmp_path / MARKER).touch()
    clear_state_dir(tmp_path, keep=False)
    assert not tmp_path.exists()


def test_a_lab_outside_with_is_an_error():
    with pytest.raises(UsageError, match="not up"):
        Lab().run(["true"])


@pytest.mark.parametrize("command", [[], ["up"], ["run"], ["down"], ["status"], ["link"], ["power"], ["slow"]])
def test_help_has_an_example(command):
    said = CliRunner().invoke(lab, [*command, "--help"], prog_name="hpccoll lab").output
    assert re.search(rf"Example:\s+hpccoll lab {' '.join(command)}", said)
