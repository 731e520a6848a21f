"""Opens files that other users may have created or replaced, such as files in /dev/shm, /tmp or a shared directory.

A FIFO, a device, a symbolic link or a file of any size may stand in place of an expected file. `open_private` refuses
files that another user may have made or may change. `read_regular` accepts files of other users, but only regular files
up to a size limit. `read_limited` also accepts pipes and devices, up to a size limit.
"""

from __future__ import annotations

import errno
import os
import stat

_CHUNK_BYTES = 2**20
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def open_private(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file that this user owns and that no other user can write; return its descriptor.

    `flags` are those of `os.open`.

    Raises:
        OSError: the file cannot be opened, is a symbolic link or no regular file, or another user may have written it.
    """
    descriptor = _open_regular(path, flags | os.O_NOFOLLOW)
    status = os.fstat(descriptor)
    reason = ""
    if status.st_uid != os.geteuid():
        reason = f"it belongs to user {status.st_uid}, not to user {os.geteuid()}"
    elif status.st_mode & _OTHERS_WRITE:
        reason = f"other users can write it (mode {stat.S_IMODE(status.st_mode):o})"
    if reason:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, reason, path)
    return descriptor


def read_private(path: str, most_bytes: int) -> bytes:
    """Return the contents of a file that `open_private` accepts and that has up to `most_bytes` bytes.

    Raises:
        OSError: `open_private` refuses the file, or the file has more than `most_bytes` bytes.
    """
    return _read(open_private(path), path, most_bytes)


def read_regular(path: str, most_bytes: int) -> bytes:
    """Return the contents of a regular file of any user, of up to `most_bytes` bytes; do not block on a pipe.

    Raises:
        OSError: the file cannot be opened, is no regular file, or has more than `most_bytes` bytes.
    """
    return _read(_open_regular(path, os.O_RDONLY), path, most_bytes)


def read_limited(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Return the contents of a file or pipe that the user named, of up to `most_bytes` bytes; it may block on a pipe.

    Raises:
        OSError: the file cannot be read, or has more than `most_bytes` bytes.
    """
    contents = bytearray()
    with open(path, "rb") as file:  # noqa: PTH123 - `pathlib` takes 5 ms to import
        nbytes = os.fstat(file.fileno()).st_size
        while nbytes <= most_bytes and (chunk := file.read(_CHUNK_BYTES)):
            contents += chunk
            nbytes = max(nbytes, len(contents))
    if nbytes > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", os.fspath(path))
    return bytes(contents)


def is_open_to_others(directory: str | os.PathLike[str]) -> bool:
    """Whether every user can make files in a directory, as in /tmp; raise OSError if it cannot be examined."""
    return bool(os.stat(directory).st_mode & stat.S_IWOTH)  # noqa: PTH116 - `pathlib` takes 5 ms to import


def _open_regular(path: str, flags: int) -> int:
    """Open a file with `flags` of `os.open`, and return its descriptor; raise OSError unless it is a regular file."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return descriptor


def _read(descriptor: int, path: str, most_bytes: int) -> bytes:
    """Return the contents of the open file `descriptor`, called `path`, and close it.

    Raises OSError if the file has more than `most_bytes` bytes.
    """
    with os.fdopen(descriptor, "rb") as file:
        nbytes = os.fstat(descriptor).st_size
        if nbytes > most_bytes:
            raise OSError(errno.EFBIG, f"it has {nbytes} bytes, more than {most_bytes}", path)
        return file.read(most_bytes)
