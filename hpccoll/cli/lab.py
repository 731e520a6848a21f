"""`hpccoll lab`: a throw-away SLURM cluster on this machine, for whoever writes sbatch scripts on a laptop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpccoll.cli.output import json_lines, print_table
from hpccoll.errors import UsageError

if TYPE_CHECKING:
    from hpccoll.lab.cluster import Lab
    from hpccoll.lab.cluster_spec import ClusterSpec

Function = TypeVar("Function", bound=Callable[..., Any])
GRACE_S = 0.3  # srun takes a second Ctrl-C within a second for an order
LAST_WORDS_S = 3.0


def _where(function: Function) -> Function:
    option = click.option("--dir", "folder", metavar="DIR", type=click.Path(path_type=Path), help="The lab's folder.")
    return option(function)


def _shaped(function: Function) -> Function:
    for option in reversed(
        (
            click.option("--nodes", type=int, help="How many nodes.  [default: 4]"),
            click.option("--cpus", type=int, help="CPUs a node has for SLURM.  [default: 2]"),
            click.option("--link", metavar="RATE", help="Of each link, in bits per second: 400M, 1G."),
            click.option("--latency", metavar="TIME", help="One way between two nodes: 1ms, 250us."),
            click.option("--share", "shares", metavar="PATH", multiple=True, help="Beneath /tmp, seen by all nodes."),
            click.option("--subnet", metavar="A.B.C", help="Of the nodes' addresses.  [default: 10.77.0]"),
            click.option("--flat", is_flag=True, help="Daemons side by side on 127.0.0.1, without namespaces."),
        )
    ):
        function = option(function)
    return _where(function)


@click.group()
def lab() -> None:
    """Start a throw-away SLURM cluster on this machine, and leave nothing of it behind.

    Nodes have their own names, addresses, processes, /tmp and /dev/shm; links can have a rate and a latency. It needs
    no root where users may have namespaces, and says so where it has to do without (flat).

    \b
    Example:
      hpccoll lab run --link 400M -- sbatch --wait job.sh      # a lab for one command
      hpccoll lab up && hpccoll lab run -- srun -N4 hostname
      hpccoll lab link node2 --rate 100M && hpccoll lab down
    """  # noqa: D301 - \b is click's, and keeps the lines apart


@lab.command(epilog="Example: hpccoll lab up --nodes 4 --link 400M --latency 1ms")
@_shaped
def up(folder: Path | None, flat: bool, **shape: Any) -> int:
    """Start a lab in the background; return when all nodes are idle."""
    from hpccoll.lab import client as contact
    from hpccoll.lab import cluster, isolation, launch
    from hpccoll.lab import requirements as packages

    packages.require()
    folder = folder or cluster.default_dir()
    if contact.is_lab_running(folder):
        raise UsageError(f"a lab runs in {folder} already; `hpccoll lab down --dir {folder}`, or name another --dir")
    way, why = isolation.find(flat)
    begun = time.monotonic()
    found = launch.launch(_shape(shape), folder, way, why, None, keep=True)
    if way is isolation.Isolation.FLAT:
        _warn_of_flat(why)
    reason = f"; {why}" if why else ""
    click.echo(
        f"{found.shape.nodes} nodes are idle after {time.monotonic() - begun:.2f} s ({way.means}{reason}); "
        f"shared folder {found.place.shared}"
    )
    click.echo(f"next: hpccoll lab run{_told(folder)} -- srun -N{found.shape.nodes} hostname")
    return 0


@lab.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Example: hpccoll lab run -- srun -N4 --ntasks-per-node=2 hostname",
)
@_shaped
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(folder: Path | None, flat: bool, command: tuple[str, ...], **shape: Any) -> int:
    """Run a command on the control node of the running lab, or of one made for it alone.

    A lab is made for it where none runs, or where --nodes, --link or another shape is given; it ends with the command,
    and Ctrl-C ends both. The exit status is the command's.
    """
    from hpccoll.lab import client as contact
    from hpccoll.lab import cluster
    from hpccoll.lab.isolation import Isolation

    asked = flat or any(value for value in shape.values())
    here = folder or cluster.default_dir()
    with ExitStack() as stack:
        if contact.is_lab_running(here):
            if asked and folder:
                raise UsageError(f"the lab in {here} has its shape already; leave --nodes, --link and the like away")
            if not asked:
                return _foreground(cluster.Lab.attach(here), command)
        made = stack.enter_context(cluster.Lab(_shape(shape), folder=folder, flat=flat))
        if made.contact.isolation is Isolation.FLAT:
            _warn_of_flat(made.told()["why"])
        return _foreground(made, command)


@lab.command(epilog="Example: hpccoll lab down")
@_where
def down(folder: Path | None) -> int:
    """End the lab and all that runs on it; only what jobs left in its shared folder stays."""
    _attached(folder).contact.end()
    return 0


@lab.command(epilog="Example: hpccoll lab status --json -")
@_where
@click.option("--json", "target", metavar="FILE", help="One JSON object; - for standard output.")
def status(folder: Path | None, target: str | None) -> int:
    """Show the nodes with their links, and what SLURM says of them."""
    from hpccoll.lab.cluster_spec import format_rate
    from hpccoll.lab.isolation import Isolation

    found = _attached(folder)
    told = found.told()
    asked = found.run(["sinfo", "-h", "-N", "-o", "%N %T"], timeout_s=30).stdout.split()
    states = dict(zip(asked[::2], asked[1::2], strict=False))
    nodes = [node | {"state": states.get(node["name"], "unknown")} for node in told["nodes"]]
    with json_lines(target) as out:
        out.write({"schema": "hpccoll/1", "kind": "lab", "dir": str(found.dir), **told, "nodes": nodes})
    if target != "-":
        latency = told["shape"]["latency_s"]
        extra = f", latency {latency * 1e3:g} ms" if latency else ""
        print_table(
            f"lab in {found.dir}: {Isolation(told['isolation']).means}{extra}",
            ["node", "address", "SLURM", "power", "link", "rate", "slowed"],
            [
                [
                    node["name"],
                    node["address"],
                    node["state"],
                    "on" if node["power"] else "off",
                    "up" if node["link_up"] else "down",
                    format_rate(node["bytes_per_s"]),
                    f"{node['slow_percent']:g} %",
                ]
                for node in nodes
            ],
            ["rate", "slowed"],
        )
    return 0


@lab.command(epilog="Example: hpccoll lab link node2 --rate 100M")
@click.argument("node")
@_where
@click.option("--rate", metavar="RATE", help="Bits per second, such as 400M; max for no limit.")
@click.option("--on/--off", "plugged", default=None, help="Plug it in, or pull it out.")
def link(node: str, folder: Path | None, rate: str | None, plugged: bool | None) -> int:
    """Reshape the link of NODE, or of all, while the lab runs."""
    if rate is None and plugged is None:
        raise UsageError(f"nothing to do for the link of {node}: give --rate RATE, --on or --off")
    _attached(folder).link(node, rate=rate, up=plugged)
    return 0


@lab.command(epilog="Example: hpccoll lab power node3 off")
@click.argument("node")
@click.argument("state", type=click.Choice(["on", "off"]))
@_where
def power(node: str, state: str, folder: Path | None) -> int:
    """Switch NODE off as a power cut would, or on again; SLURM notices within some seconds."""
    _attached(folder).power(node, on=state == "on")
    return 0


@lab.command(epilog="Example: hpccoll lab slow node3 --percent 50")
@click.argument("node")
@_where
@click.option("--percent", type=float, required=True, help="Of the time that its processes stand still; 0 ends it.")
def slow(node: str, folder: Path | None, percent: float) -> int:
    """Make NODE slow: stop its processes for a share of the time, some hundred times a second."""
    _attached(folder).slow(node, percent)
    return 0


def _warn_of_flat(why: str) -> None:
    """Say what flat mode lacks, and whom it trusts."""
    from hpccoll.lab.isolation import Isolation

    click.echo(
        f"# {Isolation.FLAT.means} ({why}). Any user of this machine can run jobs through it under your name: "
        "not for machines that you share.",
        err=True,
    )


def _attached(folder: Path | None) -> Lab:
    from hpccoll.lab import cluster

    return cluster.Lab.attach(folder or cluster.default_dir())


def _told(folder: Path) -> str:
    from hpccoll.lab import cluster

    return "" if folder == cluster.default_dir() else f" --dir {folder}"


def _shape(given: dict[str, Any]) -> ClusterSpec:
    """Return the shape that the options name; this folder and this Python are shared where /tmp holds them."""
    from hpccoll.lab.cluster_spec import ClusterSpec, parse_latency, parse_rate

    rest = {name: given[name] for name in ("nodes", "cpus", "subnet") if given[name] is not None}
    if given["link"] is not None:
        rest["bytes_per_s"] = parse_rate(given["link"])
    if given["latency"] is not None:
        rest["latency_s"] = parse_latency(given["latency"])
    return ClusterSpec(**rest, shares=(*given["shares"], str(Path.cwd()), sys.prefix))


def _foreground(found: Lab, command: tuple[str, ...]) -> int:
    """Run a command on this terminal; return its exit status as a shell counts."""
    process = subprocess.Popen(found.command(command), env=found.environment())
    try:
        status = process.wait()
    except KeyboardInterrupt:  # the command has had it from the terminal, too
        status = _interrupted(process)
    return 128 - status if status < 0 else status


def _interrupted(process: subprocess.Popen[bytes]) -> int:
    """Give a command that was interrupted time to end; interrupt it again, as srun wants it; kill it."""
    ours = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for limit in (GRACE_S, LAST_WORDS_S):
            try:
                process.wait(limit)
                break
            except subprocess.TimeoutExpired:
                os.killpg(0, signal.SIGINT)
        else:
            process.kill()
        process.wait()
    finally:
        signal.signal(signal.SIGINT, ours)
    return 130
