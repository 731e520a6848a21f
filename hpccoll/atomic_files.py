"""Files that several processes may write: replaced as a whole, or changed under a lock."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

POLL_S = 0.02


def write_atomically(path: str | Path, contents: str | bytes) -> None:
    """Write a file such that readers see its old or its new contents, never a part, even after a crash.

    A file that is no regular file, such as /dev/stdout, is written in place. Symbolic links stay, and their target is
    replaced. Raises OSError if the file cannot be written.
    """
    target, encoded = Path(path), contents.encode() if isinstance(contents, str) else contents
    if target.exists() and not target.is_file():
        target.write_bytes(encoded)
        return
    target = target.resolve()
    temporary = target.with_name(f".{target.name[:200]}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with temporary.open("xb") as stream:
            if target.exists():
                os.fchmod(stream.fileno(), target.stat().st_mode & 0o777)
            stream.write(encoded)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def lock_beside(path: Path, limit_s: float) -> Iterator[None]:
    """Context manager: hold a lock on the file `.NAME.lock` beside the file `path`, whose name is NAME.

    If another process keeps the lock for `limit_s` seconds, for example because it is stopped, the `with` block runs
    without the lock. The lock file is not removed. Raises OSError if the lock file cannot be made.
    """
    descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        wait_for_lock(descriptor, limit_s)
        yield
    finally:
        os.close(descriptor)


def wait_for_lock(descriptor: int, limit_s: float) -> bool:
    """Lock an open file, given by its descriptor, until it is closed or unlocked; return whether it is locked.

    Returns False if another process keeps the lock for `limit_s` seconds, and True at once on a file system without
    locks.
    """
    end = time.monotonic() + limit_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(POLL_S)
        except OSError:
            return True
        else:
            return True


def unlock(descriptor: int) -> None:
    """Release the lock on an open file, given by its descriptor; do nothing on a file system without locks."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
