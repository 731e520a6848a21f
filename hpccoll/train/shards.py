"""The position of a rank's shard in a full parameter, and copies of the shards of full tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class ParameterShard:
    """The name, shape and position of a rank's shard of one parameter, without its values."""

    name: str
    full_shape: tuple[int, ...]
    slices: tuple[slice, ...]  # the shard's position in the full parameter
    is_copy: bool  # whether a rank with a lower index along tp, pp or ep holds the same shard

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the shard, a part of the full parameter."""
        return tuple(part.stop - part.start for part in self.slices)

    @property
    def count(self) -> int:
        """The number of elements in the shard."""
        return math.prod(self.shape)


def find_expert(name: str) -> int | None:
    """Return the number of the expert in a parameter's name, such as 3 in `blocks.0.experts.3.up.weight`, or None."""
    words = name.split(".")
    return int(words[3]) if words[2:3] == ["experts"] else None


def copy_shards(shards: Sequence[ParameterShard], full: Mapping[str, Any], device: Any) -> list[Any]:
    """Return copies on `device` of the given shards of the full tensors, which `full` has by name."""
    contiguous = torch.contiguous_format
    return [full[shard.name][shard.slices].clone(memory_format=contiguous).to(device) for shard in shards]
