// StagedRun: an asynchronous run of a staged call, which stops at each fence until the other ranks reach it. Runs of a
// node's barrier follow each other: each begins when the previous one is done.
#include "objects.h"

typedef struct StagedRun {
    PyObject_HEAD
    Task task;
    StagedCallObject *call;  // NULL if the run is carried out in Python, which calls `finish`
    struct StagedRun *previous;
    PyObject *keep;
    char *input, *output;
    int64_t at;  // the number of the fence at which the run waits
    bool has_begun, is_added, has_mismatch;
    Outcome outcome;
    Report report;
} StagedRunObject;

// Notes that a run is done; the last access of the thread that has advanced it.
static bool finish(StagedRunObject *run, Outcome outcome) {
    run->outcome = outcome;
    // release: the next run, and Python, see the barrier and the result as this run has left them
    atomic_store_explicit(&run->task.done, true, memory_order_release);
    return true;
}

static bool have_all_arrived(const ArrivalCounterObject *counter) {
    for (Py_ssize_t row = 0; row < counter->ranks; row++) {
        if (!has_reached(line_of(counter, row), counter->count)) {
            return false;
        }
    }
    return true;
}

// Executes instructions from number `at` to the next fence or the end.
static Outcome execute_part(StagedRunObject *run, bool enters, int64_t at, int64_t *next) {
    StagedCallObject *call = run->call;
    int entry = call->barrier->entry ^ enters;
    MemoryTableObject *table = call->tables[call->in_entry ? entry : call->barrier->next_slot];
    Memories memories = {table->addresses, table->processes, run->input, run->output};
    return execute(&call->program->program, &memories, at, next, &run->report);
}

// Whether a run may begin: the previous one has left the barrier as the other ranks expect it. After an exception
// inside of the previous run, they still wait for its fences.
static bool may_begin(const StagedRunObject *run) {
    StagedRunObject *previous = run->previous;
    if (!previous) {
        return true;
    }
    return is_done(&previous->task) && (!previous->outcome || run->call->barrier->counter.ranks == 1);
}

// Runs the first part and posts the entry.
static Outcome begin(StagedRunObject *run) {
    Outcome outcome = execute_part(run, true, 0, &run->at);
    if (outcome == EXECUTED) {
        post_staged(run->call);
        run->has_begun = true;
    }
    return outcome;
}

// Advances until the run waits for other ranks or is done; returns whether it did anything.
static bool advance_run(StagedRunObject *run) {
    StagedCallObject *call = run->call;
    NodeBarrierObject *barrier = call->barrier;
    bool moved = false;
    if (!run->has_begun) {
        if (!may_begin(run)) {
            return false;
        }
        Outcome outcome = begin(run);
        if (outcome) {
            return finish(run, outcome);
        }
        moved = true;
    }
    while (have_all_arrived(&barrier->counter)) {
        int alike = run->at == call->entry_fence ? compare_entries(barrier) : RANKS_AGREE;
        Outcome outcome = EXECUTED;
        moved = true;
        if (alike == RANKS_DIFFER) {
            run->has_mismatch = true;
            return finish(run, EXECUTED);
        }
        if (alike == RANKS_DIFFER_IN_ACCESS) {
            outcome = begin(run);  // a rank started a direct run, and now starts a staged run, too
        } else {
            int64_t count = call->program->program.count, next = count;
            if (run->at < count) {
                outcome = execute_part(run, false, run->at + 1, &next);
            }
            if (outcome || next == count) {
                barrier->next_slot = (barrier->next_slot + call->segments) & 1;
                return finish(run, outcome);
            }
            arrive(&barrier->counter);
            run->at = next;
        }
        if (outcome) {
            return finish(run, outcome);
        }
    }
    return moved;
}

static bool advance_task(Task *task) {
    return advance_run((StagedRunObject *)((char *)task - offsetof(StagedRunObject, task)));
}

