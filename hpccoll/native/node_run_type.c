// NodeRun: a run in flight of a plan on one node.
#include "objects.h"

typedef struct {
    QueuedRunObject base;
    NodeRun run;
    DirectCallObject *direct;
    StagedCallObject *staged;
} NodeRunObject;

static bool step(QueuedRunObject *base) {
    NodeRunObject *object = (NodeRunObject *)base;
    bool moved = advance_node_run(&object->run, &base->report);
    if (object->run.phase == HAS_ENDED) {
        finish_run(base, object->run.outcome != EXECUTED);
    }
    return moved;
}

static int prepare(QueuedRunObject *base) {
    NodeRunObject *object = (NodeRunObject *)base;
    if (object->run.phase != NEEDS_ADDRESSES) {
        return 0;
    }
    return map_peers(object->direct->peers) ? -1 : 1;
}

static int raise_failure(QueuedRunObject *base) {
    NodeRunObject *object = (NodeRunObject *)base;
    if (object->run.has_mismatch) {
        raise_mismatch(object->staged ? object->staged->raise_mismatch : object->direct->raise_mismatch);
        return -1;
    }
    if (object->run.outcome == REMOTE_FAILED) {
        set_remote_error(&base->report);
    } else if (object->run.outcome) {
        PyErr_SetString(PyExc_RuntimeError, "the run was interrupted");
    }
    return object->run.outcome ? -1 : 0;
}

// The ranks of a staged run read copies in the slots, so only a direct run must wait for the other ranks.
static bool is_settled(const QueuedRunObject *base) {
    const NodeRun *run = &((const NodeRunObject *)base)->run;
    return !run->has_entered || !run->direct || have_all_arrived(run->direct->barrier->counter);
}

static PyObject *NodeRun_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"staged", "direct", "source", "result", "previous", "before", "keep", NULL};
    PyObject *staged, *direct, *previous, *before, *keep;
    unsigned long long input, output;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOKKOOO", names, &staged, &direct, &input, &output, &previous,
                                      &before, &keep)) {
        return NULL;
    }
    if ((direct != Py_None && !has_type(direct, &DirectCallType, "direct")) ||
        ((direct == Py_None || staged != Py_None) && !has_type(staged, &StagedCallType, "staged"))) {
        return NULL;
    }
    NodeBarrierObject *barrier = direct == Py_None ? ((StagedCallObject *)staged)->barrier : ((DirectCallObject *)direct)->barrier;
    NodeRunObject *self = (NodeRunObject *)type->tp_alloc(type, 0);
    if (!self || begin_queued_run(&self->base, barrier, previous, before, keep)) {
        Py_XDECREF(self);
        return NULL;
    }
    self->run.input = (char *)(uintptr_t)input;
    self->run.output = (char *)(uintptr_t)output;
    const ProgramObject *program = NULL;
    if (staged != Py_None) {
        self->staged = (StagedCallObject *)Py_NewRef(staged);
        self->run.staged = &self->staged->part;
        program = self->staged->program;
    }
    if (direct != Py_None) {
        self->direct = (DirectCallObject *)Py_NewRef(direct);
        self->run.direct = &self->direct->part;
        program = self->direct->program;
        if (locate_arrays(self->direct->shared, self->direct->owner, &program->program, self->run.input,
                          self->run.output, self->run.own)) {
            Py_DECREF(self);
            return NULL;
        }
    }
    self->base.step = step;
    self->base.prepare = prepare;
    self->base.raise_failure = raise_failure;
    self->base.is_settled = is_settled;
    self->base.releases_gil = program->releases_gil;
    // The progress thread calls no Python, so it does not advance runs with a reduction that the user has written.
    self->base.is_for_thread = !(program->reducer && program->reducer->reducer.combine);
    return (PyObject *)self;
}

static void NodeRun_dealloc(PyObject *self) {
    NodeRunObject *object = (NodeRunObject *)self;
    if (object->base.is_added) {
        remove_task(&object->base.task);
        object->base.is_added = false;
    }
    Py_XDECREF(object->direct);
    Py_XDECREF(object->staged);
    QueuedRunType.tp_dealloc(self);
}

PyTypeObject NodeRunType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.NodeRun",
    .tp_doc = "A run in flight of a plan on one node; the stub describes the arguments.",
    .tp_basicsize = sizeof(NodeRunObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_base = &QueuedRunType,
    .tp_new = NodeRun_new,
    .tp_dealloc = NodeRun_dealloc,
};
