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
    clear_entry(&call->entry);
    Py_TYPE(self)->tp_free(self);
}

void raise_mismatch(PyObject *function) {
    Py_XDECREF(PyObject_CallNoArgs(function));
    if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_RuntimeError, "ranks called different collectives");
    }
}

// Returns the memories of a run: before its entry if `enters` is true, after its entry if it is false.
static const MemoryTableObject *get_table(const StagedCallObject *call, bool enters) {
    return call->tables[call->part.in_entry ? call->part.barrier->entry ^ enters : call->part.barrier->next_slot];
}

// Runs the first part of the program and enters; repeats this until all ranks start the same run. Returns the number of
// the fence at which the ranks have entered; -1 with an exception.
static int64_t enter(StagedCallObject *call, char *input, char *output) {
    for (;;) {
        int64_t at = run_program(call->program, get_table(call, true), input, output, 0);
        if (at < 0) {
            return -1;
        }
        post_staged(&call->part);
        if (wait_for_ranks(call->barrier)) {
            return -1;
        }
        Agreement agreement = compare_entries(call->part.barrier);
        if (agreement == RANKS_AGREE) {
            return at;
        }
        if (agreement == RANKS_DIFFER) {
            raise_mismatch(call->raise_mismatch);
            return -1;
        }
        // A rank started a direct run, and now starts a staged run, too.
    }
}

int run_staged_parts(StagedCallObject *call, char *input, char *output) {
    int64_t at = enter(call, input, output);
    // The payload in an entry stays in place until this rank has entered twice more.
    if (at < 0 || run_to_end(call->program, call->barrier, get_table(call, false), input, output, at + 1)) {
        return -1;
    }
    call->part.barrier->next_slot = (call->part.barrier->next_slot + call->part.segments) & 1;
    return 0;
}

static int run_staged(HostCallObject *base, char *input, char *output) {
    StagedCallObject *call = (StagedCallObject *)base;
    int64_t place = begin_call(&call->entry);
    if (place < 0) {
        return -1;
    }
    int failed = run_staged_parts(call, input, output);
    return end_call(&call->entry, place, failed);
}

static bool is_consistent(const StagedCallObject *call) {
    int64_t memories = call->program->program.memories;
    for (int i = 0; i < 2; i++) {
        if (call->program->program.ranks || call->tables[i]->count != memories || call->tables[i]->processes) {
            return false;
        }
    }
    return PyBytes_GET_SIZE(call->entry.description) == DESCRIPTION_BYTES && call->part.segments > 0;
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
    self->base.vectorcall = call_host;
    self->base.run = run_staged;
    self->barrier = (NodeBarrierObject *)Py_NewRef(barrier);
    self->program = (ProgramObject *)Py_NewRef(program);
    self->tables[0] = (MemoryTableObject *)Py_NewRef(tables[0]);
    self->tables[1] = (MemoryTableObject *)Py_NewRef(tables[1]);
    self->entry = (CallEntry){(CallCounterObject *)Py_NewRef(calls), (EntryRingObject *)Py_NewRef(ring),
                              Py_NewRef(name), Py_NewRef(description)};
    self->raise_mismatch = Py_NewRef(raise_mismatch);
    self->part = (StagedPart){.barrier = &self->barrier->barrier, .fingerprint = fingerprint, .segments = segments,
                              .program = &self->program->program, .in_entry = in_entry,
                              .tables = {self->tables[0]->addresses, self->tables[1]->addresses}};
    while (self->part.entry_fence < self->program->program.count &&
           self->program->instructions[self->part.entry_fence].code != FENCE) {
        self->part.entry_fence++;
    }
    if (!is_consistent(self)) {
        PyErr_SetString(PyExc_ValueError, "the memories are not those of the program");
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

PyTypeObject StagedCallType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.StagedCall",
    .tp_doc = "A blocking collective of one kind on one node, through slots; the stub describes the arguments.",
    .tp_basicsize = sizeof(StagedCallObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_base = &HostCallType,
    .tp_new = StagedCall_new,
    .tp_dealloc = StagedCall_dealloc,
    .tp_traverse = StagedCall_traverse,
    .tp_clear = StagedCall_clear,
};
