"""The sum of sparse tensors over the ranks of a group."""

from __future__ import annotations

from typing import Any

import torch

from hpccoll.communicator import Communicator


def add_sparse(comm: Communicator, tensor: Any) -> Any:
    """Return the sum of a sparse COO tensor over all ranks, coalesced, on every rank; blocks, collective.

    Every rank gathers the indices and values of all ranks, as Gloo does: 8 bytes per index and one value per entry.
    """
    own = tensor.detach().coalesce()
    indices, values = own.indices().contiguous(), own.values().contiguous()
    counts = comm.all_gather(torch.tensor([values.shape[0]])).reshape(-1).tolist()
    width = values[:1].numel() if values.shape[0] else int(torch.tensor(values.shape[1:]).prod())
    everywhere = comm.all_gather(indices.T.reshape(-1), counts=[count * indices.shape[0] for count in counts])
    gathered = comm.all_gather(values.reshape(-1), counts=[count * width for count in counts])
    joined = everywhere.reshape(sum(counts), indices.shape[0]).T
    summands = gathered.reshape(sum(counts), *values.shape[1:])
    return torch.sparse_coo_tensor(joined, summands, tensor.shape, check_invariants=False).coalesce()
