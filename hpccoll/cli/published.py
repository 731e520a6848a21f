"""Published schedules in `hpccoll verify`: one line per file, and the reason for each file that is refused.

With --json, the command writes one `PublishedScheduleRecord` per file.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import PurePath

from hpccoll.algorithms.plan_files import PublishedVerdict, is_published_file, judge_published
from hpccoll.cli.network_options import load_network
from hpccoll.cli.output import STDOUT, is_printing_rank, list_given_options, print_table, print_text
from hpccoll.cli.progress import show_progress
from hpccoll.cli.run_record import open_serial_output
from hpccoll.errors import HpccollError, UsageError
from hpccoll.plan import Operation
from hpccoll.plan.published.block_program import BlockProgram
from hpccoll.plan.published.proof import MOST_BUFFERED, count_traffic
from hpccoll.records import PublishedScheduleRecord
from hpccoll.units import format_count

NBYTES = 2**30  # of the long message for which the share of the optimum is stated
COLUMNS = ("file", "tool", "operation", "ranks", "verdict", "buffers", "chunks moved", "redundant", "plan", "s")


def are_published(names: Sequence[str]) -> bool:
    """Whether `names` are files with schedules of other tools (MSCCL, TACCL); raise UsageError if only some are."""
    published = [name for name in names if is_published_file(name)]
    if published and len(published) < len(names):
        other = next(name for name in names if name not in published)
        raise UsageError(f"{published[0]} is a published schedule, and {other} is none; use two commands")
    if published and (unused := list_given_options("ranks")):
        raise UsageError(
            f"the file of a published schedule states the number of ranks; leave {' and '.join(unused)} out"
        )
    return bool(published)


def verify_published(paths: Sequence[str], buffered: int | None, machine: str | None, json_file: str | None) -> None:
    """Prove the schedules in files of other tools, write records, print a table; raise HpccollError if one is wrong.

    Args:
        buffered: refuse a schedule that deadlocks with this number of buffered messages per link; None skips this test.
        machine: the value of --machine: the network with whose optimum correct schedules are compared; None without
            --machine.
    """
    if not is_printing_rank():
        return
    verdicts, comparisons = [], []
    with open_serial_output(json_file) as lines, show_progress("proven", len(paths)) as advance:
        for path in paths:
            start = time.perf_counter()
            verdict = judge_published(path, buffered)
            seconds, share = time.perf_counter() - start, None
            if machine is not None:
                share, text = _compare_with_optimum(verdict, machine)
                comparisons.append(text)
            record = _make_record(verdict, seconds, share)
            verdicts.append((verdict, record))
            lines.write(record.as_dict())
            advance(PurePath(path).name)
    if json_file != STDOUT:
        _print_verdicts(verdicts)
        print_text("\n".join(comparisons))
    failures = [f"{verdict.path}: {verdict.failure}" for verdict, _ in verdicts if verdict.failure is not None]
    if failures:
        head = f"{format_count(len(failures), 'schedule')} of {len(verdicts)} refused:\n"
        raise HpccollError(head + "\n".join(failures))


def _compare_with_optimum(verdict: PublishedVerdict, machine: str) -> tuple[float | None, str]:
    """Return the largest fraction of a network's optimal bandwidth that a schedule can reach, and a sentence about it.

    The fraction compares the schedule's busiest link with the links that limit every schedule on the network; it is
    None for a wrong schedule, or if the optimum is unknown. `machine` is the value of --machine.
    """
    from hpccoll.synthesis.optimum import RULED, compute_optimum
    from hpccoll.synthesis.traffic import find_busiest_link

    program, proof = verdict.program, verdict.proof
    if program is None or proof is None:
        return None, f"{verdict.path}: not compared with the optimum, because it is wrong"
    if program.operation not in RULED:
        return None, f"{verdict.path}: no optimum of {program.operation.value} is known"
    network = load_network(machine, program.ranks)
    optimum = compute_optimum(network, program.operation, _find_root(program))
    seconds_per_byte, link = find_busiest_link(network, count_traffic(program, proof.executed))
    busiest = " to ".join(network.vertices[vertex] for vertex in link)
    share = optimum.describe_share(float(seconds_per_byte * NBYTES), NBYTES)
    text = f"{verdict.path}: long messages reach at most {share}; the schedule's busiest link leads from {busiest}"
    return float(optimum.seconds_per_byte / seconds_per_byte), text


def _find_root(program: BlockProgram) -> int:
    """Return the root of a broadcast or reduce: the rank that has the input, or needs the output; 0 for other plans."""
    cells = program.outputs if program.operation is Operation.REDUCE else program.inputs
    return min(cell[0] for cell in cells)


def _make_record(verdict: PublishedVerdict, seconds: float, share: float | None) -> PublishedScheduleRecord:
    """Return the record about one file.

    Args:
        verdict: the schedule in the file with its proof, or the reason why the schedule is wrong.
        seconds: the time of the proof.
        share: the largest fraction of the network's optimal bandwidth that the schedule can reach; None if unknown.
    """
    program, proof, plan = verdict.program, verdict.proof, verdict.plan_proof
    return PublishedScheduleRecord(
        command="verify",
        file=verdict.path,
        proven=verdict.failure is None,
        failure=verdict.failure,
        tool=program.tool if program else None,
        op=program.operation.value if program else None,
        ranks=program.ranks if program else None,
        chunks=program.chunks if program else None,
        buffered=proof.buffered if proof else None,
        transfers=proof.transfers if proof else None,
        redundant=proof.redundant if proof else None,
        rounds=plan.rounds if plan else None,
        sent_most=float(plan.cost.most) if plan else None,
        no_plan=verdict.no_plan,
        seconds=round(seconds, 6),
        optimum_share=share,
    )


def _print_verdicts(verdicts: Sequence[tuple[PublishedVerdict, PublishedScheduleRecord]]) -> None:
    """Print a table with one row per file, and why some correct schedules have no plan."""
    rows = []
    for verdict, record in verdicts:
        buffers = (
            "-" if record.transfers is None else f">{MOST_BUFFERED}" if record.buffered is None else record.buffered
        )
        plan = "-" if record.rounds is None else f"{record.rounds} rounds"
        cells = (record.tool, record.op, record.ranks, "right" if record.proven else "WRONG", buffers)
        counts = (record.transfers, record.redundant, plan, f"{record.seconds:.2f}")
        rows.append([verdict.path, *("-" if cell is None else str(cell) for cell in (*cells, *counts))])
    print_table("Published schedules", COLUMNS, rows, numbers=(COLUMNS[3], *COLUMNS[5:8], "s"), drops=("s", "tool"))
    print_text(
        "buffers: the least number of buffered messages per link without a deadlock; redundant: chunks that the "
        "receiver already has or never uses; plan: if there is one, simulate, draw, export and bench take the file"
    )
    for verdict, _ in verdicts:
        if verdict.no_plan is not None:
            print_text(f"{verdict.path} is right, but has no plan: {verdict.no_plan}")
