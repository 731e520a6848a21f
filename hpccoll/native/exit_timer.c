// exit_after: ends the process after a time, even if a thread holds the GIL, as mpi4py does during MPI_Abort.
#include "objects.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

static struct timespec remaining;
static int exit_status;

static void *wait_and_exit(void *unused) {
    (void)unused;
    while (nanosleep(&remaining, &remaining) && errno == EINTR) {
    }
    _exit(exit_status);
}

static PyObject *exit_after(PyObject *module, PyObject *args) {
    (void)module;
    static bool is_started;  // guarded by the GIL
    double seconds;
    int status;
    if (!PyArg_ParseTuple(args, "di:exit_after", &seconds, &status)) {
        return NULL;
    }
    if (is_started) {
        Py_RETURN_NONE;
    }
    remaining.tv_sec = (time_t)seconds;
    remaining.tv_nsec = (long)((seconds - (double)remaining.tv_sec) * 1e9);
    exit_status = status;
    pthread_t thread;
    sigset_t all, previous;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous);  // all signals stay with Python's main thread
    is_started = !pthread_create(&thread, NULL, wait_and_exit, NULL);
    pthread_sigmask(SIG_SETMASK, &previous, NULL);
    return is_started ? Py_NewRef(Py_None) : PyErr_Format(PyExc_RuntimeError, "no thread could be started");
}

PyMethodDef exit_functions[] = {
    {"exit_after", exit_after, METH_VARARGS, "End the process with a status after a time in seconds; only the first call counts."},
    {NULL, NULL, 0, NULL},
};
