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

void read_locations(const Barrier *barrier, uint64_t *locations) {
    for (ptrdiff_t row = 0; row < barrier->counter->ranks; row++) {
        const Line *line = line_of(barrier->counter, row);
        for (int number = 0; row != barrier->counter->row && number < ENTRY_WORDS - 1; number++) {
            // relaxed: see `compare_entries`
            *locations++ =
                atomic_load_explicit(&line->entries[barrier->entry][1 + number], memory_order_relaxed);
        }
    }
}

void post_direct(Barrier *barrier, uint64_t fingerprint, const Location own[2]) {
    uint64_t locations[] = {own[0].value, own[1].value};
    post_entry(barrier, fingerprint | DIRECT, locations);
}

// Finds the address of buffer number `at`; returns false if only Python can find it.
static bool find_address(Peers *peers, int64_t at, const Location own[2]) {
    uint64_t location = peers->locations[at];
    if (!(location & TOKEN)) {
        peers->addresses[at] = (char *)(uintptr_t)location;
        peers->owners[at] = peers->processes[at];
        return true;
    }
    for (int i = 0; i < 2 && !(location & DIRECT); i++) {
        if (own[i].bases && location >> OFFSET_BITS == own[i].value >> OFFSET_BITS) {
            peers->addresses[at] = own[i].bases[at / 2] + (location & ((UINT64_C(1) << OFFSET_BITS) - 1));
            peers->owners[at] = 0;
            return true;
        }
    }
    if (location != peers->mapped[at]) {
        return false;
    }
    peers->addresses[at] = peers->mapped_addresses[at];
    peers->owners[at] = peers->mapped_owners[at];
    return true;
}

EntryResult pass_entry(const Barrier *barrier, Peers *peers, const Location own[2]) {
    if (!have_all_arrived(barrier->counter)) {
        return ENTRY_WAITS;
    }
    Agreement agreement = compare_entries(barrier);
    if (agreement != RANKS_AGREE || !peers) {
        return agreement == RANKS_DIFFER ? ENTRY_DIFFERS : ENTRY_STAGED;
    }
    read_locations(barrier, peers->locations);
    peers->are_known = true;
    for (int64_t at = 0; at < peers->buffers; at++) {
        peers->are_known &= find_address(peers, at, own);
    }
    return peers->are_known ? ENTRY_DIRECT : ENTRY_UNKNOWN;
}
