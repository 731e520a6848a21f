// Programs of messages: the functions of an MPI library, by pointers, and a run with its position. No Python here.
//
// There is no mpi.h, because one extension serves all MPI libraries: handles have 4 bytes in MPICH and 8 in Open MPI.
#ifndef HPCCOLL_MESSAGES_H
#define HPCCOLL_MESSAGES_H

#include "interpreter.h"

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
    int64_t at;          // the number of the next instruction
    int mpi_error;       // the error that MPI returned, or 0
} MessageState;

typedef enum { MESSAGES_WAIT, MESSAGES_DONE, MESSAGES_FAILED, MESSAGES_INTERRUPTED } MessageOutcome;

// Executes instructions until one waits for a message. Local work may call `report->poll`.
MessageOutcome advance_messages(MessageState *state, Report *report);

// Whether MPI no longer reads the memory of the messages that a run has begun to send; lets MPI advance.
bool are_sent(const MessageState *state);

// Lets MPI advance all communication of this process.
void poll_mpi(const void *library);

#endif
