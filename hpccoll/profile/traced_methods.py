"""Lists the methods of mpi4py, torch.distributed and hpccoll whose calls are recorded, with their arguments.

An argument is a position, which counts `self` as 0, and a name; the position `BY_NAME` stands for a keyword-only
argument. Each recording contains the list of methods to which its calls refer, so that old recordings stay readable
when methods are added.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from hpccoll.profile.layout import NOT_GIVEN, EntryFlag

ArgumentPlace = tuple[int, str | None]
Places = dict[str, ArgumentPlace]
BY_NAME = 99


class CallForm(IntEnum):
    """The ways in which a method uses requests, such as starting one; the numbers equal those of traced_call.c."""

    CALL = 0
    START = 1
    INIT = 2
    WAIT = 3
    WAIT_LIST = 4
    TEST = 5
    TEST_LIST = 6
    START_PREPARED = 7
    START_LIST = 8


@dataclass(frozen=True, slots=True)
class TracedMethod:
    """A method whose calls are recorded.

    Args:
        owner: the name of the method's class, or of the module of a function.
        name: the name of the method.
        operation: the operation that the method carries out, by hpccoll's name, such as `all_reduce`.
        form: how the method uses requests.
        places: the recorded arguments, `comm`, `buffer`, `peer` and others, with the position and name of each.
        is_collective: whether all ranks of the communicator call the method.
        counts_pickled: whether the bytes of objects are counted when mpi4py pickles them.
    """

    owner: str
    name: str
    operation: str
    form: CallForm = CallForm.CALL
    places: Places = field(default_factory=dict)
    is_collective: bool = False
    counts_pickled: bool = False

    @property
    def flags(self) -> int:
        """The `EntryFlag` bits that each recorded call of the method has."""
        return int(EntryFlag.COLLECTIVE) if self.is_collective else 0

    @property
    def default_peer(self) -> int:
        """The recorded peer of a call that names no peer: root 0 of a rooted collective, else NOT_GIVEN."""
        return 0 if self.is_collective and "peer" in self.places else NOT_GIVEN

    @property
    def default_tag(self) -> int:
        """The recorded tag of a call that names no tag: NOT_GIVEN (any tag) for receives of mpi4py, else 0."""
        return NOT_GIVEN if self.operation in ("recv", "probe") and self.owner == "Comm" else 0


FUNCTIONAL: Final = "torch.distributed._functional_collectives"
_COMM: Final[Places] = {"comm": (0, None)}
_TWO: Final[Places] = {"buffer": (1, "sendbuf"), "other_buffer": (2, "recvbuf")}
# Collectives of mpi4py: method, hpccoll's name of the operation, and position of the argument root (0: none).
_BUFFER_COLLECTIVES: Final = (
    ("Allreduce", "all_reduce", 0), ("Reduce", "reduce", 4), ("Bcast", "broadcast", 2), ("Allgather", "all_gather", 0),
    ("Allgatherv", "all_gather", 0), ("Gather", "gather", 3), ("Gatherv", "gather", 3), ("Scatter", "scatter", 3),
    ("Scatterv", "scatter", 3), ("Alltoall", "all_to_all", 0), ("Alltoallv", "all_to_all", 0),
    ("Alltoallw", "all_to_all", 0), ("Reduce_scatter", "reduce_scatter", 0),
    ("Reduce_scatter_block", "reduce_scatter", 0), ("Barrier", "barrier", 0), ("Scan", "scan", 0),
    ("Exscan", "exscan", 0),
)  # fmt: skip
_OBJECT_COLLECTIVES: Final = (
    ("allreduce", "all_reduce", 0), ("reduce", "reduce", 3), ("bcast", "broadcast", 2), ("allgather", "all_gather", 0),
    ("gather", "gather", 2), ("scatter", "scatter", 2), ("alltoall", "all_to_all", 0), ("barrier", "barrier", 0),
    ("scan", "scan", 0), ("exscan", "exscan", 0),
)  # fmt: skip
# Class and method of collectives that make communicators, in which all ranks wait for each other.
_CREATIONS: Final = (
    ("Comm", "Split"), ("Comm", "Split_type"), ("Comm", "Dup"), ("Comm", "Create"), ("Intracomm", "Create_cart"),
    ("Intracomm", "Create_graph"), ("Intracomm", "Create_dist_graph_adjacent"), ("Cartcomm", "Sub"),
)  # fmt: skip


def list_methods() -> list[TracedMethod]:
    """Return the methods whose calls are recorded; a recorded call names its method by the index in this list."""
    return [
        *_list_buffer_collectives(), *_list_object_collectives(), *_list_sends(), *_list_receives(), *_list_requests(),
        *_list_own(), *_list_torch(),
    ]  # fmt: skip


def _list_buffer_collectives() -> Iterable[TracedMethod]:
    """Yield mpi4py's methods for collectives of buffers: blocking, non-blocking and persistent."""
    for name, operation, root in _BUFFER_COLLECTIVES:
        buffers: Places = {"buffer": (1, "buf")} if operation == "broadcast" else _TWO
        places = _COMM | ({} if operation == "barrier" else buffers) | ({"peer": (root, "root")} if root else {})
        owner = "Intracomm" if operation in ("scan", "exscan") else "Comm"
        yield TracedMethod(owner, name, operation, CallForm.CALL, places, is_collective=True)
        yield TracedMethod(owner, f"I{name.lower()}", operation, CallForm.START, places, is_collective=True)
        yield TracedMethod(owner, f"{name}_init", operation, CallForm.INIT, places, is_collective=True)
    for kind in ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw"):
        yield TracedMethod("Topocomm", f"Neighbor_{kind}", "neighbor", CallForm.CALL, _COMM | _TWO)
        yield TracedMethod("Topocomm", f"Ineighbor_{kind}", "neighbor", CallForm.START, _COMM | _TWO)


