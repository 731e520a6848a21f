"""From joins, copies and meetings to ready calls: cut into tiles that stay in the cache, bound to memory.

What lies in a window that this process maps is an array like any other. What lies in another process's own memory is
read into a bounce buffer of a tile before it is combined, and copied in larger pieces where it is only moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hpccoll.runtime.arrays import ArrayModule, BoundCall, FlatArray
from hpccoll.runtime.lowering import OWN, Copy, LocalInstruction, MemoryRange, NodeFence, Reduce
from hpccoll.runtime.shared_memory.cross_memory import Remote

TILE = 128 * 2**10  # bytes: with its operands it fits into the second-level cache, and its calls cost little beside it
REMOTE_TILE = 256 * 2**10  # a system call each
REMOTE_COPY = 2**20


@dataclass(frozen=True, slots=True)
class Ground:
    """The memories that a program runs on.

    `view` gives the elements of a place as an array of this process, or None where it lies in another process's own
    memory, whose address `address` then gives. `bounce` has twice
    REMOTE_TILE bytes where any place may be remote.
    """

    view: Callable[[MemoryRange], FlatArray | None]
    address: Callable[[MemoryRange], int]
    module: ArrayModule
    function: str
    itemsize: int
    remote: Remote | None
    bounce: FlatArray | None

    def local(self, place: MemoryRange) -> FlatArray:
        """The elements of a place that this process can address."""
        flat = self.view(place)
        if flat is None:
            raise LookupError(f"{place} lies in another process")  # a plan never moves from remote to remote
        return flat


def bound(
    instructions: Sequence[LocalInstruction], ground: Ground, meet: BoundCall, enter: BoundCall | None
) -> list[BoundCall]:
    """Return the calls that carry out local instructions.

    Args:
        instructions: joins, copies and meetings, in order.
        ground: the memories.
        meet: waits for the ranks of the node.
        enter: the same, for the first meeting; None where there is none left to bind.
    """
    steps: list[BoundCall] = []
    group: list[Reduce | Copy] = []
    for instruction in (*instructions, NodeFence()):
        if not isinstance(instruction, NodeFence) and (not group or _together(group, instruction)):
            group.append(instruction)
            continue
        steps.extend(_tiles(group, ground))
        group = []
        if isinstance(instruction, NodeFence):
            steps.append(enter or meet)
            enter = None
        else:
            group.append(instruction)
    return steps[:-1]


def _together(group: Sequence[Reduce | Copy], more: Reduce | Copy) -> bool:
    """Whether an instruction can be carried out tile by tile with others: what they share, they share in step."""
    for other in group:
        if other.out.count != more.out.count:
            return False
        for place in other.ranges:
            if any(place.overlaps(mine) and place.start != mine.start for mine in more.ranges):
                return False
    return True


def _tiles(group: Sequence[Reduce | Copy], ground: Ground) -> Iterator[BoundCall]:
    if not group:
        return
    far = any(place.owner != OWN and ground.view(place) is None for each in group for place in each.ranges)
    count = group[0].out.count
    whole = REMOTE_COPY if far else count * ground.itemsize
    tile = (REMOTE_TILE if far else TILE) if any(isinstance(each, Reduce) for each in group) else whole
    step = max(tile // ground.itemsize, 1)
    for start in range(0, count, step):
        stop = min(start + step, count)
        for each in group:
            yield from _calls(each, start, stop, ground)


def _calls(each: Reduce | Copy, start: int, stop: int, ground: Ground) -> Iterator[BoundCall]:
    places = [place.part(start, stop) for place in each.ranges]
    views = [ground.view(place) for place in places]
    if isinstance(each, Copy):
        source, out = views
        if source is None:
            yield _read(ground, places[0], ground.address(places[1]))
        elif out is None and ground.remote is not None:
            yield ground.remote.write(
                places[1].owner, ground.address(places[1]), ground.address(places[0]), source.nbytes
            )
        else:
            yield ground.module.bind_copy(out, source)
        return
    for at, place in enumerate(places[:2]):
        if views[at] is None and ground.bounce is not None:
            half = len(ground.bounce) // 2  # both operands may be remote
            bounce = ground.bounce[at * half : at * half + stop - start]
            yield _read(ground, place, ground.module.get_address(bounce))
            views[at] = bounce
    yield ground.module.bind_reduce(ground.function, *views)


def _read(ground: Ground, place: MemoryRange, here: int) -> BoundCall:
    if ground.remote is None:
        raise LookupError(f"{place} lies in another process, which cannot be read")
    return ground.remote.read(place.owner, ground.address(place), here, place.count * ground.itemsize)
