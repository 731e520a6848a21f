"""Simulates the messages of a plan event by event, with shared links whose bandwidth is divided anew at each event.

It is a second implementation of `simulate` for plans of messages; `simulate` gives the users of a link equal shares per
round instead. As in `simulate`, a rank sends and receives the messages of a round one after the other, in the order of
the plan's steps. Each message occupies both ports from its start to its end. The command
`python -m tests.unit.plan.simulation.flow_referee` compares the two on the networks of bench/fabrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from hpccoll.algorithms import list_algorithms
from hpccoll.plan import FabricKind, Link, Machine, Operation, Plan, simulate
from hpccoll.predict.forecast import fill_nodes
from hpccoll.predict.machine_catalogue import load_machine

LinkName = tuple[str, int, int]  # kind, and the numbers of its ends or of its place
FABRICS = Path(__file__).parents[4] / "bench" / "fabrics"


@dataclass(eq=False, slots=True)
class Flow:
    """A message: its transfer alone takes `seconds`; `links` are the shared links on its way, with their capacities."""

    round: int
    source: int
    dest: int
    overhead_s: float
    seconds: float
    links: dict[LinkName, float]


Shares = dict[Flow, float]  # of the bandwidth that a message has alone


def share_equally(flows: list[Flow]) -> Shares:
    """Return equal shares: each link gives the same to all its users, and the link that gives least counts."""
    users = Counter(link for flow in flows for link in flow.links)
    return {flow: min([1.0, *(room / users[link] for link, room in flow.links.items())]) for flow in flows}


def share_fairly(flows: list[Flow]) -> Shares:
    """Return max-min fair shares, by progressive filling: all shares grow until a link on their way is full."""
    shares: Shares = {}
    room = {link: capacity for flow in flows for link, capacity in flow.links.items()}
    waiting = set(flows)
    while waiting:
        users = Counter(link for flow in waiting for link in flow.links)
        level, full = min([(room[link] / count, link) for link, count in users.items()] + [(1.0, None)], key=_first)
        done = {flow for flow in waiting if full is None or full in flow.links}
        for flow in done:
            shares[flow] = level
            for link in flow.links:
                room[link] -= level
        waiting -= done
    return shares


def _first(pair: tuple[float, LinkName | None]) -> float:
    return pair[0]


def find_links(machine: Machine, source: int, dest: int) -> dict[LinkName, float]:
    """Return the NICs and the links between switches on the way from `source` to `dest`, with their capacities."""
    q, fabric = machine.ranks_per_node, machine.fabric
    here, there = source // q, dest // q
    if here == there:
        return {}
    leaves, enters = (rank % q * machine.nics_per_node // q for rank in (source, dest))
    links: dict[LinkName, float] = {("out", here, leaves): 1.0, ("in", there, enters): 1.0}
    if fabric is None:
        return links
    up, down = here // fabric.nodes_per_switch, there // fabric.nodes_per_switch
    if fabric.kind is FabricKind.DRAGONFLY:
        return links | ({("pair", up, down): fabric.capacity} if up != down else {})
    if not fabric.has_rails:
        leaves = enters = 0
    if (up, leaves) != (down, enters):
        links |= {("up", up, leaves): fabric.capacity, ("down", down, enters): fabric.capacity}
    return links


def list_flows(plan: Plan, machine: Machine, count: int) -> list[Flow]:
    """Return the messages of a plan in the order of its rounds and steps; loads and stores are messages, too."""
    rounds, flows = plan.moves(), list[Flow]()
    sizes = plan.operation.chunk_sizes(count, plan.ranks, rounds.chunks)
    for t, steps in enumerate(rounds):
        for step in steps:
            ids = step.send.ids(plan.ranks)
            for source, dest in enumerate(step.dest.tolist()):
                chunks = ids[source][ids[source] >= 0]
                nbytes = 4 * int(sizes[chunks].sum()) if len(chunks) else 0
                if nbytes and dest not in (-1, source):
                    near = source // machine.ranks_per_node == dest // machine.ranks_per_node
                    link = machine.within if near else machine.between
                    seconds = nbytes * link.beta_s_per_byte
                    flows.append(Flow(t, source, dest, link.alpha_s, seconds, find_links(machine, source, dest)))
    return flows


def simulate_flows(flows: list[Flow], ranks: int, share: Callable[[list[Flow]], Shares] = share_equally) -> float:
    """Return the seconds after which the last message has arrived, if links are divided by `share` at each event."""
    sends: list[list[Flow]] = [[] for _ in range(ranks)]  # of each rank, the next one last
    receives: list[list[Flow]] = [[] for _ in range(ranks)]
    for flow in reversed(flows):
        sends[flow.source].append(flow)
        receives[flow.dest].append(flow)
    now, latent, left = 0.0, dict[Flow, float](), dict[Flow, float]()

    def start_next(rank: int) -> None:
        """Start the next message from or to `rank` if both ports are free and the sender is in its round."""
        for flow in (queue[rank][-1] for queue in (sends, receives) if queue[rank]):
            others = receives[flow.source]
            is_next = sends[flow.source][-1] is flow and receives[flow.dest][-1] is flow
            if is_next and flow not in latent and flow not in left and (not others or others[-1].round >= flow.round):
                latent[flow] = now + flow.overhead_s

    for rank in range(ranks):
        start_next(rank)
    while latent or left:
        shares = share(list(left))
        ends = [now + seconds / shares[flow] for flow, seconds in left.items()]
        before, now = now, min([*latent.values(), *ends])
        for flow in left:
            left[flow] -= shares[flow] * (now - before)
        ended = [flow for flow, seconds in left.items() if seconds <= 1e-9 * flow.seconds]
        for flow in [flow for flow, begins in latent.items() if begins <= now * (1 + 1e-12)]:
            del latent[flow]
            left[flow] = flow.seconds
        for flow in ended:
            del left[flow]
            sends[flow.source].pop()
            receives[flow.dest].pop()
        for flow in ended:
            for rank in (flow.source, flow.dest):
                start_next(rank)
    assert not any(sends)
    assert not any(receives)
    return now


def without_latency(machine: Machine) -> Machine:
    """Return the machine with links that differ by bandwidth only."""
    near, wide = (Link(0.0, link.beta_s_per_byte, 0.0) for link in (machine.within, machine.between))
    return replace(machine, within=near, between=wide)


def list_message_plans(ranks: int, machine: Machine, chunks: int) -> list[Plan]:
    """Return the registry's plans of messages alone that move data."""
    known = [each for each in list_algorithms() if not each.uses_shared_memory and "rates" not in each.parameters]
    plans = [each.plan(ranks, 0, chunks, fill_nodes(ranks, machine)) for each in known]
    return [plan for plan in plans if plan.operation is not Operation.BARRIER]


