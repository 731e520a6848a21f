"""A simulated CUDA device: memory that ranks of a host share, streams that run late, events shared by processes.

The device follows CUDA's rules for fences and symmetric buffers. Work queued on a stream runs later, in order, in a
thread of the stream, while the host continues. Recording an event is queued. Waiting for an event queues a wait for its
latest record at the time of the call; without a record, the wait ends at once. A kernel's parameters are read when the
kernel is queued. Freed memory is overwritten, also for ranks that still map it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import queue
import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpccoll.arrays import DType
from hpccoll.arrays.interface import ExternalMemory
from hpccoll.arrays.numpy_arrays import NumPyModule
from hpccoll.runtime.cuda.kernels import THREADS, KernelSpec
from tests.unit.runtime.cuda.host_kernels import HostKernels, run

SPOILT = 0xDD
STUCK_S = 30.0  # after which a wait for an event gives up


class Mapping:
    """Bytes of a nameless file, by address; other processes of this host open them by a path."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        self.bytes = np.frombuffer(self.memory, np.uint8)
        self.address = int(self.bytes.__array_interface__["data"][0])

    @classmethod
    def new(cls, nbytes: int) -> Mapping:
        """Return a mapping of a new memfd of `nbytes` bytes."""
        descriptor = os.memfd_create("late", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, max(nbytes, 1))
        return cls(descriptor)

    @classmethod
    def opened(cls, handle: bytes) -> Mapping:
        """Return a mapping of another process's memory, given its handle."""
        return cls(os.open(handle.decode(), os.O_RDWR | os.O_CLOEXEC))

    @property
    def handle(self) -> bytes:
        """The path by which other processes of this host open the memory."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}".encode()

    def close(self) -> None:
        """Close the file descriptor; the mapping stays."""
        os.close(self.descriptor)


class Stream:
    """Runs queued steps in order, in a thread, after random delays."""

    def __init__(self, seed: int, lateness_s: float) -> None:
        self.lateness_s, self.failed = lateness_s, ""
        self._random = random.Random(seed)
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def runs_here(self) -> bool:
        """Whether the calling thread is the stream's own."""
        return threading.current_thread() is self._thread

    def put(self, step: Any) -> None:
        """Queue a step."""
        self._queue.put(step)

    def _run(self) -> None:
        """Run queued steps until None is queued; keep the first error."""
        while (step := self._queue.get()) is not None:
            if self.lateness_s:
                time.sleep(self._random.random() * self.lateness_s)
            try:
                step()
            except Exception as error:  # noqa: BLE001 - told by `synchronize`, in the test's own thread
                self.failed = self.failed or repr(error)

    def synchronize(self) -> None:
        """Block until all queued steps have run; fail if one of them failed."""
        done = threading.Event()
        self.put(done.set)
        assert done.wait(2 * STUCK_S), "the stream stands still"
        assert not self.failed, self.failed

    def end(self) -> None:
        """End the stream's thread after all queued steps."""
        self.put(None)
        self._thread.join()


@dataclass(frozen=True)
class Compiled:
    """A kernel's entry, and how many bytes its parameters are."""

    entry: Any
    nbytes: int


