"""The machine model of simulations: nodes of ranks, a link within nodes, and links between nodes through NICs.

A message of B bytes takes alpha + B * beta seconds on its link, and keeps the ports of sender and receiver busy for
overhead + B * beta. A port carries one message at a time in each direction. The remaining alpha - overhead is time of
flight, during which the next message may start. With overhead = alpha, the default, the model is the one-port model of
textbooks (Hockney); with a smaller overhead, it is LogP.

Ranks fill nodes in order and share the NICs of their node: rank i of the q ranks of a node uses NIC i * nics // q in
both directions. Reducing or copying a byte in memory takes gamma seconds. Sources: Hockney, Parallel Computing 1994;
Culler et al., LogP, PPoPP 1993.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import UsageError

Floats: TypeAlias = NDArray[np.float64]

_US, _GB = 1e-6, 1e9
_SHORTEST, _LONGEST = 1e-15, 1e6  # allowed seconds per message or byte; other values are mistakes or overflow
_MOST = 2**20  # ranks or NICs per node


class MachineError(UsageError):
    """Raised if a key in the description of a machine is missing, unknown, of the wrong type or out of range."""


@dataclass(frozen=True, slots=True)
class Link:
    """The cost of a message: alpha + bytes * beta, of which overhead + bytes * beta keep the ports busy.

    `bands` are pairs (bytes, beta), where beta is the seconds per byte for the part of a message beyond `bytes` bytes.
    Bands stand for the effects of buffers, protocols and caches, which make larger messages slower or faster.
    """

    alpha_s: float
    beta_s_per_byte: float
    overhead_s: float
    bands: tuple[tuple[float, float], ...] = ()

    @classmethod
    def one_port(cls, alpha_s: float, beta_s_per_byte: float) -> Link:
        """Return a link of the one-port model, in which ports are busy during the whole message (overhead = alpha)."""
        return cls(alpha_s, beta_s_per_byte, alpha_s)

    def transfer_s(self, nbytes: Floats) -> Floats:
        """Return the seconds (without overhead) for which messages of `nbytes` bytes keep ports busy, as an array."""
        seconds = nbytes * self.beta_s_per_byte
        for start, change in self.bends:
            seconds += np.maximum(nbytes - start, 0) * change
        return seconds

    @property
    def min_beta(self) -> float:
        """The smallest beta (seconds per byte) of all bands."""
        return min(self.beta_s_per_byte, *(beta for _, beta in self.bands), self.beta_s_per_byte)

    @property
    def bends(self) -> tuple[tuple[float, float], ...]:
        """Pairs (bytes, change of beta beyond that size), one per band."""
        betas = [self.beta_s_per_byte, *(beta for _, beta in self.bands)]
        return tuple((start, beta - before) for (start, beta), before in zip(self.bands, betas, strict=False))


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine model: nodes with `ranks_per_node` ranks each (the last may have fewer), and the costs of the links.

    Args:
        name: the name of the machine in output.
        ranks_per_node: ranks r and s are on one node where r // ranks_per_node == s // ranks_per_node.
        within: the link between two ranks of a node.
        between: the link between two nodes; its beta is that of one NIC.
        nics_per_node: the number of messages that can leave (or enter) a node at full speed at the same time.
        gamma_s_per_byte: the seconds that reducing or copying a byte in memory takes.
        sources: citations for the values of the other fields.
        call_s: the seconds of overhead on every rank before the first round of a call.
        fence_s: the seconds from the last rank's arrival at a fence until all leave (None: alpha of `within`).
    """

    name: str
    ranks_per_node: int
    within: Link
    between: Link
    nics_per_node: int
    gamma_s_per_byte: float
    sources: tuple[str, ...] = ()
    call_s: float = 0.0
    fence_s: float | None = None

    @classmethod
    def flat(cls, alpha_s: float, beta_s_per_byte: float, gamma_s_per_byte: float) -> Machine:
        """Return a machine model with one rank per node, so that all links are equal."""
        link = Link.one_port(alpha_s, beta_s_per_byte)
        return cls("flat", 1, link, link, 1, gamma_s_per_byte)

    def with_ranks_per_node(self, ranks: int) -> Machine:
        """Return a copy of this machine model with `ranks` ranks per node and at most `ranks` NICs per node."""
        return replace(self, ranks_per_node=ranks, nics_per_node=min(self.nics_per_node, ranks))

    def count_nodes(self, ranks: int) -> int:
        """Return the number of nodes that `ranks` ranks occupy."""
        return -(-ranks // self.ranks_per_node)


def build_machine(found: Mapping[str, Any], where: str) -> Machine:
    """Return the machine model that a parsed TOML file describes.

    Args:
        found: the keys `name`, `ranks_per_node`, and the tables `[within]` and `[between]` with `alpha_us`,
            `bandwidth_GBps` and optionally `overhead_us`. Optional keys are `nics_per_node` (default 1), `call_us`
            (default 0), `reduce_GBps` (default: reductions cost nothing) and `sources` (strings).
        where: the source of the description for error messages, such as a path.

    Raises:
        MachineError: a key is missing, unknown, of the wrong type or out of range; the message names it.
    """
    known = {"name", "ranks_per_node", "within", "between", "nics_per_node", "reduce_GBps", "sources", "call_us"}
    _refuse_unknown_keys(found, known, where)
    ranks = _read_whole(found, "ranks_per_node", where)
    nics = _read_whole(found, "nics_per_node", where) if "nics_per_node" in found else 1
    if nics > ranks:
        raise MachineError(f"{where}: nics_per_node = {nics} is more than ranks_per_node = {ranks}; give each one NIC")
    call = _read_number(found, "call_us", where) * _US if "call_us" in found else 0.0
    if not 0 <= call <= _LONGEST:
        raise MachineError(f"{where}: call_us must be from 0 to {_LONGEST / _US:g}; found {call / _US:g}")
    return Machine(
        name=_read_string(found.get("name"), f"{where}: name"),
        ranks_per_node=ranks,
        within=_read_link(found, "within", where),
        between=_read_link(found, "between", where),
        nics_per_node=nics,
        gamma_s_per_byte=_read_seconds_per_byte(found, "reduce_GBps", where) if "reduce_GBps" in found else 0.0,
        sources=_read_strings(found.get("sources", []), f"{where}: sources"),
        call_s=call,
    )


def _read_link(found: Mapping[str, Any], name: str, where: str) -> Link:
    """Return the link that the TOML table `name` describes; raise MachineError if the table is invalid."""
    table = found.get(name)
    if not isinstance(table, Mapping):
        raise MachineError(f"{where}: needs a table [{name}] with alpha_us and bandwidth_GBps")
    where = f"{where}, [{name}]"
    _refuse_unknown_keys(table, {"alpha_us", "bandwidth_GBps", "overhead_us"}, where)
    alpha = _read_number(table, "alpha_us", where) * _US
    overhead = _read_number(table, "overhead_us", where) * _US if "overhead_us" in table else alpha
    if not 0 <= overhead <= alpha <= _LONGEST:
        raise MachineError(f"{where}: need 0 <= overhead_us <= alpha_us; found {overhead / _US:g} and {alpha / _US:g}")
    return Link(alpha, _read_seconds_per_byte(table, "bandwidth_GBps", where), overhead)


def _refuse_unknown_keys(found: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(str(key) for key in found if key not in known)
    if unknown:
        raise MachineError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}")


def _read_number(found: Mapping[str, Any], key: str, where: str) -> float:
    value = found.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MachineError(f"{where}: {key} must be a number; found {_format_value(value)}")
    if not abs(value) <= 1 / _SHORTEST or not math.isfinite(value):  # a whole number may be too large for a float
        raise MachineError(f"{where}: {key} must be a number between 0 and 1e15; found {_format_value(value)}")
    return float(value)


def _read_seconds_per_byte(found: Mapping[str, Any], key: str, where: str) -> float:
    """Return the seconds per byte at the bandwidth found[key], which is in GB/s."""
    value = _read_number(found, key, where)
    if not value * _GB > 1 / _LONGEST:
        raise MachineError(f"{where}: {key} must be above 0 GB/s; found {value:g}")
    return 1 / (value * _GB)


def _read_whole(found: Mapping[str, Any], key: str, where: str) -> int:
    value = found.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        raise MachineError(f"{where}: {key} must be a whole number from 1 to {_MOST}; found {_format_value(value)}")
    return value


def _read_strings(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise MachineError(f"{where} must be a list of strings; found {_format_value(value)}")
    return tuple(_read_string(each, where) for each in value)


def _read_string(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise MachineError(f"{where} must be a string that is not empty; found {_format_value(value)}")
    return value


def _format_value(value: Any) -> str:
    """Return `value` as text of at most 60 characters, for an error message."""
    if value is None:
        return "nothing"
    is_huge = isinstance(value, int) and abs(value) > 2**64
    text = f"a whole number of {value.bit_length()} bits" if is_huge else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
