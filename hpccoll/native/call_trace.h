// The entries of a profile (hpccoll/profile): what CallTrace and TracedCall share.
#ifndef HPCCOLL_CALL_TRACE_H
#define HPCCOLL_CALL_TRACE_H

#include "objects.h"

// One call; the layout is that of hpccoll/profile/layout.py.
typedef struct {
    int64_t begin_ns, end_ns;
    int64_t nbytes;   // -1: unknown
    int64_t request;  // handle of the request that the call starts or completes, or the source of a sendrecv
    int64_t off_core_ns; // time without a core since the previous call; -1: unknown
    int32_t number;   // number of a collective among those of its communicator
    int32_t site, comm, peer, tag;
    int16_t op, flags;
} TraceEntry;

enum { TRACE_COLLECTIVE = 1, TRACE_START = 2, TRACE_COMPLETE = 4, TRACE_INIT = 8, TRACE_FAILED = 16, TRACE_BLOCKED = 32,
       TRACE_IN_PLACE = 64, TRACE_MORE = 128 };

enum { TRACE_NOT_GIVEN = -9 };

// From bit TRACE_ITEMSIZE_SHIFT on, `flags` has 1 + log2 of the bytes of an element, or 0 if they are unknown.
enum { TRACE_ITEMSIZE_SHIFT = 8, TRACE_MOST_ITEMSIZE = 64 };

// A call site: a place in a code object.
typedef struct {
    PyObject *code;
    int lasti;
    int32_t id;
    int long_gaps; // rises by LONG_GAP_SCORE when the program computes for long after a call from here, else falls by 1
} TraceSite;

typedef struct {
    PyObject_HEAD
    Py_buffer view;
    int64_t *header; // magic, layout, capacity, written, folded, start, end
    TraceEntry *entries;
    int64_t capacity, from_ns, to_ns, period_ns, every;
    PyObject *nbytes_name;
    PyObject *describe_site, *describe_comm, *measure, *fold;
    PyObject *comms; // identity of a communicator: its id
    int32_t *numbers; // by id
    Py_ssize_t comm_capacity;
    TraceSite **sites; // a hash table; a site stays at its address, because calls in flight refer to it
    Py_ssize_t site_capacity, site_count;
    TraceSite *last_site;
    unsigned long busy_thread;
    int64_t pickled_bytes;
    int last_site_id; // of the previous call
    int64_t last_end_ns, used_ns, switches; // values of the thread's counters at the end of the previous call
    bool is_usage_known, is_active;
} CallTraceObject;

extern PyTypeObject CallTraceType, TracedCallType;
extern PyMethodDef trace_functions[];

TraceEntry *take_trace_entry(CallTraceObject *trace);
TraceSite *find_trace_site(CallTraceObject *trace);
int32_t find_trace_comm(CallTraceObject *trace, PyObject *comm);
int64_t read_handle(PyObject *object);
void note_gap(CallTraceObject *trace, int64_t begin_ns, TraceEntry *entry);
void note_end(CallTraceObject *trace, int64_t end_ns, TraceSite *site);
bool is_in_trace_window(const CallTraceObject *trace, int64_t begin_ns);

#endif
