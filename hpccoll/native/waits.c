#define _GNU_SOURCE
#include "waits.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

enum { POLLS_PER_CLOCK = 32 };

// Tells the processor that this is a polling loop, which saves power and the other thread of the core.
static inline void pause_core(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

#ifdef __linux__
// The futex is the half of the counter that changes with every arrival.
static uint32_t *futex_of(Line *line) {
    uint32_t *halves = (uint32_t *)&line->count;
    return halves + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

static void wake_all(Line *line) {
    syscall(SYS_futex, futex_of(line), FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void sleep_while(Line *line, uint64_t seen, int64_t ns) {
    struct timespec limit = {ns / 1000000000, ns % 1000000000};
    syscall(SYS_futex, futex_of(line), FUTEX_WAIT, (uint32_t)seen, &limit, NULL, 0);
}
#else
static void wake_all(Line *line) { (void)line; }

static void sleep_while(Line *line, uint64_t seen, int64_t ns) {
    (void)line, (void)seen;
    struct timespec pause = {0, ns < 50000 ? ns : 50000};
    nanosleep(&pause, NULL);
}
#endif

void post_count(Line *own, uint64_t count) {
    // seq_cst, not release: the load of `sleepers` must not move before this store. Otherwise a rank could announce its
    // sleep and read the old count, while this rank reads that nobody sleeps.
    atomic_store_explicit(&own->count, count, memory_order_seq_cst);
    if (atomic_load_explicit(&own->sleepers, memory_order_seq_cst)) {
        wake_all(own);
    }
}

bool shares_core(Line *own, Line *other) {
#ifdef __linux__
    uint32_t core = (uint32_t)(sched_getcpu() + 1);
    // relaxed: no data depends on the number, and an old one costs a yield or a vain spin
    atomic_store_explicit(&own->core, core, memory_order_relaxed);
    return core && atomic_load_explicit(&other->core, memory_order_relaxed) == core;
#else
    (void)own, (void)other;
    return false;
#endif
}

bool spin_until(Line *line, uint64_t count, unsigned polls) {
    for (unsigned poll = 0; poll < polls; poll++) {
        if (has_reached(line, count)) {
            return true;
        }
        pause_core();
    }
    return has_reached(line, count);
}

// Sleeps until the line's count changes, or `ns` have passed.
static void sleep_on(Line *line, uint64_t count, int64_t ns) {
    // seq_cst: the counterpart of `post_count`. The kernel compares the futex once more before it sleeps.
    atomic_fetch_add_explicit(&line->sleepers, 1, memory_order_seq_cst);
    uint64_t seen = atomic_load_explicit(&line->count, memory_order_seq_cst);
    if (seen < count) {
        sleep_while(line, seen, ns);
    }
    // relaxed: a rank that still reads the old number makes one needless system call
    atomic_fetch_sub_explicit(&line->sleepers, 1, memory_order_relaxed);
}

bool wait_until(Line *line, uint64_t count, int64_t spin_ns, int64_t yield_ns, int64_t limit_ns) {
    int64_t begin = read_clock_ns(), waited = 0;
    while (!spin_until(line, count, waited < spin_ns ? POLLS_PER_CLOCK : 1)) {
        waited = read_clock_ns() - begin;
        if (waited >= limit_ns) {
            return has_reached(line, count);
        }
        if (waited < spin_ns) {
            continue;
        }
        if (waited < yield_ns) {
            sched_yield();
        } else {
            sleep_on(line, count, limit_ns - waited);
        }
    }
    return true;
}
