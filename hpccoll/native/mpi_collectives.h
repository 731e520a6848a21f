// The collectives of an MPI library, called by pointers. This file calls no Python.
#ifndef HPCCOLL_MPI_COLLECTIVES_H
#define HPCCOLL_MPI_COLLECTIVES_H

#include "messages.h"

// The lists of arguments of MPI's collectives, with the collectives that take them.
typedef enum {
    NO_BUFFER,         // Barrier
    ONE_BUFFER,        // Bcast
    ROOT_VECTOR,       // Reduce
    ONE_VECTOR,        // Allreduce, Scan, Exscan, Reduce_scatter_block
    ROOT_BLOCKS,       // Gather, Scatter
    BLOCKS,            // Allgather, Alltoall
    GATHERED_COUNTS,   // Gatherv; this and the following lists have a count for each rank
    SCATTERED_COUNTS,  // Scatterv
    COLLECTED_COUNTS,  // Allgatherv
    EXCHANGED_COUNTS,  // Alltoallv
    REDUCED_COUNTS     // Reduce_scatter
} ArgumentList;

// A collective, and the arguments that are the same in every call.
typedef struct {
    AnyFunction *function;
    ArgumentList list;
    bool is_nonblocking;  // whether the function returns a request
    bool is_large;        // whether counts and displacements have 64 bits (MPI_Allreduce_c), else they are `int`
    uint64_t datatype, op, comm;
    int64_t count;  // that of a block or of the vector, or of this rank's block
    int root;
    // Elements and displacement of each rank's block. `received_counts` and `received_displacements` are those of the
    // received blocks of an Alltoallv, whose other two are those of the sent blocks.
    const void *counts, *displacements, *received_counts, *received_displacements;
} MpiCollective;

// Returns the list of arguments of a collective, by MPI's name of its blocking form without "MPI_"; -1 if it is unknown.
int find_argument_list(const char *name);

// Calls a collective; `request` is set by a non-blocking form. Returns MPI's error number, or 0.
int call_collective(const MpiLibrary *mpi, const MpiCollective *call, void *sent, void *received, uint64_t *request);

#endif
