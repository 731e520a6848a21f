// MpiCall: a collective of the MPI library of one kind, on the arrays that each call passes; it blocks or is started.
#include "copies.h"
#include "mpi_collectives.h"
#include "objects.h"

#include <limits.h>
#include <sched.h>

// The buffer that MPI gets as its input or output: none, an array of the call, or MPI_IN_PLACE.
typedef enum { NOTHING, THE_INPUT, THE_OUTPUT, IN_PLACE, PLACES } Place;

typedef struct {
    HostCallObject base;
    MpiFunctionsObject *library;
    MpiCollective collective;
    void *sizes;  // the counts and beginnings of blocks of different sizes, else NULL
    Place sent, received;
    // The block that this rank sends to itself: offsets in input and output, and bytes; no bytes if MPI moves it.
    Py_ssize_t own_from, own_to, own_bytes;
    uint64_t in_place, fingerprint;
    NodeBarrierObject *barrier;  // where the ranks compare their calls first; NULL if they do not
    PyObject *raise_mismatch;
    CallEntry entry;  // `calls` is NULL if the flight recorder notes nothing
    PyObject *attend, *in_flight, *transfers;
    bool oversubscribed;
} MpiCallObject;

static const int64_t SPIN_NS = 50000, LIMIT_NS = 400000, BUSY_LIMIT_NS = 10000, SETTLE_NS = 500000000;

static int MpiCall_traverse(PyObject *self, visitproc visit, void *arg) {
    MpiCallObject *call = (MpiCallObject *)self;
    Py_VISIT(call->entry.calls);
    Py_VISIT(call->raise_mismatch);
    Py_VISIT(call->attend);
    return 0;
}

static int MpiCall_clear(PyObject *self) {
    MpiCallObject *call = (MpiCallObject *)self;
    Py_CLEAR(call->raise_mismatch);
    Py_CLEAR(call->attend);
    return 0;
}

static void MpiCall_dealloc(PyObject *self) {
    MpiCallObject *call = (MpiCallObject *)self;
    PyObject_GC_UnTrack(self);
    MpiCall_clear(self);
    clear_entry(&call->entry);
    Py_XDECREF(call->library);
    Py_XDECREF(call->barrier);
    Py_XDECREF(call->in_flight);
    Py_XDECREF(call->transfers);
    PyMem_Free(call->sizes);
    Py_TYPE(self)->tp_free(self);
}

// Waits until the node's ranks have entered, and compares their calls. Returns -1 with an exception if the calls differ
// or a signal handler has raised an exception.
static int compare_calls(MpiCallObject *call) {
    post_entry(&call->barrier->barrier, call->fingerprint, NULL);
    if (wait_for_ranks(call->barrier)) {
        return -1;
    }
    if (compare_entries(&call->barrier->barrier) == RANKS_DIFFER) {
        raise_mismatch(call->raise_mismatch);
        return -1;
    }
    return 0;
}

// Tests a request until it is complete or `limit_ns` have passed, without the GIL; yields the core after `spin_ns`.
static bool test_for(const MpiLibrary *mpi, uint64_t *request, int64_t spin_ns, int64_t limit_ns, int *error) {
    int64_t begin = read_clock_ns();
    for (;;) {
        MessageStatus status;
        int flag = 0;
        *error = test_request(mpi, request, &flag, &status);
        int64_t passed = read_clock_ns() - begin;
        if (flag || *error || passed >= limit_ns) {
            return flag || *error;
        }
        if (passed >= spin_ns) {
            sched_yield();
        }
    }
}

