"""Compares simulated times with those of LogGOPSim on exported plans: `python bench/loggopsim.py PATH`.

PATH is the folder with the programs LogGOPSim and txt2bin of https://github.com/spcl/LogGOPSim (commit 76451de). Set
`noorder` to 0 in its Network.hpp: with 1, its network `simple` reads a message that has ended, and crashes.

Without shared links, both simulators have the same costs: a message of B bytes takes 2 us + B ns and keeps the ports of
both ends busy for 0.5 us + B ns (L = 2000, g = 500, G = 1, o = 0; LogGOPSim charges B - 1 bytes). LogGOPSim also runs
each plan with its ranks in reverse order, because it breaks ties by the numbers of ranks.

With shared links, the network `simple` of LogGOPSim carries the messages over the networks of `fabrics`, without
latencies. At each time, a message has an equal share of the link on its way with the most messages. Each link has the
bandwidth of a NIC; of K parallel links, the number of the destination's node, modulo K, selects one. A rank sends its
messages of a round one after the other, as in hpccoll.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hpccoll.algorithms import get_algorithm
from hpccoll.plan import FabricKind, Link, Machine, Operation, Plan, simulate
from hpccoll.plan.interchange.goal import to_goal
from hpccoll.predict.forecast import fill_nodes
from hpccoll.predict.machine_catalogue import load_machine

ALPHA_NS, GAP_NS, COUNT, RANKS = 2000, 500, 16384, 16
LOGGP = ("-L", f"{ALPHA_NS}", "-g", f"{GAP_NS}", "-G", "1", "-o", "0", "-O", "0", "-S", f"{2**31 - 1}")
# The network charges a byte per time unit. With rendezvous (-S 1), a send ends when its message has arrived.
FLOWS = ("-L", "0", "-g", "0", "-G", "0", "-o", "0", "-O", "0", "-S", "1", "--network-type", "simple")
PLANS = (
    *("all_reduce/ring", "all_reduce/recursive_doubling", "all_reduce/double_tree", "all_reduce/chain"),
    *("all_gather/bruck", "broadcast/circulant", "broadcast/tree", "reduce/chain", "all_to_all/pairwise"),
)


def time_with_loggopsim(programs: Path, goal: str, options: Sequence[str], network: str = "") -> int:
    """Return the time units that LogGOPSim predicts for a GOAL schedule; `network` is a text of `make_dot`."""
    with tempfile.TemporaryDirectory() as folder:
        text, binary, dot = Path(folder, "plan.goal"), Path(folder, "plan.bin"), Path(folder, "network.dot")
        text.write_text(goal, encoding="utf-8")
        dot.write_text(network, encoding="utf-8")
        subprocess.run([programs / "txt2bin", "-i", text, "-o", binary], check=True, capture_output=True)
        command = [programs / "LogGOPSim", "-f", binary, *options, *(("--network-file", dot) if network else ())]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
    return max(int(line.split(":")[1]) for line in run.stdout.splitlines() if line.startswith("Host "))


def reverse_ranks(goal: str, ranks: int) -> str:
    """Return a GOAL schedule in which rank r is called `ranks` - 1 - r."""
    blocks = []
    for block in goal.split("rank ")[1:]:
        own, _, body = block.partition(" ")
        words = body.split(" ")
        for k, word in enumerate(words[:-1]):
            if word in {"to", "from"}:
                words[k + 1] = f"{ranks - 1 - int(words[k + 1])}"
        blocks.append(f"rank {ranks - 1 - int(own)} {' '.join(words)}")
    return f"num_ranks {ranks}\n\n" + "".join(reversed(blocks))


def send_one_by_one(goal: str) -> str:
    """Return a GOAL schedule in which each send also waits for the rank's send before it in the same round."""
    lines, last = [], ("", "")
    for line in goal.splitlines():
        lines.append(line)
        send = re.fullmatch(r"(l\d+): send .* (tag \d+)", line)
        if line.startswith("rank"):
            last = "", ""
        if send:
            if send[2] == last[1]:
                lines.append(f"{send[1]} requires {last[0]}")
            last = send[1], send[2]
    return "\n".join(lines) + "\n"


