// TracedCall: calls a function or method, and writes an entry of a CallTrace for each call.
#include "call_trace.h"

// The forms of traced calls, which determine what an entry contains; hpccoll/profile/layout.py has the same numbers.
enum CallForm { FORM_CALL, FORM_START, FORM_INIT, FORM_WAIT, FORM_WAIT_LIST, FORM_TEST, FORM_TEST_LIST, FORM_START_PREPARED, FORM_START_LIST };

typedef struct {
    int index; // among the positional arguments, from 0; -1: there is none
    PyObject *name; // as keyword; NULL: none
} Argument;

enum { BUFFER, OTHER_BUFFER, PEER, TAG, COMM, SOURCE, ASYNC, ARGUMENTS };

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    CallTraceObject *trace;
    PyObject *function, *comm, *after; // comm: that of all calls, NULL if it is an argument; after: called with each result, or NULL
    int op, form, flags, default_peer, default_tag;
    bool counts_pickled, binds;
    Argument arguments[ARGUMENTS];
} TracedCallObject;

static PyObject *find_argument(const Argument *wanted, PyObject *const *args, Py_ssize_t nargs, PyObject *names) {
    if (wanted->index >= 0 && wanted->index < nargs) {
        return args[wanted->index];
    }
    for (Py_ssize_t i = 0; wanted->name && names && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        if (name == wanted->name || PyUnicode_Compare(name, wanted->name) == 0) {
            return args[nargs + i];
        }
    }
    return NULL;
}

static int find_number(const Argument *wanted, int otherwise, PyObject *const *args, Py_ssize_t nargs, PyObject *names) {
    PyObject *given = find_argument(wanted, args, nargs, names);
    if (!given) {
        return otherwise;
    }
    PyObject *root = PyLong_Check(given) ? Py_NewRef(given) : PyObject_GetAttrString(given, "rootRank"); // torch's options
    long value = root && PyLong_Check(root) ? PyLong_AsLong(root) : otherwise;
    Py_XDECREF(root);
    PyErr_Clear();
    return (int)value;
}

// Returns the size of elements as a part of the flags of an entry; 0 if it is no power of two up to TRACE_MOST_ITEMSIZE.
static int16_t encode_itemsize(Py_ssize_t itemsize) {
    bool is_known = itemsize > 0 && itemsize <= TRACE_MOST_ITEMSIZE && (itemsize & (itemsize - 1)) == 0;
    return (int16_t)(is_known ? (1 + __builtin_ctzl((unsigned long)itemsize)) << TRACE_ITEMSIZE_SHIFT : 0);
}

// Returns the bytes of a buffer in one of the forms that mpi4py and torch take, or -1 if they are unknown. Adds the size
// of its elements to `flags` if the size is known. Leaves no exception.
static int64_t measure_buffer(CallTraceObject *trace, PyObject *given, int16_t *flags) {
    PyObject *buffer = given;
    if (PyList_Check(given) && PyList_GET_SIZE(given) == 2 && !PyLong_Check(PyList_GET_ITEM(given, 1)) &&
        !PyTuple_Check(PyList_GET_ITEM(given, 1)) && !PyList_Check(PyList_GET_ITEM(given, 1))) {
        buffer = PyList_GET_ITEM(given, 0); // [array, datatype]
    }
    if (PyList_CheckExact(given) && PyList_GET_SIZE(given) == 1 && _PyType_Lookup(Py_TYPE(PyList_GET_ITEM(given, 0)), trace->nbytes_name)) {
        buffer = PyList_GET_ITEM(given, 0); // torch's collectives take [tensor]
        PyObject *found = PyObject_GetAttr(buffer, trace->nbytes_name);
        int64_t nbytes = found && PyLong_Check(found) ? PyLong_AsLongLong(found) : -1;
        Py_XDECREF(found);
        PyErr_Clear();
        if (nbytes >= 0) {
            return nbytes;
        }
    }
    Py_buffer view;
    if (PyObject_CheckBuffer(buffer) && PyObject_GetBuffer(buffer, &view, PyBUF_STRIDED_RO) == 0) {
        int64_t nbytes = view.len;
        *flags |= encode_itemsize(view.itemsize);
        PyBuffer_Release(&view);
        return nbytes;
    }
    PyErr_Clear();
    PyObject *measured = PyObject_CallFunctionObjArgs(trace->measure, given, NULL);
    int64_t nbytes = measured ? PyLong_AsLongLong(measured) : -1;
    Py_XDECREF(measured);
    PyErr_Clear();
    return nbytes;
}

