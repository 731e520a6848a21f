#define _GNU_SOURCE
#include "progress.h"

#include "waits.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <time.h>

static const int64_t FIRST_PAUSE_NS = 20000, TICK_NS = 200000;
// Waking a sleeping thread costs a system call, and the thread may take the program's core. A program that starts
// operations one after the other must not pay this for each. So the idle thread looks for tasks every TICK_NS, and
// sleeps until it is woken only after IDLE_TICKS.
enum { IDLE_TICKS = 100 };

// `lock` guards the list and all plain variables. It is never held while a task advances or MPI is polled.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER, released = PTHREAD_COND_INITIALIZER;
static Task *first, *current;
static int holders;      // calls of `hold_progress` without `release_progress`
static bool calls_poll;  // the thread is in `poll_function`
static bool is_running, is_stopping, is_polling, handles_forks, needs_wake, polls_for[POLL_REASONS];
static pthread_t thread;
static ProgressTimes times = {.longest_ns = 1000000, .stand_back_ns = 300000};
static void (*poll_function)(const void *);
static void *poll_argument;
static _Atomic int64_t latest_advance_ns;

// Sleeps on `wake`; the lock is free meanwhile. 0 means without a limit.
static void sleep_for(int64_t ns) {
    if (!ns) {
        pthread_cond_wait(&wake, &lock);
        return;
    }
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(ns % 1000000000);
    until.tv_sec += ns / 1000000000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&wake, &lock, &until);
}

static void unlink_task(Task *task) {
    for (Task **link = &first; *link; link = &(*link)->next) {
        if (*link == task) {
            *link = task->next;
            return;
        }
    }
}

// Advances every task once; returns whether any did something. `remove_task` waits while its task is `current`, and
// links change under the lock only.
static bool advance_all(void) {
    bool moved = false;
    for (Task *task = first, *next; task && !holders; task = next) {
        if (!claim_task(task)) {
            next = task->next;
            continue;
        }
        current = task;
        pthread_mutex_unlock(&lock);
        moved |= !is_done(task) && task->advance(task);
        pthread_mutex_lock(&lock);
        next = task->next;
        if (is_done(task)) {
            unlink_task(task);
        }
        current = NULL;
        release_task(task);
        pthread_cond_broadcast(&released);
    }
    return moved;
}

static void *run_thread(void *unused) {
    (void)unused;
    int64_t pause_ns = FIRST_PAUSE_NS, moved_ns = 0;
    int idle_ticks = 0;
#ifdef SCHED_BATCH
    struct sched_param none = {0};  // a batch thread that wakes up takes no core from a thread that runs
    pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
#endif
    pthread_mutex_lock(&lock);
    while (!is_stopping) {
        if (holders) {
            sleep_for(TICK_NS);
            continue;
        }
        if (!first && !is_polling) {
            needs_wake = ++idle_ticks > IDLE_TICKS;
            sleep_for(needs_wake ? 0 : TICK_NS);
            pause_ns = FIRST_PAUSE_NS;
            continue;
        }
        needs_wake = false;
        idle_ticks = 0;
        int64_t now_ns = read_clock_ns();
        // relaxed: no data depends on the time
        int64_t since_ns = now_ns - atomic_load_explicit(&latest_advance_ns, memory_order_relaxed);
        if (since_ns < times.stand_back_ns) {
            sleep_for(times.stand_back_ns - since_ns);
            continue;
        }
        bool moved = advance_all();
        moved_ns = moved ? now_ns : moved_ns;
        bool spins = first && now_ns - moved_ns < times.spin_ns;
        if (!holders && (spins || (is_polling && poll_function))) {
            calls_poll = !spins;
            pthread_mutex_unlock(&lock);
            if (spins) {
                sched_yield();
            } else {
                poll_function(poll_argument);
            }
            pthread_mutex_lock(&lock);
            if (calls_poll) {
                calls_poll = false;
                pthread_cond_broadcast(&released);
            }
        }
        if (!spins && !is_stopping && (first || is_polling)) {
            pause_ns = moved ? FIRST_PAUSE_NS : 2 * pause_ns < times.longest_ns ? 2 * pause_ns : times.longest_ns;
            sleep_for(pause_ns);
        }
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

// In the child of a fork there is no progress thread, and the tasks of the parent must not be advanced.
static void forget_all(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&wake, NULL);
    pthread_cond_init(&released, NULL);
    first = current = NULL;
    holders = 0;
    calls_poll = false;
    is_running = is_stopping = is_polling = needs_wake = polls_for[TRANSFERS] = polls_for[MESSAGES] = false;
}

// Starts the thread unless it runs; the lock is held. All signals stay with Python's main thread.
static int start_thread(void) {
    if (is_running) {
        if (needs_wake) {
            pthread_cond_signal(&wake);
        }
        return 0;
    }
    if (!handles_forks) {
        pthread_atfork(NULL, NULL, forget_all);
        handles_forks = true;
    }
    sigset_t all, previous;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous);
    int error = pthread_create(&thread, NULL, run_thread, NULL);
    pthread_sigmask(SIG_SETMASK, &previous, NULL);
    is_running = !error;
    return error;
}

void configure_progress(const ProgressTimes *given, void (*poll)(const void *), void *argument) {
    pthread_mutex_lock(&lock);
    times = *given;
    poll_function = poll;
    poll_argument = argument;
    pthread_mutex_unlock(&lock);
}

int add_task(Task *task) {
    pthread_mutex_lock(&lock);
    Task **link = &first;
    while (*link) {  // in the order of the calls
        link = &(*link)->next;
    }
    task->next = NULL;
    *link = task;
    int error = start_thread();
    pthread_mutex_unlock(&lock);
    return error;
}

void remove_task(Task *task) {
    pthread_mutex_lock(&lock);
    while (current == task) {
        pthread_cond_wait(&released, &lock);
    }
    unlink_task(task);
    pthread_mutex_unlock(&lock);
}

int set_polling(PollReason reason, bool polls) {
    pthread_mutex_lock(&lock);
    polls_for[reason] = polls;
    is_polling = polls_for[TRANSFERS] || polls_for[MESSAGES];
    int error = polls ? start_thread() : 0;
    pthread_mutex_unlock(&lock);
    return error;
}

void hold_progress(void) {
    pthread_mutex_lock(&lock);
    holders++;
    while (current || calls_poll) {
        pthread_cond_wait(&released, &lock);
    }
    pthread_mutex_unlock(&lock);
}

void release_progress(void) {
    pthread_mutex_lock(&lock);
    holders--;
    pthread_mutex_unlock(&lock);
}

void note_advance(void) {
    // relaxed: see `run_thread`
    atomic_store_explicit(&latest_advance_ns, read_clock_ns(), memory_order_relaxed);
}

void stop_progress(void) {
    pthread_mutex_lock(&lock);
    bool was_running = is_running;
    is_stopping = true;
    pthread_cond_signal(&wake);
    pthread_mutex_unlock(&lock);
    if (was_running) {
        pthread_join(thread, NULL);
    }
    pthread_mutex_lock(&lock);
    is_running = is_stopping = false;
    pthread_mutex_unlock(&lock);
}
