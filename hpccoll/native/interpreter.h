// Executes the instructions of one rank on the memories that a run passes. This file calls no Python: the tests run the
// check and the interpreter under AddressSanitizer.
#ifndef HPCCOLL_INTERPRETER_H
#define HPCCOLL_INTERPRETER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "reductions.h"

typedef enum {
    COPY,    // out = left
    REDUCE,  // out = left op right
    DIVIDE,  // out = left / number
    CLAIM,   // claims the cache lines of `left` for this core (copies.h)
    TILE,    // the next `nbytes` instructions run tile by tile: all on the first tile, then all on the next
    FENCE,   // `execute` stops at this and all later codes
    RECEIVE, // begins to receive `out` from rank `right`; `right_offset` is the number of the request
    SEND,    // begins to send `left` to rank `right`; `right_offset` is the number of the request
    WAIT,    // waits for request number `right_offset`; `nbytes` is the size of a message to receive, else 0
    ROUND,   // the flight recorder notes `nbytes`, the number of the round that begins
    CODES
} Code;

// One instruction: offsets and `nbytes` are in bytes, and memories are numbers of the program's memories.
typedef struct {
    int64_t code, left, left_offset, right, right_offset, out, out_offset, nbytes;
} Instruction;

enum { INPUT, OUTPUT, SCRATCH, FIRST_SHARED };  // numbers of memories; shared memories of the node's ranks follow

// The instructions of one rank. `limits` are the sizes of the memories in bytes. No instruction writes to INPUT.
typedef struct {
    const Instruction *instructions;
    int64_t count;
    const int64_t *limits;
    int64_t memories;
    int64_t tile_bytes;     // size of the tiles of groups with a reduction; a multiple of the element size
    int64_t bounce_offset;  // offset in SCRATCH of two tiles of remote memory; negative if all memory is this process's
    Reducer *reducer, *divider;  // the functions of REDUCE and DIVIDE; NULL if the program has no such instruction
    int64_t requests, ranks;     // their numbers in a program with messages; else both 0
} Instructions;

enum { REMOTE_TILE_BYTES = 256 * 1024, REMOTE_COPY_BYTES = 1024 * 1024, BYTES_PER_POLL = 16 * 1024 * 1024 };

// The memories of a run: addresses, and for memory of another process its id (0 for memory of this process).
typedef struct {
    char *const *addresses;
    const pid_t *processes;  // NULL if all memory is of this process
    char *input, *output;    // addresses[INPUT] and addresses[OUTPUT] are not read
} Memories;

typedef enum { EXECUTED, COMBINE_FAILED, REMOTE_FAILED, INTERRUPTED } Outcome;

// What a run reports: the memory of another process that could not be accessed, with the error number (0: fewer bytes
// than asked for). `poll` is called after every BYTES_PER_POLL bytes; a result other than 0 ends the run.
typedef struct {
    int64_t failed_memory;
    int error;
    int (*poll)(void);
    int64_t until_poll;
} Report;

// A place in a program: the number of an instruction, and how many bytes of its group have been executed.
typedef struct {
    int64_t at, begin;
} Position;

// Returns NULL if the instructions can be executed, or else what is wrong with instruction number `*at`.
const char *check_instructions(const Instructions *program, int64_t *at);

// Executes instructions from number `at` to the next fence, message or end; sets `*next` to the number of that
// instruction, or to the number of instructions.
Outcome execute(const Instructions *program, const Memories *memories, int64_t at, int64_t *next, Report *report);

// Executes tiles from a position to the next fence, message or end, or until `*tiles`, which counts down, is 0.
Outcome execute_tiles(const Instructions *program, const Memories *memories, Position *position, int64_t *tiles,
                      Report *report);

#endif
