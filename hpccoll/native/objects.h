// The Python types of this extension, and the functions by which they use each other.
#ifndef HPCCOLL_OBJECTS_H
#define HPCCOLL_OBJECTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include "interpreter.h"
#include "messages.h"
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
    char *lines;
    Py_ssize_t ranks, stride, row;
    uint64_t count;
    Line alone;  // the only line once the shared memory is released
} ArrivalCounterObject;

// A barrier of a node's ranks; `entry` is the number of this rank's latest entry (0 or 1) in its line.
typedef struct {
    ArrivalCounterObject counter;
    PyObject *attend, *in_flight, *transfers;
    int entry, next_slot;
    bool oversubscribed;
} NodeBarrierObject;

// The ring of a flight recorder's entries, in the recorder's memory.
typedef struct {
    PyObject_HEAD
    Py_buffer view;
    int64_t serial, begin, entries, ended_word, failed_word, round_word;
} EntryRingObject;

// The calls of a rank on a communicator: how many it has begun, and the one that it is in.
typedef struct {
    PyObject_HEAD
    long long count;
    PyObject *current;
} CallCounterObject;

// What an entry of the flight recorder says of a call.
typedef struct {
    CallCounterObject *calls;
    EntryRingObject *ring;
    PyObject *name, *description;
} CallEntry;

// A collective of one kind through the slots of a node, on the arrays that each call passes.
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    NodeBarrierObject *barrier;
    ProgramObject *program;
    MemoryTableObject *tables[2];
    CallEntry entry;
    PyObject *raise_mismatch;
    uint64_t fingerprint;
    int segments;
    int64_t entry_fence;  // the number of the first fence
    bool in_entry;  // whether the payload is in the barrier's entries instead of the slots
} StagedCallObject;

// The functions of the MPI library; `raise_error` raises the error for the name of a call and MPI's error number.
typedef struct {
    PyObject_HEAD
    MpiLibrary functions;
    PyObject *raise_error;
    bool is_threaded;  // whether the progress thread may call MPI
} MpiFunctionsObject;

extern PyMethodDef progress_functions[];
extern PyTypeObject MpiFunctionsType, MessageCallType, MessageRunType, StagedRunType;
extern PyTypeObject ReducerType, MemoryTableType, ProgramType, ArrivalCounterType, NodeBarrierType, EntryRingType,
    CallCounterType, StagedCallType, CallTableType;

enum { RECORD_WORDS = 16, DESCRIPTION_BYTES = (RECORD_WORDS - 4) * 8 };  // of an entry of the flight recorder
enum { RANKS_AGREE = 1, RANKS_DIFFER_IN_ACCESS = 0, RANKS_DIFFER = -1 };

static inline Line *line_of(const ArrivalCounterObject *counter, Py_ssize_t row) {
    return (Line *)(counter->lines + row * counter->stride);
}

// Counts this rank's arrival.
void arrive(ArrivalCounterObject *counter);

// Blocks until all ranks have arrived as often as this rank; returns -1 with an exception if the wait was interrupted.
int wait_for_ranks(NodeBarrierObject *barrier);

// Waits after an exception, for up to half a second, for the ranks at the fence where this rank has arrived: they may
// read this rank's memory until they arrive, and the program may now write to it.
void settle_fence(NodeBarrierObject *barrier);

// Publishes an entry, in which `locations` may be NULL if the payload is already there, and counts the arrival.
void post_entry(NodeBarrierObject *barrier, uint64_t fingerprint, const uint64_t *locations);

// Whether the latest entries of all ranks agree: RANKS_AGREE, RANKS_DIFFER_IN_ACCESS or RANKS_DIFFER.
int compare_entries(const NodeBarrierObject *barrier);

// Lets signal handlers run; returns -1 if one has raised an exception. Takes the GIL.
int handle_signals(void);

// Executes a program from instruction `at` to the next fence, whose number is returned; -1 with an exception.
int64_t run_program(ProgramObject *program, const MemoryTableObject *table, char *input, char *output, int64_t at);

// Executes a program from instruction `at` to the end; waits for the ranks at each fence. Returns -1 with an exception.
int run_to_end(ProgramObject *program, NodeBarrierObject *barrier, const MemoryTableObject *table, char *input,
               char *output, int64_t at);

// Records the beginning of a blocking call; returns the place of its entry in words, or -1 with an exception if the
// counter's method refuse_call, which is called during another call, does not allow the call.
int64_t begin_call(const CallEntry *entry);

// Records the end of a blocking call; `failed` says whether an exception ended it, which is then passed to the
// counter's method take_exception and stays set.
void end_call(const CallEntry *entry, int64_t place, bool failed);

// Publishes the entry of a staged run, which has a payload or no locations.
void post_staged(StagedCallObject *call);

// Runs a staged call on an input and an output; returns -1 with an exception.
int run_staged(StagedCallObject *call, char *input, char *output);

// Sets the exception for an argument of another type than `type`; returns whether it has the type.
static inline bool has_type(PyObject *object, PyTypeObject *type, const char *name) {
    if (PyObject_TypeCheck(object, type)) {
        return true;
    }
    PyErr_Format(PyExc_TypeError, "%s must be %s, not %s", name, type->tp_name, Py_TYPE(object)->tp_name);
    return false;
}

#endif
