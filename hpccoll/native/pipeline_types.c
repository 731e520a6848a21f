// Segments, PipelineCall and PipelineRun: a two-level collective of one kind, and its runs in flight.
#include "objects.h"

enum { PASSES_PER_STEP = 64 };  // a limit, so that calls return, and the thread gives up the run from time to time

// The programs of all segments, and the memories of each slot.
typedef struct {
    PyObject_HEAD
    Segments segments;
    PyObject *programs, *tables;
} SegmentsObject;

typedef struct {
    PyObject_HEAD
    PipelinePart part;
    MpiFunctionsObject *library;
    NodeBarrierObject *barrier;
    PyObject *slots, *owner, *name, *raise_mismatch;
    SharedBuffersObject *shared;
    PeersObject *peers;
    SegmentsObject *direct;
    ProgramObject *last;
} PipelineCallObject;

typedef struct {
    QueuedRunObject base;
    PipelineRun run;
    PipelineCallObject *call;
    SegmentsObject *staged;
} PipelineRunObject;

static void Segments_dealloc(PyObject *self) {
    SegmentsObject *object = (SegmentsObject *)self;
    PyMem_Free((void *)object->segments.programs);
    PyMem_Free((void *)object->segments.addresses);
    PyMem_Free((void *)object->segments.processes);
    Py_XDECREF(object->programs);
    Py_XDECREF(object->tables);
    Py_TYPE(self)->tp_free(self);
}

// Whether all tables of memories have the number of memories that all programs use.
static bool are_consistent(PyObject *programs, PyObject *tables) {
    Py_ssize_t slots = PyTuple_GET_SIZE(tables), segments = PyTuple_GET_SIZE(programs);
    const MemoryTableObject *first = NULL;
    bool fits = slots && segments;
    for (Py_ssize_t i = 0; fits && i < slots; i++) {
        const MemoryTableObject *table = (MemoryTableObject *)PyTuple_GET_ITEM(tables, i);
        if (!has_type((PyObject *)table, &MemoryTableType, "a table")) {
            return false;
        }
        first = first ? first : table;
        fits = table->count == first->count && !table->processes == !first->processes;
    }
    for (Py_ssize_t i = 0; fits && i < segments; i++) {
        const ProgramObject *program = (ProgramObject *)PyTuple_GET_ITEM(programs, i);
        if (!has_type((PyObject *)program, &ProgramType, "a program")) {
            return false;
        }
        fits = program->program.ranks && program->program.memories == first->count;
        fits = fits && (!first->processes || program->program.bounce_offset >= 0);
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the memories are not those of the programs");
    }
    return fits;
}

static PyObject *Segments_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"programs", "tables", NULL};
    PyObject *programs, *tables;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!", names, &PyTuple_Type, &programs, &PyTuple_Type, &tables) ||
        !are_consistent(programs, tables)) {
        return NULL;
    }
    SegmentsObject *self = (SegmentsObject *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    size_t segments = (size_t)PyTuple_GET_SIZE(programs), slots = (size_t)PyTuple_GET_SIZE(tables);
    const Instructions **found = PyMem_Calloc(segments, sizeof *found);
    char ***addresses = PyMem_Calloc(slots, sizeof *addresses);
    pid_t **processes = PyMem_Calloc(slots, sizeof *processes);
    self->programs = Py_NewRef(programs);
    self->tables = Py_NewRef(tables);
    self->segments = (Segments){(int64_t)segments, found, addresses, processes};
    if (!found || !addresses || !processes) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    for (size_t i = 0; i < segments; i++) {
        found[i] = &((ProgramObject *)PyTuple_GET_ITEM(programs, (Py_ssize_t)i))->program;
    }
    for (size_t i = 0; i < slots; i++) {
        addresses[i] = ((MemoryTableObject *)PyTuple_GET_ITEM(tables, (Py_ssize_t)i))->addresses;
        processes[i] = ((MemoryTableObject *)PyTuple_GET_ITEM(tables, (Py_ssize_t)i))->processes;
    }
    return (PyObject *)self;
}

PyTypeObject SegmentsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.Segments",
    .tp_doc = "The programs of the segments of a two-level collective; the stub describes the arguments.",
    .tp_basicsize = sizeof(SegmentsObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = Segments_new,
    .tp_dealloc = Segments_dealloc,
};

static void PipelineCall_dealloc(PyObject *self) {
    PipelineCallObject *call = (PipelineCallObject *)self;
    PyObject_GC_UnTrack(self);
    PyObject *owned[] = {(PyObject *)call->library, (PyObject *)call->barrier, call->slots, call->owner, call->name,
                         call->raise_mismatch, (PyObject *)call->shared, (PyObject *)call->peers,
                         (PyObject *)call->direct, (PyObject *)call->last};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        Py_XDECREF(owned[i]);
    }
    PyMem_Free((void *)call->part.counters);
    Py_TYPE(self)->tp_free(self);
}

