"""The loop that runs a block of a program again after the death of ranks."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from hpccoll.communicator.communicator import Communicator
from hpccoll.errors import RankLostError, UsageError


def survivors(*, spares: int = 0, **options: Any) -> Iterator[Communicator]:
    """Yield a communicator of all ranks and, after the death of a rank, a new communicator of the living ranks.

    The block is the body of `for comm in hpccoll.survivors(): with comm: ...`. A RankLostError ends the block, and the
    loop runs it again on the new communicator. The loop ends after the block has ended on all ranks without a
    RankLostError. The loop is collective: all ranks must run it.

    Args:
        spares: the number of idle ranks, the last ones, which run the block only in the place of a dead rank.
        options: arguments of `Communicator`.

    Raises:
        UnavailableError: this MPI library or launcher ends the job when a rank dies; the message states a launch
            command with which the job goes on.
        UsageError: `spares` is not below the number of ranks.

    Example:
        >>> for comm in hpccoll.survivors():  # doctest: +SKIP
        ...     with comm:
        ...         train(comm)
    """
    pool: Communicator = Communicator(on_failure="raise", **options)
    if not 0 <= spares < pool.size:
        raise UsageError(f"spares={spares} leaves no rank of {pool.size} to work; pass a smaller number")
    places = list(range(pool.size - spares))
    while True:
        comm, done = _make_block(pool, places) if spares else (pool, True)
        if comm is not None:
            done = yield from _yield_block(comm, pool)
        has_ended = pool.agree(done)
        if comm is not None and comm is not pool:
            end = comm.close if has_ended else comm.discard
            end()
        if has_ended:
            break
        pool, places = _replace_dead(pool, places)
    pool.close()


def _yield_block(comm: Communicator, pool: Communicator) -> Generator[Communicator, None, bool]:
    """Yield `comm` to the user's loop body once; return whether the body has ended without RankLostError.

    `pool` is the communicator of all living ranks, with spares. If the body leaves the loop, other ranks get an error.
    """
    comm.is_block = True
    try:
        yield comm
    except GeneratorExit:
        comm.leave_loop()
        pool.leave_loop()
        raise
    return comm.is_done


def _make_block(pool: Communicator, places: list[int]) -> tuple[Communicator | None, bool]:
    """Return the communicator for the loop body (None on a spare rank), and whether no rank died during this call.

    Collective over `pool`.

    Args:
        pool: the communicator of all living ranks.
        places: the ranks of `pool` that run the loop body; the other ranks are spare.
    """
    try:
        if pool.rank in places:
            return pool.split(0, places.index(pool.rank)), True
        return pool.split(None), True
    except RankLostError:
        return None, False


def _replace_dead(pool: Communicator, places: list[int]) -> tuple[Communicator, list[int]]:
    """Shrink `pool`, the communicator of all ranks, to the living ranks, and let spares replace dead ranks. Collective.

    `places` are the ranks of `pool` that ran the loop body. Returns the new communicator, and the list of its ranks
    that run the loop body.
    """
    before = pool.mpi.Get_group()
    smaller = pool.shrink()
    now = smaller.mpi.Get_group()
    moved = now.Translate_ranks(range(smaller.size), before)
    by_old = {old: new for new, old in enumerate(moved)}
    free = iter([new for new, old in enumerate(moved) if old not in places])
    taken = [by_old[old] if old in by_old else next(free, None) for old in places]
    return smaller, [rank for rank in taken if rank is not None]
