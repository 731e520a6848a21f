#define _GNU_SOURCE
#include "interpreter.h"

#include <errno.h>
#include <string.h>
#ifdef __linux__
#include <sys/uio.h>
#endif

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

// Executes bytes `begin` to `begin + nbytes` of a copy or reduction.
static Outcome execute_part(const Instructions *program, const Memories *memories, const Instruction *step,
                            int64_t begin, size_t nbytes, Report *report) {
    char *left = address_of(memories, step->left) + step->left_offset + begin;
    char *out = address_of(memories, step->out) + step->out_offset + begin;
    pid_t left_process = process_of(memories, step->left), out_process = process_of(memories, step->out);
    if (step->code == COPY) {
        if (left_process) {
            return transfer(left_process, out, left, nbytes, false, step->left, report);
        }
        if (out_process) {
            return transfer(out_process, left, out, nbytes, true, step->out, report);
        }
        memmove(out, left, nbytes);  // the operands may coincide
        return EXECUTED;
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
        reduces |= first[i].code != COPY;
        is_remote |= process_of(memories, first[i].left) || process_of(memories, first[i].out);
        is_remote |= first[i].code == REDUCE && process_of(memories, first[i].right);
    }
    if (is_remote) {
        int64_t nbytes = reduces ? REMOTE_TILE_BYTES : REMOTE_COPY_BYTES;
        return reduces ? nbytes - nbytes % MOST_ITEMSIZE : nbytes;
    }
    return reduces ? program->tile_bytes : BYTES_PER_POLL;
}

// Executes the instructions of a group tile by tile.
static Outcome execute_group(const Instructions *program, const Memories *memories, const Instruction *first,
                             int64_t members, Report *report, int64_t *until_poll) {
    int64_t total = first->nbytes, tile = tile_of(program, memories, first, members);
    for (int64_t begin = 0; begin < total; begin += tile) {
        size_t nbytes = (size_t)(total - begin < tile ? total - begin : tile);
        for (int64_t i = 0; i < members; i++) {
            Outcome outcome = execute_part(program, memories, &first[i], begin, nbytes, report);
            if (outcome) {
                return outcome;
            }
        }
        *until_poll -= members * (int64_t)nbytes;
        if (*until_poll < 0) {
            *until_poll = BYTES_PER_POLL;
            if (report->poll && report->poll()) {
                return INTERRUPTED;
            }
        }
    }
    return EXECUTED;
}

Outcome execute(const Instructions *program, const Memories *memories, int64_t at, int64_t *next, Report *report) {
    int64_t until_poll = BYTES_PER_POLL;
    while (at < program->count && program->instructions[at].code < FENCE) {
        const Instruction *step = &program->instructions[at];
        bool is_group = step->code == TILE;
        int64_t members = is_group ? step->nbytes : 1;
        Outcome outcome = execute_group(program, memories, step + is_group, members, report, &until_poll);
        if (outcome) {
            return outcome;
        }
        at += is_group + members;
    }
    *next = at;
    return EXECUTED;
}
