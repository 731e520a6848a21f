// QueuedRun: the base of runs in flight that use the same barrier and slots, and therefore follow each other. Calls of
// hpccoll and the progress thread advance a run; a run that needs Python waits for a call.
#include "objects.h"

#include <sched.h>
#include <time.h>

static const int64_t SPIN_NS = 50000, LIMIT_NS = 400000, BUSY_LIMIT_NS = 10000;
static const int64_t FIRST_SLEEP_NS = 10000;

void finish_run(QueuedRunObject *run, bool is_broken) {
    run->is_broken = is_broken;
    // release: the next run, and Python, see the barrier and the result as this run has left them
    atomic_store_explicit(&run->task.done, true, memory_order_release);
}

// Whether the previous run is done, and has left the barrier as the other ranks expect it.
static bool may_begin(const QueuedRunObject *run) {
    QueuedRunObject *previous = run->previous;
    return !previous || (is_done(&previous->task) && !(previous->is_broken && run->barrier->base.counter.ranks > 1));
}

// Whether the run has begun; begins it if the previous one is done and no Python has to be called before.
static bool has_begun(QueuedRunObject *run) {
    // relaxed: only the thread that has claimed the run stores it, and no data depends on it in other threads
    bool begun = atomic_load_explicit(&run->has_begun, memory_order_relaxed);
    if (!begun && !run->before && may_begin(run)) {
        begun = true;
        atomic_store_explicit(&run->has_begun, true, memory_order_relaxed);
    }
    return begun;
}

// Advances a run in the progress thread.
static bool advance_task(Task *task) {
    QueuedRunObject *run = (QueuedRunObject *)((char *)task - offsetof(QueuedRunObject, task));
    return has_begun(run) && run->step(run);
}

int begin_queued_run(QueuedRunObject *run, NodeBarrierObject *barrier, PyObject *previous, PyObject *before, PyObject *keep) {
    if (previous != Py_None && !has_type(previous, &QueuedRunType, "previous")) {
        return -1;
    }
    run->previous = previous == Py_None ? NULL : (QueuedRunObject *)Py_NewRef(previous);
    run->before = before == Py_None ? NULL : Py_NewRef(before);
    run->keep = Py_NewRef(keep);
    run->barrier = (NodeBarrierObject *)Py_NewRef((PyObject *)barrier);
    run->report.until_poll = BYTES_PER_POLL;
    run->task.advance = advance_task;
    return 0;
}

static void take_from_thread(QueuedRunObject *run) {
    if (run->is_added) {
        remove_task(&run->task);
        run->is_added = false;
    }
}

static void QueuedRun_dealloc(PyObject *self) {
    QueuedRunObject *run = (QueuedRunObject *)self;
    take_from_thread(run);
    Py_XDECREF(run->previous);
    Py_XDECREF(run->before);
    Py_XDECREF(run->barrier);
    Py_XDECREF(run->keep);
    Py_TYPE(self)->tp_free(self);
}

