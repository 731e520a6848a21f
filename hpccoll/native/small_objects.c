// SmallObjects: writes small Python objects into slots of bytes, and reads them. A slot has a header of HEADER_BYTES,
// then the object's bytes. hpccoll/mpi4py/objects.py writes and reads all other objects, in the same format.
#include "objects.h"

// These are equal to the constants of hpccoll/mpi4py/objects.py and object_slots.py.
enum { HEADER_BYTES = 64, NBYTES_AT = 8, MARK_AT = 63 };  // of a header; its first byte is the kind
enum { FLOAT = 3, INTEGER = 4, SMALL_PICKLE = 6 };     // kinds of objects
enum { MOST_PARTS = 64, MOST_DEPTH = 8, MOST_TEXT = 192 };  // Python writes larger objects

typedef struct {
    PyObject_HEAD
    Py_ssize_t slot_bytes, most_bytes;
    PyObject *pickle, *dumps, *loads;  // an object with the methods `dumps` and `loads`, and their names
} SmallObjectsObject;

static PyObject *SmallObjects_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"slot_bytes", "most_bytes", "pickle", NULL};
    Py_ssize_t slot_bytes, most_bytes;
    PyObject *pickle;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "nnO", names, &slot_bytes, &most_bytes, &pickle)) {
        return NULL;
    }
    if (most_bytes < 8 || slot_bytes < HEADER_BYTES || most_bytes > slot_bytes - HEADER_BYTES) {
        PyErr_SetString(PyExc_ValueError, "a slot must have room for a header and the largest object");
        return NULL;
    }
    SmallObjectsObject *self = (SmallObjectsObject *)type->tp_alloc(type, 0);
    if (self) {
        self->slot_bytes = slot_bytes;
        self->most_bytes = most_bytes;
        self->pickle = Py_NewRef(pickle);
        self->dumps = PyUnicode_InternFromString("dumps");
        self->loads = PyUnicode_InternFromString("loads");
    }
    return (PyObject *)self;
}

static void SmallObjects_dealloc(PyObject *self) {
    SmallObjectsObject *small = (SmallObjectsObject *)self;
    Py_XDECREF(small->pickle);
    Py_XDECREF(small->dumps);
    Py_XDECREF(small->loads);
    Py_TYPE(self)->tp_free(self);
}

// Whether an object consists of few numbers (also bool and None) and short strings, in tuples, lists and dicts; `parts`
// counts them.
static bool is_small(PyObject *object, int depth, int *parts) {
    if (++*parts > MOST_PARTS || depth > MOST_DEPTH) {
        return false;
    }
    if (PyUnicode_CheckExact(object)) {
        return PyUnicode_GET_LENGTH(object) <= MOST_TEXT;
    }
    if (PyBytes_CheckExact(object)) {
        return PyBytes_GET_SIZE(object) <= MOST_TEXT;
    }
    if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
        bool small = true;
        for (Py_ssize_t i = 0; small && i < PySequence_Fast_GET_SIZE(object); i++) {
            small = is_small(PySequence_Fast_GET_ITEM(object, i), depth + 1, parts);
        }
        return small;
    }
    if (PyDict_CheckExact(object)) {
        PyObject *key, *value;
        bool small = true;
        for (Py_ssize_t at = 0; small && PyDict_Next(object, &at, &key, &value);) {
            small = is_small(key, depth + 1, parts) && is_small(value, depth + 1, parts);
        }
        return small;
    }
    return object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) || PyFloat_CheckExact(object) ||
           PyComplex_CheckExact(object);
}

static void write_slot(char *slot, int kind, const void *data, int64_t nbytes) {
    memset(slot, 0, HEADER_BYTES);
    slot[0] = (char)kind;
    memcpy(slot + NBYTES_AT, &nbytes, sizeof nbytes);
    memcpy(slot + HEADER_BYTES, data, (size_t)nbytes);
}

