"""Run as a process of its own: is device memory shared between two processes? Prints a JSON object.

The first process allocates memory, writes a pattern and exports it; a second opens it, reads the pattern and writes
another, which the first then finds. Memory of the stream-ordered allocator is exported too, which CUDA refuses: a
library that takes its memory from there (torch's cudaMallocAsync backend) cannot share it this way.
"""

from __future__ import annotations

import json
import subprocess
import sys

from hpccoll.runtime.cuda.driver import Driver, DriverError

_FIRST, _SECOND = b"written by one", b"by the other.."
_NBYTES = len(_FIRST)
_LIMIT_S = 60.0


def exporter() -> dict[str, str]:
    """Share memory with another process and return how each step went, up to the first that failed."""
    told: dict[str, str] = {}
    try:
        driver = Driver()
        address = driver.allocate(1 << 20)
        driver.write(address, _FIRST)
        handle = driver.export(address).hex()
        told["export"] = "worked"
    except DriverError as error:
        return told | {"export": str(error)}
    other = subprocess.run(
        [sys.executable, "-m", "hpccoll.doctor.probe_cuda_ipc", handle],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    said = (other.stdout.strip().splitlines() or [""])[-1]
    told["open, read and write"] = said or f"exit status {other.returncode}: {other.stderr.strip()[-200:]}"
    if said == "worked":
        back = driver.read(address, _NBYTES)
        told["read back"] = "worked" if back == _SECOND else f"found {back!r}, and not what the other process wrote"
    try:
        driver.export(driver.allocate_async(1 << 20))
        told["cudaMallocAsync memory"] = "exported"
    except DriverError as error:
        told["cudaMallocAsync memory"] = f"cannot be exported: {error}"
    return told


def opener(handle: bytes) -> str:
    """Open memory of another process, read what it wrote, and write over it; return how that went."""
    try:
        driver = Driver()
        address = driver.open(handle)
        found = driver.read(address, _NBYTES)
        if found != _FIRST:
            return f"read {found!r}, and not what the other process wrote"
        driver.write(address, _SECOND)
        driver.close(address)
    except DriverError as error:
        return str(error)
    return "worked"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.stdout.write(opener(bytes.fromhex(sys.argv[1])) + "\n")
    else:
        sys.stdout.write(json.dumps(exporter()) + "\n")
