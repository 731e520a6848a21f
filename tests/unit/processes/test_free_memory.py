"""The free memory of a process: that of the host, or what a control group leaves."""

from __future__ import annotations

import psutil
import pytest

from hpccoll.processes.free_memory import find_free_bytes

MIB = 2**20


def write_file(path, text):
    """Write a file, and create its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_group(group, limit, used, cached=0, *, names=("max", "current"), cache="inactive_file"):
    write_file(group / f"memory.{names[0]}", f"{limit}\n")
    write_file(group / f"memory.{names[1]}", f"{used}\n")
    write_file(group / "memory.stat", f"anon 5\n{cache} {cached}\n")


def test_without_control_groups_it_is_that_of_the_host(tmp_path):
    assert find_free_bytes(tmp_path) == pytest.approx(psutil.virtual_memory().available, rel=0.2)


def test_the_tightest_limit_of_all_groups_counts_and_cached_files_are_free(tmp_path):
    write_file(tmp_path / "proc/self/cgroup", "0::/jobs/step\n")
    root = tmp_path / "sys/fs/cgroup"
    write_group(root / "jobs/step", "max", 10 * MIB)
    write_group(root / "jobs", 100 * MIB, 70 * MIB, cached=20 * MIB)
    assert find_free_bytes(tmp_path) == 50 * MIB
    write_group(root, 10 * MIB, 11 * MIB)
    assert find_free_bytes(tmp_path) == 0


def test_limits_of_version_1(tmp_path):
    write_file(tmp_path / "proc/self/cgroup", "9:cpu:/x\n4:memory:/job\n")
    names = ("limit_in_bytes", "usage_in_bytes")
    group = tmp_path / "sys/fs/cgroup/memory/job"
    write_group(group, 64 * MIB, 16 * MIB, cached=1 * MIB, names=names, cache="total_inactive_file")
    assert find_free_bytes(tmp_path) == 49 * MIB
