"""The checks of `hpccoll doctor`, which report problems of an installation, a host or a job with evidence and a remedy.

Each module checks one area and returns findings. Anything that may crash or hang (a driver, an MPI library, a tool of
the site) runs in a process of its own with a time limit, and its outcome is the evidence. Nothing is changed or
removed. An argument `root` is the directory with /proc, /sys and /dev; tests pass another one. Start reading at
checks.py, which runs all checks.
"""

from hpccoll.doctor.finding import Finding, Severity

__all__ = ["Finding", "Severity"]
