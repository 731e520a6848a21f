"""Check GPUs: driver, devices, links, CUDA IPC between processes, and which MPI operations accept device memory.

In arguments, `info` is the JSON object that probe_cuda.py prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.optional_packages import format_install_command
from hpccoll.processes.command import CommandResult, run_command, run_python
from hpccoll.runtime.cuda.driver import format_cuda_version
from hpccoll.runtime.cuda.probe import LIMIT_S, OPERATIONS, has_passed, probe_operation
from hpccoll.units import format_count, format_list

AREA, IPC, CUDA_AWARE = "gpu", "cuda ipc", "cuda-aware mpi"
QUERY = ("index", "name", "driver_version", "mig.mode.current", "compute_mode", "persistence_mode", "memory.total")
# nvidia-smi's names of slow links: across sockets, across host bridges of a socket, through one host bridge.
_SLOW_LINKS = ("SYS", "NODE", "PHB")
_NVML_SCRIPT = """
import json, pynvml as n
n.nvmlInit()
print(json.dumps({"driver": n.nvmlSystemGetDriverVersion(), "devices": n.nvmlDeviceGetCount()}))
"""
_CUPY_SCRIPT = """
import json, cupy
r = cupy.cuda.runtime
print(json.dumps({"version": cupy.__version__, "runtime": r.runtimeGetVersion(), "devices": r.getDeviceCount(),
                  "sum": float(cupy.arange(4).sum())}))
"""


def check_gpus(limit_s: float) -> list[Finding]:
    """Start processes that query and use the GPUs of this host; return findings, only one if there is no GPU.

    The process that asks the CUDA driver for devices may run for `limit_s` seconds, each later process for a minute or
    `limit_s` seconds, whichever is longer.
    """
    result = run_python(["-m", "hpccoll.doctor.probe_cuda"], limit_s)
    info = result.parse_json()
    if info is None:
        remedy = "look at dmesg and nvidia-smi; a node whose driver hangs must be drained"
        return [Finding(AREA, Severity.PROBLEM, "the CUDA driver does not answer", result.evidence, remedy)]
    if not info["devices"]:
        return [report_no_device(info)]
    limit_s = max(limit_s, LIMIT_S)
    findings = [*check_devices(info), *check_nvidia_smi(limit_s), check_nvml(limit_s), check_cupy(limit_s)]
    return [*findings, check_cuda_ipc(run_python(["-m", "hpccoll.doctor.probe_cuda_ipc"], limit_s))]


def check_cuda_aware_mpi(mpirun: Path | None, limit_s: float) -> list[Finding]:
    """Try every MPI operation on GPU memory, each in a job of its own, and return one finding per operation.

    `mpirun` is the launcher of the MPI library that this Python loads; if `mpirun` is None, each job has one rank.
    A job may run for `limit_s` seconds or a minute, whichever is longer.
    """
    limit_s = max(limit_s, LIMIT_S)
    return judge_operations([(name, probe_operation(name, "device", mpirun, limit_s)) for name in OPERATIONS])


def report_no_device(info: dict[str, Any]) -> Finding:
    """Return the finding for a host on which CUDA finds no device; `info` is the output of probe_cuda.py.

    The finding on a host without CUDA devices is a problem if the host has device files of GPUs (/dev/nvidia*), else a
    note.
    """
    files = f"/dev/nvidia*: {format_list(info['nodes']) or 'none'}; CUDA_VISIBLE_DEVICES: {info['visible']!r}"
    evidence = f"{info.get('error', 'the driver counts 0 devices')}; {files}"
    if not info["nodes"]:
        return Finding(AREA, Severity.NOTE, "no CUDA device", evidence)
    in_container = "in a container: docker run --gpus all, apptainer exec --nv"
    remedy = f"unset CUDA_VISIBLE_DEVICES; {in_container}; else reload the driver"
    return Finding(AREA, Severity.PROBLEM, "the kernel shows GPUs, but CUDA finds no device", evidence, remedy)


def check_devices(info: dict[str, Any]) -> list[Finding]:
    """Return findings on the GPUs, their compute modes, and their access to each other's memory (peer-to-peer)."""
    names = [device["name"] for device in info["devices"]]
    found = f"{format_count(len(names), 'CUDA device')}: {format_list(names)}"
    visible = f"CUDA_VISIBLE_DEVICES: {info['visible']!r}"
    evidence = f"cuDeviceGetCount: {len(names)}; driver for CUDA {info['cuda']}; {visible}"
    findings = [Finding(AREA, Severity.OK, found, evidence, provides=("cuda",))]
    modes = [f"{index}: {gpu['mode']}" for index, gpu in enumerate(info["devices"]) if gpu["mode"] != "default"]
    if modes:
        found = "a GPU accepts only one process: a second rank on it fails"
        remedy = "start one rank per GPU; or, as root, nvidia-smi -c DEFAULT; or start nvidia-cuda-mps-control -d"
        findings.append(Finding(AREA, Severity.WARNING, found, f"compute mode: {format_list(modes)}", remedy))
    peers: dict[str, bool] = info["peers"]
    no_access = [pair for pair, has_access in peers.items() if not has_access]
    if no_access:
        found = f"{len(no_access)} of {len(peers)} pairs of GPUs communicate through host memory"
        remedy = "see nvidia-smi topo -p2p r; P2P is off in many virtual machines and with PCIe ACS"
        evidence = f"cuDeviceCanAccessPeer: {format_list(no_access)}"
        findings.append(Finding(AREA, Severity.NOTE, found, evidence, remedy))
    elif peers:
        found = "every GPU can access the memory of every other"
        findings.append(Finding(AREA, Severity.OK, found, "cuDeviceCanAccessPeer"))
    return findings


