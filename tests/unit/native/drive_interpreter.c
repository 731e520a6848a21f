// Feeds random instructions to the check, and executes what it accepts on memories of exactly the declared sizes, with
// an MPI that touches the memory of each message.
// Compiled with AddressSanitizer and UndefinedBehaviorSanitizer; prints how many programs were accepted.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "messages.h"

enum { PROGRAMS = 300000, MOST_INSTRUCTIONS = 6, MOST_MEMORIES = 7 };

static uint64_t state = 88172645463325252u;

static uint64_t draw(uint64_t below) {  // xorshift64
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static uint64_t range;  // of small numbers

// A number that is small, near a size, or absurd.
static int64_t draw_number(void) {
    static const int64_t odd[] = {-1, INT64_MAX, INT64_MIN, INT64_MAX - 7, 1, 1 << 20};
    return draw(60) ? (int64_t)draw(range) : odd[draw(sizeof odd / sizeof *odd)];
}

static void add_bytes(char **arguments, const ptrdiff_t *count, const ptrdiff_t *strides, void *data) {
    (void)data;
    for (ptrdiff_t i = 0; i < *count; i++) {
        arguments[2][i * strides[2]] = (char)(arguments[0][i * strides[0]] ^ arguments[1][i * strides[1]]);
    }
}

static int in_flight;

// Begins a message with a request that is not in use.
static int begin(int32_t *request) {
    if (*request) {
        abort();
    }
    in_flight++;
    *request = 1;
    return 0;
}

static int my_isend(const void *data, int count, int32_t type, int dest, int tag, int32_t comm, int32_t *request) {
    static volatile char seen;
    (void)type, (void)dest, (void)tag, (void)comm;
    for (int i = 0; i < count; i++) {
        seen ^= ((const char *)data)[i];
    }
    return begin(request);
}

static int my_irecv(void *data, int count, int32_t type, int source, int tag, int32_t comm, int32_t *request) {
    (void)type, (void)source, (void)tag, (void)comm;
    memset(data, 1, (size_t)count);
    return begin(request);
}

static int my_test(int32_t *request, int *flag, void *status) {
    memset(status, 0, sizeof(MessageStatus));
    if (*request != 1) {
        abort();
    }
    *flag = draw(2);
    *request = !*flag;
    in_flight -= *flag;
    return 0;
}

// Received messages have other sizes than the programs state, or the same.
static int my_get_count(const void *status, int32_t type, int *count) {
    (void)status, (void)type;
    *count = (int)draw(64);
    return 0;
}

static const MpiLibrary library = {.isend = (AnyFunction *)my_isend, .irecv = (AnyFunction *)my_irecv,
                                   .test = (AnyFunction *)my_test, .get_count = (AnyFunction *)my_get_count};

// Runs a program with messages, a few tiles at a time, as the only rank of its node.
static void run_messages(const Instructions *program, const Memories *memories) {
    Line line = {0};
    Counter fences = {(char *)&line, 1, sizeof line, 0, 0};
    uint64_t *requests = calloc((size_t)program->requests + !program->requests, sizeof *requests);
    Report report = {0};
    MessageState state = {.program = program, .library = &library, .memories = *memories, .requests = requests,
                          .fences = &fences};
    MessageOutcome outcome;
    do {
        outcome = advance_messages(&state, (int64_t)draw(4), &report);
    } while (outcome == MESSAGES_WAIT);
    if (outcome == MESSAGES_FAILED && state.mpi_error == SHORT_MESSAGE) {
        in_flight = 0;
    } else if (outcome != MESSAGES_DONE || in_flight) {
        abort();
    }
    free(requests);
}

// Whether all instructions of each group have one size, which the interpreter relies on.
static bool has_equal_sizes(const Instructions *program) {
    for (int64_t at = 0; at < program->count; at++) {
        const Instruction *first = &program->instructions[at];
        for (int64_t i = 1; first->code == TILE && i < first->nbytes; i++) {
            if (first[1].nbytes != first[1 + i].nbytes) {
                return false;
            }
        }
    }
    return true;
}

static int run_one(Reducer *reducers) {
    Instruction instructions[MOST_INSTRUCTIONS];
    int64_t limits[MOST_MEMORIES];
    range = draw(2) ? 8 : 24;
    Instructions program = {.instructions = instructions, .limits = limits, .tile_bytes = (int64_t)draw(9),
                            .bounce_offset = draw(9) ? -1 : draw_number()};
    program.count = (int64_t)draw(MOST_INSTRUCTIONS + 1);
    program.memories = draw(50) ? FIRST_SHARED + (int64_t)draw(MOST_MEMORIES - FIRST_SHARED + 1) : draw_number() % 3;
    bool has_messages = draw(2);
    program.requests = has_messages ? (int64_t)draw(3) : 0;
    program.ranks = has_messages ? 2 : 0;
    program.reducer = draw(5) ? &reducers[draw(3)] : NULL;
    program.divider = draw(5) ? &reducers[3 + draw(2)] : NULL;
    for (int i = 0; i < MOST_MEMORIES; i++) {
        limits[i] = draw(60) ? (int64_t)(range == 8 ? 12 + draw(8) : draw(40)) : draw_number();
        limits[i] = limits[i] > 4096 ? 4096 : limits[i];
    }
    int64_t nbytes = draw_number();
    for (int i = 0; i < MOST_INSTRUCTIONS; i++) {
        int64_t fields[8] = {(int64_t)draw(FENCE + 1), (int64_t)draw(5), draw_number(), (int64_t)draw(5), draw_number(),
                             (int64_t)draw(5), draw_number(), draw(3) ? nbytes : draw_number()};
        if (fields[0] == TILE) {
            fields[7] = draw(9) ? 1 + (int64_t)draw(3) : draw_number();
        }
        if (has_messages && draw(2)) {
            fields[0] = RECEIVE + (int64_t)draw(4);
            fields[3] = (int64_t)draw(draw(20) ? 2 : 4);
            fields[4] = draw(20) ? (int64_t)draw(2) : draw_number();
        }
        if (!draw(60)) {
            fields[draw(8)] = draw_number();
        }
        memcpy(&instructions[i], fields, sizeof fields);
    }
    int64_t at;
    if (check_instructions(&program, &at)) {
        return 0;
    }
    if (!has_equal_sizes(&program)) {
        abort();
    }
    char *addresses[MOST_MEMORIES] = {NULL};
    for (int64_t i = 0; i < program.memories; i++) {
        addresses[i] = malloc((size_t)limits[i] + !limits[i]);
        memset(addresses[i], (int)i, (size_t)limits[i]);
    }
    Memories memories = {addresses, NULL, addresses[INPUT], addresses[OUTPUT]};
    Report report = {0};
    if (has_messages) {
        run_messages(&program, &memories);
    }
    for (at = 0; at < program.count && !has_messages; at++) {
        if (execute(&program, &memories, at, &at, &report) != EXECUTED) {
            abort();
        }
    }
    for (int64_t i = 0; i < limits[INPUT]; i++) {
        if (addresses[INPUT][i] != INPUT) {
            abort();
        }
    }
    for (int64_t i = 0; i < program.memories; i++) {
        free(addresses[i]);
    }
    return 1;
}

int main(void) {
    Reducer reducers[5] = {
        {.itemsize = 1, .loop = add_bytes}, {.itemsize = 2, .half = FLOAT16, .function = ADD},
        {.itemsize = 2, .half = BFLOAT16, .function = MAXIMUM}, {.itemsize = 1, .loop = add_bytes, .has_number = 1},
        {.itemsize = 2, .half = FLOAT16, .function = TRUE_DIVIDE, .has_number = 1},
    };
    int accepted = 0;
    for (int i = 0; i < PROGRAMS; i++) {
        accepted += run_one(reducers);
    }
    printf("%d\n", accepted);
    return 0;
}
