// Threads as ranks of two nodes start runs on one node (staged, in place, and both at once) and pipelines between the
// nodes. The thread of each rank and the progress thread advance the same tasks; in every third run the rank only
// waits. Compiled with ThreadSanitizer, or with AddressSanitizer. Prints the number of runs.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 2, ROWS = 2, RANKS = NODES * ROWS, RUNS = 60, SEGMENTS = 5, SLOTS = 2 };
enum { PART = 16, HALF = PART / 2, COUNT = SEGMENTS * PART, NBYTES = HALF * 8, REQUESTS = RUNS * SEGMENTS, TAGS = 8 };

#include "mailbox_mpi.h"
#include "node_run.h"
#include "pipeline.h"
#include "progress.h"

enum { FIRST_SLOT = FIRST_SHARED, FIRST_PEER = FIRST_SLOT + ROWS, MEMORIES = FIRST_PEER + 2 };
enum { OFFSET = 24 };  // of the inputs in their symmetric buffers
static const uint64_t NUMBER = UINT64_C(1) << 63 | UINT64_C(5) << OFFSET_BITS;  // of a symmetric buffer

static Line lines[NODES][1 + SLOTS][ROWS], node_lines[NODES][ROWS];
static double memory[NODES][SLOTS][ROWS][PART], node_slots[NODES][2][ROWS][COUNT];
static double inputs[RANKS][COUNT], outputs[RANKS][COUNT];
static const int64_t limits[] = {COUNT * 8, COUNT * 8, 2 * PART * 8 + 2 * REMOTE_TILE_BYTES, PART * 8, PART * 8,
                                 COUNT * 8, COUNT * 8};
static const int64_t node_limits[] = {COUNT * 8, COUNT * 8, 2 * PART * 8 + 2 * REMOTE_TILE_BYTES, COUNT * 8, COUNT * 8,
                                      COUNT * 8, COUNT * 8};

// What a rank keeps from run to run.
typedef struct {
    int rank, node, row;
    Counter entry_counter, counters[SLOTS], node_counter;
    Counter *slots[SLOTS];
    Barrier barrier, node_barrier;
    char *scratch[SLOTS];
    char *lane_memories[SLOTS][MEMORIES], *slot_memories[2][MEMORIES];
    pid_t processes[SLOTS][MEMORIES];
    char **lane_tables[SLOTS];
    pid_t *lane_processes[SLOTS];
    Instruction rows[2][SEGMENTS][16], node_rows[2][8];
    Instructions programs[2][SEGMENTS], node_programs[2];
    const Instructions *program_lists[2][SEGMENTS];
    Segments segments[2];
    Peers peers;
    pid_t nobody[2], owners[2], mapped_owners[2];
    char *bases[1], *addresses[2], *mapped_addresses[2];
    uint64_t locations[2], mapped[2];
    PipelinePart pipeline;
    StagedPart staged;
    DirectPart direct;
} Rank;

static Instructions make_program(const Instruction *rows, int64_t count, const int64_t *sizes, bool has_messages) {
    Instructions program = {.instructions = rows, .count = count, .limits = sizes, .memories = MEMORIES,
                            .tile_bytes = 32, .bounce_offset = 2 * PART * 8, .reducer = &adder,
                            .requests = has_messages ? 2 : 0, .ranks = has_messages ? RANKS : 0};
    int64_t at;
    const char *problem = check_instructions(&program, &at);
    if (problem) {
        fprintf(stderr, "instruction %d: %s\n", (int)at, problem);
        abort();
    }
    return program;
}

// The programs of segment `number`: each rank reduces its half of the node, exchanges it with its counterpart of the
// other node, and publishes the sum.
static void make_segment(Rank *self, int number, bool direct) {
    int row = self->row, other = self->rank ^ ROWS, half = row * HALF * 8, begin = number * PART * 8, at = begin + half;
    int first = self->node ? PART * 8 : 0, second = PART * 8 - first;  // the sum of node 0 is the left operand
    int own = FIRST_SLOT + row;
    int left = row ? FIRST_PEER : INPUT, right = row ? INPUT : FIRST_PEER;
    Instruction staged_rows[] = {
        {COPY, INPUT, begin, 0, 0, own, 0, PART * 8}, {FENCE, 0, 0, 0, 0, 0, 0, 0},
        {RECEIVE, 0, 0, other, 0, SCRATCH, PART * 8, NBYTES},
        {REDUCE, FIRST_SLOT, half, FIRST_SLOT + 1, half, SCRATCH, 0, NBYTES},
        {SEND, SCRATCH, 0, other, 1, 0, 0, NBYTES}, {WAIT, 0, 0, 0, 0, 0, 0, 0},
        {REDUCE, SCRATCH, first, SCRATCH, second, own, half, NBYTES}, {WAIT, 0, 0, 0, 1, 0, 0, 0},
        {FENCE, 0, 0, 0, 0, 0, 0, 0}, {TILE, 0, 0, 0, 0, 0, 0, 2},
        {COPY, FIRST_SLOT, 0, 0, 0, OUTPUT, begin, NBYTES},
        {COPY, FIRST_SLOT + 1, HALF * 8, 0, 0, OUTPUT, begin + HALF * 8, NBYTES}};
    Instruction direct_rows[] = {
        {RECEIVE, 0, 0, other, 0, SCRATCH, PART * 8, NBYTES}, {REDUCE, left, at, right, at, SCRATCH, 0, NBYTES},
        {SEND, SCRATCH, 0, other, 1, 0, 0, NBYTES}, {WAIT, 0, 0, 0, 0, 0, 0, 0},
        {REDUCE, SCRATCH, first, SCRATCH, second, OUTPUT, at, NBYTES},
        {COPY, OUTPUT, at, 0, 0, FIRST_PEER + 1, at, NBYTES}, {WAIT, 0, 0, 0, 1, 0, 0, 0},
        {FENCE, 0, 0, 0, 0, 0, 0, 0}};
    size_t size = direct ? sizeof direct_rows : sizeof staged_rows;
    memcpy(self->rows[direct][number], direct ? direct_rows : staged_rows, size);
    self->programs[direct][number] = make_program(self->rows[direct][number], (int64_t)(size / sizeof(Instruction)),
                                                  limits, true);
    self->program_lists[direct][number] = &self->programs[direct][number];
}

