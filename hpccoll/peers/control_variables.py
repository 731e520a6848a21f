"""Reads and writes the control variables of the MPI library through MPI's tool interface, which mpi4py lacks."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hpccoll.errors import UnavailableError

_MOST_CHARACTERS = 8192  # longest name or description of a control variable that is read


@dataclass(frozen=True, slots=True)
class _Variable:
    """An integer control variable (MPI_T cvar): its handle, and its possible values by name, if they have names."""

    handle: ctypes.c_void_p
    values: Mapping[str, int]


class ControlVariables:
    """Reads and sets integer control variables (MPI_T cvars) of the MPI library in this process, by name.

    A change holds for this process only, so all ranks must make the same changes.

    Raises:
        UnavailableError: the library has no tool interface.
    """

    def __init__(self) -> None:
        from mpi4py import MPI

        self._library, self._known = ctypes.CDLL(MPI.__file__), dict[str, _Variable]()
        self._call("init_thread", MPI.Query_thread(), ctypes.byref(ctypes.c_int()))

    def _call(self, name: str, *arguments: Any) -> None:
        """Call the function MPI_T_`name` of MPI's tool interface; raise UnavailableError if it fails or is missing."""
        function = getattr(self._library, f"MPI_T_{name}", None)
        if function is None or function(*arguments):
            raise UnavailableError(f"the MPI library's tool interface failed (MPI_T_{name}); use MPICH or Open MPI 5")

    def _find(self, name: str) -> _Variable:
        """Return handle and values of the control variable `name`; raise UnavailableError if MPI does not have it."""
        if name not in self._known:
            index, handle = ctypes.c_int(), ctypes.c_void_p()
            try:
                self._call("cvar_get_index", name.encode(), ctypes.byref(index))
            except UnavailableError as error:
                raise UnavailableError(f"this release of the MPI library has no variable {name}") from error
            self._call("cvar_handle_alloc", index, None, ctypes.byref(handle), ctypes.byref(ctypes.c_int()))
            self._known[name] = _Variable(handle, self._list_values(index))
        return self._known[name]

    def _list_values(self, index: ctypes.c_int) -> dict[str, int]:
        """Return a variable's possible values by their names, from its MPI_T enumeration or else from its description.

        MPICH's variables are plain integers, whose descriptions have a line `NAME - TEXT` per value, in the order of
        the values.
        """
        kind, text, length = ctypes.c_void_p(), ctypes.create_string_buffer(_MOST_CHARACTERS), _make_length()
        ignored = [ctypes.byref(ctypes.c_int()) for _ in range(3)]
        name, name_length = ctypes.create_string_buffer(_MOST_CHARACTERS), _make_length()
        names = name, ctypes.byref(name_length), ignored[0], ctypes.byref(ctypes.c_void_p()), ctypes.byref(kind)
        self._call("cvar_get_info", index, *names, text, ctypes.byref(length), *ignored[1:])
        if kind.value:
            return dict(self._list_enumeration(kind))
        values = re.findall(r"^ *(\w+) +- ", text.value.decode(errors="replace"), re.MULTILINE)
        return {value: number for number, value in enumerate(values)}

    def _list_enumeration(self, kind: ctypes.c_void_p) -> Iterator[tuple[str, int]]:
        """Yield the name and the number of each value of an MPI_T enumeration, given by its handle `kind`."""
        count, text, length = ctypes.c_int(), ctypes.create_string_buffer(_MOST_CHARACTERS), _make_length()
        self._call("enum_get_info", kind, ctypes.byref(count), text, ctypes.byref(length))
        for position in range(count.value):
            number, length = ctypes.c_int(), _make_length()
            self._call("enum_get_item", kind, position, ctypes.byref(number), text, ctypes.byref(length))
            yield text.value.decode(errors="replace"), number.value

    def list_values(self, name: str) -> Mapping[str, int]:
        """Return the possible values (numbers) of the control variable `name`, by their names; {} if they have none."""
        return self._find(name).values

    def read(self, name: str) -> int:
        """Return the current value of the control variable `name`."""
        value = ctypes.c_longlong(0)
        self._call("cvar_read", self._find(name).handle, ctypes.byref(value))
        return ctypes.c_int(value.value).value

    def write(self, name: str, value: int) -> None:
        """Set the control variable `name` to `value` in this process."""
        self._call("cvar_write", self._find(name).handle, ctypes.byref(ctypes.c_longlong(value)))

    @contextmanager
    def change(self, values: Mapping[str, int]) -> Iterator[None]:
        """Context manager that sets control variables, given by name, and restores their values at the end."""
        before = {name: self.read(name) for name in values}
        try:
            for name, value in values.items():
                self.write(name, value)
            yield
        finally:
            for name, value in before.items():
                self.write(name, value)


def _make_length() -> ctypes.c_int:
    """Return a new C integer with a string buffer's size, which MPI_T functions overwrite with a string's length."""
    return ctypes.c_int(_MOST_CHARACTERS)
