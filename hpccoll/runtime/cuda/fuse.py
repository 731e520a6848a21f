"""Fuses the instructions between two node fences (barriers of a node's ranks) into a few kernel launches.

Instructions that share a memory range and have equally many elements form a chain: each element is loaded once, reduced
in registers, and stored to every output. Independent chains of the same operations run in one kernel launch, which
takes a table with one row per chain: the addresses that the chain loads from and stores to.

Memory is compared as a `range` of byte addresses, because two memory ranges may be the same memory, such as the input
and the output of an in-place collective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hpccoll.arrays import DType
from hpccoll.lowering import LocalInstruction, MemoryRange, NodeFence
from hpccoll.runtime.cuda.kernels import WIDEST, FusedChain


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One kernel launch: runs the same instructions for each row of a table of addresses, in accesses of `width` bytes.

    `rows` is the table, in the format that `kernels.generate_source` documents. `units` is the largest number of units
    (`KernelSpec.unit` bytes each) in any row of the table.
    """

    chain: FusedChain
    width: int
    rows: tuple[tuple[int, ...], ...]
    units: int


@dataclass(slots=True)
class _FusionGroup:
    """A fusion group: the loads, reduces and stores of instructions that work on the same elements."""

    function: str
    nbytes: int
    loads: list[range] = field(default_factory=list)
    reduces: list[tuple[int, int]] = field(default_factory=list)
    # The register of each range: -1 - i for the result of load i, and i for the result of reduce i (`make_chain`).
    registers: dict[range, int] = field(default_factory=dict)
    stores: dict[range, int] = field(default_factory=dict)

    def add(self, operands: Sequence[range], out: range) -> None:
        """Append an instruction: a copy of one operand or the reduction of two, whose result is stored to `out`."""
        registers = [self._register(operand) for operand in operands]
        if len(registers) == 2:
            self.reduces.append((registers[0], registers[1]))
            registers = [len(self.reduces) - 1]
        self.registers[out] = self.stores[out] = registers[0]

    def _register(self, operand: range) -> int:
        """Return the register that holds an operand; add a load if no register holds it."""
        if operand not in self.registers:
            self.loads.append(operand)
            self.registers[operand] = -len(self.loads)
        return self.registers[operand]

    def can_add(self, operands: Sequence[range], out: range, nbytes: int) -> bool:
        """Whether an instruction can join this group: equal sizes, a common range, and overlapping ranges are equal."""
        if nbytes != self.nbytes:
            return False
        known = (*self.loads, *self.stores)
        mine = (*operands, out)
        coincide = all(place == other or not _overlap(place, other) for place in mine for other in known)
        return coincide and any(place in known for place in mine)

    def depends_on_order(self, loads: Sequence[range], stores: Sequence[range]) -> bool:
        """Whether instructions with these loads and stores change the result if run before this group, not after it."""
        written = any(_overlap(store, other) for store in self.stores for other in (*loads, *stores))
        return written or any(_overlap(load, other) for load in self.loads for other in stores)

    def make_chain(self, dtype: DType) -> FusedChain:
        """Return this group as a `FusedChain` on registers, not addresses; a chain without reductions copies bytes."""
        count = len(self.loads)

        def to_chain_number(register: int) -> int:
            """Return the number that `FusedChain` gives a register: loads come first, reduces follow."""
            return -1 - register if register < 0 else count + register

        reduces = tuple((to_chain_number(left), to_chain_number(right)) for left, right in self.reduces)
        stores = tuple(map(to_chain_number, self.stores.values()))
        return FusedChain(self.function if reduces else "", dtype.name if reduces else "uint8", count, reduces, stores)


def address_range(address: int, nbytes: int) -> range:
    """Return a `range` with the addresses of `nbytes` bytes from `address` on."""
    return range(address, address + nbytes)


def _overlap(one: range, other: range) -> bool:
    """Whether two ranges of addresses share bytes."""
    return one.start < other.stop and other.start < one.stop