def _list_object_collectives() -> Iterable[TracedMethod]:
    """Yield mpi4py's methods for collectives of Python objects, and those that make communicators."""
    for name, operation, root in _OBJECT_COLLECTIVES:
        places = _COMM | ({"peer": (root, "root")} if root else {})
        owner = "Intracomm" if operation in ("scan", "exscan") else "Comm"
        yield TracedMethod(owner, name, operation, places=places, is_collective=True, counts_pickled=True)
    for name in ("neighbor_allgather", "neighbor_alltoall"):
        yield TracedMethod("Topocomm", name, "neighbor", places=_COMM, counts_pickled=True)
    for owner, name in _CREATIONS:
        yield TracedMethod(owner, name, "new_group", places=_COMM, is_collective=True)


def _list_sends() -> Iterable[TracedMethod]:
    """Yield mpi4py's methods that send, in all of MPI's modes, and those that send and receive."""
    peer: Places = {"peer": (2, "dest"), "tag": (3, "tag")}
    buffers = _COMM | peer | {"buffer": (1, "buf")}
    for mode in ("", "s", "b", "r"):
        name = f"{mode}send"
        yield TracedMethod("Comm", name.capitalize(), "send", CallForm.CALL, buffers)
        yield TracedMethod("Comm", f"I{name}", "send", CallForm.START, buffers)
        yield TracedMethod("Comm", f"{name.capitalize()}_init", "send", CallForm.INIT, buffers)
        if mode != "r":
            yield TracedMethod("Comm", name, "send", CallForm.CALL, _COMM | peer, counts_pickled=True)
            yield TracedMethod("Comm", f"i{name}", "send", CallForm.START, _COMM | peer, counts_pickled=True)
    exchange: Places = _COMM | {"peer": (2, "dest"), "tag": (3, "sendtag"), "source": (5, "source")}
    two: Places = {"buffer": (1, "sendbuf"), "other_buffer": (4, "recvbuf")}
    yield TracedMethod("Comm", "Sendrecv", "sendrecv", places=exchange | two)
    replaced: Places = {"buffer": (1, "buf"), "source": (4, "source")}
    yield TracedMethod("Comm", "Sendrecv_replace", "sendrecv", places=exchange | replaced)
    yield TracedMethod("Comm", "sendrecv", "sendrecv", places=exchange, counts_pickled=True)


def _list_receives() -> Iterable[TracedMethod]:
    """Yield mpi4py's methods that receive or probe messages."""
    peer: Places = {"peer": (2, "source"), "tag": (3, "tag")}
    buffers = _COMM | peer | {"other_buffer": (1, "buf")}
    yield TracedMethod("Comm", "Recv", "recv", CallForm.CALL, buffers)
    yield TracedMethod("Comm", "Irecv", "recv", CallForm.START, buffers)
    yield TracedMethod("Comm", "Recv_init", "recv", CallForm.INIT, buffers)
    yield TracedMethod("Comm", "recv", "recv", CallForm.CALL, _COMM | peer, counts_pickled=True)
    yield TracedMethod("Comm", "irecv", "recv", CallForm.START, _COMM | peer, counts_pickled=True)
    probed: Places = _COMM | {"peer": (1, "source"), "tag": (2, "tag")}
    for name in ("Probe", "probe"):
        yield TracedMethod("Comm", name, "probe", places=probed)
    for name in ("Mprobe", "mprobe"):
        yield TracedMethod("Comm", name, "recv", places=probed)  # other receives cannot get the message


def _list_requests() -> Iterable[TracedMethod]:
    """Yield the methods of mpi4py's requests that wait, test or start."""
    forms = {
        "Wait": CallForm.WAIT, "Waitall": CallForm.WAIT_LIST, "Waitany": CallForm.TEST_LIST,
        "Waitsome": CallForm.TEST_LIST, "Test": CallForm.TEST, "Testall": CallForm.TEST_LIST,
        "Testany": CallForm.TEST_LIST, "Testsome": CallForm.TEST_LIST,
    }  # fmt: skip
    for name, form in forms.items():
        yield TracedMethod("Request", name, "wait", form)
        yield TracedMethod("Request", name.lower(), "wait", form)
    yield TracedMethod("Prequest", "Start", "start", CallForm.START_PREPARED)
    yield TracedMethod("Prequest", "Startall", "start", CallForm.START_LIST)


