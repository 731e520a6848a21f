#include "reductions.h"

#include <string.h>

#include "half.h"

int reduce(Reducer *reducer, const char *left, const char *right, char *out, size_t nbytes) {
    size_t count = nbytes / (size_t)reducer->itemsize;
    right = reducer->has_number ? reducer->number : right;
    if (reducer->combine) {
        return reducer->combine(reducer, left, right, out, count);
    }
    if (!reducer->loop) {
        compute_half(reducer->half, reducer->function, left, right, !reducer->has_number, out, count);
        return 0;
    }
    char single[MOST_ITEMSIZE];
    int uses_copy = count == 1 && reducer->copies_single && (out == left || out == right);
    char *arguments[3] = {(char *)left, (char *)right, uses_copy ? single : out};
    ptrdiff_t length = (ptrdiff_t)count;
    ptrdiff_t strides[3] = {reducer->itemsize, reducer->has_number ? 0 : reducer->itemsize, reducer->itemsize};
    reducer->loop(arguments, &length, strides, reducer->loop_data);
    if (uses_copy) {
        memcpy(out, single, nbytes);
    }
    return 0;
}
