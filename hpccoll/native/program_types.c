// Reducer, MemoryTable and Program: the instructions of one rank, and what they work on.
#include "objects.h"

#include <errno.h>
#include <numpy/ndarraytypes.h>
#include <numpy/ufuncobject.h>

// Below this size, releasing the GIL takes longer than other threads would have to wait.
enum { LEAST_BYTES_WITHOUT_GIL = 64 * 1024 };

// Calls a function of the user: combine(left, right, out) with buffers, which it must not use after its return.
static int call_combine(Reducer *reducer, const char *left, const char *right, char *out, size_t count) {
    ReducerObject *self = (ReducerObject *)((char *)reducer - offsetof(ReducerObject, reducer));
    PyGILState_STATE state = PyGILState_Ensure();
    const char *addresses[] = {left, right, out};
    PyObject *buffers = PyTuple_New(3);
    for (int i = 0; buffers && i < 3; i++) {
        Py_ssize_t nbytes = (Py_ssize_t)(count * reducer->itemsize);
        PyObject *buffer = PyMemoryView_FromMemory((char *)(uintptr_t)addresses[i], nbytes, PyBUF_WRITE);
        if (buffer) {
            PyTuple_SET_ITEM(buffers, i, buffer);
        } else {
            Py_CLEAR(buffers);
        }
    }
    PyObject *result = buffers ? PyObject_CallObject(self->keep, buffers) : NULL;
    Py_XDECREF(buffers);
    Py_XDECREF(result);
    PyGILState_Release(state);
    return result ? 0 : -1;
}

// Finds NumPy's inner loop of a ufunc for three arguments of one type, by NumPy's number of the type.
static bool find_loop(Reducer *reducer, PyObject *given, int type) {
    PyObject *module = PyImport_ImportModule("numpy");
    PyObject *ufunc_type = module ? PyObject_GetAttrString(module, "ufunc") : NULL;
    int is_ufunc = ufunc_type ? PyObject_IsInstance(given, ufunc_type) : -1;
    Py_XDECREF(module);
    Py_XDECREF(ufunc_type);
    if (is_ufunc < 0) {
        return false;
    }
    PyUFuncObject *ufunc = (PyUFuncObject *)given;
    for (int i = 0; is_ufunc && ufunc->nin == 2 && ufunc->nout == 1 && i < ufunc->ntypes; i++) {
        const char *types = &ufunc->types[3 * i];
        if (types[0] == type && types[1] == type && types[2] == type && ufunc->functions[i]) {
            reducer->loop = (InnerLoop *)ufunc->functions[i];
            reducer->loop_data = (void *)ufunc->data[i];
            return true;
        }
    }
    PyErr_Format(PyExc_ValueError, "%R is no ufunc of two arrays of type %d", given, type);
    return false;
}

static PyObject *Reducer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"function", "itemsize", "type_number", "half", "number", "copies_single", NULL};
    PyObject *function;
    int itemsize, type_number, half, copies_single = 0;
    Py_buffer digits = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Oiii|z*p", names, &function, &itemsize, &type_number, &half,
                                     &digits, &copies_single)) {
        return NULL;
    }
    Reducer reducer = {.itemsize = itemsize, .copies_single = copies_single, .has_number = digits.buf != NULL};
    bool fits = !digits.buf || (digits.len == itemsize && digits.len <= MOST_ITEMSIZE);
    if (fits && digits.buf) {
        memcpy(reducer.number, digits.buf, (size_t)digits.len);
    }
    PyBuffer_Release(&digits);
    long number = half >= 0 ? PyLong_AsLong(function) : 0;
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (!fits || (half >= 0 && itemsize != 2) || itemsize < 1 || itemsize > MOST_ITEMSIZE || half >= HALF_TYPES || number < 0 || number >= FUNCTIONS) {
        PyErr_SetString(PyExc_ValueError, "there is no such reduction");
        return NULL;
    }
    ReducerObject *self = (ReducerObject *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->keep = Py_NewRef(function);
    self->reducer = reducer;
    if (half >= 0) {
        self->reducer.half = (HalfType)half;
        self->reducer.function = (Function)number;
    } else if (type_number < 0) {
        self->reducer.combine = call_combine;
    } else if (!find_loop(&self->reducer, function, type_number)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void Reducer_dealloc(PyObject *self) {
    Py_XDECREF(((ReducerObject *)self)->keep);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *Reducer_call(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"left", "right", "out", "nbytes", NULL};
    unsigned long long left, right, out, nbytes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KKKK", names, &left, &right, &out, &nbytes)) {
        return NULL;
    }
    PyThreadState *thread = nbytes >= LEAST_BYTES_WITHOUT_GIL ? PyEval_SaveThread() : NULL;
    int failed = reduce(&((ReducerObject *)self)->reducer, (char *)(uintptr_t)left, (char *)(uintptr_t)right,
                        (char *)(uintptr_t)out, (size_t)nbytes);
    if (thread) {
        PyEval_RestoreThread(thread);
    }
    return failed ? NULL : Py_NewRef(Py_None);
}

PyTypeObject ReducerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.Reducer",
    .tp_doc = "A function of two arrays, which a program or a call with addresses computes.",
    .tp_basicsize = sizeof(ReducerObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = Reducer_new,
    .tp_dealloc = Reducer_dealloc,
    .tp_call = Reducer_call,
};

static void MemoryTable_dealloc(PyObject *self) {
    MemoryTableObject *table = (MemoryTableObject *)self;
    PyMem_Free(table->addresses);
    PyMem_Free(table->processes);
    Py_XDECREF(table->keep);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *MemoryTable_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"addresses", "processes", "keep", NULL};
    PyObject *addresses, *processes, *keep;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O", names, &PyList_Type, &addresses, &PyList_Type, &processes,
                                     &keep)) {
        return NULL;
    }
    Py_ssize_t count = PyList_GET_SIZE(addresses);
    if (count < FIRST_SHARED || (PyList_GET_SIZE(processes) && PyList_GET_SIZE(processes) != count)) {
        PyErr_SetString(PyExc_ValueError, "a table has at least input, output and scratch, and a process for each");
        return NULL;
    }
    MemoryTableObject *self = (MemoryTableObject *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->keep = Py_NewRef(keep);
    self->count = count;
    self->addresses = PyMem_Calloc((size_t)count, sizeof(char *));
    self->processes = PyList_GET_SIZE(processes) ? PyMem_Calloc((size_t)count, sizeof(pid_t)) : NULL;
    if (!self->addresses || (PyList_GET_SIZE(processes) && !self->processes)) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++) {
        self->addresses[i] = (char *)(uintptr_t)PyLong_AsUnsignedLongLong(PyList_GET_ITEM(addresses, i));
        if (self->processes && !PyErr_Occurred()) {
            self->processes[i] = (pid_t)PyLong_AsLong(PyList_GET_ITEM(processes, i));
        }
    }
    if (PyErr_Occurred()) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