// Calls the function `before` of a run that has not begun, once the previous run is done; returns -1 with an exception.
static int call_before(QueuedRunObject *run) {
    if (!run->before || !may_begin(run)) {
        return 0;
    }
    PyObject *before = run->before, *result = PyObject_CallNoArgs(before);
    run->before = NULL;
    Py_DECREF(before);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

// Advances a run that this thread has claimed; returns -1 with an exception.
static int advance_claimed(QueuedRunObject *run) {
    if (call_before(run)) {
        return -1;
    }
    int prepared = 0;
    do {
        if (!has_begun(run)) {
            return 0;
        }
        run->report.poll = handle_signals;
        if (run->releases_gil) {
            Py_BEGIN_ALLOW_THREADS
            run->step(run);
            Py_END_ALLOW_THREADS
        } else {
            run->step(run);
        }
        run->report.poll = NULL;  // the progress thread handles no signals
        prepared = is_done(&run->task) ? 0 : run->prepare(run);
    } while (prepared > 0);
    return prepared;
}

// Returns the end of a run to Python: true, or the run's error.
static PyObject *end_run(QueuedRunObject *run) {
    take_from_thread(run);
    Py_CLEAR(run->previous);
    if (PyErr_Occurred() || run->raise_failure(run)) {
        return NULL;
    }
    Py_CLEAR(run->keep);
    Py_RETURN_TRUE;
}

static PyObject *QueuedRun_advance(PyObject *self, PyObject *unused) {
    (void)unused;
    QueuedRunObject *run = (QueuedRunObject *)self;
    note_advance();
    if (!is_done(&run->task) && claim_task(&run->task)) {
        if (!is_done(&run->task) && advance_claimed(run)) {
            finish_run(run, true);
        }
        release_task(&run->task);
    }
    if (is_done(&run->task)) {
        return end_run(run);
    }
    if (!run->is_added && run->is_for_thread) {
        if (add_task(&run->task)) {
            return PyErr_Format(PyExc_RuntimeError, "the progress thread could not be started");
        }
        run->is_added = true;
    }
    Py_RETURN_FALSE;
}

// Advances a run for up to `limit_ns`; between two tries it spins, then yields the core, then sleeps for at most
// `sleep_ns`. `moved` is the time of the run's last step.
static void advance_for(QueuedRunObject *run, int64_t *moved, int64_t limit_ns, int64_t sleep_ns) {
    int64_t spin_ns = run->barrier->oversubscribed ? 0 : SPIN_NS, begin = read_clock_ns();
    int64_t yield_ns = choose_yield_ns(run->barrier->oversubscribed);
    while (!is_done(&run->task)) {
        bool did = has_begun(run) && run->step(run);
        int64_t now = read_clock_ns();
        if (now - begin >= limit_ns) {
            return;
        }
        *moved = did ? now : *moved;
        if (did || now - *moved < spin_ns) {
            continue;
        }
        if (now - *moved < yield_ns || !sleep_ns) {
            sched_yield();
        } else {
            struct timespec pause = {0, sleep_ns};
            nanosleep(&pause, NULL);
            return;
        }
    }
}

// Advances a run to its end, and lets other threads, signal handlers and operations in flight go on. Returns -1 with an
// exception.
static int run_blocking(QueuedRunObject *run) {
    NodeBarrierObject *barrier = run->barrier;
    bool is_busy = PyDict_GET_SIZE(barrier->in_flight) || PyDict_GET_SIZE(barrier->transfers);
    int64_t sleep_ns = FIRST_SLEEP_NS, moved = read_clock_ns();
    while (!is_done(&run->task)) {
        if (call_before(run)) {
            return -1;
        }
        int64_t begin = read_clock_ns();
        Py_BEGIN_ALLOW_THREADS
        advance_for(run, &moved, is_busy ? BUSY_LIMIT_NS : LIMIT_NS, is_busy ? 0 : sleep_ns);
        Py_END_ALLOW_THREADS
        if (is_done(&run->task)) {
            break;
        }
        sleep_ns = read_clock_ns() - begin >= LIMIT_NS ? FIRST_SLEEP_NS : 2 * sleep_ns < LIMIT_NS ? 2 * sleep_ns : LIMIT_NS;
        int busy = run->prepare(run) < 0 ? -1 : attend_in_wait(barrier->attend);
        if (busy < 0) {
            return -1;
        }
        is_busy = busy;
    }
    return 0;
}

static PyObject *QueuedRun_wait(PyObject *self, PyObject *unused) {
    (void)unused;
    QueuedRunObject *run = (QueuedRunObject *)self;
    Py_INCREF(self);
    run->report.poll = handle_signals;
    int failed = run_blocking(run);
    run->report.poll = NULL;
    if (failed) {
        finish_run(run, true);
    }
    PyObject *result = end_run(run);
    Py_DECREF(self);
    return result;
}

static PyObject *QueuedRun_has_begun(PyObject *self, void *unused) {
    (void)unused;
    // relaxed: no data depends on it
    return PyBool_FromLong(atomic_load_explicit(&((QueuedRunObject *)self)->has_begun, memory_order_relaxed));
}

static PyObject *QueuedRun_finish(PyObject *self, PyObject *unused) {
    (void)unused;
    QueuedRunObject *run = (QueuedRunObject *)self;
    take_from_thread(run);
    finish_run(run, false);
    Py_CLEAR(run->before);
    Py_RETURN_NONE;
}

static PyObject *QueuedRun_abandon(PyObject *self, PyObject *unused) {
    (void)unused;
    take_from_thread((QueuedRunObject *)self);
    Py_RETURN_NONE;
}

static PyObject *QueuedRun_is_settled(PyObject *self, PyObject *unused) {
    (void)unused;
    QueuedRunObject *run = (QueuedRunObject *)self;
    bool settled = false;
    if (claim_task(&run->task)) {
        settled = run->is_settled(run);
        release_task(&run->task);
    }
    return PyBool_FromLong(settled);
}

static PyMethodDef QueuedRun_methods[] = {
    {"advance", QueuedRun_advance, METH_NOARGS,
     "Advance without blocking, and return whether the run is done; the progress thread advances it from now on."},
    {"wait", QueuedRun_wait, METH_NOARGS, "Block until the run is done; the progress thread does not advance it."},
    {"is_settled", QueuedRun_is_settled, METH_NOARGS,
     "Whether the other ranks no longer read this rank's memory for what the run has begun; lets MPI advance."},
    {"finish", QueuedRun_finish, METH_NOARGS, "Let the next run begin after a failure."},
    {"abandon", QueuedRun_abandon, METH_NOARGS, "Take the run from the progress thread."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef QueuedRun_properties[] = {
    {"has_begun", QueuedRun_has_begun, NULL, "Whether the runs before this one are done.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject QueuedRunType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.QueuedRun",
    .tp_doc = "A run in flight in a queue of runs.",
    .tp_basicsize = sizeof(QueuedRunObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = QueuedRun_dealloc,
    .tp_methods = QueuedRun_methods,
    .tp_getset = QueuedRun_properties,
};
