"""`hpccoll lab`: a throw-away SLURM cluster on this machine, for testing sbatch scripts on a laptop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpccoll.cli.command_group import CommandGroup
from hpccoll.cli.output import json_option, open_json_lines, print_table
from hpccoll.errors import CommunicationError, UsageError
from hpccoll.records import SCHEMA

if TYPE_CHECKING:
    from hpccoll.lab.cluster import Lab
    from hpccoll.lab.cluster_spec import ClusterSpec

Function = TypeVar("Function", bound=Callable[..., Any])
SECOND_INTERRUPT_S = 0.3  # srun obeys a second Ctrl-C only within a second of the first
KILL_S = 3.0
WATCH_S = 0.5  # between two readings of the nodes' logs


_dir_option = click.option(
    "--dir", "state_dir", metavar="DIR", type=click.Path(path_type=Path), help="State directory of the lab."
)


def _spec_options(function: Function) -> Function:
    """Return the click command with the options that describe a lab (a throw-away SLURM cluster), and --dir."""
    for option in reversed(
        (
            click.option("--nodes", type=int, help="Number of nodes.  [default: 4]"),
            click.option("--cpus", type=int, help="CPUs per node, as SLURM sees them.  [default: 2]"),
            click.option("--link", metavar="RATE", help="Rate of each link in bits per second: 400M, 1G."),
            click.option("--latency", metavar="TIME", help="One-way latency between two nodes: 1ms, 250us."),
            click.option(
                "--share", "shares", metavar="PATH", multiple=True, help="Path below /tmp that all nodes see."
            ),
            click.option("--subnet", metavar="A.B.C", help="Subnet of the nodes.  [default: 10.77.0]"),
            click.option(
                "--flat", "without_namespaces", is_flag=True, help="Run all daemons on 127.0.0.1, without namespaces."
            ),
        )
    ):
        function = option(function)
    return _dir_option(function)


@click.group(cls=CommandGroup)
def lab() -> None:
    """Start a throw-away SLURM cluster on this machine, change it while jobs run, and remove it without a trace.

    Nodes have their own host names, addresses, processes, /tmp and /dev/shm; links can have a rate and a latency. Root
    rights are not needed if users may create namespaces. Without namespaces, all daemons of the lab run on 127.0.0.1
    (a flat lab), and a warning states why.

    \b
    Example:
      hpccoll lab run --link 400M -- sbatch --wait job.sh      # a lab for one command
      hpccoll lab up && hpccoll lab run -- srun -N4 hostname
      hpccoll lab link node2 --rate 100M && hpccoll lab down
    """  # noqa: D301 - \b makes click keep the line breaks


@lab.command(epilog="Example: hpccoll lab up --nodes 4 --link 400M --latency 1ms")
@_spec_options
def up(state_dir: Path | None, without_namespaces: bool, **options: Any) -> int:
    """Start a lab in the background; return when all nodes are idle."""
    from hpccoll.lab import client, isolation, launch, requirements
    from hpccoll.lab import state_dir as files

    requirements.require_programs()
    state_dir = state_dir or files.get_default_dir()
    if client.is_lab_running(state_dir):
        end = f"hpccoll lab down --dir {state_dir}"
        raise UsageError(f"a lab runs in {state_dir} already; end it: {end}; or name another --dir")
    chosen, reason = isolation.choose_isolation(without_namespaces)
    begin = time.monotonic()
    started = launch.launch_lab(_build_spec(options), state_dir, chosen, reason, None, keep=True)
    if chosen is isolation.Isolation.FLAT:
        _warn_of_flat_mode(reason)
    how = f"{chosen.description}; {reason}" if reason else chosen.description
    elapsed_s, nodes = time.monotonic() - begin, started.spec.nodes
    click.echo(f"{nodes} nodes are idle after {elapsed_s:.2f} s ({how}); shared directory {started.paths.shared}")
    dir_option = "" if state_dir == files.get_default_dir() else f" --dir {state_dir}"
    click.echo(f"next: hpccoll lab run{dir_option} -- srun -N{nodes} hostname")
    return 0


@lab.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Example: hpccoll lab run -- srun -N4 --ntasks-per-node=2 hostname",
)
@_spec_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(state_dir: Path | None, without_namespaces: bool, command: tuple[str, ...], **options: Any) -> int:
    """Run a command on the control node of the running lab, or of a new lab that ends with the command.

    A new lab is started if none runs, or if an option such as --nodes or --link describes one. Ctrl-C ends the
    command and a lab that was started for it. The exit status is that of the command.
    """
    from hpccoll.lab.client import is_lab_running
    from hpccoll.lab.cluster import Lab
    from hpccoll.lab.isolation import Isolation
    from hpccoll.lab.state_dir import get_default_dir

    describes_lab = without_namespaces or any(value for value in options.values())
    running_dir = state_dir or get_default_dir()
    with ExitStack() as stack:
        if is_lab_running(running_dir):
            if describes_lab and state_dir:
                end = f"hpccoll lab down --dir {running_dir}"
                raise UsageError(f"a lab runs in {running_dir} already; omit --nodes, --link etc. or end it: {end}")
            if not describes_lab:
                return _run_in_foreground(Lab.attach(running_dir), command)
        new_lab = stack.enter_context(Lab(_build_spec(options), state_dir=state_dir, flat=without_namespaces))
        if new_lab.client.isolation is Isolation.FLAT:
            _warn_of_flat_mode(new_lab.get_status()["why"])
        return _run_in_foreground(new_lab, command)


@lab.command(epilog="Example: hpccoll lab down")
@_dir_option
def down(state_dir: Path | None) -> int:
    """End the lab and everything that runs on it; only files in its shared directory stay."""
    _attach(state_dir).client.shut_down()
    return 0


@lab.command(epilog="Example: hpccoll lab status --json -")
@_dir_option
@json_option("Write one JSON object; - for standard output.")
def status(state_dir: Path | None, json_file: str | None) -> int:
    """Show the nodes with their links and SLURM states."""
    from hpccoll.lab.cluster_spec import format_rate
    from hpccoll.lab.isolation import Isolation

    attached = _attach(state_dir)
    report = attached.get_status()
    words = attached.run(["sinfo", "-h", "-N", "-o", "%N %T"], timeout_s=30).stdout.split()
    states = dict(zip(words[::2], words[1::2], strict=False))
    nodes = [node | {"state": states.get(node["name"], "unknown")} for node in report["nodes"]]
    with open_json_lines(json_file) as out:
        out.write({"schema": SCHEMA, "kind": "lab", "dir": str(attached.state_dir), **report, "nodes": nodes})
    if json_file != "-":
        latency = report["shape"]["latency_s"]
        extra = f", latency {latency * 1e3:g} ms" if latency else ""
        print_table(
            f"lab in {attached.state_dir}: {Isolation(report['isolation']).description}{extra}",
            ["node", "address", "SLURM", "power", "link", "rate", "slowed"],
            [
                [
                    *(node["name"], node["address"], node["state"], "on" if node["power"] else "off"),
                    *("up" if node["link_up"] else "down", format_rate(node["bytes_per_s"])),
                    f"{node['slow_percent']:g} %",
                ]
                for node in nodes
            ],
            ["rate", "slowed"],
        )
    return 0


@lab.command(epilog="Example: hpccoll lab link node2 --rate 100M")
@click.argument("node")
@_dir_option
@click.option("--rate", metavar="RATE", help="Bits per second, such as 400M; max for no limit.")
@click.option("--on/--off", "up", default=None, help="Take the link up or down.")
def link(node: str, state_dir: Path | None, rate: str | None, up: bool | None) -> int:
    """Change the rate of the link of NODE, or take it down or up; NODE may be `all`."""
    if rate is None and up is None:
        raise UsageError(f"no change given for the link of {node}: give --rate RATE, --on or --off")
    _attach(state_dir).set_link(node, rate=rate, up=up)
    return 0


@lab.command(epilog="Example: hpccoll lab power node3 off")
@click.argument("node")
@click.argument("state", type=click.Choice(["on", "off"]))
@_dir_option
def power(node: str, state: str, state_dir: Path | None) -> int:
    """Switch NODE off like a power cut, or on again; SLURM notices after some seconds."""
    _attach(state_dir).set_power(node, on=state == "on")
    return 0


@lab.command(epilog="Example: hpccoll lab slow node3 --percent 50")
@click.argument("node")
@_dir_option
@click.option("--percent", type=float, required=True, help="Percentage of CPU time to take away; 0 ends it.")
def slow(node: str, state_dir: Path | None, percent: float) -> int:
    """Take a percentage of CPU time from the processes of NODE."""
    _attach(state_dir).throttle(node, percent)
    return 0


def _warn_of_flat_mode(reason: str) -> None:
    """Warn on standard error that the lab has no namespaces, for the reason `reason`, and that it is insecure."""
    from hpccoll.lab.isolation import Isolation

    click.echo(
        f"# {Isolation.FLAT.description} ({reason}). Any user of this machine can run jobs on it under your name: "
        "do not use it on a shared machine.",
        err=True,
    )


def _attach(state_dir: Path | None) -> Lab:
    """Return the running lab with the state directory `state_dir`; raise UnavailableError if no lab runs there.

    None as `state_dir` stands for the default directory.
    """
    from hpccoll.lab.cluster import Lab
    from hpccoll.lab.state_dir import get_default_dir

    return Lab.attach(state_dir or get_default_dir())


def _build_spec(options: dict[str, Any]) -> ClusterSpec:
    """Return the configuration of a new lab; its nodes also see the working directory and the Python installation.

    `options` has the values of the options that describe a lab, by parameter; None stands for a default.
    """
    from hpccoll.lab.cluster_spec import ClusterSpec, parse_latency, parse_rate

    fields = {name: options[name] for name in ("nodes", "cpus", "subnet") if options[name] is not None}
    if options["link"] is not None:
        fields["bytes_per_s"] = parse_rate(options["link"])
    if options["latency"] is not None:
        fields["latency_s"] = parse_latency(options["latency"])
    own = str(Path(__file__).parents[2])  # outside of sys.prefix in an editable installation
    return ClusterSpec(**fields, shares=(*options["shares"], str(Path.cwd()), sys.prefix, own))


def _run_in_foreground(running_lab: Lab, command: tuple[str, ...]) -> int:
    """Run `command` on the lab's control node, on this terminal; return its exit status, or 128 + N after signal N.

    A job step of SLURM whose ranks cannot start is ended. If this function ended a job step and the command fails, the
    exit status is 4, as for a CommunicationError.
    """
    from hpccoll.lab.lost_messages import LostMessageWatch, describe_lost_message

    watch, lost, status = LostMessageWatch(running_lab), False, None
    process = subprocess.Popen(running_lab.wrap_command(command), env=running_lab.build_environment())
    try:
        while status is None:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(WATCH_S)
            for step in watch.end_broken_steps():
                click.echo(describe_lost_message(step), err=True)
                lost = True
    except KeyboardInterrupt:  # the terminal has sent SIGINT to the command as well
        _end_interrupted(process)
        return 130
    if lost and status:
        return CommunicationError.exit_status
    return 128 - status if status < 0 else status


def _end_interrupted(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a command that was interrupted by Ctrl-C; after a time, interrupt it again, then kill it.

    srun ends only after a second interrupt.
    """
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for limit_s in (SECOND_INTERRUPT_S, KILL_S):
            try:
                process.wait(limit_s)
                break
            except subprocess.TimeoutExpired:
                os.killpg(0, signal.SIGINT)
        else:
            process.kill()
        process.wait()
    finally:
        signal.signal(signal.SIGINT, handler)
