"""Run as a process of its own: what the CUDA driver shows, as a JSON object. `error` says why there is nothing."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from hpccoll.runtime.cuda.driver import LIBRARY, Driver, DriverError


def look() -> dict[str, Any]:
    """Return the devices, and which of them can reach each other's memory."""
    nodes = sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
    told: dict[str, Any] = {"nodes": nodes, "visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "devices": []}
    try:
        driver = Driver(device=None)
        version, count = driver.number("cuDriverGetVersion"), driver.number("cuDeviceGetCount")
    except OSError as error:
        return told | {"error": f"{LIBRARY} cannot be loaded ({error})"}
    except DriverError as error:
        return told | {"error": str(error)}
    peers = {
        f"{a}-{b}": bool(driver.number("cuDeviceCanAccessPeer", a, b))
        for a in range(count)
        for b in range(count)
        if a != b
    }
    devices = [{"name": driver.device_name(each), "mode": driver.compute_mode(each)} for each in range(count)]
    return told | {"cuda": f"{version // 1000}.{version % 1000 // 10}", "devices": devices, "peers": peers}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(look()) + "\n")
