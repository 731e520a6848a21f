// StagedCall: a blocking collective of one kind, through the slots of a node, on arrays that each call passes.
#include "objects.h"

static int StagedCall_traverse(PyObject *self, visitproc visit, void *arg) {
    StagedCallObject *call = (StagedCallObject *)self;
    Py_VISIT(call->entry.calls);
    Py_VISIT(call->raise_mismatch);
    return 0;
}

static int StagedCall_clear(PyObject *self) {
    StagedCallObject *call = (StagedCallObject *)self;
    Py_CLEAR(call->raise_mismatch);
    return 0;
}

static void StagedCall_dealloc(PyObject *self) {
    StagedCallObject *call = (StagedCallObject *)self;
    PyObject_GC_UnTrack(self);
    StagedCall_clear(self);
    Py_XDECREF(call->barrier);
    Py_XDECREF(call->program);
    Py_XDECREF(call->tables[0]);
    Py_XDECREF(call->tables[1]);
    Py_XDECREF(call->entry.calls);
    Py_XDECREF(call->entry.ring);
    Py_XDECREF(call->entry.name);
    Py_XDECREF(call->entry.description);
    Py_TYPE(self)->tp_free(self);
}

static void raise_mismatch(StagedCallObject *call) {
    Py_XDECREF(PyObject_CallNoArgs(call->raise_mismatch));
    if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_RuntimeError, "ranks called different collectives");
    }
}

// Publishes the entry of a staged run, which has a payload or no locations.
void post_staged(StagedCallObject *call) {
    static const uint64_t nowhere[2] = {0, 0};
    post_entry(call->barrier, call->fingerprint, call->in_entry ? NULL : nowhere);
}

// Runs the first part of the program and enters, until all ranks start the same run; returns the number of the fence.
static int64_t enter(StagedCallObject *call, char *input, char *output) {
    NodeBarrierObject *barrier = call->barrier;
    for (;;) {
        MemoryTableObject *table = call->tables[call->in_entry ? barrier->entry ^ 1 : barrier->next_slot];
        int64_t at = run_program(call->program, table, input, output, 0);
        if (at < 0) {
            return -1;
        }
        post_staged(call);
        if (wait_for_ranks(barrier)) {
            return -1;
        }
        int alike = compare_entries(barrier);
        if (alike == RANKS_AGREE) {
            return at;
        }
        if (alike == RANKS_DIFFER) {
            raise_mismatch(call);
            return -1;
        }
        // A rank started a direct run, and now starts a staged run, too.
    }
}

// Runs the call without recording it.
static int run_parts(StagedCallObject *call, char *input, char *output) {
    NodeBarrierObject *barrier = call->barrier;
    int64_t at = enter(call, input, output);
    // The payload in an entry stays in place until this rank has entered twice more.
    MemoryTableObject *table = call->tables[call->in_entry ? barrier->entry : barrier->next_slot];
    if (at < 0 || run_to_end(call->program, barrier, table, input, output, at + 1)) {
        return -1;
    }
    barrier->next_slot = (barrier->next_slot + call->segments) & 1;
    return 0;
}

int run_staged(StagedCallObject *call, char *input, char *output) {
    int64_t place = begin_call(&call->entry);
    if (place < 0) {
        return -1;
    }
    int failed = run_parts(call, input, output);
    end_call(&call->entry, place, failed);
    return failed;
}

// Runs the first part of an asynchronous run, and posts the entry; returns the number of the fence to wait at.
static int64_t begin_steps(StagedCallObject *call, char *input, char *output) {
    NodeBarrierObject *barrier = call->barrier;
    MemoryTableObject *table = call->tables[call->in_entry ? barrier->entry ^ 1 : barrier->next_slot];
    int64_t at = run_program(call->program, table, input, output, 0);
    if (at >= 0) {
        post_staged(call);
    }
    return at;
}

// Continues an asynchronous run at fence number `at`, which all ranks have reached. Returns the number of the next
// fence to wait at, -1 at the end, -2 with an exception.
static int64_t continue_steps(StagedCallObject *call, char *input, char *output, int64_t at) {
    NodeBarrierObject *barrier = call->barrier;
    int64_t count = call->program->program.count;
    if (at == call->entry_fence) {
        int alike = compare_entries(barrier);
        if (alike == RANKS_DIFFER) {
            raise_mismatch(call);
            return -2;
        }
        if (alike == RANKS_DIFFER_IN_ACCESS) {
            at = begin_steps(call, input, output);
            return at < 0 ? -2 : at;
        }
    }
    MemoryTableObject *table = call->tables[call->in_entry ? barrier->entry : barrier->next_slot];
    int64_t next = at < count ? run_program(call->program, table, input, output, at + 1) : count;
    if (next >= 0 && next < count) {
        arrive(&barrier->counter);
        return next;
    }
    barrier->next_slot = (barrier->next_slot + call->segments) & 1;
    return next < 0 ? -2 : -1;
}

static bool parse_addresses(PyObject *args, char **input, char **output, long long *at) {
    unsigned long long addresses[2];
    if (!PyArg_ParseTuple(args, at ? "KKL" : "KK", &addresses[0], &addresses[1], at)) {
        return false;
    }
    *input = (char *)(uintptr_t)addresses[0];
    *output = (char *)(uintptr_t)addresses[1];
    return true;
}

