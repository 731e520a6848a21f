"""The checks of `hpccoll doctor`, which report problems of an installation, a host or a job with evidence and a remedy.

Each module checks one area and returns findings. A driver, an MPI library or a tool of the site may crash or hang, so
each runs in a process of its own with a time limit. The checks do not change or remove anything. An argument `root` is
the directory that contains proc, sys and dev: `/`, or another directory in tests. Start reading at checks.py, which
runs all checks.
"""

from hpccoll.doctor.finding import Finding

__all__ = ["Finding"]