def check_nvidia_smi(limit_s: float) -> list[Finding]:
    """Run nvidia-smi, at most `limit_s` seconds per call; return findings on driver, MIG, persistence and links."""
    result = run_command(["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader"], limit_s)
    if not result.succeeded:
        remedy = "look at dmesg; nvidia-smi comes with the driver (in a container, with its utility capability)"
        severity = Severity.WARNING if result.exists else Severity.NOTE
        return [Finding(AREA, severity, "nvidia-smi does not answer", result.evidence, remedy)]
    return [*parse_smi_query(result), *parse_smi_topology(run_command(["nvidia-smi", "topo", "-m"], limit_s))]


def parse_smi_query(result: CommandResult) -> list[Finding]:
    """Return findings from the output of `nvidia-smi --query-gpu`, whose columns are the fields in QUERY."""
    rows = [[cell.strip() for cell in line.split(",")] for line in result.stdout.strip().splitlines()]
    rows = [row for row in rows if len(row) == len(QUERY)]
    found = f"driver {format_list(sorted({row[2] for row in rows}))}, {format_count(len(rows), 'GPU')}"
    findings = [Finding(AREA, Severity.OK, found, f"`{result.command}` worked")]
    mig = [row[0] for row in rows if row[3].lower() == "enabled"]
    if mig:
        found = f"MIG is on (GPU {format_list(mig)}): instances lack P2P and CUDA IPC, and NCCL uses one per process"
        remedy = "ask for whole GPUs; or, as root with the GPU idle, nvidia-smi -mig 0"
        findings.append(Finding(AREA, Severity.WARNING, found, f"mig.mode.current: {rows[0][3]}", remedy))
    if any(row[5].lower() == "disabled" for row in rows):
        found = "persistence mode is off: the driver is loaded again for each job, which takes seconds"
        remedy = "as root: nvidia-smi -pm 1, or run nvidia-persistenced"
        findings.append(Finding(AREA, Severity.NOTE, found, "persistence_mode: Disabled", remedy))
    return findings


def parse_smi_topology(result: CommandResult) -> list[Finding]:
    """Return a list with a finding on the links between GPUs, from `nvidia-smi topo -m`; empty without links."""
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("GPU")]
    gpus = range(len(rows))
    kinds = sorted({row[1 + j] for i, row in enumerate(rows) for j in gpus if i != j and len(row) > len(gpus)})
    if not result.succeeded or not kinds:
        return []
    severity, remedy = Severity.OK, ""
    if any(kind in _SLOW_LINKS for kind in kinds):
        severity = Severity.NOTE
        remedy = "put ranks that communicate most on GPUs with NV links or PIX: CUDA_VISIBLE_DEVICES orders them"
    return [Finding(AREA, severity, f"links between GPUs: {', '.join(kinds)}", "`nvidia-smi topo -m`", remedy)]


