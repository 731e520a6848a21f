// CallTable: finds the native call or Python function for a call by the call's kind, checks the arrays, and runs it.
//
// Calls are of one kind if they agree in operation, dtype, number of elements, reduction, root, algorithm, counts, in
// whether the user passes the output, and in whether other ranks can address the arrays' memory. The table compares
// objects by identity, which is enough for the constants that programs pass; any other call takes the path in Python,
// which makes equal objects identical. The arrays are NumPy arrays, or torch tensors on the CPU.
#include "objects.h"

#include <numpy/ndarraytypes.h>

enum { FIRST_SLOTS = 32, MOST_KINDS = 512, OBJECTS = 4 };
enum { OPERATION, OP, ALGORITHM, COUNTS };

// The properties that all calls of one kind share.
typedef struct {
    PyObject *objects[OBJECTS];
    uintptr_t dtype;  // see `identify_dtype`; 0 without arrays
    npy_intp count;   // elements of the input
    long root;
    int32_t is_tensor, output_given, memory, out_memory;
} Key;

// The array that holds the result of a call.
typedef enum { IN_INPUT, IN_GIVEN, IN_NEW } Target;

typedef struct {
    Key key;
    PyObject *call;         // a HostCall, or a function of the input and output arrays
    PyObject *dtype;        // keeps the dtype of the key alive
    PyObject *make_output;  // returns a new output for an input
    PyObject *calls_left;   // an int64 array: the number of calls that `call` may still carry out; NULL: no limit
    npy_intp nbytes, result_nbytes, result_count;
    npy_intp divisor, rows;  // the input's first dim is a multiple of `divisor`, and equals `rows` unless that is -1
    Target target;
    bool returns_none, needs_idle;  // `needs_idle`: no plan may be in flight
} Kind;

typedef struct {
    PyObject_HEAD
    PyTypeObject *array_type, *tensor_type;
    PyObject *strided;  // torch's layout of ordinary tensors
    PyObject *in_flight, *owner;
    SharedBuffersObject *shared;
    Py_ssize_t used, slots;
    Kind *kinds;
} CallTableObject;

typedef struct {
    char *data;
    uintptr_t dtype;
    npy_intp count;
    bool is_tensor;
    MemoryKind memory;
} Array;

static void clear_kind(Kind *kind) {
    for (int i = 0; i < OBJECTS; i++) {
        Py_CLEAR(kind->key.objects[i]);
    }
    Py_CLEAR(kind->dtype);
    Py_CLEAR(kind->make_output);
    Py_CLEAR(kind->calls_left);
    Py_CLEAR(kind->call);
}

// Releases the objects of a kind that `find_kind` has copied.
static void release_kind(Kind *kind) {
    Py_CLEAR(kind->make_output);
    Py_CLEAR(kind->calls_left);
    Py_CLEAR(kind->call);
}

static void clear_kinds(CallTableObject *table) {
    Kind *kinds = table->kinds;
    Py_ssize_t slots = table->slots;
    table->used = table->slots = 0;
    table->kinds = NULL;
    for (Py_ssize_t i = 0; i < slots; i++) {
        clear_kind(&kinds[i]);
    }
    PyMem_Free(kinds);
}

static int CallTable_traverse(PyObject *self, visitproc visit, void *arg) {
    CallTableObject *table = (CallTableObject *)self;
    Py_VISIT(table->owner);
    for (Py_ssize_t i = 0; i < table->slots; i++) {
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
    Py_XDECREF(table->tensor_type);
    Py_XDECREF(table->strided);
    Py_XDECREF(table->in_flight);
    Py_XDECREF(table->owner);
    Py_XDECREF(table->shared);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *CallTable_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"array_type", "in_flight", "shared", "owner", NULL};
    PyObject *array_type, *in_flight, *shared, *owner;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!O", names, &PyType_Type, &array_type, &PyDict_Type,
                                     &in_flight, &SharedBuffersType, &shared, &owner)) {
        return NULL;
    }
    CallTableObject *self = (CallTableObject *)type->tp_alloc(type, 0);
    if (self) {
        self->array_type = (PyTypeObject *)Py_NewRef(array_type);
        self->in_flight = Py_NewRef(in_flight);
        self->shared = (SharedBuffersObject *)Py_NewRef(shared);
        self->owner = Py_NewRef(owner);
    }
    return (PyObject *)self;
}

