"""torch: its version, the backends of torch.distributed that it was built with, and whether it sees a GPU."""

from __future__ import annotations

from importlib.util import find_spec

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.runtime.command import CommandResult, run_python

AREA = "torch"
# Words for a Python of its own: importing torch takes seconds, may hang in a driver, and would stay loaded here.
_ASK = """
import json, torch
d = torch.distributed
has = d.is_available()
told = {"version": torch.__version__, "cuda": torch.version.cuda, "devices": torch.cuda.device_count(),
        "gloo": has and d.is_gloo_available(), "nccl": has and d.is_nccl_available(),
        "mpi": has and d.is_mpi_available()}
if told["nccl"] and torch.cuda.is_available():
    told["nccl_version"] = ".".join(map(str, torch.cuda.nccl.version()))
if told["devices"]:
    told["sum"] = float(torch.arange(4, device="cuda").sum())
print(json.dumps(told))
"""
_SHOWN = "python -c 'import torch; torch.distributed.is_gloo_available(); ...'"


def installed() -> bool:
    """Return whether torch is here, without importing it."""
    return find_spec("torch") is not None


def question(limit_s: float) -> CommandResult | None:
    """Ask torch in a process of its own; None where it is not installed."""
    return run_python(["-c", _ASK], limit_s, shown=_SHOWN) if installed() else None


def examine(answer: CommandResult | None) -> list[Finding]:
    """Return findings on torch from what `question` returned."""
    if answer is None:
        remedy = 'pip install "hpccoll[torch]" for the gloo and nccl engines and torch buffers'
        return [Finding(AREA, Severity.NOTE, "torch is not installed", "importlib: no module torch", remedy)]
    told = answer.data()
    if told is None:
        slow = "gave no answer" in answer.how
        remedy = (
            "--limit SECONDS gives it more time (a cold file system)"
            if slow
            else 'pip install --force-reinstall "hpccoll[torch]"'
        )
        return [Finding(AREA, Severity.WARNING, "torch does not load", answer.evidence, remedy)]
    backends = [name for name in ("gloo", "nccl", "mpi") if told[name]]
    built = f"CUDA {told['cuda']}" if told["cuda"] else "no CUDA"
    found = f"torch {told['version']}, built with {built}; torch.distributed has {', '.join(backends) or 'no backend'}"
    usable = ["gloo"] if told["gloo"] else []
    if told.get("nccl_version"):
        found += f"; NCCL {told['nccl_version']}, {told['devices']} devices"
        usable.append("nccl")
    result = [Finding(AREA, Severity.OK, found, answer.evidence, provides=("torch", *usable))]
    if told["cuda"] and not told["devices"]:
        said = "torch was built with CUDA but sees no device"
        remedy = "where there should be one: nvidia-smi, CUDA_VISIBLE_DEVICES, and a driver not older than torch's CUDA"
        result.append(Finding(AREA, Severity.NOTE, said, "torch.cuda.device_count(): 0", remedy))
    return result
