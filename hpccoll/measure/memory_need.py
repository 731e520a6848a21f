"""Leaves a message size out of a benchmark if the buffers for this size do not fit into the memory of a node.

With one kind of buffer, a benchmark holds at most MESSAGES messages per rank at a time, however many algorithms it
compares: input, output, scratch of the algorithms, and one more for the buffers of other libraries. If a benchmark
compares shared memory with other memory, a second input and output in shared memory take the memory of two more
messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpccoll.errors import UnavailableError
from hpccoll.processes.free_memory import find_free_bytes
from hpccoll.units import format_size

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.runtime.job import RankLayout

MESSAGES, SHARED_MESSAGES = 4, 2
USABLE = 0.9  # fraction of the free memory that buffers may take; the rest is for other programs


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Which message sizes of a benchmark fit into memory."""

    sizes: tuple[int, ...]  # the message sizes in bytes that fit
    left_out: tuple[int, ...]  # the message sizes that do not fit
    free_bytes: int  # the free memory per rank in bytes, on the host that has the least free memory per rank
    messages: int  # how many messages a rank holds at a time; 0 if all buffers are in GPU memory

    def describe(self) -> str:
        """Return a sentence with the memory that the largest message needs on each rank, and the free memory."""
        largest = max(self.sizes, default=0)
        need = f"{self.messages} messages of {format_size(largest)}, {format_size(self.messages * largest)} per rank"
        return f"memory: {need}; {format_size(self.free_bytes)} per rank is free"

    def explain_left_out(self) -> str:
        """Return a sentence with the message sizes that do not fit, and the remedy; empty if all fit."""
        if not self.left_out:
            return ""
        names = ", ".join(map(format_size, self.left_out))
        need = format_size(self.messages * min(self.left_out))
        return (
            f"messages of {names}: {self.messages} of them need {need} or more per rank, "
            f"{format_size(self.free_bytes)} per rank is free; start fewer ranks per node, or name smaller messages by "
            "--max-bytes"
        )


def require_memory(
    comm: MPI.Intracomm, layout: RankLayout, sizes: Sequence[int], buffers: Collection[str]
) -> MemoryNeed:
    """Return which message sizes fit into the memory of all nodes. Collective, with the same result on every rank.

    Args:
        comm: the communicator of the ranks.
        layout: the hosts of the ranks.
        sizes: message sizes in bytes.
        buffers: the kinds of buffers, such as `host`; with `cuda` alone, all sizes are assumed to fit.

    Raises:
        UnavailableError: no size fits.
    """
    free_bytes = comm.allgather(find_free_bytes())
    ranks = Counter(layout.hosts)
    per_rank = min(free // ranks[host] for free, host in zip(free_bytes, layout.hosts, strict=True))
    messages = 0 if set(buffers) == {"cuda"} else MESSAGES
    if messages and "symmetric" in buffers and len(buffers) > 1:
        messages += SHARED_MESSAGES
    fitting = tuple(size for size in sizes if messages * size <= USABLE * per_rank)
    need = MemoryNeed(fitting, tuple(size for size in sizes if size not in fitting), per_rank, messages)
    if not fitting:
        raise UnavailableError(f"no message size fits into memory: {need.explain_left_out()}")
    return need
