// MpiFunctions, MessageCall and MessageRun: a collective of messages on the arrays of each call, blocking or in flight.
#include "objects.h"

#include <sched.h>

// A collective of one kind; `table` has the scratch memory of blocking runs.
typedef struct {
    HostCallObject base;
    MpiFunctionsObject *library;
    ProgramObject *program;
    MemoryTableObject *table;
    CallEntry entry;
    PyObject *attend, *in_flight, *transfers;
    uint64_t comm;
    uint64_t *requests;
    int tag;
    bool oversubscribed;
} MessageCallObject;

// A run in flight; `keep` owns the memory of input and output until the run is done.
typedef struct {
    PyObject_HEAD
    Task task;
    MessageState state;
    MessageOutcome outcome;
    MpiFunctionsObject *library;
    ProgramObject *program;
    MemoryTableObject *table;
    PyObject *name, *keep;
    bool is_added;
} MessageRunObject;

enum { MPI_FUNCTIONS = 7 };  // in the order of MpiLibrary
enum { TESTS_WITH_GIL = 30, TESTS_WITH_GIL_OVERSUBSCRIBED = 3 };
static const int64_t SPIN_NS = 50000, LIMIT_NS = 400000, BUSY_LIMIT_NS = 10000, SETTLE_NS = 500000000;

static PyObject *MpiFunctions_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"functions", "byte", "polled", "any_source", "polled_tag", "source_offset", "has_pointers",
                            "is_threaded", "raise_error", NULL};
    unsigned long long functions[MPI_FUNCTIONS], byte, polled;
    int any_source, polled_tag, source_offset, has_pointers, is_threaded;
    PyObject *raise_error;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "(KKKKKKK)KKiiippO", names, &functions[0], &functions[1],
                                     &functions[2], &functions[3], &functions[4], &functions[5], &functions[6], &byte,
                                     &polled, &any_source, &polled_tag, &source_offset, &has_pointers, &is_threaded,
                                     &raise_error)) {
        return NULL;
    }
    bool has_all = functions[0] && functions[1] && functions[4] && functions[5] && functions[6];
    if (!has_all || source_offset < 0 || source_offset > MPI_STATUS_BYTES - (int)sizeof(int)) {
        PyErr_SetString(PyExc_ValueError, "only the functions for large messages may be missing");
        return NULL;
    }
    MpiFunctionsObject *self = (MpiFunctionsObject *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    AnyFunction *found[MPI_FUNCTIONS];
    for (int i = 0; i < MPI_FUNCTIONS; i++) {
        found[i] = (AnyFunction *)(uintptr_t)functions[i];
    }
    self->functions = (MpiLibrary){found[0], found[1],  found[2],   found[3], found[4],      found[5],    found[6],
                                   byte,     polled, any_source, polled_tag,  source_offset, has_pointers};
    self->is_threaded = is_threaded;
    self->raise_error = Py_NewRef(raise_error);
    return (PyObject *)self;
}