static int PipelineCall_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((PipelineCallObject *)self)->owner);
    Py_VISIT(((PipelineCallObject *)self)->raise_mismatch);
    return 0;
}

// Whether segments can run with the slots of a call, whose messages the MPI library can send.
static bool can_run(const PipelineCallObject *call, const SegmentsObject *segments) {
    if (PyTuple_GET_SIZE(segments->tables) != call->part.slots) {
        PyErr_SetString(PyExc_ValueError, "there are memories for another number of slots");
        return false;
    }
    bool can = true;
    for (Py_ssize_t i = 0; can && i < PyTuple_GET_SIZE(segments->programs); i++) {
        can = can_send((ProgramObject *)PyTuple_GET_ITEM(segments->programs, i), &call->library->functions);
    }
    return can;
}

// Whether the segments of a run in place have the memories of the peers.
static bool fits_peers(const PipelineCallObject *call) {
    int64_t buffers = call->peers->peers.buffers, memories = call->direct->segments.programs[0]->memories;
    bool fits = call->direct->segments.processes[0] && buffers <= memories - FIRST_SHARED;
    fits = fits && buffers == 2 * (call->barrier->base.counter.ranks - 1);
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the memories are not those of the peers");
    }
    return fits;
}

static bool is_local(const ProgramObject *program) {
    bool fits = !program->program.ranks && program->program.memories == FIRST_SHARED;
    for (int64_t i = 0; i < program->program.count; i++) {
        fits = fits && program->instructions[i].code < FENCE;
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the last program has a fence or other memories");
    }
    return fits;
}

// Takes the counters of the slots; returns -1 with an exception.
static int set_slots(PipelineCallObject *call, PyObject *slots) {
    Py_ssize_t count = PyTuple_GET_SIZE(slots);
    Counter **counters = PyMem_Calloc((size_t)count + 1, sizeof *counters);
    call->part.counters = counters;
    call->part.slots = count;
    if (!counters) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *slot = PyTuple_GET_ITEM(slots, i);
        if (!has_type(slot, &ArrivalCounterType, "a slot")) {
            return -1;
        }
        counters[i] = &((ArrivalCounterObject *)slot)->counter;
    }
    return 0;
}

