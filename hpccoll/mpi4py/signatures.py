"""Finds the element type of MPI datatypes, which is equal on all ranks of a legal call.

MPI lets the ranks of a collective pass different datatypes if their type signatures (the sequence of basic types) are
equal: a column of a matrix on one rank may be received as a row on another. The choice between hpccoll and the MPI
library must therefore be computed from the signature.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
from mpi4py import MPI

BYTES: Final = np.dtype(np.uint8)  # the element type of signatures that mix basic types, or that hpccoll cannot reduce
_ALIASES: Final = {  # the names of MPI's basic types, by the element type that they have here
    "bool": "C_BOOL CXX_BOOL",
    "int8": "SIGNED_CHAR INT8_T INTEGER1",
    "int16": "SHORT INT16_T INTEGER2",
    "int32": "INT INT32_T INTEGER4 INTEGER",
    "int64": "LONG LONG_LONG INT64_T INTEGER8 AINT OFFSET COUNT",
    "uint8": "UNSIGNED_CHAR UINT8_T",
    "uint16": "UNSIGNED_SHORT UINT16_T",
    "uint32": "UNSIGNED UINT32_T",
    "uint64": "UNSIGNED_LONG UNSIGNED_LONG_LONG UINT64_T",
    "float32": "FLOAT REAL4 REAL",
    "float64": "DOUBLE REAL8 DOUBLE_PRECISION",
    "complex64": "C_FLOAT_COMPLEX C_COMPLEX CXX_FLOAT_COMPLEX COMPLEX8 COMPLEX",
    "complex128": "C_DOUBLE_COMPLEX CXX_DOUBLE_COMPLEX COMPLEX16 DOUBLE_COMPLEX",
}


def list_element_types() -> list[np.dtype[Any]]:
    """Return the NumPy dtypes that hpccoll can reduce and that MPI has as basic datatypes."""
    return [np.dtype(name) for name in _ALIASES]


@cache
def list_basic_types() -> dict[int, np.dtype[Any]]:
    """Return a dict from handles of MPI's basic datatypes to NumPy dtypes, for the dtypes that hpccoll can reduce."""
    found = {}
    for name, aliases in _ALIASES.items():
        for alias in aliases.split():
            datatype = getattr(MPI, alias, MPI.DATATYPE_NULL)
            if datatype != MPI.DATATYPE_NULL and datatype.Get_size() == np.dtype(name).itemsize:
                found[datatype.handle] = np.dtype(name)
    return found


def find_element_type(datatype: MPI.Datatype) -> np.dtype[Any]:
    """Return the NumPy dtype of the basic type of an MPI datatype; `BYTES` if the datatype has several basic types.

    All ranks of a legal call get the same result, even if they pass different datatypes. Cost: about 10 us for a
    derived type, because MPI does not know its signature.
    """
    dtype = list_basic_types().get(datatype.handle)
    if dtype is not None:
        return dtype
    found = _list_element_types(datatype)
    return found.pop() if len(found) == 1 else BYTES


def _list_element_types(datatype: MPI.Datatype) -> set[np.dtype[Any]]:
    """Return the set of NumPy dtypes of an MPI datatype's basic types, `BYTES` for those that hpccoll cannot reduce."""
    if datatype.is_predefined:
        return {list_basic_types().get(datatype.handle, BYTES)}
    integers, _, counts, parts = datatype.Get_contents()
    lengths = [1] * len(parts)
    if datatype.combiner == MPI.COMBINER_STRUCT:  # the number of blocks, then the length of each block
        lengths = (integers or counts)[1 : 1 + len(parts)]
    sent = [part for part, length in zip(parts, lengths, strict=True) if length and part.Get_size()]
    found = {dtype for part in sent for dtype in _list_element_types(part)}
    for part in parts:
        if not part.is_predefined:
            part.Free()
    return found