static void MpiFunctions_dealloc(PyObject *self) {
    Py_XDECREF(((MpiFunctionsObject *)self)->raise_error);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *MpiFunctions_poll(PyObject *self, PyObject *unused) {
    (void)unused;
    poll_mpi(&((MpiFunctionsObject *)self)->functions);
    Py_RETURN_NONE;
}

static PyObject *MpiFunctions_hand_over(PyObject *self, PyObject *unused) {
    (void)unused;
    return hand_over_messages((MpiFunctionsObject *)self) ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef MpiFunctions_methods[] = {
    {"hand_over", MpiFunctions_hand_over, METH_NOARGS, "Let Python wait for all messages in flight that it started."},
    {"poll", MpiFunctions_poll, METH_NOARGS, "Let MPI advance all communication of this process."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject MpiFunctionsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.MpiFunctions",
    .tp_doc = "The functions of the MPI library, by their addresses; the stub describes the arguments.",
    .tp_basicsize = sizeof(MpiFunctionsObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = MpiFunctions_new,
    .tp_dealloc = MpiFunctions_dealloc,
    .tp_methods = MpiFunctions_methods,
};

void raise_mpi_error(const MpiFunctionsObject *library, PyObject *name, int error) {
    Py_XDECREF(PyObject_CallFunction(library->raise_error, "Oi", name, error));
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_RuntimeError, "MPI returned error %d", error);
    }
}

bool can_send(const ProgramObject *program, const MpiLibrary *mpi) {
    for (int64_t i = 0; i < program->program.count; i++) {
        const Instruction *step = &program->program.instructions[i];
        bool is_message = step->code == SEND || step->code == RECEIVE;
        if (is_message && step->nbytes > INT32_MAX && !(mpi->isend_large && mpi->irecv_large)) {
            PyErr_SetString(PyExc_OverflowError, "the MPI library cannot send messages of 2 GiB or more");
            return false;
        }
    }
    return true;
}

static bool is_of_messages(const ProgramObject *program, const MemoryTableObject *table) {
    bool fits = program->program.ranks && table->count == program->program.memories && !table->processes;
    for (int64_t i = 0; i < program->program.count; i++) {
        fits = fits && program->instructions[i].code != FENCE;
    }
    if (fits) {
        return true;
    }
    PyErr_SetString(PyExc_ValueError, "the program has no messages, or the memories are not those of the program");
    return false;
}

static int MessageCall_traverse(PyObject *self, visitproc visit, void *arg) {
    MessageCallObject *call = (MessageCallObject *)self;
    Py_VISIT(call->entry.calls);
    Py_VISIT(call->attend);
    return 0;
}

static int MessageCall_clear(PyObject *self) {
    Py_CLEAR(((MessageCallObject *)self)->attend);
    return 0;
}

static void MessageCall_dealloc(PyObject *self) {
    MessageCallObject *call = (MessageCallObject *)self;
    PyObject_GC_UnTrack(self);
    MessageCall_clear(self);
    clear_entry(&call->entry);
    PyObject *owned[] = {(PyObject *)call->library, (PyObject *)call->program, (PyObject *)call->table,
                         call->in_flight, call->transfers};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        Py_XDECREF(owned[i]);
    }
    PyMem_Free(call->requests);
    Py_TYPE(self)->tp_free(self);
}

static MessageState make_state(const MessageCallObject *call, char *input, char *output) {
    return (MessageState){.program = &call->program->program,
                          .library = &call->library->functions,
                          .memories = {call->table->addresses, NULL, input, output},
                          .comm = call->comm,
                          .tag = call->tag,
                          .requests = call->requests};
}

// Advances a run for up to `limit_ns`, without the GIL. Spins until no step has succeeded for `spin_ns`, and then
// yields the core between two tests.
static MessageOutcome advance_for(MessageState *state, Report *report, int64_t spin_ns, int64_t limit_ns) {
    int64_t begin = read_clock_ns(), end = begin + limit_ns;
    for (;;) {
        int64_t at = state->position.at;
        MessageOutcome outcome = advance_messages(state, INT64_MAX, report);
        int64_t now = read_clock_ns();
        if (outcome != MESSAGES_WAIT || now >= end) {
            return outcome;
        }
        begin = state->position.at == at ? begin : now;
        if (now - begin >= spin_ns) {
            sched_yield();
        }
    }
}

// Advances a run to its end, and lets other threads, signal handlers and operations in flight go on during the waits.
static MessageOutcome run_messages(MessageCallObject *call, MessageState *state) {
    Report report = {.poll = handle_signals, .until_poll = BYTES_PER_POLL};
    MessageOutcome outcome = MESSAGES_WAIT;
    int64_t spin_ns = call->oversubscribed ? 0 : SPIN_NS;
    unsigned tests = call->oversubscribed ? TESTS_WITH_GIL_OVERSUBSCRIBED : TESTS_WITH_GIL;
    for (unsigned test = 0; !call->program->releases_gil && outcome == MESSAGES_WAIT && test < tests; test++) {
        outcome = advance_messages(state, INT64_MAX, &report);
    }
    bool is_busy = PyDict_GET_SIZE(call->in_flight) || PyDict_GET_SIZE(call->transfers);
    while (outcome == MESSAGES_WAIT) {
        Py_BEGIN_ALLOW_THREADS
        outcome = advance_for(state, &report, spin_ns, is_busy ? BUSY_LIMIT_NS : LIMIT_NS);
        Py_END_ALLOW_THREADS
        if (outcome != MESSAGES_WAIT) {
            break;
        }
        int busy = attend_in_wait(call->attend);
        if (busy < 0) {
            return MESSAGES_INTERRUPTED;
        }
        is_busy = busy;
    }
    return outcome;
}

// Waits after an exception until the messages that the run has begun to send are sent, for up to SETTLE_NS: the program
// may now write to the memory of these messages, and a rank that does not know of the exception must not receive that.
static void settle_sends(const MessageState *state) {
    Py_BEGIN_ALLOW_THREADS
    int64_t end = read_clock_ns() + SETTLE_NS;
    while (!are_sent(state) && read_clock_ns() < end) {
        sched_yield();
    }
    Py_END_ALLOW_THREADS
}

static int run_call(HostCallObject *base, char *input, char *output) {
    MessageCallObject *call = (MessageCallObject *)base;
    int64_t place = begin_call(&call->entry);
    if (place < 0) {
        return -1;
    }
    MessageState state = make_state(call, input, output);
    state.round = (int64_t *)call->entry.ring->view.buf + call->entry.ring->round_word;
    MessageOutcome outcome = run_messages(call, &state);
    if (outcome == MESSAGES_FAILED) {
        raise_mpi_error(call->library, call->entry.name, state.mpi_error);
    }
    int failed = end_call(&call->entry, place, outcome != MESSAGES_DONE);
    if (outcome == MESSAGES_INTERRUPTED && !call->entry.calls->is_lost) {
        settle_sends(&state);
    }
    return failed;
}

static PyObject *MessageCall_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"library", "program", "table", "comm", "tag", "calls", "ring", "name", "description",
                            "oversubscribed", "attend", "in_flight", "transfers", NULL};
    PyObject *library, *program, *table, *calls, *ring, *name, *description, *attend, *in_flight, *transfers;
    unsigned long long comm;
    int tag, oversubscribed;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!KiO!O!UO!pOO!O!", names, &MpiFunctionsType, &library,
                                     &ProgramType, &program, &MemoryTableType, &table, &comm, &tag, &CallCounterType,
                                     &calls, &EntryRingType, &ring, &name, &PyBytes_Type, &description,
                                     &oversubscribed, &attend, &PyDict_Type, &in_flight, &PyDict_Type, &transfers)) {
        return NULL;
    }
    if (!is_of_messages((ProgramObject *)program, (MemoryTableObject *)table) ||
        !can_send((ProgramObject *)program, &((MpiFunctionsObject *)library)->functions)) {
        return NULL;
    }
    if (PyBytes_GET_SIZE(description) != DESCRIPTION_BYTES) {
        PyErr_SetString(PyExc_ValueError, "the description has the wrong size");
        return NULL;
    }
    size_t requests = (size_t)((ProgramObject *)program)->program.requests + 1;
    MessageCallObject *self = (MessageCallObject *)type->tp_alloc(type, 0);
    if (!self || !(self->requests = PyMem_Calloc(requests, sizeof(uint64_t)))) {
        Py_XDECREF(self);
        return PyErr_NoMemory();
    }
    self->base.vectorcall = call_host;
    self->base.run = run_call;
    self->library = (MpiFunctionsObject *)Py_NewRef(library);
    self->program = (ProgramObject *)Py_NewRef(program);
    self->table = (MemoryTableObject *)Py_NewRef(table);
    self->entry = (CallEntry){(CallCounterObject *)Py_NewRef(calls), (EntryRingObject *)Py_NewRef(ring),
                              Py_NewRef(name), Py_NewRef(description)};
    self->attend = Py_NewRef(attend);
    self->in_flight = Py_NewRef(in_flight);
    self->transfers = Py_NewRef(transfers);
    self->comm = comm;
    self->tag = tag;
    self->oversubscribed = oversubscribed;
    return (PyObject *)self;
}

