"""Loads the network that --machine names: a machine model, a network file, a measured cluster or NCCL's topology."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpccoll.errors import UsageError
from hpccoll.private_files import read_limited

if TYPE_CHECKING:
    from hpccoll.synthesis import Network

NETWORK_KINDS = "NAME|FILE.toml|FILE.xml|FILE.jsonl"
_MOST_BYTES = 2**24
_MOST_RANKS = 1024


def load_network(name: str, ranks: int | None, nodes: int | None = None) -> Network:
    """Return the network of `ranks` ranks that --machine names.

    Args:
        name: a machine model, built in or FILE.toml; a network FILE.toml; NCCL's topology FILE.xml; or FILE.jsonl,
            which `hpccoll preflight --json` wrote.
        ranks: the number of ranks; None for the number that the file states.
        nodes: the number of nodes of a machine model (None: as many as the ranks fill), or of NCCL's topology (None:
            one); ignored for other files, which state their nodes.

    Raises:
        UsageError: the file cannot be read, describes no network, or has another number of ranks.
    """
    if name.endswith(".xml"):
        from hpccoll.synthesis.nccl_topology import read_nccl_topology

        network = read_nccl_topology(_read(name), name, nodes or 1)
    elif name.endswith((".jsonl", ".json")):
        network = _load_measured(name, ranks)
    else:
        from hpccoll.synthesis.network_file import is_network_file, read_network_file

        text = _read(name) if name.endswith(".toml") else ""
        if not is_network_file(text):
            return _load_machine(name, ranks, nodes)
        network = read_network_file(text, name)
    if ranks not in (None, network.ranks):
        raise UsageError(f"--machine {name} has {network.ranks} ranks, and --ranks asks for {ranks}; leave --ranks out")
    return network


def is_machine_model(name: str) -> bool:
    """Whether `name`, the value of --machine, is a machine model, which can be simulated, and not only a network."""
    from hpccoll.synthesis.network_file import is_network_file

    return not name.endswith((".xml", ".jsonl", ".json")) and not (
        name.endswith(".toml") and is_network_file(_read(name))
    )


def _load_machine(name: str, ranks: int | None, nodes: int | None) -> Network:
    """Return the network of a machine model; raise UsageError for more than _MOST_RANKS ranks.

    Args:
        name: the machine model, built in or FILE.toml.
        ranks: the number of ranks; None for all ranks of `nodes` nodes.
        nodes: the number of nodes; None for as many nodes as `ranks` ranks fill, or for one node if `ranks` is None,
            too.
    """
    from hpccoll.predict.machine_catalogue import load_machine
    from hpccoll.synthesis import make_machine_network

    machine = load_machine(name)
    count = ranks or machine.ranks_per_node * (nodes or 1)
    if not 1 <= count <= _MOST_RANKS:
        raise UsageError(f"--ranks {count}: an optimum is computed for 1 to {_MOST_RANKS} ranks; give such a number")
    return make_machine_network(machine.with_ranks_per_node(-(-count // nodes)) if nodes else machine, count)


def _load_measured(name: str, ranks: int | None) -> Network:
    """Return the network of the nodes that `hpccoll preflight --json` measured, with equally many ranks on each.

    `name` is the result file. `ranks` is the number of all ranks; None for the number that the file states.
    """
    from hpccoll.measure.results.result_file import read_records
    from hpccoll.synthesis.measured_network import make_measured_network, read_link_rates

    records = read_records(name, "--machine").records
    nodes = len(read_link_rates(records, name))
    if ranks is not None and ranks % nodes:
        raise UsageError(f"--ranks {ranks} cannot be spread evenly over the {nodes} nodes of {name}; give a multiple")
    return make_measured_network(records, name, None if ranks is None else (ranks // nodes,) * nodes)


def _read(name: str) -> str:
    """Return the text of the file `name`, which --machine names; raise UsageError if it is unreadable or too long."""
    try:
        return read_limited(name, _MOST_BYTES).decode()
    except (OSError, ValueError) as error:
        raise UsageError(f"--machine {name}: cannot read it ({getattr(error, 'strerror', None) or error})") from error