// In older versions of mpi4py, IN_PLACE and BOTTOM are integers.
static bool is_constant(PyObject *buffer) {
    const char *type = strrchr(Py_TYPE(buffer)->tp_name, '.');
    return PyLong_Check(buffer) || (type && (!strcmp(type, ".InPlaceType") || !strcmp(type, ".BottomType")));
}

static void describe_buffers(TracedCallObject *self, TraceEntry *entry, PyObject *const *args, Py_ssize_t nargs, PyObject *names) {
    PyObject *given = find_argument(&self->arguments[BUFFER], args, nargs, names);
    if (!given || given == Py_None || is_constant(given)) {
        entry->flags |= given && is_constant(given) ? TRACE_IN_PLACE : 0;
        given = find_argument(&self->arguments[OTHER_BUFFER], args, nargs, names);
        entry->flags |= given && self->arguments[BUFFER].index >= 0 ? TRACE_IN_PLACE : 0;
    }
    bool has_buffer = self->arguments[BUFFER].index >= 0 || self->arguments[OTHER_BUFFER].index >= 0;
    entry->nbytes = given && given != Py_None ? measure_buffer(self->trace, given, &entry->flags) : has_buffer ? -1 : 0;
}

static bool is_list_form(int form) {
    return form == FORM_WAIT_LIST || form == FORM_TEST_LIST || form == FORM_START_LIST;
}

// Returns the requests that a call starts or completes as a new sequence; NULL without exception if there are none.
static PyObject *list_requests(TracedCallObject *self, PyObject *const *args, Py_ssize_t nargs) {
    if (!is_list_form(self->form) || nargs < 2) {
        return NULL;
    }
    PyObject *requests = PySequence_Fast(args[1], "");
    PyErr_Clear();
    return requests;
}

// Writes one entry per request of a list that the call has started or completed; returns false if none was.
static bool write_list(TracedCallObject *self, TraceEntry *entry, PyObject *requests, const int64_t *handles) {
    CallTraceObject *trace = self->trace;
    bool is_any = false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(requests); i++) {
        if (self->form == FORM_TEST_LIST && read_handle(PySequence_Fast_GET_ITEM(requests, i)) == handles[i]) {
            continue;
        }
        TraceEntry *taken = take_trace_entry(trace);
        if (!taken) {
            PyErr_WriteUnraisable((PyObject *)trace);
            return true;
        }
        *taken = *entry;
        taken->request = handles[i];
        taken->flags |= (int16_t)((self->form == FORM_START_LIST ? TRACE_START : TRACE_COMPLETE) | (is_any ? TRACE_MORE : 0));
        __atomic_store_n(&trace->header[3], trace->header[3] + 1, __ATOMIC_RELEASE);
        is_any = true;
    }
    return is_any;
}

static void write_call(TracedCallObject *self, TraceEntry *entry) {
    TraceEntry *taken = take_trace_entry(self->trace);
    if (!taken) {
        PyErr_WriteUnraisable((PyObject *)self->trace);
        return;
    }
    *taken = *entry;
    __atomic_store_n(&self->trace->header[3], self->trace->header[3] + 1, __ATOMIC_RELEASE);
}

static void describe_call(TracedCallObject *self, TraceEntry *entry, PyObject *const *args, Py_ssize_t nargs, PyObject *names) {
    const Argument *arguments = self->arguments;
    entry->op = (int16_t)self->op;
    entry->flags = (int16_t)self->flags;
    entry->peer = find_number(&arguments[PEER], self->default_peer, args, nargs, names);
    entry->tag = find_number(&arguments[TAG], self->default_tag, args, nargs, names);
    if (arguments[SOURCE].index >= 0) {
        entry->request = find_number(&arguments[SOURCE], TRACE_NOT_GIVEN, args, nargs, names);
    }
    if (self->comm) {
        entry->comm = find_trace_comm(self->trace, self->comm);
    } else if (arguments[COMM].index >= 0) {
        PyObject *comm = find_argument(&arguments[COMM], args, nargs, names);
        entry->comm = find_trace_comm(self->trace, comm == Py_None ? NULL : comm);
    } else {
        entry->comm = -1;
    }
    if (entry->comm >= 0 && self->flags & TRACE_COLLECTIVE) {
        entry->number = self->trace->numbers[entry->comm]++;
    }
    if (!self->counts_pickled) {
        describe_buffers(self, entry, args, nargs, names);
    }
}

