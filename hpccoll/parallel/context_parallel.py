"""Context parallelism: the positions of each sequence are split over cp, and keys and values travel around a ring.

All layers except attention treat each position independently. In attention, a rank applies its queries to the keys and
values of all ranks, one block (the keys and values of one rank) after the other. While a rank computes with a block, it
sends this block onward and receives the next one. The passes are

    forward    o, l = attend(q, k, v) for each block, merged by the log-sum-exp l of the scores of all blocks
    backward   p = exp(q k^T / sqrt(a) - l);   dv += p^T do;   ds = p (do v^T - sum(do o)) / sqrt(a)
               dq += ds k;   dk += ds^T q

The blocks are sent as in the plan all_gather/ring, but a rank uses each block when it arrives, and keeps none. The
gradients dk and dv of a block travel around the ring after the block, and each rank adds its addend to them. The
messages with gradients are those of the plan reduce_scatter/ring with ranks counted backwards, because the rings of
reduce_scatter/ring and all_gather/ring run in opposite directions. `hpccoll verify` proves both plans. With b samples,
t positions and h features on n ranks, a rank sends 2 b t/n h (n-1) elements in a forward pass and twice as many in a
backward pass.

Causal attention needs about half of the scores, and early positions attend to few keys. To give n ranks equal work,
positions are cut into 2n parts, and rank r has the parts r and 2n-1-r (zigzag). All queries of a rank attend to the
first half of a lower rank's block. The second half of the queries attends to all of a higher rank's block. For its own
block, a rank computes all scores and masks half of them.

Shapes: b samples, t positions, n ranks of cp, m heads on this rank, a features of a head; h = m a. Sources: Liu,
Zaharia and Abbeel, "Ring attention with blockwise transformers for near-infinite context", arXiv 2310.01889;
Grattafiori et al., "The Llama 3 herd of models", arXiv 2407.21783, section 3.3.2 (the parts of a rank).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch

from hpccoll.algorithms import get_algorithm
from hpccoll.errors import UsageError
from hpccoll.parallel.axis_group import AxisGroup
from hpccoll.plan import Move, Operation

BLOCK_TAG, GRADIENT_TAG = 1, 2


def take_own_positions(x: Any, dim: int, cp: AxisGroup) -> Any:
    """Return this rank's positions along `dim` of `x`: parts r and 2n-1-r of 2n equal parts for rank r of n; local."""
    return take_positions(x, dim, cp.size, cp.index)


def take_positions(x: Any, dim: int, size: int, index: int) -> Any:
    """Return the positions of the context-parallel rank at `index` among `size` ranks, along `dim` of `x`; local."""
    if size == 1:
        return x
    if x.shape[dim] % (2 * size):
        raise UsageError(f"cp={size}: {x.shape[dim]} positions cannot be split into {2 * size} equal parts")
    parts = x.chunk(2 * size, dim)
    return torch.cat([parts[index], parts[-1 - index]], dim)


def attend_around_ring(queries: Any, keys: Any, values: Any, cp: AxisGroup, *, is_causal: bool = True) -> Any:
    """Return the attention of this rank's positions to those of all context-parallel ranks; collective over `cp`.

    The backward pass is collective as well. All tensors have the shape (samples, heads, this rank's positions, features
    per head). With `is_causal`, positions attend only to themselves and to earlier positions, and must be those of
    `take_own_positions`. Without `is_causal`, ranks may have any positions in equal numbers.
    """
    return _RingAttention.apply(queries, keys, values, cp, is_causal)


class _RingRound(NamedTuple):
    """The peers and blocks of a rank in one round of a ring plan; ranks and blocks are indices along the cp axis."""

    dest: int
    source: int
    sent: int  # the block that the rank sends
    received: int  # the block that the rank receives, or whose gradient it receives


@cache
def _list_rounds(operation: Operation, index: int, size: int, *, counts_backwards: bool = False) -> list[_RingRound]:
    """Return the rounds of the rank at `index` in the ring plan of `operation` among `size` ranks.

    `counts_backwards` numbers the ranks in the opposite direction.
    """

    def renumber(rank: int) -> int:
        """Convert the index of a rank or block along cp to its number in the plan, or the number to the index."""
        return size - 1 - rank if counts_backwards else rank

    column = get_algorithm(operation, "ring").plan(size).column(renumber(index))
    return [
        _RingRound(*(renumber(int(x.flat[0])) for x in (move.dest, move.source, move.send.ids(1), move.recv.ids(1))))
        for (move,) in column
        if isinstance(move, Move)
    ]


def _start_send(x: Any, dest: int, tag: int, cp: AxisGroup) -> None:
    """Start sending `x` (a block or its gradient) to the rank at index `dest` of `cp`, with the MPI tag `tag`.

    Blocks while more than one earlier send is in flight, so that few tensors wait in memory.
    """
    cp.finish_sends(keep=1)
    cp.start_send(x, dest, tag)


def _receive_blocks(own: Any, cp: AxisGroup) -> Iterator[tuple[int, Any]]:
    """Yield (index, keys and values) of each context-parallel rank, this rank's first, while the next ones arrive.

    Keys and values are one tensor of shape (2, samples, heads, positions of a rank, features). Collective over `cp`.
    """
    blocks = {cp.index: own}
    del own  # the memory of each block is free once it has been used and sent
    for ring_round in _list_rounds(Operation.ALL_GATHER, cp.index, cp.size):
        block = blocks.pop(ring_round.sent)
        receive = cp.start_recv(torch.empty_like(block), ring_round.source, BLOCK_TAG)
        _start_send(block, ring_round.dest, BLOCK_TAG, cp)
        yield ring_round.sent, block
        blocks[ring_round.received] = cp.wait(receive)
    yield from blocks.items()