static PyObject *StagedCall_begin(PyObject *self, PyObject *args) {
    char *input, *output;
    if (!parse_addresses(args, &input, &output, NULL)) {
        return NULL;
    }
    int64_t at = begin_steps((StagedCallObject *)self, input, output);
    return at < 0 ? NULL : PyLong_FromLongLong(at);
}

static PyObject *StagedCall_proceed(PyObject *self, PyObject *args) {
    char *input, *output;
    long long at;
    if (!parse_addresses(args, &input, &output, &at)) {
        return NULL;
    }
    StagedCallObject *call = (StagedCallObject *)self;
    if (at < 0 || at > call->program->program.count) {
        return PyErr_Format(PyExc_ValueError, "there is no fence %lld", at);
    }
    int64_t next = continue_steps(call, input, output, at);
    return next == -2 ? NULL : PyLong_FromLongLong(next);
}

static PyObject *StagedCall_run_unrecorded(PyObject *self, PyObject *args) {
    char *input, *output;
    if (!parse_addresses(args, &input, &output, NULL)) {
        return NULL;
    }
    return run_parts((StagedCallObject *)self, input, output) ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef StagedCall_methods[] = {
    {"begin", StagedCall_begin, METH_VARARGS,
     "Begin a run without waiting for other ranks or recording it; return the number of the fence to wait at."},
    {"proceed", StagedCall_proceed, METH_VARARGS,
     "Continue a run at a fence that all ranks have reached; return the number of the next fence, or -1 at the end."},
    {"run_unrecorded", StagedCall_run_unrecorded, METH_VARARGS, "Run once without an entry in the flight recorder."},
    {NULL, NULL, 0, NULL},
};

static PyObject *StagedCall_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names) {
    StagedCallObject *call = (StagedCallObject *)self;
    if (PyVectorcall_NARGS(nargsf) != 2 || names) {
        PyErr_SetString(PyExc_TypeError, "a staged call takes the addresses of input and output");
        return NULL;
    }
    char *addresses[2];
    for (int i = 0; i < 2; i++) {
        addresses[i] = (char *)(uintptr_t)PyLong_AsUnsignedLongLong(args[i]);
        if (PyErr_Occurred()) {
            return NULL;
        }
    }
    Py_INCREF(self);
    int failed = run_staged(call, addresses[0], addresses[1]);
    Py_DECREF(self);
    return failed ? NULL : Py_NewRef(Py_None);
}

static bool is_consistent(const StagedCallObject *call) {
    int64_t memories = call->program->program.memories;
    for (int i = 0; i < 2; i++) {
        if (call->program->program.ranks || call->tables[i]->count != memories || call->tables[i]->processes) {
            return false;
        }
    }
    return PyBytes_GET_SIZE(call->entry.description) == DESCRIPTION_BYTES && call->segments > 0;
}

static PyObject *StagedCall_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"barrier", "program", "tables", "segments", "in_entry", "fingerprint", "calls", "ring",
                            "name", "description", "raise_mismatch", NULL};
    PyObject *barrier, *program, *tables[2], *calls, *ring, *name, *description, *raise_mismatch;
    int segments, in_entry;
    unsigned long long fingerprint;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!(O!O!)ipKO!O!UO!O", names, &NodeBarrierType, &barrier,
                                     &ProgramType, &program, &MemoryTableType, &tables[0], &MemoryTableType,
                                     &tables[1], &segments, &in_entry, &fingerprint, &CallCounterType, &calls,
                                     &EntryRingType, &ring, &name, &PyBytes_Type, &description, &raise_mismatch)) {
        return NULL;
    }
    StagedCallObject *self = (StagedCallObject *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->vectorcall = StagedCall_vectorcall;
    self->barrier = (NodeBarrierObject *)Py_NewRef(barrier);
    self->program = (ProgramObject *)Py_NewRef(program);
    self->tables[0] = (MemoryTableObject *)Py_NewRef(tables[0]);
    self->tables[1] = (MemoryTableObject *)Py_NewRef(tables[1]);
    self->entry = (CallEntry){(CallCounterObject *)Py_NewRef(calls), (EntryRingObject *)Py_NewRef(ring),
                              Py_NewRef(name), Py_NewRef(description)};
    self->raise_mismatch = Py_NewRef(raise_mismatch);
    self->fingerprint = fingerprint;
    self->segments = segments;
    while (self->entry_fence < self->program->program.count &&
           self->program->instructions[self->entry_fence].code != FENCE) {
        self->entry_fence++;
    }
    self->in_entry = in_entry;
    if (!is_consistent(self)) {
        PyErr_SetString(PyExc_ValueError, "the memories are not those of the program");
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

PyTypeObject StagedCallType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.StagedCall",
    .tp_doc = "A blocking collective of one kind, called with the addresses of input and output.",
    .tp_basicsize = sizeof(StagedCallObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = StagedCall_new,
    .tp_dealloc = StagedCall_dealloc,
    .tp_traverse = StagedCall_traverse,
    .tp_clear = StagedCall_clear,
    .tp_call = PyVectorcall_Call,
    .tp_methods = StagedCall_methods,
    .tp_vectorcall_offset = offsetof(StagedCallObject, vectorcall),
};