static void finish_entry(TracedCallObject *self, TraceEntry *entry, PyObject *result, PyObject *is_async) {
    if (!result) {
        entry->flags |= TRACE_FAILED;
        return;
    }
    bool starts = self->form == FORM_START || self->form == FORM_INIT || self->form == FORM_START_PREPARED;
    if (is_async && is_async != Py_False && result != Py_None) {
        starts = true;
        entry->flags |= TRACE_START;
    }
    if (starts && self->form != FORM_START_PREPARED) {
        entry->request = read_handle(result);
        entry->flags |= self->form == FORM_INIT ? TRACE_INIT : TRACE_START;
    }
    if (self->form == FORM_START_PREPARED) {
        entry->flags |= TRACE_START;
    }
    if (self->form == FORM_WAIT) {
        entry->flags |= TRACE_COMPLETE;
    }
    if (self->form == FORM_TEST) {
        bool done = result == Py_True || (PyTuple_Check(result) && PyTuple_GET_SIZE(result) && PyTuple_GET_ITEM(result, 0) == Py_True);
        entry->flags |= done ? TRACE_COMPLETE : 0;
    }
}

// Calls the function between two readings of the clock, and writes the entry. An exception of the function stays set.
static PyObject *run_traced(TracedCallObject *self, TraceSite *site, PyObject *const *args, size_t nargsf, PyObject *names) {
    CallTraceObject *trace = self->trace;
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    TraceEntry entry = {.peer = TRACE_NOT_GIVEN, .site = site->id};
    PyObject *requests = list_requests(self, args, nargs);
    Py_ssize_t count = requests ? PySequence_Fast_GET_SIZE(requests) : 0;
    int64_t *handles = count ? PyMem_Malloc((size_t)count * sizeof *handles) : NULL;
    for (Py_ssize_t i = 0; handles && i < count; i++) {
        handles[i] = read_handle(PySequence_Fast_GET_ITEM(requests, i));
    }
    describe_call(self, &entry, args, nargs, names);
    if ((self->form == FORM_WAIT || self->form == FORM_TEST || self->form == FORM_START_PREPARED) && nargs) {
        entry.request = read_handle(args[0]);
    }
    PyErr_Clear();
    trace->pickled_bytes = 0;
    trace->busy_thread = PyThread_get_thread_ident();
    entry.begin_ns = read_clock_ns();
    note_gap(trace, entry.begin_ns, &entry);
    PyObject *result = PyObject_Vectorcall(self->function, args, nargsf, names);
    entry.end_ns = read_clock_ns();
    trace->busy_thread = 0;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    finish_entry(self, &entry, result, find_argument(&self->arguments[ASYNC], args, nargs, names));
    if (self->counts_pickled) {
        entry.nbytes = trace->pickled_bytes;
    }
    bool is_idle_test = (self->form == FORM_TEST || self->form == FORM_TEST_LIST) && !(entry.flags & TRACE_COMPLETE);
    if (is_in_trace_window(trace, entry.begin_ns)) {
        if (handles) {
            is_idle_test = !write_list(self, &entry, requests, handles);
        } else if (!is_idle_test && !is_list_form(self->form)) {
            write_call(self, &entry);
        }
    }
    if (!is_idle_test) {
        note_end(trace, entry.end_ns, site);
    }
    if (self->after && result) {
        PyObject *done = PyObject_CallOneArg(self->after, result);
        if (!done) {
            PyErr_WriteUnraisable(self->after);
        }
        Py_XDECREF(done);
    }
    PyMem_Free(handles);
    Py_XDECREF(requests);
    PyErr_Restore(type, value, traceback);
    return result;
}

static PyObject *TracedCall_vectorcall(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names) {
    TracedCallObject *self = (TracedCallObject *)callable;
    CallTraceObject *trace = self->trace;
    // A call inside of a recorded call, such as those of hpccoll on MPI, is part of that call.
    if (trace->is_active && trace->busy_thread != PyThread_get_thread_ident()) {
        TraceSite *site = find_trace_site(trace);
        if (site) {
            return run_traced(self, site, args, nargsf, names);
        }
        PyErr_WriteUnraisable(callable);
    }
    return PyObject_Vectorcall(self->function, args, nargsf, names);
}

static int parse_argument(PyObject *given, Argument *argument) {
    *argument = (Argument){-1, NULL};
    if (!given) {
        return 0;
    }
    PyObject *name;
    if (!PyArg_ParseTuple(given, "iO", &argument->index, &name)) {
        return -1;
    }
    if (PyUnicode_Check(name)) {
        argument->name = Py_NewRef(name);
        PyUnicode_InternInPlace(&argument->name);
    }
    return 0;
}

