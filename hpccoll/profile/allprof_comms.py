"""Finds the ranks of the communicators in the traces of liballprof.

A trace has the handle of a communicator, which differs from rank to rank, the rank in it and its size. The call that
creates a communicator does not state the new handle. An unknown handle therefore belongs to the communicator that was
created first, of those that have not been used and whose size fits. The ranks of a communicator are known when each of
its ranks has used it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from hpccoll.profile.allprof_trace import AllprofCall, AllprofTrace, parse_int

CREATIONS: Final = frozenset(
    {
        "Comm_dup", "Comm_dup_with_info", "Comm_split", "Comm_split_type", "Comm_create", "Cart_create", "Cart_sub",
        "Graph_create", "Dist_graph_create", "Dist_graph_create_adjacent",
    }
)  # fmt: skip
_BETWEEN_GROUPS: Final = frozenset({"Intercomm_create", "Intercomm_merge", "Comm_spawn", "Comm_accept", "Comm_connect"})
_COPIES: Final = frozenset({"Comm_dup", "Comm_dup_with_info"})
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class _NewComm:
    """A communicator that was created and not used so far.

    Args:
        name: its name, which is the same on all its ranks.
        most: the size of the communicator from which it was made.
        is_copy: whether it has all ranks of that communicator.
        address: the address of the variable that holds its handle.
    """

    name: str
    most: int
    is_copy: bool
    address: str


@dataclass(slots=True)
class RankComms:
    """The communicators of one rank, by their handles.

    Args:
        rank: the rank in the world.
        size: the number of ranks of the job.
        names: the name of each known handle.
        places: by name, the pair of the rank in the communicator and its size.
        created: the communicators that were created and not used so far.
        addresses: the name of the communicator whose handle was stored at an address.
        creations: the number of communicators that were made from each communicator.
        guesses: how many handles may belong to several communicators.
    """

    rank: int
    size: int
    names: dict[str, str] = field(default_factory=dict)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    created: list[_NewComm] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)
    creations: Counter[str] = field(default_factory=Counter)
    guesses: int = 0

    def read(self, call: AllprofCall) -> str:
        """Return the name of a call's communicator; empty if the call has none."""
        given = call.arguments.get("c", "")
        if not given and call.fields and call.fields[0].count(",") == 2 and not call.name.startswith("Type_"):
            given = call.fields[0]
        if call.name == "Comm_free" and call.fields:
            self._forget(call.fields[0])
        name = self._find(given, call.where) if given else ""
        if name and call.name in CREATIONS:
            self._create(call, name)
        elif call.name in _BETWEEN_GROUPS:
            self.created.append(_NewComm(UNKNOWN, self.size, is_copy=False, address=""))
        return name

    def _find(self, given: str, where: str) -> str:
        """Return the name of the communicator that a line gives as HANDLE,RANK,SIZE."""
        handle, *numbers = given.split(",")
        own, size = (parse_int(number, where) for number in numbers)
        if handle in self.names and self.places.get(self.names[handle], (own, size)) == (own, size):
            return self.names[handle]
        fitting = [new for new in self.created if size <= new.most and (size == new.most or not new.is_copy)]
        if fitting:
            new, name = fitting[0], fitting[0].name
            self.created.remove(new)
            self.addresses[new.address] = name
            self.guesses += len(fitting) > 1 and not all(other.is_copy for other in fitting)
        elif (own, size) == (self.rank, self.size) and "world" not in self.names.values():
            name = "world"
        else:
            name = f"self {self.rank}" if size == 1 else UNKNOWN
        self.names[handle] = name
        self.places[name] = own, size
        return name

    def _create(self, call: AllprofCall, parent: str) -> None:
        """Add the communicator that a call makes from the communicator `parent`; nothing for a negative color."""
        number, self.creations[parent] = self.creations[parent], self.creations[parent] + 1
        color = call.fields[1] if call.name == "Comm_split" else ""
        if not color.startswith("-"):
            name = UNKNOWN if parent == UNKNOWN else f"{parent}/{number}:{color}"
            most = parse_int(call.fields[0].split(",")[2], call.where)
            self.created.append(_NewComm(name, most, call.name in _COPIES, call.fields[-1]))

    def _forget(self, address: str) -> None:
        """Forget the handle of a communicator that is freed, given by the address of its variable."""
        freed = self.addresses.pop(address, "")
        self.names = {handle: name for handle, name in self.names.items() if name != freed}
        self.created = [new for new in self.created if new.address != address]


def name_comms(trace: AllprofTrace, rank: int, size: int) -> tuple[list[str], RankComms]:
    """Return the name of each call's communicator, empty for calls without one, and the communicators of the rank."""
    comms = RankComms(rank, size)
    return [comms.read(call) for call in trace.calls], comms


def list_members(ranks: Sequence[RankComms], used: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Return the members of communicators by name: the world, then each one in `used` whose members are all known.

    Members are ranks in the world, in the order of their ranks in the communicator.
    """
    members = {"world": tuple(range(len(ranks)))}
    for name in dict.fromkeys(name for comms in ranks for name in comms.places):
        places = {rank: comms.places[name] for rank, comms in enumerate(ranks) if name in comms.places}
        own = {place: rank for rank, (place, _) in places.items()}
        is_whole = {size for _, size in places.values()} == {len(places)} and set(own) == set(range(len(places)))
        if name in used and name != UNKNOWN and is_whole:
            members[name] = tuple(own[place] for place in sorted(own))
    return members
