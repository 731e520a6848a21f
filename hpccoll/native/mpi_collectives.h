// The collectives of an MPI library, called by pointers. No Python here.
#ifndef HPCCOLL_MPI_COLLECTIVES_H
#define HPCCOLL_MPI_COLLECTIVES_H

#include "messages.h"

// The lists of arguments of MPI's collectives: those of Barrier, Bcast, Reduce, Allreduce, Gather and Allgather, and
// with counts those of Gatherv, Scatterv, Allgatherv, Alltoallv and Reduce_scatter.
typedef enum {
    NO_BUFFER,
    ONE_BUFFER,
    ROOT_VECTOR,
    ONE_VECTOR,
    ROOT_BLOCKS,
    BLOCKS,
    GATHERED_COUNTS,
    SCATTERED_COUNTS,
    COLLECTED_COUNTS,
    EXCHANGED_COUNTS,
    REDUCED_COUNTS
} ArgumentList;

// A collective, and the arguments that are the same in every call.
typedef struct {
    AnyFunction *function;
    ArgumentList list;
    bool starts;  // whether the function is a non-blocking form, which returns a request
    uint64_t datatype, op, comm;
    int count, root;  // `count` is that of a block or of the vector, or of this rank's block
    // Elements and beginning of each rank's block. In an Alltoallv, these are the sent blocks, and the others the received
    // ones.
    const int *counts, *begins, *received_counts, *received_begins;
} MpiCollective;

// Returns the list of arguments of a collective, by MPI's name of its blocking form without "MPI_"; -1 if it is unknown.
int find_argument_list(const char *name);

// Calls a collective; `request` is set by a non-blocking form. Returns MPI's error number, or 0.
int call_collective(const MpiLibrary *mpi, const MpiCollective *call, void *sent, void *received, uint64_t *request);

#endif
