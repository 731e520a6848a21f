"""Process groups of torch.distributed whose operations time out soon."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hpccoll.torch.creation import takes_python_backends

CREATION = timedelta(seconds=60)


def make_hasty_group(timeout: timedelta) -> Any:
    """Return a new group of all ranks whose operations have `timeout`; the ranks may take longer to create the group.

    With `new_group(timeout=timeout)`, a rank that a busy machine delays would fail in the creation.
    """
    group = dist.new_group(timeout=CREATION)
    backend: Any = group._get_backend(torch.device("cpu")) if takes_python_backends() else group
    assert backend.timeout == CREATION
    backend.set_timeout(timeout)
    return group
