"""`hpccoll verify`: proves every registered plan for every rank count in a range, on all cores.

Each algorithm is proven with roots 0, 1, n/2 and n-1 where it has one, in 1, 2, 3 and 8 chunks where it is pipelined
(1 and 3 where it also depends on nodes, of which it gets several layouts), for 0, 1, n-1, 7 and 1,000,003 elements.
The record of kind `plan`, one an algorithm and rank count: `command` ("verify"), `op`, `algorithm`, `ranks`, `plans`
(roots times chunk counts times layouts of nodes), `proven` (true or false), `failures` (messages), `rounds`, `steps`,
`messages` and `sent_mean`, `sent_most` (what a rank sends, in multiples of nccl-tests' S, mean and maximum over ranks),
these five of the last variant that was proven and null where none was, and `seconds`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import get_context
from typing import Any

import click

from hpccoll.algorithms import Algorithm, get_algorithm, list_algorithms, loader
from hpccoll.cli.output import SCHEMA, STDOUT, is_printing_rank, open_json_lines, print_table
from hpccoll.cli.progress import show_progress
from hpccoll.cli.run_record import make_serial_run_record
from hpccoll.errors import HpccollError, PlanError, UnknownNameError
from hpccoll.plan import Nodes, Operation, Proof
from hpccoll.units import parse_range

CHUNKS, FEW_CHUNKS = (1, 2, 3, 8), (1, 3)
PORTION = 16  # tasks that a worker takes at once
ALONE = 200  # tasks up to which starting workers takes longer than the work


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What was found of one algorithm on one number of ranks; the fields are those of the record."""

    op: str
    algorithm: str
    ranks: int
    plans: int
    proven: bool
    failures: tuple[str, ...]
    rounds: int | None
    steps: int | None
    messages: int | None
    sent_mean: float | None
    sent_most: float | None
    seconds: float

    def record(self) -> dict[str, Any]:
        """Return the record of kind `plan`."""
        return {"schema": SCHEMA, "kind": "plan", "command": "verify", **asdict(self)}


