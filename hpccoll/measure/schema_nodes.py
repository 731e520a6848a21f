"""JSON Schema of the records about nodes: `hpccoll preflight` and `hpccoll scaling`."""

from __future__ import annotations

from hpccoll.measure.schema_parts import FLAG, TEXT, TEXT_OR_NULL, TIME, TIME_OR_NULL, Schema, array, record, whole


def kinds_of_nodes() -> dict[str, Schema]:
    """Return the schemas by kind of record."""
    return {
        "preflight_pair": _pair(),
        "preflight_node": _node(),
        "preflight_summary": _preflight(),
        "scaling": _scaling(),
    }


def _pair() -> Schema:
    rate: Schema = {"type": ["number", "null"], "exclusiveMinimum": 0}
    return record(
        "One direction of the link between two nodes, as its sender measured it (`hpccoll preflight`).",
        {
            "source": TEXT | {"description": "The sending node's host name."},
            "destination": TEXT | {"description": "The receiving node's host name."},
            "nbytes": whole(1, "Of the long message."),
            "repeats": whole(0, "How often the pair was measured; 0 where it never could be."),
            "latency_us": TIME_OR_NULL | {"description": "Half the best round trip; null where there was none."},
            "bandwidth_GBps": rate | {"description": "Of the best transfer; null where the link is broken."},
            "transfer_us": array(TIME, "What the long message took, each time."),
            "broken": TEXT_OR_NULL | {"description": "Why the link could not be measured."},
        },
    )


def _node() -> Schema:
    return record(
        "What a node does by itself, on the cores that its first rank may use (`hpccoll preflight`).",
        {
            "node": TEXT,
            "repeats": whole(),
            "copy_GBps": TIME_OR_NULL | {"description": "Bytes copied in memory, the median of its slices."},
            "compute_Gsin_per_s": TIME_OR_NULL | {"description": "1e9 sines of float64 a second, the median."},
            "lost": TEXT_OR_NULL | {"description": "Why the node was left out, where it was."},
        },
    )


def _preflight() -> Schema:
    kinds = ["lost_node", "broken_link", "slow_node", "slow_node_link", "slow_link"]
    fault = {
        "kind": {"enum": kinds},
        "nodes": array(TEXT, "The node, or the two ends of the link."),
        "found": TEXT,
        "ratio": TIME_OR_NULL | {"description": "The value over the median of the others; null where broken."},
        "remedy": TEXT,
        "exclude": TEXT | {"description": "The node to leave out."},
    }
    return record(
        "What is slow or broken; the last record of `hpccoll preflight`.",
        {
            "nodes": array(TEXT, "Those that were looked at."),
            "threshold": TIME | {"description": "Slow is below this fraction of the median of the others."},
            "faults": array(record("One fault.", fault), "Empty where all is well."),
            "exclude": array(TEXT, "Nodes to leave out of a job, for sbatch --exclude."),
        },
    )


def _scaling() -> Schema:
    point = {
        "nodes": whole(1),
        "ranks": whole(1),
        "p50_us": TIME,
        "p50_low_us": TIME,
        "p50_high_us": TIME,
        "busbw_GBps": TIME,
        "ratio": TIME | {"description": "The median over that of the first point."},
    }
    series = dict.fromkeys(("op", "dtype", "buffer", "engine"), TEXT)
    return record(
        "One contender on one size over numbers of nodes (`hpccoll scaling`).",
        {
            **series,
            "nbytes": whole(0, "nccl-tests' S."),
            "in_place": FLAG,
            "algorithm": TEXT_OR_NULL,
            "points": array(record("One number of nodes and ranks.", point), "The fewest nodes first."),
        },
    )
