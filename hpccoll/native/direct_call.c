// Peers and DirectCall: a collective of one kind on one node, which accesses the buffers of the other ranks in place.
#include "objects.h"

static void Peers_dealloc(PyObject *self) {
    PeersObject *object = (PeersObject *)self;
    PyMem_Free((void *)object->peers.processes);
    PyMem_Free(object->peers.locations);
    PyMem_Free(object->peers.mapped);
    PyMem_Free((void *)object->peers.addresses);
    PyMem_Free((void *)object->peers.mapped_addresses);
    PyMem_Free(object->peers.owners);
    PyMem_Free(object->peers.mapped_owners);
    Py_XDECREF(object->map);
    Py_XDECREF(object->keep);
    Py_TYPE(self)->tp_free(self);
}

// Copies the ids of processes in a list to `processes`; returns -1 with an exception.
static int copy_processes(PyObject *list, int64_t count, pid_t *processes) {
    if (PyList_GET_SIZE(list) != count) {
        PyErr_SetString(PyExc_ValueError, "a list has the wrong length");
        return -1;
    }
    for (int64_t i = 0; i < count; i++) {
        processes[i] = (pid_t)PyLong_AsLong(PyList_GET_ITEM(list, i));
    }
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *Peers_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"processes", "map_locations", NULL};
    PyObject *processes, *map;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O", names, &PyList_Type, &processes, &map)) {
        return NULL;
    }
    PeersObject *self = (PeersObject *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    Py_ssize_t buffers = PyList_GET_SIZE(processes);
    size_t room = (size_t)buffers + 1;
    pid_t *copy = PyMem_Calloc(room, sizeof *copy);
    self->map = Py_NewRef(map);
    self->peers = (Peers){.buffers = buffers, .processes = copy,
                          .locations = PyMem_Calloc(room, sizeof(uint64_t)),
                          .mapped = PyMem_Calloc(room, sizeof(uint64_t)),
                          .addresses = PyMem_Calloc(room, sizeof(char *)),
                          .mapped_addresses = PyMem_Calloc(room, sizeof(char *)),
                          .owners = PyMem_Calloc(room, sizeof(pid_t)),
                          .mapped_owners = PyMem_Calloc(room, sizeof(pid_t))};
    const Peers *peers = &self->peers;
    if (!copy || !peers->locations || !peers->mapped || !peers->addresses || !peers->mapped_addresses ||
        !peers->owners || !peers->mapped_owners) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    if (copy_processes(processes, buffers, copy)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

PyTypeObject PeersType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.Peers",
    .tp_doc = "Finds the buffers of the node's other ranks by their locations; the stub describes the arguments.",
    .tp_basicsize = sizeof(PeersObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = Peers_new,
    .tp_dealloc = Peers_dealloc,
};

// Copies the addresses and processes that Python has returned; returns -1 with an exception.
static int take_addresses(Peers *peers, PyObject *addresses, PyObject *owners) {
    if (PyList_GET_SIZE(addresses) != peers->buffers) {
        PyErr_SetString(PyExc_ValueError, "a list has the wrong length");
        return -1;
    }
    for (int64_t i = 0; i < peers->buffers; i++) {
        peers->addresses[i] = (char *)(uintptr_t)PyLong_AsUnsignedLongLong(PyList_GET_ITEM(addresses, i));
    }
    return PyErr_Occurred() || copy_processes(owners, peers->buffers, peers->owners) ? -1 : 0;
}

int map_peers(PeersObject *object) {
    Peers *peers = &object->peers;
    size_t buffers = (size_t)peers->buffers;
    PyObject *locations = PyTuple_New(peers->buffers), *result = NULL, *addresses, *owners, *keep;
    for (Py_ssize_t i = 0; locations && i < peers->buffers; i++) {
        PyTuple_SET_ITEM(locations, i, PyLong_FromUnsignedLongLong(peers->locations[i]));
    }
    if (locations && !PyErr_Occurred()) {
        result = PyObject_CallOneArg(object->map, locations);
    }
    Py_XDECREF(locations);
    if (!result || !PyArg_ParseTuple(result, "O!O!O", &PyList_Type, &addresses, &PyList_Type, &owners, &keep) ||
        take_addresses(peers, addresses, owners)) {
        Py_XDECREF(result);
        return -1;
    }
    memcpy(peers->mapped, peers->locations, buffers * sizeof *peers->mapped);
    memcpy((void *)peers->mapped_addresses, (void *)peers->addresses, buffers * sizeof *peers->mapped_addresses);
    memcpy(peers->mapped_owners, peers->owners, buffers * sizeof *peers->mapped_owners);
    Py_XSETREF(object->keep, Py_NewRef(keep));
    peers->are_known = true;
    Py_DECREF(result);
    return 0;
}

static void DirectCall_dealloc(PyObject *self) {
    DirectCallObject *call = (DirectCallObject *)self;
    PyObject_GC_UnTrack(self);
    PyObject *owned[] = {(PyObject *)call->barrier, (PyObject *)call->program,     (PyObject *)call->table,
                         (PyObject *)call->peers,   (PyObject *)call->shared,      call->owner,
                         (PyObject *)call->staged,  call->make_staged,             call->raise_mismatch};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        Py_XDECREF(owned[i]);
    }
    clear_entry(&call->entry);
    Py_TYPE(self)->tp_free(self);
}

static int DirectCall_traverse(PyObject *self, visitproc visit, void *arg) {
    DirectCallObject *call = (DirectCallObject *)self;
    Py_VISIT(call->entry.calls);
    Py_VISIT(call->owner);
    Py_VISIT(call->staged);
    Py_VISIT(call->make_staged);
    Py_VISIT(call->raise_mismatch);
    return 0;
}

StagedCallObject *get_staged(DirectCallObject *call) {
    if (!call->staged) {
        PyObject *staged = PyObject_CallNoArgs(call->make_staged);
        if (!staged || !has_type(staged, &StagedCallType, "make_staged()")) {
            Py_XDECREF(staged);
            return NULL;
        }
        Py_XSETREF(call->staged, (StagedCallObject *)staged);
    }
    return call->staged;
}

// Runs in place, or through the slots if the buffers of some rank cannot be accessed in place. Records nothing.
static int run_parts(DirectCallObject *call, char *input, char *output) {
    const DirectPart *part = &call->part;
    Location own[2];
    if (locate_arrays(call->shared, call->owner, part->program, input, output, own)) {
        return -1;
    }
    post_direct(part->barrier, part->fingerprint, own);
    if (wait_for_ranks(call->barrier)) {
        return -1;
    }
    EntryResult result = pass_entry(part->barrier, part->peers, own);
    if (result == ENTRY_DIFFERS) {
        raise_mismatch(call->raise_mismatch);
        return -1;
    }
    if (result == ENTRY_STAGED) {
        StagedCallObject *staged = get_staged(call);
        return staged ? run_staged_parts(staged, input, output) : -1;
    }
    if (result == ENTRY_UNKNOWN && map_peers(call->peers)) {
        return -1;
    }
    set_peers(part->peers, part->program->memories, part->addresses, part->processes);
    int failed = run_to_end(call->program, call->barrier, call->table, input, output, 0);
    if (failed && !call->entry.calls->is_lost) {
        settle_fence(call->barrier);
    }
    return failed;
}

static int run_direct(HostCallObject *base, char *input, char *output) {
    DirectCallObject *call = (DirectCallObject *)base;
    int64_t place = begin_call(&call->entry);
    if (place < 0) {
        return -1;
    }
    int failed = run_parts(call, input, output);
    return end_call(&call->entry, place, failed);
}

static PyObject *DirectCall_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"barrier", "program", "table", "peers", "fingerprint", "shared", "owner", "make_staged",
                            "calls", "ring", "name", "description", "raise_mismatch", NULL};
    PyObject *barrier, *program, *table, *peers, *shared, *owner, *make_staged, *raise_mismatch;
    PyObject *calls, *ring, *name, *description;
    unsigned long long fingerprint;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!O!KO!OOO!O!UO!O", names, &NodeBarrierType, &barrier,
                                     &ProgramType, &program, &MemoryTableType, &table, &PeersType, &peers, &fingerprint,
                                     &SharedBuffersType, &shared, &owner, &make_staged, &CallCounterType, &calls,
                                     &EntryRingType, &ring, &name, &PyBytes_Type, &description, &raise_mismatch)) {
        return NULL;
    }
    const Instructions *instructions = &((ProgramObject *)program)->program;
    const MemoryTableObject *memories = (MemoryTableObject *)table;
    Peers *others = &((PeersObject *)peers)->peers;
    if (instructions->ranks || memories->count != instructions->memories || !memories->processes ||
        instructions->bounce_offset < 0 || others->buffers > memories->count - FIRST_SHARED ||
        others->buffers != 2 * (((NodeBarrierObject *)barrier)->base.counter.ranks - 1) ||
        PyBytes_GET_SIZE(description) != DESCRIPTION_BYTES) {
        PyErr_SetString(PyExc_ValueError, "the memories are not those of the program");
        return NULL;
    }
    DirectCallObject *self = (DirectCallObject *)type->tp_alloc(type, 0);
    if (self) {
        self->base.vectorcall = call_host;
        self->base.run = run_direct;
        self->barrier = (NodeBarrierObject *)Py_NewRef(barrier);
        self->program = (ProgramObject *)Py_NewRef(program);
        self->table = (MemoryTableObject *)Py_NewRef(table);
        self->peers = (PeersObject *)Py_NewRef(peers);
        self->shared = (SharedBuffersObject *)Py_NewRef(shared);
        self->owner = Py_NewRef(owner);
        self->make_staged = Py_NewRef(make_staged);
        self->raise_mismatch = Py_NewRef(raise_mismatch);
        self->entry = (CallEntry){(CallCounterObject *)Py_NewRef(calls), (EntryRingObject *)Py_NewRef(ring),
                                  Py_NewRef(name), Py_NewRef(description)};
        self->part = (DirectPart){&self->barrier->barrier, fingerprint, instructions, memories->addresses,
                                  memories->processes, others};
    }
    return (PyObject *)self;
}

PyTypeObject DirectCallType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.DirectCall",
    .tp_doc = "A blocking collective of one kind on one node, in place; the stub describes the arguments.",
    .tp_basicsize = sizeof(DirectCallObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_base = &HostCallType,
    .tp_new = DirectCall_new,
    .tp_dealloc = DirectCall_dealloc,
    .tp_traverse = DirectCall_traverse,
};
