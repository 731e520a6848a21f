#include "messages.h"

#include <limits.h>

enum { MPI_STATUS_BYTES = 256 };  // more than a status of any MPI library; its content is not read

// The types of MPI's functions, for handles that are integers and handles that are pointers.
typedef int SendOfIntegers(const void *, int, int32_t, int, int, int32_t, int32_t *);
typedef int SendOfPointers(const void *, int, void *, int, int, void *, void **);
typedef int LargeSendOfIntegers(const void *, int64_t, int32_t, int, int, int32_t, int32_t *);
typedef int LargeSendOfPointers(const void *, int64_t, void *, int, int, void *, void **);
typedef int TestOfIntegers(int32_t *, int *, void *);
typedef int TestOfPointers(void **, int *, void *);
typedef int ProbeOfIntegers(int, int, int32_t, int *, void *);
typedef int ProbeOfPointers(int, int, void *, int *, void *);

static void *as_pointer(uint64_t handle) { return (void *)(uintptr_t)handle; }

// Begins a message. MPI_Isend and MPI_Irecv take the same arguments.
static int begin_message(const MessageState *state, const Instruction *step) {
    const MpiLibrary *mpi = state->library;
    bool sends = step->code == SEND, is_large = step->nbytes > INT_MAX;
    int64_t memory = sends ? step->left : step->out, offset = sends ? step->left_offset : step->out_offset;
    char *base = memory == INPUT    ? state->memories.input
                 : memory == OUTPUT ? state->memories.output
                                    : state->memories.addresses[memory];
    char *data = base + offset;
    uint64_t *request = &state->requests[step->right_offset];
    AnyFunction *function = is_large ? (sends ? mpi->isend_large : mpi->irecv_large) : (sends ? mpi->isend : mpi->irecv);
    int peer = (int)step->right, tag = state->tag;
    if (mpi->has_pointers) {
        void *byte = as_pointer(mpi->byte), *comm = as_pointer(state->comm);
        return is_large ? ((LargeSendOfPointers *)function)(data, step->nbytes, byte, peer, tag, comm, (void **)request)
                        : ((SendOfPointers *)function)(data, (int)step->nbytes, byte, peer, tag, comm, (void **)request);
    }
    int32_t byte = (int32_t)mpi->byte, comm = (int32_t)state->comm;
    return is_large ? ((LargeSendOfIntegers *)function)(data, step->nbytes, byte, peer, tag, comm, (int32_t *)request)
                    : ((SendOfIntegers *)function)(data, (int)step->nbytes, byte, peer, tag, comm, (int32_t *)request);
}

static int test_message(const MessageState *state, const Instruction *step, int *flag) {
    _Alignas(16) char status[MPI_STATUS_BYTES];
    uint64_t *request = &state->requests[step->right_offset];
    AnyFunction *test = state->library->test;
    return state->library->has_pointers ? ((TestOfPointers *)test)((void **)request, flag, status)
                                        : ((TestOfIntegers *)test)((int32_t *)request, flag, status);
}

MessageOutcome advance_messages(MessageState *state, Report *report) {
    const Instructions *program = state->program;
    while (state->at < program->count) {
        const Instruction *step = &program->instructions[state->at];
        int flag = 1;
        switch (step->code) {
        case SEND:
        case RECEIVE:
            state->mpi_error = begin_message(state, step);
            break;
        case WAIT:
            state->mpi_error = test_message(state, step, &flag);
            break;
        case ROUND:
            if (state->round) {
                *state->round = step->nbytes;
            }
            break;
        default:
            if (execute(program, &state->memories, state->at, &state->at, report)) {
                return MESSAGES_INTERRUPTED;
            }
            continue;
        }
        if (state->mpi_error) {
            return MESSAGES_FAILED;
        }
        if (!flag) {
            return MESSAGES_WAIT;
        }
        state->at++;
    }
    return MESSAGES_DONE;
}

bool are_sent(const MessageState *state) {
    bool sent = true;
    for (int64_t i = 0; i < state->at; i++) {
        const Instruction *step = &state->program->instructions[i];
        int flag = 1;
        if (step->code == SEND && !test_message(state, step, &flag)) {
            sent &= flag;
        }
    }
    return sent;
}

void poll_mpi(const void *library) {
    const MpiLibrary *mpi = library;
    _Alignas(16) char status[MPI_STATUS_BYTES];
    int flag = 0;
    if (mpi->has_pointers) {
        ((ProbeOfPointers *)mpi->iprobe)(mpi->any_source, mpi->any_tag, as_pointer(mpi->self), &flag, status);
    } else {
        ((ProbeOfIntegers *)mpi->iprobe)(mpi->any_source, mpi->any_tag, (int32_t)mpi->self, &flag, status);
    }
}
