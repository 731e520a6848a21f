"""The backend "hpccoll" of torch.distributed: `torch.distributed.init_process_group("hpccoll")`.

Importing this package registers the backend for CPU and CUDA tensors; MPI is initialized by `init_process_group`. Start
reading in `registration`, then `group_operations`.
"""

from __future__ import annotations

from hpccoll.torch.lost_ranks import find_lost_ranks
from hpccoll.torch.registration import register

__all__ = ["find_lost_ranks", "register"]

register()
