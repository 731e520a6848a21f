"""Reads machine models for simulations: built-in ones from machines/*.toml (with sources), or a user's TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from hpccoll.errors import UnknownNameError, UsageError
from hpccoll.plan import Fabric, FabricKind, Link, Machine
from hpccoll.private_files import read_limited
from hpccoll.records import explain_validation_error
from hpccoll.units import GB

_FOLDER, _SUFFIX = "machines", ".toml"
_MAX_CHARACTERS = 2**20
# Numbers in a machine's file outside the limits of these types are mistakes, or would overflow.
ModelName: TypeAlias = Annotated[str, Meta(pattern=r"\S")]
Microseconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)]
Bandwidth: TypeAlias = Annotated[float, Meta(gt=1e-15, le=1e15)]  # GB/s
Capacity: TypeAlias = Annotated[float, Meta(gt=0, le=1e9)]
CAPACITY_KEYS = {"peak_flop_per_s": "peak_TFLOPS", "memory_bytes": "memory_GB"}  # fields of a machine, keys of its file


class MachineError(UsageError):
    """Raised if a key in the description of a machine model is missing, unknown, of the wrong type or out of range."""


class LinkDescription(Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of the tables [within] and [between] of a machine model's TOML file: links within and between nodes.

    `alpha_us` is a message's latency. `overhead_us` is the part of `alpha_us` that keeps the sender busy; None
    means all of `alpha_us`.
    """

    alpha_us: Microseconds
    bandwidth_GBps: Bandwidth  # noqa: N815
    overhead_us: float | None = None

    def make_link(self, where: str) -> Link:
        """Return the link that this TOML table describes; raise MachineError if overhead_us exceeds alpha_us or is < 0.

        `where` is the name of the file and table, for the error message.
        """
        overhead = self.alpha_us if self.overhead_us is None else self.overhead_us
        if not 0 <= overhead <= self.alpha_us:
            raise MachineError(f"{where}: need 0 <= overhead_us <= alpha_us; found {overhead:g} and {self.alpha_us:g}")
        return Link(self.alpha_us * 1e-6, 1 / (self.bandwidth_GBps * GB), overhead * 1e-6)


class FabricDescription(Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of the table [fabric] of a machine model's TOML file, which describes the network between nodes.

    A fat tree needs `oversubscription`, the bandwidth of a leaf switch to its nodes divided by its bandwidth to other
    switches, and may have `rails`. A dragonfly needs `pair_GBps`, the bandwidth between two groups of nodes.
    """

    kind: FabricKind
    nodes_per_switch: Annotated[int, Meta(ge=1, le=2**20)]
    oversubscription: Annotated[float, Meta(ge=1, le=1e6)] | None = None
    rails: bool = False
    pair_GBps: Bandwidth | None = None  # noqa: N815

    def make_fabric(self, where: str, nics: int, between: LinkDescription) -> Fabric:
        """Return the network that this TOML table describes.

        Args:
            where: the name of the file and table, for error messages.
            nics: network interfaces per node.
            between: the table of the links between nodes.

        Raises MachineError if a key that the kind of network needs is missing, or a key of another kind is given.
        """
        is_tree = self.kind is FabricKind.FAT_TREE
        if (self.oversubscription is None) is is_tree or (self.pair_GBps is None) is not is_tree:
            raise MachineError(f"{where}: a fat_tree needs `oversubscription`, a dragonfly `pair_GBps`, and only this")
        if self.rails and not is_tree:
            raise MachineError(f"{where}: only a fat_tree has rails; leave `rails` out")
        if self.pair_GBps is not None:
            return Fabric(self.kind, self.nodes_per_switch, self.pair_GBps / between.bandwidth_GBps)
        ports = self.nodes_per_switch * (1 if self.rails else nics)
        return Fabric(self.kind, self.nodes_per_switch, ports / (self.oversubscription or 1.0), self.rails)


class MachineDescription(Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a TOML file that describes a machine model.

    `reduce_GBps` is the rate of reductions of a rank; without it, reductions take no time. `call_us` is the fixed cost
    of a call. `peak_TFLOPS` (1e12 FLOP/s) and `memory_GB` (1e9 bytes) of a rank are needed to estimate training.
    """

    name: ModelName
    ranks_per_node: Annotated[int, Meta(ge=1, le=2**20)]
    within: LinkDescription
    between: LinkDescription
    nics_per_node: Annotated[int, Meta(ge=1)] = 1
    reduce_GBps: Bandwidth | None = None  # noqa: N815
    sources: tuple[ModelName, ...] = ()
    call_us: Microseconds = 0.0
    peak_TFLOPS: Capacity | None = None  # noqa: N815
    memory_GB: Capacity | None = None  # noqa: N815
    fabric: FabricDescription | None = None


def list_machines() -> list[str]:
    """Return the names of the built-in machine models, sorted."""
    entries = (entry.name for entry in (files(__package__) / _FOLDER).iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in entries if name.endswith(_SUFFIX))


def load_machine(name: str) -> Machine:
    """Return the machine model `name`, either a built-in one, such as `dgx-h100`, or that of a TOML file, by its path.

    Raises:
        UnknownNameError: `name` is neither a built-in machine model nor a path ending in .toml.
        UsageError: the file cannot be read.
        MachineError: the file does not describe a machine model.
    """
    if name in list_machines():
        text = (files(__package__) / _FOLDER / f"{name}{_SUFFIX}").read_text(encoding="utf-8")
        return parse_machine(text, name)
    if not name.endswith(_SUFFIX):
        raise UnknownNameError("machine", name, [*list_machines(), "FILE.toml", "fit:FILE"])
    try:
        data = read_limited(name, 4 * _MAX_CHARACTERS)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--machine {name}: cannot read it ({why}); name a TOML file or one of {', '.join(list_machines())}"
        ) from error
    try:
        return parse_machine(data.decode(), f"--machine {name}")
    except UnicodeDecodeError as error:
        raise MachineError(f"--machine {name}: is not UTF-8 text ({error.reason} at byte {error.start})") from error


