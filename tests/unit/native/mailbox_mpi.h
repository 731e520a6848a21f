// A small MPI for drivers with threads as ranks: a mailbox for each pair of ranks. The driver defines RANKS, TAGS,
// REQUESTS (the most messages from one rank to another with one tag) and NBYTES (of each message). The handle of a
// communicator is the number of the rank.
#include <pthread.h>
#include <string.h>

#include "messages.h"

// A message is complete when both sides have begun it; requests are numbers of slots, as in MPICH.
typedef struct {
    const void *sent;
    void *received;
    bool is_done;
} Slot;

static Slot slots[RANKS][RANKS][TAGS][REQUESTS];
static int sends_begun[RANKS][RANKS][TAGS], receives_begun[RANKS][RANKS][TAGS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int32_t encode(int source, int dest, int tag, int number) {
    return 1 + ((source * RANKS + dest) * TAGS + tag) * REQUESTS + number;
}

static Slot *decode(int32_t request) {
    return &slots[0][0][0][0] + (request - 1);
}

static void deliver(Slot *slot) {
    if (slot->sent && slot->received) {
        memcpy(slot->received, slot->sent, NBYTES);
        slot->is_done = true;
    }
}

static int my_isend(const void *data, int count, int32_t type, int dest, int tag, int32_t comm, int32_t *request) {
    if (count != NBYTES || type != 7) {
        return 1;
    }
    pthread_mutex_lock(&lock);
    int number = sends_begun[comm][dest][tag]++;
    Slot *slot = &slots[comm][dest][tag][number];
    slot->sent = data;
    deliver(slot);
    *request = encode(comm, dest, tag, number);
    pthread_mutex_unlock(&lock);
    return 0;
}

static int my_irecv(void *data, int count, int32_t type, int source, int tag, int32_t comm, int32_t *request) {
    if (count != NBYTES || type != 7) {
        return 1;
    }
    pthread_mutex_lock(&lock);
    int number = receives_begun[source][comm][tag]++;
    Slot *slot = &slots[source][comm][tag][number];
    slot->received = data;
    deliver(slot);
    *request = encode(source, comm, tag, number);
    pthread_mutex_unlock(&lock);
    return 0;
}

static int my_test(int32_t *request, int *flag, void *status) {
    memset(status, 0, sizeof(MessageStatus));
    pthread_mutex_lock(&lock);
    *flag = decode(*request)->is_done;
    if (*flag) {
        *request = 0;
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

static int my_get_count(const void *status, int32_t type, int *count) {
    (void)status, (void)type;
    *count = NBYTES;
    return 0;
}

static void add_doubles(char **arguments, const ptrdiff_t *count, const ptrdiff_t *strides, void *data) {
    (void)strides, (void)data;
    for (ptrdiff_t i = 0; i < *count; i++) {
        ((double *)arguments[2])[i] = ((double *)arguments[0])[i] + ((double *)arguments[1])[i];
    }
}

static Reducer adder = {.itemsize = 8, .loop = add_doubles};
static const MpiLibrary library = {.isend = (AnyFunction *)my_isend, .irecv = (AnyFunction *)my_irecv,
                                   .test = (AnyFunction *)my_test, .get_count = (AnyFunction *)my_get_count,
                                   .byte = 7};
