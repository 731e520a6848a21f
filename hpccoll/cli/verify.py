"""`hpccoll verify`: proves plans for every rank count in a range, on all cores.

Each algorithm is proven for every variant of root, chunk count and node layout that `list_variants` returns, and for 0,
1, 7, 1,000,003 and (number of ranks - 1) elements. Plans that move a block per rank are also proven for blocks of
random, different sizes (`draw_block_sizes`), except plans that `draw_block_sizes` excludes. With --json, the command
writes one `ProvenPlanRecord` per algorithm and rank count, with the costs of the last variant that was proven.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import groupby, product
from multiprocessing import active_children, get_context, parent_process, resource_tracker
from signal import SIG_BLOCK, SIG_UNBLOCK, SIGINT, pthread_sigmask
from threading import Thread

import click
import numpy as np

from hpccoll.algorithms import Algorithm, get_algorithm, list_algorithms, loader
from hpccoll.cli.completion import complete_plans
from hpccoll.cli.network_options import NETWORK_KINDS
from hpccoll.cli.output import STDOUT, is_printing_rank, json_option, print_table
from hpccoll.cli.progress import show_progress
from hpccoll.cli.published import are_published, verify_published
from hpccoll.cli.run_record import open_serial_output
from hpccoll.cli.schedules import ScheduleOptions, add_schedule_options, are_schedules, run_cases
from hpccoll.errors import HpccollError, PlanError, UnknownNameError, UsageError, find_similar_names
from hpccoll.plan import Count, Groups, Nodes, Operation, Proof, check_survival
from hpccoll.records import ProvenPlanRecord
from hpccoll.schedules import list_schedule_names
from hpccoll.units import format_count, parse_rank_counts

DEFAULT_RANKS = "1:32"
CHUNK_COUNTS = (1, 2, 3, 8)
FEW_CHUNK_COUNTS = (1, 3)  # for algorithms that are proven on several node layouts as well
TASKS_PER_BATCH = 16  # tasks that a worker process takes at once
MAX_SERIAL_RANKS = 200  # sum of the rank counts up to which worker processes cost more time than they save


def list_variants(algorithm: Algorithm, ranks: int) -> Iterator[tuple[int, int, Nodes]]:
    """Yield the triples (root, number of chunks, layout of ranks on nodes) for which an algorithm is proven.

    If `algorithm` has no parameter `root`, `chunks` or `nodes`, the triples have 0, 1 or None in its place.
    """
    roots = sorted({0, min(1, ranks - 1), ranks // 2, ranks - 1}) if "root" in algorithm.parameters else [0]
    if algorithm.file_plan is not None:
        roots = [algorithm.file_plan.root]
    takes_nodes = "nodes" in algorithm.parameters
    chunk_counts = (FEW_CHUNK_COUNTS if takes_nodes else CHUNK_COUNTS) if "chunks" in algorithm.parameters else (1,)
    return product(roots, chunk_counts, list_node_layouts(ranks).values() if takes_nodes else [None])


def draw_block_sizes(algorithm: Algorithm, ranks: int) -> tuple[Count, ...]:
    """Return two lists of block sizes in elements: sizes from 0 to 3, and large sizes that are all different.

    If no two blocks have equal sizes, a proof that a plan never sends a chunk to one of another size shows that
    the plan never confuses two blocks. The proof then holds for all sizes of blocks.

    The result is empty for operations whose message is one vector (such as all_reduce) instead of a block per rank, for
    a user's own algorithm, and for an all-to-all whose ranks forward blocks, which must be of equal size.
    """
    exchanges = algorithm.operation is Operation.ALL_TO_ALL
    if not algorithm.operation.has_blocks or loader.is_user_defined(algorithm):
        return ()
    if exchanges and algorithm.plan(ranks).column(0).chunks != 2 * ranks:
        return ()
    rng, blocks = np.random.default_rng(ranks), ranks * ranks if exchanges else ranks
    return tuple(rng.integers(0, 4, blocks).tolist()), tuple(rng.choice(2**40, blocks, replace=False).tolist())


def list_node_layouts(ranks: int) -> dict[str, Nodes]:
    """Return the layouts of `ranks` ranks on nodes for which plans are proven, by a description such as `one node`.

    A layout is None (one node), a tuple of the number of ranks on each node, or a tuple of each node's tuple of ranks.
    """
    size = next((size for size in (4, 3, 2, 5, 7) if ranks % size == 0 and ranks > size), ranks)
    whole, rest = divmod(ranks, 6)
    layouts: dict[str, Nodes] = {"one node": None}
    if size < ranks:
        layouts["nodes of equal size"] = (size,) * (ranks // size)
    if whole and rest:
        layouts["nodes of 6 ranks, one with the rest"] = (6,) * whole + (rest,)
    if ranks > 2:
        layouts["nodes of 1 and n-1 ranks"] = (1, ranks - 1)
    if ranks > 3:
        layouts["three nodes with interleaved ranks"] = tuple(tuple(range(first, ranks, 3)) for first in range(3))
    return layouts


def format_layout(ranks: int, nodes: Nodes) -> str:
    """Return a node layout as a string, such as `32x4` (32 nodes of 4 ranks each), or `1x2+2x1 interleaved`."""
    groups = Groups.from_nodes(ranks, nodes)
    runs = [f"{len(list(run))}x{size}" for size, run in groupby(groups.sizes)]
    return "+".join(runs) + (" interleaved" if groups.members is not None else "")


def prove_variants(algorithm: Algorithm, ranks: int, *, survive: bool = False) -> ProvenPlanRecord:
    """Prove an algorithm on `ranks` ranks for all variants of `list_variants`; return a record, which lists failures.

    With `survive`, the effect of the death of a rank on the others is proven as well (`check_survival`).
    """
    start, failures, plans = time.perf_counter(), [], 0
    deaths = split = 0
    proof: Proof | None = None
    for root, chunks, nodes in list_variants(algorithm, ranks):
        plans += 1
        counts = (0, 1, ranks - 1, 7, 1_000_003, *draw_block_sizes(algorithm, ranks))
        variant = f"root {root}, {chunks} chunks" + (f", nodes {nodes}" if nodes is not None else "")
        try:
            proof = loader.prove_algorithm(algorithm, ranks, root, chunks, counts, nodes)
            if survive:
                survival = check_survival(algorithm.plan(ranks, root, chunks, nodes))
                deaths, split = deaths + survival.deaths, split + survival.split_deaths
        except PlanError as error:
            failures.append(f"{variant}: {error}")
        except Exception as error:  # noqa: BLE001 - an algorithm that raises is wrong; the others must still be proven
            message = f"{algorithm.full_name} on {format_count(ranks, 'rank')} raised {type(error).__name__}: {error}"
            failures.append(f"{variant}: {message}")
    return ProvenPlanRecord(
        command="verify",
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
        deaths=deaths if survive else None,
        split_deaths=split if survive else None,
    )


def resolve_algorithms(names: Sequence[str]) -> list[Algorithm]:
    """Return the algorithms that `names` select, or all if `names` is empty; executes the FILE.py of user algorithms.

    Args:
        names: each is OP/ALGORITHM, OP for all algorithms of an operation, FILE.py:FUNCTION, or a plan FILE.json.

    Raises:
        UnknownNameError: an operation or algorithm does not exist; the message lists the valid names.
        UsageError, PlanError: a file cannot be read, or raises an exception.
    """
    if not names:
        return list_algorithms()
    by_name: dict[str, Algorithm] = {}
    for name in names:
        is_file = loader.is_file_reference(name)
        algorithms = [loader.load_algorithm(name)] if is_file else _resolve_registered(name)
        by_name |= {algorithm.full_name: algorithm for algorithm in algorithms}
    return list(by_name.values())


def _choose_default_ranks(algorithms: Sequence[Algorithm]) -> str:
    """Return the default of --ranks: the number of ranks of the plans from files, else DEFAULT_RANKS.

    Raises UsageError if plans from files are for different numbers of ranks.
    """
    counts = {algorithm.only_ranks for algorithm in algorithms if algorithm.only_ranks is not None}
    if len(counts) > 1:
        raise UsageError(f"the plans are for {' and '.join(map(str, sorted(counts)))} ranks; name them one at a time")
    return str(counts.pop()) if counts else DEFAULT_RANKS


def _resolve_registered(name: str) -> list[Algorithm]:
    """Return the built-in algorithm that `name` (OP/ALGORITHM) names, or all built-in algorithms of OP."""
    op, slash, algorithm = name.partition("/")
    operation = Operation.from_name(op) if slash else _find_operation(name)
    if slash:
        return [get_algorithm(operation, algorithm)]
    return [known for known in list_algorithms() if known.operation is operation]


def _find_operation(name: str) -> Operation:
    """Return the operation `name`; raise UnknownNameError, which lists pipeline schedules as well, for another name."""
    try:
        return Operation.from_name(name)
    except UnknownNameError:
        algorithms = [algorithm.full_name for algorithm in list_algorithms() if algorithm.name == name]
        if not algorithms and not find_similar_names(name, list_schedule_names()):
            raise
        hint = f"the algorithm {name} is {' or '.join(algorithms)}; " if algorithms else ""
        known = [*(operation.value for operation in Operation), *list_schedule_names()]
        raise UnknownNameError("operation or schedule", name, known, hint) from None


def _prove_batch(tasks: list[tuple[str, int]], survive: bool) -> list[ProvenPlanRecord]:
    """Prove each (full name of an algorithm, number of ranks) in `tasks`, and return the records; in a worker process.

    Tasks name algorithms, because algorithms cannot always be pickled. With `survive`, the effects of the death of a
    rank are proven as well.
    """
    return [prove_variants(resolve_algorithms([name])[0], ranks, survive=survive) for name, ranks in tasks]


def _exit_with_parent() -> None:
    """Start a thread that ends this worker process as soon as its parent has ended, for example by SIGKILL."""
    parent = parent_process()
    if parent is None:
        return

    def wait_and_exit() -> None:
        """Wait for the end of the parent process, then end this process."""
        parent.join()
        os._exit(1)

    Thread(target=wait_and_exit, daemon=True).start()


def prove_all(
    algorithms: Sequence[Algorithm],
    ranks: Sequence[int],
    done: Callable[[ProvenPlanRecord], None],
    *,
    survive: bool = False,
) -> None:
    """Prove every algorithm on every number of `ranks`, in one worker process per core, and wait for all proofs.

    `done` is called in this process with each record. No worker processes are used if there is little to prove, only
    one core, or an algorithm from a file. With `survive`, the effects of the death of a rank are proven as well.
    """
    tasks = [(algorithm, n) for n in sorted(ranks, reverse=True) for algorithm in algorithms]
    cores = len(os.sched_getaffinity(0))
    from_files = any(
        loader.is_user_defined(algorithm) for algorithm in algorithms
    )  # worker processes have not loaded these
    if from_files or cores == 1 or sum(n for _, n in tasks) <= MAX_SERIAL_RANKS * len(algorithms):
        for algorithm, n in tasks:
            done(prove_variants(algorithm, n, survive=survive))
        return
    # Tasks are sorted by rank count and distributed round-robin, so that all batches take about the same time.
    count = max(cores, len(tasks) // TASKS_PER_BATCH)
    batches = [[(algorithm.full_name, n) for algorithm, n in tasks[first::count]] for first in range(count)]
    # Worker processes are spawned, because a forked child could inherit a lock that the progress bar's thread holds.
    with ProcessPoolExecutor(cores, get_context("spawn"), initializer=_exit_with_parent) as pool:
        try:
            with _block_interrupts():
                futures = [pool.submit(_prove_batch, batch, survive) for batch in batches]
            for future in as_completed(futures):
                for result in future.result():
                    done(result)
        except BaseException:
            for worker in active_children():  # a batch may take seconds
                worker.kill()
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def _block_interrupts() -> Iterator[None]:
    """Block SIGINT in this thread; processes that the `with` block starts never get the SIGINT of Ctrl-C.

    A SIGINT during the `with` block raises KeyboardInterrupt at its end.
    """
    resource_tracker.ensure_running()  # its start, which the first process needs, unblocks SIGINT
    pthread_sigmask(SIG_BLOCK, [SIGINT])
    try:
        yield
    finally:
        pthread_sigmask(SIG_UNBLOCK, [SIGINT])


def _print_results(algorithms: Sequence[Algorithm], results: Sequence[ProvenPlanRecord]) -> None:
    """Print one row per algorithm: how many of its plans are proven, and its cost on the largest number of ranks."""
    columns = ("algorithm", "proven", "steps", "mean", "most", "cpu s", "stated cost")
    rows = []
    for algorithm in algorithms:
        own = [
            result for result in results if (result.op, result.algorithm) == (algorithm.operation.value, algorithm.name)
        ]
        if not own:
            continue
        largest = max(own, key=lambda result: result.ranks)
        plans, failures = sum(result.plans for result in own), sum(len(result.failures) for result in own)
        costs = (largest.steps, largest.sent_mean, largest.sent_most)
        cells = [f"{plans - failures}/{plans}", *("-" if cost is None else f"{cost:.6g}" for cost in costs)]
        formula = (algorithm.cost.__doc__ or "").split("\n", 1)[0]
        rows.append([algorithm.full_name, *cells, f"{sum(result.seconds for result in own):.2f}", formula])
    ranks = max((result.ranks for result in results), default=0)
    title = "Plans proven; steps and bytes sent per rank (mean and most, in multiples of S) on "
    title += format_count(ranks, "rank")
    print_table(title, columns, rows, numbers=columns[1:6], wraps=columns[-1:], drops=columns[-1:])


def _print_deaths(results: Sequence[ProvenPlanRecord]) -> None:
    """Print how many deaths of a rank were tried, and after how many of them only some survivors have the result.

    Prints nothing without --survive.
    """
    deaths = sum(result.deaths or 0 for result in results)
    if not deaths:
        return
    split = sum(result.split_deaths or 0 for result in results)
    click.echo(
        f"{deaths} deaths of a rank: no survivor waits for ever or has a wrong result. After {split} of them, some "
        "survivors have the result while others raise RankLostError. A rank that raises knows the dead rank, but not "
        "which other ranks have the result; its output is undefined."
    )


def _print_layouts(rank_counts: Sequence[int]) -> None:
    """Print one row per kind of layout of ranks on nodes, with the layouts for the fewest and the most ranks.

    `rank_counts` are the numbers of ranks for which plans were proven.
    """
    covered: dict[str, list[str]] = {}
    for n in rank_counts:
        for kind, nodes in list_node_layouts(n).items():
            covered.setdefault(kind, []).append(format_layout(n, nodes))
    columns = ("node layouts", "rank counts", "smallest", "largest")
    rows = [[kind, str(len(layouts)), layouts[0], layouts[-1]] for kind, layouts in covered.items()]
    print_table("Node layouts of the proofs, as nodes x ranks per node", columns, rows, numbers=columns[1:2])


@click.command(epilog="Example: hpccoll verify all_reduce/ring broadcast --ranks 2:256 --json proofs.jsonl")
@click.argument(
    "names",
    nargs=-1,
    metavar="[OP/ALGORITHM | FILE.py:FUNCTION | SCHEDULE | FILE.csv | FILE.xml | FILE.json]...",
    shell_complete=complete_plans,
)
@click.option(
    "--ranks", metavar="N,FIRST:LAST,...", help=f"Rank counts to prove; default {DEFAULT_RANKS}, or those of FILE.json."
)
@click.option(
    "--survive",
    is_flag=True,
    help="Prove as well that after the death of any rank in any round, no survivor hangs or returns a wrong result.",
)
@click.option(
    "--buffered", type=click.IntRange(1), metavar="K", help="Refuse a FILE that deadlocks with K messages per link."
)
@click.option("--machine", metavar=NETWORK_KINDS, help="Compare a published FILE with the optimum of this network.")
@add_schedule_options("2:8", "1:16")
@json_option()
def verify(
    names: tuple[str, ...],
    ranks: str | None,
    survive: bool,
    buffered: int | None,
    machine: str | None,
    json_file: str | None,
    schedule_options: ScheduleOptions,
) -> None:
    """Prove plans: every contribution arrives exactly once, in a fixed order, and nothing can deadlock.

    Without a name all plans are proven; OP without ALGORITHM selects all algorithms of an operation; FILE.py:FUNCTION
    is your own algorithm, FILE.json a plan for one number of ranks. Each plan is proven for every rank count in the
    range, with roots 0, 1, n/2 and n-1, in 1, 2, 3 and 8 chunks, and for uneven layouts of ranks on nodes.

    SCHEDULE is a pipeline schedule such as 1f1b, or `schedules` for all of them; FILE.csv is a schedule in a format of
    torch.distributed.pipelining. A wrong schedule is refused with rank, action and reason.

    FILE.xml and FILE.json are schedules of MSCCL, MSCCL++, TE-CCL or TACCL. A wrong file is refused with rank, thread
    block, step and chunk: `hpccoll verify allreduce.xml --buffered 1`. With --machine, the output also states how near
    a right schedule comes to the optimum of a network: its busiest link, against the tightest cut.
    """
    if are_published(names):
        if survive:
            raise UsageError("--survive is not available for files of published schedules; leave it out")
        verify_published(names, buffered, machine, json_file)
        return
    if buffered is not None or machine is not None:
        option = "--machine" if buffered is None else "--buffered"
        raise UsageError(
            f"{option} is available for files of published schedules (FILE.xml, FILE.json) only; leave it out"
        )
    if are_schedules(names, "ranks"):
        run_cases("verify", names, schedule_options, json_file)
        return
    _verify_algorithms(names, ranks, json_file, survive=survive)


def _verify_algorithms(names: Sequence[str], ranks: str | None, json_file: str | None, *, survive: bool) -> None:
    """Prove algorithms for `ranks` (--ranks), write records, print a table; raise HpccollError if one is wrong."""
    algorithms = resolve_algorithms(names)
    counts = parse_rank_counts(ranks or _choose_default_ranks(algorithms))
    if not is_printing_rank():
        return
    results: list[ProvenPlanRecord] = []
    with open_serial_output(json_file) as lines, show_progress("proven", len(algorithms) * len(counts)) as advance:

        def add_result(result: ProvenPlanRecord) -> None:
            """Keep the record of a proof, write it to the file of --json, and advance the progress bar."""
            results.append(result)
            lines.write(result.as_dict())
            advance(f"{result.op}/{result.algorithm}")

        prove_all(algorithms, counts, add_result, survive=survive)
    if json_file != STDOUT:
        _print_results(algorithms, results)
        _print_deaths(results)
        if any("nodes" in algorithm.parameters for algorithm in algorithms):
            _print_layouts(counts)
    failures = [failure for result in sorted(results, key=lambda result: result.ranks) for failure in result.failures]
    if failures:
        raise HpccollError(
            f"{format_count(len(failures), 'plan')} {'is' if len(failures) == 1 else 'are'} wrong:\n"
            + "\n".join(failures)
        )
