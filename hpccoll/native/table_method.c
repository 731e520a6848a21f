// TableMethod: a method that looks a call up in the CallTable of its object, and calls a Python function only for calls
// that the table cannot carry out.
//
// A method in Python takes 0.5 us to pass its arguments to a table, as long as a short collective between two cores.
#include "objects.h"

enum { MOST_PARAMETERS = 8 };

// An argument of `CallTable.run`. NONE and FALSE are for parameters that must have this value in a call by the table.
typedef enum { X = 1, OUT, OP, ROOT, ALGORITHM, TABLE_ARGUMENTS = 7, NONE, FALSE } Role;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function, *dict;
    PyObject *names;                     // of the parameters after `self`, in the function's order
    PyObject *defaults;                  // their default values; `missing` for a parameter without one
    PyObject *missing, *table_name;
    PyObject *fixed;                     // the arguments of `CallTable.run` for which there is no parameter
    Py_ssize_t positional;               // the number of parameters that may be given without their names
    Role roles[MOST_PARAMETERS];
} TableMethodObject;

static int TableMethod_traverse(PyObject *self, visitproc visit, void *arg) {
    TableMethodObject *method = (TableMethodObject *)self;
    Py_VISIT(method->function);
    Py_VISIT(method->dict);
    Py_VISIT(method->defaults);
    Py_VISIT(method->fixed);
    return 0;
}

static int TableMethod_clear(PyObject *self) {
    TableMethodObject *method = (TableMethodObject *)self;
    Py_CLEAR(method->function);
    Py_CLEAR(method->dict);
    Py_CLEAR(method->names);
    Py_CLEAR(method->defaults);
    Py_CLEAR(method->missing);
    Py_CLEAR(method->table_name);
    Py_CLEAR(method->fixed);
    return 0;
}

static void TableMethod_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    TableMethod_clear(self);
    Py_TYPE(self)->tp_free(self);
}

// Puts the values of a call's parameters into `values`; returns false if only Python's own check of arguments can tell
// what is wrong with them.
static bool read_parameters(const TableMethodObject *method, PyObject *const *args, Py_ssize_t positional,
                            PyObject *names, PyObject **values) {
    Py_ssize_t count = PyTuple_GET_SIZE(method->names), named = names ? PyTuple_GET_SIZE(names) : 0;
    if (positional > method->positional) {
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        values[i] = i < positional ? args[i] : PyTuple_GET_ITEM(method->defaults, i);
    }
    for (Py_ssize_t given = 0; given < named; given++) {
        Py_ssize_t i = positional;
        while (i < count && PyTuple_GET_ITEM(method->names, i) != PyTuple_GET_ITEM(names, given)) {
            i++;
        }
        if (i == count) {
            return false;
        }
        values[i] = args[positional + given];
    }
    return true;
}

// Puts the arguments of `CallTable.run` into `arguments`; returns false for a call that needs the Python function.
static bool fill_arguments(const TableMethodObject *method, PyObject *const *values, PyObject **arguments) {
    for (int i = 0; i < TABLE_ARGUMENTS; i++) {
        arguments[i] = PyTuple_GET_ITEM(method->fixed, i);
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(method->names); i++) {
        Role role = method->roles[i];
        if (values[i] == method->missing || (role == NONE && values[i] != Py_None) ||
            (role == FALSE && values[i] != Py_False)) {
            return false;
        }
        if (role < TABLE_ARGUMENTS) {
            arguments[role] = values[i];
        }
    }
    return PyUnicode_CheckExact(arguments[OP]);
}

static PyObject *call_method(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names) {
    TableMethodObject *method = (TableMethodObject *)self;
    Py_ssize_t positional = PyVectorcall_NARGS(nargsf) - 1;
    PyObject *values[MOST_PARAMETERS], *arguments[TABLE_ARGUMENTS];
    if (positional >= 0 && read_parameters(method, args + 1, positional, names, values) &&
        fill_arguments(method, values, arguments)) {
        // The table is an attribute of the object. This look-up does not call a __getattr__ of the class.
        PyObject *table = PyObject_GenericGetAttr(args[0], method->table_name), *result = Py_NewRef(Py_NotImplemented);
        if (!table) {
            PyErr_Clear();  // the Python function raises the error for an object without a table
        } else if (Py_TYPE(table) == &CallTableType) {
            Py_SETREF(result, run_in_table(table, arguments, TABLE_ARGUMENTS));
        }
        Py_XDECREF(table);
        if (result != Py_NotImplemented) {
            return result;
        }
        Py_DECREF(result);
    }
    return PyObject_Vectorcall(method->function, args, nargsf & ~PY_VECTORCALL_ARGUMENTS_OFFSET, names);
}

// Returns the role of a parameter; 0 with an exception for another word.
static Role parse_role(PyObject *word) {
    static const struct {
        const char *word;
        Role role;
    } roles[] = {{"x", X}, {"out", OUT}, {"op", OP}, {"root", ROOT}, {"algorithm", ALGORITHM}, {"none", NONE}, {"false", FALSE}};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (PyUnicode_Check(word) && !PyUnicode_CompareWithASCIIString(word, roles[i].word)) {
            return roles[i].role;
        }
    }
    PyErr_Format(PyExc_ValueError, "a parameter has no role %R", word);
    return 0;
}

static PyObject *TableMethod_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"function", "table_name", "names", "roles", "defaults", "missing", "positional", "fixed", NULL};
    PyObject *function, *table_name, *names, *roles, *defaults, *missing, *fixed;
    Py_ssize_t positional;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OUO!O!O!OnO!", keywords, &function, &table_name, &PyTuple_Type, &names,
                                     &PyTuple_Type, &roles, &PyTuple_Type, &defaults, &missing, &positional,
                                     &PyTuple_Type, &fixed)) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(names);
    if (count > MOST_PARAMETERS || PyTuple_GET_SIZE(roles) != count || PyTuple_GET_SIZE(defaults) != count) {
        PyErr_SetString(PyExc_ValueError, "each of up to eight parameters has a name, a role and a default value");
        return NULL;
    }
    if (positional < 0 || positional > count || PyTuple_GET_SIZE(fixed) != TABLE_ARGUMENTS) {
        PyErr_SetString(PyExc_ValueError, "pass a fixed value for each argument of the table, and as many positional "
                                          "parameters as there are or fewer");
        return NULL;
    }
    TableMethodObject *self = (TableMethodObject *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->vectorcall = call_method;
    self->function = Py_NewRef(function);
    self->names = Py_NewRef(names);
    self->defaults = Py_NewRef(defaults);
    self->missing = Py_NewRef(missing);
    self->table_name = Py_NewRef(table_name);
    self->fixed = Py_NewRef(fixed);
    self->positional = positional;
    for (Py_ssize_t i = 0; i < count; i++) {
        self->roles[i] = parse_role(PyTuple_GET_ITEM(roles, i));
        if (!self->roles[i]) {
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static PyObject *TableMethod_get(PyObject *self, PyObject *object, PyObject *type) {
    (void)type;
    return object && object != Py_None ? PyMethod_New(self, object) : Py_NewRef(self);
}

static PyGetSetDef TableMethod_properties[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject TableMethodType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.TableMethod",
    .tp_basicsize = sizeof(TableMethodObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(TableMethodObject, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_dictoffset = offsetof(TableMethodObject, dict),
    .tp_new = TableMethod_new,
    .tp_dealloc = TableMethod_dealloc,
    .tp_traverse = TableMethod_traverse,
    .tp_clear = TableMethod_clear,
    .tp_descr_get = TableMethod_get,
    .tp_getset = TableMethod_properties,
};
