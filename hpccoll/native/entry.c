#include "entry.h"

#include <string.h>

static const uint64_t TOKEN = UINT64_C(1) << 63, FINGERPRINT = DIRECT - 1;

void post_entry(Barrier *barrier, uint64_t fingerprint, const uint64_t *locations) {
    Line *own = line_of(barrier->counter, barrier->counter->row);
    barrier->entry ^= 1;
    _Atomic uint64_t *entry = own->entries[barrier->entry];
    // relaxed: `arrive` makes these stores visible
    atomic_store_explicit(&entry[0], fingerprint, memory_order_relaxed);
    for (int i = 0; locations && i < ENTRY_WORDS - 1; i++) {
        atomic_store_explicit(&entry[1 + i], locations[i], memory_order_relaxed);
    }
    arrive(barrier->counter);
}

Agreement compare_entries(const Barrier *barrier) {
    uint64_t first = 0, differing = 0;
    for (ptrdiff_t row = 0; row < barrier->counter->ranks; row++) {
        // relaxed: the wait for the other ranks has acquired their stores
        uint64_t entry =
            atomic_load_explicit(&line_of(barrier->counter, row)->entries[barrier->entry][0], memory_order_relaxed);
        first = row ? first : entry;
        differing |= entry ^ first;
    }
    return differing & FINGERPRINT ? RANKS_DIFFER : differing ? RANKS_DIFFER_IN_ACCESS : RANKS_AGREE;
}

// Copies a location to `*location`; returns whether it was there before.
static bool copy_location(const Barrier *barrier, ptrdiff_t row, int number, uint64_t *location) {
    _Atomic uint64_t *word = &line_of(barrier->counter, row)->entries[barrier->entry][1 + number];
    uint64_t before = *location;
    *location = atomic_load_explicit(word, memory_order_relaxed);  // relaxed: see `compare_entries`
    return *location == before;
}

bool read_locations(const Barrier *barrier, uint64_t *locations) {
    bool is_same = true;
    for (ptrdiff_t row = 0; row < barrier->counter->ranks; row++) {
        for (int number = 0; row != barrier->counter->row && number < ENTRY_WORDS - 1; number++) {
            is_same &= copy_location(barrier, row, number, locations++);
        }
    }
    return is_same;
}

// Finds the address of buffer number `at`; returns false if only Python can find it.
static bool find_address(Peers *peers, int64_t at, uint64_t location) {
    if (!(location & TOKEN)) {
        peers->addresses[at] = (char *)(uintptr_t)location;
        peers->owners[at] = peers->processes[at];
        return true;
    }
    for (int64_t i = 0; i < peers->symmetric && !(location & DIRECT); i++) {
        if (location >> OFFSET_BITS == peers->numbers[i] >> OFFSET_BITS) {
            peers->addresses[at] = peers->bases[i * peers->buffers + at] + (location & ((UINT64_C(1) << OFFSET_BITS) - 1));
            peers->owners[at] = 0;
            return true;
        }
    }
    return false;
}

EntryResult pass_entry(const Barrier *barrier, Peers *peers) {
    if (!have_all_arrived(barrier->counter)) {
        return ENTRY_WAITS;
    }
    Agreement agreement = compare_entries(barrier);
    if (agreement != RANKS_AGREE || !peers) {
        return agreement == RANKS_DIFFER ? ENTRY_DIFFERS : ENTRY_STAGED;
    }
    bool is_same = read_locations(barrier, peers->known) && peers->has_known;
    peers->has_known = true;
    for (int64_t at = 0; !is_same && at < peers->buffers; at++) {
        peers->has_known &= find_address(peers, at, peers->known[at]);
    }
    return peers->has_known ? ENTRY_DIRECT : ENTRY_UNKNOWN;
}
