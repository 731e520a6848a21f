"""The training steps in one process: the right gradients, and the gradients that a given fault would produce."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from hpccoll.parallel.mesh import Mesh
from hpccoll.parity.case import ParityCase

Gradients = dict[str, Any]  # gradients by the parameter's name
NOISE_TRIALS = 2  # random directions in which parameters change to measure rounding errors


def get_seed(step: int, sampler: int, seed: int) -> int:
    """Return the seed of torch's random numbers (for dropout) for a step and a part of the batch (`sampler`).

    `seed` is the seed of the whole run; each pair of a step and a part has a seed of its own.
    """
    return seed + 1_000_003 * (step + 1) + 1009 * sampler


class ReferenceRun:
    """The training of the whole model in one process by SGD, which gives the right losses, gradients and parameters.

    A loss that depends on random numbers, such as that of a model with dropout, is computed part by part with the seeds
    of the mesh's ranks; any other loss is computed from the whole batch at once.

    Args:
        sizes: the numbers of ranks along the axes of the mesh that is compared with this run.

    Attributes:
        seeds: the seed of random numbers in this step, by part of the batch.
        shared_seed: the seed that several parts of the batch wrongly have in common; None if all seeds differ.
    """

    def __init__(self, case: ParityCase, sizes: Mesh, seed: int) -> None:
        self.case, self.model, self.sizes, self.seed = case, case.model, sizes, seed
        self.parameters = dict(self.model.named_parameters())
        self.step = 0
        self.gradients: Gradients = {}
        self.previous: ReferenceRun | None = None  # the state before the last `apply`
        self.is_random = self._has_random_loss()
        self.seeds: list[int] = []
        self.shared_seed: int | None = None

    def compute(self, seeds: Mapping[int, int]) -> float:
        """Compute the gradients of the step's mean loss over the batch into `gradients`, and return this loss.

        `seeds` has the seed of torch's random numbers that the ranks used, by part of the batch. If two parts have
        equal seeds, which is a mistake, the seeds that `get_seed` returns are used instead.
        """
        used = list(seeds.values())
        self.shared_seed = next((seed for seed in used if used.count(seed) > 1), None)
        own = [get_seed(self.step, sampler, self.seed) for sampler in range(self.sizes.samplers)]
        self.seeds = [seeds[sampler] for sampler in range(self.sizes.samplers)] if self.shared_seed is None else own
        parts = self.list_parts() if self.is_random else None
        loss, self.gradients = self.compute_gradients(parts)
        return loss

    def compute_gradients(
        self,
        parts: Sequence[tuple[slice, int]] | None = None,
        changes: AbstractContextManager[Any] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> tuple[float, Gradients]:
        """Return the mean loss over samples of the step's batch, and its gradients; the model's buffers stay unchanged.

        Args:
            parts: slices of the batch, each with the index (sampler) of the part to which it belongs; None computes the
                whole batch at once. The loss of each slice is weighted by the slice's share of the batch.
            changes: context manager in which to compute the loss, to simulate a fault; None for the right computation.
            seeds: the seed of random numbers for each part of the batch; None takes the seeds of the step.
        """
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        whole = self.case.get_batch(self.step)
        self.model.zero_grad(set_to_none=True)
        total, seeded = 0.0, -1
        with changes or nullcontext():
            for part, sampler in parts or [(slice(0, self.case.samples), 0)]:
                if sampler != seeded:  # micro-batches of a rank draw consecutive random numbers
                    torch.manual_seed(self.seeds[sampler] if seeds is None else seeds[sampler])
                seeded = sampler
                share = (part.stop - part.start) / self.case.samples
                loss = self.case.loss(self.model, *(x[part] for x in whole)) * share
                loss.backward()
                total += float(loss.detach())
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                buffer.copy_(buffers[name])
        # A parameter without a gradient in one process is not compared.
        return total, {name: x.grad for name, x in self.parameters.items() if x.grad is not None}

    def measure_noise(self, loss: float) -> tuple[float, dict[str, float]]:
        """Return the changes of `loss` and of each gradient if all parameters change by one epsilon, to bound rounding.

        The changes are absolute values. A gradient's change is the largest change of its elements, by parameter name.
        """
        parts = self.list_parts() if self.is_random else None
        exact = {name: x.detach().clone() for name, x in self.parameters.items()}
        loss_change, changes = 0.0, dict.fromkeys(self.gradients, 0.0)
        for trial in range(NOISE_TRIALS):
            generator = torch.Generator().manual_seed(trial)
            for name, x in self.parameters.items():
                signs = torch.randint(2, x.shape, generator=generator).to(x) * 2 - 1
                x.data.copy_(exact[name] * (1 + torch.finfo(x.dtype).eps * signs))
            other_loss, gradients = self.compute_gradients(parts)
            loss_change = max(loss_change, abs(other_loss - loss))
            changes = {
                name: max(change, changes[name]) for name, change in _subtract(gradients, self.gradients).items()
            }
        for name, x in self.parameters.items():
            x.data.copy_(exact[name])
        return loss_change, changes

    def apply(self, lr: float) -> None:
        """Update the parameters by an SGD step with learning rate `lr`; keep the previous state as `previous`."""
        self.previous = None
        self.previous = copy.copy(self)
        self.previous.model = copy.deepcopy(self.model)
        self.previous.parameters = dict(self.previous.model.named_parameters())
        with torch.no_grad():
            for name, gradient in self.gradients.items():
                self.parameters[name].sub_(gradient, alpha=lr)
        self.step += 1

    def list_parts(self, samplers: Sequence[int] | None = None) -> list[tuple[slice, int]]:
        """Return the micro-batches of parts of the batch as slices, each with the index (sampler) of its part.

        `samplers` are the indices of the parts of the batch; None stands for all parts.
        """
        parts = self.case.list_parts(self.sizes)
        return [(part, at) for at in (range(len(parts)) if samplers is None else samplers) for part in parts[at]]

    def find_module(self, name: str) -> Any:
        """Return the submodule of the model that has the parameter `name` as its own attribute."""
        return self.model.get_submodule(name.rpartition(".")[0])

    def _has_random_loss(self) -> bool:
        """Whether the computation of the loss draws random numbers of torch, as with dropout."""
        before = _list_random_states()
        with torch.no_grad():
            self.case.loss(copy.deepcopy(self.model), *self.case.get_batch(0))
        return not all(map(torch.equal, before, _list_random_states()))


def _list_random_states() -> list[Any]:
    """Return the states of torch's random number generators on the CPU and on all GPUs."""
    return [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]


def _subtract(found: Gradients, expected: Gradients) -> dict[str, float]:
    """Return, by name of a gradient, the largest absolute difference between elements of `found` and `expected`."""
    return {name: float((found[name] - x).abs().max()) for name, x in expected.items()}


@contextmanager
def hook_forward(hooks: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    """Context manager that registers a forward hook on each module in `hooks`."""
    handles = [module.register_forward_hook(hook) for module, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
