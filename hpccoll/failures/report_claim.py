"""`ReportClaim`: the right to report on a job that does not go on, which one rank per node can hold.

The claim is a lock on a byte of a file that all ranks of the node can open, because the kernel gives a lock to one of
several processes that ask for it at once, and releases it if the process ends. The lock is an open file description
lock: unlike one of `lockf`, it stays when this process closes another descriptor of the file.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import time
from contextlib import suppress
from typing import Final

from hpccoll.private_files import open_private

CLAIM_S: Final = 5.0  # a claim without report is void afterwards
_LOCK: Final = struct.Struct("hhqqi4x")  # `struct flock`: type, whence, start, length, process id


class ReportClaim:
    """This process's claim to print the report on the job: a lock on one byte of a file.

    If another rank, which may be stopped, keeps the lock for CLAIM_S seconds, `take` locks the next byte instead.
    """

    def __init__(self) -> None:
        self._descriptor, self._place = -1, 0
        self._refused_at: float | None = None  # when `take` first found the byte locked
        self._missing_since: float | None = None  # when `take` first found no file

    def take(self, path: str) -> bool:
        """Lock the file at `path`; return False if another process holds the lock.

        A process on a file system without locks always gets the claim. If the file is gone, a rank that ends the job
        may have removed it with its report; the process gets the claim if the job still runs CLAIM_S seconds later.
        """
        if self._descriptor >= 0:
            return True
        now = time.monotonic()
        if self._refused_at is not None and now - self._refused_at > CLAIM_S:
            self._place, self._refused_at = self._place + 1, None
        try:
            descriptor = open_private(path, os.O_RDWR)
        except OSError:
            self._missing_since = self._missing_since or now
            return now - self._missing_since >= CLAIM_S
        try:
            if sys.platform == "linux":
                lock = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, self._place, 1, 0)
                fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)
        except (BlockingIOError, PermissionError):
            os.close(descriptor)
            self._refused_at = self._refused_at or now
            return False
        except OSError:
            pass
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Release the lock, so that another process can claim the report."""
        with suppress(OSError):
            os.close(self._descriptor)
        self._descriptor = -1