PyTypeObject MemoryTableType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.MemoryTable",
    .tp_doc = "The addresses of the memories that a program uses, by number.",
    .tp_basicsize = sizeof(MemoryTableObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = MemoryTable_new,
    .tp_dealloc = MemoryTable_dealloc,
};

static void Program_dealloc(PyObject *self) {
    ProgramObject *program = (ProgramObject *)self;
    PyMem_Free(program->instructions);
    PyMem_Free(program->limits);
    Py_XDECREF(program->reducer);
    Py_XDECREF(program->divider);
    Py_TYPE(self)->tp_free(self);
}

// Copies the words of a buffer of 64-bit integers; sets `*words` to their number.
static void *copy_words(PyObject *given, int64_t *words) {
    Py_buffer view;
    if (PyObject_GetBuffer(given, &view, PyBUF_C_CONTIGUOUS)) {
        return NULL;
    }
    void *copy = view.itemsize == 8 ? PyMem_Malloc(view.len ? (size_t)view.len : 1) : NULL;
    if (copy) {
        memcpy(copy, view.buf, (size_t)view.len);
        *words = view.len / 8;
    } else {
        PyErr_SetString(PyExc_ValueError, "instructions and limits are 64-bit integers");
    }
    PyBuffer_Release(&view);
    return copy;
}

static PyObject *Program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"instructions", "limits", "reducer", "divider", "tile_bytes", "bounce_offset",
                            "requests", "ranks", NULL};
    PyObject *instructions, *limits, *reducer = Py_None, *divider = Py_None;
    long long tile_bytes = 1, bounce_offset = -1, requests = 0, ranks = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|OOLLLL", names, &instructions, &limits, &reducer, &divider,
                                     &tile_bytes, &bounce_offset, &requests, &ranks)) {
        return NULL;
    }
    if ((reducer != Py_None && !has_type(reducer, &ReducerType, "reducer")) ||
        (divider != Py_None && !has_type(divider, &ReducerType, "divider"))) {
        return NULL;
    }
    ProgramObject *self = (ProgramObject *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    int64_t words = 0, memories = 0, at = 0, fields = sizeof(Instruction) / 8;
    self->instructions = copy_words(instructions, &words);
    self->limits = self->instructions ? copy_words(limits, &memories) : NULL;
    self->reducer = reducer == Py_None ? NULL : (ReducerObject *)Py_NewRef(reducer);
    self->divider = divider == Py_None ? NULL : (ReducerObject *)Py_NewRef(divider);
    if (!self->limits) {
        Py_DECREF(self);
        return NULL;
    }
    self->program = (Instructions){self->instructions, words / fields, self->limits, memories, tile_bytes,
                                   bounce_offset, self->reducer ? &self->reducer->reducer : NULL,
                                   self->divider ? &self->divider->reducer : NULL, requests, ranks};
    const char *problem = words % fields ? "the last one is not complete" : NULL;
    problem = problem ? problem : check_instructions(&self->program, &at);
    if (problem) {
        PyErr_Format(PyExc_ValueError, "instruction %lld cannot be executed: %s", (long long)at, problem);
        Py_DECREF(self);
        return NULL;
    }
    self->releases_gil = self->limits[INPUT] + self->limits[OUTPUT] >= LEAST_BYTES_WITHOUT_GIL;
    return (PyObject *)self;
}

