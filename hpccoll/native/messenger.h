// Messages between two ranks of a communicator on NumPy arrays: the part that blocking and other calls share.
#ifndef HPCCOLL_MESSENGER_H
#define HPCCOLL_MESSENGER_H

#include "objects.h"

#include <numpy/ndarraytypes.h>

// Messages of one kind; `description` is what the flight recorder notes of each. `dtype` is NULL in an empty slot.
typedef struct {
    PyObject *dtype, *description;
    npy_intp count;  // of elements
    int itemsize, peer, tag;
    bool sends;
} MessageKind;

enum { KINDS = 256 };

typedef struct {
    PyObject_HEAD
    MpiFunctionsObject *library;
    CallCounterObject *calls;
    EntryRingObject *ring;
    PyTypeObject *array_type, *work_type;
    PyObject *describe, *adopt;
    uint64_t comm;
    int rank, ranks, no_rank;  // `no_rank` is MPI_PROC_NULL
    bool oversubscribed, is_open;
    MessageKind kinds[KINDS];
} MessengerObject;

// A message of one call; `array` is NULL if there is none.
typedef struct {
    PyArrayObject *array;
    npy_intp count, nbytes;
    PyObject *description;
    int peer, tag, error, source;
    bool sends, is_skipped, is_pending;  // a message to or from no rank is skipped
    uint64_t request;
    int64_t place, received;  // place of the recorder's entry, in words; number of received bytes
    MessageStatus status;
} Message;

// Reads one message of a call, whose `sends` is set. Returns whether the extension can carry out the message.
bool read_message(const MessengerObject *self, PyObject *array, PyObject *peer, PyObject *tag, Message *message);

// Sets the description and the size of a message. Returns 1, 0 if Python has to carry it out, -1 with an exception.
int prepare_message(MessengerObject *self, Message *message);

// Records the beginning of a message, and begins it.
void begin_message(MessengerObject *self, Message *message);

// Tests a pending message.
void test_message(const MessengerObject *self, Message *message);

// Tests both messages until they are complete, for up to 0.4 ms.
void wait_for_messages(const MessengerObject *self, Message *incoming, Message *outgoing);

// Whether a message has been sent or received without error and in full size; true if there is no message.
bool is_complete(const Message *message);

// Records the end of a message, unless it is pending.
void end_message(const MessengerObject *self, const Message *message);

// Returns the state with which Python finishes a message or raises its error; _extension.pyi describes this state.
PyObject *describe_message(const Message *message);

// Begins a prepared message, and returns its handle; NULL with an exception.
PyObject *start_message(MessengerObject *self, Message *message);

#endif
