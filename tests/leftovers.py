"""Removes files that MPI libraries left in /dev/shm during a test run; some tests kill ranks on purpose.

python tests/leftovers.py SECONDS    # removes unused files that are at most so old
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpccoll.doctor.shared_memory import list_library_files

SHM = Path("/dev/shm")


@contextmanager
def keep_unused_files(directory: Path = SHM) -> Iterator[None]:
    """Context manager, inside which `remove_unused_files` of other test sessions waits: a test needs an unused file."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_unused_files(age_s: float, directory: Path = SHM) -> list[str]:
    """Remove the files of the last `age_s` seconds that no process uses; return their names."""
    with keep_unused_files(directory):
        files = [each for each in list_library_files(directory) if each.is_inspectable and not each.in_use]
        gone = [each.path for each in files if each.age_s <= age_s]
        for path in gone:
            path.unlink(missing_ok=True)
    return [path.name for path in gone]


if __name__ == "__main__":
    remove_unused_files(float(sys.argv[1]))
