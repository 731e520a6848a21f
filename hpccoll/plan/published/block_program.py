"""Programs of thread blocks: the common form of the schedules that other tools publish.

Each rank has several thread blocks, which run at the same time. A block executes its steps in order. A step waits for
semaphores, then changes cells, then raises semaphores. A cell holds one chunk: of the input, the output or the scratch
buffer of a rank, or of a message in flight. The formats of MSCCL, MSCCL++, TE-CCL and TACCL are all read as such
programs, so one proof, one search for deadlocks and one conversion to plans serve all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from hpccoll.plan.operation import Operation

Cell: TypeAlias = tuple[int, str, int]  # rank, buffer (i, o, s, or the name of a link) and index
Semaphore: TypeAlias = tuple[str | int, ...]
CellContents: TypeAlias = tuple[int, int]  # a chunk of the collective's data, and the bit mask of its contributors
INPUT, OUTPUT, SCRATCH = "i", "o", "s"
IN_FLIGHT = ">"  # begins the buffer names of messages in flight
MOST_RANKS, MOST_CELLS = 2**12, 2**22  # of a file; proofs of larger ones would take hours and run out of memory


@dataclass(frozen=True, slots=True)
class Effect:
    """The cell `target` gets the sum of the cells `sources`, or a copy of the only source."""

    target: Cell
    sources: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class SemaphoreWait:
    """The step waits until `semaphore` is at least `count`; `is_counted` if several blocks raise it, by one each."""

    semaphore: Semaphore
    count: int
    is_counted: bool = False


@dataclass(frozen=True, slots=True)
class Post:
    """The step raises `semaphore` to `value`, or by one if `value` is None."""

    semaphore: Semaphore
    value: int | None = None


@dataclass(frozen=True, slots=True)
class BlockStep:
    """A step of a thread block: its number and words as in the file, and what it does.

    `slot` is the semaphore that counts the receives of the link on which the step sends, and the number of messages
    that were sent there before: with k buffered messages per link, the step waits for all but k of these receives.
    """

    rank: int
    block: int
    index: int
    words: str
    effects: tuple[Effect, ...] = ()
    waits: tuple[SemaphoreWait, ...] = ()
    posts: tuple[Post, ...] = ()
    slot: tuple[Semaphore, int] | None = None

    def describe(self) -> str:
        """Return the place of the step in words, such as `rank 3, thread block 1, step 4 (rrc o[5])`."""
        return f"rank {self.rank}, thread block {self.block}, step {self.index} ({self.words})"


@dataclass(frozen=True, slots=True)
class BlockProgram:
    """A published schedule for `ranks` ranks; the data of the collective has `chunks` chunks.

    `inputs` and `outputs` map cells to their contents at the start, and to those that are required at the end. `homes`
    maps cells to the chunk of the plan that holds their contents; it is empty if no plan can.
    """

    name: str
    tool: str
    operation: Operation
    ranks: int
    chunks: int
    blocks: tuple[tuple[BlockStep, ...], ...]
    inputs: dict[Cell, CellContents]
    outputs: dict[Cell, CellContents]
    homes: dict[Cell, int]
    plan_chunks: int
    messages: int
    remarks: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class CollectiveCells:
    """The cells of a collective's input and output, and what they hold, for `per` chunks in each rank's block.

    With `in_place`, the input of a rank is in the memory of its output, or the output in that of the input.
    """

    operation: Operation
    ranks: int
    per: int
    in_place: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for a size that no file of a schedule has."""
        if not 1 <= self.ranks <= MOST_RANKS or not self.per >= 1 or self.ranks * self.chunks > MOST_CELLS:
            raise ValueError(
                f"{self.ranks} ranks with blocks of {self.per} chunks; need 1 to {MOST_RANKS} ranks and at most "
                f"{MOST_CELLS} chunks on all ranks together"
            )

    @property
    def chunks(self) -> int:
        """The number of chunks of the collective's data."""
        n = self.ranks
        if self.operation is Operation.ALL_TO_ALL:
            return n * n * self.per
        return n * self.per if self.operation.has_blocks else self.per

    def initial(self, rank: int, index: int) -> CellContents:
        """Return the contents of chunk `index` of a rank's input."""
        if self.operation is Operation.ALL_TO_ALL:
            return rank * self.ranks * self.per + index, 1 << rank
        return (rank * self.per + index if self.operation is Operation.ALL_GATHER else index), 1 << rank

    def required(self, rank: int, index: int) -> CellContents:
        """Return the contents that chunk `index` of a rank's output must have."""
        n, per = self.ranks, self.per
        if self.operation is Operation.ALL_TO_ALL:
            source, at = divmod(index, per)
            return (source * n + rank) * per + at, 1 << source
        if self.operation is Operation.ALL_GATHER:
            return index, 1 << index // per
        if self.operation is Operation.BROADCAST:
            return index, 1
        everyone = (1 << n) - 1
        return (rank * per + index if self.operation is Operation.REDUCE_SCATTER else index), everyone

    def count_inputs(self, rank: int) -> int:
        """Return the number of chunks in the input of a rank."""
        if self.operation is Operation.BROADCAST and rank:
            return 0
        return self.per * (self.ranks if self.operation in (Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL) else 1)

    def count_outputs(self, rank: int) -> int:
        """Return the number of chunks in the output of a rank."""
        if self.operation is Operation.REDUCE and rank:
            return 0
        return self.per * (self.ranks if self.operation in (Operation.ALL_GATHER, Operation.ALL_TO_ALL) else 1)

    def locate(self, rank: int, buffer: str, index: int) -> Cell:
        """Return the cell of a chunk of a rank's buffer."""
        if self.in_place and buffer != SCRATCH:
            if self.operation is Operation.ALL_GATHER and buffer == INPUT:
                return rank, OUTPUT, rank * self.per + index
            if self.operation is Operation.REDUCE_SCATTER and buffer == OUTPUT:
                return rank, INPUT, rank * self.per + index
            if self.operation in (Operation.ALL_REDUCE, Operation.BROADCAST, Operation.REDUCE):
                return rank, OUTPUT, index
        return rank, buffer, index

    def list_inputs(self) -> dict[Cell, CellContents]:
        """Return the contents of the inputs' cells of all ranks."""
        return {
            self.locate(rank, INPUT, k): self.initial(rank, k)
            for rank in range(self.ranks)
            for k in range(self.count_inputs(rank))
        }

    def list_outputs(self) -> dict[Cell, CellContents]:
        """Return the contents that the outputs' cells of all ranks must have."""
        return {
            self.locate(rank, OUTPUT, k): self.required(rank, k)
            for rank in range(self.ranks)
            for k in range(self.count_outputs(rank))
        }

    def list_homes(self) -> dict[Cell, int]:
        """Return the plan's chunks of the cells of inputs and outputs that have one."""
        places = (
            (rank, buffer, k)
            for rank in range(self.ranks)
            for buffer, count in ((INPUT, self.count_inputs(rank)), (OUTPUT, self.count_outputs(rank)))
            for k in range(count)
        )
        return {self.locate(*place): home for place in places if (home := self.home(*place)) is not None}

    @property
    def plan_chunks(self) -> int:
        """The number of chunks per rank of a plan of the collective, or 0 if plans cannot express the collective."""
        if self.operation is Operation.ALL_TO_ALL:
            return 2 * self.ranks
        return self.chunks

    def home(self, rank: int, buffer: str, index: int) -> int | None:
        """Return the chunk of a plan for a chunk of a rank's input or output; None for an all-to-all in pieces."""
        if self.operation is Operation.ALL_TO_ALL:
            if self.per > 1:
                return None if index % self.per else self.home_of_block(buffer, index // self.per)
            return self.home_of_block(buffer, index)
        is_own = (buffer == INPUT) == (self.operation is Operation.ALL_GATHER)
        scattered = self.operation in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)
        return rank * self.per + index if scattered and is_own else index

    def home_of_block(self, buffer: str, block: int) -> int:
        """Return the chunk of an all-to-all's plan for a block of the input or the output."""
        return block if buffer == INPUT else self.ranks + block
