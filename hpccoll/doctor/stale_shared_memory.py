"""Shared memory that jobs left behind: named with its owner, age and size, and never removed from here.

MPICH leaves its segments when a rank is killed or aborts; Open MPI also when a process starts MPI without mpirun.
"""

from __future__ import annotations

import os
import pwd
import shlex
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.doctor.kernel_files import text
from hpccoll.doctor.numa import is_inside_pid_namespace
from hpccoll.units import format_size

AREA = "shared memory"
# Who makes files of that name in /dev/shm.
_MAKERS = {
    "mpich_shm_*": "MPICH",
    "mpich_shar_tmp*": "MPICH",
    "vader_segment.*": "Open MPI",
    "sm_segment.*": "Open MPI",
    "osc_rdma.*": "Open MPI",
    "Intel_MPI_*": "Intel MPI",
    "shm-col-space*": "Intel MPI",
    "ucx_shm_posix_*": "UCX",
    "psm2_shm.*": "PSM2",
    "psm3_shm.*": "PSM3",
    "nccl-*": "NCCL",
    "torch_*": "torch",
    "cuda.shm.*": "CUDA",
}
_MOST_NAMED = 1000  # a command line takes many times as many


@dataclass(frozen=True, slots=True)
class SharedMemoryFile:
    """A file in /dev/shm that looks like a library's; `held` where a process has it mapped or open."""

    path: Path
    maker: str
    owner: str
    mine: bool
    nbytes: int
    age_s: float
    held: bool


def check_stale_files(directory: Path, root: Path = Path("/")) -> list[Finding]:
    """Return findings on the files that MPI, UCX, NCCL and torch make in `directory` and nobody uses any more."""
    seen = list(list_library_files(directory, root))
    held = [each for each in seen if each.held]
    idle = [each for each in seen if not each.held]
    mine, others = [each for each in idle if each.mine], [each for each in idle if not each.mine]
    found = [_idle(mine, directory)] if mine else []
    if others:
        owners = ", ".join(sorted({each.owner for each in others}))
        size = format_size(sum(each.nbytes for each in others))
        told = (
            f"{len(others)} files ({size}) in {directory} are of {owners}; whether they are in use is not shown to us"
        )
        remedy = f"ask {owners} to run hpccoll doctor, or run it as root"
        found.append(Finding(AREA, Severity.NOTE, told, _named(others), remedy))
    if not found:
        used = f"{len(held)} in use by running processes" if held else "none of theirs is there"
        evidence = f"{directory}/{{{','.join(_MAKERS)}}}: {used}"
        found.append(Finding(AREA, Severity.OK, f"no leftovers of jobs that are gone in {directory}", evidence))
    return found


def _idle(mine: list[SharedMemoryFile], directory: Path) -> Finding:
    size = format_size(sum(each.nbytes for each in mine))
    makers = ", ".join(sorted({each.maker for each in mine}))
    files = "1 file" if len(mine) == 1 else f"{len(mine)} files"
    found = f"{files} ({size}) left in {directory} by jobs that are gone ({makers}): no process has them mapped or open"
    remedy = "rm -- " + " ".join(shlex.quote(str(each.path)) for each in mine[:_MOST_NAMED])
    if len(mine) > _MOST_NAMED:
        remedy += f"  (and {len(mine) - _MOST_NAMED} more: run hpccoll doctor again)"
    if is_inside_pid_namespace():
        remedy += "  (first see that no job in another container shares this /dev/shm: its processes are not seen here)"
    return Finding(AREA, Severity.WARNING, found, _named(mine), remedy)


def _named(files: list[SharedMemoryFile]) -> str:
    told = [
        f"{each.path} ({each.owner}, {format_size(each.nbytes)}, {_age(each.age_s)} old)"
        for each in files[:_MOST_NAMED]
    ]
    return "; ".join(told)


def _age(seconds: float) -> str:
    for unit, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(seconds, 0):.0f} seconds"


def list_library_files(directory: Path, root: Path = Path("/")) -> Iterator[SharedMemoryFile]:
    """Yield the files in `directory` with the names that MPI libraries and their like give.

    The names are taken first and the processes read after: a file that a starting job makes in between is not listed,
    and one that it removes is gone when it is looked at again.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(directory))
    except OSError:
        return
    makers = {name: maker for name in names for pattern, maker in _MAKERS.items() if fnmatch(name, pattern)}
    used = list_files_in_use(root) if makers else set()
    for name, maker in makers.items():
        path = directory / name
        try:
            told = path.lstat()
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(told.st_mode):
            continue
        seen = told.st_uid == os.getuid() or os.getuid() == 0  # of other people's processes the maps are closed to us
        held = (os.major(told.st_dev), os.minor(told.st_dev), told.st_ino) in used
        yield SharedMemoryFile(path, maker, _user(told.st_uid), seen, told.st_size, time.time() - told.st_mtime, held)


def list_files_in_use(root: Path = Path("/")) -> set[tuple[int, int, int]]:
    """Return device (major, minor) and inode of each file that a process has mapped or open, as far as we may look."""
    found: set[tuple[int, int, int]] = set()
    for process in (root / "proc").glob("[0-9]*"):
        for line in (text(process / "maps") or "").splitlines():
            words = line.split(maxsplit=5)
            if len(words) > 5 and words[4] != "0":
                major, minor = words[3].split(":")
                found.add((int(major, 16), int(minor, 16), int(words[4])))
        try:
            opened = list(os.scandir(process / "fd"))
        except OSError:
            continue
        for entry in opened:
            try:
                told = entry.stat()
            except OSError:
                continue
            found.add((os.major(told.st_dev), os.minor(told.st_dev), told.st_ino))
    return found


def check_sysv_segments(root: Path = Path("/")) -> list[Finding]:
    """Return a finding on our System V segments that no process has attached: UCX and others make such, too."""
    rows = [line.split() for line in (text(root / "proc/sysvipc/shm") or "").splitlines()]
    if len(rows) < 2:
        return []
    columns = {name: at for at, name in enumerate(rows[0])}
    idle = [row for row in rows[1:] if row[columns["nattch"]] == "0" and int(row[columns["uid"]]) == os.getuid()]
    if not idle:
        return []
    size = format_size(sum(int(row[columns["size"]]) for row in idle))
    found = f"{len(idle)} System V segments of yours ({size}) that no process has attached"
    told = "; ".join(
        f"shmid {row[columns['shmid']]}, made by process {row[columns['cpid']]}" for row in idle[:_MOST_NAMED]
    )
    remedy = "if no program of yours is to come back for them: ipcrm" + "".join(
        f" -m {row[columns['shmid']]}" for row in idle[:_MOST_NAMED]
    )
    return [Finding(AREA, Severity.NOTE, found, f"/proc/sysvipc/shm: {told}", remedy)]


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
