"""Carries a preflight out: rank 0 tells the nodes' first ranks whom to measure, or to measure themselves.

Rounds are short and come in sweeps, so that the repetitions of one measurement lie far apart in time. A pair that once
failed is left alone from then on, and so is a node that does not answer: what is under way there may never end.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpccoll.errors import UsageError
from hpccoll.preflight import node_benchmark
from hpccoll.preflight.faults import find_faults
from hpccoll.preflight.link_benchmark import LinkBenchmark, LinkSample
from hpccoll.preflight.messages import COORDINATOR, ControlChannel
from hpccoll.preflight.pair_schedule import Pair, schedule_pairs
from hpccoll.preflight.results import PreflightResults
from hpccoll.preflight.waiting import MessageTimeoutError
from hpccoll.units import MiB

if TYPE_CHECKING:
    from mpi4py import MPI

FEWEST_BYTES, MOST_BYTES = 1 * MiB, 64 * MiB  # the fewest are many against what switches and shapers let burst
TRANSFER_S = 0.02  # what a long message should take on a healthy link
SOON_S = 0.1  # for who is here already
RECHECKS = 3
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STEPS = 6  # messages of a pair, each of which may take as long as the limit


Group = TypeVar("Group", bound=tuple[int, ...])


@dataclass(frozen=True, slots=True)
class MeasurementOptions:
    """How to measure: repetitions, the long message (None: as long as the links suggest), seconds for a message."""

    sweeps: int
    nbytes: int | None
    limit_s: float
    ranks_as_nodes: bool = False


def run_worker(comm: MPI.Intracomm, wishes: MeasurementOptions, failure: type[Exception]) -> None:
    """Do what the conductor says until it says that it is over. Every rank but the conductor's."""
    mail = ControlChannel(comm)
    mail.reply(_facts(comm.rank, wishes.ranks_as_nodes))
    while (order := mail.await_order())["do"] != "end":
        mail.reply(_obey(comm, order, wishes.limit_s, failure, mail.kept))
    mail.flush(wishes.limit_s)


def _facts(rank: int, ranks_as_nodes: bool) -> dict[str, str]:
    """Name the node, and the running kernel: emulated nodes share one, and would measure each other."""
    host = platform.node().partition(".")[0]
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        boot = host
    return {"node": f"{host}:{rank}" if ranks_as_nodes else host, "boot": boot}


def _obey(
    comm: MPI.Intracomm, order: Mapping[str, Any], limit_s: float, failure: type[Exception], kept: list[Any]
) -> dict[str, Any]:
    if order["do"] == "pair":
        return asdict(LinkBenchmark(comm, order["peer"], limit_s, kept).measure(order["nbytes"], failure))
    return asdict(node_benchmark.measure(shared=order["shared"]))


def split_by_machine(groups: Sequence[Group], boots: Sequence[str]) -> list[list[Group]]:
    """Divide what could happen at once into turns, so that no machine is in two groups of a turn.

    Args:
        groups: of nodes, each node in one at most.
        boots: of each node, the running kernel. Real nodes have one each, and all go in one turn.
    """
    found: list[tuple[set[str], list[Group]]] = []
    for group in groups:
        mine = {boots[node] for node in group}
        free = next((turn for turn in found if not turn[0] & mine), None)
        if free is None:
            found.append((mine, [group]))
        else:
            free[0].update(mine)
            free[1].append(group)
    return [turn for _, turn in found]


