"""Format slurm.conf and the hosts file for a SLURM that needs no systemd, munge or host configuration."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack

from hpccoll.lab.cluster_spec import ClusterSpec
from hpccoll.lab.state_dir import LabPaths


def find_free_ports(count: int) -> list[int]:
    """Return `count` TCP ports of 127.0.0.1 that are unused now; other programs may take them later."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))
        return [bound.getsockname()[1] for bound in sockets]


# The short timeouts in slurm.conf let SLURM detect a dead node after 14 s, instead of 28 s with the default ones.
# The SchedulerParameters in slurm.conf let SLURM start a job immediately.
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


def format_hosts_file(spec: ClusterSpec) -> str:
    """Return the text of a lab's /etc/hosts: the loopback, the control node, and the nodes."""
    entries = [("127.0.0.1", "localhost"), *((spec.get_address(name), name) for name in ("ctl", *spec.names))]
    return "".join(f"{address} {name}\n" for address, name in entries)


def format_slurm_conf(spec: ClusterSpec, paths: LabPaths, ports: Sequence[int] = ()) -> str:
    """Return the text of a lab's slurm.conf.

    Args:
        spec: nodes and CPUs.
        paths: the lab's files.
        ports: in flat mode, the TCP port of slurmctld and then one port per node; empty otherwise.
    """
    host = socket.gethostname()
    settings = {
        "SlurmctldHost": f"{host}(127.0.0.1)" if ports else f"ctl({spec.get_address('ctl')})",
        "SlurmUser": paths.user,
        "SlurmdUser": paths.user,
        "StateSaveLocation": paths.dir / "state",
        "SlurmdSpoolDir": paths.dir / "spool" / "%n",
        "SlurmctldPidFile": paths.dir / "slurmctld.pid",
        "SlurmdPidFile": paths.dir / "spool" / "%n.pid",
        "SlurmctldLogFile": paths.log("slurmctld"),
        "SlurmdLogFile": paths.log("%n"),
        "JobCompLoc": paths.dir / "jobs.txt",
    }
    if ports:  # auth/none trusts every client, so the daemons must not be reachable from other hosts
        settings |= {"SlurmctldPort": ports[0], "CommunicationParameters": "NoInAddrAny,NoCtldInAddrAny"}
    lines = [f"{key}={value}\n" for key, value in settings.items()]
    resources = f"CPUs={spec.cpus} RealMemory=2000 State=UNKNOWN"
    for index, name in enumerate(spec.names, 1):
        address = f"NodeAddr={spec.get_address(name)}"
        if ports:
            address = f"NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[index]}"
        lines.append(f"NodeName={name} {address} {resources}\n")
    lines.append("PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n")
    return _COMMON + "".join(lines)
