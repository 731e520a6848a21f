"""The operations of torch.distributed on one group, over a communicator of hpccoll.

Methods are named and called as torch.distributed names and calls those of a process group; `opts` are torch's options
of the operation (`rootRank`, `reduceOp`, `timeout`, `asyncOp`). Every operation returns a `TorchWork`.

Legend: n ranks in the group; a list of lists has one inner list, because a process has one device.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias

import torch.distributed as dist
from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import record_function

from hpccoll.communicator import Communicator
from hpccoll.errors import BufferError, ReductionError, UsageError
from hpccoll.torch.bucket_memory import get_bucket_memory, is_called_by_backward
from hpccoll.torch.call_forms import list_tensors, make_options, nest_lists
from hpccoll.torch.communicators import close_communicator
from hpccoll.torch.compilation import exempt_from_compilation
from hpccoll.torch.futures import get_completer
from hpccoll.torch.reductions import parse_reduction
from hpccoll.torch.shrinking import SHRUNK
from hpccoll.torch.sparse import add_sparse
from hpccoll.torch.tensors import CopiesBack, as_array, count_elements, flatten, list_plain, overlaps_wrongly
from hpccoll.torch.work import NOT_GIVEN, InFlightWork, Start, TorchWork, get_lock

Tensors: TypeAlias = Sequence[Any]
MAIN_THREAD: Final = threading.main_thread().ident
LONG_BYTES: Final = 64 * 2**10  # scatter and gather send tensors of this size one by one: joining them takes longer
LIST_TAG: Final = 2**15 - 1  # of these messages
NEW_GROUP: Final = "make a new group by torch.distributed.new_group, or init_process_group after destroy_process_group"


@exempt_from_compilation
class GroupOperations:
    """The operations of a group.

    `comm` has the group's ranks, and `timeout` is the time allowed for an operation. `unusable` is the reason why the
    group refuses operations; it is empty while the group accepts them.
    """

    comm: Communicator
    timeout: timedelta
    unusable = ""
    _sequence = 0  # the number of collectives so far

    def broadcast(self, tensors: Tensors, opts: Any = None, *more: Any, **named: Any) -> TorchWork:
        """Copy the root's tensors into the tensors of all ranks."""
        if type(opts) is not dist.BroadcastOptions:
            tensors, opts = list_tensors(tensors), make_options("broadcast", opts, more, named)
        copies = CopiesBack()
        starts: list[Start] = [
            partial(self.comm.broadcast, copies.prepare_output(each, as_bytes=True), opts.rootRank)
            for each in list_plain(tensors)
        ]
        return self._start("broadcast", starts, tensors, copies, opts)

    def allreduce(self, tensors: Tensors, opts: Any = None, *more: Any, **named: Any) -> TorchWork:
        """Reduce tensors in place on all ranks."""
        if type(opts) is not dist.AllreduceOptions:
            tensors, opts = list_tensors(tensors), make_options("allreduce", opts, more, named)
        if tensors[0].is_sparse:
            return self._reduce_sparse(tensors, opts)
        copies, op = CopiesBack(), parse_reduction(opts.reduceOp)
        if opts.asyncOp and self.comm.maps_memory_of_peers and is_called_by_backward():
            for each in tensors:
                get_bucket_memory().note(each)
        flat = copies.prepare_separately(tensors)
        return self._start("all_reduce", [partial(self.comm.all_reduce, x, op) for x in flat], tensors, copies, opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None, *more: Any, **named: Any) -> TorchWork:
        """Reduce several tensors in place on all ranks; a tensor that is listed twice is reduced once."""
        if type(opts) is not dist.AllreduceCoalescedOptions:
            tensors, opts = list_tensors(tensors), make_options("allreduce_coalesced", opts, more, named)
        copies, op = CopiesBack(), parse_reduction(opts.reduceOp)
        flat = copies.prepare_separately(tensors)
        return self._start("all_reduce", [partial(self.comm.all_reduce, x, op) for x in flat], tensors, copies, opts)

    def _reduce_sparse(self, tensors: Tensors, opts: Any) -> TorchWork:
        """Add sparse tensors of all ranks; this blocks, because the ranks exchange their numbers of values first."""
        if parse_reduction(opts.reduceOp) != "sum":
            raise ReductionError("all_reduce of sparse tensors only adds; pass ReduceOp.SUM, or x.to_dense()")
        with get_lock():
            for tensor in tensors:
                tensor.copy_(add_sparse(self.comm, tensor))
        return self._start("all_reduce", [], tensors, CopiesBack(), opts)

    def reduce(self, tensors: Tensors, opts: Any = None, *more: Any, **named: Any) -> TorchWork:
        """Reduce tensors in place at the root; other ranks' tensors keep their values."""
        if type(opts) is not dist.ReduceOptions:
            tensors, opts = list_tensors(tensors), make_options("reduce", opts, more, named)
        copies, root, op = CopiesBack(), opts.rootRank, parse_reduction(opts.reduceOp)
        prepare = copies.prepare_output if self.comm.rank == root else copies.prepare_input
        starts: list[Start] = [partial(self.comm.reduce, prepare(each), root, op) for each in list_plain(tensors)]
        return self._start("reduce", starts, tensors, copies, opts)

    def all_gather_single(self, output: Any, tensor: Any, opts: Any = None) -> TorchWork:
        """Gather the tensors of all ranks in one tensor: (n * rows, ...) or (n, rows, ...)."""
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> TorchWork:
        """Call `all_gather_single` for several pairs of tensors."""
        copies, starts = CopiesBack(), []
        for output, tensor in zip(outputs, inputs, strict=True):
            x, out = copies.prepare_input(tensor, as_bytes=True), copies.prepare_output(output, as_bytes=True)
            starts.append(self._bind_all_gather(_separate(x, out, self.comm.rank), out))
        return self._start("all_gather_into_tensor", starts, outputs, copies, opts)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> TorchWork:
        """Gather the tensors of all ranks in a list of n tensors, which may differ in size."""
        outputs, inputs = nest_lists(outputs, inputs)
        copies, starts = CopiesBack(), []
        for listed, tensor in zip(outputs, inputs, strict=True):
            x, out = flatten(copies.prepare_input(tensor, as_bytes=True)), copies.join_outputs(listed)
            sizes = [count_elements(each) for each in listed]
            if sizes[self.comm.rank] != x.numel():
                raise BufferError(
                    f"all_gather: the list has {sizes[self.comm.rank]} elements for this rank, whose tensor has "
                    f"{x.numel()}; pass a list of one tensor per rank, each like that rank's tensor"
                )
            counts = None if len(set(sizes)) == 1 else sizes
            at = self.comm.rank if counts is None else None
            starts.append(self._bind_all_gather(_separate(x, out, at), out, counts))
        result = outputs[0] if len(outputs) == 1 else outputs
        return self._start("all_gather", starts, result, copies, opts)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> TorchWork:
        """Gather several tensors; `outputs[r][i]` gets tensor i of rank r."""
        return self.allgather(list(zip(*outputs, strict=True)), inputs, opts)

    def _bind_all_gather(self, x: Any, out: Any, counts: list[int] | None = None) -> Start:
        """Return a function that starts an all-gather; `counts` are the ranks' numbers of elements, if they differ."""
        return partial(self.comm.all_gather, x, counts=counts, out=out)

    def reduce_scatter_single(self, output: Any, tensor: Any, opts: Any = None) -> TorchWork:
        """Reduce a tensor of n blocks and give block r to rank r."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> TorchWork:
        """Call `reduce_scatter_single` for several pairs of tensors."""
        opts = opts or dist.ReduceScatterOptions()
        copies, starts, op = CopiesBack(), [], parse_reduction(opts.reduceOp)
        for output, tensor in zip(outputs, inputs, strict=True):
            x, out = copies.prepare_input(tensor), copies.prepare_output(output)
            starts.append(self._bind_reduce_scatter(_separate(x, out, self.comm.rank), out, op))
        return self._start("reduce_scatter_tensor", starts, outputs, copies, opts)

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None, *more: Any, **named: Any
    ) -> TorchWork:
        """Reduce a list of n tensors, which may differ in size, and give tensor r to rank r."""
        if type(opts) is not dist.ReduceScatterOptions:
            outputs, inputs = nest_lists(outputs, inputs)
            opts = make_options("reduce_scatter", opts, more, named)
        copies, starts, op = CopiesBack(), [], parse_reduction(opts.reduceOp)
        for output, listed in zip(outputs, inputs, strict=True):
            x, out = copies.join_inputs(listed), flatten(copies.prepare_output(output))
            sizes = [count_elements(each) for each in listed]
            counts = None if len(set(sizes)) == 1 else sizes
            at = self.comm.rank if counts is None else None
            starts.append(self._bind_reduce_scatter(_separate(x, out, at), out, op, counts))
        return self._start("reduce_scatter", starts, outputs, copies, opts)

    def _bind_reduce_scatter(self, x: Any, out: Any, op: Any, counts: list[int] | None = None) -> Start:
        """Return the start of a reduce-scatter; `counts` are the blocks' numbers of elements, if they differ."""
        return partial(self.comm.reduce_scatter, flatten(x), op, counts=counts, out=flatten(out))

    def all_to_all_single(
        self, output: Any, tensor: Any, output_sizes: Sequence[int], input_sizes: Sequence[int], opts: Any = None
    ) -> TorchWork:
        """Send blocks of the first dim of a tensor to the ranks; blocks are equal where no sizes are given."""
        copies, n = CopiesBack(), self.comm.size
        x, out = copies.prepare_input(tensor, as_bytes=True), copies.prepare_output(output, as_bytes=True)
        x = _separate(x, out, -1)
        sent, received = None, None
        if input_sizes or output_sizes:
            sent = _scale(input_sizes, tensor, x, n, "input_split_sizes")
            received = _scale(output_sizes, output, out, n, "output_split_sizes")
        return self._start("all_to_all_single", [self._bind_exchange(x, out, sent, received)], [output], copies, opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> TorchWork:
        """Send tensor r of a list to rank r, and receive tensor r of another list from rank r."""
        copies = CopiesBack()
        x, out = copies.join_inputs(inputs), copies.join_outputs(outputs)
        sent, received = [count_elements(each) for each in inputs], [count_elements(each) for each in outputs]
        start = self._bind_exchange(_separate(x, out, -1), out, sent, received)
        return self._start("all_to_all", [start], outputs, copies, opts)

    def _bind_exchange(self, x: Any, out: Any, sent: list[int] | None, received: list[int] | None) -> Start:
        """Return a function that starts an all-to-all; if `sent` and `received` are None, all blocks have one size."""
        return partial(self.comm.all_to_all, flatten(x), counts=sent, out_counts=received, out=flatten(out))

    def gather(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None, *more: Any, **named: Any
    ) -> TorchWork:
        """Gather the tensors of all ranks in a list at the root."""
        if type(opts) is not dist.GatherOptions:
            outputs, inputs = nest_lists(outputs, inputs)
            opts = make_options("gather", opts, more, named)
        copies, rank, root = CopiesBack(), self.comm.rank, opts.rootRank
        x = flatten(copies.prepare_input(inputs[0], as_bytes=True))
        if _is_long(x):
            starts: list[Start] = []
            if rank == root:
                blocks = [flatten(copies.prepare_output(each, as_bytes=True)) for each in outputs[0]]
                self._require_blocks("gather", blocks, x)
                blocks[rank].copy_(x)
                starts = [
                    partial(self.comm.irecv, as_array(block), at, LIST_TAG)
                    for at, block in enumerate(blocks)
                    if at != rank
                ]
            else:
                starts = [partial(self.comm.isend, as_array(x), root, LIST_TAG)]
            return self._start("gather", starts, _flatten(outputs), copies, opts, is_message=True)
        out = copies.join_outputs(outputs[0]) if rank == root else None
        if out is not None:
            x = _separate(x, out, root)
        return self._start("gather", [partial(self.comm.gather, x, root, out=out)], _flatten(outputs), copies, opts)

    def scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None, *more: Any, **named: Any
    ) -> TorchWork:
        """Send tensor r of the root's list to rank r."""
        if type(opts) is not dist.ScatterOptions:
            outputs, inputs = nest_lists(outputs, inputs)
            opts = make_options("scatter", opts, more, named)
        copies, rank, root = CopiesBack(), self.comm.rank, opts.rootRank
        out = flatten(copies.prepare_output(outputs[0], as_bytes=True))
        if _is_long(out):
            starts: list[Start] = [partial(self.comm.irecv, as_array(out), root, LIST_TAG)]
            if rank == root:
                blocks = [flatten(copies.prepare_input(each, as_bytes=True)) for each in inputs[0]]
                self._require_blocks("scatter", blocks, out)
                others = [(at, _separate(block, out, -1)) for at, block in enumerate(blocks) if at != rank]
                out.copy_(blocks[rank])
                starts = [partial(self.comm.isend, as_array(block), at, LIST_TAG) for at, block in others]
            return self._start("scatter", starts, outputs, copies, opts, is_message=True)
        x = _separate(copies.join_inputs(inputs[0]), out, root) if rank == root else None
        return self._start("scatter", [partial(self.comm.scatter, x, root, out=out)], outputs, copies, opts)

    def _require_blocks(self, name: str, blocks: Tensors, own: Any) -> None:
        """Raise BufferError unless a list has one tensor for each rank, each of the size of `own`."""
        sizes = [each.numel() for each in blocks]
        if sizes != [own.numel()] * self.comm.size:
            raise BufferError(
                f"{name}: the list has tensors of {sizes} elements; pass {self.comm.size} tensors of {own.numel()}, "
                "one for each rank"
            )

    def barrier(self, opts: Any = None) -> TorchWork:
        """Wait until every rank of the group has called `barrier`."""
        copies = CopiesBack()
        copies.steps = (partial(get_completer().wait_for_dropped, self.comm),)
        return self._start("barrier", [self.comm.barrier], [], copies, opts)

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> TorchWork:
        """Send tensors to a rank of the group."""
        _require_tag(tag)
        copies = CopiesBack()
        flat = [as_array(copies.prepare_input(each, as_bytes=True)) for each in list_plain(list_tensors(tensors))]
        starts: list[Start] = [partial(self.comm.isend, x, dst, tag) for x in flat]
        return self._start("send", starts, tensors, copies, None, is_message=True)

    def recv(self, tensors: Tensors, src: int | None, tag: int = 0) -> TorchWork:
        """Receive tensors from a rank of the group."""
        _require_tag(tag)
        copies = CopiesBack()
        flat = [as_array(copies.prepare_output(each, as_bytes=True)) for each in list_plain(list_tensors(tensors))]
        starts: list[Start] = [partial(self.comm.irecv, x, src, tag) for x in flat]
        return self._start("recv", starts, tensors, copies, None, is_message=True)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> TorchWork:
        """Receive tensors from any rank of the group."""
        return self.recv(tensors, None, tag)

    def _start(
        self, name: str, starts: list[Start], result: Any, copies: CopiesBack, opts: Any, *, is_message: bool = False
    ) -> TorchWork:
        """Return the handle of an operation; run the operation at once unless it is asynchronous.

        Args:
            starts: the parts of the operation, to be started in this order.
            result: the tensors that the handle gives as its result.
            opts: torch's options; an operation without options is asynchronous.
            is_message: whether the parts are sends or receives, which are always asynchronous and start now.

        Raises:
            DistBackendError: an operation that is not asynchronous failed or took too long, or the group is unusable.
        """
        if self.unusable:
            raise dist.DistBackendError(f"{name} on rank {self.comm.rank} of {self.comm.size}: {self.unusable}")
        timeout = getattr(opts, "timeout", None)
        if timeout is None or timeout <= NOT_GIVEN:  # torch's value for "not given" is negative
            timeout = self.timeout
        is_awaited = opts is not None and not getattr(opts, "asyncOp", True)
        work = TorchWork() if is_awaited else InFlightWork()
        if not is_message:
            self._sequence += 1
            if (completer := get_completer()).pending:
                completer.wait_for_collectives(self.comm)
        profiled = record_function(f"hpccoll:{name}").__enter__() if _profiler_enabled() else None
        try:
            if is_awaited and not is_message and threading.get_ident() == MAIN_THREAD:
                work.run(name, self.comm, starts, result, copies.steps, timeout)
                return work
            work.begin(name, self.comm, starts, result, copies.steps, timeout, is_message=is_message)
        finally:
            if profiled is not None:
                profiled.__exit__(None, None, None)
            if work.was_interrupted:
                self.unusable = f"a timeout interrupted {name}, and ranks no longer agree on their calls; {NEW_GROUP}"
        if is_awaited:
            work.wait()
        return work

    def _set_sequence_number_for_group(self) -> None:
        """Count operations from zero."""
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        """Return the number of collective operations so far, by which torch finds ranks that are behind."""
        return self._sequence

    def shutdown(self) -> None:
        """Free the communicator; collective. If the group is unusable on a rank, all ranks keep the communicator."""
        if self.unusable != SHRUNK:
            with get_lock():
                close_communicator(self.comm, usable=not self.unusable)
        self.unusable = f"the group was destroyed; {NEW_GROUP}"

    def abort(self) -> None:
        """Refuse operations from now on; the communicator and operations in flight stay until the process ends."""
        self.unusable = self.unusable or f"the group was aborted; {NEW_GROUP}"


