"""Try CUDA IPC between two processes, and print the outcome of each step as a JSON object.

The first process allocates memory, writes a pattern and exports the memory and an event. The second process opens the
memory, reads the pattern, writes another one and records the event, for which the first process waits before it reads.
The first process also tries to export memory of CUDA's stream-ordered allocator. CUDA refuses to export stream-ordered
memory, so tensors of torch's cudaMallocAsync backend cannot be shared.
"""

from __future__ import annotations

import json
import sys

from hpccoll.processes.command import run_python
from hpccoll.runtime.cuda.driver import CudaDriver

_FIRST, _SECOND = b"written by one", b"by the other.."
_NBYTES = len(_FIRST)
_LIMIT_S = 60.0


def share_memory() -> dict[str, str]:
    """Start a second process and share GPU memory with it; return a dict of outcomes, `worked` or a reason, by step."""
    outcomes: dict[str, str] = {}
    try:
        driver = CudaDriver()
        address = driver.allocate(1 << 20)
        driver.write(address, _FIRST)
        memory = driver.export_memory(address).hex()
        outcomes["export"] = "worked"
        event = driver.create_event()
        exported_event = driver.export_event(event).hex()
        outcomes["export event"] = "worked"
    except RuntimeError as error:
        return outcomes | {"export event" if outcomes else "export": str(error)}
    second = run_python(["-m", "hpccoll.doctor.probe_cuda_ipc", memory, exported_event], _LIMIT_S)
    outcome = (second.stdout.strip().splitlines() or [""])[-1]
    outcomes["open, read, write and record"] = outcome or second.evidence
    if outcome == "worked":
        driver.synchronize_event(event)
        data = driver.read(address, _NBYTES)
        outcomes["read back"] = "worked" if data == _SECOND else f"read {data!r} instead of {_SECOND!r}"
    try:
        driver.export_memory(driver.allocate_async(1 << 20))
        outcomes["cudaMallocAsync memory"] = "exported"
    except RuntimeError as error:
        outcomes["cudaMallocAsync memory"] = f"cannot be exported: {error}"
    return outcomes


def open_shared_memory(memory: bytes, exported_event: bytes) -> str:
    """Open another process's GPU memory, check and overwrite its contents, and record the other process's event.

    Args:
        memory: the memory's CUDA IPC handle.
        exported_event: the event's CUDA IPC handle.

    Returns:
        `worked`, or the reason why the memory cannot be shared.
    """
    try:
        driver = CudaDriver()
        address, event = driver.open_memory(memory), driver.open_event(exported_event)
        data = driver.read(address, _NBYTES)
        if data != _FIRST:
            return f"read {data!r} instead of {_FIRST!r}"
        driver.write(address, _SECOND)
        driver.record_event(event)
        driver.synchronize_event(event)
        driver.close_memory(address)
    except RuntimeError as error:
        return str(error)
    return "worked"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.stdout.write(open_shared_memory(*map(bytes.fromhex, sys.argv[1:3])) + "\n")
    else:
        sys.stdout.write(json.dumps(share_memory()) + "\n")
