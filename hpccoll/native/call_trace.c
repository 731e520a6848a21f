// CallTrace: a ring of entries in the memory of a file, and the tables of call sites and communicators.
#include "call_trace.h"

#include <sys/resource.h>

enum { HEADER_WORDS = 8, WRITTEN_WORD = 3, FOLDED_WORD = 4 };
enum { SHORT_GAP_NS = 20000, LONG_GAP_NS = 100000, LONG_GAP_SCORE = 4, MOST_SCORE = 12 };

static PyObject *handle_name;

static PyObject *CallTrace_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"memory", "describe_site", "describe_comm", "measure", "fold", "from_ns", "to_ns", "period_ns",
                            "every", NULL};
    PyObject *memory, *site, *comm, *measure, *fold;
    long long from_ns, to_ns, period_ns, every;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOLLLL", names, &memory, &site, &comm, &measure, &fold, &from_ns,
                                     &to_ns, &period_ns, &every)) {
        return NULL;
    }
    CallTraceObject *self = (CallTraceObject *)type->tp_alloc(type, 0);
    if (!self || PyObject_GetBuffer(memory, &self->view, PyBUF_WRITABLE)) {
        Py_XDECREF(self);
        return NULL;
    }
    self->header = self->view.buf;
    self->entries = (TraceEntry *)(self->header + HEADER_WORDS);
    self->capacity = (self->view.len - HEADER_WORDS * 8) / (int64_t)sizeof(TraceEntry);
    self->comm_capacity = self->site_capacity = 64;
    self->sites = PyMem_Calloc((size_t)self->site_capacity, sizeof *self->sites);
    self->numbers = PyMem_Calloc((size_t)self->comm_capacity, sizeof *self->numbers);
    self->comms = PyDict_New();
    self->nbytes_name = PyUnicode_InternFromString("nbytes");
    if (!handle_name) {
        handle_name = PyUnicode_InternFromString("handle");
    }
    self->describe_site = Py_NewRef(site);
    self->describe_comm = Py_NewRef(comm);
    self->measure = Py_NewRef(measure);
    self->fold = Py_NewRef(fold);
    self->from_ns = from_ns;
    self->to_ns = to_ns;
    self->period_ns = period_ns;
    self->every = every;
    self->is_active = true;
    if (self->capacity < 2 || period_ns < 1 || every < 1 || !self->comms || !self->nbytes_name || !self->sites || !self->numbers || !handle_name) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "a trace needs memory for two entries, a period and every of at least 1");
        }
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void CallTrace_dealloc(PyObject *object) {
    CallTraceObject *self = (CallTraceObject *)object;
    for (Py_ssize_t i = 0; self->sites && i < self->site_capacity; i++) {
        if (self->sites[i]) {
            Py_DECREF(self->sites[i]->code);
            PyMem_Free(self->sites[i]);
        }
    }
    PyMem_Free(self->sites);
    PyMem_Free(self->numbers);
    Py_XDECREF(self->comms);
    Py_XDECREF(self->nbytes_name);
    Py_XDECREF(self->describe_site);
    Py_XDECREF(self->describe_comm);
    Py_XDECREF(self->measure);
    Py_XDECREF(self->fold);
    PyBuffer_Release(&self->view);
    Py_TYPE(object)->tp_free(object);
}

// Returns the next entry; folds the older half of the ring first if the ring is full. NULL: an exception is set.
TraceEntry *take_trace_entry(CallTraceObject *trace) {
    int64_t written = trace->header[WRITTEN_WORD], folded = trace->header[FOLDED_WORD];
    if (written - folded >= trace->capacity) {
        PyObject *done = PyObject_CallFunction(trace->fold, "LL", (long long)folded, (long long)(trace->capacity / 2));
        if (!done) {
            return NULL;
        }
        Py_DECREF(done);
        trace->header[FOLDED_WORD] = folded + trace->capacity / 2;
    }
    return &trace->entries[written % trace->capacity];
}

