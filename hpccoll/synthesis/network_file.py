"""Network files: TOML that lists ranks and links, for networks that a machine model does not describe.

Example: two GPUs with a link of their own, and a switch that joins them to a third one.

    name = "three GPUs"
    ranks = ["gpu0", "gpu1", "gpu2"]
    links = [
        {between = ["gpu0", "gpu1"], GBps = 50},         # in each direction
        {between = ["gpu0", "switch"], GBps = 25},
        {between = ["gpu1", "switch"], GBps = 25},
        {from = "gpu2", to = "switch", GBps = 12.5},     # in one direction
        {from = "switch", to = "gpu2", GBps = 25},
    ]
    nodes = [{name = "left", vertices = ["gpu0", "gpu1"]}, {name = "right", vertices = ["gpu2"]}]  # may be left out
"""

from __future__ import annotations

import tomllib
from fractions import Fraction
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from hpccoll.records import explain_validation_error
from hpccoll.synthesis.network import Network, NetworkBuilder, NetworkError, round_rate
from hpccoll.units import GB

VertexName = Annotated[str, Meta(pattern=r"\S")]


class _LinkDescription(Struct, frozen=True, forbid_unknown_fields=True, rename={"source": "from", "dest": "to"}):
    """A link in a network file: between two vertices in both directions, or from one vertex to another."""

    GBps: Annotated[float, Meta(gt=1e-15, le=1e15)]
    between: tuple[VertexName, VertexName] | None = None
    source: VertexName | None = None
    dest: VertexName | None = None


class _NodeDescription(Struct, frozen=True, forbid_unknown_fields=True):
    """A node in a network file: its name and its vertices."""

    name: VertexName
    vertices: tuple[VertexName, ...]


class _NetworkDescription(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a network file: its name, the names of ranks, the links, and nodes as groups of vertices."""

    name: VertexName
    ranks: tuple[VertexName, ...]
    links: tuple[_LinkDescription, ...]
    nodes: tuple[_NodeDescription, ...] = ()


def is_network_file(text: str) -> bool:
    """Whether a TOML file describes a network rather than a machine model, by its keys `ranks` and `links`."""
    try:
        return {"ranks", "links"} <= set(tomllib.loads(text))
    except ValueError:
        return False


def read_network_file(text: str, name: str) -> Network:
    """Return the network that the TOML in `text` describes; error messages call the file `name`.

    Raises NetworkError if a key is missing, unknown or wrong, or a link does not have exactly one of `between` and the
    pair `from` and `to`.
    """
    data: dict[str, Any] = {}
    try:
        data = tomllib.loads(text)
        described = msgspec.convert(data, _NetworkDescription)
    except tomllib.TOMLDecodeError as error:
        raise NetworkError(f"{name}: is not TOML ({error})") from error
    except msgspec.ValidationError as error:
        raise NetworkError(f"{name}: {explain_validation_error(error, data)}") from error
    network = NetworkBuilder(described.name, list(described.ranks))
    for number, link in enumerate(described.links):
        rate = Fraction(round_rate(link.GBps * GB))
        if link.between is not None and link.source is None and link.dest is None:
            network.connect(*link.between, rate)
        elif link.between is None and link.source is not None and link.dest is not None:
            network.add_link(link.source, link.dest, rate)
        else:
            raise NetworkError(f"{name}: links[{number}] needs `between`, or `from` and `to`")
    known = {vertex for link in network.rates for vertex in link}
    named = [*described.ranks, *(vertex for node in described.nodes for vertex in node.vertices)]
    missing = next((vertex for vertex in named if vertex not in known), None)
    if missing is not None or len(set(described.ranks)) < len(described.ranks):
        raise NetworkError(f"{name}: {missing or 'a rank'} has no link or is named twice; every rank needs a link")
    network.nodes += [(node.name, list(node.vertices)) for node in described.nodes]
    return network.build()
