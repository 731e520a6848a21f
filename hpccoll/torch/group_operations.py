"""The operations of torch.distributed on one group, over a communicator of hpccoll.

The methods have the names and arguments of the methods of torch's process groups; `opts` are torch's options of the
operation (`rootRank`, `reduceOp`, `timeout`, `asyncOp`). Every operation returns a `TorchWork`.

The group has n ranks. A list of lists has one inner list, because a process has one device.
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
    """The operations of a group of torch.distributed, over a communicator of hpccoll.

    The methods take torch's arguments and return torch's handle of an operation, a `TorchWork`. `opts` are torch's
    options of the operation, such as `AllreduceOptions`; `more` and `named` are fields of the options, which users may
    pass in place of `opts`. `comm` has the group's ranks, and `timeout` is the time allowed for an operation.
    `unusable` is the reason why the group refuses operations; it is empty while the group accepts them.
    """

    comm: Communicator
    timeout: timedelta
    unusable = ""
    _sequence = 0  # the number of collectives so far

    def broadcast(self, tensors: Tensors, opts: Any = None, *more: Any, **named: Any) -> TorchWork:
        """Copy the root's `tensors` into those of all ranks; return a handle. Collective. `opts`: BroadcastOptions."""
        if type(opts) is not dist.BroadcastOptions:
            tensors, opts = list_tensors(tensors), make_options("broadcast", opts, more, named)
        copies = CopiesBack()
        starts: list[Start] = [
            partial(self.comm.broadcast, copies.prepare_output(tensor, as_bytes=True), opts.rootRank)
            for tensor in list_plain(tensors)
        ]
        return self._start("broadcast", starts, tensors, copies, opts)

    def allreduce(self, tensors: Tensors, opts: Any = None, *more: Any, **named: Any) -> TorchWork:
        """Reduce `tensors` in place on all ranks; return a handle. Collective. `opts`: AllreduceOptions or fields."""
        if type(opts) is not dist.AllreduceOptions:
            tensors, opts = list_tensors(tensors), make_options("allreduce", opts, more, named)
        if tensors[0].is_sparse:
            return self._reduce_sparse(tensors, opts)
        copies, op = CopiesBack(), parse_reduction(opts.reduceOp)
        if opts.asyncOp and self.comm.maps_memory_of_peers and is_called_by_backward():
            for tensor in tensors:
                get_bucket_memory().note(tensor)
        flat = copies.prepare_separately(tensors)
        return self._start("all_reduce", [partial(self.comm.all_reduce, x, op) for x in flat], tensors, copies, opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None, *more: Any, **named: Any) -> TorchWork:
        """Reduce `tensors` in place on all ranks, each once even if it is listed twice; return a handle. Collective.

        `opts` are AllreduceCoalescedOptions or their fields.
        """
        if type(opts) is not dist.AllreduceCoalescedOptions:
            tensors, opts = list_tensors(tensors), make_options("allreduce_coalesced", opts, more, named)
        copies, op = CopiesBack(), parse_reduction(opts.reduceOp)
        flat = copies.prepare_separately(tensors)
        return self._start("all_reduce", [partial(self.comm.all_reduce, x, op) for x in flat], tensors, copies, opts)

    def _reduce_sparse(self, tensors: Tensors, opts: Any) -> TorchWork:
        """Replace each sparse tensor by its sum over all ranks; return a handle. Collective.

        `opts` are AllreduceOptions. A sparse all_reduce blocks, because the ranks first exchange how many values each
        rank has.
        """
        if parse_reduction(opts.reduceOp) != "sum":
            raise ReductionError("all_reduce of sparse tensors only adds; pass ReduceOp.SUM, or x.to_dense()")
        with get_lock():
            for tensor in tensors:
                tensor.copy_(add_sparse(self.comm, tensor))
        return self._start("all_reduce", [], tensors, CopiesBack(), opts)

    def reduce(self, tensors: Tensors, opts: Any = None, *more: Any, **named: Any) -> TorchWork:
        """Reduce `tensors` in place at the root only; return a handle. Collective. `opts`: ReduceOptions or fields."""
        if type(opts) is not dist.ReduceOptions:
            tensors, opts = list_tensors(tensors), make_options("reduce", opts, more, named)
        copies, root, op = CopiesBack(), opts.rootRank, parse_reduction(opts.reduceOp)
        prepare = copies.prepare_output if self.comm.rank == root else copies.prepare_input
        starts: list[Start] = [partial(self.comm.reduce, prepare(tensor), root, op) for tensor in list_plain(tensors)]
        return self._start("reduce", starts, tensors, copies, opts)

    def all_gather_single(self, output: Any, tensor: Any, opts: Any = None) -> TorchWork:
        """Gather all n ranks' `tensor` in `output`, of shape (n * rows, ...) or (n, rows, ...); return a handle.

        Collective.
        """
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> TorchWork:
        """Run `all_gather_single` for each pair of `outputs` and `inputs`; return one handle. Collective."""
        copies = CopiesBack()
        starts: list[Start] = []
        for output, tensor in zip(outputs, inputs, strict=True):
            x, out = copies.prepare_input(tensor, as_bytes=True), copies.prepare_output(output, as_bytes=True)
            starts.append(partial(self.comm.all_gather, _copy_if_overlapping(x, out, self.comm.rank), out=out))
        return self._start("all_gather_into_tensor", starts, outputs, copies, opts)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> TorchWork:
        """Gather the tensor `inputs[0]` of all n ranks in the list `outputs[0]` of n tensors on every rank; collective.

        The tensors may differ in size. If `inputs` has several tensors, `outputs` has as many lists. Returns a handle.
        """
        outputs, inputs = nest_lists(outputs, inputs)
        copies = CopiesBack()
        starts: list[Start] = []
        for listed, tensor in zip(outputs, inputs, strict=True):
            x, out = flatten(copies.prepare_input(tensor, as_bytes=True)), copies.join_outputs(listed)
            sizes = [count_elements(tensor) for tensor in listed]
            if sizes[self.comm.rank] != x.numel():
                raise BufferError(
                    f"all_gather: the list has {sizes[self.comm.rank]} elements for this rank, whose tensor has "
                    f"{x.numel()}; pass a list of one tensor per rank, each like that rank's tensor"
                )
            counts = None if len(set(sizes)) == 1 else sizes
            at = self.comm.rank if counts is None else None
            starts.append(partial(self.comm.all_gather, _copy_if_overlapping(x, out, at), counts=counts, out=out))
        result = outputs[0] if len(outputs) == 1 else outputs
        return self._start("all_gather", starts, result, copies, opts)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> TorchWork:
        """Gather `inputs` of all ranks: `outputs[r][i]` gets tensor i of rank r. Return a handle. Collective."""
        return self.allgather(list(zip(*outputs, strict=True)), inputs, opts)

    def reduce_scatter_single(self, output: Any, tensor: Any, opts: Any = None) -> TorchWork:
        """Reduce `tensor`, n blocks of rows, and store block r in `output` of rank r; return a handle. Collective."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> TorchWork:
        """Run `reduce_scatter_single` for each pair of `outputs` and `inputs`; return one handle. Collective."""
        opts = opts or dist.ReduceScatterOptions()
        copies, starts, op = CopiesBack(), [], parse_reduction(opts.reduceOp)
        for output, tensor in zip(outputs, inputs, strict=True):
            x, out = copies.prepare_input(tensor), copies.prepare_output(output)
            starts.append(self._bind_reduce_scatter(_copy_if_overlapping(x, out, self.comm.rank), out, op))
        return self._start("reduce_scatter_tensor", starts, outputs, copies, opts)

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None, *more: Any, **named: Any
    ) -> TorchWork:
        """Reduce the list `inputs[0]` of n tensors, and store tensor r in `outputs[0]` of rank r; collective.

        The tensors of the list may differ in size. `opts` are ReduceScatterOptions or their fields. Returns a handle.
        """
        if type(opts) is not dist.ReduceScatterOptions:
            outputs, inputs = nest_lists(outputs, inputs)
            opts = make_options("reduce_scatter", opts, more, named)
        copies, starts, op = CopiesBack(), [], parse_reduction(opts.reduceOp)
        for output, listed in zip(outputs, inputs, strict=True):
            x, out = copies.join_inputs(listed), flatten(copies.prepare_output(output))
            sizes = [count_elements(tensor) for tensor in listed]
            counts = None if len(set(sizes)) == 1 else sizes
            at = self.comm.rank if counts is None else None
            starts.append(self._bind_reduce_scatter(_copy_if_overlapping(x, out, at), out, op, counts))
        return self._start("reduce_scatter", starts, outputs, copies, opts)

    def _bind_reduce_scatter(self, x: Any, out: Any, op: Any, counts: list[int] | None = None) -> Start:
        """Return a function that starts a reduce-scatter of `x` into `out` by the reduction `op`.

        `counts` has the number of elements of each block; None if these numbers are equal.
        """
        return partial(self.comm.reduce_scatter, flatten(x), op, counts=counts, out=flatten(out))

    def all_to_all_single(
        self, output: Any, tensor: Any, output_sizes: Sequence[int], input_sizes: Sequence[int], opts: Any = None
    ) -> TorchWork:
        """Send a block of rows of `tensor` to each rank, and receive one from each in `output`; return a handle.

        `input_sizes` and `output_sizes` are the numbers of rows sent to, and received from, each rank; empty if equal.
        """
        copies, n = CopiesBack(), self.comm.size
        x, out = copies.prepare_input(tensor, as_bytes=True), copies.prepare_output(output, as_bytes=True)
        x = _copy_if_overlapping(x, out, -1)
        sent, received = None, None
        if input_sizes or output_sizes:
            sent = _count_block_elements(input_sizes, tensor, x, n, "input_split_sizes")
            received = _count_block_elements(output_sizes, output, out, n, "output_split_sizes")
        return self._start("all_to_all_single", [self._bind_exchange(x, out, sent, received)], [output], copies, opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> TorchWork:
        """Send `inputs[r]` to each rank r, and receive `outputs[r]` from rank r; return a handle. Collective."""
        copies = CopiesBack()
        x, out = copies.join_inputs(inputs), copies.join_outputs(outputs)
        sent, received = [count_elements(tensor) for tensor in inputs], [count_elements(tensor) for tensor in outputs]
        start = self._bind_exchange(_copy_if_overlapping(x, out, -1), out, sent, received)
        return self._start("all_to_all", [start], outputs, copies, opts)

    def _bind_exchange(self, x: Any, out: Any, sent: list[int] | None, received: list[int] | None) -> Start:
        """Return a function that starts an all-to-all of `x` into `out`.

        `sent` and `received` have the number of elements of each sent and received block; None if all blocks are equal.
        """
        return partial(self.comm.all_to_all, flatten(x), counts=sent, out_counts=received, out=flatten(out))

    def gather(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None, *more: Any, **named: Any
    ) -> TorchWork:
        """Gather the tensor `inputs[0]` of all ranks in the list `outputs[0]` at the root; collective.

        `outputs` is empty on ranks other than the root. `opts` are GatherOptions or their fields. Returns a handle.
        """
        if type(opts) is not dist.GatherOptions:
            outputs, inputs = nest_lists(outputs, inputs)
            opts = make_options("gather", opts, more, named)
        copies, rank, root = CopiesBack(), self.comm.rank, opts.rootRank
        x = flatten(copies.prepare_input(inputs[0], as_bytes=True))
        if _is_long(x):
            starts: list[Start] = []
            if rank == root:
                blocks = [flatten(copies.prepare_output(tensor, as_bytes=True)) for tensor in outputs[0]]
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
            x = _copy_if_overlapping(x, out, root)
        return self._start("gather", [partial(self.comm.gather, x, root, out=out)], _flatten(outputs), copies, opts)

    def scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None, *more: Any, **named: Any
    ) -> TorchWork:
        """Send tensor r of the root's list `inputs[0]` to `outputs[0]` of each rank r; collective.

        `inputs` is empty on ranks other than the root. `opts` are ScatterOptions or their fields. Returns a handle.
        """
        if type(opts) is not dist.ScatterOptions:
            outputs, inputs = nest_lists(outputs, inputs)
            opts = make_options("scatter", opts, more, named)
        copies, rank, root = CopiesBack(), self.comm.rank, opts.rootRank
        out = flatten(copies.prepare_output(outputs[0], as_bytes=True))
        if _is_long(out):
            starts: list[Start] = [partial(self.comm.irecv, as_array(out), root, LIST_TAG)]
            if rank == root:
                blocks = [flatten(copies.prepare_input(tensor, as_bytes=True)) for tensor in inputs[0]]
                self._require_blocks("scatter", blocks, out)
                others = [(at, _copy_if_overlapping(block, out, -1)) for at, block in enumerate(blocks) if at != rank]
                out.copy_(blocks[rank])
                starts = [partial(self.comm.isend, as_array(block), at, LIST_TAG) for at, block in others]
            return self._start("scatter", starts, outputs, copies, opts, is_message=True)
        x = _copy_if_overlapping(copies.join_inputs(inputs[0]), out, root) if rank == root else None
        return self._start("scatter", [partial(self.comm.scatter, x, root, out=out)], outputs, copies, opts)

    def _require_blocks(self, name: str, blocks: Tensors, own: Any) -> None:
        """Raise BufferError unless the list `blocks` has one tensor per rank, each with as many elements as `own`."""
        sizes = [block.numel() for block in blocks]
        if sizes != [own.numel()] * self.comm.size:
            raise BufferError(
                f"{name}: the list has tensors of {sizes} elements; pass {self.comm.size} tensors of {own.numel()}, "
                "one for each rank"
            )

    def barrier(self, opts: Any = None) -> TorchWork:
        """Start a barrier; return its handle. Wait for its end unless `opts` are None or asynchronous. Collective."""
        copies = CopiesBack()
        copies.steps = (partial(get_completer().wait_for_dropped, self.comm),)
        return self._start("barrier", [self.comm.barrier], [], copies, opts)

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> TorchWork:
        """Start to send `tensors` to rank `dst` of the group; return a handle. The receiver passes the same `tag`."""
        _require_tag(tag)
        copies = CopiesBack()
        flat = [as_array(copies.prepare_input(tensor, as_bytes=True)) for tensor in list_plain(list_tensors(tensors))]
        starts: list[Start] = [partial(self.comm.isend, x, dst, tag) for x in flat]
        return self._start("send", starts, tensors, copies, None, is_message=True)

    def recv(self, tensors: Tensors, src: int | None, tag: int = 0) -> TorchWork:
        """Start to receive `tensors`, sent with `tag`, from rank `src` of the group (None: any); return a handle."""
        _require_tag(tag)
        copies = CopiesBack()
        flat = [as_array(copies.prepare_output(tensor, as_bytes=True)) for tensor in list_plain(list_tensors(tensors))]
        starts: list[Start] = [partial(self.comm.irecv, x, src, tag) for x in flat]
        return self._start("recv", starts, tensors, copies, None, is_message=True)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> TorchWork:
        """Start to receive `tensors`, sent with `tag`, from any rank; the handle's `source_rank` is the sender."""
        return self.recv(tensors, None, tag)

    def _start(
        self, name: str, starts: list[Start], result: Any, copies: CopiesBack, opts: Any, *, is_message: bool = False
    ) -> TorchWork:
        """Return the handle of an operation; run the operation at once unless it is asynchronous.

        Args:
            starts: functions that start the parts of the operation `name`, called in this order.
            result: the tensors that the handle gives as its result; `copies` copies results to the user's tensors.
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
        """Reset the number of collective operations to zero, as torch asks of a new group."""
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        """Return the number of collective operations so far, by which torch finds ranks that are behind."""
        return self._sequence

    def shutdown(self) -> None:
        """Destroy the group: close its communicator, or keep it if the group is unusable on some rank; collective."""
        if self.unusable != SHRUNK:
            with get_lock():
                close_communicator(self.comm, usable=not self.unusable)
        self.unusable = f"the group was destroyed; {NEW_GROUP}"

    def abort(self) -> None:
        """Refuse operations from now on; the communicator and operations in flight stay until the process ends."""
        self.unusable = self.unusable or f"the group was aborted; {NEW_GROUP}"


def _flatten(outputs: Sequence[Tensors]) -> Tensors:
    """Return the only inner list of `outputs`; an empty list if there is none, as on ranks without a result."""
    return outputs[0] if outputs else []


def _require_tag(tag: int) -> None:
    """Raise UsageError unless `tag` is from 0 to LIST_TAG - 1, the tags of users' messages."""
    if not 0 <= tag < LIST_TAG:
        raise UsageError(f"tag {tag} is not between 0 and {LIST_TAG - 1}")


