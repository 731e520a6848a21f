"""Records of nodes: kinds `preflight_pair`, `preflight_node`, `preflight_summary`, `scaling`, `finding` and `lab`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from hpccoll.records.record import Amount, Natural, Positive, Record, about

Rate = Annotated[float, Meta(gt=0)]


class PreflightPairRecord(Record, frozen=True):
    """Latency and bandwidth from one node to another, measured by the sending node (`hpccoll preflight`)."""

    kind: ClassVar[str] = "preflight_pair"

    source: Annotated[str, about("The sending node's host name.")]
    destination: Annotated[str, about("The receiving node's host name.")]
    nbytes: Annotated[Positive, about("Size of the long message.")]
    repeats: Annotated[Natural, about("Number of measurements of the pair; 0 if none succeeded.")]
    latency_us: Annotated[Amount | None, about("Half the best round trip; null if there was none.")]
    bandwidth_GBps: Annotated[Rate | None, about("Best transfer; null if the link is broken.")]  # noqa: N815
    transfer_us: Annotated[tuple[Amount, ...], about("Time of each transfer of the long message.")]
    broken: Annotated[str | None, about("Why the link could not be measured.")]


class PreflightNodeRecord(Record, frozen=True):
    """Speed of a node's memory and cores, measured on the cores that its first rank may use (`hpccoll preflight`)."""

    kind: ClassVar[str] = "preflight_node"

    node: str
    repeats: Natural
    copy_GBps: Annotated[Amount | None, about("Bytes copied in memory, median of several time slices.")]  # noqa: N815
    compute_Gsin_per_s: Annotated[Amount | None, about("1e9 float64 sines per second, median.")]  # noqa: N815
    lost: Annotated[str | None, about("Why the node was left out; null if it was measured.")]


class FaultEntry(Struct, frozen=True):
    """A lost or slow node, or a broken or slow link, that `hpccoll preflight` found."""

    kind: Literal["lost_node", "broken_link", "slow_node", "slow_node_link", "slow_link"]
    nodes: Annotated[tuple[str, ...], about("The node, or the two ends of the link.")]
    found: str
    ratio: Annotated[Amount | None, about("Speed divided by the median of the others; null if lost or broken.")]
    remedy: str
    exclude: Annotated[str, about("The node to leave out.")]


class PreflightSummaryRecord(Record, frozen=True):
    """The slow and broken nodes and links that `hpccoll preflight` found; the last record of its run."""

    kind: ClassVar[str] = "preflight_summary"

    nodes: Annotated[tuple[str, ...], about("The nodes that were tested.")]
    threshold: Annotated[Amount, about("Slow means below this fraction of the median of the others.")]
    faults: Annotated[tuple[FaultEntry, ...], about("Empty if nothing is slow or broken.")]
    exclude: Annotated[tuple[str, ...], about("Nodes to leave out of a job, for sbatch --exclude.")]


class ScalingPoint(Struct, frozen=True):
    """Median time and bus bandwidth of a collective on one number of nodes and ranks."""

    nodes: Positive
    ranks: Positive
    p50_us: Amount
    p50_low_us: Amount
    p50_high_us: Amount
    busbw_GBps: Amount  # noqa: N815
    ratio: Annotated[Amount, about("p50_us divided by p50_us of the first point.")]


class ScalingRecord(Record, frozen=True):
    """Times of one collective, engine, algorithm and size on several numbers of nodes (`hpccoll scaling`)."""

    kind: ClassVar[str] = "scaling"

    op: str
    nbytes: Annotated[Natural, about("nccl-tests' S.")]
    in_place: bool
    dtype: str
    buffer: str
    engine: str
    algorithm: str | None
    points: Annotated[tuple[ScalingPoint, ...], about("The fewest nodes first.")]
    redop: Annotated[str | None, about("null if the operation does not reduce.")] = None
    root: Annotated[Natural | None, about("null if the operation has no root.")] = None


class FindingRecord(Record, frozen=True):
    """The outcome of one check (`hpccoll doctor`), or a conclusion from results (`hpccoll report`)."""

    kind: ClassVar[str] = "finding"

    area: Annotated[str, about("The subject, such as mpi, binding, link or noise.")]
    severity: Literal["ok", "note", "warning", "problem"]
    found: str
    evidence: str
    remedy: Annotated[str | None, about("null if nothing needs to be done.")]
    provides: Annotated[tuple[str, ...], about("The values of --require that the checked feature satisfies.")]
    hosts: Annotated[
        tuple[str, ...], about("Affected host names; empty for the whole job, and if there is only one host.")
    ]


class LabShapeEntry(Struct, frozen=True):
    """The configuration with which a lab, a SLURM cluster on one machine, was started (`hpccoll lab up`)."""

    nodes: Positive
    cpus: Positive
    bytes_per_s: Annotated[Amount | None, about("Link limit; null if unlimited.")]
    latency_s: Amount
    shares: Annotated[
        tuple[str, ...], about("Paths below /tmp that all nodes see; the rest of /tmp is each node's own.")
    ]
    subnet: str


class LabNodeEntry(Struct, frozen=True):
    """The current state of one node of a lab: address, power, link, speed and SLURM state."""

    name: str
    address: str
    power: Annotated[bool, about("Whether the node is on.")]
    link_up: bool
    bytes_per_s: Annotated[Amount | None, about("Link limit; null if unlimited.")]
    slow_percent: Amount
    state: Annotated[str, about("The node's state in SLURM.")]


class LabRecord(Record, frozen=True):
    """A lab, a temporary SLURM cluster on one machine: its configuration and nodes (`hpccoll lab status`)."""

    kind: ClassVar[str] = "lab"

    dir: str
    isolation: Annotated[Literal["root", "user", "flat"], about("How nodes are isolated from each other.")]
    why: Annotated[str, about("Why nodes are not isolated better; empty if they have namespaces.")]
    shape: LabShapeEntry
    nodes: Annotated[tuple[LabNodeEntry, ...], about("All nodes.")]
