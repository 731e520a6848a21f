// Messenger: blocking messages between two ranks on NumPy arrays: a send, a receive, or both at once.
//
// A message that takes long is handed over to Python, which waits for its request and meanwhile advances all operations
// in flight. Calls that the extension cannot carry out (with other arrays, ranks out of range, or a closed or unusable
// communicator) are left to Python from the start.
#include "messenger.h"

#include <sched.h>

enum { PROBES = 4, LONGEST_BYTES = 1 << 30, MOST_TAG = (1 << 15) - 1 };
enum { TESTS_WITH_GIL = 30, TESTS_WITH_GIL_OVERSUBSCRIBED = 3 };
static const int64_t SPIN_NS = 50000, LIMIT_NS = 400000;

static void forget_kinds(MessengerObject *self) {
    for (int i = 0; i < KINDS; i++) {
        Py_CLEAR(self->kinds[i].dtype);
        Py_CLEAR(self->kinds[i].description);
    }
}

static int Messenger_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((MessengerObject *)self)->calls);
    Py_VISIT(((MessengerObject *)self)->describe);
    Py_VISIT(((MessengerObject *)self)->adopt);
    return 0;
}

static int Messenger_clear(PyObject *self) {
    Py_CLEAR(((MessengerObject *)self)->describe);
    Py_CLEAR(((MessengerObject *)self)->adopt);
    return 0;
}

static void Messenger_dealloc(PyObject *given) {
    MessengerObject *self = (MessengerObject *)given;
    PyObject_GC_UnTrack(given);
    Messenger_clear(given);
    forget_kinds(self);
    Py_XDECREF(self->library);
    Py_XDECREF(self->calls);
    Py_XDECREF(self->ring);
    Py_XDECREF(self->array_type);
    Py_XDECREF(self->work_type);
    Py_TYPE(given)->tp_free(given);
}

static PyObject *Messenger_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"library", "comm", "rank", "ranks", "no_rank", "calls", "ring", "array_type", "work_type",
                            "describe", "adopt", "oversubscribed", NULL};
    PyObject *library, *calls, *ring, *array_type, *work_type, *describe, *adopt;
    unsigned long long comm;
    int rank, ranks, no_rank, oversubscribed;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!KiiiO!O!O!O!OOp", names, &MpiFunctionsType, &library, &comm, &rank,
                                     &ranks, &no_rank, &CallCounterType, &calls, &EntryRingType, &ring, &PyType_Type,
                                     &array_type, &PyType_Type, &work_type, &describe, &adopt, &oversubscribed)) {
        return NULL;
    }
    if (!PyType_IsSubtype((PyTypeObject *)work_type, &StartedMessageType)) {
        return PyErr_Format(PyExc_TypeError, "work_type must be derived from StartedMessage");
    }
    MessengerObject *self = (MessengerObject *)type->tp_alloc(type, 0);
    if (self) {
        self->library = (MpiFunctionsObject *)Py_NewRef(library);
        self->calls = (CallCounterObject *)Py_NewRef(calls);
        self->ring = (EntryRingObject *)Py_NewRef(ring);
        self->array_type = (PyTypeObject *)Py_NewRef(array_type);
        self->work_type = (PyTypeObject *)Py_NewRef(work_type);
        self->describe = Py_NewRef(describe);
        self->adopt = Py_NewRef(adopt);
        self->comm = comm;
        self->rank = rank;
        self->ranks = ranks;
        self->no_rank = no_rank;
        self->oversubscribed = oversubscribed;
        self->is_open = true;
    }
    return (PyObject *)self;
}

// Reads an integer of exactly Python's type; returns whether it is one from `least` to `most`.
static bool read_integer(PyObject *given, int least, int most, int *value) {
    if (!PyLong_CheckExact(given)) {
        return false;
    }
    int overflow;
    long number = PyLong_AsLongAndOverflow(given, &overflow);
    *value = (int)number;
    return !overflow && number >= least && number <= most;
}

bool read_message(const MessengerObject *self, PyObject *array, PyObject *peer, PyObject *tag, Message *message) {
    if (array == Py_None) {
        return true;
    }
    if (Py_TYPE(array) != self->array_type || !PyArray_CHKFLAGS((PyArrayObject *)array, NPY_ARRAY_CARRAY)) {
        return false;
    }
    message->array = (PyArrayObject *)array;
    message->count = 1;
    for (int dim = 0; dim < PyArray_NDIM(message->array); dim++) {
        message->count *= PyArray_DIM(message->array, dim);
    }
    if (read_integer(peer, self->no_rank, self->no_rank, &message->peer) || (peer == Py_None && message->sends)) {
        message->peer = self->no_rank;
        message->is_skipped = true;
    } else if (peer == Py_None) {
        message->peer = self->library->functions.any_source;
    } else if (!read_integer(peer, 0, self->ranks - 1, &message->peer)) {
        return false;
    }
    return read_integer(tag, 0, MOST_TAG, &message->tag) && message->count > 0 && message->count <= LONGEST_BYTES;
}

