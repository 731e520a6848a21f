"""Check the kernel's clock source, `time.perf_counter_ns` and frequency scaling, which affect measured times."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.doctor.kernel_files import read_text

AREA = "clock"
_SLOW_SOURCES = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")
_CALLS = 20_000


def check_clock(root: Path = Path("/")) -> list[Finding]:
    """Return findings on the clock source, `time.perf_counter_ns` and the cores' frequency."""
    return [check_clock_source(root), check_perf_counter(), *check_frequency(root)]


def check_clock_source(root: Path) -> Finding:
    """Return a finding on the kernel's clock source, on which the cost of reading the time depends."""
    directory = root / "sys/devices/system/clocksource/clocksource0"
    current, offered = (read_text(directory / f"{name}_clocksource") for name in ("current", "available"))
    flags = _read_cpu_flags(root)
    steady = [name for name in ("constant_tsc", "nonstop_tsc") if name in flags]
    file = directory / "current_clocksource"
    evidence = f"{file}: {current}; available: {offered}; /proc/cpuinfo: {' '.join(steady)}"
    if current is None:
        return Finding(AREA, Severity.NOTE, "the kernel does not show its clock source", f"{directory} is missing")
    if current in _SLOW_SOURCES or (current == "xen" and "tsc" in (offered or "").split()):
        remedy = f"as root: echo tsc > {file} (if offered), or boot with tsc=reliable"
        found = f"the clock source is {current}: reading the time is slow, which distorts the times of short messages"
        return Finding(AREA, Severity.WARNING, found, evidence, remedy)
    if current == "tsc" and flags and len(steady) < 2:
        missing = " and ".join({"constant_tsc", "nonstop_tsc"} - set(steady))
        found = f"the clock source is the time-stamp counter, but the processor lacks {missing}"
        return Finding(AREA, Severity.WARNING, found, evidence, "boot with clocksource=hpet if times look wrong")
    return Finding(AREA, Severity.OK, f"clock source {current}", evidence)


def check_perf_counter() -> Finding:
    """Measure `time.perf_counter_ns`, the clock of all benchmarks; return a finding on its cost and resolution.

    The measurement takes a few milliseconds.
    """
    begin = time.perf_counter_ns()
    times = [time.perf_counter_ns() for _ in range(_CALLS)]
    cost_ns = (times[-1] - begin) / _CALLS
    step_ns = min((b - a for a, b in itertools.pairwise(times) if b > a), default=0)
    info = time.get_clock_info("perf_counter")
    measured = f"{cost_ns:.0f} ns per call, smallest step {step_ns} ns"
    evidence = f"{measured}, in {_CALLS} calls of {info.implementation}; stated resolution {info.resolution:g} s"
    if cost_ns > 1000 or step_ns > 1000:
        found = "time.perf_counter_ns costs or resolves more than a microsecond"
        remedy = "reading the clock is a system call here: see the finding on the clock source"
        return Finding(AREA, Severity.WARNING, found, evidence, remedy)
    return Finding(AREA, Severity.OK, "time.perf_counter_ns costs and resolves less than a microsecond", evidence)


def check_frequency(root: Path) -> list[Finding]:
    """Return findings on the frequency governor and turbo mode, which may change the cores' frequency at any time."""
    cpus = root / "sys/devices/system/cpu"
    governor = read_text(cpus / "cpu0/cpufreq/scaling_governor")
    no_turbo, boost = read_text(cpus / "intel_pstate/no_turbo"), read_text(cpus / "cpufreq/boost")
    if governor is None and no_turbo is None and boost is None:
        found = "the kernel does not show how it scales the cores' frequency"
        return [Finding(AREA, Severity.NOTE, found, f"{cpus}/cpu0/cpufreq is missing")]
    findings = []
    if governor is not None:
        steady = governor == "performance"
        remedy = "" if steady else "for measurements, as root: cpupower frequency-set -g performance"
        evidence = f"{cpus}/cpu0/cpufreq/scaling_governor: {governor}"
        severity = Severity.OK if steady else Severity.NOTE
        findings.append(Finding(AREA, severity, f"frequency governor {governor}", evidence, remedy))
    if no_turbo == "0" or boost == "1":
        name, value, off = ("intel_pstate/no_turbo", no_turbo, 1) if no_turbo == "0" else ("cpufreq/boost", boost, 0)
        remedy = f"for steady times, as root: echo {off} > {cpus}/{name}"
        found = "turbo is on: the frequency depends on the number of busy cores and their temperature"
        findings.append(Finding(AREA, Severity.NOTE, found, f"{cpus}/{name}: {value}", remedy))
    return findings


def _read_cpu_flags(root: Path) -> set[str]:
    """Return the processor's flags from proc/cpuinfo below `root`; an empty set if the file has no line `flags`."""
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()