static void make_node_programs(Rank *self) {
    int row = self->row, half = COUNT / 2 * 8, own = row * half, theirs = half - own;
    int left = row ? FIRST_PEER : INPUT, right = row ? INPUT : FIRST_PEER;
    Instruction staged_rows[] = {{COPY, INPUT, 0, 0, 0, FIRST_SLOT + row, 0, COUNT * 8}, {FENCE, 0, 0, 0, 0, 0, 0, 0},
                                 {REDUCE, FIRST_SLOT, 0, FIRST_SLOT + 1, 0, OUTPUT, 0, COUNT * 8}};
    Instruction direct_rows[] = {{REDUCE, left, own, right, own, OUTPUT, own, half}, {FENCE, 0, 0, 0, 0, 0, 0, 0},
                                 {COPY, FIRST_PEER + 1, theirs, 0, 0, OUTPUT, theirs, half},
                                 {FENCE, 0, 0, 0, 0, 0, 0, 0}};
    memcpy(self->node_rows[0], staged_rows, sizeof staged_rows);
    memcpy(self->node_rows[1], direct_rows, sizeof direct_rows);
    self->node_programs[0] = make_program(self->node_rows[0], 3, node_limits, false);
    self->node_programs[1] = make_program(self->node_rows[1], 4, node_limits, false);
}

static void set_memories(Rank *self, int slot) {
    int node = self->node;
    char *own[] = {NULL, NULL, self->scratch[slot]};
    memcpy(self->lane_memories[slot], own, sizeof own);
    memcpy(self->slot_memories[slot], own, sizeof own);
    for (int row = 0; row < ROWS; row++) {
        self->lane_memories[slot][FIRST_SLOT + row] = (char *)memory[node][slot][row];
        self->slot_memories[slot][FIRST_SLOT + row] = (char *)node_slots[node][slot][row];
    }
    self->counters[slot] = (Counter){(char *)lines[node][1 + slot], ROWS, sizeof(Line), self->row, 0};
    self->slots[slot] = &self->counters[slot];
    self->lane_tables[slot] = self->lane_memories[slot];
    self->lane_processes[slot] = self->processes[slot];
}

static void make_parts(Rank *self) {
    for (int direct = 0; direct < 2; direct++) {
        self->segments[direct] = (Segments){SEGMENTS, self->program_lists[direct], self->lane_tables,
                                            direct ? self->lane_processes : NULL};
    }
    self->entry_counter = (Counter){(char *)lines[self->node][0], ROWS, sizeof(Line), self->row, 0};
    self->node_counter = (Counter){(char *)node_lines[self->node], ROWS, sizeof(Line), self->row, 0};
    self->barrier = (Barrier){&self->entry_counter, 1, 0};
    self->node_barrier = (Barrier){&self->node_counter, 1, 0};
    int other = self->rank ^ 1;
    self->bases[0] = (char *)inputs[other] - OFFSET;
    self->peers = (Peers){2, self->nobody, self->locations, self->mapped, self->addresses, self->mapped_addresses,
                          self->owners, self->mapped_owners, false};
    self->pipeline = (PipelinePart){&library, (uint64_t)self->rank, 1, &self->barrier, 11, SLOTS, self->slots, NULL,
                                    NULL, NULL};
    self->staged = (StagedPart){&self->node_barrier, 12, &self->node_programs[0],
                                {self->slot_memories[0], self->slot_memories[1]}, 1, 1, false};
    self->direct = (DirectPart){&self->node_barrier, 12, &self->node_programs[1], self->slot_memories[0],
                                self->processes[0], &self->peers};
}

