"""Query the CUDA driver in a process of its own, and print its devices, or `error`, as a JSON object."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from hpccoll.runtime.cuda.driver import LIBRARY, CudaDriver, format_cuda_version


def query_devices() -> dict[str, Any]:
    """Return a dict with the GPUs' device files, the CUDA driver's devices, and the pairs with access to each other.

    If the driver cannot be used, the dict has a key `error` with a message, and no devices.
    """
    files = sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
    report: dict[str, Any] = {"nodes": files, "visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "devices": []}
    try:
        driver = CudaDriver(device=None)
        version, devices = driver.query_int("cuDriverGetVersion"), range(driver.count_devices())
    except OSError as error:
        return report | {"error": f"{LIBRARY} cannot be loaded ({error})"}
    except RuntimeError as error:
        return report | {"error": str(error)}
    pairs = [(a, b) for a in devices for b in devices if a != b]
    return report | {
        "cuda": format_cuda_version(version),
        "devices": [{"name": driver.query_device_name(i), "mode": driver.query_compute_mode(i)} for i in devices],
        "peers": {f"{a}-{b}": bool(driver.query_int("cuDeviceCanAccessPeer", a, b)) for a, b in pairs},
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(query_devices()) + "\n")