static Py_ssize_t find_slot(TraceSite *const *sites, Py_ssize_t capacity, PyObject *code, int lasti) {
    size_t hash = ((uintptr_t)code >> 4) * 31 + (size_t)lasti;
    Py_ssize_t slot = (Py_ssize_t)((hash * 0x9E3779B97F4A7C15u) >> 20) & (capacity - 1);
    while (sites[slot] && (sites[slot]->code != code || sites[slot]->lasti != lasti)) {
        slot = (slot + 1) & (capacity - 1);
    }
    return slot;
}

static int grow_sites(CallTraceObject *trace) {
    Py_ssize_t capacity = 2 * trace->site_capacity;
    TraceSite **sites = PyMem_Calloc((size_t)capacity, sizeof *sites);
    if (!sites) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < trace->site_capacity; i++) {
        if (trace->sites[i]) {
            sites[find_slot(sites, capacity, trace->sites[i]->code, trace->sites[i]->lasti)] = trace->sites[i];
        }
    }
    PyMem_Free(trace->sites);
    trace->sites = sites;
    trace->site_capacity = capacity;
    return 0;
}

// Returns the site of a frame; its id is -1 if the frame is of a library. NULL: an exception is set.
static TraceSite *find_frame_site(CallTraceObject *trace, PyFrameObject *frame) {
    PyCodeObject *code = PyFrame_GetCode(frame);
    int lasti = PyFrame_GetLasti(frame);
    Py_DECREF(code); // the frame holds it
    Py_ssize_t slot = find_slot(trace->sites, trace->site_capacity, (PyObject *)code, lasti);
    if (trace->sites[slot]) {
        return trace->sites[slot];
    }
    PyObject *described = PyObject_CallFunctionObjArgs(trace->describe_site, (PyObject *)frame, NULL);
    long id = described ? PyLong_AsLong(described) : -1;
    Py_XDECREF(described);
    if (PyErr_Occurred() || (2 * (trace->site_count + 1) > trace->site_capacity && grow_sites(trace))) {
        return NULL;
    }
    slot = find_slot(trace->sites, trace->site_capacity, (PyObject *)code, lasti); // another thread may have added sites
    if (!trace->sites[slot]) {
        TraceSite *site = PyMem_Malloc(sizeof *site);
        if (!site) {
            PyErr_NoMemory();
            return NULL;
        }
        *site = (TraceSite){Py_NewRef((PyObject *)code), lasti, (int32_t)id, 0};
        trace->sites[slot] = site;
        trace->site_count++;
    }
    return trace->sites[slot];
}

// Returns the site of the innermost Python code that is of no library; NULL: an exception is set.
TraceSite *find_trace_site(CallTraceObject *trace) {
    PyFrameObject *frame = PyEval_GetFrame();
    if (!frame) {
        PyErr_SetString(PyExc_RuntimeError, "a traced function was called without a Python frame");
        return NULL;
    }
    Py_INCREF(frame);
    TraceSite *site = find_frame_site(trace, frame);
    while (site && site->id < 0) {
        PyFrameObject *caller = PyFrame_GetBack(frame);
        if (!caller) {
            break; // describe_site gives the outermost frame an id
        }
        Py_DECREF(frame);
        frame = caller;
        site = find_frame_site(trace, frame);
    }
    Py_DECREF(frame);
    return site;
}

// Returns the MPI handle of an object of mpi4py, or the address of another object.
int64_t read_handle(PyObject *object) {
    // Objects of torch have no handle; a failed PyObject_GetAttr would make an exception for each of them.
    PyObject *handle = _PyType_Lookup(Py_TYPE(object), handle_name) ? PyObject_GetAttr(object, handle_name) : NULL;
    int64_t value = handle && PyLong_Check(handle) ? (int64_t)PyLong_AsUnsignedLongLongMask(handle) : (int64_t)(intptr_t)object;
    Py_XDECREF(handle);
    PyErr_Clear();
    return value;
}

static PyObject *make_identity(PyObject *comm) {
    return PyLong_FromLongLong(comm ? read_handle(comm) : 0);
}

