// The Python types of this extension, and the functions by which they use each other.
#ifndef HPCCOLL_OBJECTS_H
#define HPCCOLL_OBJECTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include "interpreter.h"
#include "entry.h"
#include "messages.h"
#include "node_run.h"
#include "pipeline.h"
#include "progress.h"
#include "waits.h"

// A function of two arrays as a Python object. `keep` is the object that owns the function.
typedef struct {
    PyObject_HEAD
    Reducer reducer;
    PyObject *keep;
} ReducerObject;

// The addresses of a run's memories, and the processes that own them; `keep` keeps this process's memories alive.
typedef struct {
    PyObject_HEAD
    Py_ssize_t count;
    char **addresses;
    pid_t *processes;
    PyObject *keep;
} MemoryTableObject;

// The checked instructions of one rank.
typedef struct {
    PyObject_HEAD
    Instructions program;
    Instruction *instructions;
    int64_t *limits;
    ReducerObject *reducer, *divider;
    bool releases_gil;
} ProgramObject;

// A rank's handle of counters in shared memory, one line per rank.
typedef struct {
    PyObject_HEAD
    Py_buffer view;
    Counter counter;
    Line alone;  // the only line once the shared memory is released
} ArrivalCounterObject;

// A barrier of a node's ranks.
typedef struct {
    ArrivalCounterObject base;
    Barrier barrier;
    PyObject *attend, *in_flight, *transfers;
    bool oversubscribed;
} NodeBarrierObject;

// The ring of a flight recorder's entries, in the recorder's memory.
typedef struct {
    PyObject_HEAD
    Py_buffer view;
    int64_t serial, begin, entries, started_word, ended_word, failed_word, round_word;
} EntryRingObject;

// The calls of a rank on a communicator: how many collectives and messages it has begun, and the one that it is in.
typedef struct {
    PyObject_HEAD
    long long count, messages;
    PyObject *current;
    unsigned long thread;  // the thread that set `current` last
    char is_lost;  // whether a rank has died, so that no call that ends from now on may return its result
    long long kill_at;  // the number of the call in which the process kills itself, for tests; 0 for none
} CallCounterObject;

// The contents of the flight recorder's entry of a call.
typedef struct {
    CallCounterObject *calls;
    EntryRingObject *ring;
    PyObject *name, *description;
} CallEntry;

// A collective of one kind in host memory, on the arrays that each call passes. `run` blocks until this rank's part is
// complete, and returns -1 with an exception.
typedef struct HostCallObject {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    int (*run)(struct HostCallObject *, char *input, char *output);
} HostCallObject;

// The function of `vectorcall`.
PyObject *call_host(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names);

// Memory of this process that other ranks can address: a symmetric buffer, or memory in a file.
typedef struct {
    uintptr_t begin, end;
    uint64_t location;    // of the beginning
    PyObject *owner;      // the communicator's symmetric buffers; NULL for memory in a file
    PyObject *object;     // Python's object for the buffer
    char **bases;         // see `Location`
    bool is_freed;
} SharedBuffer;

// All memory of this process that other ranks can address, in the order of the addresses.
typedef struct {
    PyObject_HEAD
    SharedBuffer **buffers;
    Py_ssize_t count, room;
} SharedBuffersObject;

// The kind of an array's memory for the ranks of a communicator; UNUSABLE if a symmetric buffer was freed, or belongs to
// another communicator.
typedef enum { PRIVATE, SYMMETRIC, IN_FILE, UNUSABLE } MemoryKind;

// Finds the location of `nbytes` bytes; `owner` are the symmetric buffers of the communicator.
MemoryKind locate_memory(const SharedBuffersObject *shared, const PyObject *owner, const char *memory, int64_t nbytes,
                         Location *location);

// Finds the locations of a program's input and output; returns -1 with an exception if one is unusable.
int locate_arrays(const SharedBuffersObject *shared, const PyObject *owner, const Instructions *program, char *input,
                  char *output, Location locations[2]);

