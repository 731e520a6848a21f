#include "node_run.h"

#include <string.h>

void post_staged(const StagedPart *staged) {
    static const uint64_t nowhere[2] = {0, 0};
    post_entry(staged->barrier, staged->fingerprint, staged->in_entry ? NULL : nowhere);
}

void set_peers(const Peers *peers, int64_t memories, char **addresses, pid_t *processes) {
    size_t first = (size_t)(memories - peers->buffers), count = (size_t)peers->buffers;
    memcpy(addresses + first, peers->addresses, count * sizeof *addresses);
    memcpy(processes + first, peers->owners, count * sizeof *processes);
}

static void end_run(NodeRun *run, Outcome outcome) {
    run->outcome = outcome;
    run->phase = HAS_ENDED;
}

// Runs the first part of a staged run and posts its entry.
static void begin_staged(NodeRun *run, Report *report) {
    if (!run->staged) {  // all ranks' slots have one size, so no other rank can have begun a staged run
        run->has_mismatch = true;
        end_run(run, EXECUTED);
        return;
    }
    Memories memories = staged_memories(run->staged, true, run->input, run->output);
    Outcome outcome = execute(run->staged->program, &memories, 0, &run->at, report);
    if (outcome) {
        end_run(run, outcome);
        return;
    }
    post_staged(run->staged);
    run->phase = RUNS_STAGED;
}

// Continues a staged run at a fence that all ranks have reached.
static void continue_staged(NodeRun *run, Report *report) {
    const StagedPart *staged = run->staged;
    Agreement agreement = run->at == staged->entry_fence ? compare_entries(staged->barrier) : RANKS_AGREE;
    if (agreement == RANKS_DIFFER) {
        run->has_mismatch = true;
        end_run(run, EXECUTED);
        return;
    }
    if (agreement == RANKS_DIFFER_IN_ACCESS) {
        begin_staged(run, report);  // a rank started a direct run, and now starts a staged run, too
        return;
    }
    int64_t count = staged->program->count, next = count;
    Outcome outcome = EXECUTED;
    if (run->at < count) {
        Memories memories = staged_memories(staged, false, run->input, run->output);
        outcome = execute(staged->program, &memories, run->at + 1, &next, report);
    }
    if (outcome || next == count) {
        staged->barrier->next_slot = (staged->barrier->next_slot + staged->segments) & 1;
        end_run(run, outcome);
        return;
    }
    arrive(staged->barrier->counter);
    run->at = next;
}

// Executes a direct run from instruction `at` to the next fence or the end.
static void execute_direct(NodeRun *run, int64_t at, Report *report) {
    const DirectPart *direct = run->direct;
    Memories memories = {direct->addresses, direct->processes, run->input, run->output};
    Outcome outcome = execute(direct->program, &memories, at, &run->at, report);
    if (outcome || run->at == direct->program->count) {
        end_run(run, outcome);
        return;
    }
    arrive(direct->barrier->counter);
    run->phase = RUNS_DIRECT;
}

static void begin_direct(NodeRun *run, Report *report) {
    const DirectPart *direct = run->direct;
    set_peers(direct->peers, direct->program->memories, direct->addresses, direct->processes);
    execute_direct(run, 0, report);
}

// Publishes this rank's entry or, in later calls, reads the other ranks' entries; returns whether the run advanced.
static bool enter(NodeRun *run, Report *report) {
    const DirectPart *direct = run->direct;
    if (!direct) {
        begin_staged(run, report);
        return true;
    }
    if (!run->has_entered) {
        post_direct(direct->barrier, direct->fingerprint, run->own);
        run->has_entered = true;
        return true;
    }
    switch (pass_entry(direct->barrier, direct->peers, run->own)) {
    case ENTRY_WAITS:
        return false;
    case ENTRY_DIFFERS:
        run->has_mismatch = true;
        end_run(run, EXECUTED);
        return true;
    case ENTRY_STAGED:
        begin_staged(run, report);
        return true;
    case ENTRY_UNKNOWN:
        run->phase = NEEDS_ADDRESSES;
        return true;
    case ENTRY_DIRECT:
        begin_direct(run, report);
    }
    return true;
}

// Does the next part of a run that needs no wait; returns whether there was one.
static bool take_step(NodeRun *run, Report *report) {
    switch (run->phase) {
    case ENTERS:
        return enter(run, report);
    case NEEDS_ADDRESSES:
        if (!run->direct->peers->are_known) {
            return false;
        }
        begin_direct(run, report);
        return true;
    case RUNS_DIRECT:
        if (!have_all_arrived(run->direct->barrier->counter)) {
            return false;
        }
        execute_direct(run, run->at + 1, report);
        return true;
    case RUNS_STAGED:
        if (!have_all_arrived(run->staged->barrier->counter)) {
            return false;
        }
        continue_staged(run, report);
        return true;
    case HAS_ENDED:
        break;
    }
    return false;
}

bool advance_node_run(NodeRun *run, Report *report) {
    bool moved = false;
    while (take_step(run, report)) {
        moved = true;
    }
    return moved;
}
