// guard_revocation: keeps Open MPI from calling a null pointer when a process dies while a communicator is made.
//
// ompi_comm_revoke_local of Open MPI 5.0.11 calls mca_pml.pml_revoke_comm(comm), then comm->c_coll->coll_revoke_local.
// Until the ranks of a new communicator have agreed about it, its c_coll is null; while its collectives are selected,
// the function in the table is null. The guard takes the place of pml_revoke_comm and fills in both.
#include "objects.h"

#include <stdlib.h>

#define TABLE_BYTES 8192  // at least the size of Open MPI's table of collectives; Open MPI replaces or frees this one

typedef int (*Revoke)(void *comm, bool coll_only);

static Revoke unguarded;  // pml_revoke_comm; this and the next two are set before the guard is installed
static Py_ssize_t table_at, function_at;

static int do_nothing(void *comm) {
    (void)comm;
    return 0;
}

static int revoke_guarded(void *comm, bool coll_only) {
    char **table = (char **)((char *)comm + table_at), *none = NULL;
    if (!__atomic_load_n(table, __ATOMIC_ACQUIRE)) {
        char *empty = calloc(1, TABLE_BYTES);
        if (empty && !__atomic_compare_exchange_n(table, &none, empty, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            free(empty);  // another thread has set the table meanwhile
        }
    }
    char *filled = __atomic_load_n(table, __ATOMIC_ACQUIRE);
    if (filled) {
        void *missing = NULL;
        __atomic_compare_exchange_n((void **)(filled + function_at), &missing, (void *)do_nothing, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE);
    }
    return unguarded(comm, coll_only);
}

static PyObject *guard_revocation(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long address;
    Py_ssize_t table, function;
    if (!PyArg_ParseTuple(args, "Knn:guard_revocation", &address, &table, &function)) {
        return NULL;
    }
    Revoke *slot = (Revoke *)(uintptr_t)address;
    if (table < 0 || function < 0 || function > TABLE_BYTES - (Py_ssize_t)sizeof(void *)) {
        return PyErr_Format(PyExc_ValueError, "guard_revocation: the offsets %zd and %zd are no offsets of pointers", table, function);
    }
    if (*slot != revoke_guarded) {
        unguarded = *slot;
        table_at = table;
        function_at = function;
        __atomic_store_n(slot, revoke_guarded, __ATOMIC_RELEASE);
    }
    Py_RETURN_NONE;
}

PyMethodDef revocation_functions[] = {
    {"guard_revocation", guard_revocation, METH_VARARGS, "Keep Open MPI from calling a null pointer when a process dies."},
    {NULL, NULL, 0, NULL},
};
