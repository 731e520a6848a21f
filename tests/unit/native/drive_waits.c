// Threads as ranks pass fences: each writes plain data before it posts its count, and reads the others' after its wait.
// Compiled with ThreadSanitizer, which reports data that no wait orders. Prints the number of fences.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "waits.h"

enum { RANKS = 4, FENCES = 3000 };

static Line lines[RANKS];
static long data[2][RANKS];

static void wait_for(Line *line, uint64_t count, int kind) {
    static const int64_t limits[] = {1000, 20000, 200000};
    if (kind == 0 && spin_until(line, count, 100)) {
        return;
    }
    int64_t yield_ns = kind == 1 ? 1000000 : 0;  // else it sleeps at once
    while (!wait_until(line, count, 0, yield_ns, limits[kind])) {
    }
}

static void *run_rank(void *argument) {
    long rank = (long)argument, sum = 0;
    for (uint64_t fence = 1; fence <= FENCES; fence++) {
        data[fence & 1][rank] = (long)fence + rank;
        post_count(&lines[rank], fence);
        for (long other = 0; other < RANKS; other++) {
            wait_for(&lines[other], fence, (int)((fence + (uint64_t)rank) % 3));
            sum += data[fence & 1][other] - (long)fence - other;
        }
    }
    return (void *)sum;
}

// Two ranks on one core learn that they share it, and a rank on another core does not.
static void check_cores(void) {
    Line here = {0}, there = {0};
    cpu_set_t before, first;
    CPU_ZERO(&first);
    CPU_SET(sched_getcpu(), &first);
    sched_getaffinity(0, sizeof before, &before), sched_setaffinity(0, sizeof first, &first);
    if (shares_core(&here, &there) || !shares_core(&there, &here)) {
        abort();
    }
    atomic_fetch_add(&here.core, 1);
    if (shares_core(&there, &here)) {
        abort();
    }
    sched_setaffinity(0, sizeof before, &before);
}

int main(void) {
    check_cores();
    pthread_t threads[RANKS];
    for (long rank = 0; rank < RANKS; rank++) {
        pthread_create(&threads[rank], NULL, run_rank, (void *)rank);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        void *sum;
        pthread_join(threads[rank], &sum);
        if (sum) {
            abort();
        }
    }
    printf("%d\n", FENCES);
    return 0;
}