// Returns the slot of a key among `slots` slots, or the empty slot where it belongs. At most half of the slots are used.
static Kind *find_slot(Kind *kinds, Py_ssize_t slots, const Key *key) {
    size_t hash = (size_t)key->count * 31 + (size_t)key->root + (size_t)key->output_given + key->dtype;
    for (int i = 0; i < OBJECTS; i++) {
        hash = hash * 1000003 ^ (uintptr_t)key->objects[i] >> 4;
    }
    for (hash ^= hash >> 17;; hash++) {
        Kind *kind = &kinds[hash % (size_t)slots];
        if (!kind->call || !memcmp(&kind->key, key, sizeof *key)) {
            return kind;
        }
    }
}

// Makes room for one more kind; returns -1 with an exception. Forgets all kinds if there are too many.
static int make_room(CallTableObject *table) {
    if (table->used >= MOST_KINDS) {
        clear_kinds(table);
    }
    if (2 * (table->used + 1) <= table->slots) {
        return 0;
    }
    Py_ssize_t slots = table->slots ? 2 * table->slots : FIRST_SLOTS;
    Kind *kinds = PyMem_Calloc((size_t)slots, sizeof *kinds);
    if (!kinds) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < table->slots; i++) {
        if (table->kinds[i].call) {
            *find_slot(kinds, slots, &table->kinds[i].key) = table->kinds[i];
        }
    }
    PyMem_Free(table->kinds);
    table->kinds = kinds;
    table->slots = slots;
    return 0;
}

// Returns a number that identifies a dtype. For NumPy's numbers and booleans in native byte order, the result is odd
// and follows from the type number, because arrays that were pickled have dtypes that are equal but not identical. For
// other dtypes, the result is the address of the dtype, which is even.
static uintptr_t identify_dtype(PyArray_Descr *dtype) {
    int number = dtype->type_num;
    bool is_number = number < NPY_OBJECT || number == NPY_HALF;
    return is_number && (dtype->byteorder == '=' || dtype->byteorder == '|') ? 2 * (uintptr_t)number + 1 : (uintptr_t)dtype;
}

// Reads a NumPy array; returns 1 if its elements are contiguous, aligned and writable, else 0.
static int read_numpy(const CallTableObject *table, PyArrayObject *given, Array *array) {
    if (!PyArray_CHKFLAGS(given, NPY_ARRAY_CARRAY)) {
        return 0;
    }
    npy_intp count = 1;
    for (int dim = 0; dim < PyArray_NDIM(given); dim++) {
        count *= PyArray_DIM(given, dim);
    }
    *array = (Array){PyArray_DATA(given), identify_dtype(PyArray_DESCR(given)), count, false, PRIVATE};
    Location location;
    // Memory that NumPy has allocated is private, so only views need the look-up.
    if (count && !PyArray_CHKFLAGS(given, NPY_ARRAY_OWNDATA)) {
        array->memory = locate_memory(table->shared, table->owner, array->data, 1, &location);
    }
    return 1;
}

// Returns whether `given.name`, or `given.name()` if `calls`, is `wanted`; -1 with an exception.
static int has_value(PyObject *given, const char *name, bool calls, const PyObject *wanted) {
    PyObject *value = calls ? PyObject_CallMethod(given, name, NULL) : PyObject_GetAttrString(given, name);
    Py_XDECREF(value);  // other objects still own the value, which is a constant
    return value ? value == wanted : -1;
}

// Returns the integer that a method of a tensor returns; -1 with an exception.
static long long call_for_integer(PyObject *given, const char *name) {
    PyObject *value = PyObject_CallMethod(given, name, NULL);
    long long number = value ? (long long)PyLong_AsUnsignedLongLongMask(value) : -1;
    Py_XDECREF(value);
    return number;
}

// Reads a tensor; returns 1 if the tensor is dense and contiguous on the CPU, 0 if not, or -1 with an exception.
static int read_tensor(const CallTableObject *table, PyObject *given, Array *array) {
    int plain = has_value(given, "layout", false, table->strided);
    plain = plain == 1 ? has_value(given, "is_cpu", false, Py_True) : plain;
    plain = plain == 1 ? has_value(given, "is_contiguous", true, Py_True) : plain;
    plain = plain == 1 ? has_value(given, "is_neg", true, Py_False) : plain;
    plain = plain == 1 ? has_value(given, "is_conj", true, Py_False) : plain;
    if (plain != 1) {
        return plain;
    }
    PyObject *dtype = PyObject_GetAttrString(given, "dtype");
    if (!dtype) {
        return -1;
    }
    Py_DECREF(dtype);  // a constant of torch
    long long count = call_for_integer(given, "numel"), data = call_for_integer(given, "data_ptr");
    if (PyErr_Occurred()) {
        return -1;
    }
    *array = (Array){(char *)(uintptr_t)data, (uintptr_t)dtype, (npy_intp)count, true, PRIVATE};
    Location location;
    array->memory = locate_memory(table->shared, table->owner, array->data, count > 0, &location);
    return 1;
}

