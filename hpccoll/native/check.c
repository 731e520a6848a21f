#include <stdlib.h>

#include "interpreter.h"

// Whether bytes `offset` to `offset + nbytes` are in memory number `memory`.
static bool is_inside(const Instructions *program, int64_t memory, int64_t offset, int64_t nbytes) {
    if (memory < 0 || memory >= program->memories || offset < 0 || nbytes < 0) {
        return false;
    }
    return nbytes <= program->limits[memory] && offset <= program->limits[memory] - nbytes;
}

// Whether two ranges overlap without being the same: NumPy's loops would then read results as operands.
static bool overlaps_partly(int64_t a, int64_t a_offset, int64_t b, int64_t b_offset, int64_t nbytes) {
    int64_t distance = a_offset < b_offset ? b_offset - a_offset : a_offset - b_offset;
    return a == b && distance > 0 && distance < nbytes;
}

static const char *check_move(const Instructions *program, const Instruction *step) {
    if (!is_inside(program, step->left, step->left_offset, step->nbytes)) {
        return "the left operand is outside of its memory";
    }
    if (!is_inside(program, step->out, step->out_offset, step->nbytes)) {
        return "the output is outside of its memory";
    }
    if (step->out == INPUT) {
        return "the input would be written";
    }
    if (overlaps_partly(step->left, step->left_offset, step->out, step->out_offset, step->nbytes)) {
        return "the left operand and the output overlap";
    }
    if (step->code == COPY) {
        return NULL;
    }
    const Reducer *reducer = step->code == DIVIDE ? program->divider : program->reducer;
    if (!reducer || (step->code == DIVIDE && !reducer->has_number)) {
        return "the program has no such reduction";
    }
    if (step->nbytes % reducer->itemsize || step->left_offset % reducer->itemsize || step->out_offset % reducer->itemsize) {
        return "the size or an offset is no multiple of the element size";
    }
    if (step->code == DIVIDE) {
        return NULL;
    }
    if (!is_inside(program, step->right, step->right_offset, step->nbytes)) {
        return "the right operand is outside of its memory";
    }
    if (step->right_offset % reducer->itemsize) {
        return "the right offset is no multiple of the element size";
    }
    if (overlaps_partly(step->right, step->right_offset, step->out, step->out_offset, step->nbytes)) {
        return "the right operand and the output overlap";
    }
    return NULL;
}

// Checks a claim, which stores the bytes that it has read: they must be in shared memory of a rank of the node.
static const char *check_claim(const Instructions *program, const Instruction *step) {
    if (step->left < FIRST_SHARED || !is_inside(program, step->left, step->left_offset, step->nbytes)) {
        return "the lines to claim are in no shared memory";
    }
    return NULL;
}

static const char *check_tile(const Instructions *program, int64_t at) {
    int64_t members = program->instructions[at].nbytes;
    if (members < 1 || members > program->count - at - 1) {
        return "the group has no instructions or ends after the program";
    }
    const Instruction *first = &program->instructions[at + 1];
    for (int64_t i = 0; i < members; i++) {
        if (first[i].code < COPY || first[i].code > CLAIM || first[i].nbytes != first->nbytes) {
            return "the group has a fence, another group, or instructions of different sizes";
        }
    }
    return NULL;
}

// Checks a message, or the wait for one; `started` says of each request whether a message has begun and not ended.
static const char *check_message(const Instructions *program, const Instruction *step, char *started) {
    int64_t request = step->right_offset;
    if (request < 0 || request >= program->requests) {
        return "there is no such request";
    }
    if (started[request] != (step->code == WAIT)) {
        return "the request is in use, or nothing has begun that could be waited for";
    }
    started[request] = step->code != WAIT;
    if (step->code == WAIT) {
        return step->nbytes < 0 ? "a message has a negative size" : NULL;
    }
    if (step->right < 0 || step->right >= program->ranks) {
        return "there is no such rank";
    }
    bool sends = step->code == SEND;
    if (!sends && step->out == INPUT) {
        return "the input would be written";
    }
    bool fits = is_inside(program, sends ? step->left : step->out, sends ? step->left_offset : step->out_offset,
                          step->nbytes);
    return fits ? NULL : "the message is outside of its memory";
}

static const char *check_sizes(const Instructions *program) {
    int itemsize = program->reducer ? program->reducer->itemsize : program->divider ? program->divider->itemsize : 1;
    bool differs = program->reducer && program->divider && program->divider->itemsize != itemsize;
    if (program->memories < FIRST_SHARED || program->tile_bytes < itemsize || program->tile_bytes % itemsize || differs) {
        return "the program lacks memories, or its tiles are no multiple of the element size";
    }
    if (program->bounce_offset >= 0 && !is_inside(program, SCRATCH, program->bounce_offset, 2 * REMOTE_TILE_BYTES)) {
        return "the bounce buffer is outside of the scratch memory";
    }
    if (program->requests < 0 || program->requests > program->count || program->ranks < 0) {
        return "the number of requests or ranks is wrong";
    }
    for (int64_t memory = 0; memory < program->memories; memory++) {
        if (program->limits[memory] < 0) {
            return "a memory has a negative size";
        }
    }
    return NULL;
}

// Checks the instructions one by one; the program must wait for each message that it begins.
static const char *check_all(const Instructions *program, int64_t *at, char *started) {
    const char *problem = NULL;
    for (; !problem && *at < program->count; ++*at) {
        const Instruction *step = &program->instructions[*at];
        switch (step->code) {
        case COPY:
        case REDUCE:
        case DIVIDE:
            problem = check_move(program, step);
            break;
        case CLAIM:
            problem = check_claim(program, step);
            break;
        case TILE:
            problem = check_tile(program, *at);
            break;
        case FENCE:
            break;
        case RECEIVE:
        case SEND:
        case WAIT:
            problem = check_message(program, step, started);
            break;
        case ROUND:
            problem = step->nbytes < 0 || !program->ranks ? "only programs of messages have rounds" : NULL;
            break;
        default:
            problem = "there is no such instruction";
        }
        if (problem) {
            break;
        }
    }
    for (int64_t request = 0; !problem && request < program->requests; request++) {
        problem = started[request] ? "the program ends before a message" : NULL;
    }
    return problem;
}

const char *check_instructions(const Instructions *program, int64_t *at) {
    *at = 0;
    const char *problem = check_sizes(program);
    if (problem) {
        return problem;
    }
    char *started = calloc((size_t)program->requests + 1, 1);
    problem = started ? check_all(program, at, started) : "there is no memory for the check";
    free(started);
    return problem;
}
