"""The training step of one rank on the user's wrapped model, and the positions of the rank's parameter shards."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from hpccoll.errors import UsageError
from hpccoll.parity.case import ParityCase, ParityMesh
from hpccoll.parity.fault import FoundShard
from hpccoll.parity.reference import get_seed
from hpccoll.parity.shard_location import ShardIndex, locate_shard

# Parts of a parameter's name that DistributedDataParallel, FSDP1, torch.compile and activation checkpointing insert.
WRAPPERS = ("module.", "_fsdp_wrapped_module.", "_orig_mod.", "_checkpoint_wrapped_module.")
VALUE, GRADIENT = "value", "gradient"


class WrappedRun:
    """This rank's part of training on the mesh by SGD, with the user's parallel model.

    The constructor and all methods are collective over the mesh.

    Attributes:
        names: the names of the whole model's parameters, in the order of the model; the list is equal on all ranks.
        buffer_names: the names of the whole model's buffers.
    """

    def __init__(self, case: ParityCase, mesh: ParityMesh, seed: int) -> None:
        self.case, self.mesh, self.seed, self.step = case, mesh, seed, 0
        # Keep the original parameters alive, because new objects could otherwise get the Python ids of freed ones.
        self._originals = dict(case.model.named_parameters(remove_duplicate=False))
        names = {id(x): name for name, x in reversed(self._originals.items())}
        self._names = {alias: names[id(x)] for alias, x in self._originals.items()}
        self.names = list(dict.fromkeys(self._names.values()))
        self.buffer_names = [name for name, _ in case.model.named_buffers()]
        initial = {name: self._originals[name].detach().clone() for name in self.names}
        self._modules = case.wrap_model(mesh)
        self._parameters = self._match_parameters(names, initial)
        self._buffers = {clean(name): x for module in self._modules for name, x in module.named_buffers()}
        self._indices = self._locate(initial)

    def _match_parameters(self, names: dict[int, str], initial: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters of this rank's modules by their names in the whole model.

        A parameter is found in the whole model by identity, else by its name, else by its initial value. `names` has
        the name of each parameter of the whole model, by the parameter's `id`, and `initial` the initial values by
        name.
        """
        by_name = {}
        for module in self._modules:
            for wrapped_name, x in module.named_parameters():
                name = names.get(id(x)) or self._names.get(clean(wrapped_name))
                if name is None:
                    whole = get_whole(x.detach())
                    same = (parameter for parameter, value in initial.items() if torch.equal(value, whole))
                    name = next(same, None)
                if name is None:
                    raise UsageError(
                        f"the wrapped model's parameter {wrapped_name} is not in the whole model; keep the names of "
                        "the whole model, or its parameters and their initial values"
                    )
                by_name[name] = x
        return by_name

    def _locate(self, initial: dict[str, Any]) -> dict[str, ShardIndex | None]:
        """Return, for each parameter of this rank, its position in the whole parameter.

        `initial` has the values of the whole parameters. A position is None if the values of this rank's parameter are
        not found in the whole parameter.
        """
        indices: dict[str, ShardIndex | None] = {}
        siblings: dict[str, ShardIndex | None] = {}
        for name in self._parameters:
            module = name.rpartition(".")[0]
            shard = get_whole(self._parameters[name].detach())
            indices[name] = locate_shard(initial[name], shard, siblings.get(module), self.mesh.coordinates["tp"])
            siblings.setdefault(module, indices[name])
        return indices

    def compute(self) -> float | None:
        """Compute this rank's gradients of the present step; return the mean loss of this rank's part of the batch.

        The result is None on a rank that does not compute the loss.
        """
        for x in self._parameters.values():
            x.grad = None
        torch.manual_seed(get_seed(self.step, self.mesh.sampler, self.seed))
        return self.case.run_backward(self._modules, self.step, self.mesh)

    def apply(self, lr: float) -> None:
        """Update this rank's parameters by one SGD step with learning rate `lr`."""
        torch.optim.SGD(self._parameters.values(), lr=lr).step()
        self.step += 1

    def get_shard(self, name: str, kind: str) -> FoundShard | None:
        """Return this rank's part of a parameter or of its gradient with its position; None if the rank has no part.

        The values are in float64.

        Args:
            name: the parameter's name in the whole model.
            kind: VALUE or GRADIENT; a gradient that was not computed is zero.
        """
        x = self._parameters.get(name)
        if x is None:
            return None
        chosen = x.detach() if kind == VALUE else x.grad
        values = get_whole(x.detach()).mul(0) if chosen is None else get_whole(chosen)
        index = self._indices[name]
        return FoundShard(self.mesh.comm.rank, index or ShardIndex(), values.detach().cpu().double())

    def get_buffer(self, name: str) -> FoundShard | None:
        """Return this rank's buffer `name` in float64; None if the rank does not hold the buffer."""
        x = self._buffers.get(name)
        if x is None:
            return None
        return FoundShard(self.mesh.comm.rank, ShardIndex(), get_whole(x.detach()).cpu().double())


def clean(name: str) -> str:
    """Return a parameter's name without the prefixes, such as `module.`, that wrappers of torch insert."""
    for inserted in WRAPPERS:
        name = name.replace(inserted, "")
    return name


def get_whole(x: Any) -> Any:
    """Return the whole tensor of a DTensor, which is collective over its mesh, or any other tensor unchanged."""
    return x.full_tensor() if isinstance(x, DTensor) else x
