"""Trains with DistributedDataParallel, and continues on the living ranks after the death of a rank.

    HPCCOLL_FAULT=kill:rank=1,call=40 mpirun --with-ft ulfm -n 3 python surviving_ddp.py

Prints the number of ranks and the loss of the last step.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hpccoll.torch import find_lost_ranks

STEPS, BATCH = 60, 16


def copy_latest(network: torch.nn.Module, step: int) -> int:
    """Copy the parameters of the rank that has made the most steps to all ranks, and return its step."""
    steps = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(steps, torch.tensor([step]))
    latest = max(range(len(steps)), key=lambda rank: int(steps[rank]))
    for parameter in network.parameters():
        dist.broadcast(parameter.data, latest)
    return int(steps[latest])


def main() -> None:
    """Train a linear layer to add its inputs."""
    dist.init_process_group("hpccoll")
    torch.manual_seed(0)
    network = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    model, step, loss = DistributedDataParallel(network), 0, torch.zeros(())
    while step < STEPS:
        try:
            inputs = torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(1000 * step + dist.get_rank()))
            loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        except RuntimeError:  # DistBackendError, or what torch makes of it in the backward pass
            lost = find_lost_ranks()
            if not lost:
                raise
            dist.shrink_group(lost)
            step = copy_latest(network, step)
            model = DistributedDataParallel(network)
    print(f"{dist.get_world_size()} ranks, loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
