"""Reader of MSCCL algorithm files (XML), as MSCCL, RCCL and msccl-executor-nccl load them.

A step has one of the types s (send), r (receive), rcs (receive, copy, send), rrs (receive, reduce, send), rrc (receive,
reduce, copy), rrcs, cpy (copy), re (reduce) and nop. `depid` and `deps` name a step of another thread block of the same
rank that must complete first. A thread block signals its progress to others only at steps with `hasdep="1"`. Messages
between two ranks on one channel arrive in order. Source: the parsers of microsoft/msccl and ROCm/rccl
(src/misc/msccl/msccl_parser.cc), whose rules on attributes, peers and buffers this reader follows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from xml.etree import ElementTree as ET

from hpccoll.errors import PlanError, UsageError
from hpccoll.plan.operation import Operation
from hpccoll.plan.published.block_program import (
    IN_FLIGHT,
    INPUT,
    MOST_CELLS,
    MOST_RANKS,
    OUTPUT,
    SCRATCH,
    BlockProgram,
    BlockStep,
    Cell,
    CollectiveCells,
    Effect,
    Post,
    SemaphoreWait,
)

COLLECTIVES = {
    "allreduce": Operation.ALL_REDUCE,
    "allgather": Operation.ALL_GATHER,
    "reducescatter": Operation.REDUCE_SCATTER,
    "reduce_scatter": Operation.REDUCE_SCATTER,
    "broadcast": Operation.BROADCAST,
    "reduce": Operation.REDUCE,
    "alltoall": Operation.ALL_TO_ALL,
}
SENDS, RECEIVES = frozenset(("s", "rcs", "rrs", "rrcs")), frozenset(("r", "rcs", "rrs", "rrc", "rrcs"))
TYPES = (*sorted(SENDS | RECEIVES), "cpy", "re", "nop")


def parse_msccl(text: str, name: str) -> BlockProgram:
    """Return the program of an MSCCL XML file, without proving it; error messages call the file `name`.

    Raises:
        UsageError: the file is not XML, or an attribute is missing or has an unknown value.
        PlanError: a step names a buffer, peer or thread block that does not exist.
    """
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise UsageError(f"{name} declares XML entities, which MSCCL files do not have; remove the declaration")
    try:
        root = ET.fromstring(text)  # noqa: S314 - entities are refused above
    except ET.ParseError as error:
        raise UsageError(f"{name} is not XML: {error}") from error
    if root.tag != "algo":
        raise UsageError(f"{name} begins with <{root.tag}>; an MSCCL file begins with <algo>")
    return _MscclReader(name, root).read()


class _MscclReader:
    """Reads one MSCCL XML file; `name` stands for the file in errors, and `root` is its `<algo>` element.

    Keeps the number of messages of each link (source, destination, channel) read so far.
    """

    def __init__(self, name: str, root: ET.Element) -> None:
        self.name, self.root = name, root
        collective = self.attribute(root, "coll")
        if collective not in COLLECTIVES:
            raise UsageError(f"{name}: coll is {collective!r}; hpccoll reads {', '.join(COLLECTIVES)}")
        self.operation = COLLECTIVES[collective]
        self.n, loop = self.integer(root, "ngpus"), self.integer(root, "nchunksperloop")
        if not 1 <= self.n <= MOST_RANKS or loop < 1:
            raise UsageError(f"{name}: ngpus is {self.n} and nchunksperloop {loop}; need at least 1 of each")
        if self.operation.has_blocks and loop % self.n:
            raise UsageError(f"{name}: nchunksperloop is {loop}, which {self.n} ranks do not divide")
        self.in_place = self.attribute(root, "inplace") == "1"
        per = loop // self.n if self.operation.has_blocks else loop
        self.cells = CollectiveCells(self.operation, self.n, per, self.in_place)
        self.sent: Counter[tuple[int, int, int]] = Counter()
        self.received: Counter[tuple[int, int, int]] = Counter()
        self.ends: dict[tuple[str, int, int, int], tuple[int, int]] = {}  # the thread block at each end of each link
        self.counts: dict[tuple[int, int, int], tuple[list[BlockStep], list[BlockStep]]] = {}
        self.sizes: dict[int, dict[str, int]] = {}  # the numbers of chunks in the buffers of each rank

    def attribute(self, element: ET.Element, key: str) -> str:
        """Return the attribute `key` of an XML element; raise UsageError if the element lacks it."""
        value = element.get(key)
        if value is None:
            raise UsageError(f"{self.name}: <{element.tag} {dict(element.attrib)}> lacks {key!r}")
        return value

    def integer(self, element: ET.Element, key: str) -> int:
        """Return the attribute `key` of an XML element as an integer; raise UsageError if it is not an integer."""
        value = self.attribute(element, key)
        try:
            return int(value)
        except ValueError:
            raise UsageError(f"{self.name}: {key} is {value!r} in <{element.tag}>; need a whole number") from None

    def read(self) -> BlockProgram:
        """Return the program of the whole file; raise UsageError or PlanError if the file is wrong."""
        gpus = {self.integer(gpu, "id"): gpu for gpu in self.root.findall("gpu")}
        if sorted(gpus) != list(range(self.n)):
            raise UsageError(f"{self.name} has the ranks {sorted(gpus)[:9]}; ngpus={self.n} needs 0 to {self.n - 1}")
        for rank, gpu in gpus.items():
            self.sizes[rank] = {key: self.integer(gpu, f"{key}_chunks") for key in (INPUT, OUTPUT, SCRATCH)}
            if sum(self.sizes[rank].values()) > MOST_CELLS // self.n:
                raise ValueError(f"rank {rank} has buffers of {self.sizes[rank]} chunks, which are too many")
        blocks = []
        for rank in range(self.n):
            threadblocks = gpus[rank].findall("tb")
            numbers = [self.integer(tb, "id") for tb in threadblocks]
            if sorted(numbers) != list(range(len(numbers))):
                raise UsageError(f"{self.name}: rank {rank} has the thread blocks {numbers}; number them from 0")
            lengths = {self.integer(tb, "id"): len(tb.findall("step")) for tb in threadblocks}
            blocks += [self.read_block(rank, tb, lengths) for tb in threadblocks]
        self.check_links()
        return self.make_program(tuple(blocks))

    def make_program(self, blocks: tuple[tuple[BlockStep, ...], ...]) -> BlockProgram:
        """Return the program with the steps `blocks` of all thread blocks, and the cells of its inputs and outputs."""
        cells, homes = self.cells, self.cells.list_homes()
        plan_chunks = cells.plan_chunks
        if self.operation is Operation.ALL_TO_ALL and cells.per == 1:  # the plan has work space for blocks in transit
            most = max(sizes[SCRATCH] for sizes in self.sizes.values())
            homes |= {(rank, SCRATCH, k): 2 * self.n + k for rank in range(self.n) for k in range(most)}
            plan_chunks += -(-most // self.n) * self.n
        return BlockProgram(
            self.root.get("name", "msccl"), "MSCCL", self.operation, self.n, cells.chunks, blocks, cells.list_inputs(),
            cells.list_outputs(), homes, plan_chunks, sum(self.sent.values()),
        )  # fmt: skip

    def read_block(self, rank: int, tb: ET.Element, lengths: dict[int, int]) -> tuple[BlockStep, ...]:
        """Return the steps of the XML element `tb`, a thread block of `rank`.

        `lengths` has the number of steps of each of the rank's thread blocks.
        """
        block = self.integer(tb, "id")
        peers = {"send": self.integer(tb, "send"), "recv": self.integer(tb, "recv")}
        channel = self.integer(tb, "chan")
        for key, peer in peers.items():
            if not -1 <= peer < self.n or peer == rank:
                raise PlanError(f"{self.name}: rank {rank}, thread block {block}: {key} is {peer}; need another rank")
        steps = []
        for position, element in enumerate(tb.findall("step")):
            index = self.integer(element, "s")
            if index != position:
                where = f"{self.name}: rank {rank}, thread block {block}"
                raise PlanError(f"{where}: step {position} has the number s={index}; number the steps from 0")
            steps.append(
                self.read_step(_Place(rank, block, index, peers["send"], peers["recv"], channel), element, lengths)
            )
        return tuple(steps)

    def read_step(self, place: _Place, element: ET.Element, lengths: dict[int, int]) -> BlockStep:
        """Return the step of the XML `element`; `lengths` has the step count of each of the rank's thread blocks."""
        kind, count = self.attribute(element, "type"), self.integer(element, "cnt")
        if kind not in TYPES:
            raise UsageError(f"{self.name}: step type {kind!r} of rank {place.rank}; MSCCL has {', '.join(TYPES)}")
        source = self.attribute(element, "srcbuf"), self.integer(element, "srcoff")
        target = self.attribute(element, "dstbuf"), self.integer(element, "dstoff")
        step = BlockStep(place.rank, place.block, place.index, _format_words(kind, source, target, place))
        waits = self.read_dependency(step, element, lengths)
        posts = [Post(("done", place.rank, place.block), place.index + 1)] if self.integer(element, "hasdep") else []
        if kind == "nop":
            return replace(step, waits=tuple(waits), posts=tuple(posts))
        reads, writes = kind not in ("r", "rcs"), kind not in ("s", "rrs")
        sources = self.list_cells(step, *source, count) if reads else []
        targets = self.list_cells(step, *target, count) if writes else []
        incoming: list[Cell] = []
        slot = None
        if kind in RECEIVES:
            link = self.find_link(step, "recv", place.recv, place.rank, place.channel)
            number = self.received[link]
            self.received[link] += 1
            waits.append(SemaphoreWait(("sent", *link), number + 1))
            posts.append(Post(("received", *link), number + 1))
            incoming = _list_slot(link, number, count)
        outgoing: list[Cell] = []
        if kind in SENDS:
            link = self.find_link(step, "send", place.rank, place.send, place.channel)
            number = self.sent[link]
            self.sent[link] += 1
            posts.append(Post(("sent", *link), number + 1))
            slot, outgoing = (("received", *link), number), _list_slot(link, number, count)
        effects = _list_effects(kind, sources, targets, incoming, outgoing)
        step = replace(step, effects=tuple(effects), waits=tuple(waits), posts=tuple(posts), slot=slot)
        ends = ((SENDS, 0, place.rank, place.send), (RECEIVES, 1, place.recv, place.rank))
        for kinds, at, source_rank, dest_rank in ends:
            if kind in kinds:
                self.counts.setdefault((source_rank, dest_rank, place.channel), ([], []))[at].append(step)
        return step

    def read_dependency(self, step: BlockStep, element: ET.Element, lengths: dict[int, int]) -> list[SemaphoreWait]:
        """Return the wait of a step for another thread block (`depid`, `deps`) in a list; empty without dependency."""
        block, index = self.integer(element, "depid"), self.integer(element, "deps")
        if block < 0:
            return []
        if block not in lengths or not 0 <= index < lengths[block]:
            raise PlanError(f"{self.name}: {step.describe()} waits for step {index} of thread block {block}, "
                            "which does not exist")  # fmt: skip
        return [SemaphoreWait(("done", step.rank, block), index + 1)]

    def list_cells(self, step: BlockStep, buffer: str, first: int, count: int) -> list[Cell]:
        """Return the cells of `count` chunks of `buffer` (i, o or s) from index `first` on.

        Raises PlanError if the buffer has fewer chunks.
        """
        chunks = self.sizes[step.rank]
        if buffer not in chunks:
            raise UsageError(f"{self.name}: {step.describe()}: there is no buffer {buffer!r}; need i, o or s")
        size = chunks[buffer]
        if self.in_place and buffer != SCRATCH:  # input and output share memory, whose size a file may state at either
            size = max(chunks[INPUT], chunks[OUTPUT], self.cells.count_outputs(step.rank) if buffer == OUTPUT else 0)
        if first < 0 or count < 1 or first + count > size:
            raise PlanError(f"{self.name}: {step.describe()} uses {count} chunks from {buffer}[{first}]; "
                            f"the buffer has {size} chunks")  # fmt: skip
        return [self.cells.locate(step.rank, buffer, first + i) for i in range(count)]

    def find_link(self, step: BlockStep, end: str, source: int, dest: int, channel: int) -> tuple[int, int, int]:
        """Return the link (source, dest, channel) of a message of `step`; reserve its `end` for the thread block.

        Args:
            end: the end of the link that the step uses, "send" or "recv".
            source: the sending rank, negative if the thread block has no peer.
            dest: the receiving rank, negative if the thread block has no peer.

        Raises PlanError if there is no peer, or another thread block of the rank uses this end of the link.
        """
        if source < 0 or dest < 0:
            raise PlanError(f"{self.name}: {step.describe()}: the thread block has no {end} peer")
        block = self.ends.setdefault((end, source, dest, channel), (step.rank, step.block))
        if block != (step.rank, step.block):
            raise PlanError(f"{self.name}: {step.describe()}: thread block {block[1]} uses the same link "
                            f"{source}->{dest} on channel {channel}; messages of two blocks have no order")  # fmt: skip
        return source, dest, channel

    def check_links(self) -> None:
        """Raise PlanError for the first message whose send and receive differ in size, or that lacks one of the two."""
        for (source, dest, channel), (sends, receives) in sorted(self.counts.items()):
            if len(sends) != len(receives):
                self.refuse_link(source, dest, channel, sends, receives)
            for number, (send, receive) in enumerate(zip(sends, receives, strict=True)):
                sent = sum(effect.target[1][0] == IN_FLIGHT for effect in send.effects)
                taken = sum(cell[1][0] == IN_FLIGHT for effect in receive.effects for cell in effect.sources)
                if sent != taken:
                    raise PlanError(f"{self.name}: {receive.describe()} takes {taken} chunks, and its message, "
                                    f"number {number} of the link, from {send.describe()}, has {sent}")  # fmt: skip

    def refuse_link(
        self, source: int, dest: int, channel: int, sends: list[BlockStep], receives: list[BlockStep]
    ) -> None:
        """Raise PlanError for a link with unequal numbers of sends and receives; name the first that does not fit."""
        pairs = zip(sends, receives, strict=False)
        more = (sends if len(sends) > len(receives) else receives)[min(len(sends), len(receives))]
        odd = next(((a, b) for a, b in pairs if not _agree(a, b)), None)
        where = f"{odd[1].describe()} gets what {odd[0].describe()} sends for another place" if odd else more.describe()
        raise PlanError(f"{self.name}: rank {source} sends {len(sends)} messages to rank {dest} on channel {channel}, "
                        f"which receives {len(receives)}; the first that does not fit: {where}")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a step in the file: rank, thread block and number, and the block's peers (-1: none) and channel."""

    rank: int
    block: int
    index: int
    send: int
    recv: int
    channel: int


