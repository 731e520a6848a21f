// Programs with messages: the functions of an MPI library, by pointers, and a run with its position. No Python here.
//
// There is no mpi.h, because one extension serves all MPI libraries: handles have 4 bytes in MPICH and 8 in Open MPI.
#ifndef HPCCOLL_MESSAGES_H
#define HPCCOLL_MESSAGES_H

#include "interpreter.h"
#include "waits.h"

typedef void AnyFunction(void);

// Functions of the MPI library that the process has loaded; `isend_large` and `irecv_large`, of MPI 4, may be NULL.
typedef struct {
    AnyFunction *isend, *irecv, *isend_large, *irecv_large, *test, *iprobe;
    uint64_t byte, self;  // the handles MPI_BYTE and MPI_COMM_SELF
    int any_source, any_tag;
    bool has_pointers;  // whether handles are pointers
} MpiLibrary;

// A run of a program of messages.
typedef struct {
    const Instructions *program;
    const MpiLibrary *library;
    Memories memories;
    uint64_t comm;
    int tag;
    int64_t *round;      // where rounds are noted; NULL if they are not
    uint64_t *requests;  // one word per request of the program
    Position position;   // of the next instruction
    int mpi_error;       // the error that MPI returned, or 0
    Outcome local;       // how local work failed
    Counter *fences;     // where the node's ranks count fences; NULL if the program has none
    bool has_arrived;    // whether this rank has counted the fence at which it waits
} MessageState;

typedef enum { MESSAGES_WAIT, MESSAGES_DONE, MESSAGES_FAILED, MESSAGES_INTERRUPTED } MessageOutcome;

// Executes instructions until one waits for a message or at a fence, or until `tiles` tiles of local work are done.
// Local work may call `report->poll`.
MessageOutcome advance_messages(MessageState *state, int64_t tiles, Report *report);

// Lets MPI advance all communication of this process.
void poll_mpi(const void *library);

#endif
