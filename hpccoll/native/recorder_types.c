// EntryRing and CallCounter: what the flight recorder notes of a call. The layout of entries is that of
// hpccoll/recordings/layout.py, which passes the places of the words that change.
#include "objects.h"

#include <signal.h>

static PyObject *EntryRing_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"memory", "begin", "entries", "started_word", "ended_word", "failed_word",
                            "round_word", NULL};
    PyObject *memory;
    long long begin, entries, started, ended, failed, round;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OLLLLLL", names, &memory, &begin, &entries, &started, &ended,
                                     &failed, &round)) {
        return NULL;
    }
    EntryRingObject *self = (EntryRingObject *)type->tp_alloc(type, 0);
    if (!self || PyObject_GetBuffer(memory, &self->view, PyBUF_WRITABLE)) {
        Py_XDECREF(self);
        return NULL;
    }
    int64_t words = self->view.len / 8;
    bool fits = begin >= 0 && entries > 0 && entries <= words / RECORD_WORDS;
    fits = fits && begin <= words - entries * RECORD_WORDS && (uintptr_t)self->view.buf % 8 == 0;
    fits = fits && started >= 3 && started < 15 && ended >= 3 && ended < 15 && failed >= 3 && failed < 15 && round >= 0 && round < words;
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the entries are outside of the memory");
        Py_DECREF(self);
        return NULL;
    }
    self->begin = begin;
    self->entries = entries;
    self->started_word = started;
    self->ended_word = ended;
    self->failed_word = failed;
    self->round_word = round;
    return (PyObject *)self;
}

static void EntryRing_dealloc(PyObject *self) {
    PyBuffer_Release(&((EntryRingObject *)self)->view);
    Py_TYPE(self)->tp_free(self);
}

// Takes the next entry, and returns its place in words. The GIL makes this atomic for all threads.
static int64_t take_entry(EntryRingObject *ring) {
    ring->serial++;
    return ring->begin + ring->serial % ring->entries * RECORD_WORDS;
}

static PyObject *EntryRing_call(PyObject *self, PyObject *args, PyObject *kwargs) {
    if (PyTuple_GET_SIZE(args) || kwargs) {
        PyErr_SetString(PyExc_TypeError, "an entry is taken without arguments");
        return NULL;
    }
    EntryRingObject *ring = (EntryRingObject *)self;
    long long place = take_entry(ring);
    return Py_BuildValue("LLL", (long long)ring->serial, 8 * place, place);
}

PyTypeObject EntryRingType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.EntryRing",
    .tp_doc = "Takes the entries of a ring in turn: returns serial number, and place in bytes and in words.",
    .tp_basicsize = sizeof(EntryRingObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = EntryRing_new,
    .tp_dealloc = EntryRing_dealloc,
    .tp_call = EntryRing_call,
};

static int CallCounter_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((CallCounterObject *)self)->current);
    return 0;
}

static int CallCounter_clear(PyObject *self) {
    Py_CLEAR(((CallCounterObject *)self)->current);
    return 0;
}

static void CallCounter_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    CallCounter_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef CallCounter_members[] = {
    {"count", T_LONGLONG, offsetof(CallCounterObject, count), 0, "The number of collective calls begun."},
    {"messages", T_LONGLONG, offsetof(CallCounterObject, messages), 0, "The number of messages begun."},
    {"current", T_OBJECT, offsetof(CallCounterObject, current), 0, "The call that this rank is in; None outside."},
    {"thread", T_ULONG, offsetof(CallCounterObject, thread), 0, "The identifier of the thread that began the last call."},
    {"is_lost", T_BOOL, offsetof(CallCounterObject, is_lost), 0, "Whether a rank of the communicator has died."},
    {"kill_at", T_LONGLONG, offsetof(CallCounterObject, kill_at), 0, "The call in which the process kills itself."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject CallCounterType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.CallCounter",
    .tp_doc = "The calls of a rank on a communicator: how many it has begun, and the one that it is in.",
    .tp_basicsize = sizeof(CallCounterObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = CallCounter_dealloc,
    .tp_traverse = CallCounter_traverse,
    .tp_clear = CallCounter_clear,
    .tp_members = CallCounter_members,
};

// Writes the next entry, and returns its place in words.
static int64_t write_entry(EntryRingObject *ring, long long number, PyObject *description) {
    int64_t place = take_entry(ring);
    int64_t *words = (int64_t *)ring->view.buf + place;
    // release: a reader of the file takes an entry for complete if its first and last word are equal
    __atomic_store_n(&words[0], ring->serial, __ATOMIC_RELEASE);
    words[1] = read_clock_ns();
    words[2] = number;
    memcpy(&words[3], PyBytes_AS_STRING(description), DESCRIPTION_BYTES);
    __atomic_store_n(&words[RECORD_WORDS - 1], ring->serial, __ATOMIC_RELEASE);
    return place;
}

void clear_entry(CallEntry *entry) {
    Py_CLEAR(entry->calls);
    Py_CLEAR(entry->ring);
    Py_CLEAR(entry->name);
    Py_CLEAR(entry->description);
}

int64_t begin_call(const CallEntry *entry) {
    CallCounterObject *calls = entry->calls;
    if (calls->current && calls->current != Py_None) {
        PyObject *allowed = PyObject_CallMethod((PyObject *)calls, "refuse_call", NULL);
        if (!allowed) {
            return -1;
        }
        Py_DECREF(allowed);
    }
    int64_t number = ++calls->count;
    if (number == calls->kill_at) {
        raise(SIGKILL);
    }
    Py_XSETREF(calls->current, Py_NewRef(entry->name));
    calls->thread = PyThread_get_thread_ident();
    return write_entry(entry->ring, number, entry->description);
}

int64_t begin_message_entry(EntryRingObject *ring, long long number, PyObject *description) {
    int64_t place = write_entry(ring, number, description);
    int64_t *words = (int64_t *)ring->view.buf + place;
    words[ring->started_word] = words[1];  // a message starts at once
    return place;
}

void end_message_entry(EntryRingObject *ring, int64_t place, bool failed) {
    int64_t *words = (int64_t *)ring->view.buf + place;
    words[ring->failed_word] = failed;
    words[ring->ended_word] = read_clock_ns();
}

// Lets the counter note the current exception, which may make the communicator unusable; the exception stays set.
static void report_exception(const CallEntry *entry) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *noted = PyObject_CallMethod((PyObject *)entry->calls, "take_exception", "OO", entry->name, value);
    if (noted) {
        Py_DECREF(noted);
        PyErr_Restore(type, value, trace);
        return;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

bool raise_loss(CallCounterObject *calls) {
    if (!calls->is_lost) {
        return false;
    }
    Py_XDECREF(PyObject_CallMethod((PyObject *)calls, "raise_loss", NULL));
    return true;
}

int end_call(const CallEntry *entry, int64_t place, bool failed) {
    int64_t *words = entry->ring->view.buf;
    if (failed) {
        words[place + entry->ring->failed_word] = 1;
        words[entry->ring->round_word] = 0;
    }
    // While `raise_loss` waits, the call is not over.
    if (!failed && raise_loss(entry->calls)) {
        words[place + entry->ring->failed_word] = failed = true;
    }
    Py_XSETREF(entry->calls->current, Py_NewRef(Py_None));
    words[place + entry->ring->ended_word] = read_clock_ns();
    if (failed) {
        report_exception(entry);
        return -1;
    }
    return 0;
}
