"""Records the collectives of DistributedDataParallel, which its class `Reducer` calls in C++.

The recorded `Reducer` gets a process group with the same backends, whose `allreduce` and `broadcast` are methods in
Python, so torch calls them instead of its own. These two methods call the recorded methods of the original group.

DistributedDataParallel waits for its reductions in a callback of the autograd engine, at the end of the backward pass.
The engine runs callbacks in the order in which they were queued, so two more callbacks enclose this wait.
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
from hpccoll.torch.compilation import exempt_from_compilation, exempt_functions

_NO_BACKWARD_PASS = -1
_COMPLETE_MORE = int(EntryFlag.COMPLETE | EntryFlag.MORE)


@exempt_from_compilation
class BackwardWaits:
    """Records the waits of torch's C++ code, at the end of a backward pass, for operations that began in this pass.

    Args:
        trace: the trace of this rank's calls, to which the waits are added.
        code: the index of `TorchWork.wait` in `list_methods`, by which the trace names a wait.
    """

    def __init__(self, trace: CallTrace, code: int) -> None:
        self._trace, self._code = trace, code
        # The keys are numbers of backward passes, because passes may be nested.
        # Torch's objects of operations are kept until the wait, because their addresses identify the requests.
        self._works: dict[int, list[Any]] = {}

    def add(self, work: Any) -> None:
        """Note an operation, torch's object `work`, that began in the current backward pass; else do nothing."""
        number = torch._C._current_graph_task_id()  # noqa: SLF001 - torch has no public name
        if number == _NO_BACKWARD_PASS:
            return
        works = self._works.get(number)
        if works is None:
            works = self._works[number] = []
            _queue_callback(partial(self._begin, number))
        works.append(work)

    def _begin(self, number: int) -> None:
        """Take the time before the wait of backward pass `number`, and let a callback take the time after the wait."""
        _queue_callback(partial(self._end, number, time.perf_counter_ns()))

    def _end(self, number: int, begin_ns: int) -> None:
        """Record the wait of backward pass `number`, from `begin_ns` to now, once per operation of the pass."""
        end_ns, flags, trace = time.perf_counter_ns(), int(EntryFlag.COMPLETE), self._trace
        for work in self._works.pop(number):
            trace.write(self._code, begin_ns, end_ns, 0, id(work), 0, NOT_GIVEN, 0, trace.last_site_id, flags)
            flags = _COMPLETE_MORE


@exempt_from_compilation
class ReducerGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group for torch's `Reducer`, which passes its collectives to the recorded methods of another group.

    Args:
        group: the process group of DistributedDataParallel.
        waits: takes the operations for which `Reducer` waits in C++.
    """

    def __init__(self, group: Any, waits: BackwardWaits) -> None:
        super().__init__(group.rank(), group.size())
        self._group, self._allreduce, self._add_wait = group, group.allreduce, waits.add
        for device in group._device_types:  # noqa: SLF001 - torch has no public name
            backend = group._get_backend(device)  # noqa: SLF001
            kind = getattr(dist.ProcessGroup.BackendType, backend.name().upper(), dist.ProcessGroup.BackendType.CUSTOM)
            self._register_backend(device, kind, backend)

    def allreduce(self, *args: Any) -> Any:
        """Start an all-reduce of the other group, with its arguments; return the operation that torch waits for."""
        work = self._allreduce(*args)
        self._add_wait(work)
        return work

    def broadcast(self, *args: Any) -> Any:
        """Carry out a broadcast of the other group, with its arguments; return the ended operation.

        `Reducer` waits for its broadcasts at once, in C++, where the wait would not be recorded.
        """
        work = self._group.broadcast(*args)
        work.wait()
        return work

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the name of the other group's backend."""
        return str(self._group.name())


def record_ddp(trace: CallTrace, wait_code: int) -> None:
    """Replace torch's class `Reducer`, so that the collectives of DistributedDataParallel in C++ are recorded.

    Args:
        trace: the trace of this rank's calls.
        wait_code: the index of `TorchWork.wait` in `list_methods`, by which the trace names a wait.
    """
    exempt_from_compilation(ProfileRecorder)
    waits, original = BackwardWaits(trace, wait_code), dist.Reducer

    @exempt_from_compilation
    class Reducer(original):  # type: ignore[misc, valid-type]
        """Torch's class, with a process group whose calls are recorded; an attribute keeps the group alive."""

        def __init__(self, parameters: Any, buckets: Any, limits: Any, group: Any, *args: Any, **kwargs: Any) -> None:
            self.group = group if _records_its_calls(group) else ReducerGroup(group, waits)
            super().__init__(parameters, buckets, limits, self.group, *args, **kwargs)

    dist.Reducer = Reducer
    original_future = vars(dist.Work)["get_future"]

    def get_future(self: Any) -> Any:  # torch must see this name in the stack, or it calls this function anew
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


def _queue_callback(function: Any) -> None:
    """Let torch's autograd engine call `function`, without arguments, at the end of the current backward pass."""
    torch.autograd.Variable._execution_engine.queue_callback(function)  # noqa: SLF001 - torch has no public name
