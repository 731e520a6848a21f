"""The optimizer of a rank's parameter shards: plain SGD or AdamW of torch, and the learning rate of each step.

SGD and AdamW update each element independently of the others, so sharding a parameter does not change its updates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from hpccoll.train.options import OptimizerConfig


def compute_lr_factor(step: int, config: OptimizerConfig, steps: int) -> float:
    """Return the factor of the learning rate in step `step` (from 0) of a run of `steps` steps: warm-up and decay."""
    if step < config.warmup:
        return (step + 1) / (config.warmup + 1)
    if config.decay == "none":
        return 1.0
    progress = (step - config.warmup) / max(steps - config.warmup, 1)
    return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


class ShardOptimizer:
    """The optimizer (SGD or AdamW of torch) of a rank's parameter shards.

    Args:
        parameters: the rank's parameter shards, leaf tensors.
        steps: the number of steps of the whole run; the decay of the learning rate ends with the last step.
        state: for each name in `config.state_names`, a list of one tensor per parameter, with the values after `step`
            steps; None means zeros.
    """

    def __init__(
        self,
        config: OptimizerConfig,
        parameters: Sequence[Any],
        steps: int,
        step: int = 0,
        state: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        groups = [{"params": list(parameters), "initial_lr": config.lr}]
        self._optimizer: Any = (
            torch.optim.AdamW(groups, lr=config.lr, fused=True)
            if config.name == "adamw"
            else torch.optim.SGD(groups, lr=config.lr)
        )
        factor = partial(compute_lr_factor, config=config, steps=steps)
        self._schedule = LambdaLR(self._optimizer, factor, last_epoch=step - 1)
        zeros = [torch.zeros_like(parameter) for parameter in parameters]
        # Torch would create zeros in the first step; creating them here gives new and resumed runs the same state.
        self.state: dict[str, list[Any]] = {
            name: [x.clone() for x in (state[name] if state else zeros)] for name in config.state_names
        }
        for index, parameter in enumerate(parameters if config.state_names else []):
            tensors = {name: values[index].detach() for name, values in self.state.items()}
            self._optimizer.state[parameter] = {"step": torch.tensor(float(step)).to(parameter.device), **tensors}

    @property
    def lr(self) -> float:
        """The learning rate of the next training step."""
        return float(self._schedule.get_last_lr()[0])

    def apply(self) -> None:
        """Update the parameters by their gradients, and advance the learning rate to that of the next step; local."""
        self._optimizer.step()
        self._schedule.step()
