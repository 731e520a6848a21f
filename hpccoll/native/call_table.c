// CallTable: finds the staged call of a call on NumPy arrays by its kind, checks the arrays, and runs it.
//
// Calls are of one kind if they agree in operation, dtype, number of elements, reduction, root, algorithm, and in
// whether the user passes the output. The table compares objects by identity, which is enough for the constants that
// programs pass; any other call takes the path in Python, which compares them by value.
#include "objects.h"

#include <numpy/ndarraytypes.h>

enum { SLOTS = 1024, MOST_KINDS = SLOTS / 2, KEYS = 5 };

typedef struct {
    PyObject *keys[KEYS];  // operation, dtype, reduction, root, algorithm; NULL in an empty slot
    npy_intp count;        // elements of the input
    bool output_given;
    bool in_place;         // whether the output is the input
    bool returns_none;
    int divisor;           // of the input's first dim
    npy_intp result_count;
    PyObject *make_output; // returns a new output for an input; NULL if the user passes the output
    StagedCallObject *call;
} Kind;

typedef struct {
    PyObject_HEAD
    PyTypeObject *array_type;
    PyObject *in_flight, *shared_starts;
    Py_ssize_t used;
    Kind kinds[SLOTS];
} CallTableObject;

static void clear_kind(Kind *kind) {
    for (int i = 0; i < KEYS; i++) {
        Py_CLEAR(kind->keys[i]);
    }
    Py_CLEAR(kind->make_output);
    Py_CLEAR(kind->call);
}

static void clear_kinds(CallTableObject *table) {
    table->used = 0;
    for (int i = 0; i < SLOTS; i++) {
        clear_kind(&table->kinds[i]);
    }
}

static int CallTable_traverse(PyObject *self, visitproc visit, void *arg) {
    CallTableObject *table = (CallTableObject *)self;
    for (int i = 0; i < SLOTS; i++) {
        Py_VISIT(table->kinds[i].call);
        Py_VISIT(table->kinds[i].make_output);
    }
    return 0;
}

static int CallTable_clear(PyObject *self) {
    clear_kinds((CallTableObject *)self);
    return 0;
}

static void CallTable_dealloc(PyObject *self) {
    CallTableObject *table = (CallTableObject *)self;
    PyObject_GC_UnTrack(self);
    clear_kinds(table);
    Py_XDECREF(table->array_type);
    Py_XDECREF(table->in_flight);
    Py_XDECREF(table->shared_starts);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *CallTable_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"array_type", "in_flight", "shared_starts", NULL};
    PyObject *array_type, *in_flight, *starts;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!", names, &PyType_Type, &array_type, &PyDict_Type,
                                     &in_flight, &PyList_Type, &starts)) {
        return NULL;
    }
    CallTableObject *self = (CallTableObject *)type->tp_alloc(type, 0);
    if (self) {
        self->array_type = (PyTypeObject *)Py_NewRef(array_type);
        self->in_flight = Py_NewRef(in_flight);
        self->shared_starts = Py_NewRef(starts);
    }
    return (PyObject *)self;
}

// Returns the slot of a kind, or the empty slot where it belongs. At most half of the slots are used.
static Kind *find_slot(CallTableObject *table, PyObject *const keys[KEYS], npy_intp count, bool output_given) {
    size_t hash = (size_t)count * 31 + output_given;
    for (int i = 0; i < KEYS; i++) {
        hash = hash * 1000003 ^ (uintptr_t)keys[i] >> 4;
    }
    for (hash ^= hash >> 17;; hash++) {
        Kind *kind = &table->kinds[hash % SLOTS];
        bool is_same = kind->count == count && kind->output_given == output_given;
        if (!kind->call || (is_same && !memcmp(kind->keys, keys, sizeof kind->keys))) {
            return kind;
        }
    }
}

// Whether an object is a NumPy array of contiguous, aligned, writable elements.
static bool is_plain(const CallTableObject *table, PyObject *given) {
    return Py_TYPE(given) == table->array_type && PyArray_CHKFLAGS((PyArrayObject *)given, NPY_ARRAY_CARRAY);
}

// Whether an array may be in memory that other ranks have mapped; arrays that own their memory are not.
static bool may_be_shared(const CallTableObject *table, PyArrayObject *array) {
    return PyList_GET_SIZE(table->shared_starts) && !PyArray_CHKFLAGS(array, NPY_ARRAY_OWNDATA);
}

static npy_intp count_elements(PyArrayObject *array) {
    npy_intp count = 1;
    for (int dim = 0; dim < PyArray_NDIM(array); dim++) {
        count *= PyArray_DIM(array, dim);
    }
    return count;
}

// Whether an input and an output of a kind share memory.
static bool overlap(const Kind *kind, PyArrayObject *x, PyArrayObject *out) {
    const int64_t *nbytes = kind->call->program->limits;
    uintptr_t begin = (uintptr_t)PyArray_DATA(x), other = (uintptr_t)PyArray_DATA(out);
    return begin < other + (size_t)nbytes[OUTPUT] && other < begin + (size_t)nbytes[INPUT];
}

// Whether the call of a kind accepts an output that the user passed.
static bool accepts_output(const CallTableObject *table, const Kind *kind, PyArrayObject *x, PyObject *out) {
    if (!is_plain(table, out)) {
        return false;
    }
    PyArrayObject *array = (PyArrayObject *)out;
    npy_intp count = count_elements(array);
    return (PyObject *)PyArray_DESCR(array) == kind->keys[1] && count == kind->result_count &&
           !may_be_shared(table, array) && !overlap(kind, x, array);
}

