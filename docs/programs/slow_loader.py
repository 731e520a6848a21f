"""Trains by data parallelism, with a rank whose data come late: `mpirun -n 2 python slow_loader.py [slow|fast] [gloo]`.

The backend is hpccoll, or Gloo with the word `gloo`, which `torchrun` starts.
"""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo" if "gloo" in sys.argv[1:] else "hpccoll")
rank = dist.get_rank()
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 8))
)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loss = torch.zeros(())
dist.barrier()
begin = time.perf_counter()
for step in range(60):
    if rank == 1 and step % 4 == 3 and "fast" not in sys.argv[1:]:
        time.sleep(0.06)  # the next file of the data set, from a busy file system
    loss = model(torch.randn(32, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if rank == 0:
    print(f"loss {loss.item():.6f}, {time.perf_counter() - begin:.3f} s")
dist.destroy_process_group()