def plan_launches(
    instructions: Sequence[LocalInstruction],
    extent: Callable[[MemoryRange], range],
    scratch: range,
    function: str,
    dtype: DType,
) -> list[list[KernelLaunch]]:
    """Return the kernel launches of each phase, one list per phase; node fences separate the phases.

    `extent` maps a memory range to addresses; `function` is NumPy's name of the reduction. Stores to
    `scratch` that nothing loads later are left out, because no other rank reads `scratch`.
    """
    phases: list[list[_FusionGroup]] = [[]]
    for instruction in instructions:
        if isinstance(instruction, NodeFence):
            phases.append([])
        else:
            _add_to_group(phases[-1], [extent(place) for place in instruction], function)
    loads = [(phase, load) for phase, groups in enumerate(phases) for group in groups for load in group.loads]
    for phase, groups in enumerate(phases):
        for group in groups:
            for out in list(group.stores):
                is_loaded = any(later >= phase and _overlap(load, out) for later, load in loads)
                if _overlap(out, scratch) and not is_loaded:
                    del group.stores[out]
    return [list(_batch_groups(groups, dtype)) for groups in phases]


def _add_to_group(groups: list[_FusionGroup], ranges: Sequence[range], function: str) -> None:
    """Add an instruction to the latest fusion group that it can join without changing the result, else to a new group.

    An instruction can join a group if `can_add` accepts it, and running it before all later groups does not change the
    result. `ranges` has the addresses of the operands, then those of the output; `function` is NumPy's name of the
    reduction.
    """
    *operands, out = ranges
    for group in reversed(groups):
        if group.can_add(operands, out, len(out)):
            group.add(operands, out)
            return
        if group.depends_on_order(operands, [out]):
            break
    groups.append(_FusionGroup(function, len(out)))
    groups[-1].add(operands, out)


def _batch_groups(groups: Sequence[_FusionGroup], dtype: DType) -> Iterator[KernelLaunch]:
    """Yield kernel launches; independent fusion groups with the same instructions and access width share a launch."""
    batches: list[tuple[FusedChain, int, list[_FusionGroup]]] = []
    for group in groups:
        if not group.stores:
            continue
        chain = group.make_chain(dtype)
        width = _access_width([*group.loads, *group.stores], chain, dtype)
        for known, known_width, batch in reversed(batches):
            depends = any(group.depends_on_order(other.loads, list(other.stores)) for other in batch)
            if (known, known_width) == (chain, width) and len(batch) < chain.most_rows and not depends:
                batch.append(group)
                break
            if depends:
                batches.append((chain, width, [group]))
                break
        else:
            batches.append((chain, width, [group]))
    for chain, width, batch in batches:
        itemsize = dtype.itemsize if chain.reduces else 1
        rows = tuple(_make_row(group, width, itemsize) for group in batch)
        yield KernelLaunch(chain, width, rows, max(row[-2] for row in rows))


def _access_width(ranges: Sequence[range], chain: FusedChain, dtype: DType) -> int:
    """Return the widest access, in bytes, for which all ranges have the same misalignment.

    The misalignment must be a whole number of elements, or zero if an element is larger than the access.
    """
    itemsize, first, width = dtype.itemsize if chain.reduces else 1, ranges[0].start, WIDEST
    while first % min(width, itemsize) or any((place.start - first) % width for place in ranges):
        width //= 2
    return width


def _make_row(group: _FusionGroup, width: int, itemsize: int) -> tuple[int, ...]:
    """Return a fusion group as a row of the table that `kernels.generate_source` documents."""
    addresses = [*(load.start for load in group.loads), *(store.start for store in group.stores)]
    unit = max(width, itemsize)
    head = min(-addresses[0] % width, group.nbytes) // itemsize if itemsize < width else 0
    units = (group.nbytes - head * itemsize) // unit
    tail = (group.nbytes - head * itemsize - units * unit) // itemsize
    return (*addresses, head, units, tail)