// A collective of one kind through the slots of a node.
typedef struct {
    HostCallObject base;
    StagedPart part;
    NodeBarrierObject *barrier;
    ProgramObject *program;
    MemoryTableObject *tables[2];
    CallEntry entry;
    PyObject *raise_mismatch;
} StagedCallObject;

// The buffers of the node's other ranks. `map` is a function that maps the locations that `pass_entry` cannot find, and
// returns addresses, processes, and an object that keeps the mapped memory alive; `keep` is the latest such object.
typedef struct {
    PyObject_HEAD
    Peers peers;
    PyObject *map, *keep;
} PeersObject;

// A collective of one kind on one node, in place; `make_staged` returns the staged call that runs instead if the
// buffers of some rank cannot be accessed in place.
typedef struct {
    HostCallObject base;
    DirectPart part;
    NodeBarrierObject *barrier;
    ProgramObject *program;
    MemoryTableObject *table;
    PeersObject *peers;
    SharedBuffersObject *shared;
    CallEntry entry;
    StagedCallObject *staged;
    PyObject *owner, *make_staged, *raise_mismatch;
} DirectCallObject;

// The base of runs in flight that follow each other: a run begins when the previous one of its queue is done.
typedef struct QueuedRunObject {
    PyObject_HEAD
    Task task;
    struct QueuedRunObject *previous;
    PyObject *before;  // called with the GIL before the run begins; NULL if there is nothing to do
    PyObject *keep;    // owns the memory of input and output
    NodeBarrierObject *barrier;
    Report report;
    bool is_added, is_for_thread, releases_gil;
    // Whether an exception came inside of the run: the other ranks still wait for its fences, so no run may follow.
    bool is_broken;
    _Atomic bool has_begun;
    // Advances without blocking and without the GIL, and returns whether it did anything; calls `finish_run` at the end.
    bool (*step)(struct QueuedRunObject *);
    // Does the part of the run that needs Python; returns 1, 0 if there was none to do, or -1 with an exception.
    int (*prepare)(struct QueuedRunObject *);
    // Raises the error of a run that is done; returns -1 if there is one.
    int (*raise_failure)(struct QueuedRunObject *);
    // Whether the other ranks no longer read this rank's memory for what the run has begun.
    bool (*is_settled)(const struct QueuedRunObject *);
} QueuedRunObject;

// The functions of the MPI library; `raise_error` raises the error for the name of a call and MPI's error number.
typedef struct {
    PyObject_HEAD
    MpiLibrary functions;
    PyObject *raise_error;
    bool is_threaded;  // whether the progress thread may call MPI
    struct StartedMessage *started;  // the messages in flight that the extension tests
    Py_ssize_t started_count, sweep_at;
} MpiFunctionsObject;

extern PyMethodDef progress_functions[], exit_functions[], revocation_functions[];
extern PyTypeObject MpiFunctionsType, MpiCallType, MessageCallType, MessageRunType, PeersType, DirectCallType, QueuedRunType,
    NodeRunType, SegmentsType, PipelineCallType, PipelineRunType, MessengerType, StartedMessageType;
extern PyTypeObject ReducerType, MemoryTableType, ProgramType, ArrivalCounterType, NodeBarrierType, EntryRingType,
    CallCounterType, HostCallType, SharedBuffersType, StagedCallType, CallTableType, TableMethodType, SmallObjectsType;

enum { RECORD_WORDS = 16, DESCRIPTION_BYTES = (RECORD_WORDS - 4) * 8 };  // of an entry of the flight recorder

// Blocks until all ranks have arrived as often as this rank; returns -1 with an exception if the wait was interrupted.
int wait_for_ranks(NodeBarrierObject *barrier);

// Waits after an exception, for up to half a second, for the ranks at the fence where this rank has arrived: they may
// read this rank's memory until they arrive, and the program may now write to it.
void settle_fence(NodeBarrierObject *barrier);

