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

static const char *check_tile(const Instructions *program, int64_t at) {
    int64_t members = program->instructions[at].nbytes;
    if (members < 1 || members > program->count - at - 1) {
        return "the group has no instructions or ends after the program";
    }
    const Instruction *first = &program->instructions[at + 1];
    for (int64_t i = 0; i < members; i++) {
        if (first[i].code < COPY || first[i].code > DIVIDE || first[i].nbytes != first->nbytes) {
            return "the group has a fence, another group, or instructions of different sizes";
        }
    }
    return NULL;
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
    for (int64_t memory = 0; memory < program->memories; memory++) {
        if (program->limits[memory] < 0) {
            return "a memory has a negative size";
        }
    }
    return NULL;
}

const char *check_instructions(const Instructions *program, int64_t *at) {
    *at = 0;
    const char *problem = check_sizes(program);
    for (; !problem && *at < program->count; ++*at) {
        const Instruction *step = &program->instructions[*at];
        switch (step->code) {
        case COPY:
        case REDUCE:
        case DIVIDE:
            problem = check_move(program, step);
            break;
        case TILE:
            problem = check_tile(program, *at);
            break;
        case FENCE:
            break;
        default:
            problem = "there is no such instruction";
        }
        if (problem) {
            break;
        }
    }
    return problem;
}