static Rank *make_rank(int rank) {
    Rank *self = calloc(1, sizeof *self);
    self->rank = rank;
    self->node = rank / ROWS;
    self->row = rank % ROWS;
    for (int number = 0; number < SEGMENTS; number++) {
        make_segment(self, number, false);
        make_segment(self, number, true);
    }
    make_node_programs(self);
    for (int slot = 0; slot < SLOTS; slot++) {
        self->scratch[slot] = malloc((size_t)limits[SCRATCH]);
        set_memories(self, slot);
    }
    make_parts(self);
    return self;
}

typedef struct {
    Task task;
    bool is_pipeline;
    NodeRun node;
    PipelineRun pipeline;
    Lane lanes[SLOTS];
    uint64_t requests[SLOTS * 2];
} Run;

static bool advance(Task *task) {
    Run *run = (Run *)((char *)task - offsetof(Run, task));
    Report report = {0};
    bool moved = run->is_pipeline ? advance_pipeline(&run->pipeline, &report) : advance_node_run(&run->node, &report);
    if (run->is_pipeline ? run->pipeline.phase == PIPELINE_ENDED : run->node.phase == HAS_ENDED) {
        atomic_store_explicit(&task->done, true, memory_order_release);
    }
    return moved;
}

// Runs to the end; a rank that `sleeps` leaves the run to the progress thread.
static void finish(Run *run, bool sleeps) {
    if (add_task(&run->task)) {
        abort();
    }
    while (!is_done(&run->task)) {
        if (!sleeps && claim_task(&run->task)) {
            if (!is_done(&run->task)) {
                advance(&run->task);
            }
            release_task(&run->task);
        }
    }
    remove_task(&run->task);
}

static void check(const Rank *self, int number, int first, int last) {
    for (int i = 0; i < COUNT; i++) {
        double sum = 0;
        for (int rank = first; rank < last; rank++) {
            sum += rank * 1000 + number + i;
        }
        if (outputs[self->rank][i] != sum) {
            fprintf(stderr, "run %d, rank %d, element %d\n", number, self->rank, i);
            abort();
        }
    }
}

// Whether a rank's buffers permit access in place in a run: on both ranks of a node, on one, or on none.
static bool is_direct(const Rank *self, int number) { return number % 3 == 0 || (number % 3 == 1 && self->row); }

static void prepare_buffers(Rank *self, int number, Location own[2]) {
    for (int i = 0; i < COUNT; i++) {
        inputs[self->rank][i] = self->rank * 1000 + number + i;
        outputs[self->rank][i] = -1;
    }
    own[0] = number % 2 ? (Location){(uintptr_t)inputs[self->rank], NULL} : (Location){NUMBER | OFFSET, self->bases};
    own[1] = (Location){(uintptr_t)outputs[self->rank], NULL};
}

static void run_one(Rank *self, int number, bool is_pipeline) {
    Run *run = calloc(1, sizeof *run);
    char *input = (char *)inputs[self->rank], *output = (char *)outputs[self->rank];
    bool direct = is_direct(self, number), sleeps = (number + self->rank) % 3 == 0 && number % 3 != 1;
    run->is_pipeline = is_pipeline;
    run->task.advance = advance;
    Location own[2];
    prepare_buffers(self, number, own);
    if (is_pipeline) {
        self->pipeline.peers = direct ? &self->peers : NULL;
        self->pipeline.direct = direct ? &self->segments[1] : NULL;
        run->pipeline = (PipelineRun){.part = &self->pipeline, .staged = &self->segments[0],
                                      .own = {own[0], own[1]}, .input = input, .output = output, .lanes = run->lanes,
                                      .requests = run->requests, .most_requests = count_requests(&self->segments[0])};
    } else {
        run->node = (NodeRun){.staged = &self->staged, .direct = direct ? &self->direct : NULL,
                              .own = {own[0], own[1]}, .input = input, .output = output};
    }
    finish(run, sleeps);
    check(self, number, is_pipeline ? 0 : self->node * ROWS, is_pipeline ? RANKS : (self->node + 1) * ROWS);
    free(run);
}

// All ranks wait for each other, so that none changes a buffer that another one still reads in place.
static pthread_barrier_t between;

static void *run_rank(void *argument) {
    Rank *self = argument;
    for (int number = 0; number < RUNS; number++) {
        pthread_barrier_wait(&between);
        run_one(self, number, number % 2);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[RANKS];
    Rank *ranks[RANKS];
    pthread_barrier_init(&between, NULL, RANKS);
    for (int rank = 0; rank < RANKS; rank++) {
        ranks[rank] = make_rank(rank);
        pthread_create(&threads[rank], NULL, run_rank, ranks[rank]);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        pthread_join(threads[rank], NULL);
        for (int slot = 0; slot < SLOTS; slot++) {
            free(ranks[rank]->scratch[slot]);
        }
        free(ranks[rank]);
    }
    stop_progress();
    printf("%d\n", RUNS);
    return 0;
}