static bool is_of_kind(const MessageKind *kind, const Message *message) {
    return kind->dtype == (PyObject *)PyArray_DESCR(message->array) && kind->count == message->count &&
           kind->peer == message->peer && kind->tag == message->tag && kind->sends == message->sends;
}

// Returns the slot of a message's kind, or the slot that it may take.
static MessageKind *find_kind(MessengerObject *self, const Message *message) {
    PyObject *dtype = (PyObject *)PyArray_DESCR(message->array);
    size_t hash = ((uintptr_t)dtype >> 4) * 31 + (size_t)message->count * 1000003;
    hash = hash * 31 + (size_t)message->peer * 2 + message->sends;
    hash = hash * 31 + (size_t)message->tag;
    hash ^= hash >> 17;
    MessageKind *kind = NULL;
    for (size_t probe = 0; probe < PROBES; probe++) {
        kind = &self->kinds[(hash + probe) % KINDS];
        if (!kind->dtype || is_of_kind(kind, message)) {
            break;
        }
    }
    return kind;
}

int prepare_message(MessengerObject *self, Message *message) {
    if (!message->array) {
        return 1;
    }
    MessageKind *kind = find_kind(self, message);
    if (!is_of_kind(kind, message)) {
        PyObject *description;
        int itemsize;
        PyObject *found = PyObject_CallFunction(self->describe, "OOii", message->sends ? Py_True : Py_False,
                                                message->array, message->peer, message->tag);
        if (!found || !PyArg_ParseTuple(found, "O!i", &PyBytes_Type, &description, &itemsize) ||
            PyBytes_GET_SIZE(description) != DESCRIPTION_BYTES) {
            Py_XDECREF(found);
            return PyErr_Occurred() ? -1 : 0;
        }
        Py_XSETREF(kind->dtype, Py_NewRef((PyObject *)PyArray_DESCR(message->array)));
        Py_XSETREF(kind->description, Py_NewRef(description));
        Py_DECREF(found);
        kind->count = message->count;
        kind->itemsize = itemsize;
        kind->peer = message->peer;
        kind->tag = message->tag;
        kind->sends = message->sends;
    }
    message->description = Py_NewRef(kind->description);
    message->nbytes = message->count * kind->itemsize;
    if (message->is_skipped) {  // its arguments are right
        message->array = NULL;
        return 1;
    }
    return message->nbytes <= LONGEST_BYTES;
}

void begin_message(MessengerObject *self, Message *message) {
    message->place = begin_message_entry(self->ring, ++self->calls->messages, message->description);
    message->error = post_message(&self->library->functions, message->sends, PyArray_DATA(message->array),
                                  message->nbytes, message->peer, message->tag, self->comm, &message->request);
    message->is_pending = !message->error;
}

void test_message(const MessengerObject *self, Message *message) {
    const MpiLibrary *mpi = &self->library->functions;
    int flag = 0;
    if (message->is_pending) {
        message->error = test_request(mpi, &message->request, &flag, &message->status);
        message->is_pending = !flag && !message->error;
        if (flag && !message->error && !message->sends) {
            message->error = read_status(mpi, &message->status, &message->source, &message->received);
        }
    }
}

