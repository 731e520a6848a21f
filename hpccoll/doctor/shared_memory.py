"""Check /dev/shm (size, free space, files that ended jobs left behind), System V segments and huge pages.

MPICH and hpccoll's flight recorder leave files in /dev/shm when a rank is killed or aborts. Open MPI also leaves files
in /dev/shm if the job was started without mpirun. The checks remove no files; only `remove_stale_files` removes files.
"""

from __future__ import annotations

import os
import pwd
import shlex
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.doctor.kernel_files import read_int, read_text
from hpccoll.doctor.numa import is_inside_pid_namespace
from hpccoll.units import GiB, format_count, format_size

AREA = "shared memory"
_MIN_SIZE = GiB
_MIN_FREE_SHARE = 0.1
_LIBRARY_BY_PATTERN = {
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
    "hpccoll-recorder-*": "hpccoll",
    "cuda.shm.*": "CUDA",
}
_MAX_NAMED = 1000  # files listed as evidence
_MAX_IN_COMMAND = 3  # for more files, the remedy's command does not name each file


@dataclass(frozen=True, slots=True)
class SharedMemoryFile:
    """A file in /dev/shm that, by its name, is shared memory of a communication library: owner, size, age and use."""

    path: Path  # path of the file
    library: str  # the library whose files have names like this
    owner: str  # user name of the owner
    is_inspectable: bool  # whether this process may see which files the owner's processes use
    nbytes: int  # size of the file
    age_s: float  # seconds since the last modification
    in_use: bool  # whether a visible process has the file mapped or open


def check_shared_memory(root: Path = Path("/")) -> list[Finding]:
    """Return findings on the shared memory of this host: space, files of ended jobs, and huge pages."""
    shm = root / "dev/shm"
    return [check_shm_space(shm), *check_stale_files(shm, root), *check_sysv_segments(root), check_huge_pages(root)]


def check_shm_space(directory: Path) -> Finding:
    """Return a finding on size and free space of `directory`, /dev/shm, through which ranks of a host communicate."""
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
    """Return the chosen value of a kernel setting, the word in brackets in a file such as `always [madvise] never`.

    Returns the whole text if the file has no brackets, and None if the file is missing.
    """
    choices = read_text(path)
    return choices.partition("[")[2].partition("]")[0] if choices and "[" in choices else choices


def check_stale_files(directory: Path, root: Path = Path("/")) -> list[Finding]:
    """Return findings on files of MPI, UCX, NCCL, torch and hpccoll in `directory` that no running process uses."""
    files = list(list_library_files(directory, root))
    unused = [file for file in files if not file.in_use]
    stale = [file for file in unused if file.is_inspectable]
    unknown = [file for file in unused if not file.is_inspectable]
    findings = [_report_stale(stale, directory, root)] if stale else []
    if unknown:
        owners = ", ".join(sorted({file.owner for file in unknown}))
        found = (
            f"{format_count(len(unknown), 'file')} ({_format_total_size(unknown)}) in {directory}, owned by {owners}; "
            "this user cannot see whether a process uses them"
        )
        remedy = f"ask {owners} to run hpccoll doctor, or run it as root"
        findings.append(Finding(AREA, Severity.NOTE, found, _format_files(unknown), remedy))
    if not findings:
        use = ", all in use by running processes" if files else ""
        evidence = f"{directory}/{{{','.join(_LIBRARY_BY_PATTERN)}}}: {format_count(len(files), 'file')}{use}"
        findings.append(Finding(AREA, Severity.OK, f"no stale files of ended jobs in {directory}", evidence))
    return findings


def _report_stale(stale: Sequence[SharedMemoryFile], directory: Path, root: Path) -> Finding:
    """Return the warning on files of ended jobs in `directory`, with the command that removes them."""
    libraries = ", ".join(sorted({file.library for file in stale}))
    count = format_count(len(stale), "file")
    found = (
        f"{count} ({_format_total_size(stale)}) left in {directory} by ended jobs ({libraries}): no process has them "
        "mapped or open"
    )
    few = "rm -- " + " ".join(shlex.quote(str(file.path)) for file in stale[:_MAX_IN_COMMAND])
    remedy = few if len(stale) <= _MAX_IN_COMMAND else "hpccoll doctor --remove-stale"
    if is_inside_pid_namespace(root):
        remedy = "run hpccoll doctor --remove-stale outside of this container, which hides processes that may use them"
    return Finding(AREA, Severity.WARNING, found, _format_files(stale), remedy)


