"""Types of the arguments of `Communicator`'s methods, for type checkers; torch and CuPy are not imported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, SupportsIndex, TypeAlias, TypeVar

import numpy as np

from hpccoll.algorithms import Algorithm
from hpccoll.arrays import Reduction

if TYPE_CHECKING:
    from mpi4py import MPI


class SupportsDLPack(Protocol):
    """An array of any library that shares memory by DLPack, such as NumPy, torch, CuPy and JAX."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the array's memory as a DLPack capsule."""


class SupportsCudaArray(Protocol):
    """An array in CUDA memory that describes its memory by `__cuda_array_interface__`, such as Numba's."""

    @property
    def __cuda_array_interface__(self) -> Any:
        """Address, shape and dtype of the array."""


class TorchReduceOp(Protocol):
    """A member of `torch.distributed.ReduceOp`, such as `ReduceOp.SUM`."""

    @property
    def name(self) -> str:
        """The name of the reduction, such as `SUM`."""

    @property
    def value(self) -> int:
        """The number of the reduction in torch's enumeration."""


class TorchDtype(Protocol):
    """An element type of torch, such as `torch.float32`."""

    @property
    def is_floating_point(self) -> bool:
        """Whether the elements are floating-point numbers."""


Array: TypeAlias = SupportsDLPack | SupportsCudaArray
Scalar: TypeAlias = complex | np.generic  # type checkers accept int and float where complex is expected
ArrayT = TypeVar("ArrayT", bound=Array)
ValueT = TypeVar("ValueT", bound=Array | Scalar)  # methods return a value of the type that they are given
ReduceOp: TypeAlias = "str | Reduction | MPI.Op | TorchReduceOp"
AlgorithmLike: TypeAlias = str | Algorithm
DtypeLike: TypeAlias = str | type[Any] | np.dtype[Any] | TorchDtype
Rank: TypeAlias = SupportsIndex  # integers of Python and NumPy
OnFailure: TypeAlias = Literal["end", "raise"]
Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
RowCounts: TypeAlias = Iterable[SupportsIndex]  # the number of rows in the block of each rank