// Returns the id of a communicator; -1: an exception is set.
int32_t find_trace_comm(CallTraceObject *trace, PyObject *comm) {
    PyObject *key = make_identity(comm);
    if (!key) {
        return -1;
    }
    PyObject *known = PyDict_GetItemWithError(trace->comms, key); // borrowed
    if (known || PyErr_Occurred()) {
        Py_DECREF(key);
        return known ? (int32_t)PyLong_AsLong(known) : -1;
    }
    PyObject *described = PyObject_CallFunctionObjArgs(trace->describe_comm, comm ? comm : Py_None, NULL);
    long id = described ? PyLong_AsLong(described) : -1;
    if (id >= trace->comm_capacity) {
        int32_t *numbers = PyMem_Realloc(trace->numbers, 2 * (size_t)id * sizeof *numbers);
        if (numbers) {
            memset(numbers + trace->comm_capacity, 0, (2 * (size_t)id - (size_t)trace->comm_capacity) * sizeof *numbers);
            trace->numbers = numbers;
            trace->comm_capacity = 2 * id;
        } else {
            PyErr_NoMemory();
            id = -1;
        }
    }
    if (id >= 0 && PyDict_SetItem(trace->comms, key, described)) {
        id = -1;
    }
    Py_DECREF(key);
    Py_XDECREF(described);
    return (int32_t)id;
}

bool is_in_trace_window(const CallTraceObject *trace, int64_t begin_ns) {
    if (begin_ns < trace->from_ns || begin_ns >= trace->to_ns) {
        return false;
    }
    return trace->every == 1 || (begin_ns - trace->from_ns) / trace->period_ns % trace->every == 0;
}

static void read_usage(int64_t *used_ns, int64_t *switches) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    *used_ns = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000LL +
               (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000LL;
    *switches = usage.ru_nvcsw;
}

// Notes how long the thread was off its core since the previous call, and whether the thread has blocked since then.
void note_gap(CallTraceObject *trace, int64_t begin_ns, TraceEntry *entry) {
    int64_t gap_ns = begin_ns - trace->last_end_ns;
    entry->off_core_ns = -1;
    if (trace->last_site) {
        int score = trace->last_site->long_gaps + (gap_ns > LONG_GAP_NS ? LONG_GAP_SCORE : -1);
        trace->last_site->long_gaps = score < 0 ? 0 : score > MOST_SCORE ? MOST_SCORE : score;
    }
    if (trace->is_usage_known && gap_ns > SHORT_GAP_NS) {
        int64_t used_ns, switches;
        read_usage(&used_ns, &switches);
        int64_t off_core_ns = gap_ns - (used_ns - trace->used_ns);
        entry->off_core_ns = off_core_ns > 0 ? off_core_ns : 0;
        entry->flags |= switches > trace->switches ? TRACE_BLOCKED : 0;
    }
}

// Ends a call from `site`. Reading the thread's time on a core needs a system call, so this time is read only if the
// program usually computes for long after calls from `site`.
void note_end(CallTraceObject *trace, int64_t end_ns, TraceSite *site) {
    trace->last_end_ns = end_ns;
    trace->last_site = site;
    trace->last_site_id = site ? site->id : trace->last_site_id;
    trace->is_usage_known = site && site->long_gaps >= LONG_GAP_SCORE;
    if (trace->is_usage_known) {
        read_usage(&trace->used_ns, &trace->switches);
    }
}

// write(op, begin_ns, end_ns, nbytes, request, comm, peer, tag, site, flags): an entry of a call that Python code times.
static PyObject *CallTrace_write(PyObject *object, PyObject *args) {
    CallTraceObject *self = (CallTraceObject *)object;
    int op, comm, peer, tag, site, flags;
    long long begin_ns, end_ns, nbytes, request;
    if (!PyArg_ParseTuple(args, "iLLLLiiiii", &op, &begin_ns, &end_ns, &nbytes, &request, &comm, &peer, &tag, &site, &flags)) {
        return NULL;
    }
    if (comm < 0 || comm >= self->comm_capacity) {
        PyErr_Format(PyExc_ValueError, "the trace has no communicator %d", comm);
        return NULL;
    }
    int32_t number = flags & TRACE_COLLECTIVE ? self->numbers[comm]++ : 0;
    if (!self->is_active || !is_in_trace_window(self, begin_ns)) {
        Py_RETURN_NONE;
    }
    TraceEntry *entry = take_trace_entry(self);
    if (!entry) {
        return NULL;
    }
    *entry = (TraceEntry){begin_ns, end_ns, nbytes, request, -1, number, site, comm, peer, tag, (int16_t)op, (int16_t)flags};
    __atomic_store_n(&self->header[WRITTEN_WORD], self->header[WRITTEN_WORD] + 1, __ATOMIC_RELEASE);
    note_end(self, end_ns, NULL);
    Py_RETURN_NONE;
}

