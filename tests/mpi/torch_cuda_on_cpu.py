"""Lets PyTorch's tests for CUDA devices run on the CPU: every device is the CPU."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.testing._internal import common_distributed

if TYPE_CHECKING:
    from collections.abc import Callable

SKIPPING_DECORATORS = (
    "skip_if_lt_x_gpu", "nccl_skip_if_lt_x_gpu", "requires_nccl", "requires_nccl_version",
    "require_n_gpus_for_nccl_backend", "requires_accelerator_dist_backend",
)  # fmt: skip


def is_cuda(device: Any) -> bool:
    """Return whether a value names a CUDA device: its number, its name or a torch.device."""
    if isinstance(device, torch.device):
        return bool(device.type == "cuda")
    return str(device).startswith("cuda") or (isinstance(device, int) and not isinstance(device, bool))


class TensorsOnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Makes tensors on the CPU where a function of torch gets a CUDA device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch with the CPU in place of a CUDA device."""
        del types
        options = dict(kwargs or {})
        if is_cuda(options.get("device")):
            options["device"] = torch.device("cpu")
        name = getattr(func, "__name__", "")
        if name == "cuda" and args and isinstance(args[0], torch.Tensor):
            return args[0]
        if name == "to" and len(args) > 1 and is_cuda(args[1]):
            args = (args[0], torch.device("cpu"), *args[2:])
        return func(*args, **options)


def move_modules_to_cpu() -> None:
    """Let modules and DistributedDataParallel stay on the CPU."""
    module, data_parallel = torch.nn.Module, torch.nn.parallel.DistributedDataParallel
    move, init = module.to, data_parallel.__init__

    def move_to_cpu(self: Any, *args: Any, **options: Any) -> Any:
        moved = {name: "cpu" if is_cuda(value) else value for name, value in options.items()}
        return move(self, *("cpu" if is_cuda(each) else each for each in args), **moved)

    def init_on_cpu(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **options: Any
    ) -> None:
        del device_ids, output_device
        init(self, module, None, None, *args, **options)

    replaced: Any = module
    replaced.to, replaced.cuda = move_to_cpu, lambda self, *_args, **_options: self
    replaced = data_parallel
    replaced.__init__ = init_on_cpu


def run_cuda_tests_on_cpu(ranks: int) -> None:
    """Let all tests for CUDA devices run, on the CPU; call it before importing PyTorch's tests."""

    def keep(*_args: Any, **_options: Any) -> Callable[[Any], Any]:
        return lambda test: test

    for name in SKIPPING_DECORATORS:
        setattr(common_distributed, name, keep)
    common_distributed.skip_if_no_gpu = lambda test: test
    cuda: Any = torch.cuda
    for name in ("set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all"):
        setattr(cuda, name, lambda *_args, **_options: None)
    cuda.current_device, cuda.device_count = (lambda: 0), (lambda: ranks)
    cuda.device = lambda *_args: contextlib.nullcontext()
    move_modules_to_cpu()
    TensorsOnCpu().__enter__()