// Pickles a small object into a slot; returns 1, 0 if it does not fit, or -1 with an exception.
static int write_pickle(const SmallObjectsObject *small, char *slot, PyObject *object) {
    PyObject *pickled = PyObject_CallMethodOneArg(small->pickle, small->dumps, object);
    if (!pickled) {
        return -1;
    }
    bool fits = PyBytes_CheckExact(pickled) && PyBytes_GET_SIZE(pickled) <= small->most_bytes;
    if (fits) {
        write_slot(slot, SMALL_PICKLE, PyBytes_AS_STRING(pickled), PyBytes_GET_SIZE(pickled));
    }
    Py_DECREF(pickled);
    return fits;
}

// Writes an object into a slot; returns 1, 0 if Python has to write the object, or -1 with an exception.
static int write_object(const SmallObjectsObject *small, char *slot, PyObject *object) {
    if (PyFloat_CheckExact(object)) {
        double value = PyFloat_AS_DOUBLE(object);
        write_slot(slot, FLOAT, &value, sizeof value);
        return 1;
    }
    if (PyLong_CheckExact(object)) {
        int overflow;
        int64_t value = PyLong_AsLongLongAndOverflow(object, &overflow);
        if (!overflow) {
            write_slot(slot, INTEGER, &value, sizeof value);
            return 1;
        }
    }
    int parts = 0;
    return is_small(object, 0, &parts) ? write_pickle(small, slot, object) : 0;
}

// Returns the slot at `offset` of a buffer, and a view that the caller must release; NULL with an exception.
static char *get_slot(const SmallObjectsObject *small, PyObject *buffer, Py_ssize_t offset, int flags, Py_buffer *view) {
    if (PyObject_GetBuffer(buffer, view, flags)) {
        return NULL;
    }
    if (offset < 0 || offset > view->len - small->slot_bytes) {
        PyBuffer_Release(view);
        PyErr_SetString(PyExc_ValueError, "the slot is outside of the memory");
        return NULL;
    }
    return (char *)view->buf + offset;
}

static PyObject *SmallObjects_write(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer view;
    Py_ssize_t offset = nargs == 3 ? PyLong_AsSsize_t(args[1]) : -1;
    char *slot = PyErr_Occurred() || nargs != 3
                     ? NULL
                     : get_slot((SmallObjectsObject *)self, args[0], offset, PyBUF_WRITABLE, &view);
    if (!slot) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "write takes a buffer, an offset and an object");
    }
    int written = write_object((SmallObjectsObject *)self, slot, args[2]);
    PyBuffer_Release(&view);
    return written < 0 ? NULL : PyBool_FromLong(written);
}

static PyObject *SmallObjects_write_all(PyObject *self, PyObject *args) {
    const SmallObjectsObject *small = (SmallObjectsObject *)self;
    Py_buffer view;
    PyObject *buffer, *items;
    if (!PyArg_ParseTuple(args, "OO:write_all", &buffer, &items)) {
        return NULL;
    }
    char *slots = get_slot(small, buffer, 0, PyBUF_WRITABLE, &view);
    if (!slots) {
        return NULL;
    }
    Py_ssize_t count = view.len / small->slot_bytes;
    PyObject *list = PySequence_Fast(items, "the items are no sequence");
    int written = list ? PySequence_Fast_GET_SIZE(list) == count : -1;
    for (Py_ssize_t i = 0; written == 1 && i < count; i++) {
        if (i >= PySequence_Fast_GET_SIZE(list)) {  // pickling an item has made the list shorter
            written = 0;
            break;
        }
        PyObject *item = Py_NewRef(PySequence_Fast_GET_ITEM(list, i));
        written = write_object(small, slots + i * small->slot_bytes, item);
        Py_DECREF(item);
    }
    for (Py_ssize_t i = 0; written == 1 && i < count; i++) {
        slots[i * small->slot_bytes + MARK_AT] = 1;
    }
    Py_XDECREF(list);
    PyBuffer_Release(&view);
    return written < 0 ? NULL : PyBool_FromLong(written);
}

