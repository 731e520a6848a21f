// The module hpccoll.native._extension.
#include "call_trace.h"

#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST ""
#endif

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_extension",
    .m_doc = "Executes programs in host memory.",
    .m_size = -1,
    .m_methods = progress_functions,
};

PyMODINIT_FUNC PyInit__extension(void) {
    PyTypeObject *types[] = {&ReducerType,   &MemoryTableType, &ProgramType,    &ArrivalCounterType, &NodeBarrierType,
                             &EntryRingType, &CallCounterType, &HostCallType, &StagedCallType, &CallTableType, &TableMethodType, &MpiFunctionsType,
                             &MpiCallType, &MessageCallType, &MessageRunType, &PeersType, &DirectCallType, &QueuedRunType, &NodeRunType,
                             &SharedBuffersType, &SegmentsType, &PipelineCallType, &PipelineRunType, &MessengerType, &StartedMessageType,
                             &SmallObjectsType, &CallTraceType, &TracedCallType};
    PyObject *module = PyModule_Create(&definition);
    for (size_t i = 0; module && i < sizeof types / sizeof *types; i++) {
        if (PyModule_AddType(module, types[i])) {
            Py_CLEAR(module);
        }
    }
    if (module && (PyModule_AddFunctions(module, exit_functions) || PyModule_AddFunctions(module, revocation_functions) || PyModule_AddFunctions(module, trace_functions) ||
                   PyModule_AddIntConstant(module, "REMOTE_TILE_BYTES", REMOTE_TILE_BYTES) ||
                   PyModule_AddStringConstant(module, "SOURCE_DIGEST", SOURCE_DIGEST))) {
        Py_CLEAR(module);
    }
    return module;
}
