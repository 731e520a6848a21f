"""The text of slurm.conf and of the hosts file: a SLURM without systemd, munge, or anything of the host's own."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import dataclass

from hpccoll.lab.cluster_spec import ClusterSpec
from hpccoll.lab.state_dir import LabPaths


@dataclass(frozen=True, slots=True)
class LoopbackPorts:
    """Where daemons listen in flat mode, where all share one address: the controller's port, and one a node."""

    control: int
    nodes: tuple[int, ...]
    host: str


def find_free_ports(nodes: int) -> LoopbackPorts:
    """Return ports that nobody listens at, one for the controller and one a node."""
    with ExitStack() as stack:
        found = []
        for _ in range(nodes + 1):
            held = stack.enter_context(socket.socket())
            held.bind(("127.0.0.1", 0))
            found.append(held.getsockname()[1])
    return LoopbackPorts(found[0], tuple(found[1:]), socket.gethostname())


# Each line that is not a default has its reason. A lab is to notice a dead node soon (14 s;
# 28 s with the default time limits of messages), and to start a job at once.
_COMMON = """\
ClusterName=lab
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=pmi2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
EnforcePartLimits=ALL
ReturnToService=2
KillWait=2
SlurmdTimeout=5
MessageTimeout=4
TCPTimeout=1
MailProg=/bin/true
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1
SlurmdParameters=config_overrides
JobCompType=jobcomp/filetxt
"""


def format_hosts_file(shape: ClusterSpec) -> str:
    """Return the hosts file of a lab: the loopback, the control node, and the nodes."""
    named = [("127.0.0.1", "localhost"), *((shape.address(name), name) for name in ("ctl", *shape.names))]
    return "".join(f"{address} {name}\n" for address, name in named)


def format_slurm_conf(shape: ClusterSpec, place: LabPaths, flat: LoopbackPorts | None = None) -> str:
    """Return the slurm.conf of a lab.

    Args:
        shape: its nodes.
        place: its folder and user.
        flat: the ports, where all daemons share the host's name and loopback address; None where nodes are apart.
    """
    control = f"{flat.host}(127.0.0.1)" if flat else f"ctl({shape.address('ctl')})"
    own = {
        "SlurmctldHost": control,
        "SlurmUser": place.user,
        "SlurmdUser": place.user,
        "StateSaveLocation": place.dir / "state",
        "SlurmdSpoolDir": place.dir / "spool" / "%n",
        "SlurmctldPidFile": place.dir / "slurmctld.pid",
        "SlurmdPidFile": place.dir / "spool" / "%n.pid",
        "SlurmctldLogFile": place.log("slurmctld"),
        "SlurmdLogFile": place.log("%n"),
        "JobCompLoc": place.dir / "jobs.txt",
    }
    if flat:  # auth/none believes whoever can reach it: nobody from outside this host may
        own |= {"SlurmctldPort": flat.control, "CommunicationParameters": "NoInAddrAny,NoCtldInAddrAny"}
    lines = [f"{key}={value}\n" for key, value in own.items()]
    has = f"CPUs={shape.cpus} RealMemory=2000 State=UNKNOWN"
    for at, name in enumerate(shape.names):
        where = f"NodeHostname={flat.host} NodeAddr=127.0.0.1 Port={flat.nodes[at]}" if flat else ""
        lines.append(f"NodeName={name} {where or f'NodeAddr={shape.address(name)}'} {has}\n")
    lines.append("PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n")
    return _COMMON + "".join(lines)
