"""Arrays of NumPy, CuPy and torch behind one interface: element types, reductions, buffers and scratch memory.

Start with `ArrayModule` in interface.py; `as_buffer` in buffer.py turns a user's array into a `Buffer`.
"""

from __future__ import annotations

from hpccoll.arrays.buffer import as_buffer, get_array_module
from hpccoll.arrays.cuda_arrays import CupyModule
from hpccoll.arrays.dlpack import export_array, import_array, is_foreign
from hpccoll.arrays.dtypes import DTYPES, DType, dtype_from_numpy, get_dtype
from hpccoll.arrays.interface import (
    ArrayModule,
    BoundCall,
    Buffer,
    FlatArray,
    combine_into,
    require_contiguous,
    run_all,
)
from hpccoll.arrays.numpy_arrays import NUMPY, NumPyModule
from hpccoll.arrays.reductions import FUNCTIONS, Combine, Reduction, normalize_reduction, premul_sum
from hpccoll.arrays.scratch import Scratch, take_scratch
from hpccoll.arrays.torch_tensors import as_torch_tensor, is_torch_tensor

__all__ = [
    "DTYPES", "FUNCTIONS", "NUMPY", "ArrayModule", "BoundCall", "Buffer", "Combine", "CupyModule", "DType", "FlatArray",
    "NumPyModule", "Reduction", "Scratch", "as_buffer", "as_torch_tensor", "combine_into", "dtype_from_numpy",
    "export_array", "get_array_module", "get_dtype", "import_array", "is_foreign", "is_torch_tensor",
    "normalize_reduction", "premul_sum", "require_contiguous", "run_all", "take_scratch",
]  # fmt: skip
