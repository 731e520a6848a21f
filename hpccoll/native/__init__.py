"""The native extension, which executes programs in host memory; see docs/runtime.md.

Start reading in interpreter.h, then waits.h. The types for Python are in the files *_types.c, *_call.c, call_table.c
and shared_buffers.c. messages.h, progress.h, node_run.h and pipeline.h are about operations in flight. compiler.py
compiles the extension; loading.py finds out whether that has to be done.
"""

from hpccoll.native.loading import require_extension

require_extension()

from hpccoll.native._extension import (  # noqa: E402 - the import above explains a missing or outdated extension
    REMOTE_TILE_BYTES,
    ArrivalCounter,
    CallCounter,
    CallTable,
    CallTrace,
    DirectCall,
    EntryRing,
    HostCall,
    MemoryTable,
    MessageCall,
    MessageRun,
    Messenger,
    MpiCall,
    MpiFunctions,
    NodeBarrier,
    NodeRun,
    Peers,
    PipelineCall,
    PipelineRun,
    Program,
    QueuedRun,
    Reducer,
    Segments,
    SharedBuffers,
    SmallObjects,
    StagedCall,
    StartedMessage,
    TracedCall,
    configure_progress,
    exit_after,
    guard_revocation,
    replace_attribute,
    set_polling,
    stop_progress,
)

__all__ = [
    "REMOTE_TILE_BYTES",
    "ArrivalCounter",
    "CallCounter",
    "CallTable",
    "CallTrace",
    "DirectCall",
    "EntryRing",
    "HostCall",
    "MemoryTable",
    "MessageCall",
    "MessageRun",
    "Messenger",
    "MpiCall",
    "MpiFunctions",
    "NodeBarrier",
    "NodeRun",
    "Peers",
    "PipelineCall",
    "PipelineRun",
    "Program",
    "QueuedRun",
    "Reducer",
    "Segments",
    "SharedBuffers",
    "SmallObjects",
    "StagedCall",
    "StartedMessage",
    "TracedCall",
    "configure_progress",
    "exit_after",
    "guard_revocation",
    "replace_attribute",
    "set_polling",
    "stop_progress",
]
