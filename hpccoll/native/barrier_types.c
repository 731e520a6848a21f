// ArrivalCounter and NodeBarrier: Python types with which the ranks of a node wait for each other.
#include "objects.h"

// The GIL is held for the first polls of a wait, which take a few microseconds.
enum { POLLS_WITH_GIL = 100, POLLS_WITH_GIL_OVERSUBSCRIBED = 4 };
static const int64_t SPIN_NS = 50000, FIRST_LIMIT_NS = 300000, LIMIT_NS = 400000;
static const int64_t BUSY_LIMIT_NS = 10000;  // pause between two advances of the operations in flight
static const int64_t SETTLE_NS = 500000000;  // time for ranks that do not know of an exception to read memory

static int counter_init(PyObject *self, PyObject *lines, Py_ssize_t row) {
    ArrivalCounterObject *counter = (ArrivalCounterObject *)self;
    Py_buffer view;
    if (PyObject_GetBuffer(lines, &view, PyBUF_WRITABLE | PyBUF_STRIDES)) {
        return -1;
    }
    bool fits = view.ndim == 2 && view.itemsize == 8 && view.shape[1] >= LINE_WORDS && view.strides[1] == 8;
    fits = fits && view.strides[0] % 8 == 0 && view.strides[0] >= LINE_WORDS * 8 && (uintptr_t)view.buf % 8 == 0;
    if (!fits || row < 0 || row >= view.shape[0]) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_ValueError, "lines must be words of shape (ranks, 8 or more), and row a row of them");
        return -1;
    }
    PyBuffer_Release(&counter->view);
    counter->view = view;
    counter->counter = (Counter){view.buf, view.shape[0], view.strides[0], row, 0};
    return 0;
}

static int ArrivalCounter_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"lines", "row", NULL};
    PyObject *lines;
    Py_ssize_t row;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "On", names, &lines, &row)) {
        return -1;
    }
    return counter_init(self, lines, row);
}

// A counter that is new, or whose shared memory was released, counts for a node with one rank.
static void detach(ArrivalCounterObject *counter) {
    PyBuffer_Release(&counter->view);
    memset(&counter->alone, 0, sizeof counter->alone);
    counter->counter = (Counter){(char *)&counter->alone, 1, sizeof(Line), 0, counter->counter.count};
}

static PyObject *ArrivalCounter_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)args, (void)kwargs;
    PyObject *self = type->tp_alloc(type, 0);
    if (self) {
        detach((ArrivalCounterObject *)self);
    }
    return self;
}