// Calls MPI and waits for the end; sets MPI's error number. Returns -1 with an exception of a signal handler or a time
// limit, after up to SETTLE_NS in which MPI may still complete the operation. An operation that is not complete then
// accesses the arrays later.
static int call_mpi(MpiCallObject *call, void *sent, void *received, int *error) {
    const MpiLibrary *mpi = &call->library->functions;
    uint64_t request = 0;
    bool is_busy = PyDict_GET_SIZE(call->in_flight) || PyDict_GET_SIZE(call->transfers);
    int64_t spin_ns = call->oversubscribed ? 0 : SPIN_NS, limit_ns = is_busy ? BUSY_LIMIT_NS : LIMIT_NS;
    bool done;
    Py_BEGIN_ALLOW_THREADS
    *error = call_collective(mpi, &call->collective, sent, received, &request);
    done = *error || !call->collective.is_nonblocking || test_for(mpi, &request, spin_ns, limit_ns, error);
    Py_END_ALLOW_THREADS
    while (!done) {
        int busy = attend_in_wait(call->attend);
        limit_ns = busy < 0 ? SETTLE_NS : busy ? BUSY_LIMIT_NS : LIMIT_NS;
        Py_BEGIN_ALLOW_THREADS
        done = test_for(mpi, &request, 0, limit_ns, error);
        Py_END_ALLOW_THREADS
        if (busy < 0) {
            return -1;
        }
    }
    return 0;
}

// Copies the block that this rank sends to itself, unless MPI moves it.
static void copy_own_block(const MpiCallObject *call, const char *input, char *output) {
    if (call->own_bytes) {
        copy_bytes(output + call->own_to, input + call->own_from, (size_t)call->own_bytes);
    }
}

