// The collectives of an MPI library, called by pointers. No Python here.
#ifndef HPCCOLL_MPI_COLLECTIVES_H
#define HPCCOLL_MPI_COLLECTIVES_H

#include "messages.h"

// The lists of arguments of MPI's collectives. ONE_VECTOR is that of MPI_Allreduce, and BLOCKS that of MPI_Allgather.
typedef enum { NO_BUFFER, ONE_BUFFER, ROOT_VECTOR, ONE_VECTOR, ROOT_BLOCKS, BLOCKS } ArgumentList;

// A collective, and the arguments that are the same in every call; `count` is that of a block or of the vector.
typedef struct {
    AnyFunction *function;
    ArgumentList list;
    bool starts;  // whether the function is a non-blocking form, which returns a request
    uint64_t datatype, op, comm;
    int count, root;
} MpiCollective;

// Returns the list of arguments of a collective, by MPI's name of its blocking form without "MPI_"; -1 if it is unknown.
int find_argument_list(const char *name);

// Calls a collective; `request` is set by a non-blocking form. Returns MPI's error number, or 0.
int call_collective(const MpiLibrary *mpi, const MpiCollective *call, void *sent, void *received, uint64_t *request);

#endif