void wait_for_messages(const MessengerObject *self, Message *incoming, Message *outgoing) {
    int tests = self->oversubscribed ? TESTS_WITH_GIL_OVERSUBSCRIBED : TESTS_WITH_GIL;
    for (int i = 0; i < tests && (incoming->is_pending || outgoing->is_pending); i++) {
        test_message(self, incoming);
        test_message(self, outgoing);
    }
    if (!incoming->is_pending && !outgoing->is_pending) {
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    int64_t begun = read_clock_ns(), now = begun, spin_ns = self->oversubscribed ? 0 : SPIN_NS;
    while ((incoming->is_pending || outgoing->is_pending) && now - begun < LIMIT_NS) {
        test_message(self, incoming);
        test_message(self, outgoing);
        now = read_clock_ns();
        if (now - begun >= spin_ns) {
            sched_yield();
        }
    }
    Py_END_ALLOW_THREADS
}

bool is_complete(const Message *message) {
    bool has_size = message->sends || message->received == message->nbytes;
    return !message->array || (!message->is_pending && !message->error && has_size);
}

PyObject *describe_message(const Message *message) {
    if (!message->array) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("NKLiLi", PyBool_FromLong(message->is_pending), (unsigned long long)message->request,
                         (long long)message->place, message->error, (long long)message->received, message->source);
}

void end_message(const MessengerObject *self, const Message *message) {
    if (message->array && message->place && !message->is_pending) {
        end_message_entry(self->ring, message->place, !is_complete(message));
    }
}

// Begins both messages and waits for them. Returns the rank of the sender, or -1 without a receive. If a message has
// not ended or has failed, returns the states with which Python waits for both messages or raises their errors.
static PyObject *run_exchange(MessengerObject *self, Message *incoming, Message *outgoing) {
    // The receive begins first, so that the message of a rank to itself is received at once.
    if (incoming->array) {
        begin_message(self, incoming);
    }
    if (outgoing->array && !incoming->error) {
        begin_message(self, outgoing);
    }
    wait_for_messages(self, incoming, outgoing);
    end_message(self, incoming);
    end_message(self, outgoing);
    if (raise_loss(self->calls)) {
        return NULL;
    }
    if (is_complete(incoming) && is_complete(outgoing)) {
        return PyLong_FromLong(incoming->array ? incoming->source : -1);
    }
    return Py_BuildValue("NN", describe_message(incoming), describe_message(outgoing));
}

// Whether the communicator is open, and no interrupted call or wait on the communicator is still under way.
static bool is_usable(const MessengerObject *self) {
    return self->is_open && (!self->calls->current || self->calls->current == Py_None);
}

// exchange(out, source, recvtag, x, dest, sendtag): receives `out` and sends `x`; either is None without a message.
static PyObject *Messenger_exchange(PyObject *given, PyObject *const *args, Py_ssize_t nargs) {
    MessengerObject *self = (MessengerObject *)given;
    if (nargs != 6) {
        return PyErr_Format(PyExc_TypeError, "exchange takes out, source, recvtag, x, dest and sendtag");
    }
    Message incoming = {.sends = false}, outgoing = {.sends = true};
    if (!is_usable(self) || !read_message(self, args[0], args[1], args[2], &incoming) ||
        !read_message(self, args[3], args[4], args[5], &outgoing)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    int is_plain = prepare_message(self, &incoming);
    if (is_plain > 0) {
        is_plain = prepare_message(self, &outgoing);
    }
    PyObject *result = is_plain < 0 ? NULL : is_plain ? run_exchange(self, &incoming, &outgoing)
                                                      : Py_NewRef(Py_NotImplemented);
    Py_XDECREF(incoming.description);
    Py_XDECREF(outgoing.description);
    return result;
}

// start(sends, x, peer, tag): begins one message, which is in flight from then on.
static PyObject *Messenger_start(PyObject *given, PyObject *const *args, Py_ssize_t nargs) {
    MessengerObject *self = (MessengerObject *)given;
    if (nargs != 4) {
        return PyErr_Format(PyExc_TypeError, "start takes sends, x, peer and tag");
    }
    Message message = {.sends = args[0] == Py_True};
    bool is_read = is_usable(self) && read_message(self, args[1], args[2], args[3], &message);
    if (!is_read || !message.array || message.is_skipped) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    int is_plain = prepare_message(self, &message);
    PyObject *result = is_plain < 0 ? NULL : is_plain ? start_message(self, &message) : Py_NewRef(Py_NotImplemented);
    Py_XDECREF(message.description);
    return result;
}

static PyObject *Messenger_close(PyObject *self, PyObject *unused) {
    (void)unused;
    ((MessengerObject *)self)->is_open = false;
    Py_RETURN_NONE;
}

static PyMethodDef Messenger_methods[] = {
    {"exchange", (PyCFunction)(void (*)(void))Messenger_exchange, METH_FASTCALL,
     "Receive `out` and send `x`, either of which may be None; the stub describes the result."},
    {"start", (PyCFunction)(void (*)(void))Messenger_start, METH_FASTCALL,
     "Begin to send or receive an array, and return the handle of the message, or NotImplemented."},
    {"close", Messenger_close, METH_NOARGS, "Leave all messages to Python from now on."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject MessengerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.Messenger",
    .tp_doc = "Blocking messages between two ranks of a communicator; the stub describes the arguments.",
    .tp_basicsize = sizeof(MessengerObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = Messenger_new,
    .tp_dealloc = Messenger_dealloc,
    .tp_traverse = Messenger_traverse,
    .tp_clear = Messenger_clear,
    .tp_methods = Messenger_methods,
};
