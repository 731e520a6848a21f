// SharedBuffers: the memory of this process that other ranks can address (symmetric buffers, memory in files), by address.
#include "objects.h"

static void free_buffer(SharedBuffer *buffer) {
    Py_XDECREF(buffer->owner);
    Py_XDECREF(buffer->object);
    PyMem_Free((void *)buffer->bases);
    PyMem_Free(buffer);
}

static void SharedBuffers_dealloc(PyObject *self) {
    SharedBuffersObject *shared = (SharedBuffersObject *)self;
    for (Py_ssize_t i = 0; i < shared->count; i++) {
        free_buffer(shared->buffers[i]);
    }
    PyMem_Free(shared->buffers);
    Py_TYPE(self)->tp_free(self);
}

// Returns how many buffers begin at or before an address.
static Py_ssize_t count_before(const SharedBuffersObject *shared, uintptr_t address) {
    Py_ssize_t first = 0, last = shared->count;
    while (first < last) {
        Py_ssize_t middle = (first + last) / 2;
        if (shared->buffers[middle]->begin <= address) {
            first = middle + 1;
        } else {
            last = middle;
        }
    }
    return first;
}

// Returns the buffer that contains an address; NULL if none does.
static SharedBuffer *find_buffer(const SharedBuffersObject *shared, uintptr_t address) {
    Py_ssize_t at = count_before(shared, address) - 1;
    return at >= 0 && address < shared->buffers[at]->end ? shared->buffers[at] : NULL;
}

MemoryKind locate_memory(const SharedBuffersObject *shared, const PyObject *owner, const char *memory, int64_t nbytes,
                         Location *location) {
    uintptr_t address = (uintptr_t)memory;
    *location = (Location){address, NULL};
    const SharedBuffer *buffer = shared->count && nbytes ? find_buffer(shared, address) : NULL;
    if (!buffer) {
        return PRIVATE;
    }
    if (buffer->owner && (buffer->is_freed || buffer->owner != owner)) {
        return UNUSABLE;
    }
    if (address + (uintptr_t)nbytes > buffer->end) {
        return PRIVATE;
    }
    *location = (Location){buffer->location + (address - buffer->begin), buffer->bases};
    return buffer->owner ? SYMMETRIC : IN_FILE;
}

int locate_arrays(const SharedBuffersObject *shared, const PyObject *owner, const Instructions *program, char *input,
                  char *output, Location locations[2]) {
    MemoryKind kinds[] = {locate_memory(shared, owner, input, program->limits[INPUT], &locations[0]),
                          locate_memory(shared, owner, output, program->limits[OUTPUT], &locations[1])};
    if (kinds[0] != UNUSABLE && kinds[1] != UNUSABLE) {
        return 0;
    }
    PyErr_SetString(PyExc_ValueError, "a symmetric buffer was freed, or belongs to another communicator");
    return -1;
}

// Returns the addresses of a list, which the caller frees; NULL for an empty list, or with an exception.
static char **copy_addresses(PyObject *list) {
    Py_ssize_t count = PyList_GET_SIZE(list);
    char **copy = count ? PyMem_Calloc((size_t)count, sizeof *copy) : NULL;
    for (Py_ssize_t i = 0; copy && i < count; i++) {
        copy[i] = (char *)(uintptr_t)PyLong_AsUnsignedLongLong(PyList_GET_ITEM(list, i));
    }
    if (PyErr_Occurred() || (count && !copy)) {
        PyMem_Free((void *)copy);
        return PyErr_Occurred() ? NULL : (char **)PyErr_NoMemory();
    }
    return copy;
}

// Makes room for one more buffer; returns -1 with an exception.
static int make_room(SharedBuffersObject *shared) {
    if (shared->count < shared->room) {
        return 0;
    }
    Py_ssize_t room = 2 * shared->room + 8;
    SharedBuffer **buffers = PyMem_Realloc(shared->buffers, (size_t)room * sizeof *buffers);
    if (!buffers) {
        PyErr_NoMemory();
        return -1;
    }
    shared->buffers = buffers;
    shared->room = room;
    return 0;
}

