// How the ranks of a node enter a collective: each publishes a fingerprint of the call and where its buffers are. No
// Python here.
#ifndef HPCCOLL_ENTRY_H
#define HPCCOLL_ENTRY_H

#include <sys/types.h>

#include "waits.h"

// A barrier; `entry` is the number of this rank's latest entry (0 or 1) in its line, and `next_slot` the slot with
// which the next staged collective begins.
typedef struct {
    Counter *counter;
    int entry, next_slot;
} Barrier;

// The fingerprint of a rank that accesses buffers in place has this bit.
#define DIRECT (UINT64_C(1) << 62)

typedef enum { RANKS_DIFFER = -1, RANKS_DIFFER_IN_ACCESS, RANKS_AGREE } Agreement;

// Publishes an entry, in which `locations` may be NULL if the payload is already there, and counts the arrival.
void post_entry(Barrier *barrier, uint64_t fingerprint, const uint64_t *locations);

// Compares the latest entries of all ranks, which must have arrived.
Agreement compare_entries(const Barrier *barrier);

// A location is an address in the process of its rank, or a token: the number of a symmetric buffer and an offset in it.
// Tokens have the highest bit; locations in files, which only Python can map, have the second highest bit, too.
enum { OFFSET_BITS = 42 };

// The buffers of the node's other ranks: two for each rank, its input and its output.
typedef struct {
    int64_t buffers;
    const pid_t *processes;       // of each buffer's rank; 0 if its memory cannot be accessed
    int64_t symmetric;            // how many symmetric buffers are known
    const uint64_t *numbers;      // their tokens without offsets
    char *const *bases;           // for each of them the address of each buffer's rank
    uint64_t *known;              // the locations that `addresses` and `owners` belong to, if `has_known`
    char **addresses;
    pid_t *owners;                // the processes in which the addresses are valid; 0: this one
    bool has_known;
} Peers;

typedef enum { ENTRY_WAITS, ENTRY_DIFFERS, ENTRY_STAGED, ENTRY_DIRECT, ENTRY_UNKNOWN } EntryResult;

// Looks at the entries of all ranks without blocking. `peers` is NULL if this rank's own entry is not direct. After
// ENTRY_DIRECT, `peers` has the addresses; after ENTRY_UNKNOWN, `set_addresses` must pass them.
EntryResult pass_entry(const Barrier *barrier, Peers *peers);

// Copies the locations that the other ranks have published, two for each rank; returns whether all were there before.
bool read_locations(const Barrier *barrier, uint64_t *locations);

#endif
