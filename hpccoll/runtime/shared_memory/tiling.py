"""Turns reduces, copies and fences into calls on memory, cut into tiles that stay in the cache.

Memory of other ranks that this process maps is accessed as ordinary arrays. Memory that is not mapped is read from the
other process into a bounce buffer, tile by tile, before it is reduced. Copies use larger tiles than reduces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpccoll.runtime.address_space import AddressSpace
from hpccoll.runtime.arrays import BoundCall, FlatArray
from hpccoll.runtime.lowering import Copy, LocalInstruction, MemoryRange, NodeFence, Reduce
from hpccoll.runtime.node_memory.cross_memory import CrossMemory

TILE_BYTES = 128 * 2**10  # fits the second-level cache with its operands, and costs little in calls
REMOTE_TILE_BYTES = 256 * 2**10  # each tile costs a system call
REMOTE_COPY_BYTES = 2**20


def bounce_count(itemsize: int) -> int:
    """Return the number of elements of a bounce buffer: one tile for each of a reduce's two operands."""
    return 2 * (REMOTE_TILE_BYTES // itemsize)


class LocalBinder:
    """Binds the local instructions of a program (reduces, copies, fences) to memory.

    Args:
        fence: the call that waits for the ranks of the node.
        remote: access to other processes' memory; None if not needed.
        bounce: a buffer of `bounce_count` elements; None if no memory of other processes is read.
    """

    def __init__(
        self, space: AddressSpace, fence: BoundCall, remote: CrossMemory | None = None, bounce: FlatArray | None = None
    ) -> None:
        self._space, self._fence, self._remote, self._bounce = space, fence, remote, bounce

    def bind(self, instructions: Sequence[LocalInstruction]) -> list[BoundCall]:
        """Return the calls that carry out the instructions, in order; makes no call."""
        calls: list[BoundCall] = []
        group: list[Reduce | Copy] = []
        for instruction in instructions:
            if isinstance(instruction, NodeFence):
                calls.extend(self._bind_group(group))
                calls.append(self._fence)
                group = []
            elif group and not _can_tile_together(group, instruction):
                calls.extend(self._bind_group(group))
                group = [instruction]
            else:
                group.append(instruction)
        calls.extend(self._bind_group(group))
        return calls

    def _bind_group(self, group: Sequence[Reduce | Copy]) -> Iterator[BoundCall]:
        """Yield the calls of a group tile by tile: every instruction on the first tile, then on the next, and so on."""
        if not group:
            return
        space = self._space
        remote = any(space.view(place) is None for instruction in group for place in instruction.ranges)
        count = group[0].out.count
        nbytes = REMOTE_COPY_BYTES if remote else count * space.itemsize
        if any(isinstance(instruction, Reduce) for instruction in group):
            nbytes = REMOTE_TILE_BYTES if remote else TILE_BYTES
        tile = max(nbytes // space.itemsize, 1)
        for start in range(0, count, tile):
            stop = min(start + tile, count)
            for instruction in group:
                places = [place.part(start, stop) for place in instruction.ranges]
                if isinstance(instruction, Copy):
                    yield self._bind_copy(*places)
                else:
                    yield from self._bind_reduce(places)

    def _bind_copy(self, source: MemoryRange, out: MemoryRange) -> BoundCall:
        """Return the call that copies a range; source or destination may be memory of another process."""
        space = self._space
        source_view, out_view = space.view(source), space.view(out)
        if source_view is None:
            return self._bind_read(source, space.address(out))
        if out_view is None and self._remote is not None:
            nbytes = source.count * space.itemsize
            return self._remote.bind_write(out.owner, space.address(out), space.address(source), nbytes)
        return space.module.bind_copy(out_view, source_view)

    def _bind_reduce(self, places: Sequence[MemoryRange]) -> Iterator[BoundCall]:
        """Yield the calls of a reduce; operands in other processes are first read into the bounce buffer."""
        space = self._space
        views = [space.view(place) for place in places]
        for operand, place in enumerate(places[:2]):
            if views[operand] is None and self._bounce is not None:
                begin = operand * (len(self._bounce) // 2)  # both operands may be remote
                bounce = self._bounce[begin : begin + place.count]
                yield self._bind_read(place, space.module.get_address(bounce))
                views[operand] = bounce
        yield space.module.bind_reduce(space.reduce_function, *views)

    def _bind_read(self, place: MemoryRange, local_address: int) -> BoundCall:
        """Return the call that reads a range of another process's memory."""
        if self._remote is None:
            raise LookupError(f"{place} is memory of another process, which cannot be read")
        space = self._space
        return self._remote.bind_read(place.owner, space.address(place), local_address, place.count * space.itemsize)


def _can_tile_together(group: Sequence[Reduce | Copy], added: Reduce | Copy) -> bool:
    """Whether an instruction can join a group that runs tile by tile: overlapping ranges must start together."""
    for other in group:
        if other.out.count != added.out.count:
            return False
        for place in other.ranges:
            if any(place.overlaps(mine) and place.start != mine.start for mine in added.ranges):
                return False
    return True