class LateDriver:
    """Replaces `CudaRuntime` by the simulated device. `log` lists the calls, for tests that count them."""

    processors = 2

    def __init__(self, rank: int, folder: Path, lateness_s: float = 1e-3) -> None:
        self.streams = {7: Stream(rank, lateness_s), 8: Stream(rank + 100, lateness_s)}
        self.current = 7
        self.kernels = HostKernels(folder)
        self.owned: dict[int, Mapping] = {}
        self.opened: dict[int, Mapping] = {}
        self.events: dict[int, Mapping] = {}
        self.log: list[str] = []
        self._made = 0

    def get_device_uuid(self) -> str:
        """Return the name of the only device."""
        return "late"

    def make_current(self) -> int:
        """Return 0, the number of the only device."""
        return 0

    def restore_current(self, device: int) -> None:
        """Check that `device` is 0, the only device."""
        assert device == 0

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory that other processes can map."""
        made = Mapping.new(nbytes)
        self.owned[made.address] = made
        return made.address

    def free(self, address: int) -> None:
        """Overwrite memory and close it, so that ranks that still map it read wrong values."""
        gone = self.owned.pop(address)
        gone.bytes[:] = SPOILT
        gone.close()

    def export_memory(self, address: int) -> bytes:
        """Return the handle by which other processes open memory."""
        return self.owned[address].handle

    def open_memory(self, handle: bytes) -> int:
        """Map another process's memory and return its address here."""
        made = Mapping.opened(handle)
        self.opened[made.address] = made
        return made.address

    def close_memory(self, address: int) -> None:
        """Close memory that `open_memory` returned."""
        self.opened.pop(address).close()

    def wrap_memory(self, address: int, nbytes: int, owner: object) -> Any:
        """Return an array of bytes over memory of this device; the array keeps `owner` alive."""
        return np.asarray(ExternalMemory("__array_interface__", address, nbytes, (owner, self.owned[address])))

    def create_event(self, *, shared: bool) -> int:  # noqa: ARG002 - all are
        """Return the number of a new event, which other processes can open."""
        return self._event(Mapping.new(16))

    def _event(self, words: Mapping) -> int:
        """Return the number of an event whose count of records is in `words`."""
        self._made += 1
        self.events[self._made] = words
        return self._made

    def export_event(self, event: int) -> bytes:
        """Return the handle by which other processes open an event."""
        return self.events[event].handle

    def open_event(self, handle: bytes) -> int:
        """Return the number of another process's event."""
        return self._event(Mapping.opened(handle))

    def destroy_event(self, event: int) -> None:
        """Overwrite and close the memory of an event."""
        gone = self.events.pop(event)
        gone.bytes[:] = SPOILT
        gone.close()

    def record_event(self, event: int, stream: int) -> None:
        """Queue the record of an event on a stream."""
        self.log.append("record")
        words = self.events[event].bytes.view(np.uint64)
        words[0] += 1
        number = int(words[0])
        self.streams[stream].put(lambda: words.__setitem__(1, max(int(words[1]), number)))

    def stream_wait_event(self, event: int, stream: int) -> None:
        """Queue a wait for the event's latest record at the time of this call."""
        self.log.append("wait")
        words = self.events[event].bytes.view(np.uint64)
        number, end = int(words[0]), time.monotonic() + STUCK_S

        def until() -> None:
            while int(words[1]) < number:
                assert time.monotonic() < end, "an event never came"
                time.sleep(5e-5)

        self.streams[stream].put(until)

    def synchronize(self) -> None:
        """Block until all streams have run their steps."""
        for stream in self.streams.values():
            if not stream.runs_here:  # the last array of a piece may be let go of by what the stream ran
                stream.synchronize()

    def compile_kernel(self, kernel: KernelSpec) -> Compiled:
        """Return a kernel compiled for the host."""
        return Compiled(self.kernels.compile_kernel(kernel), kernel.rows * kernel.chain.words * 8)

    def launch_kernel(self, function: Compiled, grid: tuple[int, int], parameters: int, stream: int) -> None:
        """Queue a kernel with a copy of its parameters."""
        self.log.append("launch")
        assert grid[0] * grid[1] * THREADS >= 1
        place = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))[0]
        words = np.frombuffer(ctypes.string_at(place, function.nbytes), np.uint64).copy()
        kept = np.array([words.ctypes.data], np.uint64), words
        self.streams[stream].put(lambda: run(function.entry, grid[1], int(kept[0].ctypes.data)))

    def end(self) -> None:
        """End both streams."""
        for stream in self.streams.values():
            stream.end()


class LateModule(NumPyModule):
    """The array module of the simulated device's memory; its operations are queued on the current stream."""

    name, on_device = "late", True

    def __init__(self, driver: LateDriver) -> None:
        super().__init__()
        self._driver = driver
        self._kept: list[Any] = []

    def empty(self, count: int, dtype: DType) -> Any:
        """Return a new array; as in CuPy's pool, freed memory is never given back, because queued work may use it."""
        self._kept.append(made := super().empty(count, dtype))
        return made

    def current_stream(self) -> tuple[int, object]:
        return self._driver.current, None

    def later(self, step: Any) -> Any:
        """Return a function that queues a step on the current stream."""
        return lambda: self._driver.streams[self._driver.current].put(step)

    def bind_reduce(self, function: Any, left: Any, right: Any, out: Any) -> Any:
        return self.later(super().bind_reduce(function, left, right, out))

    def bind_copy(self, out: Any, source: Any) -> Any:
        return self.later(super().bind_copy(out, source))

    def bind_scale(self, out: Any, source: Any, factor: Any, shape: tuple[int, ...]) -> Any:
        return self.later(super().bind_scale(out, source, factor, shape))

    def bind_divide(self, out: Any, divisor: int) -> Any:
        return self.later(super().bind_divide(out, divisor))

    def synchronize(self) -> None:
        self._driver.streams[self._driver.current].synchronize()
