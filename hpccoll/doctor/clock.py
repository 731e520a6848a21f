"""Clocks and frequencies: what makes times comparable, and what makes them jump."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.doctor.kernel_files import text

AREA = "clock"
_SLOW = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")
_CALLS = 20_000


def examine(root: Path = Path("/")) -> list[Finding]:
    """Return findings on the kernel's clock, on `time.perf_counter`, and on the cores' frequency."""
    return [source(root), perf_counter(), *frequency(root)]


def source(root: Path) -> Finding:
    """Judge the clock source: reading the time-stamp counter takes nanoseconds, a timer chip a microsecond."""
    where = root / "sys/devices/system/clocksource/clocksource0"
    current, offered = (text(where / f"{name}_clocksource") for name in ("current", "available"))
    flags = _flags(root)
    steady = [name for name in ("constant_tsc", "nonstop_tsc") if name in flags]
    evidence = f"{where / 'current_clocksource'}: {current}; available: {offered}; /proc/cpuinfo: {' '.join(steady)}"
    if current is None:
        return Finding(AREA, Severity.NOTE, "the kernel's clock source is not shown here", f"{where} is missing")
    if current in _SLOW or (current == "xen" and "tsc" in (offered or "").split()):
        remedy = (
            "as root: echo tsc > " + str(where / "current_clocksource") + " (if offered), or boot with tsc=reliable"
        )
        found = f"the clock source is {current}: reading the time is slow, and short messages are timed wrongly"
        return Finding(AREA, Severity.WARNING, found, evidence, remedy)
    if current == "tsc" and flags and len(steady) < 2:
        missing = " and ".join({"constant_tsc", "nonstop_tsc"} - set(steady))
        found = f"the time-stamp counter is the clock, but the processor does not promise {missing}"
        return Finding(AREA, Severity.WARNING, found, evidence, "boot with clocksource=hpet if times look wrong")
    return Finding(AREA, Severity.OK, f"clock source {current}", evidence)


def perf_counter() -> Finding:
    """Measure what `time.perf_counter_ns`, which times are taken with, resolves and costs."""
    begin = time.perf_counter_ns()
    times = [time.perf_counter_ns() for _ in range(_CALLS)]
    cost_ns = (times[-1] - begin) / _CALLS
    step_ns = min((b - a for a, b in itertools.pairwise(times) if b > a), default=0)
    info = time.get_clock_info("perf_counter")
    measured = f"{cost_ns:.0f} ns a call, smallest step seen {step_ns} ns"
    evidence = f"{measured}, in {_CALLS} calls of {info.implementation}; resolution as stated {info.resolution:g} s"
    severe = cost_ns > 1000 or step_ns > 1000
    found = "time.perf_counter_ns costs and resolves " + (
        "more than a microsecond" if severe else "less than a microsecond"
    )
    remedy = "the kernel's clock is read by a system call: see the clock source above" if severe else ""
    return Finding(AREA, Severity.WARNING if severe else Severity.OK, found, evidence, remedy)


def frequency(root: Path) -> list[Finding]:
    """Judge what lets the cores' frequency change while something is measured."""
    cpus = root / "sys/devices/system/cpu"
    governor = text(cpus / "cpu0/cpufreq/scaling_governor")
    no_turbo, boost = text(cpus / "intel_pstate/no_turbo"), text(cpus / "cpufreq/boost")
    if governor is None and no_turbo is None and boost is None:
        evidence = f"{cpus}/cpu0/cpufreq is missing"
        return [Finding(AREA, Severity.NOTE, "how the cores' frequency is governed is not shown here", evidence)]
    found = []
    if governor is not None:
        calm = governor == "performance"
        remedy = "" if calm else "for measurements, as root: cpupower frequency-set -g performance"
        evidence = f"{cpus}/cpu0/cpufreq/scaling_governor: {governor}"
        severity = Severity.OK if calm else Severity.NOTE
        found.append(Finding(AREA, severity, f"frequency governor {governor}", evidence, remedy))
    if no_turbo == "0" or boost == "1":
        which = ("intel_pstate/no_turbo", no_turbo, "1") if no_turbo == "0" else ("cpufreq/boost", boost, "0")
        remedy = f"for steady times, as root: echo {which[2]} > {cpus}/{which[0]}"
        text_ = "turbo is on: the frequency depends on how many cores work and how warm they are"
        found.append(Finding(AREA, Severity.NOTE, text_, f"{cpus}/{which[0]}: {which[1]}", remedy))
    return found


def _flags(root: Path) -> set[str]:
    for line in (text(root / "proc/cpuinfo") or "").splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()
