// HostCall: the base of collectives of one kind in host memory, called with the addresses of input and output.
#include "objects.h"

PyObject *call_host(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names) {
    HostCallObject *call = (HostCallObject *)self;
    if (PyVectorcall_NARGS(nargsf) != 2 || names) {
        PyErr_SetString(PyExc_TypeError, "a call takes the addresses of input and output");
        return NULL;
    }
    char *addresses[2];
    for (int i = 0; i < 2; i++) {
        addresses[i] = (char *)(uintptr_t)PyLong_AsUnsignedLongLong(args[i]);
        if (PyErr_Occurred()) {
            return NULL;
        }
    }
    Py_INCREF(self);
    int failed = call->run(call, addresses[0], addresses[1]);
    Py_DECREF(self);
    return failed ? NULL : Py_NewRef(Py_None);
}

PyTypeObject HostCallType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.HostCall",
    .tp_doc = "A collective of one kind in host memory; a call with the addresses of input and output blocks to its end.",
    .tp_basicsize = sizeof(HostCallObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(HostCallObject, vectorcall),
};
