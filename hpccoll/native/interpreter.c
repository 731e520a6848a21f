#define _GNU_SOURCE
#include "interpreter.h"

#include <errno.h>
#include <string.h>
#ifdef __linux__
#include <sys/uio.h>
#endif

#include "copies.h"

static char *address_of(const Memories *memories, int64_t memory) {
    return memory == INPUT ? memories->input : memory == OUTPUT ? memories->output : memories->addresses[memory];
}

static pid_t process_of(const Memories *memories, int64_t memory) {
    return memories->processes ? memories->processes[memory] : 0;
}

// Copies bytes of another process by cross-memory attach. Source: process_vm_readv(2).
static Outcome transfer(pid_t process, char *local, char *remote, size_t nbytes, bool writes, int64_t memory,
                        Report *report) {
#ifdef __linux__
    struct iovec here = {local, nbytes}, there = {remote, nbytes};
    ssize_t moved = writes ? process_vm_writev(process, &here, 1, &there, 1, 0)
                           : process_vm_readv(process, &here, 1, &there, 1, 0);
#else
    (void)process, (void)local, (void)remote, (void)writes;
    ssize_t moved = -1;
    errno = ENOSYS;
#endif
    if (moved == (ssize_t)nbytes) {
        return EXECUTED;
    }
    report->failed_memory = memory;
    report->error = moved < 0 ? errno : 0;
    return REMOTE_FAILED;
}

// Executes bytes `begin` to `begin + nbytes` of a copy, reduction or claim.
static Outcome execute_part(const Instructions *program, const Memories *memories, const Instruction *step,
                            int64_t begin, size_t nbytes, Report *report) {
    char *left = address_of(memories, step->left) + step->left_offset + begin;
    pid_t left_process = process_of(memories, step->left);
    if (step->code == CLAIM) {  // a claim has no other operands
        if (!left_process) {
            claim_lines(left, nbytes);
        }
        return EXECUTED;
    }
    char *out = address_of(memories, step->out) + step->out_offset + begin;
    pid_t out_process = process_of(memories, step->out);
    if (step->code == COPY) {
        if (left_process) {
            return transfer(left_process, out, left, nbytes, false, step->left, report);
        }
        if (out_process) {
            return transfer(out_process, left, out, nbytes, true, step->out, report);
        }
        copy_bytes(out, left, nbytes);  // the operands may coincide
        return EXECUTED;
    }
    if (out_process) {  // reductions write to memory of this process only
        report->failed_memory = step->out;
        report->error = 0;
        return REMOTE_FAILED;
    }
    bool divides = step->code == DIVIDE;
    char *right = divides ? NULL : address_of(memories, step->right) + step->right_offset + begin;
    pid_t right_process = divides ? 0 : process_of(memories, step->right);
    char *bounce = memories->addresses[SCRATCH] + program->bounce_offset;
    Outcome outcome = EXECUTED;
    if (left_process) {
        outcome = transfer(left_process, bounce, left, nbytes, false, step->left, report);
        left = bounce;
    }
    if (!outcome && right_process) {
        char *second = bounce + REMOTE_TILE_BYTES;
        outcome = transfer(right_process, second, right, nbytes, false, step->right, report);
        right = second;
    }
    if (outcome) {
        return outcome;
    }
    return reduce(divides ? program->divider : program->reducer, left, right, out, nbytes) ? COMBINE_FAILED : EXECUTED;
}

// The bytes of a tile of a group: tiles with reductions stay in the cache, and each remote tile costs a system call.
static int64_t tile_of(const Instructions *program, const Memories *memories, const Instruction *first,
                       int64_t members) {
    bool reduces = false, is_remote = false;
    for (int64_t i = 0; i < members; i++) {
        reduces |= first[i].code == REDUCE || first[i].code == DIVIDE;
        is_remote |= process_of(memories, first[i].left) || process_of(memories, first[i].out);
        is_remote |= first[i].code == REDUCE && process_of(memories, first[i].right);
    }
    if (is_remote) {
        int64_t nbytes = reduces ? REMOTE_TILE_BYTES : REMOTE_COPY_BYTES;
        return reduces ? nbytes - nbytes % MOST_ITEMSIZE : nbytes;
    }
    return reduces ? program->tile_bytes : BYTES_PER_POLL;
}

// Executes the next tile of a group of `members` instructions, which begins at `step`.
static Outcome execute_tile(const Instructions *program, const Memories *memories, const Instruction *first,
                            int64_t members, int64_t *begin, Report *report) {
    int64_t total = first->nbytes, tile = tile_of(program, memories, first, members);
    size_t nbytes = (size_t)(total - *begin < tile ? total - *begin : tile);
    for (int64_t i = 0; i < members && nbytes; i++) {
        Outcome outcome = execute_part(program, memories, &first[i], *begin, nbytes, report);
        if (outcome) {
            return outcome;
        }
    }
    *begin += (int64_t)nbytes;
    report->until_poll -= members * (int64_t)nbytes;
    if (report->until_poll < 0) {
        report->until_poll = BYTES_PER_POLL;
        if (report->poll && report->poll()) {
            return INTERRUPTED;
        }
    }
    return EXECUTED;
}

Outcome execute_tiles(const Instructions *program, const Memories *memories, Position *position, int64_t *tiles,
                      Report *report) {
    while (*tiles > 0 && position->at < program->count && program->instructions[position->at].code < FENCE) {
        const Instruction *step = &program->instructions[position->at];
        bool is_group = step->code == TILE;
        int64_t members = is_group ? step->nbytes : 1;
        const Instruction *first = step + is_group;
        Outcome outcome = execute_tile(program, memories, first, members, &position->begin, report);
        if (outcome) {
            return outcome;
        }
        --*tiles;
        if (position->begin == first->nbytes) {
            *position = (Position){position->at + is_group + members, 0};
        }
    }
    return EXECUTED;
}

Outcome execute(const Instructions *program, const Memories *memories, int64_t at, int64_t *next, Report *report) {
    int64_t tiles = INT64_MAX;
    Position position = {at, 0};
    report->until_poll = BYTES_PER_POLL;
    Outcome outcome = execute_tiles(program, memories, &position, &tiles, report);
    *next = outcome ? *next : position.at;
    return outcome;
}
