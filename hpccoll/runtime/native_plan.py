"""Plans that C code runs: their programs, and the base class of the executables that run them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence

import numpy as np

from hpccoll.arrays.host_reducers import make_reducer
from hpccoll.lowering.native_rows import RESULT, TILE_BYTES, Row, divide_row
from hpccoll.native import Program
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.plan_executable import PlanContext, PlanExecutable
from hpccoll.runtime.progress import InFlight


def make_program(
    context: PlanContext,
    call: CollectiveCall,
    rows: list[Row],
    scratch: int,
    shared: Sequence[int] = (),
    *,
    divides: bool,
    bounce: int = -1,
    requests: int | None = None,
) -> Program:
    """Return a `Program` of the native extension, which runs rows of instructions for calls like `call`.

    Args:
        rows: the instructions, as hpccoll/lowering/native_rows.py makes them.
        scratch: bytes of scratch memory.
        shared: bytes of each memory that other ranks own or access.
        divides: whether the program divides the result, if the reduction is `avg`.
        bounce: the offset in scratch memory of a buffer for copies from other processes; negative if there is none.
        requests: the number of MPI requests that the messages need; None for a program without messages.
    """
    ranks, result, divider = context.size, call.nbytes[RESULT], None
    if divides and call.reduction.divides and result:
        rows = [*rows, divide_row(result)]
        divider = make_reducer("divide", call.dtype, ranks)
    reducer = make_reducer(call.reduction.function, call.dtype) if call.operation.reduces else None
    words, limits = np.array(rows, np.int64).reshape(-1, 8), np.array([*call.nbytes, scratch, *shared], np.int64)
    messages = (0, 0) if requests is None else (requests, ranks)
    return Program(words, limits, reducer, divider, TILE_BYTES, bounce, *messages)


class NativeExecutable(PlanExecutable):
    """The base class of executables whose plans run in native code, on the addresses of input and output."""

    __slots__ = ("_addresses", "_earlier", "_native")

    def __init__(self, context: PlanContext, call: CollectiveCall) -> None:
        super().__init__(context, call)
        self._after = ()  # the native code divides
        self._addresses = self._call.addresses
        self._native: Callable[[int, int], object] | None = None
        self._earlier: Collection[InFlight] = ()  # asynchronous runs that a blocking run waits for

    def get_native(self) -> Callable[[int, int], object] | None:
        """Return a function that runs this plan on the addresses of other arrays in memory of the same kind.

        Return None if there is local work before the plan.
        """
        if self._before:
            return None
        return self._find_native() if self._native is None else self._native

    @abstractmethod
    def _find_native(self) -> Callable[[int, int], object]:
        """Return the function that runs the plan on the addresses of an input and an output."""

    @abstractmethod
    def make_start(self) -> Callable[[int, int, object], InFlight]:
        """Return a function that starts a run on the addresses of an input and output in memory of the same kind.

        The function returns the run in flight. The function's third argument is an object that is kept alive until the
        end of the run.
        """

    def run(self) -> None:
        """Run the collective once, and block until this rank's part of it is complete."""
        if not self.live:
            self._require_live()
        if self._earlier:
            self._context.progress.sleep_until(lambda: not self._earlier)
        for step in self._before:
            step()
        if self._native is None:
            self._native = self._find_native()
        self._native(*self._addresses)

    def start(self) -> InFlight:
        """Start a run on this executable's buffers; return the operation in flight, which keeps the buffers alive."""
        self._require_live()
        return self.make_start()(*self._addresses, self._call)

    def free(self) -> None:
        """Free the executable, but let a run in flight go on; a later run raises UsageError."""
        super().free()
        self._native = None
