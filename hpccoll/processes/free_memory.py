"""The memory that this process may still allocate: that of the host, or less if a control group limits it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil


def find_free_bytes(root: Path = Path("/")) -> int:
    """Return how many bytes of memory this process may still use, from files of control groups below `root`.

    Of the limits of a control group and its ancestors, the tightest applies. Cached files count as free memory.
    """
    return max(min((psutil.virtual_memory().available, *_list_group_bytes(root))), 0)


def _list_group_bytes(root: Path) -> Iterator[int]:
    """Yield the free bytes of this process's control groups, and their ancestors, that limit memory (v1 and v2).

    Inactive page cache counts as free. `root` is the directory that contains proc and sys.
    """
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        is_v2 = not controllers
        if not is_v2 and "memory" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        files = ("memory.max", "memory.current") if is_v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        cache = "inactive_file" if is_v2 else "total_inactive_file"
        own = mount / path.strip("/")
        for group in (own, *own.parents):
            limit, used = (_read_int(group / name) for name in files)
            if limit is not None and used is not None:
                yield limit - used + _read_statistic(group / "memory.stat", cache)
            if group == mount:
                break


def _read_int(path: Path) -> int | None:
    """Return the number in a file; None if there is no such file or the limit is `max`."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _read_statistic(path: Path, name: str) -> int:
    """Return the value of one line of `memory.stat`; 0 if there is none."""
    with suppress(OSError, ValueError):
        return next(int(words[1]) for words in map(str.split, path.read_text().splitlines()) if words[:1] == [name])
    return 0
