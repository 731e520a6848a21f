"""Shared memory: room in /dev/shm, what killed jobs left there, and huge pages."""

from __future__ import annotations

import os
from pathlib import Path

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.doctor.kernel_files import number, text
from hpccoll.doctor.stale_shared_memory import check_stale_files, check_sysv_segments
from hpccoll.units import GiB, format_size

AREA = "shared memory"
_LEAST = GiB
_LEAST_FREE = 0.1


def examine(root: Path = Path("/")) -> list[Finding]:
    """Return findings on the shared memory of this host."""
    return [
        room(root / "dev/shm"),
        *check_stale_files(root / "dev/shm", root),
        *check_sysv_segments(root),
        huge_pages(root),
    ]


def room(directory: Path) -> Finding:
    """Judge the size of /dev/shm and what is free: ranks of one host exchange messages through it."""
    try:
        told = os.statvfs(directory)
    except OSError as error:
        remedy = f"as root: mkdir -p {directory} && mount -t tmpfs -o size=50% tmpfs {directory}"
        return Finding(AREA, Severity.PROBLEM, f"{directory} is not here", f"statvfs: {error.strerror}", remedy)
    size, free = told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize
    found = f"{directory}: {format_size(size)}"
    evidence = f"statvfs: {format_size(size)}, of which {format_size(size - free)} are in use"
    remedy = f"docker run --shm-size=8g (or --ipc=host); elsewhere, as root: mount -o remount,size=8G {directory}"
    if not os.access(directory, os.W_OK):
        return Finding(
            AREA, Severity.PROBLEM, f"{directory} may not be written", evidence, f"as root: chmod 1777 {directory}"
        )
    if size < _LEAST:
        told_ = f"{found}: too small for long messages between many ranks (a bus error, or MPI_Init fails)"
        return Finding(AREA, Severity.WARNING, told_, evidence, remedy)
    if free < size * _LEAST_FREE:
        remedy = f"find who fills it: ls -lS {directory}; {remedy}"
        return Finding(AREA, Severity.WARNING, f"{found}: nearly full", evidence, remedy)
    return Finding(AREA, Severity.OK, found, evidence)


def huge_pages(root: Path) -> Finding:
    """Say whether shared memory may lie on huge pages, which spares misses of the translation cache."""
    where = root / "sys/kernel/mm/transparent_hugepage"
    chosen = {name: _chosen(text(where / name)) for name in ("enabled", "shmem_enabled")}
    reserved = number(root / "proc/sys/vm/nr_hugepages")
    evidence = f"{where}: enabled {chosen['enabled']}, shmem_enabled {chosen['shmem_enabled']}; nr_hugepages {reserved}"
    if chosen["shmem_enabled"] in ("never", "deny", None):
        remedy = f"to try them, as root: echo advise > {where / 'shmem_enabled'}" if chosen["shmem_enabled"] else ""
        return Finding(AREA, Severity.NOTE, "shared memory lies on small pages", evidence, remedy)
    return Finding(AREA, Severity.OK, "shared memory may lie on huge pages", evidence)


def _chosen(choices: str | None) -> str | None:
    """Return the word in brackets: the kernel writes `always [madvise] never`."""
    return choices.partition("[")[2].partition("]")[0] if choices and "[" in choices else choices
