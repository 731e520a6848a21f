"""From joins, copies and meetings to launches: what lies between two meetings becomes one kernel where it can.

Instructions on equally many elements that share places in step are one chain: each element is loaded once, joined in
registers, and stored wherever it goes. Chains of the same kind that do not disturb each other are rows of one launch.

Everything here is in addresses, so that what looks like two memories but is one (input and output of a collective in
place) is seen for what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hpccoll.runtime.arrays import DType
from hpccoll.runtime.cuda.kernels import WIDEST, Chain
from hpccoll.runtime.lowering import Copy, LocalInstruction, MemoryRange, NodeFence, Reduce


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of memory that this device addresses."""

    address: int
    nbytes: int

    def overlaps(self, other: Extent) -> bool:
        """Whether the two share bytes."""
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel: a chain on rows, with accesses of `width` bytes.

    A row is what `kernels.source` says, as numbers. `blocks` is the most whole blocks that a row has.
    """

    chain: Chain
    width: int
    rows: tuple[tuple[int, ...], ...]
    blocks: int


@dataclass(slots=True)
class _Group:
    """Instructions on the same elements: what is loaded, what is joined, and where the results go."""

    function: str
    nbytes: int
    loads: list[Extent] = field(default_factory=list)
    joins: list[tuple[int, int]] = field(default_factory=list)
    # Registers by number: loads are numbered from 0 down here, joins from 0 up, until all loads are known.
    held: dict[Extent, int] = field(default_factory=dict)
    stores: dict[Extent, int] = field(default_factory=dict)

    def add(self, operands: Sequence[Extent], out: Extent) -> None:
        """Do one more instruction."""
        registers = [self._register(operand) for operand in operands]
        if len(registers) == 2:
            self.joins.append((registers[0], registers[1]))
            registers = [len(self.joins) - 1]
        self.held[out] = self.stores[out] = registers[0]

    def _register(self, operand: Extent) -> int:
        if operand not in self.held:
            self.loads.append(operand)
            self.held[operand] = -len(self.loads)
        return self.held[operand]

    def takes(self, operands: Sequence[Extent], out: Extent, nbytes: int) -> bool:
        """Whether an instruction goes together with these: it shares a place, and what it shares, it shares in step."""
        if nbytes != self.nbytes:
            return False
        known = (*self.loads, *self.stores)
        mine = (*operands, out)
        in_step = all(one == other or not one.overlaps(other) for one in mine for other in known)
        return in_step and any(one in known for one in mine)

    def disturbs(self, loads: Sequence[Extent], stores: Sequence[Extent]) -> bool:
        """Whether it matters in which order these and those are done."""
        written = any(one.overlaps(other) for one in self.stores for other in (*loads, *stores))
        return written or any(one.overlaps(other) for one in self.loads for other in stores)

    def chain(self, dtype: DType) -> Chain:
        """What is done to each element. What is only moved is moved as bytes, whatever it is."""
        count = len(self.loads)

        def number(register: int) -> int:
            return -1 - register if register < 0 else count + register

        joins = tuple((number(left), number(right)) for left, right in self.joins)
        stores = tuple(map(number, self.stores.values()))
        return Chain(self.function if joins else "", dtype.name if joins else "uint8", count, joins, stores)


def launches(
    instructions: Sequence[LocalInstruction],
    extent: Callable[[MemoryRange], Extent],
    scratch: Extent,
    function: str,
    dtype: DType,
) -> list[list[Launch]]:
    """Return what to launch before the first meeting, between the first and the second, and so on.

    Args:
        instructions: joins, copies and meetings, in order.
        extent: where a place is.
        scratch: this rank's own memory that nobody else reads; what nothing reads there any more is not written.
        function: NumPy's name of what joins.
        dtype: of the elements.
    """
    phases: list[list[_Group]] = [[]]
    for instruction in instructions:
        if isinstance(instruction, NodeFence):
            phases.append([])
            continue
        _place(phases[-1], instruction, extent, function)
    read = [(at, load) for at, groups in enumerate(phases) for group in groups for load in group.loads]
    for at, groups in enumerate(phases):
        for group in groups:
            for out in list(group.stores):
                if out.overlaps(scratch) and not any(late >= at and load.overlaps(out) for late, load in read):
                    del group.stores[out]
    return [list(_batched(groups, dtype)) for groups in phases]


def places_of(step: LocalInstruction) -> tuple[MemoryRange, ...]:
    """Return the places that an instruction touches, the one that it writes last."""
    if isinstance(step, Reduce):
        return step.left, step.right, step.out
    return (step.source, step.out) if isinstance(step, Copy) else ()


def _place(groups: list[_Group], each: Reduce | Copy, extent: Callable[[MemoryRange], Extent], function: str) -> None:
    """Put an instruction into the latest group that takes it, unless one in between would be disturbed."""
    *operands, out = map(extent, places_of(each))
    for group in reversed(groups):
        if group.takes(operands, out, out.nbytes):
            group.add(operands, out)
            return
        if group.disturbs(operands, [out]):
            break
    groups.append(_Group(function, out.nbytes))
    groups[-1].add(operands, out)


def _batched(groups: Sequence[_Group], dtype: DType) -> Iterator[Launch]:
    """Put groups of one kind that do not disturb each other into one launch; wide accesses apart from narrow ones."""
    batches: list[tuple[Chain, int, list[_Group]]] = []
    for group in groups:
        if not group.stores:
            continue
        chain = group.chain(dtype)
        width = _width([*group.loads, *group.stores], chain, dtype)
        for known, wide, batch in reversed(batches):
            if (known, wide) == (chain, width) and len(batch) < chain.most_rows:
                together = not any(group.disturbs(other.loads, list(other.stores)) for other in batch)
                if together:
                    batch.append(group)
                    break
            if any(group.disturbs(other.loads, list(other.stores)) for other in batch):
                batches.append((chain, width, [group]))
                break
        else:
            batches.append((chain, width, [group]))
    for chain, width, batch in batches:
        itemsize = 1 if not chain.joins else dtype.itemsize
        rows = tuple(_row(group, width, itemsize) for group in batch)
        yield Launch(chain, width, rows, max(row[-2] for row in rows))


def _width(places: Sequence[Extent], chain: Chain, dtype: DType) -> int:
    """Return the widest access for which all places lie alike, in bytes.

    They must be as far from a boundary as each other, by a number of whole elements, or of nothing where an element is
    larger than the access.
    """
    itemsize = dtype.itemsize if chain.joins else 1
    width = WIDEST
    first = places[0].address
    while width > 1:
        alike = all((place.address - first) % width == 0 for place in places)
        if alike and first % min(width, itemsize) == 0:
            break
        width //= 2
    return width


def _row(group: _Group, width: int, itemsize: int) -> tuple[int, ...]:
    places = [*(load.address for load in group.loads), *(store.address for store in group.stores)]
    block = max(width, itemsize)
    head = min(-places[0] % width, group.nbytes) // itemsize if itemsize < width else 0
    blocks = (group.nbytes - head * itemsize) // block
    tail = (group.nbytes - head * itemsize - blocks * block) // itemsize
    return (*places, head, blocks, tail)
