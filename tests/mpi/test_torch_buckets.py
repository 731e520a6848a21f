"""Gradient buckets move to memory that other ranks map; whatever moves, is freed or is reused, results stay right."""

from __future__ import annotations

import gc
import os
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hpccoll.communicator import Communicator
from hpccoll.errors import CommunicationError
from hpccoll.runtime.node_memory.file_memory import IN_FILE, FileMemories, FileMemory

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"),
]
COUNT = 2**17  # elements of float32, enough for access in place
WIDTH = 300  # of a layer whose gradients are large enough to move


@pytest.fixture(scope="module")
def torch(comm) -> Any:
    """torch, with the group of all ranks over hpccoll; the environment is restored afterwards."""
    torch = pytest.importorskip("torch")
    before = dict(os.environ)
    import hpccoll.torch  # noqa: F401 - registers the backend

    torch.distributed.init_process_group("hpccoll")
    yield torch
    torch.distributed.destroy_process_group()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def maps(comm, torch) -> bool:
    """Whether the ranks can map each other's memory, and torch can exchange the memory of a storage (from 2.12)."""
    with Communicator(comm) as own:
        return own.maps_memory_of_peers and hasattr(torch.ones(1).untyped_storage(), "_swap_data_ptr_")


def count_moved() -> int:
    """Return the number of live memfds that hold moved tensors."""
    return sum(type(each) is FileMemory for each in gc.get_objects())


def count_descriptors() -> int:
    """Return the number of open files."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}], ids=str)
def test_buckets_move_and_are_released_with_the_model(torch, comm, maps, options):
    dist, before = torch.distributed, count_moved()
    torch.manual_seed(0)
    layer = torch.nn.Linear(WIDTH, WIDTH)
    alone = [parameter.detach().clone().requires_grad_() for parameter in layer.parameters()]
    model = torch.nn.parallel.DistributedDataParallel(layer, **options)
    pairs: Any = None
    for step in range(6):
        model.zero_grad()
        x = torch.randn(comm.size, 2, WIDTH, generator=torch.Generator().manual_seed(step))
        model(x[dist.get_rank()]).square().mean().backward()
        expected = torch.autograd.grad(torch.nn.functional.linear(x, *alone).square().mean(), alone)
        pairs = zip([each.grad for each in layer.parameters()], expected, strict=True)
        assert all(torch.allclose(found, gradient, rtol=1e-5, atol=1e-7) for found, gradient in pairs)
    assert before + maps >= count_moved() >= maps
    del model, layer, pairs
    gc.collect()
    kept = 1 if comm.size > 2 else 0  # the latest bucket, until a later model replaces it
    assert count_moved() <= kept


def test_a_tensor_that_the_program_holds_is_not_moved(torch):
    x = torch.ones(COUNT)
    address, before = x.data_ptr(), count_moved()
    for _ in range(5):
        torch.distributed.all_reduce(x)
    assert (x.data_ptr(), count_moved()) == (address, before)


def test_results_are_right_when_storages_are_resized_before_and_after_they_move(torch, comm):
    from hpccoll.torch.bucket_memory import move

    x = torch.ones(COUNT)
    storage = x.untyped_storage()

    def require_sums(values: int) -> None:
        for _ in range(3):
            x.fill_(comm.rank + values)
            torch.distributed.all_reduce(x)
            assert torch.equal(x, torch.full_like(x, sum(range(values, values + comm.size))))

    require_sums(1)
    for turn in range(4):  # as FSDP frees and allocates its buffers; the new memory may have another address
        storage.resize_(0)
        other = torch.ones(COUNT * (1 + turn % 2))
        storage.resize_(4 * COUNT)
        require_sums(turn)
        del other
    address = storage.data_ptr()
    move(storage)
    has_moved = storage.data_ptr() != address
    require_sums(5)
    if has_moved:
        with pytest.raises(RuntimeError, match="not resizable"):
            storage.resize_(0)
        require_sums(6)


def make_tensors(torch, rng: random.Random) -> tuple[Any, Any]:
    """Return a new tensor, and a view of the tensor or the tensor itself, of the same size on every rank."""
    offset = rng.choice([0, 0, 1, 64])
    whole = torch.zeros(COUNT + offset)
    return whole, whole[offset:] if offset else whole


def test_results_are_right_whichever_ranks_move_their_tensors(torch, comm):
    from hpccoll.torch.bucket_memory import move

    dist, n, rank = torch.distributed, comm.size, comm.rank
    shared, own = random.Random(5), random.Random(rank)
    other = dist.new_group(list(range(n)))
    kept = [make_tensors(torch, shared) for _ in range(4)]
    for call in range(120):
        at, group = shared.randrange(4), shared.choice([None, None, other])
        if shared.random() < 0.2:
            kept[at] = (None, None)  # the freed memory may be used again by the new tensor
            kept[at] = make_tensors(torch, shared)
        whole, x = kept[at]
        if own.random() < 0.25 and whole.untyped_storage().resizable():
            values = whole.clone()
            move(whole.untyped_storage())
            assert torch.equal(whole, values)
            assert x.untyped_storage().data_ptr() == whole.data_ptr(), "views follow"
        x.fill_(rank + call)
        if shared.random() < 0.5:
            dist.all_reduce(x, group=group, async_op=True).wait()
        else:
            dist.all_reduce(x, group=group)
        assert torch.equal(x, torch.full_like(x, sum(range(n)) + n * call)), call
        x.fill_(rank + call)
        part = x[: COUNT // n * n // 2 // n * n]
        out = torch.empty(len(part) // n)
        dist.reduce_scatter_tensor(out, part, group=group)
        assert torch.equal(out, torch.full_like(out, sum(range(n)) + n * call)), call


def test_no_descriptor_is_left_when_tensors_move_and_are_freed(torch):
    from hpccoll.torch.bucket_memory import move

    open_before = []
    for turn in range(12):
        x = torch.ones(COUNT)
        move(x.untyped_storage())
        for _ in range(2):
            torch.distributed.all_reduce(x)
        del x
        torch.distributed.barrier()
        if turn >= 6:
            open_before.append(count_descriptors())
    assert open_before[-1] <= open_before[0]


def test_memory_without_a_location_is_not_made():
    full = FileMemories()
    full.made = 2**14 - 1
    assert full.make(8) is None
    assert FileMemories().make(2**36 + 1) is None
    made = FileMemories().make(16)
    assert made is not None
    memory = made[1]
    with pytest.raises(CommunicationError, match="cannot be mapped"):
        FileMemories().map(os.getpid(), IN_FILE | (1 << 48 | 4000) << 36 & ~(3 << 62))
    mapped, offset = FileMemories().map(os.getpid(), memory.locate(memory.address + 3))
    mapped[offset] = 7
    assert made[0][3] == 7
    memory.free()