def list_variants(algorithm: Algorithm, ranks: int) -> Iterator[tuple[int, int, Nodes]]:
    """Yield the (root, chunks, nodes) that are proven; those that the algorithm does not take are 0, 1 and None."""
    roots = sorted({0, min(1, ranks - 1), ranks // 2, ranks - 1}) if "root" in algorithm.parameters else [0]
    on_nodes = "nodes" in algorithm.parameters
    chunks = (FEW_CHUNKS if on_nodes else CHUNKS) if "chunks" in algorithm.parameters else (1,)
    return product(roots, chunks, list_node_layouts(ranks) if on_nodes else [None])


def list_node_layouts(ranks: int) -> list[Nodes]:
    """Return nodes to prove: one; of equal size; of 6 and a rest; one rank and all others; dealt out to three."""
    size = next((size for size in (4, 3, 2, 5, 7) if ranks % size == 0 and ranks > size), ranks)
    whole, rest = divmod(ranks, 6)
    layouts: list[Nodes] = [None, (size,) * (ranks // size)]
    layouts += [(6,) * whole + (rest,)] if whole and rest else []
    layouts += [(1, ranks - 1)] if ranks > 2 else []
    layouts += [tuple(tuple(range(first, ranks, 3)) for first in range(3))] if ranks > 3 else []
    return list(dict.fromkeys(layouts))


def prove_variants(algorithm: Algorithm, ranks: int) -> VerifyResult:
    """Prove all variants of `algorithm` on `ranks` ranks."""
    start, failures, plans = time.perf_counter(), [], 0
    proof: Proof | None = None
    for root, chunks, nodes in list_variants(algorithm, ranks):
        plans += 1
        variant = f"root {root}, {chunks} chunks" + (f", nodes {nodes}" if nodes is not None else "")
        try:
            proof = loader.prove_algorithm(algorithm, ranks, root, chunks, (0, 1, ranks - 1, 7, 1_000_003), nodes)
        except PlanError as error:
            failures.append(f"{variant}: {error}")
        except Exception as error:  # noqa: BLE001 - an algorithm that raises is wrong too, and the others are still due
            what = f"{algorithm.full_name} on {ranks} ranks raised {type(error).__name__}: {error}"
            failures.append(f"{variant}: {what}")
    return VerifyResult(
        op=algorithm.operation.value,
        algorithm=algorithm.name,
        ranks=ranks,
        plans=plans,
        proven=not failures,
        failures=tuple(failures),
        rounds=proof.rounds if proof else None,
        steps=proof.cost.steps if proof else None,
        messages=proof.messages if proof else None,
        sent_mean=float(proof.cost.mean) if proof else None,
        sent_most=float(proof.cost.most) if proof else None,
        seconds=round(time.perf_counter() - start, 6),
    )


def resolve_algorithms(names: Sequence[str]) -> list[Algorithm]:
    """Return the algorithms that `names` mean: `operation/algorithm`, an operation for all of its, `FILE.py:FUNCTION`.

    Raises:
        UnknownNameError: lists the valid names.
        UsageError, PlanError: a user's file is not there, or raises.
    """
    if not names:
        return list_algorithms()
    found: dict[str, Algorithm] = {}
    for name in names:
        if loader.is_file_reference(name):
            own = loader.load_algorithm(name)
            found[own.full_name] = own
            continue
        of, slash, wanted = name.partition("/")
        known = {op.value for op in Operation}
        if of not in known:
            raise UnknownNameError("operation", of, sorted(known))
        operation = Operation.from_name(of)
        mine = (
            [get_algorithm(operation, wanted)]
            if slash
            else [each for each in list_algorithms() if each.operation is operation]
        )
        found |= {each.full_name: each for each in mine}
    return list(found.values())


def _portion(tasks: list[tuple[str, int]]) -> list[VerifyResult]:
    """Prove a portion in a worker; algorithms travel by name, since their functions may not be pickled."""
    return [prove_variants(resolve_algorithms([name])[0], ranks) for name, ranks in tasks]


def prove_all(algorithms: Sequence[Algorithm], ranks: Sequence[int], done: Callable[[VerifyResult], None]) -> None:
    """Prove every algorithm on every rank count, on all cores, and hand each verdict to `done` as it comes."""
    tasks = [(each, n) for n in sorted(ranks, reverse=True) for each in algorithms]
    cores = len(os.sched_getaffinity(0))
    alone = any(loader.is_user_defined(each) for each in algorithms)  # workers do not know what was loaded here
    if alone or cores == 1 or sum(n for _, n in tasks) <= ALONE * len(algorithms):
        for each, n in tasks:
            done(prove_variants(each, n))
        return
    # Dealt like cards, the largest first, so that every portion holds as much work as the next.
    hands = max(cores, len(tasks) // PORTION)
    portions = [[(each.full_name, n) for each, n in tasks[first::hands]] for first in range(hands)]
    # Spawned, not forked: the progress bar has a thread, and a fork of it could inherit a held lock.
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        try:
            for future in as_completed([pool.submit(_portion, portion) for portion in portions]):
                for verdict in future.result():
                    done(verdict)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _show(algorithms: Sequence[Algorithm], verdicts: Sequence[VerifyResult]) -> None:
    columns = ("algorithm", "proven", "steps", "mean", "most", "cpu s", "stated cost")
    rows = []
    for each in algorithms:
        mine = [v for v in verdicts if (v.op, v.algorithm) == (each.operation.value, each.name)]
        if not mine:
            continue
        last = max(mine, key=lambda verdict: verdict.ranks)
        plans = sum(v.plans for v in mine)
        wrong = sum(len(v.failures) for v in mine)
        found = (f"{value:.6g}" if value is not None else "-" for value in (last.steps, last.sent_mean, last.sent_most))
        proven, seconds = f"{plans - wrong}/{plans}", f"{sum(v.seconds for v in mine):.2f}"
        formula = (each.cost.__doc__ or "").split("\n", 1)[0]
        rows.append((each.full_name, proven, *found, seconds, formula))
    most = max((verdict.ranks for verdict in verdicts), default=0)
    title = f"Plans proven; steps, and what a rank sends (mean and most, in multiples of S), on {most} ranks"
    print_table(title, columns, rows, numbers=columns[1:6])


@click.command(epilog="Example: hpccoll verify all_reduce/ring broadcast --ranks 2:256 --json proofs.jsonl")
@click.argument("names", nargs=-1, metavar="[OP/ALGORITHM | FILE.py:FUNCTION]...")
@click.option("--ranks", default="1:32", show_default=True, metavar="N|FIRST:LAST", help="Rank counts to prove.")
@click.option("--json", "target", metavar="FILE", help="Write one JSON record a line; - for standard output.")
def verify(names: tuple[str, ...], ranks: str, target: str | None) -> None:
    """Prove plans: each contribution arrives exactly once, in one order, and nothing can deadlock.

    Without a name all plans are proven; OP alone means all algorithms of an operation; FILE.py:FUNCTION is one of your
    own. Each plan is proven for every rank count in the range, with roots 0, 1, n/2 and n-1, in 1, 2, 3 and 8 chunks,
    and for uneven layouts.
    """
    algorithms, counts = resolve_algorithms(names), parse_range(ranks)
    if not is_printing_rank():
        return
    verdicts: list[VerifyResult] = []
    with open_json_lines(target) as lines, show_progress("proven", len(algorithms) * len(counts)) as advance:
        if target is not None:
            lines.write(make_serial_run_record())

        def done(verdict: VerifyResult) -> None:
            verdicts.append(verdict)
            lines.write(verdict.record())
            advance(f"{verdict.op}/{verdict.algorithm}")

        prove_all(algorithms, counts, done)
    if target != STDOUT:
        _show(algorithms, verdicts)
    failures = [failure for verdict in sorted(verdicts, key=lambda v: v.ranks) for failure in verdict.failures]
    if failures:
        raise HpccollError(f"{len(failures)} plans are wrong:\n" + "\n".join(failures))