static PyObject *SharedBuffers_add(PyObject *self, PyObject *args) {
    SharedBuffersObject *shared = (SharedBuffersObject *)self;
    unsigned long long address, nbytes, location;
    PyObject *owner, *bases, *object;
    if (!PyArg_ParseTuple(args, "KKKOO!O:add", &address, &nbytes, &location, &owner, &PyList_Type, &bases, &object) ||
        make_room(shared)) {
        return NULL;
    }
    SharedBuffer *buffer = PyMem_Calloc(1, sizeof *buffer);
    char **copy = buffer ? copy_addresses(bases) : NULL;
    if (!buffer || PyErr_Occurred()) {
        PyMem_Free(buffer);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    *buffer = (SharedBuffer){.begin = address, .end = address + nbytes, .location = location,
                             .owner = owner == Py_None ? NULL : Py_NewRef(owner), .object = Py_NewRef(object),
                             .bases = copy};
    Py_ssize_t at = count_before(shared, address);
    memmove(&shared->buffers[at + 1], &shared->buffers[at], (size_t)(shared->count - at) * sizeof *shared->buffers);
    shared->buffers[at] = buffer;
    shared->count++;
    Py_RETURN_NONE;
}

// Returns the index of the buffer that begins at an address; -1 with an exception if none does.
static Py_ssize_t find_beginning(const SharedBuffersObject *shared, PyObject *given) {
    unsigned long long address = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred()) {
        return -1;
    }
    Py_ssize_t at = count_before(shared, address) - 1;
    if (at >= 0 && shared->buffers[at]->begin == address) {
        return at;
    }
    PyErr_SetString(PyExc_KeyError, "no buffer begins at this address");
    return -1;
}

static PyObject *SharedBuffers_remove(PyObject *self, PyObject *address) {
    SharedBuffersObject *shared = (SharedBuffersObject *)self;
    Py_ssize_t at = find_beginning(shared, address);
    if (at < 0) {
        return NULL;
    }
    SharedBuffer *buffer = shared->buffers[at];
    shared->count--;
    memmove(&shared->buffers[at], &shared->buffers[at + 1], (size_t)(shared->count - at) * sizeof *shared->buffers);
    PyObject *object = Py_NewRef(buffer->object);
    free_buffer(buffer);
    return object;
}

static PyObject *SharedBuffers_free(PyObject *self, PyObject *address) {
    Py_ssize_t at = find_beginning((SharedBuffersObject *)self, address);
    if (at < 0) {
        return NULL;
    }
    ((SharedBuffersObject *)self)->buffers[at]->is_freed = true;
    Py_RETURN_NONE;
}

static PyObject *SharedBuffers_find(PyObject *self, PyObject *address) {
    unsigned long long value = PyLong_AsUnsignedLongLong(address);
    if (PyErr_Occurred()) {
        return NULL;
    }
    const SharedBuffer *buffer = find_buffer((SharedBuffersObject *)self, value);
    return Py_NewRef(buffer ? buffer->object : Py_None);
}

static Py_ssize_t SharedBuffers_length(PyObject *self) { return ((SharedBuffersObject *)self)->count; }

static PyMethodDef SharedBuffers_methods[] = {
    {"add", SharedBuffers_add, METH_VARARGS, "Add a buffer; the stub describes the arguments."},
    {"remove", SharedBuffers_remove, METH_O, "Remove the buffer that begins at an address, and return its object."},
    {"free", SharedBuffers_free, METH_O, "Refuse later runs on the buffer that begins at an address."},
    {"find", SharedBuffers_find, METH_O, "Return the object of the buffer that contains an address, or None."},
    {NULL, NULL, 0, NULL},
};

static PySequenceMethods SharedBuffers_sequence = {.sq_length = SharedBuffers_length};

PyTypeObject SharedBuffersType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.SharedBuffers",
    .tp_doc = "The memory of this process that other ranks can address, by address.",
    .tp_basicsize = sizeof(SharedBuffersObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = SharedBuffers_dealloc,
    .tp_methods = SharedBuffers_methods,
    .tp_as_sequence = &SharedBuffers_sequence,
};