// Reads an array; returns 1, 0 if the table does not accept the object, or -1 with an exception.
static int read_array(const CallTableObject *table, PyObject *given, Array *array) {
    if (Py_TYPE(given) == table->array_type) {
        return read_numpy(table, (PyArrayObject *)given, array);
    }
    return Py_TYPE(given) == table->tensor_type ? read_tensor(table, given, array) : 0;
}

// A call whose arrays were read.
typedef struct {
    Key key;
    PyObject *x, *out;  // NULL if missing
    Array input, output;
} Call;

// Reads the arguments operation, x, out, op, root, algorithm and counts; returns 1, 0 if the table does not accept them,
// or -1 with an exception.
static int read_call(const CallTableObject *table, PyObject *const *args, Call *call) {
    memset(call, 0, sizeof *call);
    call->key.objects[OPERATION] = args[0];
    call->key.objects[OP] = args[3];
    call->key.objects[ALGORITHM] = args[5];
    call->key.objects[COUNTS] = args[6];
    if (!PyLong_CheckExact(args[4])) {
        return 0;
    }
    int overflow;
    call->key.root = PyLong_AsLongAndOverflow(args[4], &overflow);
    call->x = args[1] == Py_None ? NULL : args[1];
    call->out = args[2] == Py_None ? NULL : args[2];
    if (overflow || (!call->x && call->out)) {
        return 0;
    }
    if (!call->x) {
        return 1;
    }
    int plain = read_array(table, call->x, &call->input);
    if (plain != 1 || call->input.memory == UNUSABLE) {
        return plain < 0 ? -1 : 0;
    }
    call->key.dtype = call->input.dtype;
    call->key.count = call->input.count;
    call->key.is_tensor = call->input.is_tensor;
    call->key.memory = call->input.memory;
    call->key.output_given = call->out != NULL;
    if (call->out) {
        plain = read_array(table, call->out, &call->output);
        call->key.out_memory = plain == 1 ? (int32_t)call->output.memory : UNUSABLE;
    }
    return plain < 0 ? -1 : 1;
}

// Returns the size of an array's first dim, or 0 if it has none; -1 with an exception.
static npy_intp read_first_dim(const Call *call) {
    if (!call->input.is_tensor) {
        PyArrayObject *array = (PyArrayObject *)call->x;
        return PyArray_NDIM(array) ? PyArray_DIM(array, 0) : 0;
    }
    PyObject *shape = PyObject_GetAttrString(call->x, "shape");
    PyObject *first = shape && PySequence_Size(shape) > 0 ? PySequence_GetItem(shape, 0) : NULL;
    npy_intp size = first ? PyLong_AsSsize_t(first) : PyErr_Occurred() ? -1 : 0;
    Py_XDECREF(shape);
    Py_XDECREF(first);
    return size;
}

// Returns whether a kind of call accepts the arrays; -1 with an exception.
static int accepts(const Kind *kind, const Call *call) {
    if (kind->divisor > 1 || kind->rows >= 0) {
        npy_intp rows = read_first_dim(call);
        if (rows < 0) {
            return -1;
        }
        if (kind->rows >= 0 ? rows != kind->rows : !rows || rows % kind->divisor) {
            return 0;
        }
    }
    if (kind->target != IN_GIVEN) {
        return 1;
    }
    uintptr_t begin = (uintptr_t)call->input.data, other = (uintptr_t)call->output.data;
    bool overlap = begin < other + (size_t)kind->result_nbytes && other < begin + (size_t)kind->nbytes;
    return call->output.dtype == call->input.dtype && call->output.is_tensor == call->input.is_tensor &&
           call->output.count == kind->result_count && !overlap;
}

// Counts a call of a kind; returns false if its `call` may not carry out any more.
static bool count_call(const Kind *kind) {
    if (!kind->calls_left) {
        return true;
    }
    int64_t *left = PyArray_DATA((PyArrayObject *)kind->calls_left);
    return *left > 0 && (*left)-- > 0;
}