def _list_own() -> Iterable[TracedMethod]:
    """Yield the methods of `hpccoll.Communicator` and of its `Work`."""
    asynchronous: Places = _COMM | {"is_async": (BY_NAME, "async_op")}
    array: Places = asynchronous | {"buffer": (1, "x")}
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "scan", "exscan"):
        yield TracedMethod("Communicator", name, name, places=array, is_collective=True)
    for name, place in (("broadcast", 2), ("reduce", BY_NAME), ("gather", BY_NAME), ("scatter", BY_NAME)):
        yield TracedMethod("Communicator", name, name, places=array | {"peer": (place, "root")}, is_collective=True)
    yield TracedMethod("Communicator", "barrier", "barrier", places=asynchronous, is_collective=True)
    for name in ("broadcast", "gather", "scatter"):
        places = _COMM | {"peer": (2, "root")}
        yield TracedMethod("Communicator", f"{name}_object", name, places=places, is_collective=True)
    yield TracedMethod("Communicator", "all_gather_object", "all_gather", places=_COMM, is_collective=True)
    send: Places = _COMM | {"buffer": (1, "x"), "peer": (2, "dest"), "tag": (3, "tag")}
    receive: Places = _COMM | {"other_buffer": (1, "x"), "peer": (2, "source"), "tag": (3, "tag")}
    yield TracedMethod("Communicator", "send", "send", CallForm.CALL, send)
    yield TracedMethod("Communicator", "isend", "send", CallForm.START, send)
    yield TracedMethod("Communicator", "recv", "recv", CallForm.CALL, receive)
    yield TracedMethod("Communicator", "irecv", "recv", CallForm.START, receive)
    exchange: Places = _COMM | {"buffer": (1, "x"), "peer": (2, "dest"), "source": (3, "source")}
    yield TracedMethod("Communicator", "sendrecv", "sendrecv", places=exchange | {"tag": (BY_NAME, "sendtag")})
    yield TracedMethod("Work", "wait", "wait", CallForm.WAIT)
    yield TracedMethod("Work", "test", "wait", CallForm.TEST)


def _list_torch() -> Iterable[TracedMethod]:
    """Yield the methods of torch's process groups and of their works, and functions of torch.distributed."""
    first, second = _COMM | {"buffer": (1, None)}, _COMM | {"buffer": (2, None)}
    plain = {
        "allreduce": ("all_reduce", first), "allreduce_coalesced": ("all_reduce", first),
        "allgather": ("all_gather", second), "_allgather_base": ("all_gather", second),
        "allgather_into_tensor_coalesced": ("all_gather", second), "all_gather_single": ("all_gather", second),
        "reduce_scatter": ("reduce_scatter", first), "_reduce_scatter_base": ("reduce_scatter", second),
        "reduce_scatter_tensor_coalesced": ("reduce_scatter", second),
        "reduce_scatter_single": ("reduce_scatter", second), "alltoall": ("all_to_all", second),
        "alltoall_base": ("all_to_all", second), "all_to_all_single": ("all_to_all", second),
        "barrier": ("barrier", _COMM),
    }  # fmt: skip
    for name, (operation, places) in plain.items():
        yield TracedMethod("ProcessGroup", name, operation, CallForm.START, places, is_collective=True)
    for name, place, buffer in (("broadcast", 2, 1), ("reduce", 2, 1), ("gather", 3, 2), ("scatter", 3, 1)):
        places = _COMM | {"buffer": (buffer, None), "peer": (place, "opts")}
        yield TracedMethod("ProcessGroup", name, name, CallForm.START, places, is_collective=True)
    for name in ("send", "recv"):
        places = first | {"peer": (2, None), "tag": (3, None)}
        yield TracedMethod("ProcessGroup", name, name, CallForm.START, places)
    tensors: Places = _COMM | {"buffer": (1, "tensors"), "peer": (3, "src")}
    yield TracedMethod("torch.distributed", "_broadcast_coalesced", "broadcast", places=tensors, is_collective=True)
    name = "_verify_params_across_processes"
    yield TracedMethod("torch.distributed", name, "all_gather", places=_COMM, is_collective=True)
    yield from _list_functional()
    yield TracedMethod("TorchWork", "wait", "wait", CallForm.WAIT)  # `match_calls` takes the last method for it


def _list_functional() -> Iterable[TracedMethod]:
    """Yield torch's functional collectives, with the arguments that functional.py gives them, and `wait_tensor`."""
    names = {
        "all_reduce": "all_reduce", "broadcast": "broadcast", "all_gather_single": "all_gather",
        "all_gather_tensor": "all_gather", "reduce_scatter_single": "reduce_scatter",
        "reduce_scatter_tensor": "reduce_scatter", "all_to_all_single": "all_to_all",
    }  # fmt: skip
    for name, operation in names.items():
        places = _COMM | {"buffer": (1, None)} | ({"peer": (2, None)} if operation == "broadcast" else {})
        yield TracedMethod(FUNCTIONAL, name, operation, CallForm.START, places, is_collective=True)
    yield TracedMethod(FUNCTIONAL, "wait_tensor", "wait", CallForm.WAIT)