// write_wait(op, begin_ns, end_ns, operations): the entries of one wait, one per operation that it completes.
static PyObject *CallTrace_write_wait(PyObject *object, PyObject *args) {
    CallTraceObject *self = (CallTraceObject *)object;
    int op;
    long long begin_ns, end_ns;
    PyObject *operations;
    if (!PyArg_ParseTuple(args, "iLLO!", &op, &begin_ns, &end_ns, &PyList_Type, &operations)) {
        return NULL;
    }
    bool is_recorded = self->is_active && is_in_trace_window(self, begin_ns);
    for (Py_ssize_t i = 0; is_recorded && i < PyList_GET_SIZE(operations); i++) {
        TraceEntry *entry = take_trace_entry(self);
        if (!entry) {
            return NULL;
        }
        *entry = (TraceEntry){.begin_ns = begin_ns, .end_ns = end_ns, .off_core_ns = -1, .site = self->last_site_id,
                              .request = read_handle(PyList_GET_ITEM(operations, i)), .peer = TRACE_NOT_GIVEN,
                              .op = (int16_t)op, .flags = (int16_t)(TRACE_COMPLETE | (i ? TRACE_MORE : 0))};
        __atomic_store_n(&self->header[WRITTEN_WORD], self->header[WRITTEN_WORD] + 1, __ATOMIC_RELEASE);
    }
    if (is_recorded && PyList_GET_SIZE(operations)) {
        note_end(self, end_ns, NULL);
    }
    Py_RETURN_NONE;
}

static PyObject *CallTrace_find_comm(PyObject *self, PyObject *comm) {
    int32_t id = find_trace_comm((CallTraceObject *)self, comm == Py_None ? NULL : comm);
    return id < 0 ? NULL : PyLong_FromLong(id);
}

static PyObject *CallTrace_forget(PyObject *self, PyObject *comm) {
    PyObject *key = make_identity(comm);
    if (key && PyDict_DelItem(((CallTraceObject *)self)->comms, key)) {
        PyErr_Clear(); // it was never used
    }
    Py_XDECREF(key);
    Py_RETURN_NONE;
}

static PyMethodDef CallTrace_methods[] = {
    {"write", CallTrace_write, METH_VARARGS, "Write the entry of a call that Python code has timed."},
    {"write_wait", CallTrace_write_wait, METH_VARARGS, "Write the entries of a wait for several operations."},
    {"find_comm", CallTrace_find_comm, METH_O, "Return the id of a communicator."},
    {"forget", CallTrace_forget, METH_O, "Forget a communicator that will be freed."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef CallTrace_members[] = {
    {"pickled_bytes", T_LONGLONG, offsetof(CallTraceObject, pickled_bytes), 0, "Bytes of the objects of the current call."},
    {"last_end_ns", T_LONGLONG, offsetof(CallTraceObject, last_end_ns), READONLY, "The end of the previous call."},
    {"last_site_id", T_INT, offsetof(CallTraceObject, last_site_id), READONLY, "The call site of the previous call."},
    {"is_active", T_BOOL, offsetof(CallTraceObject, is_active), 0, "Whether calls are recorded."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject CallTraceType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.CallTrace",
    .tp_doc = "The entries of the communication calls of a rank, in the memory of a file.",
    .tp_basicsize = sizeof(CallTraceObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = CallTrace_new,
    .tp_dealloc = CallTrace_dealloc,
    .tp_methods = CallTrace_methods,
    .tp_members = CallTrace_members,
};
