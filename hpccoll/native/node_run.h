// A run in flight of a plan on one node, with its position: direct, or staged through the slots. This file calls
// no Python.
#ifndef HPCCOLL_NODE_RUN_H
#define HPCCOLL_NODE_RUN_H

#include "entry.h"
#include "interpreter.h"

// A collective through the slots. Runs use the memories `tables[0]` or `tables[1]`: those of the barrier's next slot, or
// those of its latest entry if the payload is in the entries.
typedef struct {
    Barrier *barrier;
    uint64_t fingerprint;
    const Instructions *program;
    char *const *tables[2];
    int segments;
    int64_t entry_fence;  // the number of the first fence
    bool in_entry;
} StagedPart;

// A collective in place. `addresses` and `processes` are those of all memories; the last ones are those of `peers`.
typedef struct {
    Barrier *barrier;
    uint64_t fingerprint;
    const Instructions *program;
    char **addresses;
    pid_t *processes;
    Peers *peers;
} DirectPart;

// The phase of a run. In NEEDS_ADDRESSES, the run waits for a call of hpccoll, because Python must map memory.
typedef enum { ENTERS, NEEDS_ADDRESSES, RUNS_DIRECT, RUNS_STAGED, HAS_ENDED } Phase;

typedef struct {
    const StagedPart *staged;  // NULL if the slots have no room for the plan; no rank then starts a staged run
    DirectPart *direct;        // NULL if this rank's buffers do not permit access in place
    Location own[2];           // of input and output, in a direct run
    char *input, *output;
    Phase phase;
    bool has_entered;  // whether the entry of a direct run was published
    bool has_mismatch;
    int64_t at;        // the number of the fence at which the run waits
    Outcome outcome;
} NodeRun;

// Advances until the run waits for other ranks, needs Python or has ended; returns whether the run advanced.
bool advance_node_run(NodeRun *run, Report *report);

// Publishes the entry of a staged run, which has a payload or no locations.
void post_staged(const StagedPart *staged);

// Returns the memories of a staged run: before its entry if `enters` is true, after its entry if it is false.
static inline Memories staged_memories(const StagedPart *staged, bool enters, char *input, char *output) {
    int number = staged->in_entry ? staged->barrier->entry ^ enters : staged->barrier->next_slot;
    return (Memories){staged->tables[number], NULL, input, output};
}

// Copies the addresses of `peers` to the last memories of a run in place.
void set_peers(const Peers *peers, int64_t memories, char **addresses, pid_t *processes);

#endif
