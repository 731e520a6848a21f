"""Run as a process of its own: may processes read each other's memory? Prints a JSON object.

Ranks are siblings, neither the parent of the other. Linux's Yama allows a parent to read its child where it forbids
siblings, so both directions are tried: what a child may not do to its parent, a sibling may not do either.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys

_PARENT, _CHILD = b"text of the parent", b"text of the child."


class _Span(ctypes.Structure):
    """`struct iovec`: where, and how many bytes."""

    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


def read(pid: int, address: int, nbytes: int) -> tuple[bytes, int]:
    """Return `nbytes` at `address` of process `pid`, and the error number (0 where it worked)."""
    call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    call.restype = ctypes.c_ssize_t
    landing = ctypes.create_string_buffer(nbytes)
    here, there = _Span(ctypes.addressof(landing), nbytes), _Span(address, nbytes)
    count = call(pid, ctypes.byref(here), ctypes.c_ulong(1), ctypes.byref(there), ctypes.c_ulong(1), ctypes.c_ulong(0))
    return landing.raw, 0 if count == nbytes else ctypes.get_errno() or errno.EIO


def said(got: tuple[bytes, int], wanted: bytes) -> str:
    """Return what came of a try, in words."""
    data, number = got
    if number:
        return f"refused ({errno.errorcode.get(number, number)}: {os.strerror(number)})"
    return "worked" if data == wanted else "read something else"


def main() -> None:
    """Let a child read this process, and this process the child."""
    nbytes = len(_PARENT)
    buffer = ctypes.create_string_buffer(_PARENT, nbytes)
    address, parent = ctypes.addressof(buffer), os.getpid()
    (told, tell), (go, end) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        buffer.raw = _CHILD  # its own copy of the page, at the same address
        os.write(tell, said(read(parent, address, nbytes), _PARENT).encode())
        os.read(go, 1)  # until the parent has read this process, or is gone
        os._exit(0)
    upwards = os.read(told, 1000).decode()
    downwards = said(read(child, address, nbytes), _CHILD)
    os.close(end)
    os.waitpid(child, 0)
    sys.stdout.write(json.dumps({"a parent reads its child": downwards, "a child reads its parent": upwards}) + "\n")


if __name__ == "__main__":
    main()