def remove_stale_files(directory: Path, root: Path = Path("/")) -> Finding:
    """Remove the files of ended jobs in `directory` that `check_stale_files` would report; return a finding on them.

    In a PID namespace, nothing is removed: processes of other namespaces may use the files, and are not visible here.
    """
    if is_inside_pid_namespace(root):
        return Finding(
            AREA,
            Severity.WARNING,
            f"removed no files of ended jobs from {directory}: processes outside of this container may use them",
            "/proc/self/ns/pid: not the machine's first PID namespace",
            "run hpccoll doctor --remove-stale outside of the container",
        )
    removed = []
    for file in list_library_files(directory, root):
        if file.is_inspectable and not file.in_use:
            with suppress(OSError):  # another process has removed the file, or another user owns the file
                file.path.unlink()
                removed.append(file)
    found = (
        f"removed {format_count(len(removed), 'file')} ({_format_total_size(removed)}) of ended jobs from {directory}"
    )
    return Finding(AREA, Severity.NOTE, found, _format_files(removed))


def _format_total_size(files: Sequence[SharedMemoryFile]) -> str:
    """Return the total size of the files as a string with its unit."""
    return format_size(sum(file.nbytes for file in files))


def _format_files(files: Sequence[SharedMemoryFile]) -> str:
    """Return the paths, owners, sizes and ages of the first _MAX_NAMED files as a string."""
    return "; ".join(
        f"{file.path} ({file.owner}, {format_size(file.nbytes)}, {_format_age(file.age_s)} old)"
        for file in files[:_MAX_NAMED]
    )


def _format_age(seconds: float) -> str:
    """Return a time in the largest unit (days, hours, minutes or seconds) that gives at least 2, such as `47 hours`."""
    for unit, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(seconds, 0):.0f} seconds"


def list_library_files(directory: Path, root: Path = Path("/")) -> Iterator[SharedMemoryFile]:
    """Yield the files in `directory` whose names match those that communication libraries give to shared memory.

    File names are read before the list of files in use, so that a file created between the two reads is left out
    instead of being listed as unused. A file that is removed before its status is read is skipped.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(directory))
    except OSError:
        return
    patterns = _LIBRARY_BY_PATTERN.items()
    libraries = {name: library for name in names for pattern, library in patterns if fnmatch(name, pattern)}
    used = list_files_in_use(root) if libraries else set()
    for name, library in libraries.items():
        path = directory / name
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(status.st_mode):
            continue
        # Only root can read the memory maps of other users' processes.
        is_inspectable = status.st_uid == os.getuid() or os.getuid() == 0
        owner, in_use = _get_user_name(status.st_uid), _get_file_id(status) in used
        age_s = time.time() - status.st_mtime
        yield SharedMemoryFile(path, library, owner, is_inspectable, status.st_size, age_s, in_use)


def list_files_in_use(root: Path = Path("/")) -> set[tuple[int, int, int]]:
    """Return the set of (major, minor, inode) of files that are mapped or open in processes that this user may inspect.

    `root` is the directory that contains proc.
    """
    used: set[tuple[int, int, int]] = set()
    for process in (root / "proc").glob("[0-9]*"):
        for line in (read_text(process / "maps") or "").splitlines():
            words = line.split(maxsplit=5)
            if len(words) > 5 and words[4] != "0":
                major, minor = words[3].split(":")
                used.add((int(major, 16), int(minor, 16), int(words[4])))
        try:
            descriptors = list(os.scandir(process / "fd"))
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                used.add(_get_file_id(descriptor.stat()))
            except OSError:
                continue
    return used


def _get_file_id(status: os.stat_result) -> tuple[int, int, int]:
    """Return the tuple (major, minor, inode) that identifies a file by the numbers of its device and its inode."""
    return os.major(status.st_dev), os.minor(status.st_dev), status.st_ino


def check_sysv_segments(root: Path = Path("/")) -> list[Finding]:
    """Return a list with a note if this user has System V segments that no process has attached, which UCX may leave.

    Returns an empty list if there are no unattached segments.
    """
    rows = [line.split() for line in (read_text(root / "proc/sysvipc/shm") or "").splitlines()]
    segments = [dict(zip(rows[0], row, strict=False)) for row in rows[1:]]
    stale = [row for row in segments if row["nattch"] == "0" and int(row["uid"]) == os.getuid()]
    if not stale:
        return []
    size = format_size(sum(int(row["size"]) for row in stale))
    found = f"{format_count(len(stale), 'System V segment')} of this user ({size}) that no process has attached"
    named = stale[:_MAX_NAMED]
    evidence = "; ".join(f"shmid {row['shmid']}, created by process {row['cpid']}" for row in named)
    remedy = "if no program is going to attach them again: ipcrm" + "".join(f" -m {row['shmid']}" for row in named)
    return [Finding(AREA, Severity.NOTE, found, f"/proc/sysvipc/shm: {evidence}", remedy)]


def _get_user_name(uid: int) -> str:
    """Return the name of the user with a user ID, or `uid N` if the user has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