// Notes that a run is done. The thread that has advanced the run does not access the run afterwards.
static void finish(MessageRunObject *run, MessageOutcome outcome) {
    run->outcome = outcome;
    // release: pairs with `is_done`
    atomic_store_explicit(&run->task.done, true, memory_order_release);
}

// Advances a run in the progress thread.
static bool advance_task(Task *task) {
    MessageRunObject *run = (MessageRunObject *)((char *)task - offsetof(MessageRunObject, task));
    Report report = {0};
    int64_t at = run->state.position.at;
    MessageOutcome outcome = advance_messages(&run->state, INT64_MAX, &report);
    if (outcome != MESSAGES_WAIT) {
        finish(run, outcome);
    }
    return run->state.position.at != at;
}

static PyObject *MessageCall_start(PyObject *self, PyObject *args) {
    MessageCallObject *call = (MessageCallObject *)self;
    unsigned long long input, output;
    PyObject *keep;
    int tag;
    if (!PyArg_ParseTuple(args, "KKiO:start", &input, &output, &tag, &keep)) {
        return NULL;
    }
    MessageRunObject *run = (MessageRunObject *)MessageRunType.tp_alloc(&MessageRunType, 0);
    if (!run) {
        return NULL;
    }
    run->state = make_state(call, (char *)(uintptr_t)input, (char *)(uintptr_t)output);
    run->state.tag = tag;
    run->library = (MpiFunctionsObject *)Py_NewRef(call->library);
    run->program = (ProgramObject *)Py_NewRef(call->program);
    run->table = (MemoryTableObject *)Py_NewRef(call->table);
    run->name = Py_NewRef(call->entry.name);
    run->keep = Py_NewRef(keep);
    run->task.advance = advance_task;
    run->state.requests = PyMem_Calloc((size_t)call->program->program.requests + 1, sizeof(uint64_t));
    if (!run->state.requests) {
        Py_DECREF(run);
        return PyErr_NoMemory();
    }
    return (PyObject *)run;
}

