// StartedMessage: a message in flight. The extension tests the message's request, and waits for up to 0.4 ms. For a
// longer wait, the extension hands the message over to Python, which keeps the request from then on.
//
// MpiFunctions lists all messages that the extension tests, and keeps them alive: a message whose handle was dropped
// goes on. The GIL guards the list. A message that a thread waits for without the GIL is not handed over.
#include "messenger.h"

#include <sched.h>

typedef struct StartedMessage {
    PyObject_HEAD
    MessengerObject *messenger;
    Message message;
    PyObject *handle;  // in Python, after a hand-over; else NULL
    struct StartedMessage *previous, *next;
    bool is_listed, is_waited;
} StartedMessageObject;

enum { LEAST_SWEPT = 64 };

static void list_message(MpiFunctionsObject *library, StartedMessageObject *self) {
    self->next = library->started;
    if (self->next) {
        self->next->previous = self;
    }
    library->started = (StartedMessageObject *)Py_NewRef((PyObject *)self);
    self->is_listed = true;
    if (!library->started_count++ && library->is_threaded) {
        set_polling(MESSAGES, true);  // without a progress thread, messages advance in calls only
    }
}

static void unlist_message(StartedMessageObject *self) {
    MpiFunctionsObject *library = self->messenger->library;
    if (!self->is_listed) {
        return;
    }
    *(self->previous ? &self->previous->next : &library->started) = self->next;
    if (self->next) {
        self->next->previous = self->previous;
    }
    self->previous = self->next = NULL;
    self->is_listed = false;
    if (!--library->started_count && library->is_threaded) {
        set_polling(MESSAGES, false);
    }
    Py_DECREF(self);
}

// Records the end of a complete message, and removes the message from the list.
static void finish(StartedMessageObject *self) {
    end_message(self->messenger, &self->message);
    unlist_message(self);
}

// Tests the messages whose handles were dropped, each time that the number of listed messages has doubled.
static void sweep(MpiFunctionsObject *library) {
    if (library->started_count < LEAST_SWEPT || library->started_count < library->sweep_at) {
        return;
    }
    for (StartedMessageObject *each = library->started, *next; each; each = next) {
        next = each->next;
        if (Py_REFCNT(each) == 1) {
            test_message(each->messenger, &each->message);
            if (!each->message.is_pending) {
                finish(each);
            }
        }
    }
    library->sweep_at = 2 * library->started_count;
}

// Passes a message that is pending or has failed to Python, which waits for the message or raises its error. Returns -1
// with an exception.
static int hand_over(StartedMessageObject *self) {
    Message *message = &self->message;
    PyObject *state = describe_message(message);
    PyObject *peer = message->peer < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(message->peer);
    PyObject *handle = NULL;
    if (state && peer) {
        handle = PyObject_CallFunctionObjArgs(self->messenger->adopt, message->sends ? Py_True : Py_False, state,
                                              (PyObject *)message->array, peer, NULL);
    }
    Py_XDECREF(state);
    Py_XDECREF(peer);
    if (handle) {
        Py_XSETREF(self->handle, handle);
        unlist_message(self);
    }
    return handle ? 0 : -1;
}

// Returns a listed message for which no thread waits; NULL if there is none.
static StartedMessageObject *find_idle(const MpiFunctionsObject *library) {
    StartedMessageObject *found = library->started;
    while (found && found->is_waited) {
        found = found->next;
    }
    return found;
}

int hand_over_messages(MpiFunctionsObject *library) {
    for (StartedMessageObject *idle; (idle = find_idle(library));) {
        if (hand_over(idle)) {  // takes the message from the list
            return -1;
        }
    }
    return 0;
}

PyObject *start_message(MessengerObject *messenger, Message *message) {
    sweep(messenger->library);
    StartedMessageObject *self = (StartedMessageObject *)messenger->work_type->tp_alloc(messenger->work_type, 0);
    if (!self) {
        return NULL;
    }
    self->messenger = (MessengerObject *)Py_NewRef((PyObject *)messenger);
    begin_message(messenger, message);
    test_message(messenger, message);
    self->message = *message;
    self->message.description = NULL;
    self->message.array = (PyArrayObject *)Py_NewRef((PyObject *)message->array);
    if (self->message.is_pending) {
        list_message(messenger->library, self);
    } else {
        end_message(messenger, &self->message);
    }
    return (PyObject *)self;
}

static int StartedMessage_traverse(PyObject *given, visitproc visit, void *arg) {
    StartedMessageObject *self = (StartedMessageObject *)given;
    Py_VISIT(self->messenger);
    Py_VISIT(self->message.array);
    Py_VISIT(self->handle);
    return 0;
}

static int StartedMessage_clear(PyObject *given) {
    Py_CLEAR(((StartedMessageObject *)given)->handle);
    return 0;
}

