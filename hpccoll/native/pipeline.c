#include "pipeline.h"

#include "node_run.h"

// The local work on this many tiles takes about as long as the message of one tile.
enum { TILES_PER_VISIT = 4 };

int64_t count_requests(const Segments *segments) {
    int64_t most = 0;
    for (int64_t i = 0; i < segments->segments; i++) {
        int64_t requests = segments->programs[i]->requests;
        most = requests > most ? requests : most;
    }
    return most;
}

static void end_run(PipelineRun *run, MessageOutcome outcome) {
    run->outcome = outcome;
    run->phase = PIPELINE_ENDED;
}

// Publishes this rank's entry or, in later calls, reads the other ranks' entries; returns whether the run advanced.
static bool enter(PipelineRun *run) {
    const PipelinePart *part = run->part;
    if (!run->has_entered) {
        static const uint64_t nowhere[2] = {0, 0};
        if (part->peers) {
            post_direct(part->barrier, part->fingerprint, run->own);
        } else {
            post_entry(part->barrier, part->fingerprint, nowhere);
        }
        run->has_entered = true;
        return true;
    }
    switch (pass_entry(part->barrier, part->peers, run->own)) {
    case ENTRY_WAITS:
        return false;
    case ENTRY_DIFFERS:
        run->has_mismatch = true;
        end_run(run, MESSAGES_DONE);
        return true;
    case ENTRY_STAGED:
        run->segments = run->staged;
        run->phase = PIPELINE_RUNS;
        return true;
    case ENTRY_UNKNOWN:
    case ENTRY_DIRECT:
        run->phase = PIPELINE_NEEDS_ADDRESSES;
    }
    return true;
}

// Lets segments run in place once the addresses of the other ranks' buffers are known; returns whether they are.
static bool begin_direct(PipelineRun *run) {
    const PipelinePart *part = run->part;
    if (!part->peers->are_known) {
        return false;
    }
    run->segments = part->direct;
    for (int64_t slot = 0; slot < part->slots; slot++) {
        set_peers(part->peers, part->direct->programs[0]->memories, part->direct->addresses[slot],
                  part->direct->processes[slot]);
    }
    run->phase = PIPELINE_RUNS;
    return true;
}

// Gives the next segment its slot.
static void start_segment(PipelineRun *run, int64_t slot) {
    const PipelinePart *part = run->part;
    const Segments *segments = run->segments;
    pid_t *processes = segments->processes ? segments->processes[slot] : NULL;
    run->lanes[slot] = (Lane){.is_active = true,
                              .state = {.program = segments->programs[run->next],
                                        .library = part->library,
                                        .memories = {segments->addresses[slot], processes, run->input, run->output},
                                        .comm = part->comm,
                                        .tag = part->first_tag + (int)slot,
                                        .requests = run->requests + slot * run->most_requests,
                                        .fences = part->counters[slot]}};
    run->next++;
}

// Advances the segment in a slot; returns whether anything was done.
static bool advance_lane(PipelineRun *run, int64_t slot, Report *report) {
    Lane *lane = &run->lanes[slot];
    Counter *counter = run->part->counters[slot];
    if (!lane->has_begun) {
        if (!have_all_arrived(counter)) {
            return false;
        }
        lane->has_begun = true;
    }
    Position before = lane->state.position;
    MessageOutcome outcome = advance_messages(&lane->state, TILES_PER_VISIT, report);
    if (outcome == MESSAGES_WAIT) {
        return lane->state.position.at != before.at || lane->state.position.begin != before.begin;
    }
    if (outcome == MESSAGES_DONE) {
        arrive(counter);  // the slot is free for the next segment once all ranks have arrived
        lane->is_active = false;
        return true;
    }
    run->mpi_error = lane->state.mpi_error;
    run->local = lane->state.local;
    end_run(run, outcome);
    return true;
}

// Does the work after the last segment.
static void run_last(PipelineRun *run, Report *report) {
    const Instructions *last = run->part->last;
    int64_t tiles = TILES_PER_VISIT;
    if (last) {
        Memories memories = {run->segments->addresses[0], NULL, run->input, run->output};
        run->local = execute_tiles(last, &memories, &run->last, &tiles, report);
    }
    if (run->local || !last || run->last.at == last->count) {
        end_run(run, run->local ? MESSAGES_INTERRUPTED : MESSAGES_DONE);
    }
}

static bool advance_segments(PipelineRun *run, Report *report) {
    bool moved = false, is_active = false;
    if (run->next < run->segments->segments && !run->lanes[run->next % run->part->slots].is_active) {
        start_segment(run, run->next % run->part->slots);
        moved = true;
    }
    for (int64_t slot = 0; slot < run->part->slots && run->phase == PIPELINE_RUNS; slot++) {
        if (run->lanes[slot].is_active) {
            moved |= advance_lane(run, slot, report);
            is_active |= run->lanes[slot].is_active;
        }
    }
    if (run->phase == PIPELINE_RUNS && !is_active && run->next == run->segments->segments) {
        run_last(run, report);
        moved = true;
    }
    return moved;
}

bool advance_pipeline(PipelineRun *run, Report *report) {
    switch (run->phase) {
    case PIPELINE_ENTERS:
        return enter(run);
    case PIPELINE_NEEDS_ADDRESSES:
        return begin_direct(run);
    case PIPELINE_RUNS:
        return advance_segments(run, report);
    case PIPELINE_ENDED:
        break;
    }
    return false;
}

bool are_segments_settled(const PipelineRun *run) {
    bool settled = true;
    for (int64_t slot = 0; run->segments && slot < run->part->slots; slot++) {
        const Lane *lane = &run->lanes[slot];
        settled &= !lane->is_active || (are_sent(&lane->state) && have_all_arrived(run->part->counters[slot]));
    }
    return settled;
}