def _flatten(outputs: Sequence[Tensors]) -> Tensors:
    """Return the tensors of the only inner list; an empty list on ranks that get no result."""
    return outputs[0] if outputs else []


def _require_tag(tag: int) -> None:
    """Raise UsageError unless a message of the user may have this tag."""
    if not 0 <= tag < LIST_TAG:
        raise UsageError(f"tag {tag} is not between 0 and {LIST_TAG - 1}")


def _is_long(x: Any) -> bool:
    """Whether scatter and gather send tensors like `x` one by one."""
    return bool(x.is_cpu and x.nbytes >= LONG_BYTES)


def _separate(x: Any, out: Any, block: int | None) -> Any:
    """Return `x`, or a copy of `x` if it overlaps `out` in another way than as its block number `block`."""
    return x.clone() if overlaps_wrongly(x, out, block) else x


def _scale(sizes: Sequence[int], tensor: Any, flat: Any, n: int, name: str) -> list[int]:
    """Return the sizes of blocks along the first dim as numbers of elements of a flat tensor."""
    rows = tensor.shape[0] if tensor.dim() else 1
    given = list(sizes) or [rows // n] * n
    if len(given) != n or sum(given) != rows:
        raise BufferError(f"all_to_all_single: {name} is {given} for {rows} rows; pass {n} sizes whose sum is {rows}")
    width = flat.numel() // rows if rows else 0
    return [size * width for size in given]
