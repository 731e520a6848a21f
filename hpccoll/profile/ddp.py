"""Records the collectives of DistributedDataParallel, which its class `Reducer` calls in C++.

The recorded `Reducer` gets a process group with the same backends. Torch calls the Python attributes `allreduce` and
`broadcast` of this group instead of C++ functions, and these attributes call methods of the original process group or
of its backend.

DistributedDataParallel waits for its reductions in a callback of the autograd engine, at the end of the backward pass.
The engine runs callbacks in the order in which they were queued. To measure the time of the wait, this module queues
one callback before the callback that waits, and one after it.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from hpccoll.native import CallTrace, TracedCall, replace_attribute
from hpccoll.profile.layout import NOT_GIVEN, EntryFlag
from hpccoll.profile.recorder import ProfileRecorder, measure_buffer
from hpccoll.profile.traced_methods import CallForm
from hpccoll.torch.compilation import exempt_from_compilation, exempt_functions

_NO_BACKWARD_PASS = -1


@exempt_from_compilation
class BackwardWaits:
    """Records the waits of torch's C++ code, at the end of a backward pass, for operations that began in this pass.

    Args:
        trace: the trace of this rank's calls, to which the waits are added.
        code: the index of `TorchWork.wait` in `list_methods`, by which the trace names a wait.
    """

    def __init__(self, trace: CallTrace, code: int) -> None:
        self._trace, self._code = trace, code
        # The keys of `_works` are numbers of backward passes, because passes may be nested.
        # Torch's objects of operations (Work) are kept until the wait, because their addresses identify the requests.
        self._works: dict[int, list[Any]] = {}

    def add(self, work: Any) -> None:
        """Keep `work`, an operation of torch that has just begun, if a backward pass runs; otherwise do nothing."""
        number = torch._C._current_graph_task_id()  # noqa: SLF001 - torch has no public name
        if number == _NO_BACKWARD_PASS:
            return
        works = self._works.get(number)
        if works is None:
            works = self._works[number] = []
            _queue_callback(partial(self._begin, number))
        works.append(work)

    def _begin(self, number: int) -> None:
        """Read the clock before the wait of backward pass `number`; queue a callback that reads the clock after it."""
        _queue_callback(partial(self._end, number, time.perf_counter_ns()))

    def _end(self, number: int, begin_ns: int) -> None:
        """Record the wait of backward pass `number`, from `begin_ns` to now, once per operation of the pass."""
        self._trace.write_wait(self._code, begin_ns, time.perf_counter_ns(), self._works.pop(number))


@exempt_from_compilation
class ReducerGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group for torch's `Reducer` that passes collectives on to another group, and records all-reduces.

    The attribute `allreduce` starts and records an all-reduce of the group `group`.

    Args:
        group: the process group of DistributedDataParallel.
        owner: the group or its backend, whose method `allreduce` carries out the all-reduces.
        trace: the trace of this rank's calls.
        code: the index of `ProcessGroup.allreduce` in `list_methods`, by which the trace names an all-reduce.
        waits: records the waits of `Reducer` in C++ for the all-reduces.
    """

    def __init__(self, group: Any, owner: Any, trace: CallTrace, code: int, waits: BackwardWaits) -> None:
        super().__init__(group.rank(), group.size())
        self._group = group
        self.allreduce = TracedCall(
            trace, owner.allreduce, code, int(CallForm.START), int(EntryFlag.COLLECTIVE), NOT_GIVEN, 0, False, False,
            {"buffer": (0, None)}, group, waits.add,
        )  # fmt: skip
        for device in group._device_types:  # noqa: SLF001 - torch has no public name
            backend = group._get_backend(device)  # noqa: SLF001
            kind = getattr(dist.ProcessGroup.BackendType, backend.name().upper(), dist.ProcessGroup.BackendType.CUSTOM)
            self._register_backend(device, kind, backend)

    def broadcast(self, *args: Any) -> Any:
        """Carry out the broadcast of DistributedDataParallel's group; return the ended operation.

        `Reducer` waits for its broadcasts at once, in C++, where the wait would not be recorded.
        """
        work = self._group.broadcast(*args)
        work.wait()
        return work

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the name of the backend of DistributedDataParallel's group."""
        return str(self._group.name())


def record_ddp(trace: CallTrace, code: int, wait_code: int) -> None:
    """Replace torch's `Reducer` and `Work.get_future`, to record DistributedDataParallel's collectives in C++.

    Args:
        trace: the trace of this rank's calls.
        code: the index of `ProcessGroup.allreduce` in `list_methods`, by which the trace names an all-reduce.
        wait_code: the index of `TorchWork.wait` in `list_methods`, by which the trace names a wait.
    """
    exempt_from_compilation(ProfileRecorder)
    # Process groups are kept to the end of the program, because some recorded programs hung when a model was freed.
    # A possible cause is that the destructor of a Gloo group waits for its threads while it holds the GIL.
    # The threads of a Gloo group need the GIL to free a bucket that has become an object of Python.
    kept: list[Any] = []
    waits, original = BackwardWaits(trace, wait_code), dist.Reducer

    @exempt_from_compilation
    class Reducer(original):  # type: ignore[misc, valid-type]
        """Torch's `Reducer`, which communicates by a process group whose calls are recorded."""

        def __init__(self, parameters: Any, buckets: Any, limits: Any, group: Any, *args: Any, **kwargs: Any) -> None:
            kept.append(group)
            self.group = group
            if not _records_its_calls(group):
                self.group = ReducerGroup(group, _find_owner(group, parameters, args[0]), trace, code, waits)
            super().__init__(parameters, buckets, limits, self.group, *args, **kwargs)

    dist.Reducer = Reducer
    original_future = vars(dist.Work)["get_future"]

    def get_future(self: Any) -> Any:  # torch must see this name in the stack, or it calls this function anew
        """Return the future of an operation of torch; record its wait at the end of the backward pass."""
        waits.add(self)  # DistributedDataParallel takes the future of a communication hook's operation
        return original_future(self)

    get_future.__doc__ = original_future.__doc__
    exempt_functions([get_future, measure_buffer])
    replace_attribute(dist.Work, "get_future", get_future)


def _records_its_calls(group: Any) -> bool:
    """Whether the group or its backends are Python classes with recorded methods, as hpccoll's are."""
    if type(group) is not dist.ProcessGroup:
        return True
    backends = [group._get_backend(device) for device in group._device_types]  # noqa: SLF001 - torch has no public name
    return any(type(getattr(type(backend), "allreduce", None)) is TracedCall for backend in backends)


def _find_owner(group: Any, parameters: Any, are_sparse: Any) -> Any:
    """Return the backend of a group, or the group itself, whose method `allreduce` reduces the gradients of parameters.

    A call of the backend takes half as long as one of the group, which goes through torch's dispatcher to the backend.
    Only the group knows that NCCL reduces sparse gradients by a method of their own.

    Args:
        group: the process group of DistributedDataParallel.
        parameters: the parameters of the model, which are all on one type of device.
        are_sparse: whether the gradient of each parameter is sparse.
    """
    return group if any(are_sparse) else group._get_backend(parameters[0].device)  # noqa: SLF001 - no public name


def _queue_callback(function: Any) -> None:
    """Let torch's autograd engine call `function`, without arguments, at the end of the current backward pass."""
    torch.autograd.Variable._execution_engine.queue_callback(function)  # noqa: SLF001 - torch has no public name
