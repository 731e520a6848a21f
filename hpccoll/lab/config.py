"""The text of slurm.conf and of the hosts file: a SLURM without systemd, munge, or anything of the host's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpccoll.lab.folder import SHARED
from hpccoll.lab.shape import Shape


@dataclass(frozen=True, slots=True)
class Place:
    """Where a lab lives.

    Args:
        dir: its folder.
        user: who runs it, and the only one whose jobs it takes: auth/none believes what it is told.
    """

    dir: Path
    user: str

    @property
    def conf(self) -> Path:
        """slurm.conf, which SLURM_CONF names to every command."""
        return self.dir / "slurm.conf"

    @property
    def hosts(self) -> Path:
        """What stands in for /etc/hosts."""
        return self.dir / "hosts"

    @property
    def control(self) -> Path:
        """The socket at which the keeper listens."""
        return self.dir / "control"

    @property
    def shared(self) -> Path:
        """The folder for what jobs read and write on all nodes."""
        return self.dir / SHARED

    def log(self, name: str) -> Path:
        """Return the log of a daemon."""
        return self.dir / "log" / f"{name}.log"


@dataclass(frozen=True, slots=True)
class Ports:
    """Where daemons listen in flat mode, where all share one address: the controller's port, and one a node."""

    control: int
    nodes: tuple[int, ...]
    host: str


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


def hosts_text(shape: Shape) -> str:
    """Return the hosts file of a lab: the loopback, the control node, and the nodes."""
    named = [("127.0.0.1", "localhost"), *((shape.address(name), name) for name in ("ctl", *shape.names))]
    return "".join(f"{address} {name}\n" for address, name in named)


def slurm_conf(shape: Shape, place: Place, flat: Ports | None = None) -> str:
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