// Returns the object in a slot, NotImplemented if Python has to read it, or NULL with an exception.
static PyObject *read_object(const SmallObjectsObject *small, const char *slot) {
    int64_t nbytes, integer;
    double number;
    memcpy(&nbytes, slot + NBYTES_AT, sizeof nbytes);
    switch (slot[0]) {
    case FLOAT:
        memcpy(&number, slot + HEADER_BYTES, sizeof number);
        return PyFloat_FromDouble(number);
    case INTEGER:
        memcpy(&integer, slot + HEADER_BYTES, sizeof integer);
        return PyLong_FromLongLong(integer);
    case SMALL_PICKLE:
        break;
    default:
        Py_RETURN_NOTIMPLEMENTED;
    }
    if (nbytes < 0 || nbytes > small->most_bytes) {
        return PyErr_Format(PyExc_ValueError, "the slot has no object");
    }
    PyObject *pickled = PyBytes_FromStringAndSize(slot + HEADER_BYTES, (Py_ssize_t)nbytes);
    PyObject *object = pickled ? PyObject_CallMethodOneArg(small->pickle, small->loads, pickled) : NULL;
    Py_XDECREF(pickled);
    return object;
}

static PyObject *SmallObjects_read(PyObject *self, PyObject *buffer) {
    Py_buffer view;
    const char *slot = get_slot((SmallObjectsObject *)self, buffer, 0, PyBUF_SIMPLE, &view);
    if (!slot) {
        return NULL;
    }
    PyObject *object = read_object((SmallObjectsObject *)self, slot);
    PyBuffer_Release(&view);
    return object;
}

static PyObject *SmallObjects_read_all(PyObject *self, PyObject *buffer) {
    SmallObjectsObject *small = (SmallObjectsObject *)self;
    Py_buffer view;
    const char *slots = get_slot(small, buffer, 0, PyBUF_SIMPLE, &view);
    if (!slots) {
        return NULL;
    }
    Py_ssize_t count = view.len / small->slot_bytes;
    PyObject *objects = PyList_New(count);
    for (Py_ssize_t i = 0; objects && i < count; i++) {
        PyObject *object = read_object(small, slots + i * small->slot_bytes);
        if (!object || object == Py_NotImplemented) {
            Py_SETREF(objects, object);  // the exception, or NotImplemented
            break;
        }
        PyList_SET_ITEM(objects, i, object);
    }
    PyBuffer_Release(&view);
    return objects;
}

static PyObject *SmallObjects_are_all_small(PyObject *self, PyObject *buffer) {
    const SmallObjectsObject *small = (SmallObjectsObject *)self;
    Py_buffer view;
    const char *slots = get_slot(small, buffer, 0, PyBUF_SIMPLE, &view);
    if (!slots) {
        return NULL;
    }
    bool are_small = true;
    for (Py_ssize_t at = 0; at <= view.len - small->slot_bytes; at += small->slot_bytes) {
        are_small &= slots[at] == FLOAT || slots[at] == INTEGER || slots[at] == SMALL_PICKLE;
    }
    PyBuffer_Release(&view);
    return PyBool_FromLong(are_small);
}

static PyMethodDef SmallObjects_methods[] = {
    {"write", (PyCFunction)(void (*)(void))SmallObjects_write, METH_FASTCALL,
     "Write an object into the slot at an offset of a buffer; return False if the object is not small."},
    {"write_all", SmallObjects_write_all, METH_VARARGS,
     "Write a sequence of objects into all slots and mark them; return False if one is not small."},
    {"read", SmallObjects_read, METH_O, "Return the object in the first slot of a buffer; NotImplemented if not small."},
    {"read_all", SmallObjects_read_all, METH_O,
     "Return the objects in all slots of a buffer; NotImplemented if one is not small."},
    {"are_all_small", SmallObjects_are_all_small, METH_O, "Whether the objects in all slots of a buffer are small."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject SmallObjectsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.SmallObjects",
    .tp_doc = "Writes small objects into slots and reads them; the stub describes the arguments.",
    .tp_basicsize = sizeof(SmallObjectsObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = SmallObjects_new,
    .tp_dealloc = SmallObjects_dealloc,
    .tp_methods = SmallObjects_methods,
};
