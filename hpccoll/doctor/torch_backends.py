"""Check torch: its version, the backends of torch.distributed it was built with, and whether it finds a GPU."""

from __future__ import annotations

from importlib.util import find_spec

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.optional_packages import format_install_command
from hpccoll.processes.command import CommandResult, run_python
from hpccoll.units import format_count

AREA = "torch"
# This script runs in a process of its own, because importing torch takes seconds and may hang in a driver.
_SCRIPT = """
import json, torch
d = torch.distributed
has = d.is_available()
info = {"version": torch.__version__, "cuda": torch.version.cuda, "devices": torch.cuda.device_count(),
        "gloo": has and d.is_gloo_available(), "nccl": has and d.is_nccl_available(),
        "mpi": has and d.is_mpi_available()}
if info["nccl"] and torch.cuda.is_available():
    info["nccl_version"] = ".".join(map(str, torch.cuda.nccl.version()))
if info["devices"]:
    info["sum"] = float(torch.arange(4, device="cuda").sum())
print(json.dumps(info))
"""
_SHOWN = "python -c 'import torch; torch.distributed.is_gloo_available(); ...'"


def is_torch_installed() -> bool:
    """Whether torch is installed; this check does not import torch."""
    return find_spec("torch") is not None


def run_torch_probe(limit_s: float) -> CommandResult | None:
    """Start a process that imports and queries torch, for at most `limit_s` seconds, and return its result.

    Returns None if torch is not installed.
    """
    return run_python(["-c", _SCRIPT], limit_s, shown=_SHOWN) if is_torch_installed() else None


def check_torch(result: CommandResult | None) -> list[Finding]:
    """Return findings on torch, its backends and its GPUs.

    `result` is the result of `run_torch_probe`; None means that torch is not installed.
    """
    if result is None:
        remedy = f"{format_install_command('torch')} for the gloo and nccl engines and torch buffers"
        return [Finding(AREA, Severity.NOTE, "torch is not installed", "importlib: no module torch", remedy)]
    info = result.parse_json()
    if info is None:
        if "gave no answer" in result.outcome:
            remedy = "--limit SECONDS allows more time, which a cold file system may need"
        else:
            remedy = f"{format_install_command('torch')} --force-reinstall"
        return [Finding(AREA, Severity.WARNING, "torch cannot be imported", result.evidence, remedy)]
    backends = [name for name in ("gloo", "nccl", "mpi") if info[name]]
    build = f"CUDA {info['cuda']}" if info["cuda"] else "no CUDA"
    found = f"torch {info['version']}, built with {build}; torch.distributed has {', '.join(backends) or 'no backend'}"
    usable = ["gloo"] if info["gloo"] else []
    if info.get("nccl_version"):
        found += f"; NCCL {info['nccl_version']}, {format_count(info['devices'], 'device')}"
        usable.append("nccl")
    findings = [Finding(AREA, Severity.OK, found, result.evidence, provides=("torch", *usable))]
    if info["cuda"] and not info["devices"]:
        found = "torch was built with CUDA but finds no device"
        remedy = "if there should be one: check nvidia-smi, CUDA_VISIBLE_DEVICES, and if the driver supports this CUDA"
        findings.append(Finding(AREA, Severity.NOTE, found, "torch.cuda.device_count(): 0", remedy))
    return findings
