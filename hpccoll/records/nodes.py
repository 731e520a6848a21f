"""Records of nodes: kinds `preflight_pair`, `preflight_node`, `preflight_summary`, `scaling`, `finding` and `lab`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from hpccoll.records.record import Amount, Count, Positive, Record, about

Rate = Annotated[float, Meta(gt=0)]


class PreflightPairRecord(Record, frozen=True):
    """One direction of the link between two nodes, as its sender measured it (`hpccoll preflight`)."""

    kind: ClassVar[str] = "preflight_pair"

    source: Annotated[str, about("The sending node's host name.")]
    destination: Annotated[str, about("The receiving node's host name.")]
    nbytes: Annotated[Positive, about("Of the long message.")]
    repeats: Annotated[Count, about("How often the pair was measured; 0 where it never could be.")]
    latency_us: Annotated[Amount | None, about("Half the best round trip; null where there was none.")]
    bandwidth_GBps: Annotated[Rate | None, about("Of the best transfer; null where the link is broken.")]  # noqa: N815
    transfer_us: Annotated[tuple[Amount, ...], about("What the long message took, each time.")]
    broken: Annotated[str | None, about("Why the link could not be measured.")]


class PreflightNodeRecord(Record, frozen=True):
    """What a node does by itself, on the cores that its first rank may use (`hpccoll preflight`)."""

    kind: ClassVar[str] = "preflight_node"

    node: str
    repeats: Count
    copy_GBps: Annotated[Amount | None, about("Bytes copied in memory, the median of its slices.")]  # noqa: N815
    compute_Gsin_per_s: Annotated[Amount | None, about("1e9 sines of float64 per second, the median.")]  # noqa: N815
    lost: Annotated[str | None, about("Why the node was left out, where it was.")]


class FaultEntry(Struct, frozen=True):
    """One fault."""

    kind: Literal["lost_node", "broken_link", "slow_node", "slow_node_link", "slow_link"]
    nodes: Annotated[tuple[str, ...], about("The node, or the two ends of the link.")]
    found: str
    ratio: Annotated[Amount | None, about("The value over the median of the others; null where broken.")]
    remedy: str
    exclude: Annotated[str, about("The node to leave out.")]


class PreflightSummaryRecord(Record, frozen=True):
    """What is slow or broken; the last record of `hpccoll preflight`."""

    kind: ClassVar[str] = "preflight_summary"

    nodes: Annotated[tuple[str, ...], about("Those that were looked at.")]
    threshold: Annotated[Amount, about("Slow is below this fraction of the median of the others.")]
    faults: Annotated[tuple[FaultEntry, ...], about("Empty where all is well.")]
    exclude: Annotated[tuple[str, ...], about("Nodes to leave out of a job, for sbatch --exclude.")]


class ScalingPoint(Struct, frozen=True):
    """One number of nodes and ranks."""

    nodes: Positive
    ranks: Positive
    p50_us: Amount
    p50_low_us: Amount
    p50_high_us: Amount
    busbw_GBps: Amount  # noqa: N815
    ratio: Annotated[Amount, about("The median over that of the first point.")]


class ScalingRecord(Record, frozen=True):
    """One contender on one size over numbers of nodes (`hpccoll scaling`)."""

    kind: ClassVar[str] = "scaling"

    op: str
    nbytes: Annotated[Count, about("nccl-tests' S.")]
    in_place: bool
    dtype: str
    buffer: str
    engine: str
    algorithm: str | None
    points: Annotated[tuple[ScalingPoint, ...], about("The fewest nodes first.")]


class FindingRecord(Record, frozen=True):
    """One thing that was looked at (`hpccoll doctor`), or that results say (`hpccoll report`)."""

    kind: ClassVar[str] = "finding"

    area: Annotated[str, about("What it belongs to, such as mpi, binding, link or noise.")]
    severity: Literal["ok", "note", "warning", "problem"]
    found: str
    evidence: str
    remedy: Annotated[str | None, about("null where there is nothing to mend.")]
    provides: Annotated[tuple[str, ...], about("What of --require it shows to work.")]
    hosts: Annotated[
        tuple[str, ...], about("Where it was found; empty for the job as a whole, or where there is one host.")
    ]


class LabShapeEntry(Struct, frozen=True):
    """As it was started."""

    nodes: Positive
    cpus: Positive
    bytes_per_s: Annotated[Amount | None, about("null where there is no limit.")]
    latency_s: Amount
    shares: Annotated[tuple[str, ...], about("Paths beneath /tmp that nodes see.")]
    subnet: str


class LabNodeEntry(Struct, frozen=True):
    """A node as it is."""

    name: str
    address: str
    power: Annotated[bool, about("Whether it is on.")]
    link_up: bool
    bytes_per_s: Annotated[Amount | None, about("null where there is no limit.")]
    slow_percent: Amount
    state: Annotated[str, about("What SLURM says of it.")]


class LabRecord(Record, frozen=True):
    """A throw-away SLURM cluster (`hpccoll lab status`)."""

    kind: ClassVar[str] = "lab"

    dir: str
    isolation: Annotated[Literal["root", "user", "flat"], about("How nodes are kept apart.")]
    why: Annotated[str, about("Why they are not better apart; empty where they are as they should be.")]
    shape: LabShapeEntry
    nodes: Annotated[tuple[LabNodeEntry, ...], about("All of them.")]
