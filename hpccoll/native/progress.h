// A thread that advances operations in flight while the program computes. This file calls no Python: the thread never
// takes the GIL. The tests run these functions under ThreadSanitizer.
#ifndef HPCCOLL_PROGRESS_H
#define HPCCOLL_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// An operation in flight. One thread at a time advances the operation: the thread that has claimed the task.
typedef struct Task {
    struct Task *next;
    bool (*advance)(struct Task *);  // advances without blocking, sets `done` at the end; returns whether it advanced
    _Atomic bool claimed, done;
} Task;

// Takes the right to advance a task; returns false if another thread has it.
static inline bool claim_task(Task *task) {
    // acquire: the task's plain data, which the last owner has written, is read after this exchange
    return !atomic_exchange_explicit(&task->claimed, true, memory_order_acquire);
}

// Gives up the right to advance a task.
static inline void release_task(Task *task) {
    // release: the next owner sees what this one has written
    atomic_store_explicit(&task->claimed, false, memory_order_release);
}

static inline bool is_done(Task *task) {
    // acquire: the result of a task that is done is read after this load
    return atomic_load_explicit(&task->done, memory_order_acquire);
}

typedef struct {
    int64_t longest_ns;     // the longest pause between two polls
    int64_t spin_ns;        // time of polling without pauses after a task has advanced
    int64_t stand_back_ns;  // time in which the thread advances nothing after `note_advance`
} ProgressTimes;

// Sets how the thread waits, and what it calls to let MPI advance.
void configure_progress(const ProgressTimes *given, void (*poll)(const void *), void *argument);

// Lets the thread advance a task; starts the thread. Returns an error number, or 0.
int add_task(Task *task);

// Removes a task from the thread. Blocks while the thread advances the task.
void remove_task(Task *task);

// The reasons why the thread lets MPI advance: requests that Python holds, and messages that the extension holds.
typedef enum { TRANSFERS, MESSAGES, POLL_REASONS } PollReason;

// Sets whether the thread lets MPI advance for a reason while there are no tasks. Starts the thread; returns an error
// number, or 0.
int set_polling(PollReason reason, bool polls);

// Notes that the program advances operations itself. The thread then advances none for `stand_back_ns`, so that
// the two do not compete.
void note_advance(void);

// Lets the thread call nothing until `release_progress`; blocks while it advances a task or polls MPI.
void hold_progress(void);

void release_progress(void);

// Ends the thread; it is started again by the next task.
void stop_progress(void);

#endif