def check_nvml(limit_s: float) -> Finding:
    """Return a finding on whether nvidia-ml-py works, tried in a process for at most `limit_s` seconds."""
    shown = "python -c 'import pynvml; pynvml.nvmlInit(); ...'"
    result = run_python(["-c", _NVML_SCRIPT], limit_s, shown=shown)
    info = result.parse_json()
    if info is None:
        remedy = "pip install nvidia-ml-py"
        return Finding(AREA, Severity.NOTE, "nvidia-ml-py does not work", result.evidence, remedy)
    evidence = f"{result.evidence}: driver {info['driver']}"
    found = f"nvidia-ml-py finds {format_count(info['devices'], 'device')}"
    return Finding(AREA, Severity.OK, found, evidence, provides=("nvml",))


def check_cupy(limit_s: float) -> Finding:
    """Return a finding on whether CuPy computes on a GPU, tried in a process for at most `limit_s` seconds."""
    result = run_python(["-c", _CUPY_SCRIPT], limit_s, shown="python -c 'import cupy; cupy.arange(4).sum()'")
    info = result.parse_json()
    if info is None or info["sum"] != 6:
        missing = "No module named 'cupy'" in result.stderr
        severity = Severity.NOTE if missing else Severity.PROBLEM
        found = "CuPy is not installed" if missing else "CuPy does not work"
        remedy = (
            f"{format_install_command('cuda13')} (for CUDA 12: cupy-cuda12x[ctk]; nvidia-smi shows the driver's CUDA)"
        )
        return Finding(AREA, severity, found, result.evidence, remedy)
    found = f"CuPy {info['version']} with CUDA {format_cuda_version(info['runtime'])} computes"
    return Finding(AREA, Severity.OK, found, result.evidence, provides=("cupy",))


def check_cuda_ipc(result: CommandResult) -> Finding:
    """Return a finding on whether processes can share device memory and events, from probe_cuda_ipc.py's result."""
    outcomes = result.parse_json()
    remedy = (
        "let ranks of one host see the same GPUs (no --gpus-per-task, no CUDA_VISIBLE_DEVICES per rank), start them in "
        "one container or with --ipc=host --pid=host, and without MIG"
    )
    if outcomes is None:
        return Finding(IPC, Severity.PROBLEM, "CUDA IPC could not be tried", result.evidence, remedy)
    evidence = "; ".join(f"{step}: {outcome}" for step, outcome in outcomes.items())
    if outcomes.get("read back") != "worked":
        return Finding(IPC, Severity.PROBLEM, "processes cannot share device memory and events", evidence, remedy)
    found = "two processes share device memory and events: export, open, write and read back worked"
    return Finding(IPC, Severity.OK, found, evidence, provides=("ipc",))


def judge_operations(results: Sequence[tuple[str, CommandResult]]) -> list[Finding]:
    """Return a finding per MPI operation on whether it accepts GPU memory, and one more if all operations do.

    `results` are pairs of an operation's name and the result of `probe_operation`.
    """
    findings = []
    remedy = (
        "hpccoll sends device buffers through pinned host memory; to avoid that, use a CUDA-aware build (Open MPI: "
        "--with-cuda or UCX with CUDA; MPICH: --with-cuda; Cray: MPICH_GPU_SUPPORT_ENABLED=1)"
    )
    for operation, result in results:
        if has_passed(result):
            evidence = f"{result.stdout.strip().splitlines()[-1]} (`{result.command}`)"
            findings.append(Finding(CUDA_AWARE, Severity.OK, f"{operation}: MPI accepts device memory", evidence))
        else:
            found = f"{operation}: MPI does not accept device memory"
            findings.append(Finding(CUDA_AWARE, Severity.WARNING, found, result.evidence, remedy))
    if findings and all(finding.severity is Severity.OK for finding in findings):
        found = f"MPI accepts device memory in all of {len(findings)} operations"
        evidence = format_list([operation for operation, _ in results])
        findings.append(Finding(CUDA_AWARE, Severity.OK, found, evidence, provides=("cuda_aware",)))
    return findings
