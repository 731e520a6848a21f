"""Find which part of a whole parameter a rank's shard is, by comparing the initial values.

Shards are cut from the fully initialised parameter along one dimension, so each row of a shard (a slice at one index
of that dimension) is a row of the whole parameter. The rows need not be adjacent, as in fused query-key-value weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """The position of a rank's shard in a whole tensor: the slices with indices `rows` along dimension `dim`.

    `dim` and `rows` are None if the shard is the whole tensor.
    """

    dim: int | None = None
    rows: Any = None

    def take(self, whole: Any) -> Any:
        """Return the part of a whole tensor at this position."""
        return whole if self.dim is None else whole.index_select(self.dim, self.rows)

    def is_same(self, other: ShardIndex) -> bool:
        """Whether this position and `other` select the same elements."""
        return self.dim == other.dim and (self.dim is None or torch.equal(self.rows, other.rows))


def locate_shard(whole: Any, shard: Any, sibling: ShardIndex | None, position: int) -> ShardIndex | None:
    """Return the position of `shard` in the initial parameter `whole`, or None if its values are not found there.

    Args:
        shard: a rank's shard of the whole parameter.
        sibling: the position of another parameter of the same module; None if it is unknown.
        position: the index of the rank along the tp axis.

    If rows of `whole` are equal, as in a zero bias, their values do not determine the position. The shard is then
    assumed to have the rows of the sibling if both are split along dimension 0, or else to be part number `position` of
    consecutive parts of equal size.
    """
    if whole.shape == shard.shape:
        return ShardIndex() if torch.equal(whole, shard) else None
    differing = [dim for dim, size in enumerate(whole.shape) if whole.dim() == shard.dim() and size != shard.shape[dim]]
    if len(differing) != 1:
        return None
    (dim,) = differing
    places = {row: at for at, row in enumerate(_list_rows(whole, dim))}
    rows_of_shard = [places.get(row) for row in _list_rows(shard, dim)]
    if len(places) == whole.shape[dim] and None not in rows_of_shard:
        return ShardIndex(dim, torch.tensor(rows_of_shard))
    count = shard.shape[dim]
    rows = sibling.rows if sibling is not None and sibling.dim == dim == 0 else torch.arange(count) + position * count
    index = ShardIndex(dim, rows)
    fits = len(rows) == count and int(rows.max()) < whole.shape[dim]
    return index if fits and torch.equal(index.take(whole), shard) else None


def _list_rows(x: Any, dim: int) -> list[bytes]:
    """Return the bytes of each slice of the tensor `x` along dimension `dim`, to compare slices with each other."""
    rows = x.detach().cpu().movedim(dim, 0).contiguous().reshape(x.shape[dim], -1)
    return [row.tobytes() for row in rows.view(torch.uint8).numpy()]
