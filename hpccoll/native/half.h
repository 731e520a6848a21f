// Arithmetic of float16 and bfloat16 arrays, with the bits of NumPy and ml_dtypes: computed in float32 and rounded to
// nearest even. NaNs stay NaNs, with unspecified payload. This file calls no Python.
#ifndef HPCCOLL_HALF_H
#define HPCCOLL_HALF_H

#include <stddef.h>

#include "reductions.h"

// Computes out[i] = left[i] op right[i], or left[i] op right[0] if `is_array` is false. `out` may be `left` or `right`.
void compute_half(HalfType type, Function function, const void *left, const void *right, int is_array, void *out,
                  size_t count);

#endif