// Lets signal handlers run between parts of a long message.
int handle_signals(void) {
    PyGILState_STATE state = PyGILState_Ensure();
    int result = PyErr_CheckSignals();
    PyGILState_Release(state);
    return result;
}

void set_remote_error(const Report *report) {
    PyObject *kind = report->error == ESRCH ? PyExc_ProcessLookupError : PyExc_OSError;
    PyErr_Format(kind, "memory %lld of another process could not be accessed (%s)",
                 (long long)report->failed_memory, report->error ? strerror(report->error) : "it is shorter");
}

int64_t run_program(ProgramObject *program, const MemoryTableObject *table, char *input, char *output, int64_t at) {
    Memories memories = {table->addresses, table->processes, input, output};
    Report report = {.poll = handle_signals};
    int64_t next = 0;
    Outcome outcome;
    if (program->releases_gil) {
        Py_BEGIN_ALLOW_THREADS
        outcome = execute(&program->program, &memories, at, &next, &report);
        Py_END_ALLOW_THREADS
    } else {
        outcome = execute(&program->program, &memories, at, &next, &report);
    }
    if (outcome == REMOTE_FAILED) {
        set_remote_error(&report);
    }
    return outcome == EXECUTED ? next : -1;
}

// Executes instructions from number `at` to the end, and waits for the ranks at each fence.
int run_to_end(ProgramObject *program, NodeBarrierObject *barrier, const MemoryTableObject *table, char *input,
               char *output, int64_t at) {
    while (at < program->program.count) {
        at = run_program(program, table, input, output, at);
        if (at < 0) {
            return -1;
        }
        if (at++ < program->program.count) {
            arrive(&barrier->base.counter);
            if (wait_for_ranks(barrier)) {
                return -1;
            }
        }
    }
    return 0;
}

// Whether a table has the memories of a program.
static bool has_memories(const ProgramObject *program, PyObject *table) {
    if (!has_type(table, &MemoryTableType, "memories")) {
        return false;
    }
    const MemoryTableObject *memories = (MemoryTableObject *)table;
    if (program->program.ranks || memories->count != program->program.memories || (memories->processes && program->program.bounce_offset < 0)) {
        PyErr_SetString(PyExc_ValueError, "the memories are not those of the program");
        return false;
    }
    return true;
}

static PyObject *Program_run(PyObject *self, PyObject *args) {
    PyObject *barrier, *table;
    unsigned long long input, output;
    long long at;
    if (!PyArg_ParseTuple(args, "O!OKKL:run", &NodeBarrierType, &barrier, &table, &input, &output, &at) ||
        !has_memories((ProgramObject *)self, table)) {
        return NULL;
    }
    if (at < 0) {
        return PyErr_Format(PyExc_ValueError, "there is no instruction %lld", at);
    }
    int failed = run_to_end((ProgramObject *)self, (NodeBarrierObject *)barrier, (MemoryTableObject *)table,
                            (char *)(uintptr_t)input, (char *)(uintptr_t)output, at);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *Program_execute(PyObject *self, PyObject *args) {
    PyObject *table;
    unsigned long long input, output;
    long long at = 0;
    if (!PyArg_ParseTuple(args, "OKKL:execute", &table, &input, &output, &at) ||
        !has_memories((ProgramObject *)self, table)) {
        return NULL;
    }
    if (at < 0) {
        return PyErr_Format(PyExc_ValueError, "there is no instruction %lld", at);
    }
    int64_t next = run_program((ProgramObject *)self, (MemoryTableObject *)table, (char *)(uintptr_t)input,
                               (char *)(uintptr_t)output, at);
    return next < 0 ? NULL : PyLong_FromLongLong(next);
}

static Py_ssize_t Program_length(PyObject *self) { return (Py_ssize_t)((ProgramObject *)self)->program.count; }

static PyMethodDef Program_methods[] = {
    {"execute", Program_execute, METH_VARARGS,
     "Execute instructions from number `at` to the next fence, and return the number of the fence, or the length."},
    {"run", Program_run, METH_VARARGS,
     "Execute instructions from number `at` to the end, and wait for the node's ranks at each fence."},
    {NULL, NULL, 0, NULL},
};

static PySequenceMethods Program_sequence = {.sq_length = Program_length};

PyTypeObject ProgramType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.Program",
    .tp_doc = "The checked instructions of one rank; the stub describes the arguments.",
    .tp_basicsize = sizeof(ProgramObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = Program_new,
    .tp_dealloc = Program_dealloc,
    .tp_methods = Program_methods,
    .tp_as_sequence = &Program_sequence,
};