static PyObject *MpiCall_start(PyObject *self, PyObject *args) {
    MpiCallObject *call = (MpiCallObject *)self;
    unsigned long long source, result;
    if (!PyArg_ParseTuple(args, "KK", &source, &result)) {
        return NULL;
    }
    if (!call->collective.is_nonblocking) {
        PyErr_SetString(PyExc_ValueError, "a blocking function of MPI cannot be started");
        return NULL;
    }
    void *places[PLACES] = {NULL, as_pointer(source), as_pointer(result), as_pointer(call->in_place)};
    uint64_t request = 0;
    int error;
    Py_BEGIN_ALLOW_THREADS
    copy_own_block(call, as_pointer(source), as_pointer(result));
    error = call_collective(&call->library->functions, &call->collective, places[call->sent], places[call->received],
                            &request);
    Py_END_ALLOW_THREADS
    if (error) {
        raise_mpi_error(call->library, call->entry.name, error);
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(request);
}

static int run_mpi_call(HostCallObject *base, char *input, char *output) {
    MpiCallObject *call = (MpiCallObject *)base;
    void *places[PLACES] = {NULL, input, output, as_pointer(call->in_place)};
    int64_t place = call->entry.calls ? begin_call(&call->entry) : 0;
    if (place < 0) {
        return -1;
    }
    int error = 0;
    bool failed = call->barrier && compare_calls(call);
    if (!failed) {
        copy_own_block(call, input, output);
    }
    failed = failed || call_mpi(call, places[call->sent], places[call->received], &error);
    if (error && !failed) {
        raise_mpi_error(call->library, call->entry.name, error);
    }
    failed = failed || error;
    return call->entry.calls ? end_call(&call->entry, place, failed) : failed ? -1 : 0;
}

// Keeps the counts and beginnings of blocks: two rows of `ranks` integers, or four for an Alltoallv. Returns -1 with an
// exception.
static int keep_sizes(MpiCallObject *call, const Py_buffer *sizes) {
    MpiCollective *collective = &call->collective;
    if (collective->list < GATHERED_COUNTS) {  // no counts for each rank
        return 0;
    }
    size_t itemsize = collective->is_large ? sizeof(int64_t) : sizeof(int);
    size_t rows = collective->list == EXCHANGED_COUNTS ? 4 : 2, row = (size_t)sizes->len / rows;
    if (!row || row * rows != (size_t)sizes->len || row % itemsize) {
        PyErr_SetString(PyExc_ValueError, "sizes must have rows of integers, one for each rank");
        return -1;
    }
    if (!(call->sizes = PyMem_Malloc((size_t)sizes->len))) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(call->sizes, sizes->buf, (size_t)sizes->len);
    const char *begin = call->sizes;
    collective->counts = begin;
    collective->displacements = begin + row;
    collective->received_counts = begin + (rows - 2) * row;
    collective->received_displacements = begin + (rows - 1) * row;
    return 0;
}

static PyObject *MpiCall_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"library", "function", "method", "is_nonblocking", "is_large", "handles", "count", "sizes", "own", "root",
                            "places", "in_place", "barrier", "fingerprint", "raise_mismatch", "calls", "ring", "name",
                            "description", "oversubscribed", "attend", "in_flight", "transfers", NULL};
    PyObject *library, *barrier, *raises, *calls, *ring, *name, *description, *attend, *in_flight, *transfers;
    unsigned long long function, datatype, op, comm, in_place, fingerprint;
    const char *method;
    Py_buffer sizes;
    Py_ssize_t own_from, own_to, own_bytes;
    long long count;
    int is_nonblocking, is_large, root, sent, received, oversubscribed;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!Kspp(KKK)Ly*(nnn)i(ii)KOKOOOUO!pOO!O!", names, &MpiFunctionsType,
                                     &library, &function, &method, &is_nonblocking, &is_large, &datatype, &op, &comm, &count, &sizes,
                                     &own_from, &own_to, &own_bytes, &root, &sent, &received, &in_place, &barrier,
                                     &fingerprint, &raises, &calls, &ring, &name, &PyBytes_Type, &description,
                                     &oversubscribed, &attend, &PyDict_Type, &in_flight, &PyDict_Type, &transfers)) {
        return NULL;
    }
    int list = find_argument_list(method);
    bool fits = function && list >= 0 && count >= 0 && (is_large || count <= INT_MAX);
    fits = fits && sent >= 0 && sent < PLACES && received >= 0 && received < PLACES;
    fits = fits && own_from >= 0 && own_to >= 0 && own_bytes >= 0 && PyBytes_GET_SIZE(description) == DESCRIPTION_BYTES;
    if (!fits) {
        PyErr_Format(PyExc_ValueError, "%s of %lld elements: wrong method, count, places, block or description", method, count);
    }
    bool is_compared = barrier != Py_None, is_recorded = calls != Py_None;
    fits = fits && (!is_compared || has_type(barrier, &NodeBarrierType, "barrier"));
    fits = fits && (!is_recorded || has_type(calls, &CallCounterType, "calls"));
    fits = fits && (!is_recorded || has_type(ring, &EntryRingType, "ring"));
    MpiCallObject *self = fits ? (MpiCallObject *)type->tp_alloc(type, 0) : NULL;
    if (!self) {
        PyBuffer_Release(&sizes);
        return NULL;
    }
    self->base.vectorcall = call_host;
    self->base.run = run_mpi_call;
    self->library = (MpiFunctionsObject *)Py_NewRef(library);
    self->collective = (MpiCollective){.function = (AnyFunction *)(uintptr_t)function, .list = (ArgumentList)list,
                                       .is_nonblocking = is_nonblocking, .is_large = is_large, .datatype = datatype, .op = op, .comm = comm, .count = count,
                                       .root = root};
    self->own_from = own_from;
    self->own_to = own_to;
    self->own_bytes = own_bytes;
    self->sent = (Place)sent;
    self->received = (Place)received;
    self->in_place = in_place;
    self->fingerprint = fingerprint;
    self->barrier = is_compared ? (NodeBarrierObject *)Py_NewRef(barrier) : NULL;
    self->raise_mismatch = Py_NewRef(raises);
    self->entry = (CallEntry){NULL, NULL, Py_NewRef(name), Py_NewRef(description)};
    if (is_recorded) {
        self->entry.calls = (CallCounterObject *)Py_NewRef(calls);
        self->entry.ring = (EntryRingObject *)Py_NewRef(ring);
    }
    self->attend = Py_NewRef(attend);
    self->in_flight = Py_NewRef(in_flight);
    self->transfers = Py_NewRef(transfers);
    self->oversubscribed = oversubscribed;
    int failed = keep_sizes(self, &sizes);
    PyBuffer_Release(&sizes);
    if (failed) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static PyMethodDef MpiCall_methods[] = {
    {"start", MpiCall_start, METH_VARARGS, "Start the collective on two addresses, and return the handle of its request."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject MpiCallType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.MpiCall",
    .tp_doc = "A collective of the MPI library of one kind; the stub describes the arguments.",
    .tp_basicsize = sizeof(MpiCallObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_base = &HostCallType,
    .tp_new = MpiCall_new,
    .tp_methods = MpiCall_methods,
    .tp_dealloc = MpiCall_dealloc,
    .tp_traverse = MpiCall_traverse,
    .tp_clear = MpiCall_clear,
};