// TracedCall(trace, function, op, form, flags, default_peer, default_tag, counts_pickled, binds, {name: (index, keyword)},
//            comm=None, after=None)
static PyObject *TracedCall_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *const keys[] = {"buffer", "other_buffer", "peer", "tag", "comm", "source", "is_async"};
    PyObject *trace, *function, *arguments, *comm = Py_None, *after = Py_None;
    int op, form, flags, default_peer, default_tag, counts_pickled, binds;
    if (kwargs || !PyArg_ParseTuple(args, "O!OiiiiippO!|OO", &CallTraceType, &trace, &function, &op, &form, &flags,
                                    &default_peer, &default_tag, &counts_pickled, &binds, &PyDict_Type, &arguments, &comm, &after)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "TracedCall takes no keyword arguments");
        }
        return NULL;
    }
    TracedCallObject *self = (TracedCallObject *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->vectorcall = TracedCall_vectorcall;
    self->trace = (CallTraceObject *)Py_NewRef(trace);
    self->function = Py_NewRef(function);
    self->comm = comm == Py_None ? NULL : Py_NewRef(comm);
    self->after = after == Py_None ? NULL : Py_NewRef(after);
    self->op = op;
    self->form = form;
    self->flags = flags;
    self->default_peer = default_peer;
    self->default_tag = default_tag;
    self->counts_pickled = counts_pickled;
    self->binds = binds;
    for (int i = 0; i < ARGUMENTS; i++) {
        if (parse_argument(PyDict_GetItemString(arguments, keys[i]), &self->arguments[i])) {
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static int TracedCall_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(((TracedCallObject *)object)->function);
    Py_VISIT(((TracedCallObject *)object)->comm);
    Py_VISIT(((TracedCallObject *)object)->after);
    return 0;
}

static int TracedCall_clear(PyObject *object) {
    Py_CLEAR(((TracedCallObject *)object)->function);
    Py_CLEAR(((TracedCallObject *)object)->comm);
    Py_CLEAR(((TracedCallObject *)object)->after);
    return 0;
}

static void TracedCall_dealloc(PyObject *object) {
    TracedCallObject *self = (TracedCallObject *)object;
    PyObject_GC_UnTrack(object);
    TracedCall_clear(object);
    Py_XDECREF(self->trace);
    for (int i = 0; i < ARGUMENTS; i++) {
        Py_XDECREF(self->arguments[i].name);
    }
    Py_TYPE(object)->tp_free(object);
}

static PyObject *TracedCall_bind(PyObject *object, PyObject *instance, PyObject *owner) {
    (void)owner;
    if (!instance || instance == Py_None || !((TracedCallObject *)object)->binds) {
        return Py_NewRef(object);
    }
    return PyMethod_New(object, instance);
}

// Attributes such as __doc__, __name__ and __signature__ are those of the function.
static PyObject *TracedCall_getattro(PyObject *object, PyObject *name) {
    return PyObject_GetAttr(((TracedCallObject *)object)->function, name);
}

static PyObject *TracedCall_repr(PyObject *object) {
    return PyObject_Repr(((TracedCallObject *)object)->function);
}

PyTypeObject TracedCallType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.TracedCall",
    .tp_doc = "A function that writes an entry of a trace when it is called.",
    .tp_basicsize = sizeof(TracedCallObject),
    .tp_vectorcall_offset = offsetof(TracedCallObject, vectorcall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_HAVE_GC,
    .tp_new = TracedCall_new,
    .tp_dealloc = TracedCall_dealloc,
    .tp_traverse = TracedCall_traverse,
    .tp_clear = TracedCall_clear,
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = TracedCall_bind,
    .tp_getattro = TracedCall_getattro,
    .tp_repr = TracedCall_repr,
};

// replace_attribute(type, name, value): replaces an attribute of a type, also of a type that Python code cannot change;
// returns the previous value.
static PyObject *replace_attribute(PyObject *module, PyObject *args) {
    (void)module;
    PyTypeObject *type;
    PyObject *name, *value;
    if (!PyArg_ParseTuple(args, "O!UO", &PyType_Type, &type, &name, &value)) {
        return NULL;
    }
    PyObject *previous = type->tp_dict ? PyDict_GetItemWithError(type->tp_dict, name) : NULL; // borrowed
    if (!previous) {
        if (!PyErr_Occurred()) {
            PyErr_SetObject(PyExc_AttributeError, name);
        }
        return NULL;
    }
    Py_INCREF(previous);
    if (PyDict_SetItem(type->tp_dict, name, value)) {
        Py_DECREF(previous);
        return NULL;
    }
    PyType_Modified(type);
    return previous;
}

PyMethodDef trace_functions[] = {
    {"replace_attribute", replace_attribute, METH_VARARGS, "Replace an attribute of a type and return the previous one."},
    {NULL, NULL, 0, NULL},
};
