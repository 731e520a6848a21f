"""The output of `hpccoll estimate`: whether the model fits into memory, the time and its limit; then tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

from hpccoll.cli.output import print_table, print_text
from hpccoll.plan import Machine
from hpccoll.sizing import Estimate, MeshSearch, TrainingSetup
from hpccoll.sizing.estimate import USABLE_MEMORY, compute_rank_seconds, compute_usable_bytes
from hpccoll.sizing.memory import compute_rank_memory
from hpccoll.sizing.parameters import count_active_parameters, count_parameters
from hpccoll.units import GB, MB, format_count, format_ranges

RANK_COLUMNS = ("ranks", "stages", "state MB", "other MB", "total MB", "computes s", "communicates or waits s")
SEARCH_COLUMNS = ("mesh", "zero", "recompute", "micro", "GB", "step s", "MFU", "limit")
MEMORY_COLUMNS = ("bytes of", "GB", "holds")
TRAFFIC_COLUMNS = ("strategy", "collective", "calls", "GB in node", "GB between", "time s")
OVERLAP_COLUMNS = ("overlap", "ratio", "hidden", "communication: computation")
MOST_LISTED = 5  # lines per list of meshes that do not fit
MEMORY_CONTENTS = {
    "weights": "a copy of the weights, or a shard",
    "gradients": "gradients, whole or a shard",
    "optimizer": "optimizer state, float32 weights",
    "activations": "kept for the backward pass",
    "recomputed": "recomputed by a backward pass, per layer",
    "in_flight": "gradients of activations, of a layer",
    "buffers": "layers that ZeRO gathers or reduces",
    "copies": "copies of the state, to survive deaths",
}


def print_estimate(name: str, estimate: Estimate) -> None:
    """Print an estimate of a training step of the model `name`.

    Sentences come first (whether the step fits into memory, how long it takes), then tables of memory and traffic.
    """
    setup, flops = estimate.setup, estimate.flops
    print_text(f"{_describe_job(name, setup, estimate.machine)}, {_describe_settings(setup)}")
    for heading, text in _list_answers(estimate):
        print_text(f"{heading:<8}{text}", indent=" " * 8)
    memory = asdict(estimate.memory)
    rows = [(what, format_gb(nbytes), MEMORY_CONTENTS[what]) for what, nbytes in memory.items() if nbytes]
    rows.append(("total", format_gb(estimate.memory.total), ""))
    print_table("\nMemory of the rank that needs most", MEMORY_COLUMNS, rows, numbers=["GB"])
    recomputed = f", recomputed {flops.recomputed:.3g}" if flops.recomputed else ""
    print_text(f"\nFLOPs of a step, all ranks: forward {flops.forward:.3g}, backward {flops.backward:.3g}{recomputed}")
    if estimate.traffic:
        traffic = [
            (
                *(entry.strategy, entry.collective, f"{entry.calls}"),
                *(format_gb(nbytes) for nbytes in (entry.within_bytes, entry.between_bytes)),
                f"{entry.seconds:.3g}",
            )
            for entry in estimate.traffic
        ]
        print_table("\nBytes that a rank sends in a step", TRAFFIC_COLUMNS, traffic, numbers=TRAFFIC_COLUMNS[2:])
    if estimate.overlaps:
        overlaps = [(o.strategy, f"{o.ratio:.3g}", "yes" if o.hides else "no", o.compared) for o in estimate.overlaps]
        print_table("\nTime of communication over computation, at peak", OVERLAP_COLUMNS, overlaps, numbers=["ratio"])


def print_rank_estimates(estimate: Estimate) -> None:
    """Print a table of memory and times with one row per index along the pipeline axis pp of the mesh.

    Ranks with equal index along pp have the same pipeline stages, and need the same memory and time.
    """
    setup, placed = estimate.setup, estimate.setup.stage_ranks
    rows = []
    for index in range(setup.mesh.pp):
        first = index * setup.mesh.stride("pp")
        ranks = range(first, first + setup.mesh.stride("pp"))
        memory, compute_s = compute_rank_memory(setup, index), compute_rank_seconds(estimate, index)
        of_training = memory.weights + memory.gradients + memory.optimizer
        rows.append(
            (
                format_ranges(ranks),
                format_ranges([stage for stage, rank in enumerate(placed) if rank == index]),
                *(f"{nbytes / MB:,.1f}" for nbytes in (of_training, memory.total - of_training, memory.total)),
                *(f"{seconds:.3g}" for seconds in (compute_s, estimate.time.total_s - compute_s)),
            )
        )
    print_table("\nRanks", RANK_COLUMNS, rows, numbers=RANK_COLUMNS[2:])


def _describe_job(name: str, setup: TrainingSetup, machine: Machine) -> str:
    """Return a phrase that names the model (`name`) with its parameters, the ranks, the nodes and the machine."""
    total, active = count_parameters(setup.model).total, count_active_parameters(setup.model)
    parameters = f"{_format_count(total)} parameters" + (f", {_format_count(active)} active" if active < total else "")
    nodes = format_count(machine.count_nodes(setup.mesh.ranks), "node")
    return f"{name} ({parameters}) on {format_count(setup.mesh.ranks, 'rank')}, {nodes} of {machine.name}"


def _describe_settings(setup: TrainingSetup) -> str:
    """Return a phrase with the mesh, the ZeRO stage, the recomputation and the micro-batches of a training step."""
    words = [str(setup.mesh), f"ZeRO-{setup.zero}" if setup.zero else "no ZeRO", f"recompute {setup.recompute}"]
    words += ["sequence parallel"] if setup.sequence_parallel else []
    return ", ".join([*words, format_count(setup.microbatches, "micro-batch").replace("batchs", "batches")])


def format_gb(nbytes: float) -> str:
    """Return `nbytes` in GB as a string without unit: three significant digits, no decimals from 1000 GB on."""
    return f"{nbytes / GB:,.0f}" if nbytes >= 1000 * GB else f"{nbytes / GB:.3g}"


def _format_count(count: int) -> str:
    """Return a number of parameters of a model as a string, such as `8.03 G`, `124 M` or `13,130`."""
    if count < 1e6:
        return f"{count:,}"
    return f"{count / 1e9:.2f} G" if count >= 1e9 else f"{count / 1e6:.0f} M"


def _list_answers(estimate: Estimate) -> Iterator[tuple[str, str]]:
    """Yield pairs of a heading and a sentence about a training step: its memory, its time, its limit and its bubble."""
    time, memory = estimate.time, asdict(estimate.memory)
    largest = max(memory, key=lambda what: memory[what])
    usable, tokens = estimate.usable_bytes / GB, estimate.setup.batch * estimate.setup.sequence
    fits = (
        f"{'yes' if estimate.fits else 'no'}: {format_gb(estimate.memory.total)} GB per rank, of {usable:.1f} GB usable"
    )
    yield "fits", f"{fits} ({USABLE_MEMORY:.0%} of {usable / USABLE_MEMORY:g}); most in {largest}"
    step = f"{time.total_s:.3g} s for {tokens:,} tokens: {estimate.tokens_per_s:,.0f} tokens/s"
    yield "step", f"{step}, MFU {estimate.utilisation:.1%} (computing at {estimate.efficiency:.0%} of peak)"
    yield "limit", _describe_limit(estimate)
    if estimate.setup.mesh.pp > 1:
        yield "bubble", f"{time.bubble:.1%} of the pipeline's time ({estimate.setup.schedule})"


def _describe_limit(estimate: Estimate) -> str:
    """Return a phrase: the limit of a step, and the shares of compute, communication by axis and bubble in its time."""
    time = estimate.time
    seconds = {"bubble": time.idle_s, **time.exposed_s}
    parts = [f"{name} {part_s / time.total_s:.0%}" for name, part_s in seconds.items() if part_s > 0.005 * time.total_s]
    shares = ", ".join([f"compute {time.compute_s / time.total_s:.0%}", *parts])
    return f"{time.limit} (shares of the step: {shares})"


def print_search(name: str, setup: TrainingSetup, machine: Machine, search: MeshSearch, top: int) -> None:
    """Print the results of a search over meshes: the fastest mesh, a table of the `top` fastest, why others do not fit.

    `name` is the model's name; `setup` has the batch and the ranks, and `machine` is the machine model of the search.
    """
    print_text(f"{_describe_job(name, setup, machine)}, batch {setup.batch}, sequence {setup.sequence}")
    usable = compute_usable_bytes(machine) / GB
    if search.fitting:
        best = search.fitting[0]
        print_text(f"fits    yes: {len(search.fitting)} meshes within {usable:.1f} GB per rank", indent=" " * 8)
        print_text(f"best    {_describe_settings(best.setup)}: {best.time.total_s:.3g} s per step", indent=" " * 8)
        print_text(f"limit   {_describe_limit(best)}", indent=" " * 8)
        rows = [_make_search_row(estimate) for estimate in search.fitting[:top]]
        print_table("\nFastest meshes, each with its best settings", SEARCH_COLUMNS, rows, numbers=SEARCH_COLUMNS[3:7])
    else:
        print_text(f"fits    no: no mesh within {usable:.1f} GB per rank", indent=" " * 8)
    if search.too_large:
        print_text(f"\nMeshes that need too much memory with any settings: {len(search.too_large)}")
        for estimate in search.too_large[:MOST_LISTED]:
            memory = asdict(estimate.memory)
            largest = max(memory, key=lambda what: memory[what])
            total = estimate.memory.total / GB
            print_text(f"  {estimate.setup.mesh}: {total:.1f} GB, of which {memory[largest] / GB:.1f} GB are {largest}")
    if search.misfits:
        print_text(f"\nMeshes that do not divide the model or the batch: {len(search.misfits)}")
        for reason, count in Counter(search.misfits.values()).most_common(MOST_LISTED):
            print_text(f"  {count}: {reason}")


def _make_search_row(estimate: Estimate) -> tuple[str, ...]:
    """Return the table cells of one mesh of a search, in the order of SEARCH_COLUMNS."""
    setup, time = estimate.setup, estimate.time
    size = setup.batch // (setup.mesh.samplers * setup.microbatches)
    return (
        *(str(setup.mesh), f"{setup.zero}", setup.recompute, f"{size}"),
        *(f"{estimate.memory.total / GB:.1f}", f"{time.total_s:.3g}", f"{estimate.utilisation:.1%}", time.limit),
    )
