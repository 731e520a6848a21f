"""Try cross-memory attach in a process of its own, and print the outcomes as a JSON object.

Ranks of a host are sibling processes. Linux's security module Yama may allow a parent process to read a child's memory
but not a child to read its parent's, so both are tried. If a child may not read its parent's memory, siblings may not
read each other's memory.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys

from hpccoll.errors import CommunicationError
from hpccoll.runtime.node_memory.cross_memory import read_memory

_PARENT, _CHILD = b"text of the parent", b"text of the child."


def read_process(pid: int, address: int, expected: bytes) -> str:
    """Read the memory of process `pid` at `address`, which should contain `expected`.

    Returns `worked`, or the reason why the memory could not be read.
    """
    copy = ctypes.create_string_buffer(len(expected))
    try:
        read_memory(pid, address, ctypes.addressof(copy), len(expected))
    except CommunicationError:
        number = ctypes.get_errno()
        return f"refused ({errno.errorcode.get(number, number)}: {os.strerror(number)})"
    return "worked" if copy.raw == expected else "read something else"


def main() -> None:
    """Fork a child process, let parent and child read each other's memory, and print both outcomes as JSON."""
    buffer = ctypes.create_string_buffer(_PARENT, len(_PARENT))
    address, parent = ctypes.addressof(buffer), os.getpid()
    (outcome, send_outcome), (wait_for_end, end) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        buffer.raw = _CHILD  # changes the child's own copy of the page, at the same address
        os.write(send_outcome, read_process(parent, address, _PARENT).encode())
        os.read(wait_for_end, 1)  # returns when the parent closes `end` or exits
        os._exit(0)
    child_reads_parent = os.read(outcome, 1000).decode()
    parent_reads_child = read_process(child, address, _CHILD)
    os.close(end)
    os.waitpid(child, 0)
    outcomes = {"a parent reads its child": parent_reads_child, "a child reads its parent": child_reads_parent}
    sys.stdout.write(json.dumps(outcomes) + "\n")


if __name__ == "__main__":
    main()
