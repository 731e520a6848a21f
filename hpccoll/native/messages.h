// Programs with messages: pointers to the functions of an MPI library, and a run with its position. This file calls
// no Python.
//
// There is no mpi.h, because one extension serves all MPI libraries: handles have 4 bytes in MPICH and 8 in Open MPI.
#ifndef HPCCOLL_MESSAGES_H
#define HPCCOLL_MESSAGES_H

#include "interpreter.h"
#include "waits.h"

typedef void AnyFunction(void);

// Functions of the MPI library that the process has loaded; `isend_large` and `irecv_large`, of MPI 4, may be NULL.
typedef struct {
    AnyFunction *isend, *irecv, *isend_large, *irecv_large, *test, *iprobe, *get_count;
    uint64_t byte, polled;  // the handles MPI_BYTE and, for `poll_mpi`, MPI_COMM_WORLD
    int any_source, polled_tag;
    int source_offset;  // offset of the sender's rank in a status, in bytes
    bool has_pointers;  // whether handles are pointers
} MpiLibrary;

// Returns a handle of an MPI library whose handles are pointers.
static inline void *as_pointer(uint64_t handle) { return (void *)(uintptr_t)handle; }

enum { MPI_STATUS_BYTES = 256 };  // more than a status of any MPI library

typedef struct {
    _Alignas(16) char bytes[MPI_STATUS_BYTES];
} MessageStatus;

// Begins to send or receive `nbytes` bytes, and sets the handle of the request. Returns MPI's error number, or 0.
int post_message(const MpiLibrary *mpi, bool sends, void *data, int64_t nbytes, int peer, int tag, uint64_t comm,
                 uint64_t *request);

// Tests a request, and sets whether it is complete. Returns MPI's error number, or 0.
int test_request(const MpiLibrary *mpi, uint64_t *request, int *flag, MessageStatus *status);

// Reads the sender and the number of bytes of a received message of at most INT_MAX bytes. Returns MPI's error number,
// or 0.
int read_status(const MpiLibrary *mpi, const MessageStatus *status, int *source, int64_t *nbytes);

// The error of a received message that is shorter than the program's WAIT states. MPI's own error numbers are positive.
enum { SHORT_MESSAGE = -1 };

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
    int mpi_error;       // the number of MPI's error, SHORT_MESSAGE, or 0
    Outcome local;       // how local work failed
    Counter *fences;     // where the node's ranks count fences; NULL if the program has none
    bool has_arrived;    // whether this rank has counted the fence at which it waits
} MessageState;

typedef enum { MESSAGES_WAIT, MESSAGES_DONE, MESSAGES_FAILED, MESSAGES_INTERRUPTED } MessageOutcome;

// Executes instructions until one waits for a message or at a fence, or until `tiles` tiles of local work are done.
// Local work may call `report->poll`.
MessageOutcome advance_messages(MessageState *state, int64_t tiles, Report *report);

// Whether MPI no longer reads the memory of the messages that a run has begun to send; lets MPI advance.
bool are_sent(const MessageState *state);

// Lets MPI advance all communication of this process.
void poll_mpi(const void *library);

#endif
