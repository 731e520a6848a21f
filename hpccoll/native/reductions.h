// Elementwise functions of two arrays. NumPy's own inner loops compute all types but float16 and bfloat16, so results
// have NumPy's bits. This file calls no Python.
#ifndef HPCCOLL_REDUCTIONS_H
#define HPCCOLL_REDUCTIONS_H

#include <stddef.h>
#include <stdint.h>

typedef enum { ADD, MULTIPLY, MINIMUM, MAXIMUM, TRUE_DIVIDE, FUNCTIONS } Function;
typedef enum { FLOAT16, BFLOAT16, HALF_TYPES } HalfType;

// The signature of NumPy's inner loops: arguments, number of elements, strides in bytes, and data of the function.
typedef void InnerLoop(char **arguments, const ptrdiff_t *count, const ptrdiff_t *strides, void *data);

struct Reducer;

enum { MOST_ITEMSIZE = 16 };

// A function of two arrays: out = left op right. `combine` calls a function of the user; it returns -1 after an error.
typedef struct Reducer {
    int itemsize;
    int has_number;     // whether every right operand is `number`
    int copies_single;  // whether NumPy computes other bits for one element if `out` is an operand
    InnerLoop *loop;    // NULL for half types and functions of the user
    void *loop_data;
    HalfType half;
    Function function;
    _Alignas(16) char number[MOST_ITEMSIZE];
    int (*combine)(struct Reducer *reducer, const char *left, const char *right, char *out, size_t count);
} Reducer;

// Computes `nbytes` bytes of out = left op right. An operand may be `out` itself, but must not overlap it otherwise. `right` is
// ignored if the reducer has a number.
// Returns -1 if a function of the user has raised an error, else 0.
int reduce(Reducer *reducer, const char *left, const char *right, char *out, size_t nbytes);

#endif
