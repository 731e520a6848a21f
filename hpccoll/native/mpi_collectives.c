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

// Defines a function that calls MPI's function with handles of type H, and counts and displacements of type N. TYPE and
// REQUEST are empty for blocking forms.
#define DEFINE_CALL(NAME, H, N, TYPE, REQUEST)                                                                         \
    static int NAME(const MpiCollective *c, void *sent, void *received, H type, H op, H comm, H *request) {            \
        (void)request;                                                                                                 \
        AnyFunction *f = c->function;                                                                                  \
        const N count = (N)c->count, *counts = c->counts, *displacements = c->displacements;                           \
        const N *received_counts = c->received_counts, *received_displacements = c->received_displacements;            \
        switch (c->list) {                                                                                             \
        case NO_BUFFER:                                                                                                \
            return ((int (*)(H TYPE))f)(comm REQUEST);                                                                 \
        case ONE_BUFFER:                                                                                               \
            return ((int (*)(void *, N, H, int, H TYPE))f)(sent, count, type, c->root, comm REQUEST);                  \
        case ROOT_VECTOR:                                                                                              \
            return ((int (*)(const void *, void *, N, H, H, int, H TYPE))f)(                                           \
                sent, received, count, type, op, c->root, comm REQUEST);                                               \
        case ONE_VECTOR:                                                                                               \
            return ((int (*)(const void *, void *, N, H, H, H TYPE))f)(                                                \
                sent, received, count, type, op, comm REQUEST);                                                        \
        case ROOT_BLOCKS:                                                                                              \
            return ((int (*)(const void *, N, H, void *, N, H, int, H TYPE))f)(                                        \
                sent, count, type, received, count, type, c->root, comm REQUEST);                                      \
        case BLOCKS:                                                                                                   \
            return ((int (*)(const void *, N, H, void *, N, H, H TYPE))f)(                                             \
                sent, count, type, received, count, type, comm REQUEST);                                               \
        case GATHERED_COUNTS:                                                                                          \
            return ((int (*)(const void *, N, H, void *, const N *, const N *, H, int, H TYPE))f)(                     \
                sent, count, type, received, counts, displacements, type, c->root, comm REQUEST);                      \
        case SCATTERED_COUNTS:                                                                                         \
            return ((int (*)(const void *, const N *, const N *, H, void *, N, H, int, H TYPE))f)(                     \
                sent, counts, displacements, type, received, count, type, c->root, comm REQUEST);                      \
        case COLLECTED_COUNTS:                                                                                         \
            return ((int (*)(const void *, N, H, void *, const N *, const N *, H, H TYPE))f)(                          \
                sent, count, type, received, counts, displacements, type, comm REQUEST);                               \
        case EXCHANGED_COUNTS:                                                                                         \
            return ((int (*)(const void *, const N *, const N *, H, void *, const N *, const N *, H,                   \
                             H TYPE))f)(sent, counts, displacements, type, received, received_counts,                  \
                                        received_displacements, type, comm REQUEST);                                   \
        default:                                                                                                       \
            return ((int (*)(const void *, void *, const N *, H, H, H TYPE))f)(                                        \
                sent, received, counts, type, op, comm REQUEST);                                                       \
        }                                                                                                              \
    }

#define COMMA ,
DEFINE_CALL(call_with_integers, int32_t, int, , )
DEFINE_CALL(call_with_pointers, void *, int, , )
DEFINE_CALL(start_with_integers, int32_t, int, COMMA int32_t *, COMMA request)
DEFINE_CALL(start_with_pointers, void *, int, COMMA void **, COMMA request)
DEFINE_CALL(call_large_with_integers, int32_t, int64_t, , )
DEFINE_CALL(call_large_with_pointers, void *, int64_t, , )
DEFINE_CALL(start_large_with_integers, int32_t, int64_t, COMMA int32_t *, COMMA request)
DEFINE_CALL(start_large_with_pointers, void *, int64_t, COMMA void **, COMMA request)

typedef int IntegerCall(const MpiCollective *, void *, void *, int32_t, int32_t, int32_t, int32_t *);
typedef int PointerCall(const MpiCollective *, void *, void *, void *, void *, void *, void **);

// The first index is whether counts have 64 bits, and the second is whether the function is non-blocking.
static IntegerCall *const with_integers[2][2] = {{call_with_integers, start_with_integers},
                                                 {call_large_with_integers, start_large_with_integers}};
static PointerCall *const with_pointers[2][2] = {{call_with_pointers, start_with_pointers},
                                                 {call_large_with_pointers, start_large_with_pointers}};

int call_collective(const MpiLibrary *mpi, const MpiCollective *call, void *sent, void *received, uint64_t *request) {
    if (mpi->has_pointers) {
        return with_pointers[call->is_large][call->is_nonblocking](call, sent, received, as_pointer(call->datatype),
                                                                   as_pointer(call->op), as_pointer(call->comm),
                                                                   (void **)request);
    }
    return with_integers[call->is_large][call->is_nonblocking](call, sent, received, (int32_t)call->datatype,
                                                               (int32_t)call->op, (int32_t)call->comm,
                                                               (int32_t *)request);
}