// Runs the call of a kind and returns the user's result.
static PyObject *run_kind(const Kind *kind, PyObject *x, PyObject *out) {
    PyObject *result = kind->make_output ? PyObject_CallOneArg(kind->make_output, x) : Py_NewRef(out ? out : x);
    if (!result) {
        return NULL;
    }
    StagedCallObject *call = (StagedCallObject *)Py_NewRef((PyObject *)kind->call);
    bool returns_none = kind->returns_none;  // a signal handler may clear the table during the call
    int failed = run_staged(call, PyArray_DATA((PyArrayObject *)x), PyArray_DATA((PyArrayObject *)result));
    Py_DECREF(call);
    if (failed || returns_none) {
        Py_DECREF(result);
        return failed ? NULL : Py_NewRef(Py_None);
    }
    return result;
}

// Runs a barrier, whose kind has no dtype and no elements.
static PyObject *run_without_arrays(CallTableObject *table, PyObject *const *args) {
    PyObject *keys[KEYS] = {args[0], Py_None, args[3], args[4], args[5]};
    const Kind *kind = find_slot(table, keys, 0, false);
    if (!kind->call || PyDict_GET_SIZE(table->in_flight)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    StagedCallObject *call = (StagedCallObject *)Py_NewRef((PyObject *)kind->call);
    int failed = run_staged(call, NULL, NULL);
    Py_DECREF(call);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *CallTable_run(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    CallTableObject *table = (CallTableObject *)self;
    if (nargs != 6) {
        return PyErr_Format(PyExc_TypeError, "run takes operation, x, out, op, root and algorithm");
    }
    PyObject *x = args[1], *out = args[2] == Py_None ? NULL : args[2];
    if (x == Py_None && !out) {
        return run_without_arrays(table, args);
    }
    if (!is_plain(table, x) || PyDict_GET_SIZE(table->in_flight) || may_be_shared(table, (PyArrayObject *)x)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    PyArrayObject *array = (PyArrayObject *)x;
    PyObject *keys[KEYS] = {args[0], (PyObject *)PyArray_DESCR(array), args[3], args[4], args[5]};
    const Kind *kind = find_slot(table, keys, count_elements(array), out != NULL);
    bool fits = kind->call && (kind->divisor == 1 || (PyArray_NDIM(array) && !(PyArray_DIM(array, 0) % kind->divisor)));
    if (!fits || (out && !kind->in_place && !accepts_output(table, kind, array, out)) || (out && kind->in_place)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    return run_kind(kind, x, out);
}

static PyObject *CallTable_add(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"operation", "dtype", "op", "root", "algorithm", "count", "output_given", "in_place",
                            "returns_none", "divisor", "result_count", "make_output", "call", NULL};
    CallTableObject *table = (CallTableObject *)self;
    PyObject *keys[KEYS], *make_output, *call;
    Py_ssize_t count, result_count;
    int output_given, in_place, returns_none, divisor;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOnpppinOO!", names, &keys[0], &keys[1], &keys[2], &keys[3],
                                     &keys[4], &count, &output_given, &in_place, &returns_none, &divisor,
                                     &result_count, &make_output, &StagedCallType, &call)) {
        return NULL;
    }
    if (divisor < 1 || (output_given && in_place)) {
        PyErr_SetString(PyExc_ValueError, "a kind divides its input by 1 or more, and is in place without an output");
        return NULL;
    }
    if (table->used >= MOST_KINDS) {
        clear_kinds(table);
    }
    Kind *kind = find_slot(table, keys, count, output_given);
    table->used += !kind->call;
    clear_kind(kind);
    *kind = (Kind){.count = count, .output_given = output_given, .in_place = in_place, .returns_none = returns_none,
                   .divisor = divisor, .result_count = result_count,
                   .make_output = make_output == Py_None ? NULL : Py_NewRef(make_output),
                   .call = (StagedCallObject *)Py_NewRef(call)};
    for (int i = 0; i < KEYS; i++) {
        kind->keys[i] = Py_NewRef(keys[i]);
    }
    Py_RETURN_NONE;
}

static PyObject *CallTable_forget(PyObject *self, PyObject *unused) {
    (void)unused;
    clear_kinds((CallTableObject *)self);
    Py_RETURN_NONE;
}

static Py_ssize_t CallTable_length(PyObject *self) { return ((CallTableObject *)self)->used; }

static PyMethodDef CallTable_methods[] = {
    {"run", (PyCFunction)(void (*)(void))CallTable_run, METH_FASTCALL,
     "Run a call if its kind is known and its arrays are plain; return its result, or else NotImplemented."},
    {"add", (PyCFunction)(void (*)(void))CallTable_add, METH_VARARGS | METH_KEYWORDS,
     "Run later calls of a kind by a staged call."},
    {"clear", CallTable_forget, METH_NOARGS, "Forget all kinds."},
    {NULL, NULL, 0, NULL},
};

static PySequenceMethods CallTable_sequence = {.sq_length = CallTable_length};

PyTypeObject CallTableType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.CallTable",
    .tp_doc = "The staged calls of a communicator by kind; the stub describes the arguments.",
    .tp_basicsize = sizeof(CallTableObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = CallTable_new,
    .tp_dealloc = CallTable_dealloc,
    .tp_traverse = CallTable_traverse,
    .tp_clear = CallTable_clear,
    .tp_methods = CallTable_methods,
    .tp_as_sequence = &CallTable_sequence,
};