def main(ranks: int = 32, nbytes: int = 2**20) -> None:
    """Print the ratios of `simulate` to both event simulations, over all plans of messages, for each network."""
    print("| network | simulate / equal shares per event | equal / max-min fair shares per event |\n|---|---|---|")
    machines = [without_latency(load_machine(str(file))) for file in sorted(FABRICS.glob("*.toml"))]
    for machine in (replace(machines[0], name="none", fabric=None), *machines):
        rules, fairness = dict[str, float](), dict[str, float]()
        for plan in list_message_plans(ranks, machine, 4):
            count = plan.operation.count_elements(nbytes, 4, ranks)
            flows = list_flows(plan, machine, count)
            equal, fair = (simulate_flows(flows, ranks, share) for share in (share_equally, share_fairly))
            rules[plan.name] = simulate(plan, machine, count, trace=False).seconds / equal
            fairness[plan.name] = equal / fair
        print(f"| {machine.name} | {format_range(rules)} | {format_range(fairness)} |", flush=True)


def format_range(ratios: dict[str, float]) -> str:
    """Return the median, the smallest and the largest ratio, with the names of the plans that have them."""
    ends = (
        f"{ratios[name]:.2f} ({name})"
        for name in (min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__))
    )
    return f"{median(ratios.values()):.2f}, {' to '.join(ends)}"


if __name__ == "__main__":
    main()
