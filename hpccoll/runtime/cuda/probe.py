"""Is CUDA here, and may device memory be handed to this MPI? Found out by doing it, one operation at a time.

What an MPI library says about itself has been wrong in both directions, and a library without CUDA crashes when it is
given a device pointer. So each operation runs in a process of its own, a job of one rank that sends device memory to
itself: it may crash, or hang until its time is up, and is read as evidence. What one process proves about itself it
does not prove about the wire between two nodes; the text says what was tried.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from hpccoll.runtime import job, launcher
from hpccoll.runtime.arrays import as_buffer

OPERATIONS = ("send_recv", "all_reduce")
_MODULES = ("cupy", "torch")
_COUNTS = (16, 2**20)  # elements of 4 bytes: MPIs send short and long messages by different paths
_WORKED = "worked"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What came of handing device memory to one MPI operation."""

    operation: str
    works: bool
    text: str


@dataclass(frozen=True, slots=True)
class CudaProbe:
    """What is here: device names, the array module that was used, evidence per operation, and a sentence for people."""

    devices: tuple[str, ...]
    module: str | None
    evidence: tuple[Evidence, ...]
    text: str

    @property
    def mpi_takes_device_memory(self) -> bool:
        """Whether every operation that was tried worked."""
        return bool(self.evidence) and all(one.works for one in self.evidence)


def devices() -> tuple[str, ...]:
    """Return the names of the CUDA devices that the driver shows this process; empty without driver or device.

    Asks the driver itself, so neither torch nor CuPy is imported.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    return tuple(_device_name(driver, number) for number in range(count.value))


def _device_name(driver: ctypes.CDLL, number: int) -> str:
    device, name = ctypes.c_int(0), ctypes.create_string_buffer(256)
    if driver.cuDeviceGet(ctypes.byref(device), number) != 0:
        return f"device {number}"
    return name.value.decode() if driver.cuDeviceGetName(name, len(name), device) == 0 else f"device {number}"


def probe(limit_s: float = 60.0) -> CudaProbe:
    """Find out what is here. One rank a node asks and tells the others.

    Args:
        limit_s: seconds that each operation's process may take.

    Cost: nothing without a GPU; otherwise one process per operation, a few seconds each.
    """
    found = devices()
    if not found:
        return CudaProbe((), None, (), "no CUDA device is here (no NVIDIA driver, or no GPU visible)")
    module = next((name for name in _MODULES if find_spec(name) is not None), None)
    if module is None:
        text = (
            f'{len(found)} CUDA devices, but neither CuPy nor torch; pip install "hpccoll[cuda12]" or "hpccoll[cuda13]"'
        )
        return CudaProbe(found, None, (), text)
    evidence = tuple(_ask(operation, module, limit_s) for operation in OPERATIONS)
    said = "; ".join(f"{one.operation}: {one.text}" for one in evidence)
    return CudaProbe(
        found, module, evidence, f"{len(found)} CUDA devices; device memory of {module} given to MPI: {said}"
    )


@cache
def takes_device_memory() -> bool:
    """Return whether MPI may be given device memory here; probed once a process."""
    return probe().mpi_takes_device_memory


def _ask(operation: str, module: str, limit_s: float) -> Evidence:
    command = [sys.executable, "-m", "hpccoll.runtime.cuda.probe", operation, module]
    environ = launcher.without_launcher(os.environ)
    try:
        # S603: the command is this module under this interpreter, and both words come from constants above.
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return Evidence(operation, False, f"no answer within {limit_s:g} s")
    return verdict(operation, done.returncode, done.stdout, done.stderr)


def verdict(operation: str, status: int, output: str, errors: str) -> Evidence:
    """Read how a probing process ended: its exit status (negative: the signal that killed it) and its last words."""
    last = (output.strip().splitlines() or [""])[-1]
    if status == 0 and last.startswith(_WORKED):
        return Evidence(operation, True, last)
    if status < 0:
        return Evidence(operation, False, f"crashed by {signal.Signals(-status).name}")
    words = (errors.strip().splitlines() or [last])[-1] or "no word"
    return Evidence(operation, False, f"failed with exit status {status}: {words}")


def _try(operation: str, module: str) -> str:
    """Hand device memory to one operation of MPI.COMM_SELF and look at what arrived; return what was tried."""
    mpi = job.load_mpi()
    arrays: Any = importlib.import_module(module)
    where = {"device": "cuda"} if module == "torch" else {}
    for count in _COUNTS:
        source, result = (arrays.full((count,), value, dtype=arrays.float32, **where) for value in (3, 0))
        given, taken = as_buffer(source, "source", False), as_buffer(result, "result", True)
        specs = [(side.module.as_bytes(side.flat), count, mpi.FLOAT) for side in (given, taken)]
        # Both arrays are filled by kernels on the current stream, of which MPI knows nothing: wait for them first.
        given.module.synchronize()
        if operation == "send_recv":
            mpi.COMM_SELF.Sendrecv(specs[0], 0, 0, specs[1], 0, 0)
        else:
            mpi.COMM_SELF.Allreduce(specs[0], specs[1], mpi.SUM)
        if not bool((result == source).all()):
            raise SystemExit(f"{count} elements did not arrive")
    counts = " and ".join(map(str, _COUNTS))
    return f"{_WORKED} within one process, {counts} elements of float32, {job.get_mpi_library()}"


if __name__ == "__main__":
    sys.stdout.write(_try(sys.argv[1], sys.argv[2]) + "\n")
