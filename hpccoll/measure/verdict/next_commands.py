"""The commands that a user may run after a benchmark, with those of the user's own options that they share."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence

from hpccoll.measure.results.measured_case import MeasuredCase
from hpccoll.measure.verdict.trust import RunConditions, is_uncertain
from hpccoll.selection import BufferKind
from hpccoll.units import format_size

MOST = 3  # commands
_MAX_LISTED = 3  # message sizes
_TUNE_OPTIONS = ("-b", "-e", "-f", "-d")  # the options of `hpccoll bench` with the same meaning in `hpccoll tune`
_FIXED_ITERATIONS = ("-n", "--budget")  # options that limit the iterations, and so the precision
_ALL = "all"  # the value of --algorithm that stands for all algorithms


def list_next_commands(cases: Sequence[MeasuredCase], conditions: RunConditions) -> list[str]:
    """Return up to three commands that the user may type next, each with its purpose.

    The commands repeat the options of the benchmark, such as sizes and dtype, that matter to them.
    """
    rows = [row for case in cases for row in case.rows]
    ranks, ops = rows[0].ranks, " ".join(dict.fromkeys(case.setting.op for case in cases))
    improvable = [case for case in cases if case.can_tuning_help]
    commands = []
    if conditions.oversubscribed and conditions.cores and set(conditions.cores) != {1}:
        command = _format_bench(ops, max(conditions.cores), conditions.options)
        commands.append(f"for times of one rank per core: {command}")
    if ranks == 1:
        commands.append(f"for times of several ranks: {_format_bench(ops, 4, conditions.options)}")
    elif improvable:
        slower = [format_size(case.nbytes) for case in improvable]
        sizes = ", ".join(dict.fromkeys(slower)) if len(slower) <= _MAX_LISTED else f"{len(slower)} sizes"
        tune = f"mpirun -n {ranks} hpccoll tune {ops}{format_words(conditions.options, only=_TUNE_OPTIONS)}"
        if any(case.setting.buffer == BufferKind.CUDA for case in improvable):
            tune += f" --buffer {','.join(dict.fromkeys(case.setting.buffer for case in improvable))}"
        commands.append(f"so that later runs of auto take the fastest at {sizes}: {tune}")
    elif sum(map(is_uncertain, rows)) > len(rows) / 4:
        command = _format_bench(ops, ranks, conditions.options, without=_FIXED_ITERATIONS)
        commands.append(f"for narrower intervals: {command} --budget 3")
    has_all = "--full" in conditions.options or _ALL in conditions.options.get("--algorithm", "").split(",")
    if not conditions.results and not has_all:
        command = _format_bench(ops, ranks, conditions.options, without=("--algorithm",))
        commands.append(f"for all algorithms: {command} --full")
    elif conditions.results and not conditions.has_report:
        commands.append(f"for curves and findings: hpccoll report {shlex.quote(conditions.results)} -o report.html")
    return commands[:MOST]


def _format_bench(ops: str, ranks: int, options: Mapping[str, str], without: Collection[str] = ()) -> str:
    """Return a command that benchmarks the operations `ops` on so many ranks with `options`, except `without`.

    A root that is not a rank of the job is left out as well.
    """
    root = options.get("-r", "")
    left_out = {*without, *(["-r"] if root.isdecimal() and int(root) >= ranks else [])}
    kept = {name: value for name, value in options.items() if name not in left_out}
    return f"mpirun -n {ranks} hpccoll bench {ops}{format_words(kept)}"


def format_words(options: Mapping[str, str], only: Collection[str] | None = None) -> str:
    """Return options as the user types them, each after a blank, such as ` -b 8 --full`; "" without options.

    Args:
        options: maps the name of each option to its value; a flag has the value "".
        only: the names of the options to return; None stands for all.
    """
    words = [(name, value) for name, value in options.items() if only is None or name in only]
    return "".join(f" {name} {shlex.quote(value)}" if value else f" {name}" for name, value in words)
