"""The transfers of a plan as flat arrays over all ranks and many rounds, which the proof reads.

In array shapes, n is the number of ranks, C the number of chunks per rank, and S, T and M are the numbers of steps with
transfers, of transfers, and of moved chunks. A transfer is one message, load or store between two ranks, or within one
rank. The arrays span many rounds because a NumPy function takes as long for ten numbers as for a thousand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hpccoll.errors import PlanError
from hpccoll.plan.operation import Count
from hpccoll.plan.plan import Plan
from hpccoll.plan.step import NO_PEER, Fence, IntArray, Ints, Load, Move, Op, Region, Span, Step, Store
from hpccoll.units import format_count

MESSAGE, LOAD, STORE = range(3)  # kinds of transfers
_COPY, _LAST_OP = int(Op.COPY), int(max(Op))  # plain integers: reading an enum member costs a microsecond
_BLOCK_CHUNKS = 2**15  # a block ends after about this many moved chunks, so that its arrays stay in a core's cache
_EMPTY = Span(0, 0, 1)


@dataclass(frozen=True, slots=True)
class TransferBlock:
    """The transfers and fences of rounds `first` to `stop` - 1, in the order of the plan.

    `fences` holds pairs of a round and each rank's leader (equal for ranks that wait for each other). Arrays with an
    entry per transfer: `step` (number of the step in the block), `round`, `kind` (MESSAGE, LOAD or STORE), `source` and
    `target` (ranks), `size` in chunks, `op` (copy or reduce). Arrays with an entry per moved chunk: `transfer` (number
    of the transfer in the block), and the chunk that is read (`out`) and written (`into`), as the number rank * chunks
    per rank + chunk.
    """

    first: int
    stop: int
    fences: list[tuple[int, IntArray]]
    step: IntArray
    round: IntArray
    kind: IntArray
    source: IntArray
    target: IntArray
    size: IntArray
    op: IntArray
    transfer: IntArray
    out: IntArray
    into: IntArray


@dataclass(frozen=True, slots=True)
class _Ends:
    """The chunks at one end, sending or receiving, of the transfers of a block.

    Transfer i has the chunks in row row[i] (of one row per rank) of the region regions[step[i]], owned by rank rank[i].
    """

    regions: list[Region]
    step: IntArray
    row: IntArray
    rank: IntArray


class TransferReader:
    """Reads a plan as blocks of transfers, and checks transfers one by one; errors name the first round of a block."""

    def __init__(self, plan: Plan, counts: Sequence[Count]) -> None:
        self.plan, self.n, self.rounds, self.round = plan, plan.ranks, plan.rounds(), 0
        self.chunks = self.rounds.chunks
        plan.operation.validate_chunks(self.n, self.chunks)
        self.layout_class = plan.operation.layout_classes(tuple(counts), self.n, self.chunks)

    def error(self, ranks: IntArray, why: str) -> PlanError:
        """Return an unraised error with the text `why` about the first of `ranks` in the plan's current round."""
        others = len(set(ranks.tolist())) - 1
        who = f"rank {ranks[0]} (and {others} more)" if others else f"rank {ranks[0]}"
        return PlanError(f"{self.plan.name} on {format_count(self.n, 'rank')}, round {self.round}: {who} {why}")

    def read_blocks(self, most_rounds: int) -> Iterator[TransferBlock]:
        """Yield all transfers in blocks of at most `most_rounds` rounds; raise PlanError for a wrong transfer."""
        t = 0
        while t < self.rounds.count:
            steps: list[Step] = []
            rounds: list[int] = []
            self.round, chunks = t, 0
            while t < self.rounds.count and t - self.round < most_rounds and chunks < _BLOCK_CHUNKS:
                round_steps = self.rounds.at(t)
                self._check_kinds(t, round_steps)
                steps += round_steps
                rounds += [t] * len(round_steps)
                chunks += self.n * sum(map(self._count_chunks, round_steps))
                t += 1
            yield self._read_block(t, steps, rounds)

    def _check_kinds(self, t: int, steps: Sequence[Step]) -> None:
        """Raise PlanError if round t mixes messages, fences, and accesses to shared memory (loads and stores)."""
        kinds = {_KIND_NAMES[type(step)] for step in steps}
        if len(kinds) > 1:
            holds = f"holds {' and '.join(sorted(kinds))}; give each kind a round of its own"
            raise PlanError(f"{self.plan.name} on {format_count(self.n, 'rank')}, round {t}: {holds}")

    def _count_chunks(self, step: Step) -> int:
        """Return an upper bound on the number of chunks that a rank moves in `step`."""
        if isinstance(step, Fence):
            return 0
        size = step.recv.size if isinstance(step, Move) else step.local.size
        return size if isinstance(size, int) else self.chunks

    def _read_block(self, stop: int, timed: list[Step], rounds: list[int]) -> TransferBlock:
        """Return the transfers of the steps `timed`; `rounds[i]` is the round of step i.

        `stop` is the first round of the next block. Raises PlanError for a wrong step.
        """
        fences = [(t, step.leader) for step, t in zip(timed, rounds, strict=True) if isinstance(step, Fence)]
        self._tabulate_peers([leader for _, leader in fences])
        steps = [step for step in timed if not isinstance(step, Fence)]
        kinds = np.array([_KINDS[type(step)] for step in steps], np.int64)
        peers = self._tabulate_peers([step.dest if isinstance(step, Store) else step.source for step in steps])
        self._match_peers([step for step in steps if isinstance(step, Move)], peers[kinds == MESSAGE])
        step, actor = np.nonzero(peers != NO_PEER)
        peer, kind = peers[step, actor], kinds[step]
        source, target = np.where(kind == STORE, actor, peer), np.where(kind == STORE, peer, actor)
        regions = [_list_regions(step) for step in steps]
        sent = _Ends([out for out, _ in regions], step, np.where(kind == MESSAGE, source, actor), source)
        received = _Ends([into for _, into in regions], step, actor, target)
        size = self._match_sizes(sent, received)
        op = self._list_ops([_COPY if isinstance(step, Store) else step.op for step in steps], received)
        transfer = np.repeat(np.arange(len(step)), size)
        out, into = self._list_chunks(sent, size, transfer), self._list_chunks(received, size, transfer)
        differ = np.nonzero(self._classes(source[transfer], out) != self._classes(target[transfer], into))[0]
        if len(differ):
            at = differ[0]
            pair = f"chunk {out[at]} of rank {source[transfer[at]]} into its chunk {into[at]}"
            why = f"receives {pair}, which differ in elements for some counts"
            raise self.error(target[transfer[differ]], why)
        times = np.array([t for step, t in zip(timed, rounds, strict=True) if not isinstance(step, Fence)], np.int64)
        out, into = source[transfer] * self.chunks + out, target[transfer] * self.chunks + into
        return TransferBlock(
            self.round, stop, fences, step, times[step], kind, source, target, size, op, transfer, out, into
        )  # fmt: skip

    def _classes(self, rank: IntArray, chunk: IntArray) -> IntArray:
        """Return the layout class of each chunk: chunks of one class have equal sizes for all element counts.

        `chunk[i]` is a chunk of rank `rank[i]`.
        """
        classes = self.layout_class
        return np.asarray(classes[chunk] if classes.ndim == 1 else classes[rank, chunk])

    def _tabulate(self, values: Sequence[Ints], what: str) -> IntArray:
        """Return the values of all steps as an array, shape (steps, ranks); errors name the values `what`.

        Each entry of `values` is one number for all ranks, or an array with one entry per rank. Raises PlanError for
        values of another shape.
        """
        shapes = {getattr(value, "shape", ()) for value in values}
        for shape in shapes - {(), (self.n,)}:
            raise self.error(np.arange(self.n), f"has {what} of shape {shape}; need one entry per rank")
        same = shapes == {(self.n,)}
        rows = values if same else [np.broadcast_to(value, self.n) for value in values]
        return np.array(rows, np.int64).reshape(-1, self.n)

    def _tabulate_peers(self, peers: Sequence[IntArray]) -> IntArray:
        """Return the peers of all steps as an array, shape (steps, ranks).

        Raises PlanError for a peer that is no rank of the plan.
        """
        table = self._tabulate(peers, "peers")
        wrong = (table < NO_PEER) | (table >= self.n)
        if wrong.any():
            why = f"names peer {table[wrong][0]}, but ranks are 0 to {self.n - 1}"
            raise self.error(np.nonzero(wrong)[1], why)
        return table

    def _select(self, values: list[Ints], what: str, step: IntArray, row: IntArray) -> IntArray:
        """Return, for each i, the value of step step[i] for rank row[i]; errors name the values `what`.

        Raises PlanError for an array of a wrong length.
        """
        if all(isinstance(value, int) for value in values):
            return np.array(values, np.int64)[step]
        return self._tabulate(values, what)[step, row]

    def _match_peers(self, moves: list[Move], sources: IntArray) -> None:
        """Raise PlanError unless, in each of the steps `moves`, the sends match the receives one to one.

        `sources` has the source of each rank in each step, shape (steps, ranks).
        """
        dests = self._tabulate_peers([move.dest for move in moves])
        for peers, answers, verb, reply in (
            (dests, sources, "sends to", "receives from"),
            (sources, dests, "receives from", "sends to"),
        ):
            move, rank = np.nonzero(peers != NO_PEER)
            peer = peers[move, rank]
            alone = np.nonzero(answers[move, peer] != rank)[0]
            if len(alone):
                named = peer[alone[0]], answers[move[alone[0]], peer[alone[0]]]
                raise self.error(rank[alone], f"{verb} {named[0]}, which {reply} {named[1]} (-1 = no peer)")

    def _match_sizes(self, sent: _Ends, received: _Ends) -> IntArray:
        """Return the number of chunks of each transfer; raise PlanError unless both ends have the same number.

        `sent` and `received` have the chunks at the sending and at the receiving ends.
        """
        sends, takes = (
            self._select([region.size for region in ends.regions], "sizes", ends.step, ends.row)
            for ends in (sent, received)
        )
        uneven = np.nonzero((sends != takes) | (sends < 0))[0]
        if len(uneven):
            at = uneven[0]
            why = f"expects {takes[at]} chunks from rank {sent.rank[at]}, which sends {sends[at]}"
            raise self.error(received.rank[uneven], why)
        return sends

    def _list_ops(self, ops: list[Ints], received: _Ends) -> IntArray:
        """Return the operation (copy or reduce) of each transfer.

        Raises PlanError for a reduction in a collective that only copies, and for an unknown operation.
        """
        op = self._select(ops, "ops", received.step, received.rank)
        low, high = op.min(initial=_COPY), op.max(initial=_COPY)
        if low < _COPY or high > _LAST_OP:
            known = ", ".join(f"{known.value} = {known.name}" for known in Op)
            raise self.error(received.rank, f"receives by op {high if high > _LAST_OP else low}; there are {known}")
        if high != _COPY and not self.plan.operation.reduces:
            raise self.error(received.rank[op != _COPY], "reduces, but may only copy")
        return op

    def _list_chunks(self, ends: _Ends, size: IntArray, transfer: IntArray) -> IntArray:
        """Return the chunk numbers of all transfers in one array; raise PlanError for chunks that do not exist.

        Args:
            ends: one end (sending or receiving) of the transfers.
            size: the number of chunks of each transfer.
            transfer: the transfer of each entry of the result.
        """
        begin = np.cumsum(size) - size
        chunk = self._list_span_chunks(ends, transfer, np.arange(len(transfer)) - begin[transfer])
        for number, region in enumerate(ends.regions):
            low, high = (0, 0) if isinstance(region, Span) else np.searchsorted(ends.step, (number, number + 1))
            if low < high:
                ids = region.ids(self.n)[ends.row[low:high]]
                listed = (ids != NO_PEER).sum(axis=1)
                wrong = np.nonzero(listed != size[low:high])[0]
                if len(wrong):
                    why = f"names {listed[wrong[0]]} chunks in a region of {size[low + wrong[0]]}"
                    raise self.error(ends.rank[low + wrong], why)
                chunk[begin[low] : begin[high - 1] + size[high - 1]] = ids[ids != NO_PEER]
        wrong = np.nonzero((chunk < 0) | (chunk >= self.chunks))[0]
        if len(wrong):
            why = f"names chunk {chunk[wrong[0]]}, but there are {self.chunks} chunks"
            raise self.error(ends.rank[transfer[wrong]], why)
        return chunk

    def _list_span_chunks(self, ends: _Ends, transfer: IntArray, index: IntArray) -> IntArray:
        """Return the chunk at position index[i] of the interval of transfer transfer[i], for each i.

        Entries for transfers whose chunks are no interval are meaningless.
        """
        spans = [region if isinstance(region, Span) else _EMPTY for region in ends.regions]
        first, base = (
            self._select(values, "chunks", ends.step, ends.row)[transfer]
            for values in ([span.first for span in spans], [span.base for span in spans])
        )
        mod, unit = np.array([(max(span.mod, 1), span.unit) for span in spans], np.int64).reshape(-1, 2).T
        step = ends.step[transfer]
        if (unit == 1).all():
            return np.asarray((first + index) % mod[step] + base)
        return (first + index // unit[step]) % mod[step] * unit[step] + index % unit[step] + base


_KINDS: dict[type[Step], int] = {Move: MESSAGE, Load: LOAD, Store: STORE}
_KIND_NAMES = {Move: "moves", Fence: "fences", Load: "loads or stores", Store: "loads or stores"}


def _list_regions(step: Move | Load | Store) -> tuple[Region, Region]:
    """Return two regions (chunks of each rank): the one that a step reads, and the one that it writes."""
    if isinstance(step, Move):
        return step.send, step.recv
    return (step.remote, step.local) if isinstance(step, Load) else (step.local, step.remote)
