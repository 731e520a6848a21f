#include "mpi_collectives.h"

#include <string.h>

typedef struct {
    const char *name;
    ArgumentList list;
} NamedList;

static const NamedList LISTS[] = {
    {"Barrier", NO_BUFFER},
    {"Bcast", ONE_BUFFER},
    {"Reduce", ROOT_VECTOR},
    {"Allreduce", ONE_VECTOR},
    {"Scan", ONE_VECTOR},
    {"Exscan", ONE_VECTOR},
    {"Reduce_scatter_block", ONE_VECTOR},
    {"Gather", ROOT_BLOCKS},
    {"Scatter", ROOT_BLOCKS},
    {"Allgather", BLOCKS},
    {"Alltoall", BLOCKS},
    {"Gatherv", GATHERED_COUNTS},
    {"Scatterv", SCATTERED_COUNTS},
    {"Allgatherv", COLLECTED_COUNTS},
    {"Alltoallv", EXCHANGED_COUNTS},
    {"Reduce_scatter", REDUCED_COUNTS},
};

int find_argument_list(const char *name) {
    for (size_t i = 0; i < sizeof LISTS / sizeof *LISTS; i++) {
        if (!strcmp(LISTS[i].name, name)) {
            return (int)LISTS[i].list;
        }
    }
    return -1;
}

// Defines a function that calls MPI's function with handles of type H. TYPE and REQUEST are empty for blocking forms.
#define DEFINE_CALL(NAME, H, TYPE, REQUEST)                                                                            \
    static int NAME(const MpiCollective *c, void *sent, void *received, H type, H op, H comm, H *request) {            \
        (void)request;                                                                                                 \
        AnyFunction *f = c->function;                                                                                  \
        const int *counts = c->counts, *displacements = c->displacements;                                                            \
        switch (c->list) {                                                                                             \
        case NO_BUFFER:                                                                                                \
            return ((int (*)(H TYPE))f)(comm REQUEST);                                                                 \
        case ONE_BUFFER:                                                                                               \
            return ((int (*)(void *, int, H, int, H TYPE))f)(sent, c->count, type, c->root, comm REQUEST);             \
        case ROOT_VECTOR:                                                                                              \
            return ((int (*)(const void *, void *, int, H, H, int, H TYPE))f)(                                         \
                sent, received, c->count, type, op, c->root, comm REQUEST);                                            \
        case ONE_VECTOR:                                                                                               \
            return ((int (*)(const void *, void *, int, H, H, H TYPE))f)(                                              \
                sent, received, c->count, type, op, comm REQUEST);                                                     \
        case ROOT_BLOCKS:                                                                                              \
            return ((int (*)(const void *, int, H, void *, int, H, int, H TYPE))f)(                                    \
                sent, c->count, type, received, c->count, type, c->root, comm REQUEST);                                \
        case BLOCKS:                                                                                                   \
            return ((int (*)(const void *, int, H, void *, int, H, H TYPE))f)(                                         \
                sent, c->count, type, received, c->count, type, comm REQUEST);                                         \
        case GATHERED_COUNTS:                                                                                          \
            return ((int (*)(const void *, int, H, void *, const int *, const int *, H, int, H TYPE))f)(               \
                sent, c->count, type, received, counts, displacements, type, c->root, comm REQUEST);                          \
        case SCATTERED_COUNTS:                                                                                         \
            return ((int (*)(const void *, const int *, const int *, H, void *, int, H, int, H TYPE))f)(               \
                sent, counts, displacements, type, received, c->count, type, c->root, comm REQUEST);                          \
        case COLLECTED_COUNTS:                                                                                         \
            return ((int (*)(const void *, int, H, void *, const int *, const int *, H, H TYPE))f)(                    \
                sent, c->count, type, received, counts, displacements, type, comm REQUEST);                                   \
        case EXCHANGED_COUNTS:                                                                                         \
            return ((int (*)(const void *, const int *, const int *, H, void *, const int *, const int *, H,           \
                             H TYPE))f)(sent, counts, displacements, type, received, c->received_counts,                      \
                                        c->received_displacements, type, comm REQUEST);                                       \
        default:                                                                                                       \
            return ((int (*)(const void *, void *, const int *, H, H, H TYPE))f)(                                      \
                sent, received, counts, type, op, comm REQUEST);                                                       \
        }                                                                                                              \
    }

#define COMMA ,
DEFINE_CALL(call_with_integers, int32_t, , )
DEFINE_CALL(call_with_pointers, void *, , )
DEFINE_CALL(start_with_integers, int32_t, COMMA int32_t *, COMMA request)
DEFINE_CALL(start_with_pointers, void *, COMMA void **, COMMA request)

int call_collective(const MpiLibrary *mpi, const MpiCollective *call, void *sent, void *received, uint64_t *request) {
    if (mpi->has_pointers) {
        return (call->is_nonblocking ? start_with_pointers : call_with_pointers)(
            call, sent, received, as_pointer(call->datatype), as_pointer(call->op), as_pointer(call->comm),
            (void **)request);
    }
    return (call->is_nonblocking ? start_with_integers : call_with_integers)(
        call, sent, received, (int32_t)call->datatype, (int32_t)call->op, (int32_t)call->comm, (int32_t *)request);
}
