"""Run a preflight: rank 0 commands one rank per node to measure links and nodes, and collects the results.

A preflight has several sweeps, each of which measures all pairs of nodes once, so that the samples of one link are far
apart in time. A pair of nodes whose measurement failed and a node that did not answer are not measured again: their
messages may never complete.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpccoll.errors import UsageError
from hpccoll.preflight.faults import find_faults
from hpccoll.preflight.link_benchmark import LinkBenchmark, LinkSample
from hpccoll.preflight.messages import COORDINATOR, ControlChannel, MessageTimeoutError
from hpccoll.preflight.node_benchmark import NodeSpeed, measure_node
from hpccoll.preflight.pair_schedule import Pair, schedule_pairs, split_by_machine
from hpccoll.preflight.results import PreflightResults
from hpccoll.units import MiB

if TYPE_CHECKING:
    from mpi4py import MPI

MIN_NBYTES, MAX_NBYTES = 1 * MiB, 64 * MiB  # the minimum exceeds the bursts that switches and traffic shapers allow
TRANSFER_S = 0.02  # intended time of a long message on a healthy link
MIN_WAIT_S = 0.1  # seconds to wait for each rank to name its node, even after the time limit
MAX_REMEASUREMENTS = 3
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MESSAGES_PER_PAIR = 6  # phases of a link measurement, each of which may take limit_s


@dataclass(frozen=True, slots=True)
class MeasurementOptions:
    """The options of `hpccoll preflight`: sweeps, size of messages, time limit, and whether ranks count as nodes."""

    sweeps: int  # number of measurements of each link and node
    nbytes: int | None  # size of the long message; if None, it depends on the speed of the links
    limit_s: float  # seconds after which a message counts as lost
    ranks_as_nodes: bool = False  # whether every rank counts as a node, to try preflight on one machine


def run_worker(comm: MPI.Intracomm, options: MeasurementOptions, failure: type[Exception]) -> None:
    """Measure links and this node as rank 0 commands, until rank 0 sends `end`; called by all ranks except rank 0.

    Args:
        options: the options of the preflight, equal on all ranks.
        failure: the exception that mpi4py raises if a connection fails, such as `MPI.Exception`.
    """
    channel = ControlChannel(comm)
    channel.send_reply(_describe_node(comm.rank, options.ranks_as_nodes))
    while (command := channel.receive_command())["do"] != "end":
        channel.send_reply(_execute_command(comm, command, options.limit_s, failure, channel.lost_buffers))
    channel.flush(options.limit_s)


def _describe_node(rank: int, ranks_as_nodes: bool) -> dict[str, str]:
    """Return a dict with the name of this rank's node (key `node`) and the boot ID of its machine (key `boot`).

    Emulated nodes on one machine have equal boot IDs. With `ranks_as_nodes`, the name contains the rank, so that every
    rank counts as a node.
    """
    host = platform.node().partition(".")[0]
    try:
        boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        boot_id = host
    return {"node": f"{host}:{rank}" if ranks_as_nodes else host, "boot": boot_id}


def _execute_command(
    comm: MPI.Intracomm, command: Mapping[str, Any], limit_s: float, failure: type[Exception], lost_buffers: list[Any]
) -> dict[str, Any]:
    """Measure the link to a peer (command `pair`) or the speed of this node (command `speed`).

    Returns:
        The fields of a `LinkSample` (for `pair`) or of a `NodeSpeed` (for `speed`).
    """
    if command["do"] == "pair":
        link = LinkBenchmark(comm, command["peer"], limit_s, lost_buffers)
        return asdict(link.measure(command["nbytes"], failure))
    return asdict(measure_node(shares_machine=command["shared"]))


class Coordinator:
    """Rank 0 of a preflight: commands the measurements of links and nodes on all ranks and collects the results.

    All ranks except rank 0 call `run_worker`. The constructor waits until every rank has named its node.

    Args:
        comm: the communicator of the job.
        options: the options of the measurements, the same on all ranks.
        failure: the exception that mpi4py raises if a connection fails.

    Attributes:
        results: the measurements so far.
        can_finalize: false if a message is lost, because MPI_Finalize would then hang.

    Raises:
        UsageError: all ranks are on one node; the constructor calls `end_workers` before it raises the error.
    """

    def __init__(self, comm: MPI.Intracomm, options: MeasurementOptions, failure: type[Exception]) -> None:
        self._comm, self._options, self._failure = comm, options, failure
        self._channel = ControlChannel(comm)
        self._boot_ids: list[str] = []
        self._leaders: list[int] = []  # the rank of each node that measures
        self.results = self._find_nodes()
        self.can_finalize = not self.results.lost

    def _find_nodes(self) -> PreflightResults:
        """Receive the name of every rank's node; return results with these nodes and without measurements.

        A node whose rank does not answer within the time limit is marked as lost.
        """
        nodes: list[str] = []
        lost: dict[int, str] = {}
        deadline = time.monotonic() + self._options.limit_s
        for rank in range(self._comm.size):
            description = self._receive_introduction(rank, max(deadline - time.monotonic(), MIN_WAIT_S))
            if description is None:
                lost[len(nodes)] = f"rank {rank} did not answer rank 0 within {self._options.limit_s:g} s"
                description = {"node": f"the node of rank {rank}", "boot": ""}
            if description["node"] not in nodes:
                nodes.append(description["node"])
                self._boot_ids.append(description["boot"])
                self._leaders.append(rank)
        if len(nodes) < 2:
            self.can_finalize = True
            self.end_workers()
            raise UsageError(
                f"preflight compares nodes, and all ranks of this job are on {nodes[0]}; start it on more nodes "
                "(srun --nodes=4 --ntasks-per-node=1 hpccoll preflight), or try it here with --ranks-as-nodes"
            )
        return PreflightResults(tuple(nodes), lost=lost)

    def _receive_introduction(self, rank: int, limit_s: float) -> dict[str, Any] | None:
        """Return the name and boot ID of a rank's node; None if the rank does not answer within `limit_s` seconds."""
        if rank == COORDINATOR:
            return _describe_node(rank, self._options.ranks_as_nodes)
        try:
            return self._channel.receive_reply(rank, limit_s)
        except (MessageTimeoutError, self._failure):
            return None

    @property
    def steps(self) -> int:
        """The number of calls of `advance` by which `measure_all` reports its progress."""
        return (self._options.sweeps + 1) * len(schedule_pairs(len(self._leaders))) + self._options.sweeps

    def measure_all(self, advance: Callable[[str], None]) -> None:
        """Measure the links of all pairs of nodes and the speed of each node, in every sweep, into `results`.

        A first sweep, whose times are dropped, opens the connections and determines the message size unless the options
        state one. `advance` is called with the kind of measurement (`pairs` or `speed`) after each round.
        """
        self._sweep(self._options.nbytes or MIN_NBYTES, advance)
        self.results.nbytes = self._options.nbytes or self._choose_nbytes()
        for pair, samples in self.results.links.items():
            self.results.links[pair] = [sample for sample in samples if sample.broken]
        for _ in range(self._options.sweeps):
            self._sweep(self.results.nbytes, advance)
            self._measure_nodes(range(len(self._leaders)))
            advance("speed")

    def remeasure_suspects(self, threshold: float) -> None:
        """Measure slow nodes and slow links again, at most MAX_REMEASUREMENTS times, and add the samples to `results`.

        The new samples distinguish faults from temporary disturbances. `threshold` is passed to `find_faults`.
        """
        index = self.results.nodes.index
        for _ in range(MAX_REMEASUREMENTS):
            faults = find_faults(self.results, threshold)
            pairs = [(index(fault.nodes[0]), index(fault.nodes[1])) for fault in faults if fault.kind == "slow_link"]
            nodes = [index(fault.nodes[0]) for fault in faults if fault.kind == "slow_node"]
            if not pairs and not nodes:
                return
            for _ in range(self._options.sweeps):
                for concurrent in split_by_machine(pairs, self._boot_ids):
                    self._measure_pairs(concurrent, self.results.nbytes)
                self._measure_nodes(nodes)

    def end_workers(self) -> None:
        """Send the command `end` to all other ranks; unless a message is lost, wait until these sends are complete."""
        for rank in range(self._comm.size):
            if rank != COORDINATOR:
                self._channel.send_command(rank, {"do": "end"})
        if self.can_finalize:
            self._channel.flush(self._options.limit_s)

    def _sweep(self, nbytes: int, advance: Callable[[str], None]) -> None:
        """Measure the link of every pair of nodes once with messages of `nbytes` bytes; skip pairs that failed before.

        `advance` is called with the string "pairs" after each round, which measures disjoint pairs.
        """
        for pairs in schedule_pairs(len(self._leaders)):
            for concurrent in split_by_machine(pairs, self._boot_ids):
                self._measure_pairs([(a, b) for a, b in concurrent if not self._has_failed(a, b)], nbytes)
            advance("pairs")

    def _has_failed(self, a: int, b: int) -> bool:
        """Whether node `a` or node `b` is lost, or an earlier measurement of the link between them failed."""
        samples = self.results.links.get((a, b), []) + self.results.links.get((b, a), [])
        return a in self.results.lost or b in self.results.lost or any(sample.broken for sample in samples)

    def _measure_pairs(self, pairs: Sequence[Pair], nbytes: int) -> None:
        """Measure links of disjoint pairs of nodes at once with `nbytes` bytes; add the samples to `results`."""
        peers = dict([*pairs, *((b, a) for a, b in pairs)])
        commands = {a: {"do": "pair", "peer": self._leaders[b], "nbytes": nbytes} for a, b in peers.items()}
        for node, reply in self._run_commands(commands).items():
            self.results.links.setdefault((node, peers[node]), []).append(LinkSample(**reply))

    def _measure_nodes(self, nodes: Iterable[int]) -> None:
        """Measure the speed of nodes, at the same time unless they share a machine; add the samples to `results`."""
        groups = [(node,) for node in nodes if node not in self.results.lost]
        for concurrent in split_by_machine(groups, self._boot_ids):
            shared = {node: self._boot_ids.count(self._boot_ids[node]) > 1 for (node,) in concurrent}
            commands = {node: {"do": "speed", "shared": shared[node]} for (node,) in concurrent}
            for node, reply in self._run_commands(commands).items():
                self.results.speeds.setdefault(node, []).append(NodeSpeed(**reply))

    def _run_commands(self, commands: Mapping[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """Send each node its command, execute that of rank 0's node, and return the replies of all nodes.

        Commands and replies have the index of the node as key. Nodes that do not reply within the time limit are
        marked as lost in `results`.
        """
        replies: dict[int, dict[str, Any]] = {}
        limit_s = self._options.limit_s
        for node, command in commands.items():
            if self._leaders[node] != COORDINATOR:
                self._channel.send_command(self._leaders[node], command)
        for node, command in sorted(commands.items()):
            try:
                if self._leaders[node] == COORDINATOR:
                    lost_buffers = self._channel.lost_buffers
                    replies[node] = _execute_command(self._comm, command, limit_s, self._failure, lost_buffers)
                else:
                    replies[node] = self._channel.receive_reply(self._leaders[node], _MESSAGES_PER_PAIR * limit_s)
            except (MessageTimeoutError, self._failure) as error:
                self.results.lost[node] = f"{self.results.nodes[node]} did not reply to rank 0: {error}"
        if self.results.lost or any(reply.get("broken") for reply in replies.values()):
            self.can_finalize = False
        return replies

    def _choose_nbytes(self) -> int:
        """Return the message size in bytes, a power of two, that takes about TRANSFER_S seconds on the median link."""
        samples = [sample for samples in self.results.links.values() for sample in samples]
        rates = sorted(0.0 if sample.broken else MIN_NBYTES / sample.transfer_seconds for sample in samples)
        if not rates:
            return MIN_NBYTES
        nbytes = int(rates[len(rates) // 2] * TRANSFER_S)
        return min(max(1 << max(nbytes.bit_length() - 1, 0), MIN_NBYTES), MAX_NBYTES)
