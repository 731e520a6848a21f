// Entries, by which the ranks of a node begin a collective: each rank publishes a fingerprint of the call and the
// locations of its buffers. This file calls no Python.
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

// The location of a rank's input or output. `bases` are the addresses of the other ranks' memory in the same symmetric
// buffer, in the order of the ranks; NULL for other memory.
typedef struct {
    uint64_t value;
    char *const *bases;
} Location;

// The buffers of the node's other ranks: two for each rank, its input and its output. `locations` are those of the
// current call; if `are_known`, `addresses` and `owners` are valid for them. `mapped`, `mapped_addresses` and
// `mapped_owners` are those of the latest call in which Python mapped locations, which is reused for equal locations.
typedef struct {
    int64_t buffers;
    const pid_t *processes;       // of each buffer's rank; 0 if its memory cannot be accessed
    uint64_t *locations, *mapped;
    char **addresses, **mapped_addresses;
    pid_t *owners, *mapped_owners;  // the processes in which the addresses are valid; 0 for this process
    bool are_known;
} Peers;

typedef enum { ENTRY_WAITS, ENTRY_DIFFERS, ENTRY_STAGED, ENTRY_DIRECT, ENTRY_UNKNOWN } EntryResult;

// Looks at the entries of all ranks without blocking. `peers` is NULL if this rank's own entry is not direct; `own` are
// the locations of this rank's input and output. After ENTRY_DIRECT, `peers` has the addresses; after ENTRY_UNKNOWN,
// Python must map locations.
EntryResult pass_entry(const Barrier *barrier, Peers *peers, const Location own[2]);

// Copies the locations that the other ranks have published, two for each rank.
void read_locations(const Barrier *barrier, uint64_t *locations);

// Publishes the entry of a run in place.
void post_direct(Barrier *barrier, uint64_t fingerprint, const Location own[2]);

#endif