static void ArrivalCounter_dealloc(PyObject *self) {
    PyBuffer_Release(&((ArrivalCounterObject *)self)->view);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *ArrivalCounter_arrive(PyObject *self, PyObject *unused) {
    (void)unused;
    arrive(&((ArrivalCounterObject *)self)->counter);
    Py_RETURN_NONE;
}

static PyObject *ArrivalCounter_all_arrived(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(have_all_arrived(&((ArrivalCounterObject *)self)->counter));
}

static PyMethodDef ArrivalCounter_methods[] = {
    {"arrive", ArrivalCounter_arrive, METH_NOARGS,
     "Count this rank's arrival without waiting. Earlier stores are visible once `all_arrived` returns true."},
    {"all_arrived", ArrivalCounter_all_arrived, METH_NOARGS,
     "Whether every rank of the node has arrived at least as often as this rank."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef ArrivalCounter_members[] = {
    {"count", T_ULONGLONG, offsetof(ArrivalCounterObject, counter.count), READONLY, "The number of this rank's arrivals."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject ArrivalCounterType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.ArrivalCounter",
    .tp_doc = "One rank's handle of counters in shared memory: each rank of a node counts its arrivals in a line.",
    .tp_basicsize = sizeof(ArrivalCounterObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = ArrivalCounter_new,
    .tp_init = ArrivalCounter_init,
    .tp_dealloc = ArrivalCounter_dealloc,
    .tp_methods = ArrivalCounter_methods,
    .tp_members = ArrivalCounter_members,
};

static int NodeBarrier_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"lines", "row", "oversubscribed", "attend", "in_flight", "transfers", NULL};
    NodeBarrierObject *barrier = (NodeBarrierObject *)self;
    PyObject *lines, *attend, *in_flight, *transfers;
    Py_ssize_t row;
    int oversubscribed;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OnpOO!O!", names, &lines, &row, &oversubscribed, &attend,
                                     &PyDict_Type, &in_flight, &PyDict_Type, &transfers)) {
        return -1;
    }
    barrier->oversubscribed = oversubscribed;
    barrier->barrier = (Barrier){&barrier->base.counter, 1, barrier->barrier.next_slot};  // the first entry is number 0
    Py_XSETREF(barrier->attend, Py_NewRef(attend));
    Py_XSETREF(barrier->in_flight, Py_NewRef(in_flight));
    Py_XSETREF(barrier->transfers, Py_NewRef(transfers));
    return counter_init(self, lines, row);
}

static void NodeBarrier_dealloc(PyObject *self) {
    NodeBarrierObject *barrier = (NodeBarrierObject *)self;
    Py_XDECREF(barrier->attend);
    Py_XDECREF(barrier->in_flight);
    Py_XDECREF(barrier->transfers);
    ArrivalCounter_dealloc(self);
}

int attend_in_wait(PyObject *attend) {
    PyObject *result = PyErr_CheckSignals() ? NULL : PyObject_CallNoArgs(attend);
    int is_busy = result ? PyObject_IsTrue(result) : -1;
    Py_XDECREF(result);
    return is_busy;
}

// Continues a wait that has lasted a few microseconds: lets other threads of Python run, handles signals, and advances
// the operations in flight.
static int wait_long(NodeBarrierObject *barrier, Line *line, uint64_t count) {
    Counter *counter = &barrier->base.counter;
    bool spins = !barrier->oversubscribed && !shares_core(line_of(counter, counter->row), line);
    int64_t spin_ns = spins ? SPIN_NS : 0, yield_ns = choose_yield_ns(barrier->oversubscribed);
    int64_t limit_ns = FIRST_LIMIT_NS;
    bool is_busy = PyDict_GET_SIZE(barrier->in_flight) || PyDict_GET_SIZE(barrier->transfers);
    if (is_busy) {
        limit_ns = 0;
    }
    for (;;) {
        bool reached;
        Py_BEGIN_ALLOW_THREADS
        reached = wait_until(line, count, spin_ns, yield_ns, limit_ns);
        Py_END_ALLOW_THREADS
        if (reached) {
            return 0;
        }
        int busy = attend_in_wait(barrier->attend);
        if (busy < 0) {
            return -1;
        }
        is_busy = busy;
        spin_ns = 0;
        yield_ns = is_busy ? BUSY_LIMIT_NS : yield_ns > limit_ns ? yield_ns - limit_ns : 0;
        limit_ns = is_busy ? BUSY_LIMIT_NS : LIMIT_NS;
    }
}

int wait_for_ranks(NodeBarrierObject *barrier) {
    Counter *counter = &barrier->base.counter;
    uint64_t count = counter->count;
    unsigned polls = barrier->oversubscribed ? POLLS_WITH_GIL_OVERSUBSCRIBED : POLLS_WITH_GIL;
    // `ranks` and `lines` are read again in each round, because a signal handler may have freed the barrier.
    for (Py_ssize_t row = 0; row < counter->ranks; row++) {
        Line *line = line_of(counter, row);
        if (row != counter->row && !spin_until(line, count, polls) && wait_long(barrier, line, count)) {
            return -1;
        }
    }
    return 0;
}

void settle_fence(NodeBarrierObject *barrier) {
    Counter *counter = &barrier->base.counter;
    int64_t yield_ns = choose_yield_ns(barrier->oversubscribed);
    Py_BEGIN_ALLOW_THREADS
    for (int64_t row = 0; row < counter->ranks; row++) {
        Line *line = line_of(counter, row);
        if (row != counter->row && !wait_until(line, counter->count, 0, yield_ns, SETTLE_NS)) {
            break;
        }
    }
    Py_END_ALLOW_THREADS
}

static PyObject *NodeBarrier_fence(PyObject *self, PyObject *unused) {
    (void)unused;
    arrive(&((ArrivalCounterObject *)self)->counter);
    return wait_for_ranks((NodeBarrierObject *)self) ? NULL : Py_NewRef(Py_None);
}

static PyObject *NodeBarrier_compare(PyObject *self, PyObject *unused) {
    (void)unused;
    Agreement agreement = compare_entries(&((NodeBarrierObject *)self)->barrier);
    return Py_NewRef(agreement == RANKS_DIFFER ? Py_None : agreement == RANKS_AGREE ? Py_True : Py_False);
}

static bool parse_entry(PyObject *args, uint64_t *fingerprint, uint64_t locations[2]) {
    PyObject *given[3] = {NULL, NULL, NULL};
    uint64_t *values[3] = {fingerprint, &locations[0], &locations[1]};
    if (!PyArg_UnpackTuple(args, "entry", 1, 3, &given[0], &given[1], &given[2])) {
        return false;
    }
    for (int i = 0; i < 3; i++) {
        *values[i] = given[i] ? PyLong_AsUnsignedLongLong(given[i]) : 0;
        if (PyErr_Occurred()) {
            return false;
        }
    }
    return true;
}

static PyObject *NodeBarrier_post(PyObject *self, PyObject *args) {
    uint64_t fingerprint, locations[2];
    if (!parse_entry(args, &fingerprint, locations)) {
        return NULL;
    }
    post_entry(&((NodeBarrierObject *)self)->barrier, fingerprint, locations);
    Py_RETURN_NONE;
}

static PyObject *NodeBarrier_enter(PyObject *self, PyObject *args) {
    PyObject *posted = NodeBarrier_post(self, args);
    if (!posted || wait_for_ranks((NodeBarrierObject *)self)) {
        Py_XDECREF(posted);
        return NULL;
    }
    Py_DECREF(posted);
    return NodeBarrier_compare(self, NULL);
}

static PyObject *NodeBarrier_locations(PyObject *self, PyObject *unused) {
    (void)unused;
    const Barrier *barrier = &((NodeBarrierObject *)self)->barrier;
    Py_ssize_t count = 2 * (barrier->counter->ranks - 1);
    uint64_t *locations = PyMem_Calloc((size_t)count + 1, sizeof *locations);
    PyObject *result = locations ? PyTuple_New(count) : PyErr_NoMemory();
    if (result) {
        read_locations(barrier, locations);
    }
    for (Py_ssize_t at = 0; result && at < count; at++) {
        PyObject *value = PyLong_FromUnsignedLongLong(locations[at]);
        if (!value) {
            Py_CLEAR(result);
            break;
        }
        PyTuple_SET_ITEM(result, at, value);
    }
    PyMem_Free(locations);
    return result;
}

static PyObject *NodeBarrier_free(PyObject *self, PyObject *unused) {
    (void)unused;
    detach((ArrivalCounterObject *)self);
    Py_RETURN_NONE;
}

static PyObject *NodeBarrier_retract(PyObject *self, PyObject *unused) {
    (void)unused;
    retract(&((ArrivalCounterObject *)self)->counter);
    Py_RETURN_NONE;
}

static PyObject *NodeBarrier_parity(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong((((ArrivalCounterObject *)self)->counter.count + 1) & 1);
}

static PyMethodDef NodeBarrier_methods[] = {
    {"fence", NodeBarrier_fence, METH_NOARGS,
     "Block until all ranks of the node have called `fence`; their earlier stores are visible afterwards."},
    {"enter", NodeBarrier_enter, METH_VARARGS, "Block until all ranks enter a collective; return `compare()`."},
    {"post", NodeBarrier_post, METH_VARARGS, "Begin to enter a collective without blocking."},
    {"compare", NodeBarrier_compare, METH_NOARGS,
     "Return whether all ranks agree on access in place (bit DIRECT); None if their fingerprints differ."},
    {"locations", NodeBarrier_locations, METH_NOARGS,
     "Return the locations of the other ranks' inputs and outputs, as two words per rank."},
    {"retract", NodeBarrier_retract, METH_NOARGS, "Let no other rank pass a fence any more."},
    {"free", NodeBarrier_free, METH_NOARGS, "Release the barrier's shared memory."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef NodeBarrier_members[] = {
    {"next_slot", T_INT, offsetof(NodeBarrierObject, barrier.next_slot), 0, "The slot of the next plan on one node."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef NodeBarrier_properties[] = {
    {"parity", NodeBarrier_parity, NULL, "The parity (0 or 1) of the number of the next fence.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject NodeBarrierType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.NodeBarrier",
    .tp_doc = "A barrier of the ranks of one node in shared memory; the stub describes the arguments.",
    .tp_basicsize = sizeof(NodeBarrierObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_base = &ArrivalCounterType,
    .tp_new = ArrivalCounter_new,
    .tp_init = NodeBarrier_init,
    .tp_dealloc = NodeBarrier_dealloc,
    .tp_methods = NodeBarrier_methods,
    .tp_members = NodeBarrier_members,
    .tp_getset = NodeBarrier_properties,
};
