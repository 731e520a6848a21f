// Counters of the ranks of a node in shared memory, and waits for them. This file calls no Python: the tests run these
// functions under ThreadSanitizer, with threads as ranks.
//
// A rank counts its arrivals in a line of its own and reads the lines of the other ranks. A rank that waits spins, then
// yields its core, then sleeps on a futex of the line; the rank that arrives wakes it.
#ifndef HPCCOLL_WAITS_H
#define HPCCOLL_WAITS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

// Returns the time of the monotonic clock.
static inline int64_t read_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

// Returns how long a waiting rank yields its core before it sleeps. If each rank has a core of its own, a rank sleeps
// only in long waits. In a program with waits of 200 us in a virtual machine, the last rank spent 18 us to wake the other
// rank, and the woken rank reached its next message 15 us later.
static inline int64_t choose_yield_ns(bool oversubscribed) { return oversubscribed ? 100000 : 2000000; }

enum { LINE_WORDS = 8, ENTRY_WORDS = 3, ENTRIES = 2 };

// The words of one rank: 64 bytes, a cache line of most processors. `entries` holds two entries in turn: a fingerprint
// and two locations, or a payload of up to 16 bytes in place of the locations.
typedef struct {
    _Atomic uint64_t count;
    _Atomic uint64_t entries[ENTRIES][ENTRY_WORDS];
    _Atomic uint32_t sleepers;
    _Atomic uint32_t core;  // 1 + the number of the core on which the rank last waited for long; 0: not known
} Line;

_Static_assert(sizeof(Line) == LINE_WORDS * 8, "a line has eight words");

// A rank's handle of the lines of a node's ranks: row `row` is its own, and `count` the number of its arrivals.
typedef struct {
    char *lines;
    ptrdiff_t ranks, stride, row;
    uint64_t count;
} Counter;

static inline Line *line_of(const Counter *counter, ptrdiff_t row) {
    return (Line *)(counter->lines + row * counter->stride);
}

// Makes `count` visible to the other ranks, after all earlier stores of this rank, and wakes sleeping ranks.
void post_count(Line *own, uint64_t count);

// Whether the count of a line has reached `count`; if so, earlier stores of that rank are visible.
static inline bool has_reached(Line *line, uint64_t count) {
    // acquire: pairs with the store in `post_count`, so that reads of the rank's data come after this load
    return atomic_load_explicit(&line->count, memory_order_acquire) >= count;
}

// Takes this rank's arrivals back, so that no rank passes a wait for this rank any more.
static inline void retract(Counter *counter) { post_count(line_of(counter, counter->row), 0); }

// Counts this rank's arrival.
static inline void arrive(Counter *counter) { post_count(line_of(counter, counter->row), ++counter->count); }

// Whether every rank has arrived at least as often as this rank; if so, earlier stores of all ranks are visible.
static inline bool have_all_arrived(const Counter *counter) {
    for (ptrdiff_t row = 0; row < counter->ranks; row++) {
        if (!has_reached(line_of(counter, row), counter->count)) {
            return false;
        }
    }
    return true;
}

// Notes the core of this rank in its line; returns whether the rank of `other` last waited for long on the same core.
// In that case, the other rank cannot arrive while this rank spins. The schedulers of some virtual machines leave two
// ranks on one core for seconds while another core is idle.
bool shares_core(Line *own, Line *other);

// Polls a line `polls` times without a pause of the core's work; returns whether the count was reached.
bool spin_until(Line *line, uint64_t count, unsigned polls);

// Polls a line until the count is reached or `limit_ns` have passed: spins for `spin_ns`, yields the core until
// `yield_ns` have passed, then sleeps. Returns whether the count was reached.
bool wait_until(Line *line, uint64_t count, int64_t spin_ns, int64_t yield_ns, int64_t limit_ns);

#endif