// Lets signal handlers run; returns -1 if one has raised an exception. Takes the GIL.
int handle_signals(void);

// Lets signal handlers run, and calls `attend`, which advances the operations in flight. Returns whether there are any;
// -1 with an exception. For waits of blocking calls; the GIL is held.
int attend_in_wait(PyObject *attend);

// Executes a program from instruction `at` to the next fence, whose number is returned; -1 with an exception.
int64_t run_program(ProgramObject *program, const MemoryTableObject *table, char *input, char *output, int64_t at);

// Executes a program from instruction `at` to the end; waits for the ranks at each fence. Returns -1 with an exception.
int run_to_end(ProgramObject *program, NodeBarrierObject *barrier, const MemoryTableObject *table, char *input,
               char *output, int64_t at);

// Releases the objects to which an entry refers.
void clear_entry(CallEntry *entry);

// Records the beginning of a blocking call; returns the place of its entry in words, or -1 with an exception if the
// counter's method refuse_call, which is called during another call, does not allow the call.
int64_t begin_call(const CallEntry *entry);

// Records the end of a blocking call; `failed` says whether an exception ended it, which is then passed to the
// counter's method take_exception and stays set, unless the method raises another one. Returns -1 with an exception.
int end_call(const CallEntry *entry, int64_t place, bool failed);

// Whether a rank has died since a call on the communicator began; sets the exception of the call.
bool raise_loss(CallCounterObject *calls);

// Hands all messages in flight over to Python, except those that a thread waits for. Returns -1 with an exception.
int hand_over_messages(MpiFunctionsObject *library);

// Records the beginning of message `number`, described by `description`; returns the place of its entry in words.
int64_t begin_message_entry(EntryRingObject *ring, long long number, PyObject *description);

// Records the end of the message whose entry is at `place`; `failed` says whether an error ended it.
void end_message_entry(EntryRingObject *ring, int64_t place, bool failed);

// Sets the exception of a run whose memory of another process could not be accessed; ProcessLookupError if it has ended.
void set_remote_error(const Report *report);

// Raises the error for a code of MPI in the collective `name`.
void raise_mpi_error(const MpiFunctionsObject *library, PyObject *name, int error);

// Whether every message can be sent: long ones need functions of MPI 4. Sets the exception if not.
bool can_send(const ProgramObject *program, const MpiLibrary *mpi);

// Raises the error that ranks called different collectives.
void raise_mismatch(PyObject *function);

// Maps the locations that have been published, in Python; returns -1 with an exception.
int map_peers(PeersObject *peers);

// Makes a run ready for `advance`; returns -1 with an exception. `previous` and `before` may be None.
int begin_queued_run(QueuedRunObject *run, NodeBarrierObject *barrier, PyObject *previous, PyObject *before, PyObject *keep);

// Notes that a run is done; the thread that advances the run does not access it afterwards. No run may follow a broken
// run.
void finish_run(QueuedRunObject *run, bool is_broken);

// Runs a staged call without recording it; returns -1 with an exception.
int run_staged_parts(StagedCallObject *call, char *input, char *output);

// The function of the method `CallTable.run`: runs a call of a known kind, or returns NotImplemented. `args` are
// operation, x, out, op, root, algorithm and counts.
PyObject *run_in_table(PyObject *table, PyObject *const *args, Py_ssize_t nargs);

// Returns the staged call that runs in place of a direct one, made once; NULL with an exception.
StagedCallObject *get_staged(DirectCallObject *call);

// Sets the exception for an argument of another type than `type`; returns whether it has the type.
static inline bool has_type(PyObject *object, PyTypeObject *type, const char *name) {
    if (PyObject_TypeCheck(object, type)) {
        return true;
    }
    PyErr_Format(PyExc_TypeError, "%s must be %s, not %s", name, type->tp_name, Py_TYPE(object)->tp_name);
    return false;
}

#endif
