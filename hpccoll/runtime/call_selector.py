"""Selects the algorithm of each call on a communicator; `auto` chooses unless the call names an algorithm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from hpccoll.algorithms import Algorithm, get_algorithm, list_algorithm_names
from hpccoll.errors import ReductionError, UsageError
from hpccoll.plan import Operation
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.messages.mpi_collectives import MpiCollectives
from hpccoll.runtime.node_memory.node import NodeMemory
from hpccoll.selection import BufferKind, Selection, SelectionKey, Selector, choose_chunk_count, round_message_size
from hpccoll.selection.tuning_table import TuningTable

LEAST_PIPELINED_BYTES: Final = 64 * 2**10  # of asynchronous calls that `auto` runs in shared memory on several nodes
# Operations in which some ranks may lack an input (SOURCE) or an output (RESULT).
# With blocks of different sizes (UNEVEN), a rank's input or output may also be empty.
_SOURCE_ON_SOME: Final = (Operation.BROADCAST, Operation.SCATTER)
_RESULT_ON_SOME: Final = (Operation.REDUCE, Operation.GATHER, Operation.EXSCAN)
_UNEVEN_SOURCE: Final = (*_SOURCE_ON_SOME, Operation.ALL_GATHER, Operation.GATHER, Operation.ALL_TO_ALL)
_UNEVEN_RESULT: Final = (*_RESULT_ON_SOME, Operation.REDUCE_SCATTER, Operation.SCATTER, Operation.ALL_TO_ALL)


class CallSelector(Selector):
    """Selects algorithms for calls, the same on every rank; `log`, if it is set, records the selections of `auto`.

    Args:
        nodes: the ranks of each node.
        node: the memory that the ranks of this node share.
        library: the MPI library's own collectives.
        table: the measured times, or None.
        mixed_forms: whether a blocking call must select the same algorithm as an asynchronous call.
        rates: the relative rates of the nodes' links, if they differ.
    """

    def __init__(
        self,
        nodes: tuple[tuple[int, ...], ...],
        node: NodeMemory,
        library: MpiCollectives,
        table: TuningTable | None,
        *,
        mixed_forms: bool,
        rates: tuple[int, ...] | None,
    ) -> None:
        super().__init__(library.comm.size, len(nodes), table, mixed_forms=mixed_forms, rates=rates)
        self._members, self._node, self._library = nodes, node, library
        self.log: Callable[..., Any] | None = None

    def select_for(self, call: CollectiveCall, *, asynchronous: bool = False) -> Selection:
        """Return the algorithm that `call` names or `auto` selects, and its chunk count; the same on every rank.

        The algorithm is None if the MPI library's own collective is selected.
        Writes the selection of `auto` to the selection log, if there is one. The first blocking call on device memory
        that may use the MPI library starts processes that test the library, and waits for these processes and for all
        ranks.

        Raises:
            UsageError: the call asks for the MPI library's own collective, but its result would differ from hpccoll's,
                or it does not take device memory.
        """
        operation, dtype, reduction = call.operation, call.dtype, call.reduction
        asynchronous = asynchronous or self._mixed_forms
        if call.is_uneven_exchange:
            return self._select_uneven_exchange(call, asynchronous=asynchronous)
        if operation.reduces and not reduction.commutative and not call.library:
            call = self._keep_rank_order(call, asynchronous=asynchronous)
        nbytes = operation.message_bytes(call.count, dtype.itemsize, self._ranks)
        if call.library:
            self._require_library(call, asynchronous=asynchronous)
            return Selection(None, 1, "asked for")
        if call.algorithm is not None:
            selection = Selection(call.algorithm, choose_chunk_count(call.algorithm, self._ranks, nbytes), "asked for")
        else:
            shared = not self._node.problem and not call.module.on_device
            if asynchronous and len(self._members) > 1 and nbytes < LEAST_PIPELINED_BYTES:
                shared = False  # a pipeline would take longer to set up than to run
            offered = self._library.can_run(call, asynchronous=asynchronous)
            buffer, size = self.buffer_kind(call), round_message_size(nbytes)
            key = SelectionKey(operation, size, dtype.itemsize, buffer, offered, shared, not asynchronous)
            is_new = call.has_new_counts and offered
            selection = Selection(None, 1, "few calls with these counts so far") if is_new else self.select(key)
            if self.log is not None:
                self.log(operation, nbytes, buffer, selection, dtype.name, reduction.name)
        most_chunks = max(call.count if isinstance(call.count, int) else max(call.count), 1)
        return selection if selection.chunks <= most_chunks else replace(selection, chunks=most_chunks)

    def _require_library(self, call: CollectiveCall, *, asynchronous: bool) -> None:
        """Raise UsageError unless the MPI library can run a call with the result that hpccoll promises."""
        reason = self._library.explain_refusal(call, asynchronous=asynchronous)
        if reason:
            operation = call.operation
            raise UsageError(
                f"algorithm='mpi' does not run {operation.value} of {call.dtype.name} by {call.reduction.name}: "
                f"{reason}; use algorithm='auto', or one of {', '.join(list_algorithm_names(operation))}"
            )

    def _keep_rank_order(self, call: CollectiveCall, *, asynchronous: bool) -> CollectiveCall:
        """Return `call`, with an algorithm or the MPI library set that reduces the data in the order of the ranks.

        Raises:
            ReductionError: the algorithm that the call names reduces in another order.
        """
        if call.algorithm is None and self._library.can_run(call, asynchronous=asynchronous):
            return replace(call, library=True)
        names, layout = list_algorithm_names(call.operation), (self._ranks, call.root, self._members)
        ordered = [name for name in names if _keeps_rank_order(get_algorithm(call.operation, name), *layout)]
        if call.algorithm is not None and not _keeps_rank_order(call.algorithm, *layout):
            raise ReductionError(
                f"{call.algorithm.full_name} on {self._ranks} ranks with root {call.root} does not reduce in the order "
                f"of the ranks, as {call.reduction.name!r} needs; choose {', '.join([*ordered, 'mpi', 'auto'])}"
            )
        messages = [name for name in ordered if not get_algorithm(call.operation, name).uses_shared_memory]
        if call.algorithm is None and not messages:
            raise ReductionError(f"no {call.operation.value} by messages reduces in rank order on {self._ranks} ranks")
        return call if call.algorithm else replace(call, algorithm=get_algorithm(call.operation, messages[0]))

    def _select_uneven_exchange(self, call: CollectiveCall, *, asynchronous: bool) -> Selection:
        """Return the algorithm and chunk count for an all-to-all of unequal blocks, whatever the sizes of the blocks.

        A rank knows only the blocks that it sends and receives, so plans must send each block straight to its receiver.
        On 2 ranks of one node, repeated blocking calls of `pairwise` take 0.6 to 0.9 of the MPI library's time.
        """
        prefers_plan = self._ranks == 2 and len(self._members) == 1 and not (asynchronous or call.module.on_device)
        if call.algorithm is None and (call.library or not prefers_plan):
            if self._library.can_run(call, asynchronous=asynchronous):
                return Selection(None, 1, "the ranks know only their own blocks")
            if call.library:
                raise UsageError("the MPI library's own all_to_all does not take device memory here; pass auto")
        algorithm = call.algorithm or get_algorithm(call.operation, "pairwise")
        if algorithm.uses_shared_memory or algorithm.plan(self._ranks).column(0).chunks != 2 * self._ranks:
            raise UsageError(
                f"{algorithm.full_name} needs blocks of equal size, because its ranks forward or load blocks of other "
                "ranks; with counts choose pairwise, mpi or auto"
            )
        return Selection(algorithm, 1, "asked for" if call.algorithm else "the ranks know only their own blocks")

    def buffer_kind(self, call: CollectiveCall) -> BufferKind:
        """Return the kind of a call's memory (host, symmetric or CUDA), the same on every rank.

        Buffers that may be missing or empty on some ranks are ignored.
        """
        if call.module.on_device:
            return BufferKind.CUDA
        uneven = not isinstance(call.count, int)
        buffers = [call.result] if call.operation not in (_UNEVEN_RESULT if uneven else _RESULT_ON_SOME) else []
        buffers += [call.source] if call.operation not in (_UNEVEN_SOURCE if uneven else _SOURCE_ON_SOME) else []
        find = self._node.symmetric.find
        symmetric = [find(buffer.address, buffer.nbytes) for buffer in buffers if buffer and buffer.nbytes]
        return BufferKind.SYMMETRIC if symmetric and all(symmetric) else BufferKind.HOST


@lru_cache(maxsize=256)
def _keeps_rank_order(algorithm: Algorithm, ranks: int, root: int, nodes: tuple[tuple[int, ...], ...]) -> bool:
    """Whether an algorithm reduces in the order of the ranks."""
    from hpccoll.plan import keeps_rank_order

    return keeps_rank_order(algorithm.plan(ranks, root, 1, nodes))