class Coordinator:
    """Rank 0: knows the nodes, gives the orders, and collects what they find."""

    def __init__(self, comm: MPI.Intracomm, wishes: MeasurementOptions, failure: type[Exception]) -> None:
        self._comm, self._wishes, self._failure = comm, wishes, failure
        self._mail = ControlChannel(comm)
        self._boots: list[str] = []
        self._leaders: list[int] = []  # the rank that stands for each node
        self.survey = self._met()
        self.clean = not self.survey.lost  # nothing is left under way in MPI

    def _met(self) -> PreflightResults:
        nodes: list[str] = []
        lost: dict[int, str] = {}
        deadline = time.monotonic() + self._wishes.limit_s
        for rank in range(self._comm.size):
            facts = self._introduction(rank, max(deadline - time.monotonic(), SOON_S))
            if facts is None:
                lost[len(nodes)] = f"rank {rank} did not answer rank 0 within {self._wishes.limit_s:g} s"
                facts = {"node": f"the node of rank {rank}", "boot": ""}
            if facts["node"] not in nodes:
                nodes.append(facts["node"])
                self._boots.append(facts["boot"])
                self._leaders.append(rank)
        if len(nodes) < 2:
            raise UsageError(
                f"preflight compares nodes, and all {self._comm.size} ranks are on {nodes[0]}; start it on more nodes "
                "(srun --nodes=4 --ntasks-per-node=1 hpccoll preflight), or try it here with --ranks-as-nodes"
            )
        return PreflightResults(tuple(nodes), lost=lost)

    def _introduction(self, rank: int, limit_s: float) -> dict[str, Any] | None:
        if rank == COORDINATOR:
            return _facts(rank, self._wishes.ranks_as_nodes)
        try:
            return self._mail.await_reply(rank, limit_s)
        except (MessageTimeoutError, self._failure):
            return None

    def run(self, advance: Callable[[str], None]) -> PreflightResults:
        """Measure everything; call `advance` after each step of `steps`."""
        self._sweep(self._wishes.nbytes or FEWEST_BYTES, advance)
        self.survey.nbytes = self._wishes.nbytes or self._suitable()
        self._forget()
        for _ in range(self._wishes.sweeps):
            self._sweep(self.survey.nbytes, advance)
            self._speeds(range(len(self._leaders)))
            advance("speed")
        return self.survey

    def recheck(self, threshold: float) -> None:
        """Measure single links and nodes that would be accused again: bad luck passes, what is slow stays slow."""
        at = self.survey.nodes.index
        for _ in range(RECHECKS):
            suspects = find_faults(self.survey, threshold)
            pairs = [(at(each.nodes[0]), at(each.nodes[1])) for each in suspects if each.kind == "slow_link"]
            nodes = [at(each.nodes[0]) for each in suspects if each.kind == "slow_node"]
            if not pairs and not nodes:
                return
            for _ in range(self._wishes.sweeps):
                for turn in split_by_machine(pairs, self._boots):
                    self._measure(turn, self.survey.nbytes)
                self._speeds(nodes)

    @property
    def steps(self) -> int:
        """How many steps `run` has."""
        return (self._wishes.sweeps + 1) * len(schedule_pairs(len(self._leaders))) + self._wishes.sweeps

    def end(self) -> None:
        """Let the other ranks go. They may not all hear it where `clean` is false."""
        for rank in range(self._comm.size):
            if rank != COORDINATOR:
                self._mail.order(rank, {"do": "end"})
        if self.clean:
            self._mail.flush(self._wishes.limit_s)

    def _sweep(self, nbytes: int, advance: Callable[[str], None]) -> None:
        for met in schedule_pairs(len(self._leaders)):
            for pairs in split_by_machine(met, self._boots):
                self._measure([(a, b) for a, b in pairs if not self._failed(a, b)], nbytes)
            advance("pairs")

    def _measure(self, pairs: Sequence[Pair], nbytes: int) -> None:
        ends = dict([*pairs, *((b, a) for a, b in pairs)])
        orders = {a: {"do": "pair", "peer": self._leaders[b], "nbytes": nbytes} for a, b in ends.items()}
        for a, reply in self._told(orders).items():
            self.survey.links.setdefault((a, ends[a]), []).append(LinkSample(**reply))

    def _failed(self, a: int, b: int) -> bool:
        seen = self.survey.links.get((a, b), []) + self.survey.links.get((b, a), [])
        return a in self.survey.lost or b in self.survey.lost or any(each.broken for each in seen)

    def _speeds(self, which: Iterable[int]) -> None:
        """Let nodes measure themselves; those that are one machine take turns."""
        nodes = [(node,) for node in which if node not in self.survey.lost]
        for turn in split_by_machine(nodes, self._boots):
            shared = {node: self._boots.count(self._boots[node]) > 1 for (node,) in turn}
            orders = {node: {"do": "speed", "shared": shared[node]} for (node,) in turn}
            for node, reply in self._told(orders).items():
                self.survey.speeds.setdefault(node, []).append(node_benchmark.NodeSpeed(**reply))

    def _told(self, orders: Mapping[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """Give orders by node and return the replies; a node that gives none is lost."""
        replies: dict[int, dict[str, Any]] = {}
        for node, order in orders.items():
            if self._leaders[node] != COORDINATOR:
                self._mail.order(self._leaders[node], order)
        for node, order in sorted(orders.items()):
            limit_s = _STEPS * self._wishes.limit_s
            try:
                if self._leaders[node] == COORDINATOR:
                    replies[node] = _obey(self._comm, order, self._wishes.limit_s, self._failure, self._mail.kept)
                else:
                    replies[node] = self._mail.await_reply(self._leaders[node], limit_s)
            except (MessageTimeoutError, self._failure) as error:
                self.survey.lost[node] = f"{self.survey.nodes[node]} did not reply to rank 0: {error}"
        self.clean = self.clean and not self.survey.lost and not any(each.get("broken") for each in replies.values())
        return replies

    def _suitable(self) -> int:
        """Return a power of two that a typical link carries in about TRANSFER_S."""
        rates = sorted(each.nbytes_per_s(FEWEST_BYTES) for seen in self.survey.links.values() for each in seen)
        if not rates:
            return FEWEST_BYTES
        wanted = int(rates[len(rates) // 2] * TRANSFER_S)
        return min(max(1 << max(wanted.bit_length() - 1, 0), FEWEST_BYTES), MOST_BYTES)

    def _forget(self) -> None:
        """Drop the first sweep, which made the connections, except for what failed in it."""
        for pair, seen in self.survey.links.items():
            self.survey.links[pair] = [each for each in seen if each.broken]