// Finds the kind of a call, counts the call, and copies what a run needs, because a signal handler may change the table
// meanwhile. Returns 1, 0 if the table cannot carry out the call or the arrays differ, or -1 with an exception.
static int find_kind(const CallTableObject *table, PyObject *const *args, Py_ssize_t nargs, Call *call, Kind *kind) {
    if (nargs != 7) {
        PyErr_SetString(PyExc_TypeError, "a call has operation, x, out, op, root, algorithm and counts");
        return -1;
    }
    int plain = table->slots ? read_call(table, args, call) : 0;
    if (plain != 1) {
        return plain;
    }
    const Kind *found = find_slot(table->kinds, table->slots, &call->key);
    if (!found->call || (found->needs_idle && PyDict_GET_SIZE(table->in_flight))) {
        return 0;
    }
    *kind = *found;
    kind->call = Py_NewRef(found->call);
    kind->make_output = Py_XNewRef(found->make_output);
    kind->calls_left = Py_XNewRef(found->calls_left);
    int accepted = call->x ? accepts(kind, call) : 1;
    accepted = accepted == 1 ? count_call(kind) : accepted;
    if (accepted != 1) {
        release_kind(kind);
    }
    return accepted;
}

// Returns the array for the result of a call, which the caller releases: the input itself if there is no other.
static PyObject *make_result(const Kind *kind, const Call *call) {
    if (kind->target == IN_NEW) {
        return PyObject_CallOneArg(kind->make_output, call->x);
    }
    return Py_NewRef(kind->target == IN_GIVEN ? call->out : call->x ? call->x : Py_None);
}

// Returns the object that the user gets from a call of a kind that has put its result into an array.
static PyObject *get_value(const Kind *kind, const Call *call, PyObject *result) {
    return kind->returns_none ? Py_None : call->out ? call->out : result;
}

// Runs a native call on arrays, of which the result may be new; returns -1 with an exception.
static int run_native(const CallTableObject *table, HostCallObject *native, const Call *call, PyObject *result) {
    Array output = call->input;
    if (result == call->out) {
        output = call->output;
    } else if (result != call->x && call->x) {
        int plain = read_array(table, result, &output);
        if (plain != 1) {
            if (!plain) {
                PyErr_SetString(PyExc_RuntimeError, "the new output is not a plain array");
            }
            return -1;
        }
    }
    return native->run(native, call->input.data, output.data);
}

// Runs a call of a kind; returns -1 with an exception.
static int run_kind(const CallTableObject *table, const Kind *kind, const Call *call, PyObject *result) {
    if (PyObject_TypeCheck(kind->call, &HostCallType)) {
        return run_native(table, (HostCallObject *)kind->call, call, result);
    }
    PyObject *arrays[] = {call->x ? call->x : Py_None, result};
    PyObject *done = PyObject_Vectorcall(kind->call, arrays, 2, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

PyObject *run_in_table(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    CallTableObject *table = (CallTableObject *)self;
    Call call;
    Kind kind;
    int found = find_kind(table, args, nargs, &call, &kind);
    if (found != 1) {
        return found < 0 ? NULL : Py_NewRef(Py_NotImplemented);
    }
    PyObject *result = make_result(&kind, &call), *value = NULL;
    if (result && !run_kind(table, &kind, &call, result)) {
        value = Py_NewRef(get_value(&kind, &call, result));
    }
    release_kind(&kind);
    Py_XDECREF(result);
    return value;
}

static PyObject *CallTable_find(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    Call call;
    Kind kind;
    int found = find_kind((CallTableObject *)self, args, nargs, &call, &kind);
    if (found != 1) {
        return found < 0 ? NULL : Py_NewRef(Py_None);
    }
    PyObject *result = make_result(&kind, &call);
    PyObject *tuple = result ? PyTuple_Pack(3, kind.call, result, get_value(&kind, &call, result)) : NULL;
    release_kind(&kind);
    Py_XDECREF(result);
    return tuple;
}

// Describes the calls of a kind by the arrays of the first one; returns 1, 0 if the table does not accept them, or -1 with
// an exception.
static int describe_kind(CallTableObject *table, PyObject *example, Kind *kind, Call *call) {
    PyObject *args[7];
    if (PyTuple_GET_SIZE(example) != 7) {
        PyErr_SetString(PyExc_ValueError, "a call has seven arguments");
        return -1;
    }
    for (int i = 0; i < 7; i++) {
        args[i] = PyTuple_GET_ITEM(example, i);
    }
    int plain = read_call(table, args, call);
    if (plain != 1) {
        return plain;
    }
    kind->key = call->key;
    int accepted = call->x ? accepts(kind, call) : 1;
    if (accepted == 1 && call->x) {
        kind->dtype = PyObject_GetAttrString(call->x, "dtype");
        accepted = kind->dtype ? 1 : -1;
    }
    return accepted;
}

// Whether an object is an array that can count calls.
static bool is_counter(const CallTableObject *table, PyObject *given) {
    if (Py_TYPE(given) != table->array_type) {
        return false;
    }
    PyArrayObject *array = (PyArrayObject *)given;
    return PyArray_DESCR(array)->type_num == NPY_INT64 && PyArray_NDIM(array) == 1 && PyArray_DIM(array, 0) == 1;
}

static PyObject *CallTable_add(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"example", "call", "make_output", "in_given", "returns_none", "needs_idle", "nbytes",
                            "result_nbytes", "result_count", "divisor", "rows", "calls_left", NULL};
    CallTableObject *table = (CallTableObject *)self;
    PyObject *example, *runs, *make_output, *calls_left;
    int in_given, returns_none, needs_idle;
    Kind kind = {.rows = -1};
    Call call;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOpppnnnnnO", names, &PyTuple_Type, &example, &runs, &make_output,
                                     &in_given, &returns_none, &needs_idle, &kind.nbytes, &kind.result_nbytes,
                                     &kind.result_count, &kind.divisor, &kind.rows, &calls_left)) {
        return NULL;
    }
    if (calls_left != Py_None && !is_counter(table, calls_left)) {
        PyErr_SetString(PyExc_TypeError, "calls_left is an array of one int64");
        return NULL;
    }
    kind.target = make_output != Py_None ? IN_NEW : in_given ? IN_GIVEN : IN_INPUT;
    int accepted = describe_kind(table, example, &kind, &call);
    if (accepted != 1 || make_room(table)) {
        Py_XDECREF(kind.dtype);
        return accepted < 0 || PyErr_Occurred() ? NULL : Py_NewRef(Py_False);
    }
    kind.call = Py_NewRef(runs);
    kind.make_output = make_output == Py_None ? NULL : Py_NewRef(make_output);
    kind.calls_left = calls_left == Py_None ? NULL : Py_NewRef(calls_left);
    kind.returns_none = returns_none;
    kind.needs_idle = needs_idle;
    for (int i = 0; i < OBJECTS; i++) {
        Py_INCREF(kind.key.objects[i]);
    }
    Kind *slot = find_slot(table->kinds, table->slots, &kind.key);
    Kind before = *slot;
    table->used += !before.call;
    *slot = kind;
    clear_kind(&before);
    Py_RETURN_TRUE;
}