def _is_long(x: Any) -> bool:
    """Whether scatter and gather send tensors as long as `x` one by one, without joining them."""
    return bool(x.is_cpu and x.nbytes >= LONG_BYTES)


def _copy_if_overlapping(x: Any, out: Any, block: int | None) -> Any:
    """Return the input `x`, or a copy of `x` if it overlaps the output `out` by the rule of `overlaps_wrongly`."""
    return x.clone() if overlaps_wrongly(x, out, block) else x


def _count_block_elements(sizes: Sequence[int], tensor: Any, flat: Any, n: int, name: str) -> list[int]:
    """Return the number of elements of each of `n` blocks of a tensor; raise BufferError if `sizes` do not match it.

    Args:
        sizes: the number of rows of each block; empty for equal blocks.
        tensor: the user's tensor.
        flat: the tensor that is communicated, which may consist of bytes.
        n: the number of ranks.
        name: the user's argument, for the error.
    """
    rows = tensor.shape[0] if tensor.dim() else 1
    given = list(sizes) or [rows // n] * n
    if len(given) != n or sum(given) != rows:
        raise BufferError(f"all_to_all_single: {name} is {given} for {rows} rows; pass {n} sizes whose sum is {rows}")
    width = flat.numel() // rows if rows else 0
    return [size * width for size in given]
