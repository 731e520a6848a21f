// Copies in memory of this process, or in memory that it shares.
#ifndef HPCCOLL_COPIES_H
#define HPCCOLL_COPIES_H

#include <stddef.h>

// Has the effect of memmove(out, in, nbytes).
void copy_bytes(char *out, const char *in, size_t nbytes);

// Claims the cache lines of memory that this core has just read and that another core will write next: stores one byte
// of each line again. No rank may write these bytes meanwhile, and no other rank should read them. Without a claim, the
// writer's cache keeps the changed lines as their owner and marks them as shared; on AMD processors, its next store to
// each line then asks all caches to invalidate their copies. A claimed line has one copy, which the writer fetches.
// On two cores of an EPYC without a common third-level cache, writing 256 KiB takes 111 us, and after claims 14 us,
// while the reader's time grows from 14 to 15 us; with a common cache 36 us, and 8 us after claims. This function does
// nothing on other processors.
void claim_lines(char *at, size_t nbytes);

#endif
