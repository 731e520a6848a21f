// Peers and DirectCall: a collective of one kind on one node, which accesses the buffers of the other ranks in place.
#include "objects.h"

static void Peers_dealloc(PyObject *self) {
    PeersObject *object = (PeersObject *)self;
    PyMem_Free((void *)object->peers.processes);
    PyMem_Free((void *)object->peers.numbers);
    PyMem_Free((void *)object->peers.bases);
    PyMem_Free(object->peers.known);
    PyMem_Free(object->peers.addresses);
    PyMem_Free(object->peers.owners);
    Py_XDECREF(object->resolve);
    Py_XDECREF(object->keep);
    Py_XDECREF(object->kept);
    Py_TYPE(self)->tp_free(self);
}

// Copies the numbers of a list to an array of `count` words, of which each has `size` bytes.
static void *copy_numbers(PyObject *list, Py_ssize_t count, size_t size) {
    if (PyList_GET_SIZE(list) != count) {
        PyErr_SetString(PyExc_ValueError, "a list has the wrong length");
        return NULL;
    }
    char *copy = PyMem_Calloc((size_t)count + 1, size);
    for (Py_ssize_t i = 0; copy && i < count; i++) {
        unsigned long long value = PyLong_AsUnsignedLongLong(PyList_GET_ITEM(list, i));
        pid_t process = (pid_t)value;
        memcpy(copy + (size_t)i * size, size == sizeof(pid_t) ? (void *)&process : (void *)&value, size);
    }
    if (!copy || PyErr_Occurred()) {
        PyMem_Free(copy);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    return copy;
}

static PyObject *Peers_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"processes", "numbers", "bases", "resolve", "keep", NULL};
    PyObject *processes, *numbers, *bases, *resolve, *keep;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!OO", names, &PyList_Type, &processes, &PyList_Type, &numbers,
                                     &PyList_Type, &bases, &resolve, &keep)) {
        return NULL;
    }
    PeersObject *self = (PeersObject *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    Py_ssize_t buffers = PyList_GET_SIZE(processes), symmetric = PyList_GET_SIZE(numbers);
    self->resolve = Py_NewRef(resolve);
    self->keep = Py_NewRef(keep);
    self->peers.buffers = buffers;
    self->peers.symmetric = symmetric;
    if (!(self->peers.processes = copy_numbers(processes, buffers, sizeof(pid_t))) ||
        !(self->peers.numbers = copy_numbers(numbers, symmetric, sizeof(uint64_t))) ||
        !(self->peers.bases = copy_numbers(bases, buffers * symmetric, sizeof(char *)))) {
        Py_DECREF(self);
        return NULL;
    }
    self->peers.known = PyMem_Calloc((size_t)buffers + 1, sizeof(uint64_t));
    self->peers.addresses = PyMem_Calloc((size_t)buffers + 1, sizeof(char *));
    self->peers.owners = PyMem_Calloc((size_t)buffers + 1, sizeof(pid_t));
    if (!self->peers.known || !self->peers.addresses || !self->peers.owners) {
        Py_DECREF(self);
        return PyErr_NoMemory();
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

int resolve_peers(PeersObject *object) {
    Peers *peers = &object->peers;
    PyObject *locations = PyTuple_New(peers->buffers), *result = NULL, *addresses, *owners, *kept;
    for (Py_ssize_t i = 0; locations && i < peers->buffers; i++) {
        PyTuple_SET_ITEM(locations, i, PyLong_FromUnsignedLongLong(peers->known[i]));
    }
    if (locations && !PyErr_Occurred()) {
        result = PyObject_CallOneArg(object->resolve, locations);
    }
    Py_XDECREF(locations);
    if (!result || !PyArg_ParseTuple(result, "O!O!O", &PyList_Type, &addresses, &PyList_Type, &owners, &kept)) {
        Py_XDECREF(result);
        return -1;
    }
    char **found = copy_numbers(addresses, peers->buffers, sizeof(char *));
    pid_t *processes = found ? copy_numbers(owners, peers->buffers, sizeof(pid_t)) : NULL;
    if (processes) {
        memcpy(peers->addresses, found, (size_t)peers->buffers * sizeof *found);
        memcpy(peers->owners, processes, (size_t)peers->buffers * sizeof *processes);
        Py_XSETREF(object->kept, Py_NewRef(kept));
        peers->has_known = true;
    }
    PyMem_Free(found);
    PyMem_Free(processes);
    Py_DECREF(result);
    return processes ? 0 : -1;
}

static void DirectCall_dealloc(PyObject *self) {
    DirectCallObject *call = (DirectCallObject *)self;
    PyObject_GC_UnTrack(self);
    Py_XDECREF(call->barrier);
    Py_XDECREF(call->program);
    Py_XDECREF(call->table);
    Py_XDECREF(call->peers);
    Py_XDECREF(call->raise_mismatch);
    Py_TYPE(self)->tp_free(self);
}

static int DirectCall_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((DirectCallObject *)self)->raise_mismatch);
    return 0;
}