def list_links(machine: Machine, ranks: int) -> Iterator[tuple[str, str, list[int]]]:
    """Yield the links of a network as tail, head and the ranks to which they lead."""
    fabric, q = machine.fabric, machine.ranks_per_node
    if fabric is None:
        raise ValueError(f"{machine.name} has no shared links")

    def leaf_of(rank: int) -> str:
        """Return the name of the switch to which the NIC of a rank is connected."""
        rail = rank % q * machine.nics_per_node // q if fabric.has_rails else 0
        return f"S{rank // q // fabric.nodes_per_switch}_{rail}"

    everyone, spines = range(ranks), range(int(fabric.capacity))
    for rank in everyone:
        mates = [other for other in everyone if other // q == rank // q and other != rank]
        yield from ((f"H{rank}", f"H{other}", [other]) for other in mates)
        yield f"H{rank}", leaf_of(rank), [other for other in everyone if other not in mates]
        yield leaf_of(rank), f"H{rank}", [rank]
    leaves = sorted({leaf_of(rank) for rank in everyone})
    members = {leaf: [rank for rank in everyone if leaf_of(rank) == leaf] for leaf in leaves}
    for leaf in leaves:
        others = [other for other in leaves if other != leaf]
        if fabric.kind is FabricKind.DRAGONFLY:
            yield from ((leaf, other, members[other]) for other in others)
            continue
        for spine in spines:
            outside = [rank for other in others for rank in members[other]]
            yield leaf, f"T{spine}", [rank for rank in outside if rank // q % len(spines) == spine]
            yield f"T{spine}", leaf, members[leaf]


def make_dot(machine: Machine, ranks: int) -> str:
    """Return the text of a network file of LogGOPSim; a link's comment lists the ranks to which it leads."""
    hosts = "".join(f"  H{rank};\n" for rank in range(ranks))
    links = "".join(
        f'  {tail} -> {head} [comment="{",".join(f"H{rank}" for rank in leads)}"];\n'
        for tail, head, leads in list_links(machine, ranks)
    )
    return f"digraph network {{\n{hosts}{links}}}\n"


def compare_without_sharing(programs: Path) -> None:
    """Print a row of a Markdown table per plan and number of ranks."""
    link = Link(ALPHA_NS * 1e-9, 1e-9, GAP_NS * 1e-9)
    machine = Machine("flat", 1, link, link, 1, 0.0)
    print("| plan | ranks | hpccoll (us) | LogGOPSim (us) | ratio | ranks in reverse order | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name in PLANS:
        for ranks in (7, RANKS):  # LogGOPSim prints the end of each host for up to 16
            plan = make_plan(name, ranks)
            ours, goal = simulate(plan, machine, COUNT, trace=False).seconds * 1e6, to_goal(plan, COUNT)
            theirs = [time_with_loggopsim(programs, g, LOGGP) / 1e3 for g in (goal, reverse_ranks(goal, ranks))]
            cells = " | ".join(f"{time:.2f} | {ours / time:.3f}" for time in theirs)
            print(f"| {name} | {ranks} | {ours:.2f} | {cells} |", flush=True)


def make_plan(name: str, ranks: int, nodes: tuple[int, ...] | None = None) -> Plan:
    """Return a plan of four chunks."""
    operation, algorithm = name.split("/")
    return get_algorithm(Operation(operation), algorithm).plan(ranks, chunks=4, nodes=nodes)


def compare_with_sharing(programs: Path) -> None:
    """Print a row of a Markdown table per plan, with the times on each network of `fabrics` and their ratios."""
    files = sorted(Path(__file__).with_name("fabrics").glob("*.toml"))
    machines = [load_machine(str(file)) for file in files]
    print(f"| plan | {' | '.join(f'{machine.name} (us) | ratio' for machine in machines)} |")
    print("|---|" + "---|" * 2 * len(machines))
    for name in PLANS:
        cells = []
        for machine in machines:
            beta = machine.between.beta_s_per_byte
            link = Link(0.0, beta, 0.0)
            plan = make_plan(name, RANKS, fill_nodes(RANKS, machine))
            ours = simulate(plan, replace(machine, within=link, between=link), COUNT, trace=False).seconds
            goal = send_one_by_one(to_goal(plan, COUNT))
            units = time_with_loggopsim(programs, goal, FLOWS, make_dot(machine, RANKS))
            cells.append(f"{ours * 1e6:.2f} | {ours / (units * beta):.3f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print both tables."""
    programs = Path(sys.argv[1])
    compare_without_sharing(programs)
    print()
    compare_with_sharing(programs)


if __name__ == "__main__":
    main()