def _sum_block_gradients(addends: Iterable[tuple[int, Any]], cp: AxisGroup) -> Any:
    """Return the sum over ranks of the gradients of this rank's keys and values; collective over `cp`.

    The shape of the sum is (2, samples, heads, this rank's positions, features). `addends` yields, for each block, the
    block's index and this rank's addend of the block's gradient, in the order of `_receive_blocks`. The next addend is
    computed while the previous one is in flight.
    """
    rounds = _list_rounds(Operation.REDUCE_SCATTER, cp.index, cp.size, counts_backwards=True)
    by_sent, own, receive = {ring_round.sent: ring_round for ring_round in rounds}, None, None
    for index, addend in addends:
        if index == cp.index:
            own = addend
            continue
        if receive is not None:
            addend.add_(cp.wait(receive))
        ring_round = by_sent[index]
        receive = cp.start_recv(torch.empty_like(addend), ring_round.source, GRADIENT_TAG)
        _start_send(addend, ring_round.dest, GRADIENT_TAG, cp)
    return own if receive is None else own + cp.wait(receive)


class _Pairs(NamedTuple):
    """The slice of this rank's queries, and the slice of another rank's keys, between which scores are computed."""

    queries: slice
    keys: slice
    is_diagonal: bool  # whether a query attends only to keys up to its own position


def _select_pairs(mine: int, index: int, length: int, *, is_causal: bool) -> _Pairs:
    """Return the slices of the queries of rank `mine`, and of the keys of rank `index`, for which scores are computed.

    Each of the two ranks has `length` positions. With `is_causal`, pairs of a query and later keys are left out.
    """
    every, half = slice(0, length), length // 2
    if not is_causal or index == mine:
        return _Pairs(every, every, is_causal)
    return _Pairs(every, slice(0, half), False) if index < mine else _Pairs(slice(half, length), every, False)


def _compute_scores(scaled: Any, keys: Any, *, is_diagonal: bool) -> Any:
    """Return the scores of queries (b, m, q, a), already scaled, and keys (b, m, k, a), as (b, m, q, k).

    With `is_diagonal`, the scores of keys after the query's position are -inf. In shapes, b is the number of samples, m
    of heads, q of queries, k of keys and a of features per head.
    """
    scores = scaled @ keys.transpose(2, 3)
    if is_diagonal:
        later = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).triu(1)
        scores.masked_fill_(later, -torch.inf)
    return scores


class _RingAttention(torch.autograd.Function):  # type: ignore[misc] # torch has no types here
    """Attention as an autograd function.

    Keys and values travel around the ring of ranks in each pass, and are not kept.
    """

    @staticmethod
    def forward(ctx: Any, queries: Any, keys: Any, values: Any, cp: AxisGroup, is_causal: bool) -> Any:
        """Return the attention of this rank's queries to all keys: (samples, heads, own positions, features)."""
        scaled, output = queries / queries.shape[3] ** 0.5, torch.zeros_like(queries)  # (b, m, t/n, a)
        log_sum = queries.new_full((*queries.shape[:3], 1), -torch.inf)  # (b, m, t/n, 1)
        for index, (k, v) in _receive_blocks(torch.stack((keys, values)), cp):
            at, columns, is_diagonal = _select_pairs(cp.index, index, queries.shape[2], is_causal=is_causal)
            scores = _compute_scores(scaled[:, :, at], k[:, :, columns], is_diagonal=is_diagonal)  # (b, m, q, k)
            largest = scores.amax(3, keepdim=True)  # (b, m, q, 1)
            weights = scores.sub_(largest).exp_()  # (b, m, q, k)
            total = torch.logaddexp(log_sum[:, :, at], largest + weights.sum(3, keepdim=True).log())
            output[:, :, at] *= (log_sum[:, :, at] - total).exp()
            output[:, :, at] += weights @ v[:, :, columns] * (largest - total).exp()
            log_sum[:, :, at] = total
        cp.finish_sends()
        ctx.save_for_backward(queries, keys, values, output, log_sum)
        ctx.cp, ctx.is_causal = cp, is_causal
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, Any, Any, None, None]:
        """Return the gradients of queries, keys and values; collective over the context-parallel ranks."""
        queries, keys, values, output, log_sum = ctx.saved_tensors
        scale = queries.shape[3] ** -0.5
        scaled, query_grad = queries * scale, torch.zeros_like(queries)  # (b, m, t/n, a)
        shift = (grad * output).sum(3, keepdim=True)  # (b, m, t/n, 1)

        def compute_addends() -> Iterator[tuple[int, Any]]:
            """Yield (index of a block, this rank's addend of its gradient) for all blocks, and add to `query_grad`."""
            for index, block in _receive_blocks(torch.stack((keys, values)), ctx.cp):
                at, columns, is_diagonal = _select_pairs(ctx.cp.index, index, queries.shape[2], is_causal=ctx.is_causal)
                q, do, (k, v) = scaled[:, :, at], grad[:, :, at], block[:, :, :, columns]
                scores = _compute_scores(q, k, is_diagonal=is_diagonal)
                weights = scores.sub_(log_sum[:, :, at]).exp_()  # (b, m, q, k)
                score_grad = (do @ v.transpose(2, 3)).sub_(shift[:, :, at]).mul_(weights)  # (b, m, q, k)
                query_grad[:, :, at] += score_grad @ k * scale
                addend = torch.zeros_like(block)  # (2, b, m, t/n, a)
                addend[0, :, :, columns] = score_grad.transpose(2, 3) @ q
                addend[1, :, :, columns] = weights.transpose(2, 3) @ do
                yield index, addend

        key_grad, value_grad = _sum_block_gradients(compute_addends(), ctx.cp)
        ctx.cp.finish_sends()
        return query_grad, key_grad, value_grad, None, None