static PyObject *PipelineCall_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"library", "comm", "first_tag", "barrier", "slots", "fingerprint", "shared", "owner",
                            "peers", "direct", "last", "name", "raise_mismatch", NULL};
    PyObject *library, *barrier, *slots, *shared, *owner, *peers, *direct, *last, *name, *raise_mismatch;
    unsigned long long comm, fingerprint;
    int first_tag;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!KiO!O!KO!OOOOUO", names, &MpiFunctionsType, &library, &comm,
                                     &first_tag, &NodeBarrierType, &barrier, &PyTuple_Type, &slots, &fingerprint,
                                     &SharedBuffersType, &shared, &owner, &peers, &direct, &last, &name,
                                     &raise_mismatch)) {
        return NULL;
    }
    if ((peers != Py_None && !has_type(peers, &PeersType, "peers")) ||
        ((direct != Py_None || peers != Py_None) && !has_type(direct, &SegmentsType, "direct")) ||
        (direct != Py_None && !has_type(peers, &PeersType, "peers")) ||
        (last != Py_None && (!has_type(last, &ProgramType, "last") || !is_local((ProgramObject *)last)))) {
        return NULL;
    }
    PipelineCallObject *self = (PipelineCallObject *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->library = (MpiFunctionsObject *)Py_NewRef(library);
    self->barrier = (NodeBarrierObject *)Py_NewRef(barrier);
    self->slots = Py_NewRef(slots);
    self->shared = (SharedBuffersObject *)Py_NewRef(shared);
    self->owner = Py_NewRef(owner);
    self->name = Py_NewRef(name);
    self->raise_mismatch = Py_NewRef(raise_mismatch);
    self->peers = peers == Py_None ? NULL : (PeersObject *)Py_NewRef(peers);
    self->direct = direct == Py_None ? NULL : (SegmentsObject *)Py_NewRef(direct);
    self->last = last == Py_None ? NULL : (ProgramObject *)Py_NewRef(last);
    self->part = (PipelinePart){.library = &self->library->functions, .comm = comm, .first_tag = first_tag,
                                .barrier = &self->barrier->barrier, .fingerprint = fingerprint,
                                .peers = self->peers ? &self->peers->peers : NULL,
                                .direct = self->direct ? &self->direct->segments : NULL,
                                .last = self->last ? &self->last->program : NULL};
    if (set_slots(self, slots) || (self->direct && (!can_run(self, self->direct) || !fits_peers(self)))) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

PyTypeObject PipelineCallType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.PipelineCall",
    .tp_doc = "A two-level collective of one kind; the stub describes the arguments.",
    .tp_basicsize = sizeof(PipelineCallObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PipelineCall_new,
    .tp_dealloc = PipelineCall_dealloc,
    .tp_traverse = PipelineCall_traverse,
};

static bool step(QueuedRunObject *base) {
    PipelineRunObject *object = (PipelineRunObject *)base;
    bool moved = false;
    for (int pass = 0; pass < PASSES_PER_STEP && advance_pipeline(&object->run, &base->report); pass++) {
        moved = true;
    }
    if (object->run.phase == PIPELINE_ENDED) {
        finish_run(base, object->run.outcome == MESSAGES_INTERRUPTED);
    }
    return moved;
}

// Makes room for the segments in flight and their requests.
static int make_room(PipelineRunObject *object) {
    PipelineRun *run = &object->run;
    const Segments *direct = run->part->direct;
    size_t slots = (size_t)run->part->slots;
    int64_t staged_requests = count_requests(run->staged), direct_requests = direct ? count_requests(direct) : 0;
    run->most_requests = direct_requests > staged_requests ? direct_requests : staged_requests;
    run->requests = PyMem_Calloc(slots * (size_t)run->most_requests + 1, sizeof(uint64_t));
    run->lanes = PyMem_Calloc(slots, sizeof *run->lanes);
    if (!run->requests || !run->lanes) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static int prepare(QueuedRunObject *base) {
    PipelineRunObject *object = (PipelineRunObject *)base;
    if (object->run.phase != PIPELINE_NEEDS_ADDRESSES) {
        return 0;
    }
    return map_peers(object->call->peers) ? -1 : 1;
}

static int raise_failure(QueuedRunObject *base) {
    PipelineRunObject *object = (PipelineRunObject *)base;
    const PipelineRun *run = &object->run;
    if (run->has_mismatch) {
        raise_mismatch(object->call->raise_mismatch);
    } else if (run->outcome == MESSAGES_FAILED) {
        raise_mpi_error(object->call->library, object->call->name, run->mpi_error);
    } else if (run->local == REMOTE_FAILED) {
        set_remote_error(&base->report);
    } else if (run->outcome != MESSAGES_DONE || run->local) {
        PyErr_SetString(PyExc_RuntimeError, "the run was interrupted");
    }
    return PyErr_Occurred() ? -1 : 0;
}

static bool is_settled(const QueuedRunObject *base) {
    return are_segments_settled(&((const PipelineRunObject *)base)->run);
}

// Whether the progress thread may advance a run. The thread calls no Python, and calls MPI only if MPI permits that.
static bool is_for_thread(const PipelineRunObject *self) {
    const ProgramObject *program = (ProgramObject *)PyTuple_GET_ITEM(self->staged->programs, 0);
    return self->call->library->is_threaded && !(program->reducer && program->reducer->reducer.combine);
}

static PyObject *PipelineRun_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"call", "staged", "source", "result", "previous", "before", "keep", NULL};
    PyObject *call, *staged, *previous, *before, *keep;
    unsigned long long input, output;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!KKOOO", names, &PipelineCallType, &call, &SegmentsType, &staged,
                                     &input, &output, &previous, &before, &keep)) {
        return NULL;
    }
    PipelineCallObject *kind = (PipelineCallObject *)call;
    if (!can_run(kind, (SegmentsObject *)staged)) {
        return NULL;
    }
    PipelineRunObject *self = (PipelineRunObject *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->call = (PipelineCallObject *)Py_NewRef(call);
    self->staged = (SegmentsObject *)Py_NewRef(staged);
    self->run = (PipelineRun){.part = &kind->part, .staged = &self->staged->segments,
                              .input = (char *)(uintptr_t)input, .output = (char *)(uintptr_t)output};
    if ((kind->direct && locate_arrays(kind->shared, kind->owner, kind->direct->segments.programs[0], self->run.input,
                                       self->run.output, self->run.own)) ||
        begin_queued_run(&self->base, kind->barrier, previous, before, keep) || make_room(self)) {
        Py_DECREF(self);
        return NULL;
    }
    self->base.step = step;
    self->base.prepare = prepare;
    self->base.raise_failure = raise_failure;
    self->base.is_settled = is_settled;
    self->base.releases_gil = true;
    self->base.is_for_thread = is_for_thread(self);
    return (PyObject *)self;
}

static void PipelineRun_dealloc(PyObject *self) {
    PipelineRunObject *object = (PipelineRunObject *)self;
    if (object->base.is_added) {
        remove_task(&object->base.task);
        object->base.is_added = false;
    }
    PyMem_Free(object->run.requests);
    PyMem_Free(object->run.lanes);
    Py_XDECREF(object->call);
    Py_XDECREF(object->staged);
    QueuedRunType.tp_dealloc(self);
}

PyTypeObject PipelineRunType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.PipelineRun",
    .tp_doc = "A run in flight of a two-level collective; the stub describes the arguments.",
    .tp_basicsize = sizeof(PipelineRunObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_base = &QueuedRunType,
    .tp_new = PipelineRun_new,
    .tp_dealloc = PipelineRun_dealloc,
};
