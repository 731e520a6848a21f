"""Programs of thread blocks: the common form of the schedules that other tools publish.

Each rank has several thread blocks, which run at the same time. A block executes its steps in order. A step waits for
semaphores, then changes cells, then raises semaphores. A cell holds one chunk of the input, output or scratch buffer of
a rank, or one chunk of a message in flight. The formats of MSCCL, MSCCL++, TE-CCL and TACCL are all read as programs of
thread blocks, so that one proof, one search for deadlocks and one conversion to plans serve all of them.
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
MOST_RANKS, MOST_CELLS = 2**12, 2**22  # proofs of larger schedules would take hours and run out of memory


@dataclass(frozen=True, slots=True)
class Effect:
    """A change that a step makes: the cell `target` gets a copy of the cell in `sources`, or the sum of several cells.

    A cell (rank, buffer name, index) holds one chunk of data. The buffer is `i` (input), `o` (output), `s` (scratch),
    or a message in flight.
    """

    target: Cell
    sources: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class SemaphoreWait:
    """A condition of a step of a thread block: the step waits until the counter `semaphore` is at least `count`.

    `is_counted` states that several thread blocks raise the semaphore, each by one.
    """

    semaphore: Semaphore
    count: int
    is_counted: bool = False


@dataclass(frozen=True, slots=True)
class Post:
    """A signal of a step: raises the counter `semaphore` to at least `value`, or by one if `value` is None."""

    semaphore: Semaphore
    value: int | None = None


@dataclass(frozen=True, slots=True)
class BlockStep:
    """A step of a thread block of a published schedule.

    Args:
        block: the number of the thread block on its rank.
        index: the number of the step in the file.
        words: the step as error messages show it.
        effects: the copies and sums of chunks that the step carries out.
        waits: the conditions under which the step starts.
        posts: the semaphores that the step raises when it is done.
        slot: for a send, the semaphore that counts the receives of its link (source, destination, channel), and the
            number of earlier messages of the link; if the link has k buffers, the send waits until fewer than k earlier
            messages of the link are in flight.
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
        """Return rank, thread block, number and words of the step, as `rank 3, thread block 1, step 4 (rrc o[5])`."""
        return f"rank {self.rank}, thread block {self.block}, step {self.index} ({self.words})"


@dataclass(frozen=True, slots=True)
class BlockProgram:
    """A schedule of MSCCL, MSCCL++, TE-CCL or TACCL as steps of thread blocks, which run at the same time.

    Args:
        tool: the tool whose format the file has.
        chunks: the number of chunks of the collective's data.
        blocks: the steps of each thread block of all ranks, in order.
        inputs: the contents of each input cell (rank, buffer, index) at the start: a chunk, and a bit mask of the ranks
            that contributed.
        outputs: the contents that each output cell must have at the end, in the form of `inputs`.
        homes: the chunk number in a `Plan` of each cell that is a chunk of the plan; empty if no plan can express the
            schedule.
        plan_chunks: the number of chunks per rank of a `Plan` of the schedule; 0 if no plan can express the schedule.
        messages: the number of messages of the schedule.
        remarks: reasons why no plan can express the schedule.
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
    """The cells (rank, buffer, index) of a collective's input and output, and the contents that they must have.

    `per` is the number of chunks of a rank's block, or of the whole vector of an operation without blocks. If
    `in_place` is true, a rank's input is a part of its output's memory, or its output a part of its input's memory.
    """

    operation: Operation
    ranks: int
    per: int
    in_place: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError unless there are 1 to MOST_RANKS ranks, and 1 to MOST_CELLS chunks on all ranks together."""
        if not 1 <= self.ranks <= MOST_RANKS or not self.per >= 1 or self.ranks * self.chunks > MOST_CELLS:
            raise ValueError(
                f"{self.ranks} ranks with blocks of {self.per} chunks; need 1 to {MOST_RANKS} ranks and at most "
                f"{MOST_CELLS} chunks on all ranks together"
            )

    @property
    def chunks(self) -> int:
        """The number of chunks of the collective's data: of all blocks of all ranks, or of the vector."""
        n = self.ranks
        if self.operation is Operation.ALL_TO_ALL:
            return n * n * self.per
        return n * self.per if self.operation.has_blocks else self.per

    def initial(self, rank: int, index: int) -> CellContents:
        """Return what chunk `index` of a rank's input holds: a data chunk, and a bit mask of its one contributor."""
        if self.operation is Operation.ALL_TO_ALL:
            return rank * self.ranks * self.per + index, 1 << rank
        return (rank * self.per + index if self.operation is Operation.ALL_GATHER else index), 1 << rank

    def required(self, rank: int, index: int) -> CellContents:
        """Return what chunk `index` of a rank's output must hold: a data chunk, and a bit mask of contributors."""
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
        """Return the cell (rank, buffer, index) of chunk `index` of a rank's buffer; in-place buffers share cells."""
        if self.in_place and buffer != SCRATCH:
            if self.operation is Operation.ALL_GATHER and buffer == INPUT:
                return rank, OUTPUT, rank * self.per + index
            if self.operation is Operation.REDUCE_SCATTER and buffer == OUTPUT:
                return rank, INPUT, rank * self.per + index
            if self.operation in (Operation.ALL_REDUCE, Operation.BROADCAST, Operation.REDUCE):
                return rank, OUTPUT, index
        return rank, buffer, index

    def list_inputs(self) -> dict[Cell, CellContents]:
        """Return the initial contents of the input cells of all ranks, by cell."""
        return {
            self.locate(rank, INPUT, k): self.initial(rank, k)
            for rank in range(self.ranks)
            for k in range(self.count_inputs(rank))
        }

    def list_outputs(self) -> dict[Cell, CellContents]:
        """Return the contents that the output cells of all ranks must have at the end, by cell."""
        return {
            self.locate(rank, OUTPUT, k): self.required(rank, k)
            for rank in range(self.ranks)
            for k in range(self.count_outputs(rank))
        }

    def list_homes(self) -> dict[Cell, int]:
        """Return the chunk numbers that the ranks' input and output cells have in a `Plan`, by cell; some have none."""
        places = (
            (rank, buffer, k)
            for rank in range(self.ranks)
            for buffer, count in ((INPUT, self.count_inputs(rank)), (OUTPUT, self.count_outputs(rank)))
            for k in range(count)
        )
        return {self.locate(*place): home for place in places if (home := self.home(*place)) is not None}

    @property
    def plan_chunks(self) -> int:
        """The number of chunks per rank of a `Plan` of this collective."""
        if self.operation is Operation.ALL_TO_ALL:
            return 2 * self.ranks
        return self.chunks

    def home(self, rank: int, buffer: str, index: int) -> int | None:
        """Return the chunk number in a `Plan` of chunk `index` of a rank's input or output buffer.

        In an all-to-all, the result is None for all pieces of a block but the first, because a plan moves whole blocks.
        """
        if self.operation is Operation.ALL_TO_ALL:
            if self.per > 1:
                return None if index % self.per else self.home_of_block(buffer, index // self.per)
            return self.home_of_block(buffer, index)
        is_own = (buffer == INPUT) == (self.operation is Operation.ALL_GATHER)
        scattered = self.operation in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)
        return rank * self.per + index if scattered and is_own else index

    def home_of_block(self, buffer: str, block: int) -> int:
        """Return the chunk, in the `Plan` of an all-to-all, of block number `block` of the input or output buffer."""
        return block if buffer == INPUT else self.ranks + block
