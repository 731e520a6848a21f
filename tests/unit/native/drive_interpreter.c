// Feeds random instructions to the check, and executes what it accepts on memories of exactly the declared sizes.
// Compiled with AddressSanitizer and UndefinedBehaviorSanitizer; prints how many programs were accepted.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interpreter.h"

enum { PROGRAMS = 100000, MOST_INSTRUCTIONS = 6, MOST_MEMORIES = 7 };

static uint64_t state = 88172645463325252u;

static uint64_t draw(uint64_t below) {  // xorshift64
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

// A number that is small, near a size, or absurd.
static int64_t draw_number(void) {
    static const int64_t odd[] = {-1, INT64_MAX, INT64_MIN, INT64_MAX - 7, 1, 1 << 20};
    return draw(40) ? (int64_t)draw(24) : odd[draw(sizeof odd / sizeof *odd)];
}

static void add_bytes(char **arguments, const ptrdiff_t *count, const ptrdiff_t *strides, void *data) {
    (void)data;
    for (ptrdiff_t i = 0; i < *count; i++) {
        arguments[2][i * strides[2]] = (char)(arguments[0][i * strides[0]] ^ arguments[1][i * strides[1]]);
    }
}

static int run_one(Reducer *reducers) {
    Instruction instructions[MOST_INSTRUCTIONS];
    int64_t limits[MOST_MEMORIES];
    Instructions program = {.instructions = instructions, .limits = limits, .tile_bytes = (int64_t)draw(9),
                            .bounce_offset = draw(9) ? -1 : draw_number()};
    program.count = (int64_t)draw(MOST_INSTRUCTIONS + 1);
    program.memories = draw(50) ? FIRST_SHARED + (int64_t)draw(MOST_MEMORIES - FIRST_SHARED + 1) : draw_number() % 3;
    program.reducer = draw(5) ? &reducers[draw(3)] : NULL;
    program.divider = draw(5) ? &reducers[3 + draw(2)] : NULL;
    for (int i = 0; i < MOST_MEMORIES; i++) {
        limits[i] = draw(60) ? (int64_t)draw(40) : draw_number();
        limits[i] = limits[i] > 4096 ? 4096 : limits[i];
    }
    int64_t nbytes = draw_number();
    for (int i = 0; i < MOST_INSTRUCTIONS; i++) {
        int64_t fields[8] = {(int64_t)draw(FENCE + 1), (int64_t)draw(8), draw_number(), (int64_t)draw(8), draw_number(),
                             (int64_t)draw(8), draw_number(), draw(3) ? nbytes : draw_number()};
        if (fields[0] == TILE) {
            fields[7] = draw(5) ? 1 + (int64_t)draw(3) : draw_number();
        }
        if (!draw(30)) {
            fields[draw(8)] = draw_number();
        }
        memcpy(&instructions[i], fields, sizeof fields);
    }
    int64_t at;
    if (check_instructions(&program, &at)) {
        return 0;
    }
    char *addresses[MOST_MEMORIES] = {NULL};
    for (int64_t i = 0; i < program.memories; i++) {
        addresses[i] = malloc((size_t)limits[i] + !limits[i]);
        memset(addresses[i], (int)i, (size_t)limits[i]);
    }
    Memories memories = {addresses, NULL, addresses[INPUT], addresses[OUTPUT]};
    Report report = {0};
    for (at = 0; at < program.count; at++) {
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