static PyObject *StagedRun_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"call", "source", "result", "previous", "keep", NULL};
    PyObject *call, *previous, *keep;
    unsigned long long input, output;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OKKOO", names, &call, &input, &output, &previous, &keep)) {
        return NULL;
    }
    if ((call != Py_None && !has_type(call, &StagedCallType, "call")) ||
        (previous != Py_None && !has_type(previous, &StagedRunType, "previous"))) {
        return NULL;
    }
    StagedRunObject *self = (StagedRunObject *)type->tp_alloc(type, 0);
    if (self) {
        self->call = call == Py_None ? NULL : (StagedCallObject *)Py_NewRef(call);
        self->previous = previous == Py_None ? NULL : (StagedRunObject *)Py_NewRef(previous);
        self->keep = Py_NewRef(keep);
        self->input = (char *)(uintptr_t)input;
        self->output = (char *)(uintptr_t)output;
        self->task.advance = advance_task;
    }
    return (PyObject *)self;
}

static void take_from_thread(StagedRunObject *run) {
    if (run->is_added) {
        remove_task(&run->task);
        run->is_added = false;
    }
}

static void StagedRun_dealloc(PyObject *self) {
    StagedRunObject *run = (StagedRunObject *)self;
    take_from_thread(run);
    Py_XDECREF(run->call);
    Py_XDECREF(run->previous);
    Py_XDECREF(run->keep);
    Py_TYPE(self)->tp_free(self);
}

static void advance_claimed(StagedRunObject *run) {
    run->report.poll = handle_signals;
    if (run->call->program->releases_gil) {
        Py_BEGIN_ALLOW_THREADS
        advance_run(run);
        Py_END_ALLOW_THREADS
    } else {
        advance_run(run);
    }
    run->report.poll = NULL;  // the progress thread handles no signals
}

// Raises the error of a run that is done; returns whether there was one.
static bool raise_failure(StagedRunObject *run) {
    if (run->has_mismatch) {
        Py_XDECREF(PyObject_CallNoArgs(run->call->raise_mismatch));
        return true;
    }
    if (run->outcome && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_RuntimeError, "the run was interrupted");
    }
    return run->outcome;
}

static PyObject *StagedRun_advance(PyObject *self, PyObject *unused) {
    (void)unused;
    StagedRunObject *run = (StagedRunObject *)self;
    note_advance();
    if (!is_done(&run->task) && run->call && claim_task(&run->task)) {
        if (!is_done(&run->task)) {
            advance_claimed(run);
        }
        release_task(&run->task);
    }
    if (is_done(&run->task)) {
        take_from_thread(run);
        Py_CLEAR(run->previous);
        if (run->call && raise_failure(run)) {
            return NULL;
        }
        Py_CLEAR(run->keep);
        Py_RETURN_TRUE;
    }
    // The thread calls no Python, and therefore none of the user's reductions.
    const ReducerObject *reducer = run->call ? run->call->program->reducer : NULL;
    if (run->call && !run->is_added && !(reducer && reducer->reducer.combine)) {
        if (add_task(&run->task)) {
            return PyErr_Format(PyExc_RuntimeError, "the progress thread could not be started");
        }
        run->is_added = true;
    }
    Py_RETURN_FALSE;
}

static PyObject *StagedRun_finish(PyObject *self, PyObject *unused) {
    (void)unused;
    take_from_thread((StagedRunObject *)self);
    finish((StagedRunObject *)self, EXECUTED);
    Py_RETURN_NONE;
}

static PyObject *StagedRun_abandon(PyObject *self, PyObject *unused) {
    (void)unused;
    take_from_thread((StagedRunObject *)self);
    Py_RETURN_NONE;
}

static PyMethodDef StagedRun_methods[] = {
    {"advance", StagedRun_advance, METH_NOARGS,
     "Advance without blocking, and return whether the run is done; the progress thread advances it from now on."},
    {"finish", StagedRun_finish, METH_NOARGS, "Let the next run begin, after a run in Python or a failure."},
    {"abandon", StagedRun_abandon, METH_NOARGS, "Take the run from the progress thread."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject StagedRunType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.StagedRun",
    .tp_doc = "An asynchronous run of a staged call; the stub describes the arguments.",
    .tp_basicsize = sizeof(StagedRunObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = StagedRun_new,
    .tp_dealloc = StagedRun_dealloc,
    .tp_methods = StagedRun_methods,
};