def parse_machine(text: str, source: str) -> Machine:
    """Return the machine model that a TOML string describes.

    `source` is the name of the file or machine model for error messages. `MachineDescription` documents the valid keys.
    Raises MachineError if `text` is not TOML, or does not describe a machine model.
    """
    if len(text) > _MAX_CHARACTERS:
        raise MachineError(f"{source}: has {len(text)} characters; a description of a machine takes a dozen lines")
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise MachineError(f"{source}: is not TOML ({error})") from error
    except ValueError as error:  # an integer with more digits than Python converts
        raise MachineError(f"{source}: {error}") from error
    return build_machine(data, source)


def build_machine(content: Mapping[str, Any], where: str) -> Machine:
    """Return the machine model that a TOML file describes.

    `content` is the parsed content of the file, and `where` the file's name for error messages. Raises a MachineError
    that names a key if the key is missing, unknown, of the wrong type or out of range.
    """
    try:
        file = msgspec.convert(content, MachineDescription)
    except msgspec.ValidationError as error:
        kinds = (MachineDescription, LinkDescription, FabricDescription)
        of_machine, of_link, of_fabric = (", ".join(kind.__struct_fields__) for kind in kinds)
        keys = f"{of_machine}; in a link {of_link}; in a fabric {of_fabric}"
        raise MachineError(f"{where}: {explain_validation_error(error, content)}; the known keys are {keys}") from error
    ranks, nics = file.ranks_per_node, file.nics_per_node
    if nics > ranks:
        raise MachineError(f"{where}: nics_per_node = {nics} is more than ranks_per_node = {ranks}; give each one NIC")
    within, between = (getattr(file, name).make_link(f"{where}, [{name}]") for name in ("within", "between"))
    gamma = 1 / (file.reduce_GBps * GB) if file.reduce_GBps else 0.0
    peak = None if file.peak_TFLOPS is None else file.peak_TFLOPS * 1e12
    memory = None if file.memory_GB is None else file.memory_GB * GB
    machine = Machine(file.name, ranks, within, between, nics, gamma, file.sources, file.call_us * 1e-6)
    fabric = file.fabric.make_fabric(f"{where}, [fabric]", nics, file.between) if file.fabric else None
    return replace(machine, peak_flop_per_s=peak, memory_bytes=memory, fabric=fabric)


def require_capacity(machine: Machine, field: str) -> float:
    """Return the machine's `peak_flop_per_s` or `memory_bytes`, whichever `field` names.

    Raises UsageError with the keys to add to the machine's file if the machine model does not have the value.
    """
    capacity: float | None = getattr(machine, field)
    if capacity is None:
        missing = " and no ".join(key for name, key in CAPACITY_KEYS.items() if getattr(machine, name) is None)
        raise UsageError(
            f"machine {machine.name} has no {missing}, which estimates need; add them to a copy of its file and give "
            "--machine FILE.toml, or choose a machine that has them, such as dgx-h100"
        )
    return capacity
