"""Checks of the system, on trees of /proc and /sys files made for the test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpccoll import units
from hpccoll.doctor import clock, cores, mpi_job, network, numa, shared_memory
from hpccoll.doctor.finding import Finding, Severity, merge_findings, run_check
from hpccoll.doctor.mpi_job import RankInfo

CLOCKSOURCE = "sys/devices/system/clocksource/clocksource0"
STEADY = "flags\t\t: fpu tsc constant_tsc nonstop_tsc"


def write_files(root: Path, contents: dict[str, str]) -> Path:
    """Write files below `root` by their relative names, and return `root`."""
    for name, text in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def find_worst(findings: list[Finding]) -> Severity:
    """Return the highest severity of the findings."""
    return max(finding.severity for finding in findings)


@pytest.mark.parametrize(
    ("current", "flags", "severity"),
    [
        ("tsc", STEADY, Severity.OK),
        ("kvm-clock", STEADY, Severity.OK),
        ("hpet", STEADY, Severity.WARNING),
        ("acpi_pm", STEADY, Severity.WARNING),
        ("xen", STEADY, Severity.WARNING),
        ("tsc", "flags\t\t: fpu tsc constant_tsc", Severity.WARNING),
        ("arch_sys_counter", "Features\t: fp asimd", Severity.OK),
    ],
)
def test_clock_source(tmp_path, current, flags, severity):
    here = f"{CLOCKSOURCE}/current_clocksource", f"{CLOCKSOURCE}/available_clocksource"
    write_files(tmp_path, {here[0]: current, here[1]: f"tsc {current}", "proc/cpuinfo": flags})
    found = clock.check_clock_source(tmp_path)
    assert found.severity is severity
    assert current in found.evidence
    assert bool(found.remedy) == (severity is Severity.WARNING)


def test_frequency_governor_and_turbo(tmp_path):
    cpu = "sys/devices/system/cpu"
    write_files(tmp_path, {f"{cpu}/cpu0/cpufreq/scaling_governor": "powersave", f"{cpu}/intel_pstate/no_turbo": "0"})
    governor, turbo = clock.check_frequency(tmp_path)
    assert "frequency-set -g performance" in governor.remedy
    assert turbo.remedy.endswith("no_turbo")
    assert "echo 1" in turbo.remedy
    write_files(tmp_path, {f"{cpu}/cpu0/cpufreq/scaling_governor": "performance", f"{cpu}/intel_pstate/no_turbo": "1"})
    (calm,) = clock.check_frequency(tmp_path)
    assert calm.severity is Severity.OK


@pytest.mark.parametrize(
    ("contents", "quota"),
    [
        ({"proc/self/cgroup": "0::/job/step", "sys/fs/cgroup/job/step/cpu.max": "150000 100000"}, 1.5),
        ({"proc/self/cgroup": "0::/job/step", "sys/fs/cgroup/job/cpu.max": "400000 100000"}, 4),
        (
            {
                "proc/self/cgroup": "0::/job/step",
                "sys/fs/cgroup/job/cpu.max": "100000 100000",
                "sys/fs/cgroup/job/step/cpu.max": "300000 100000",
            },
            1,
        ),
        ({"proc/self/cgroup": "0::/job", "sys/fs/cgroup/job/cpu.max": "max 100000"}, None),
        (
            {
                "proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/docker/1",
                "sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
        ),
        ({}, None),
    ],
)
def test_cpu_quota_is_the_smallest_of_group_and_ancestors(tmp_path, contents, quota):
    found, where = cores.read_cpu_quota(write_files(tmp_path, contents))
    assert found == quota
    assert quota is None or str(tmp_path) in where


def test_quota_below_the_visible_cores_is_a_warning(tmp_path):
    write_files(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "10000 100000"})
    quota = cores.check_cores(tmp_path)[-1]
    assert quota.severity is Severity.WARNING
    assert "0.1 cores" in quota.found
    assert "at most 1 rank" in quota.remedy


def test_hyperthreads_are_counted_once(tmp_path):
    where = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    write_files(tmp_path, {where.format(cpu): f"{cpu % 2},{cpu % 2 + 2}" for cpu in range(4)})
    assert cores.count_physical_cores([0, 1, 2, 3], tmp_path) == 2
    assert cores.count_physical_cores([0, 2], tmp_path) == 1


def make_ranks(*sets: tuple[int, ...], host: str = "a") -> list[RankInfo]:
    """Return ranks of one host with the given sets of cores."""
    return [RankInfo(number, host, cores_, {}) for number, cores_ in enumerate(sets)]


@pytest.mark.parametrize(
    ("sets", "severity", "says"),
    [
        ([(0,), (0,)], Severity.PROBLEM, "all 2 ranks are bound to core 0"),
        ([(0,), (0,), (1,)], Severity.PROBLEM, "2 of 3 ranks are bound to core 0"),
        ([(0,), (1,)], Severity.OK, "cores of its own"),
        ([(0, 1), (2, 3)], Severity.OK, "cores of its own"),
        ([(0, 1), (0, 1)], Severity.NOTE, "not bound"),
        ([(0, 1), (0, 1), (0, 1)], Severity.OK, "suits more ranks"),
    ],
)
def test_binding_of_ranks(sets, severity, says):
    (binding,) = (each for each in cores.check_rank_placement(make_ranks(*sets), {}) if each.area == "binding")
    assert binding.severity is severity
    assert says in binding.found
    assert "rank 0" in binding.evidence


def test_more_ranks_than_cores_or_quota_is_a_warning():
    assert find_worst(cores.check_rank_placement(make_ranks((0, 1), (0, 1)), {"a": None})) is Severity.NOTE
    crowded = cores.check_rank_placement(make_ranks((0, 1), (0, 1)), {"a": 1.0})[0]
    assert crowded.severity is Severity.WARNING
    assert "2 ranks on 1 core (of 2 visible)" in crowded.found
    assert "OMPI_MCA_mpi_yield_when_idle=1" in crowded.remedy
    two_hosts = [RankInfo(0, "a", (0,), {}), RankInfo(1, "b", (0,), {})]
    assert find_worst(cores.check_rank_placement(two_hosts, {})) is Severity.OK


def test_versions_that_differ_between_hosts_are_a_problem():
    values = [
        RankInfo(0, "a", (0,), {"numpy": "2.4.6"}),
        RankInfo(1, "b", (0,), {"numpy": "2.1.0"}),
        RankInfo(2, "b", (0,), {}),
    ]
    (found,) = mpi_job.check_versions(values)
    assert found.severity is Severity.PROBLEM
    assert "2.4.6: ranks 0 on a; 2.1.0: ranks 1 on b; not installed: ranks 2 on b" in found.evidence
    assert mpi_job.check_versions([values[0], values[0]])[0].severity is Severity.OK


def test_numa_nodes_with_distances(tmp_path):
    for node, distance in enumerate(("10 21", "21 10")):
        where = f"sys/devices/system/node/node{node}"
        write_files(tmp_path, {f"{where}/cpulist": f"{node * 4}-{node * 4 + 3}", f"{where}/distance": distance})
    write_files(tmp_path, {"proc/sys/kernel/numa_balancing": "1"})
    shape, moves = numa.check_numa_nodes(tmp_path)
    assert "2 NUMA nodes, distances up to 21" in shape.found
    assert "node1: cores 4-7" in shape.evidence
    assert "kernel.numa_balancing=0" in moves.remedy


def test_containers_and_virtual_machines_are_named(tmp_path):
    assert find_worst(numa.check_virtualization(tmp_path)) is Severity.OK
    write_files(tmp_path, {"proc/cpuinfo": "flags : fpu hypervisor"})
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.containerenv").touch()
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026532001]")
    machine, container = numa.check_virtualization(tmp_path)
    assert "virtual machine" in machine.found
    assert "containerenv" in container.evidence
    assert "PID namespace" in container.evidence


def test_interfaces_and_infiniband(tmp_path):
    for name, state, kind, speed in (("lo", "up", 772, 0), ("eth0", "up", 1, 25000), ("eth1", "down", 1, 100)):
        here = f"sys/class/net/{name}"
        values = {"operstate": state, "type": str(kind), "speed": str(speed), "mtu": "1500"}
        write_files(tmp_path, {f"{here}/{file}": text for file, text in values.items()})
    found = network.check_interfaces(tmp_path)
    assert found.found == "up: eth0 (25000 Mbit/s, MTU 1500)"
    assert not found.remedy
    assert "no InfiniBand" in network.check_infiniband(tmp_path)[0].found
    for port, state in ((1, "4: ACTIVE"), (2, "1: DOWN")):
        here = f"sys/class/infiniband/mlx5_0/ports/{port}"
        write_files(
            tmp_path, {f"{here}/state": state, f"{here}/rate": "400 Gb/sec", f"{here}/link_layer": "InfiniBand"}
        )
    up, down = network.check_infiniband(tmp_path)
    assert "mlx5_0 port 1: 4: ACTIVE, 400 Gb/sec" in up.found
    assert up.provides == ("infiniband",)
    assert "port 2" in down.found
    write_files(tmp_path, {"sys/class/infiniband/mlx5_0/ports/1/state": "1: DOWN"})
    assert find_worst(network.check_infiniband(tmp_path)) is Severity.WARNING


def test_shared_memory_that_is_missing_is_a_problem(tmp_path):
    found = shared_memory.check_shm_space(tmp_path / "dev/shm")
    assert found.severity is Severity.PROBLEM
    assert "mount -t tmpfs" in found.remedy


def test_exception_in_a_check_becomes_a_finding():
    def broken() -> list[Finding]:
        return [Finding("clock", Severity(int("x")), "", "")]

    (found,) = run_check("clock", broken)
    assert found.severity is Severity.WARNING
    assert "ValueError" in found.evidence
    assert Path(__file__).name in found.evidence


def test_equal_findings_of_several_hosts_are_merged():
    one = Finding("limits", Severity.OK, "stack 8 MiB", "3 ns")
    other = Finding("limits", Severity.OK, "stack 8 MiB", "4 ns")
    apart = Finding("limits", Severity.WARNING, "stack 1 MiB", "5 ns")
    same, own = merge_findings([("a", one), ("b", other), ("c", apart)])
    assert (same.hosts, own.hosts) == (("a", "b"), ("c",))
    assert same.evidence == "a: 3 ns; b: 4 ns"
    assert own.evidence == "5 ns"


@pytest.mark.parametrize(("text", "numbers"), [("", ()), ("0-3", (0, 1, 2, 3)), ("0-1,4,6-7", (0, 1, 4, 6, 7))])
def test_format_ranges(text, numbers):
    assert units.format_ranges(numbers) == text


def test_checks_run_on_this_host():
    found = [
        *clock.check_clock(),
        *cores.check_cores(),
        *numa.check_topology(),
        *network.check_network(),
        *shared_memory.check_shared_memory(),
    ]
    assert all(each.found and each.evidence for each in found)
    assert any(f"{len(os.sched_getaffinity(0))} of" in each.found for each in found)
