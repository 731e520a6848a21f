"""The model, the batch and the parallel training step to check, and the mesh of ranks that they run on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from hpccoll.algorithms.loader import import_user_file
from hpccoll.errors import UsageError
from hpccoll.parallel.axis_group import MeshGroups
from hpccoll.parallel.mesh import INNERMOST_FIRST, Mesh, slice_microbatches, split_evenly

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator


class ParityMesh:
    """The mesh of ranks on which a model is trained in parallel; an argument of the user's `wrap` and `backward`.

    A mesh arranges the ranks along axes: dp (data), tp (tensor), pp (pipeline), cp (context) and ep (experts).

    Attributes:
        sizes: the numbers of ranks along the axes dp, tp, pp, cp and ep.
        coordinates: this rank's index along each axis, by the axis's name.
        sampler: the index of this rank's part of the batch; the batch is split over dp and ep.
    """

    def __init__(self, comm: Communicator, sizes: Mesh) -> None:
        self.comm, self.sizes = comm, sizes
        self.coordinates, self.sampler = sizes.get_coordinates(comm.rank), sizes.get_sampler(comm.rank)

    @cached_property
    def device_mesh(self) -> Any:
        """The mesh as torch's DeviceMesh, with dimensions pp, dp and tp, and cp and ep if they have several ranks.

        The first access is collective.
        """
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        names = [axis for axis in reversed(INNERMOST_FIRST) if axis in ("pp", "dp", "tp") or self.sizes.count(axis) > 1]
        return dist.init_device_mesh(device, tuple(map(self.sizes.count, names)), mesh_dim_names=tuple(names))

    @cached_property
    def groups(self) -> MeshGroups:
        """The groups of this rank, one along each axis of the mesh. The first access is collective over `comm`."""
        return MeshGroups.create(self.comm, self.sizes)

    def close(self) -> None:
        """Free the communicators of `groups`, if they were made. Collective over `comm`."""
        if "groups" in self.__dict__:
            self.groups.close()


@dataclass(frozen=True, slots=True)
class ParityCase:
    """The input of `hpccoll parity`: a model, a batch, and how one rank of a mesh trains its part of the model.

    Each rank makes the same case by calling the same function of the user.

    Attributes:
        model: the whole model with its initial parameters.
        batch: the tensors of the whole batch, each with one entry per sample along dimension 0.
        loss: `loss(model, *batch)` returns the mean loss over the samples of a batch.
        wrap: `wrap(model, mesh)` returns this rank's module, or a list of modules (pipeline stages), for a ParityMesh.
            The default is torch's DistributedDataParallel, for meshes with the axis dp only.
        backward: `backward(wrapped, batch, mesh)` adds the gradients of this rank's part of the batch to `grad` of the
            parameters, and returns the mean loss of the part, or None on a rank that does not compute the loss. The
            default backpropagates the mean loss, one micro-batch after the other, and relies on a wrapper such as
            DistributedDataParallel or FSDP to average gradients over dp.
        microbatches: the number of micro-batches of each rank's part of the batch.
    """

    model: Any
    batch: Sequence[Any]
    loss: Callable[..., Any]
    wrap: Callable[[Any, ParityMesh], Any] | None = None
    backward: Callable[[Any, Sequence[Any], ParityMesh], Any] | None = None
    microbatches: int = 1

    @property
    def samples(self) -> int:
        """The number of samples in the whole batch."""
        return len(self.batch[0])

    def get_batch(self, step: int) -> Sequence[Any]:
        """Return the batch of step number `step`: the samples of the case, rotated by one sample per step."""
        return [torch.roll(x, step, 0) for x in self.batch]

    def list_parts(self, sizes: Mesh) -> list[list[slice]]:
        """Return the micro-batches of each rank's part of the batch, as slices of the whole batch.

        The outer list has an element for each part into which a mesh of these `sizes` splits the batch over dp and ep.
        """
        return [slice_microbatches(self.samples, sizes, at, self.microbatches) for at in range(sizes.samplers)]

    def wrap_model(self, mesh: ParityMesh) -> list[Any]:
        """Return this rank's modules, made by the user's `wrap` or DistributedDataParallel. Collective over `mesh`."""
        if self.wrap is None and mesh.sizes.dp != mesh.sizes.ranks:
            raise UsageError(f"mesh {mesh.sizes}: without `wrap`, only dp is possible; set `wrap` of the ParityCase")
        if self.wrap is None and mesh.sizes.ranks > 1:
            return [torch.nn.parallel.DistributedDataParallel(self.model)]
        wrapped = self.wrap(self.model, mesh) if self.wrap else self.model
        return list(wrapped) if isinstance(wrapped, list | tuple) else [wrapped]

    def run_backward(self, modules: Sequence[Any], step: int, mesh: ParityMesh) -> float | None:
        """Add this rank's gradients of step number `step` to `grad` of the parameters of `modules`.

        Returns the mean loss over this rank's part of the batch, or None on a rank that does not compute a loss.
        Collective over the mesh.
        """
        whole, sizes = self.get_batch(step), mesh.sizes
        own = split_evenly(self.samples, sizes.samplers)[mesh.sampler]
        wrapped = modules[0] if len(modules) == 1 else list(modules)
        if self.backward is not None:
            loss = self.backward(wrapped, [x[own] for x in whole], mesh)
            return None if loss is None else float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        total = 0.0
        for part in self.list_parts(sizes)[mesh.sampler]:
            loss = self.loss(wrapped, *(x[part] for x in whole))
            # With this factor, the average over dp is the mean loss of all samples, even for parts of unequal size.
            (loss * (_count(part) * sizes.samplers / self.samples)).backward()
            total += float(loss.detach()) * _count(part) / _count(own)
        return total


def _count(part: slice) -> int:
    """Return the number of samples in a slice of the batch."""
    return int(part.stop - part.start)


def load_build_function(reference: str) -> Callable[[], ParityCase]:
    """Return the user's function that `reference` names as `FILE.py:FUNCTION` or `MODULE:FUNCTION`.

    Runs the file or imports the module. `build_case` calls the function. Raises UsageError if there is no such file,
    module or function, or the file raises an exception.
    """
    path, _, name = reference.rpartition(":")
    if not path:
        raise UsageError(f"{reference}: name a function, as in {reference}:build")
    try:
        module = import_user_file(path, UsageError) if path.endswith(".py") else import_module(path)
    except ModuleNotFoundError as error:
        # The name of the missing module is that of MODULE, of one of its packages, or of an import inside MODULE.
        is_own = f"{path}.".startswith(f"{error.name}.")
        remedy = "write FILE.py:FUNCTION or MODULE:FUNCTION" if is_own else f"install what {path} imports"
        raise UsageError(f"{reference}: {error}; {remedy}") from error
    function = vars(module).get(name)
    if not inspect.isroutine(function):
        functions = [attribute for attribute, value in vars(module).items() if inspect.isroutine(value)]
        raise UsageError(f"{path} has no function {name!r}; it has {', '.join(sorted(functions)) or 'none'}")
    return function  # build_case checks the result


def build_case(build: Callable[[], ParityCase], seed: int) -> ParityCase:
    """Seed torch's random numbers with `seed`, call the user's function `build`, and return its ParityCase.

    Raises UsageError if `build` returns anything but a ParityCase.
    """
    torch.manual_seed(seed)
    case: Any = build()
    if not isinstance(case, ParityCase):
        raise UsageError(f"{build.__name__} returned {type(case).__name__}; return hpccoll.parity.ParityCase(...)")
    return case
