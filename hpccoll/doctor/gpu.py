"""GPUs: driver, devices, topology, IPC between processes, and whether MPI takes device memory, by trying each."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.doctor.kernel_files import format_list
from hpccoll.doctor.probe_mpi_memory import OPERATIONS
from hpccoll.runtime.command import CommandResult, run_command, run_python, standalone_mpi_environment

AREA, IPC, AWARE = "gpu", "cuda ipc", "cuda-aware mpi"
QUERY = ("index", "name", "driver_version", "mig.mode.current", "compute_mode", "persistence_mode", "memory.total")
_LEAST_CUDA_LIMIT_S = 60.0  # a context takes seconds to come up, more on a node with eight GPUs
_PYNVML = """
import json, pynvml as n
n.nvmlInit()
print(json.dumps({"driver": n.nvmlSystemGetDriverVersion(), "devices": n.nvmlDeviceGetCount()}))
"""
_CUPY = """
import json, cupy
r = cupy.cuda.runtime
print(json.dumps({"version": cupy.__version__, "runtime": r.runtimeGetVersion(), "devices": r.getDeviceCount(),
                  "sum": float(cupy.arange(4).sum())}))
"""


def examine(limit_s: float) -> list[Finding]:
    """Return findings on GPUs; where there is none, one finding, and the rest is not tried.

    Args:
        limit_s: seconds for each process; those that start CUDA get a minute at least.
    """
    answer = run_python(["-m", "hpccoll.doctor.probe_cuda"], limit_s)
    told = answer.data()
    if told is None:
        remedy = "look at dmesg and nvidia-smi; a driver that hangs needs the node drained"
        return [Finding(AREA, Severity.PROBLEM, "the CUDA driver does not answer", answer.evidence, remedy)]
    if not told["devices"]:
        return [absent(told)]
    limit_s = max(limit_s, _LEAST_CUDA_LIMIT_S)
    found = [*present(told), *smi(limit_s), nvml(limit_s), cupy(limit_s)]
    return [*found, ipc(run_python(["-m", "hpccoll.doctor.probe_cuda_ipc"], limit_s))]


def device_memory_in_mpi(mpirun: Path | None, limit_s: float) -> list[Finding]:
    """Hand device memory to MPI, one operation at a time, each in a job of its own that may crash.

    Args:
        mpirun: of the MPI library that this Python loads; None makes the probes jobs of one rank.
        limit_s: seconds for each operation; a minute at least.
    """
    limit_s = max(limit_s, _LEAST_CUDA_LIMIT_S)
    return aware([memory(each, "device", mpirun, limit_s) for each in OPERATIONS])


def absent(told: dict[str, Any]) -> Finding:
    """Say that there is no CUDA device, and why; that is a problem only where the kernel shows one."""
    seen = f"/dev/nvidia*: {format_list(told['nodes']) or 'none'}; CUDA_VISIBLE_DEVICES: {told['visible']!r}"
    evidence = f"{told.get('error', 'the driver counts 0 devices')}; {seen}"
    if not told["nodes"]:
        return Finding(AREA, Severity.NOTE, "no CUDA device", evidence)
    remedy = (
        "unset CUDA_VISIBLE_DEVICES; in a container: docker run --gpus all, apptainer exec --nv; else reload the driver"
    )
    return Finding(AREA, Severity.PROBLEM, "the kernel shows GPUs, but CUDA finds no device", evidence, remedy)


def present(told: dict[str, Any]) -> list[Finding]:
    """Judge devices that are there: who may use them, and who reaches whose memory."""
    names = [each["name"] for each in told["devices"]]
    evidence = (
        f"cuDeviceGetCount: {len(names)}; driver for CUDA {told['cuda']}; CUDA_VISIBLE_DEVICES: {told['visible']!r}"
    )
    found = [
        Finding(AREA, Severity.OK, f"{len(names)} CUDA devices: {format_list(names)}", evidence, provides=("cuda",))
    ]
    strict = [f"{at}: {each['mode']}" for at, each in enumerate(told["devices"]) if each["mode"] != "default"]
    if strict:
        remedy = "one rank a GPU; or, as root, nvidia-smi -c DEFAULT; or start nvidia-cuda-mps-control -d"
        said = "a GPU takes one process only: a second rank on it fails"
        found.append(Finding(AREA, Severity.WARNING, said, f"compute mode: {format_list(strict)}", remedy))
    walled = [pair for pair, reaches in told["peers"].items() if not reaches]
    if walled:
        remedy = "see nvidia-smi topo -p2p r; P2P is off in many virtual machines and under ACS"
        said = f"{len(walled)} of {len(told['peers'])} pairs of GPUs talk through host memory"
        found.append(Finding(AREA, Severity.NOTE, said, f"cuDeviceCanAccessPeer: {format_list(walled)}", remedy))
    elif told["peers"]:
        found.append(Finding(AREA, Severity.OK, "every GPU reaches the memory of every other", "cuDeviceCanAccessPeer"))
    return found


def smi(limit_s: float) -> list[Finding]:
    """Return what nvidia-smi shows: driver, MIG, persistence, and the links between the GPUs."""
    answer = run_command(["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader"], limit_s)
    if not answer.worked:
        remedy = "look at dmesg; nvidia-smi comes with the driver (in a container, with its utility capability)"
        severity = Severity.WARNING if answer.here else Severity.NOTE
        return [Finding(AREA, severity, "nvidia-smi does not answer", answer.evidence, remedy)]
    topology = run_command(["nvidia-smi", "topo", "-m"], limit_s)
    return [*devices(answer), *links(topology)]


def devices(answer: CommandResult) -> list[Finding]:
    """Judge the rows of `nvidia-smi --query-gpu`, in the order of QUERY."""
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.output.strip().splitlines()]
    rows = [row for row in rows if len(row) == len(QUERY)]
    drivers = sorted({row[2] for row in rows})
    found = [
        Finding(AREA, Severity.OK, f"driver {format_list(drivers)}, {len(rows)} GPUs", f"`{answer.command}` worked")
    ]
    mig = [row[0] for row in rows if row[3].lower() == "enabled"]
    if mig:
        said = (
            f"MIG is on (GPU {format_list(mig)}): no P2P or CUDA IPC between instances, and NCCL uses one per process"
        )
        remedy = "ask for whole GPUs; or, as root with the GPU idle, nvidia-smi -mig 0"
        found.append(Finding(AREA, Severity.WARNING, said, f"mig.mode.current: {rows[0][3]}", remedy))
    if any(row[5].lower() == "disabled" for row in rows):
        said = "persistence mode is off: the driver loads anew for each job, which takes seconds"
        remedy = "as root: nvidia-smi -pm 1, or run nvidia-persistenced"
        found.append(Finding(AREA, Severity.NOTE, said, "persistence_mode: Disabled", remedy))
    return found


def links(answer: CommandResult) -> list[Finding]:
    """Say how the GPUs are wired, from the matrix of `nvidia-smi topo -m` (NV#: NVLinks; SYS: across sockets)."""
    rows = [line.split() for line in answer.output.splitlines() if line.startswith("GPU")]
    if not answer.worked or not rows:
        return []
    count = len(rows)
    kinds = sorted(
        {row[1 + other] for at, row in enumerate(rows) for other in range(count) if other != at and len(row) > count}
    )
    if not kinds:
        return []
    slow = [kind for kind in kinds if kind in ("SYS", "NODE", "PHB")]
    remedy = (
        "ranks that talk most belong on GPUs with NV links or PIX: CUDA_VISIBLE_DEVICES orders them" if slow else ""
    )
    severity = Severity.NOTE if slow else Severity.OK
    return [Finding(AREA, severity, f"GPUs are wired by {', '.join(kinds)}", "`nvidia-smi topo -m`", remedy)]


def nvml(limit_s: float) -> Finding:
    """Say whether nvidia-ml-py answers; hpccoll runs without it."""
    answer = run_python(["-c", _PYNVML], limit_s, shown="python -c 'import pynvml; pynvml.nvmlInit(); ...'")
    told = answer.data()
    if told is None:
        return Finding(AREA, Severity.NOTE, "nvidia-ml-py does not answer", answer.evidence, "pip install nvidia-ml-py")
    evidence = f"{answer.evidence}: driver {told['driver']}"
    return Finding(AREA, Severity.OK, f"nvidia-ml-py sees {told['devices']} devices", evidence, provides=("nvml",))


def cupy(limit_s: float) -> Finding:
    """Say whether CuPy computes on a device."""
    answer = run_python(["-c", _CUPY], limit_s, shown="python -c 'import cupy; cupy.arange(4).sum()'")
    told = answer.data()
    if told is None or told["sum"] != 6:
        remedy = 'pip install "hpccoll[cuda13]" (or cuda12, as the driver allows: nvidia-smi names its CUDA)'
        missing = "No module named 'cupy'" in answer.errors
        severity = Severity.NOTE if missing else Severity.PROBLEM
        return Finding(
            AREA, severity, "CuPy is not installed" if missing else "CuPy does not work", answer.evidence, remedy
        )
    found = f"CuPy {told['version']} with CUDA {told['runtime'] // 1000}.{told['runtime'] % 1000 // 10} computes"
    return Finding(AREA, Severity.OK, found, answer.evidence, provides=("cupy",))


def ipc(answer: CommandResult) -> Finding:
    """Judge what came of sharing device memory between two processes."""
    told = answer.data()
    remedy = (
        "let ranks of one host see the same GPUs (no --gpus-per-task, no CUDA_VISIBLE_DEVICES a rank), start them in "
        "one container or with --ipc=host --pid=host, and without MIG"
    )
    if told is None:
        return Finding(IPC, Severity.PROBLEM, "CUDA IPC could not be tried", answer.evidence, remedy)
    evidence = "; ".join(f"{step}: {how}" for step, how in told.items())
    if told.get("read back") != "worked":
        return Finding(IPC, Severity.PROBLEM, "device memory is not shared between processes", evidence, remedy)
    found = "device memory is exported, opened, written and read back between two processes"
    return Finding(IPC, Severity.OK, found, evidence, provides=("ipc",))


def memory(operation: str, where: str, mpirun: Path | None, limit_s: float) -> tuple[str, CommandResult]:
    """Run one operation of MPI on `device` or `host` memory: on two ranks, or on one where there is no mpirun."""
    arguments = ["-m", "hpccoll.doctor.probe_mpi_memory", operation, where]
    with standalone_mpi_environment() as environ:
        if mpirun is None:
            return operation, run_python(arguments, limit_s, environ)
        return operation, run_command(
            [str(mpirun), "-n", "2", sys.executable, *arguments], limit_s, environ | _anywhere()
        )


def _anywhere() -> dict[str, str]:
    """Return what Open MPI's mpirun needs for two ranks on any machine; MPICH reads none of it."""
    more = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "PRTE_MCA_hwloc_default_binding_policy": "none"}
    if os.getuid() == 0:  # whoever runs this as root has decided so already
        more |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return more


def aware(answers: Sequence[tuple[str, CommandResult]]) -> list[Finding]:
    """Judge, operation by operation, what came of handing device memory to MPI."""
    found = []
    for operation, answer in answers:
        if answer.worked and "worked on" in answer.output:
            said = f"{answer.output.strip().splitlines()[-1]} (`{answer.command}`)"
            found.append(Finding(AWARE, Severity.OK, f"{operation}: MPI takes device memory", said))
        else:
            remedy = (
                "hpccoll goes through pinned host memory; to spare that, use a CUDA-aware build (Open MPI: --with-cuda "
                "or UCX with CUDA; MPICH: --with-cuda; Cray: MPICH_GPU_SUPPORT_ENABLED=1)"
            )
            found.append(
                Finding(
                    AWARE, Severity.WARNING, f"{operation}: MPI does not take device memory", answer.evidence, remedy
                )
            )
    if found and all(each.severity is Severity.OK for each in found):
        told = f"MPI takes device memory in all of {len(found)} operations"
        found.append(
            Finding(AWARE, Severity.OK, told, format_list([name for name, _ in answers]), provides=("cuda_aware",))
        )
    return found
