"""The CSV file of NCCL's example tuner plugin, which sets the algorithm and the protocol of a collective.

The columns are those of NCCL's source tree, plugins/tuner/example: collective, smallest and largest size in bytes,
algorithm, protocol, channels, nodes, ranks, operations in a pipeline, registered buffers; -1 stands for any or for
NCCL's own choice. NCCL reads the file if NCCL_TUNER_PLUGIN names the plugin and NCCL_TUNER_CONFIG_FILE the file.
"""

from __future__ import annotations

from pathlib import Path

from hpccoll.library_rules.rules import LibraryRules
from hpccoll.plan import Operation

COLLECTIVES = {
    Operation.ALL_GATHER: "allgather",
    Operation.ALL_REDUCE: "allreduce",
    Operation.BROADCAST: "broadcast",
    Operation.REDUCE: "reduce",
    Operation.REDUCE_SCATTER: "reducescatter",
}
PROTOCOLS = "ll", "ll128", "simple"
ALGORITHMS = dict.fromkeys(COLLECTIVES, ("ring",)) | {Operation.ALL_REDUCE: ("ring", "tree")}
NO_LIMIT = 2**63 - 1  # the largest size of a rule without an upper limit
MOST_CHARACTERS = 250  # the plugin reads lines of at most 255 characters


def format_tuner_csv(rules: LibraryRules) -> str:
    """Return the rules as the text of a CSV file for NCCL's example tuner plugin; the first lines are comments."""
    lines = [f"# {line}"[:MOST_CHARACTERS] for line in rules.describe()]
    lines += ["# collective,minBytes,maxBytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"]
    for rule in rules.rules:
        name, last = COLLECTIVES[rule.operation], NO_LIMIT if rule.last is None else rule.last
        choice = f"{rule.algorithm.name},{rule.algorithm.composition}"
        lines.append(f"{name},{rule.first},{last},{choice},-1,{rules.nodes},{rules.ranks},-1,-1")
    return "\n".join(lines) + "\n"


def list_variables(path: Path) -> dict[str, str]:
    """Return the environment variables by which NCCL reads the file `path` through its example tuner plugin.

    The path of the plugin is a placeholder: users build the plugin from NCCL's source tree.
    """
    return {"NCCL_TUNER_PLUGIN": "/path/to/libnccl-tuner-example.so", "NCCL_TUNER_CONFIG_FILE": str(path.absolute())}