static PyObject *DirectCall_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"barrier", "program", "table", "peers", "fingerprint", "locations", "raise_mismatch", NULL};
    PyObject *barrier, *program, *table, *peers, *raise_mismatch;
    unsigned long long fingerprint, locations[2];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!O!K(KK)O", names, &NodeBarrierType, &barrier, &ProgramType,
                                     &program, &MemoryTableType, &table, &PeersType, &peers, &fingerprint,
                                     &locations[0], &locations[1], &raise_mismatch)) {
        return NULL;
    }
    const Instructions *instructions = &((ProgramObject *)program)->program;
    const MemoryTableObject *memories = (MemoryTableObject *)table;
    Peers *others = &((PeersObject *)peers)->peers;
    if (instructions->ranks || memories->count != instructions->memories || !memories->processes ||
        instructions->bounce_offset < 0 || others->buffers > memories->count - FIRST_SHARED ||
        others->buffers != 2 * (((NodeBarrierObject *)barrier)->base.counter.ranks - 1)) {
        PyErr_SetString(PyExc_ValueError, "the memories are not those of the program");
        return NULL;
    }
    DirectCallObject *self = (DirectCallObject *)type->tp_alloc(type, 0);
    if (self) {
        self->barrier = (NodeBarrierObject *)Py_NewRef(barrier);
        self->program = (ProgramObject *)Py_NewRef(program);
        self->table = (MemoryTableObject *)Py_NewRef(table);
        self->peers = (PeersObject *)Py_NewRef(peers);
        self->raise_mismatch = Py_NewRef(raise_mismatch);
        self->part = (DirectPart){&self->barrier->barrier, fingerprint, {locations[0], locations[1]}, instructions,
                                  memories->addresses, memories->processes, others};
    }
    return (PyObject *)self;
}

static PyObject *DirectCall_run(PyObject *self, PyObject *args) {
    DirectCallObject *call = (DirectCallObject *)self;
    DirectPart *part = &call->part;
    unsigned long long input, output;
    if (!PyArg_ParseTuple(args, "KK:run", &input, &output)) {
        return NULL;
    }
    post_entry(part->barrier, part->fingerprint | DIRECT, part->locations);
    if (wait_for_ranks(call->barrier)) {
        return NULL;
    }
    EntryResult result = pass_entry(part->barrier, part->peers);
    if (result == ENTRY_DIFFERS) {
        raise_mismatch(call->raise_mismatch);
        return NULL;
    }
    if (result == ENTRY_STAGED) {
        Py_RETURN_FALSE;
    }
    if (result == ENTRY_UNKNOWN && resolve_peers(call->peers)) {
        return NULL;
    }
    set_peers(part->peers, part->program->memories, part->addresses, part->processes);
    int failed = run_to_end(call->program, call->barrier, call->table, (char *)(uintptr_t)input,
                            (char *)(uintptr_t)output, 0);
    if (failed) {
        settle_fence(call->barrier);
    }
    return failed ? NULL : Py_NewRef(Py_True);
}

static PyMethodDef DirectCall_methods[] = {
    {"run", DirectCall_run, METH_VARARGS,
     "Run on input and output, blocking; return False without running if some rank started a staged run."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject DirectCallType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.DirectCall",
    .tp_doc = "A collective of one kind on one node, in place; the stub describes the arguments.",
    .tp_basicsize = sizeof(DirectCallObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = DirectCall_new,
    .tp_dealloc = DirectCall_dealloc,
    .tp_traverse = DirectCall_traverse,
    .tp_methods = DirectCall_methods,
};
