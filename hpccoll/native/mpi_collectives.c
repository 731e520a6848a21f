#include "mpi_collectives.h"

#include <string.h>

typedef struct {
    const char *name;
    ArgumentList list;
} NamedList;

static const NamedList LISTS[] = {
    {"Barrier", NO_BUFFER},    {"Bcast", ONE_BUFFER},    {"Reduce", ROOT_VECTOR},       {"Allreduce", ONE_VECTOR},
    {"Scan", ONE_VECTOR},      {"Exscan", ONE_VECTOR},   {"Reduce_scatter_block", ONE_VECTOR},
    {"Gather", ROOT_BLOCKS},   {"Scatter", ROOT_BLOCKS}, {"Allgather", BLOCKS},         {"Alltoall", BLOCKS},
};

int find_argument_list(const char *name) {
    for (size_t i = 0; i < sizeof LISTS / sizeof *LISTS; i++) {
        if (!strcmp(LISTS[i].name, name)) {
            return (int)LISTS[i].list;
        }
    }
    return -1;
}

// Defines a function that calls MPI's function with handles of type H; REQUEST is empty or the last argument.
#define DEFINE_CALL(NAME, H, REQUEST_TYPE, REQUEST)                                                                     \
    static int NAME(const MpiCollective *call, void *sent, void *received, H type, H op, H comm, H *request) {          \
        (void)request;                                                                                                  \
        int count = call->count, root = call->root;                                                                     \
        AnyFunction *function = call->function;                                                                         \
        switch (call->list) {                                                                                           \
        case NO_BUFFER:                                                                                                 \
            return ((int (*)(H REQUEST_TYPE))function)(comm REQUEST);                                                   \
        case ONE_BUFFER:                                                                                                \
            return ((int (*)(void *, int, H, int, H REQUEST_TYPE))function)(sent, count, type, root, comm REQUEST);     \
        case ROOT_VECTOR:                                                                                               \
            return ((int (*)(const void *, void *, int, H, H, int, H REQUEST_TYPE))function)(                           \
                sent, received, count, type, op, root, comm REQUEST);                                                   \
        case ONE_VECTOR:                                                                                                \
            return ((int (*)(const void *, void *, int, H, H, H REQUEST_TYPE))function)(                                \
                sent, received, count, type, op, comm REQUEST);                                                         \
        case ROOT_BLOCKS:                                                                                               \
            return ((int (*)(const void *, int, H, void *, int, H, int, H REQUEST_TYPE))function)(                      \
                sent, count, type, received, count, type, root, comm REQUEST);                                          \
        default:                                                                                                        \
            return ((int (*)(const void *, int, H, void *, int, H, H REQUEST_TYPE))function)(                           \
                sent, count, type, received, count, type, comm REQUEST);                                                \
        }                                                                                                               \
    }

#define COMMA ,
DEFINE_CALL(call_with_integers, int32_t, , )
DEFINE_CALL(call_with_pointers, void *, , )
DEFINE_CALL(start_with_integers, int32_t, COMMA int32_t *, COMMA request)
DEFINE_CALL(start_with_pointers, void *, COMMA void **, COMMA request)

int call_collective(const MpiLibrary *mpi, const MpiCollective *call, void *sent, void *received, uint64_t *request) {
    if (mpi->has_pointers) {
        return (call->starts ? start_with_pointers : call_with_pointers)(
            call, sent, received, as_pointer(call->datatype), as_pointer(call->op), as_pointer(call->comm),
            (void **)request);
    }
    return (call->starts ? start_with_integers : call_with_integers)(
        call, sent, received, (int32_t)call->datatype, (int32_t)call->op, (int32_t)call->comm, (int32_t *)request);
}
