"""Check how fast the C library copies unaligned memory; MPI libraries and NumPy copy by its memmove."""

from __future__ import annotations

import ctypes
import time

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.units import GB, KiB

AREA = "copies"
SLOW_TIMES = 4.0  # unaligned copies that take more than this many times as long as aligned ones are a warning
_NBYTES, _PAGE, _OFFSET = 64 * KiB, 4096, 8
_REPEATS, _BEST_OF = 20, 10
REMEDY = (
    "GLIBC_TUNABLES=glibc.cpu.x86_rep_movsb_threshold=0x40000000 in the environment of the job, which makes glibc copy "
    "by vector instructions"
)


def check_copies() -> list[Finding]:
    """Return a list of one finding, on the speed of copies between different offsets in memory pages.

    On AMD processors (Zen 3 and 4), the instruction "rep movsb", by which glibc copies, takes up to 30 times as long if
    the target is a few bytes further in its page than the source. The measurement takes about a millisecond, 10 ms if
    the copies are slow.
    """
    return [judge_copies(*measure_copies())]


def judge_copies(equal_bytes_per_s: float, shifted_bytes_per_s: float) -> Finding:
    """Return the finding on the speeds of copies, as returned by `measure_copies`."""
    speeds = f"{equal_bytes_per_s / GB:.1f} GB/s; to a target 8 bytes further in its page: "
    evidence = f"memmove of 64 KiB: {speeds}{shifted_bytes_per_s / GB:.1f} GB/s"
    times = equal_bytes_per_s / shifted_bytes_per_s
    if times > SLOW_TIMES:
        found = f"the C library's memmove is {times:.0f} times as slow at some offsets of unaligned arrays"
        return Finding(AREA, Severity.WARNING, found, evidence, REMEDY)
    return Finding(AREA, Severity.OK, "the C library's memmove is as fast at all tested offsets", evidence)


def measure_copies() -> tuple[float, float]:
    """Return the bytes per second of a copy of 64 KiB between equal offsets in memory pages, and between unequal ones.

    With unequal offsets, the target is 8 bytes further in its page than the source.
    """
    memory = ctypes.create_string_buffer(2 * _NBYTES + 4 * _PAGE)
    source = -(-ctypes.addressof(memory) // _PAGE) * _PAGE
    target = source + _NBYTES + _PAGE
    equal_s, shifted_s = (min(_time_copy(target + offset, source) for _ in range(_BEST_OF)) for offset in (0, _OFFSET))
    return _NBYTES / equal_s, _NBYTES / shifted_s


def _time_copy(target: int, source: int) -> float:
    """Return the mean time of 20 copies of 64 KiB from the address `source` to the address `target`, in seconds."""
    begin = time.perf_counter()
    for _ in range(_REPEATS):
        ctypes.memmove(target, source, _NBYTES)
    return (time.perf_counter() - begin) / _REPEATS
