// Threads as ranks run programs of messages over the MPI of mailbox_mpi.h. The main
// thread of each rank and the progress thread advance the same tasks. Compiled with ThreadSanitizer, or with
// AddressSanitizer. Prints the number of runs.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "progress.h"

enum { RANKS = 2, RUNS = 300, COUNT = 64, NBYTES = COUNT * 8, REQUESTS = 4, TAGS = RUNS };

#include "mailbox_mpi.h"

static const int64_t limits[] = {NBYTES, NBYTES, NBYTES};

typedef struct {
    Task task;
    MessageState state;
    Instruction instructions[8];
    Instructions program;
    uint64_t requests[REQUESTS];
    double input[COUNT], output[COUNT], scratch[COUNT];
    char *addresses[3];
    MessageOutcome outcome;
} Run;

static bool advance(Task *task) {
    Run *run = (Run *)((char *)task - offsetof(Run, task));
    Report report = {0};
    int64_t at = run->state.position.at;
    run->outcome = advance_messages(&run->state, 1 + run->state.tag % 3, &report);
    if (run->outcome != MESSAGES_WAIT) {
        atomic_store_explicit(&task->done, true, memory_order_release);
    }
    return run->state.position.at != at;
}

static Run *make_run(int rank, int tag) {
    Run *run = calloc(1, sizeof *run);
    int other = 1 - rank;
    Instruction rows[] = {{RECEIVE, 0, 0, other, 0, SCRATCH, 0, NBYTES}, {SEND, INPUT, 0, other, 1, 0, 0, NBYTES},
                          {WAIT, 0, 0, 0, 0, 0, 0, 0},
                          {REDUCE, rank ? SCRATCH : INPUT, 0, rank ? INPUT : SCRATCH, 0, OUTPUT, 0, NBYTES},
                          {WAIT, 0, 0, 0, 1, 0, 0, 0}, {ROUND, 0, 0, 0, 0, 0, 0, 1}};
    memcpy(run->instructions, rows, sizeof rows);
    run->program = (Instructions){.instructions = run->instructions, .count = 6, .limits = limits, .memories = 3,
                                  .tile_bytes = 128, .bounce_offset = -1, .reducer = &adder, .requests = 2,
                                  .ranks = RANKS};
    int64_t at;
    if (check_instructions(&run->program, &at)) {
        abort();
    }
    for (int i = 0; i < COUNT; i++) {
        run->input[i] = rank * 1000 + tag + i;
    }
    run->addresses[SCRATCH] = (char *)run->scratch;
    run->state = (MessageState){.program = &run->program, .library = &library, .comm = (uint64_t)rank, .tag = tag,
                                .memories = {run->addresses, NULL, (char *)run->input, (char *)run->output},
                                .requests = run->requests};
    run->task.advance = advance;
    return run;
}

static void *run_rank(void *argument) {
    int rank = (int)(long)argument;
    for (int tag = 0; tag < RUNS; tag++) {
        Run *run = make_run(rank, tag);
        if (add_task(&run->task)) {
            abort();
        }
        while (!is_done(&run->task)) {  // in some runs only the progress thread advances
            if ((tag + rank) % 3 && claim_task(&run->task)) {
                if (!is_done(&run->task)) {
                    run->task.advance(&run->task);
                }
                release_task(&run->task);
            }
        }
        remove_task(&run->task);
        for (int i = 0; i < COUNT; i++) {
            if (run->outcome != MESSAGES_DONE || run->output[i] != 1000 + 2 * (tag + i)) {
                abort();
            }
        }
        free(run);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[RANKS];
    for (long rank = 0; rank < RANKS; rank++) {
        pthread_create(&threads[rank], NULL, run_rank, (void *)rank);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        pthread_join(threads[rank], NULL);
    }
    stop_progress();
    printf("%d\n", RUNS);
    return 0;
}
