"""Errors and the life of process groups of the backend "hpccoll", as users of torch.distributed meet them.

    mpirun -n 2 python -m tests.jobs.torch_error_program [CASE]...

Every rank prints a line for each case that passed. Rank 0 is the rank that waits in vain.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import hpccoll.torch  # noqa: F401 - registers the backend
from tests.torch_groups import make_hasty_group

SHORT = timedelta(seconds=0.3)
BLOCKING: dict[str, Callable[[Any, int], object]] = {
    "all_reduce": lambda group, n: dist.all_reduce(torch.ones(2), group=group),
    "all_reduce of 8 KiB": lambda group, n: dist.all_reduce(torch.ones(2**11), group=group),  # in shared memory
    "all_reduce of 1 MiB": lambda group, n: dist.all_reduce(torch.ones(2**18), group=group),  # by messages
    "broadcast": lambda group, n: dist.broadcast(torch.ones(3), n - 1, group=group),
    "all_gather": lambda group, n: dist.all_gather([torch.ones(2)] * n, torch.ones(2), group=group),
    "all_to_all_single": lambda group, n: dist.all_to_all_single(torch.ones(n), torch.ones(n), group=group),
    "barrier": lambda group, n: dist.barrier(group),
    "recv": lambda group, n: dist.recv(torch.ones(2), n - 1, group=group),
}


@contextmanager
def expect(*words: str, kind: type[Exception] = dist.DistBackendError) -> Iterator[None]:
    """Require that the block raises an error of a kind whose message has the words."""
    try:
        yield
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        if missing:
            raise AssertionError(f"{missing} not in: {error}") from error
    else:
        raise AssertionError(f"no {kind.__name__} with {words}")


def blocking_calls_time_out(nodes: str = "") -> None:
    """A blocking call names the operation and the missing ranks; afterwards the group is unusable."""
    rank, n = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    if nodes:
        os.environ["HPCCOLL_RANKS_PER_NODE"] = nodes
    for name, call in BLOCKING.items():
        group = make_hasty_group(SHORT)
        if rank == 0:
            dist.barrier()
            late = "rank 1 has not called it" if n == 2 else f"ranks 1-{n - 1} have not called it"
            late = "other end of the message: rank" if name == "recv" else late
            # On a busy machine, a late rank may still be between its two barriers: "after call", not "in call".
            with expect(
                name.split()[0], "on rank 0", "Timed out waiting 300ms (timeout: 0.3 s)", " call ", "(barrier", late
            ):
                call(group, n)
            if name != "recv":
                with expect("barrier", "a timeout interrupted", "new_group"):
                    dist.barrier(group)
        else:
            dist.barrier()
        dist.barrier()  # on the group of all ranks, which still works
        if name == "recv" and rank == n - 1:
            dist.send(torch.ones(2), 0, group)  # ends the receive, which is in flight
        dist.destroy_process_group(group)
    os.environ.pop("HPCCOLL_RANKS_PER_NODE", None)


def waits_time_out_and_may_be_repeated() -> None:
    """A wait for an asynchronous operation has the timeout of the group, or its own; the operation goes on."""
    group, x = make_hasty_group(SHORT), torch.ones(3)
    if dist.get_rank() == 0:
        work = dist.all_reduce(x, group=group, async_op=True)
        with expect("all_reduce", "Timed out waiting 300ms (timeout: 0.3 s)", "1", "not called it"):
            work.wait()
        with expect("Timed out waiting 100ms (timeout: 0.1 s)"):
            work.wait(timedelta(seconds=0.1))
        dist.barrier()
    else:
        dist.barrier()
        work = dist.all_reduce(x, group=group, async_op=True)
    work.wait(timedelta(seconds=60))
    assert x.tolist() == [dist.get_world_size()] * 3
    dist.destroy_process_group(group)


def different_shapes_are_named() -> None:
    """With debug level DETAIL, an error names both shapes and ranks, and blocking and asynchronous calls may meet."""
    level = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    group = dist.new_group()
    dist.set_debug_level(level)
    rank = dist.get_rank()
    with expect("all_reduce", "shape (3,) on rank 0, (4,) on rank 1", kind=RuntimeError):
        dist.all_reduce(torch.ones(4 if rank else 3), group=group)
    work = dist.all_reduce(x := torch.ones(2), group=group, async_op=rank == 0)
    if work is not None:
        work.wait()
    assert x.tolist() == [dist.get_world_size()] * 2
    dist.destroy_process_group(group)


def destroyed_groups_refuse_operations() -> None:
    """Calls on a destroyed group, and on no group, raise errors that say so."""
    group = dist.new_group()
    dist.all_reduce(torch.ones(2), group=group)
    dist.destroy_process_group(group)
    with expect(kind=ValueError):  # torch looks the group up before it shows the error of the group
        dist.all_reduce(torch.ones(2), group=group)
    with expect("was destroyed", "new_group"):
        group.barrier().wait()
    dist.destroy_process_group()
    with expect("not been initialized", kind=ValueError):
        dist.all_reduce(torch.ones(2))
    dist.init_process_group("hpccoll")


def groups_are_made_again() -> None:
    """init_process_group works again after destroy_process_group, and not before."""
    for _ in range(3):
        with expect("twice", kind=ValueError):
            dist.init_process_group("hpccoll")
        dist.all_reduce(x := torch.ones(2))
        assert x.tolist() == [dist.get_world_size()] * 2
        dist.destroy_process_group()
        dist.init_process_group("hpccoll", timeout=timedelta(seconds=60))


def forked_children_are_refused() -> None:
    """A forked child that communicates gets an error, for new tensors and for those of earlier calls alike."""
    known = torch.ones(4)
    for _ in range(8):
        dist.all_reduce(known)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for x in (known, torch.ones(4)):
                with expect("fork"):
                    dist.all_reduce(x)
            status = 0
        except BaseException as error:  # noqa: BLE001 - a child must not run the code of its parent
            print(f"child: {error}", flush=True)
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    dist.barrier()


def data_loaders_may_fork() -> None:
    """Forked workers of a DataLoader do not disturb the group."""
    data = torch.utils.data.TensorDataset(torch.arange(12.0))
    sampler = torch.utils.data.DistributedSampler(data, shuffle=False)
    loader = torch.utils.data.DataLoader(data, 2, sampler=sampler, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        total = torch.zeros(())
        for (batch,) in loader:
            total += batch.sum()
            dist.barrier()
        dist.all_reduce(total)
        assert total.item() == 66.0


def missing_ranks_of_new_groups_are_named() -> None:
    """new_group raises if a rank does not arrive."""
    if dist.get_rank() == 0:
        with expect("new group", "rank 1", "has not arrived within a timeout of 0.3 s"):
            dist.new_group([0, 1], timeout=SHORT, use_local_synchronization=True)
    dist.barrier()


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case
    for case in (
        blocking_calls_time_out, waits_time_out_and_may_be_repeated, different_shapes_are_named,
        destroyed_groups_refuse_operations, groups_are_made_again, forked_children_are_refused, data_loaders_may_fork,
        missing_ranks_of_new_groups_are_named,
    )
}  # fmt: skip


def main() -> None:
    """Run the cases that the command line names, or all."""
    torch.set_num_threads(1)
    dist.init_process_group("hpccoll")
    for name in sys.argv[1:] or CASES:
        case, _, argument = name.partition("=")
        CASES[case](*[argument] * bool(argument))
        sys.stdout.write(f"rank {dist.get_rank()}: {name} passed\n")
        sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