static PyObject *CallTable_accept_tensors(PyObject *self, PyObject *args) {
    CallTableObject *table = (CallTableObject *)self;
    PyObject *type, *strided;
    if (!PyArg_ParseTuple(args, "O!O:accept_tensors", &PyType_Type, &type, &strided)) {
        return NULL;
    }
    Py_XSETREF(table->tensor_type, (PyTypeObject *)Py_NewRef(type));
    Py_XSETREF(table->strided, Py_NewRef(strided));
    Py_RETURN_NONE;
}

static PyObject *CallTable_forget(PyObject *self, PyObject *unused) {
    (void)unused;
    clear_kinds((CallTableObject *)self);
    Py_RETURN_NONE;
}

static Py_ssize_t CallTable_length(PyObject *self) { return ((CallTableObject *)self)->used; }

static PyMethodDef CallTable_methods[] = {
    {"run", (PyCFunction)(void (*)(void))run_in_table, METH_FASTCALL,
     "Run a call if its kind is known and its arrays are plain; return its result, or else NotImplemented."},
    {"find", (PyCFunction)(void (*)(void))CallTable_find, METH_FASTCALL,
     "Return what carries out a call, the array for its result, and the result for the user; None if `run` would not."},
    {"add", (PyCFunction)(void (*)(void))CallTable_add, METH_VARARGS | METH_KEYWORDS,
     "Let later calls of a kind be carried out; return whether the arrays are plain."},
    {"accept_tensors", CallTable_accept_tensors, METH_VARARGS, "Accept tensors of a type and layout from now on."},
    {"clear", CallTable_forget, METH_NOARGS, "Forget all kinds."},
    {NULL, NULL, 0, NULL},
};

static PySequenceMethods CallTable_sequence = {.sq_length = CallTable_length};

PyTypeObject CallTableType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.CallTable",
    .tp_doc = "What carries out a communicator's calls, by kind; the stub describes the arguments.",
    .tp_basicsize = sizeof(CallTableObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = CallTable_new,
    .tp_dealloc = CallTable_dealloc,
    .tp_traverse = CallTable_traverse,
    .tp_clear = CallTable_clear,
    .tp_methods = CallTable_methods,
    .tp_as_sequence = &CallTable_sequence,
};
