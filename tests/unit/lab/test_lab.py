"""What a lab's options and configuration say, without starting one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpccoll.cli.lab import lab
from hpccoll.cli.main import main
from hpccoll.errors import UnavailableError, UnknownNameError, UsageError
from hpccoll.lab import isolation, launch, network, requirements
from hpccoll.lab.cluster import Lab
from hpccoll.lab.cluster_spec import ClusterSpec, find_paths_below_tmp, format_rate, parse_latency, parse_rate
from hpccoll.lab.isolation import Isolation
from hpccoll.lab.slurm_conf import format_hosts_file, format_slurm_conf
from hpccoll.lab.state_dir import LabPaths, clear_state_dir

PLACE = LabPaths(Path("/tmp/some/lab"), "jane")


@pytest.mark.parametrize(
    ("text", "bytes_per_s"), [("400M", 50e6), ("1G", 125e6), ("10Mbit", 1.25e6), ("8k", 1e3), ("2.5Gbit/s", 312.5e6)]
)
def test_rates_are_bits_in_powers_of_ten(text, bytes_per_s):
    assert parse_rate(text) == bytes_per_s


@pytest.mark.parametrize("text", ["", "fast", "0", "0M", "-4M", "400MB", "4 T"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(UsageError, match="such as 400M"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["400M", "1G", "2.5G", "64K"])
def test_a_rate_is_shown_as_it_was_given(text):
    assert format_rate(parse_rate(text)) == text


def test_no_rate_is_a_dash():
    assert format_rate(None) == "-"


@pytest.mark.parametrize(("text", "seconds"), [("1ms", 1e-3), ("250us", 250e-6), ("0.5 s", 0.5), ("0", 0.0)])
def test_times_have_units(text, seconds):
    assert parse_latency(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1", "1m", "-1ms", "1 h"])
def test_what_is_no_time_is_refused(text):
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
def test_a_shape_out_of_range_is_refused(wrong, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        ClusterSpec(**wrong)


def test_a_shape_survives_json():
    shape = ClusterSpec(nodes=3, bytes_per_s=50e6, latency_s=1e-3, shares=("/tmp",))
    assert ClusterSpec.from_dict(shape.to_dict()) == shape


def test_nodes_are_chosen_by_name():
    shape = ClusterSpec(nodes=2)
    assert shape.select_nodes("node2") == ("node2",)
    assert shape.select_nodes("all") == ("node1", "node2")
    with pytest.raises(UnknownNameError, match="all, node1, node2"):
        shape.select_nodes("node3")


def test_hosts_are_named():
    lines = format_hosts_file(ClusterSpec(nodes=2, subnet="10.9.8")).splitlines()
    assert lines == ["127.0.0.1 localhost", "10.9.8.254 ctl", "10.9.8.1 node1", "10.9.8.2 node2"]


def settings(text):
    """Return the lines of slurm.conf as keys and values; those of nodes under their names."""
    pairs = [line.split("=", 1) for line in text.splitlines()]
    return {key if key != "NodeName" else value.split()[0]: value for key, value in pairs}


def test_slurm_conf_names_everything():
    said = settings(format_slurm_conf(ClusterSpec(nodes=3, cpus=5), PLACE))
    assert said["SlurmctldHost"] == "ctl(10.77.0.254)"
    assert said["SlurmUser"] == said["SlurmdUser"] == "jane"
    assert {"node1", "node2", "node3"} <= said.keys()
    assert "NodeAddr=10.77.0.3" in said["node3"]
    assert "CPUs=5" in said["node3"]
    assert all(str(PLACE.dir) in said[key] for key in ("StateSaveLocation", "SlurmdSpoolDir", "SlurmdLogFile"))


def test_flat_daemons_have_ports_of_their_own(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "laptop")
    said = settings(format_slurm_conf(ClusterSpec(nodes=2), PLACE, [7000, 7001, 7002]))
    assert said["SlurmctldHost"] == "laptop(127.0.0.1)"
    assert said["SlurmctldPort"] == "7000"
    assert said["CommunicationParameters"] == "NoInAddrAny,NoCtldInAddrAny"
    assert "NodeHostname=laptop NodeAddr=127.0.0.1 Port=7002" in said["node2"]


def test_what_tmp_hides_is_shared_once():
    paths = ["/tmp/a/b", "/home/jane", "/tmp/a", "/tmp/ab", "/tmp"]
    assert find_paths_below_tmp(paths) == ["/tmp/a", "/tmp/ab"]


def test_a_bucket_is_never_too_small_for_its_rate():
    assert network.compute_burst_bytes(parse_rate("400M")) >= 131_072
    assert network.compute_burst_bytes(parse_rate("10G")) >= parse_rate("10G") * 0.003
    for rate in map(parse_rate, ("1M", "400M", "10G")):
        assert network.compute_queue_bytes(rate) > 10 * network.compute_burst_bytes(rate)


def test_a_link_without_limit_has_no_bucket():
    assert "tbf" in network.build_rate_command("eth0", 50e6)
    assert "tbf" not in network.build_rate_command("eth0", None)


def test_what_is_missing_is_named_with_its_command(monkeypatch, tmp_path):
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
def test_without_a_lab_there_is_nothing_to_do(command, tmp_path, capsys):
    assert main(["lab", *command, "--dir", str(tmp_path)]) == 3
    said = capsys.readouterr().err
    assert "no lab runs in" in said
    assert "hpccoll lab up" in said


def test_links_are_refused_where_nodes_are_not_apart():
    with pytest.raises(UnavailableError, match=r"--link or --latency needs .* flat \(asked for\)"):
        launch.launch_lab(ClusterSpec(bytes_per_s=50e6), Path("/tmp/x"), Isolation.FLAT, "asked for", None, keep=True)


def test_flat_is_taken_when_asked_for():
    assert isolation.choose_isolation(flat=True) == (Isolation.FLAT, "asked for")


@pytest.mark.parametrize("name", ["with blank", "a#b", "long" * 20])
def test_a_folder_that_slurm_cannot_name_is_refused(name, tmp_path):
    with pytest.raises(UsageError, match="plainer directory"):
        launch.launch_lab(ClusterSpec(), Path("/tmp") / name, Isolation.FLAT, "", None, keep=True)


def test_a_folder_that_holds_something_else_is_kept(tmp_path, monkeypatch):
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


def test_what_jobs_left_is_kept(tmp_path):
    for name in ("state/x", "log/y", "shared/result"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    clear_state_dir(tmp_path, keep=True)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["shared", "shared/result"]
    clear_state_dir(tmp_path, keep=False)
    assert not tmp_path.exists()


def test_a_lab_is_used_inside_with():
    with pytest.raises(UsageError, match="not up"):
        Lab().run(["true"])


@pytest.mark.parametrize("command", [[], ["up"], ["run"], ["down"], ["status"], ["link"], ["power"], ["slow"]])
def test_help_has_an_example(command):
    said = CliRunner().invoke(lab, [*command, "--help"], prog_name="hpccoll lab").output
    assert re.search(rf"Example:\s+hpccoll lab {' '.join(command)}", said)
