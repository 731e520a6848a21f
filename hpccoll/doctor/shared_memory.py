"""Check /dev/shm (size, free space, stale files), System V segments and huge pages."""

from __future__ import annotations

import os
from pathlib import Path

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.doctor.kernel_files import read_int, read_text
from hpccoll.doctor.stale_shared_memory import check_stale_files, check_sysv_segments
from hpccoll.units import GiB, format_size

AREA = "shared memory"
_MIN_SIZE = GiB
_MIN_FREE_SHARE = 0.1


def check_shared_memory(root: Path = Path("/")) -> list[Finding]:
    """Return findings on the shared memory of this host, read from files below `root`."""
    shm = root / "dev/shm"
    return [check_shm_space(shm), *check_stale_files(shm, root), *check_sysv_segments(root), check_huge_pages(root)]


def check_shm_space(directory: Path) -> Finding:
    """Return a finding on size and free space of /dev/shm, through which ranks of a host exchange messages."""
    try:
        space = os.statvfs(directory)
    except OSError as error:
        remedy = f"as root: mkdir -p {directory} && mount -t tmpfs -o size=50% tmpfs {directory}"
        return Finding(AREA, Severity.PROBLEM, f"{directory} is missing", f"statvfs: {error.strerror}", remedy)
    size, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    found = f"{directory}: {format_size(size)}"
    evidence = f"statvfs: {format_size(size)}, of which {format_size(size - free)} are in use"
    remedy = f"docker run --shm-size=8g (or --ipc=host); elsewhere, as root: mount -o remount,size=8G {directory}"
    if not os.access(directory, os.W_OK):
        remedy = f"as root: chmod 1777 {directory}"
        return Finding(AREA, Severity.PROBLEM, f"{directory} is not writable", evidence, remedy)
    if size < _MIN_SIZE:
        found += ": too small for long messages between many ranks (a bus error, or MPI_Init fails)"
        return Finding(AREA, Severity.WARNING, found, evidence, remedy)
    if free < size * _MIN_FREE_SHARE:
        remedy = f"look for large files: ls -lS {directory}; {remedy}"
        return Finding(AREA, Severity.WARNING, f"{found}: nearly full", evidence, remedy)
    return Finding(AREA, Severity.OK, found, evidence)


def check_huge_pages(root: Path) -> Finding:
    """Return a finding on whether shared memory may use huge pages, which reduce TLB misses."""
    directory = root / "sys/kernel/mm/transparent_hugepage"
    enabled, shmem = (_read_choice(directory / name) for name in ("enabled", "shmem_enabled"))
    reserved = read_int(root / "proc/sys/vm/nr_hugepages")
    evidence = f"{directory}: enabled {enabled}, shmem_enabled {shmem}; nr_hugepages {reserved}"
    if shmem in ("never", "deny", None):
        remedy = f"to try them, as root: echo advise > {directory / 'shmem_enabled'}" if shmem else ""
        return Finding(AREA, Severity.NOTE, "shared memory uses small pages", evidence, remedy)
    return Finding(AREA, Severity.OK, "shared memory may use huge pages", evidence)


def _read_choice(path: Path) -> str | None:
    """Return the word in brackets of a kernel setting such as `always [madvise] never`; None if the file is missing."""
    choices = read_text(path)
    return choices.partition("[")[2].partition("]")[0] if choices and "[" in choices else choices