def _format_words(kind: str, source: tuple[str, int], target: tuple[str, int], place: _Place) -> str:
    """Return a step as text such as `rrc i[3] -> o[3] from rank 2`; `source` and `target` are (buffer, index)."""
    if kind == "nop":
        return "nop"
    peers = f" from rank {place.recv}" * (kind in RECEIVES) + f" to rank {place.send}" * (kind in SENDS)
    return f"{kind} {source[0]}[{source[1]}] -> {target[0]}[{target[1]}]{peers}"


def _agree(send: BlockStep, receive: BlockStep) -> bool:
    """Whether a send and its receive state the same place at the receiver; true for receives of type rrs and rrcs."""
    places = [step.words.split()[3] for step in (send, receive)]
    return places[0] == places[1] or receive.words.startswith(("rrs", "rrcs"))


def _list_slot(link: tuple[int, int, int], number: int, count: int) -> list[Cell]:
    """Return the cells that stand for the `count` chunks of message `number` on a link while it is in flight."""
    source, dest, channel = link
    return [(source, f"{IN_FLIGHT}{dest}.{channel}.{number}", i) for i in range(count)]


def _list_effects(
    kind: str, sources: list[Cell], targets: list[Cell], incoming: list[Cell], outgoing: list[Cell]
) -> list[Effect]:
    """Return the copies and sums of an MSCCL step of type `kind`, such as `rrc` (receive, reduce, copy).

    Args:
        sources: the cells that the step reads on its rank, one per chunk.
        targets: the cells that the step writes on its rank.
        incoming: the cells of the received message; empty if the step does not receive.
        outgoing: the cells of the sent message; empty if the step does not send.
    """
    if kind == "s":
        return [Effect(out, (cell,)) for out, cell in zip(outgoing, sources, strict=True)]
    if kind == "cpy":
        return [Effect(cell, (own,)) for cell, own in zip(targets, sources, strict=True)]
    if kind == "re":
        return [Effect(cell, (cell, own)) for cell, own in zip(targets, sources, strict=True)]
    terms = (
        [(own, new) for own, new in zip(sources, incoming, strict=True)] if sources else [(new,) for new in incoming]
    )
    effects = [Effect(cell, term) for cell, term in zip(targets, terms, strict=True)] if targets else []
    if outgoing:
        kept = [(cell,) for cell in targets] if targets else terms
        effects += [Effect(out, term) for out, term in zip(outgoing, kept, strict=True)]
    return effects