static void StartedMessage_dealloc(PyObject *given) {
    StartedMessageObject *self = (StartedMessageObject *)given;
    PyObject_GC_UnTrack(given);
    Py_XDECREF(self->handle);
    Py_XDECREF(self->message.array);
    Py_XDECREF(self->messenger);
    Py_TYPE(given)->tp_free(given);
}

// Waits until no other thread waits for a message, which takes 0.4 ms at most.
static void wait_for_other_thread(const StartedMessageObject *self) {
    while (self->is_waited) {
        Py_BEGIN_ALLOW_THREADS
        sched_yield();
        Py_END_ALLOW_THREADS
    }
}

// Returns the result of a complete message, or raises the error of one that has failed.
static PyObject *take_result(StartedMessageObject *self) {
    if (!is_complete(&self->message)) {
        return hand_over(self) ? NULL : PyObject_CallMethod(self->handle, "wait", NULL);
    }
    if (raise_loss(self->messenger->calls)) {
        return NULL;
    }
    return Py_NewRef(self->message.sends ? Py_None : (PyObject *)self->message.array);
}

static PyObject *StartedMessage_wait(PyObject *given, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"timeout", NULL};
    StartedMessageObject *self = (StartedMessageObject *)given;
    PyObject *timeout = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:wait", names, &timeout)) {
        return NULL;
    }
    wait_for_other_thread(self);
    if (!self->handle && self->message.is_pending && timeout == Py_None) {
        Message none = {.sends = true};
        self->is_waited = true;
        note_advance();
        wait_for_messages(self->messenger, &self->message, &none);
        self->is_waited = false;
        if (!self->message.is_pending) {
            finish(self);
        }
    }
    if (!self->handle && !self->message.is_pending) {
        return take_result(self);
    }
    if (!self->handle && hand_over(self)) {
        return NULL;
    }
    return PyObject_CallMethod(self->handle, "wait", "O", timeout);
}

static PyObject *StartedMessage_test(PyObject *given, PyObject *unused) {
    (void)unused;
    StartedMessageObject *self = (StartedMessageObject *)given;
    wait_for_other_thread(self);
    if (!self->handle && self->message.is_pending) {
        note_advance();
        test_message(self->messenger, &self->message);
        if (!self->message.is_pending) {
            finish(self);
        }
    }
    if (!self->handle && is_complete(&self->message)) {
        Py_RETURN_TRUE;
    }
    if (!self->handle && hand_over(self)) {
        return NULL;
    }
    return PyObject_CallMethod(self->handle, "test", NULL);
}

static PyObject *StartedMessage_get_done(PyObject *given, void *unused) {
    (void)unused;
    StartedMessageObject *self = (StartedMessageObject *)given;
    return self->handle ? PyObject_GetAttrString(self->handle, "done") : PyBool_FromLong(!self->message.is_pending);
}

static PyObject *StartedMessage_get_source(PyObject *given, void *unused) {
    (void)unused;
    StartedMessageObject *self = (StartedMessageObject *)given;
    if (self->handle) {
        return PyObject_GetAttrString(self->handle, "source");
    }
    bool has_source = !self->message.sends && is_complete(&self->message);
    return has_source ? PyLong_FromLong(self->message.source) : Py_NewRef(Py_None);
}

static PyObject *StartedMessage_get_awaited(PyObject *given, void *unused) {
    (void)unused;
    StartedMessageObject *self = (StartedMessageObject *)given;
    wait_for_other_thread(self);
    if (!self->handle && !self->message.is_pending) {
        Py_RETURN_NONE;
    }
    if (!self->handle && hand_over(self)) {
        return NULL;
    }
    return PyObject_GetAttrString(self->handle, "awaited");
}

static PyMethodDef StartedMessage_methods[] = {
    {"wait", (PyCFunction)(void (*)(void))StartedMessage_wait, METH_VARARGS | METH_KEYWORDS,
     "Block until the message is complete; return the received array, or None for a send."},
    {"test", StartedMessage_test, METH_NOARGS, "Return whether the message is complete; let MPI advance."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef StartedMessage_attributes[] = {
    {"done", StartedMessage_get_done, NULL, "Whether a wait or test has found the message complete or failed.", NULL},
    {"source", StartedMessage_get_source, NULL, "The sender of a message that has been received; else None.", NULL},
    {"awaited", StartedMessage_get_awaited, NULL, "The context manager of a wait; None if the message is done.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject StartedMessageType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hpccoll.native.StartedMessage",
    .tp_doc = "A message in flight, which a Messenger has started.",
    .tp_basicsize = sizeof(StartedMessageObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = StartedMessage_dealloc,
    .tp_traverse = StartedMessage_traverse,
    .tp_clear = StartedMessage_clear,
    .tp_methods = StartedMessage_methods,
    .tp_getset = StartedMessage_attributes,
};