static PyMethodDef MessageCall_methods[] = {
    {"start", MessageCall_start, METH_VARARGS,
     "Return a run in flight on the addresses of input and output, with its own tag; `keep` owns the memory."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject MessageCallType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.MessageCall",
    .tp_doc = "A collective of messages of one kind; the stub describes the arguments.",
    .tp_basicsize = sizeof(MessageCallObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_base = &HostCallType,
    .tp_new = MessageCall_new,
    .tp_dealloc = MessageCall_dealloc,
    .tp_traverse = MessageCall_traverse,
    .tp_clear = MessageCall_clear,
    .tp_methods = MessageCall_methods,
};

static void MessageRun_dealloc(PyObject *self) {
    MessageRunObject *run = (MessageRunObject *)self;
    if (run->is_added) {
        remove_task(&run->task);
    }
    PyMem_Free(run->state.requests);
    Py_XDECREF(run->library);
    Py_XDECREF(run->program);
    Py_XDECREF(run->table);
    Py_XDECREF(run->name);
    Py_XDECREF(run->keep);
    Py_TYPE(self)->tp_free(self);
}

// Advances a run whose task this thread has claimed.
static void advance_claimed(MessageRunObject *run) {
    Report report = {.poll = handle_signals, .until_poll = BYTES_PER_POLL};
    MessageOutcome outcome;
    if (run->program->releases_gil) {
        Py_BEGIN_ALLOW_THREADS
        outcome = advance_messages(&run->state, INT64_MAX, &report);
        Py_END_ALLOW_THREADS
    } else {
        outcome = advance_messages(&run->state, INT64_MAX, &report);
    }
    if (outcome != MESSAGES_WAIT) {
        finish(run, outcome);
    }
}

static PyObject *MessageRun_advance(PyObject *self, PyObject *unused) {
    (void)unused;
    MessageRunObject *run = (MessageRunObject *)self;
    note_advance();
    if (!is_done(&run->task) && claim_task(&run->task)) {
        if (!is_done(&run->task)) {
            advance_claimed(run);
        }
        release_task(&run->task);
    }
    if (!is_done(&run->task)) {
        // The progress thread calls no Python, so it does not advance runs with a reduction that the user has written.
        bool needs_python = run->program->reducer && run->program->reducer->reducer.combine;
        if (!run->is_added && !needs_python && run->library->is_threaded) {
            if (add_task(&run->task)) {
                return PyErr_Format(PyExc_RuntimeError, "the progress thread could not be started");
            }
            run->is_added = true;
        }
        Py_RETURN_FALSE;
    }
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (run->outcome == MESSAGES_FAILED) {
        raise_mpi_error(run->library, run->name, run->state.mpi_error);
        return NULL;
    }
    Py_CLEAR(run->keep);
    Py_RETURN_TRUE;
}

static PyObject *MessageRun_abandon(PyObject *self, PyObject *unused) {
    (void)unused;
    MessageRunObject *run = (MessageRunObject *)self;
    if (run->is_added) {
        remove_task(&run->task);
        run->is_added = false;
    }
    Py_RETURN_NONE;
}

static PyObject *MessageRun_is_settled(PyObject *self, PyObject *unused) {
    (void)unused;
    MessageRunObject *run = (MessageRunObject *)self;
    bool sent = is_done(&run->task) && run->outcome == MESSAGES_DONE;
    if (!sent && claim_task(&run->task)) {
        sent = are_sent(&run->state);
        release_task(&run->task);
    }
    return PyBool_FromLong(sent);
}

static PyMethodDef MessageRun_methods[] = {
    {"advance", MessageRun_advance, METH_NOARGS,
     "Advance without blocking, and return whether the run is done; the progress thread advances it from now on."},
    {"abandon", MessageRun_abandon, METH_NOARGS, "Take the run from the progress thread."},
    {"is_settled", MessageRun_is_settled, METH_NOARGS,
     "Whether MPI no longer reads the memory of the messages that the run has begun to send; lets MPI advance."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject MessageRunType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.MessageRun",
    .tp_doc = "A run of a collective of messages in flight.",
    .tp_basicsize = sizeof(MessageRunObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = MessageRun_dealloc,
    .tp_methods = MessageRun_methods,
};

static PyObject *configure(PyObject *module, PyObject *args) {
    (void)module;
    static PyObject *kept;  // the progress thread uses the functions until the end of the process
    PyObject *library;
    double cores;
    if (!PyArg_ParseTuple(args, "O!d:configure_progress", &MpiFunctionsType, &library, &cores)) {
        return NULL;
    }
    // If every rank has a second core, the progress thread spins on that core as a blocking call does, and goes on
    // while the program advances operations itself.
    ProgressTimes times = {
        .longest_ns = cores < 1 ? 3000000 : 300000,
        .spin_ns = cores < 2 ? 0 : 50000,
        .stand_back_ns = cores < 2 ? 300000 : 50000,
    };
    MpiFunctionsObject *functions = (MpiFunctionsObject *)library;
    bool polls = functions->is_threaded;
    Py_XSETREF(kept, Py_NewRef(library));
    configure_progress(&times, polls ? poll_mpi : NULL, &functions->functions);
    Py_RETURN_NONE;
}

static PyObject *set_polling_of_mpi(PyObject *module, PyObject *polls) {
    (void)module;
    if (set_polling(TRANSFERS, PyObject_IsTrue(polls))) {
        return PyErr_Format(PyExc_RuntimeError, "the progress thread could not be started");
    }
    Py_RETURN_NONE;
}

static PyObject *stop(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    stop_progress();
    Py_RETURN_NONE;
}

static PyObject *hold(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    Py_BEGIN_ALLOW_THREADS;  // a task may need Python
    hold_progress();
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *release(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    release_progress();
    Py_RETURN_NONE;
}

PyMethodDef progress_functions[] = {
    {"configure_progress", configure, METH_VARARGS, "Set the MPI functions and the pauses of the progress thread."},
    {"set_polling", set_polling_of_mpi, METH_O, "Set whether the progress thread lets MPI advance."},
    {"hold_progress", hold, METH_NOARGS, "Let the progress thread call nothing until `release_progress`."},
    {"release_progress", release, METH_NOARGS, "Let the progress thread go on after `hold_progress`."},
    {"stop_progress", stop, METH_NOARGS, "End the progress thread until the next operation in flight."},
    {NULL, NULL, 0, NULL},
};
