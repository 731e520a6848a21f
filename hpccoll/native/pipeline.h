// A run in flight of a two-level collective: a pipeline of segments, of which several are in flight.
// This file calls no Python.
//
// Each segment has a program with messages between nodes and fences between the ranks of a node. A segment in flight
// has a slot: a counter for its fences, memory of each rank, and a tag for its messages. Segments use the slots in turn.
#ifndef HPCCOLL_PIPELINE_H
#define HPCCOLL_PIPELINE_H

#include "entry.h"
#include "messages.h"

// The programs of all segments, and the memories of each slot.
typedef struct {
    int64_t segments;
    const Instructions *const *programs;
    char **const *addresses;
    pid_t *const *processes;  // NULL if all memory is of this process
} Segments;

// A collective of one kind.
typedef struct {
    const MpiLibrary *library;
    uint64_t comm;
    int first_tag;  // of the first slot; the others follow
    Barrier *barrier;
    uint64_t fingerprint;
    int64_t slots;
    Counter *const *counters;
    Peers *peers;              // NULL if this rank's buffers do not permit access in place
    const Segments *direct;    // NULL in the same case
    const Instructions *last;  // runs after all segments, on their memories; NULL if there is nothing to do
} PipelinePart;

// A segment in flight.
typedef struct {
    MessageState state;
    bool is_active;
    bool has_begun;  // whether the node's ranks have finished the previous segment in the slot
} Lane;

// The phase of a run. In PIPELINE_NEEDS_ADDRESSES, the run waits until the program calls hpccoll, because Python must
// map memory.
typedef enum { PIPELINE_ENTERS, PIPELINE_NEEDS_ADDRESSES, PIPELINE_RUNS, PIPELINE_ENDED } PipelinePhase;

typedef struct {
    const PipelinePart *part;
    const Segments *staged;    // through the slots; never NULL
    const Segments *segments;  // those that run: `part->direct` or `staged`
    Location own[2];           // of input and output, if `part->peers`
    char *input, *output;
    Lane *lanes;         // one for each slot
    uint64_t *requests;  // `most_requests` for each slot
    int64_t most_requests, next;
    Position last;       // in `part->last`
    PipelinePhase phase;
    bool has_entered, has_mismatch;
    MessageOutcome outcome;
    Outcome local;
    int mpi_error;
} PipelineRun;

// Advances each segment in flight by a few tiles, without blocking; returns whether the run advanced.
bool advance_pipeline(PipelineRun *run, Report *report);

// Whether the messages of the segments in flight are sent, and all ranks of the node have reached this rank's fences.
bool are_segments_settled(const PipelineRun *run);

// Returns the largest number of requests that the program of a segment has.
int64_t count_requests(const Segments *segments);

#endif
