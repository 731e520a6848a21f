#include "messages.h"

#include <limits.h>
#include <string.h>

// The types of MPI's functions, for handles that are integers and handles that are pointers.
typedef int SendOfIntegers(const void *, int, int32_t, int, int, int32_t, int32_t *);
typedef int SendOfPointers(const void *, int, void *, int, int, void *, void **);
typedef int LargeSendOfIntegers(const void *, int64_t, int32_t, int, int, int32_t, int32_t *);
typedef int LargeSendOfPointers(const void *, int64_t, void *, int, int, void *, void **);
typedef int TestOfIntegers(int32_t *, int *, void *);
typedef int TestOfPointers(void **, int *, void *);
typedef int ProbeOfIntegers(int, int, int32_t, int *, void *);
typedef int ProbeOfPointers(int, int, void *, int *, void *);
typedef int CountOfIntegers(const void *, int32_t, int *);
typedef int CountOfPointers(const void *, void *, int *);

// MPI_Isend and MPI_Irecv take the same arguments.
int post_message(const MpiLibrary *mpi, bool sends, void *data, int64_t nbytes, int peer, int tag, uint64_t comm,
                 uint64_t *request) {
    bool is_large = nbytes > INT_MAX;
    AnyFunction *function = is_large ? (sends ? mpi->isend_large : mpi->irecv_large) : (sends ? mpi->isend : mpi->irecv);
    if (mpi->has_pointers) {
        void *byte = as_pointer(mpi->byte), *space = as_pointer(comm);
        return is_large ? ((LargeSendOfPointers *)function)(data, nbytes, byte, peer, tag, space, (void **)request)
                        : ((SendOfPointers *)function)(data, (int)nbytes, byte, peer, tag, space, (void **)request);
    }
    int32_t byte = (int32_t)mpi->byte, space = (int32_t)comm;
    return is_large ? ((LargeSendOfIntegers *)function)(data, nbytes, byte, peer, tag, space, (int32_t *)request)
                    : ((SendOfIntegers *)function)(data, (int)nbytes, byte, peer, tag, space, (int32_t *)request);
}

int test_request(const MpiLibrary *mpi, uint64_t *request, int *flag, MessageStatus *status) {
    return mpi->has_pointers ? ((TestOfPointers *)mpi->test)((void **)request, flag, status)
                             : ((TestOfIntegers *)mpi->test)((int32_t *)request, flag, status);
}

int read_status(const MpiLibrary *mpi, const MessageStatus *status, int *source, int64_t *nbytes) {
    int count = 0;
    int error = mpi->has_pointers ? ((CountOfPointers *)mpi->get_count)(status, as_pointer(mpi->byte), &count)
                                  : ((CountOfIntegers *)mpi->get_count)(status, (int32_t)mpi->byte, &count);
    memcpy(source, status->bytes + mpi->source_offset, sizeof *source);
    *nbytes = count;
    return error;
}

// Begins the message of an instruction.
static int begin_step(const MessageState *state, const Instruction *step) {
    bool sends = step->code == SEND;
    int64_t memory = sends ? step->left : step->out, offset = sends ? step->left_offset : step->out_offset;
    char *base = memory == INPUT    ? state->memories.input
                 : memory == OUTPUT ? state->memories.output
                                    : state->memories.addresses[memory];
    return post_message(state->library, sends, base + offset, step->nbytes, (int)step->right, state->tag, state->comm,
                        &state->requests[step->right_offset]);
}

// Tests the request of a WAIT instruction; returns SHORT_MESSAGE if the message, of at most INT_MAX bytes, is shorter than
// the instruction states. MPI itself refuses longer ones.
static int test_step(const MessageState *state, const Instruction *step, int *flag) {
    MessageStatus status;
    int error = test_request(state->library, &state->requests[step->right_offset], flag, &status);
    if (error || !*flag || !step->nbytes || step->nbytes > INT_MAX) {
        return error;
    }
    int source;
    int64_t nbytes;
    error = read_status(state->library, &status, &source, &nbytes);
    return error ? error : nbytes == step->nbytes ? 0 : SHORT_MESSAGE;
}

// Counts this rank's arrival at a fence once; returns whether all ranks have arrived.
static bool pass_fence(MessageState *state) {
    if (!state->has_arrived) {
        arrive(state->fences);
        state->has_arrived = true;
    }
    state->has_arrived = !have_all_arrived(state->fences);
    return !state->has_arrived;
}

MessageOutcome advance_messages(MessageState *state, int64_t tiles, Report *report) {
    const Instructions *program = state->program;
    while (state->position.at < program->count) {
        const Instruction *step = &program->instructions[state->position.at];
        int flag = 1;
        switch (step->code) {
        case SEND:
        case RECEIVE:
            state->mpi_error = begin_step(state, step);
            break;
        case WAIT:
            state->mpi_error = test_step(state, step, &flag);
            break;
        case ROUND:
            if (state->round) {
                *state->round = step->nbytes;
            }
            break;
        case FENCE:
            flag = pass_fence(state);
            break;
        default:
            state->local = execute_tiles(program, &state->memories, &state->position, &tiles, report);
            if (state->local) {
                return MESSAGES_INTERRUPTED;
            }
            if (!tiles) {
                return MESSAGES_WAIT;
            }
            continue;
        }
        if (state->mpi_error) {
            return MESSAGES_FAILED;
        }
        if (!flag) {
            return MESSAGES_WAIT;
        }
        state->position.at++;
    }
    return MESSAGES_DONE;
}

bool are_sent(const MessageState *state) {
    bool sent = true;
    for (int64_t i = 0; i < state->position.at; i++) {
        const Instruction *step = &state->program->instructions[i];
        MessageStatus status;
        int flag = 1;
        if (step->code == SEND && !test_request(state->library, &state->requests[step->right_offset], &flag, &status)) {
            sent &= flag;
        }
    }
    return sent;
}

void poll_mpi(const void *library) {
    const MpiLibrary *mpi = library;
    MessageStatus status;
    int flag = 0;
    if (mpi->has_pointers) {
        ((ProbeOfPointers *)mpi->iprobe)(mpi->any_source, mpi->polled_tag, as_pointer(mpi->polled), &flag, &status);
    } else {
        ((ProbeOfIntegers *)mpi->iprobe)(mpi->any_source, mpi->polled_tag, (int32_t)mpi->polled, &flag, &status);
    }
}
