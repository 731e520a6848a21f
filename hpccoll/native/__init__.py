"""The native extension, which executes programs in host memory; see docs/runtime.md.

Start reading in interpreter.h, then waits.h; the types for Python are in the files *_types.c, staged_call.c and
call_table.c. messages.h, progress.h, node_run.h and pipeline.h are about operations in flight. compiler.py compiles the
extension; loading.py finds out whether that has to be done.
"""

from hpccoll.native.loading import require_extension

require_extension()

from hpccoll.native._extension import (  # noqa: E402 - the import above explains a missing or outdated extension
    REMOTE_TILE_BYTES,
    ArrivalCounter,
    CallCounter,
    CallTable,
    DirectCall,
    EntryRing,
    MemoryTable,
    MessageCall,
    MessageRun,
    Messenger,
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
    StagedCall,
    StartedMessage,
    configure_progress,
    exit_after,
    set_polling,
    stop_progress,
)

__all__ = [
    "REMOTE_TILE_BYTES",
    "ArrivalCounter",
    "CallCounter",
    "CallTable",
    "DirectCall",
    "EntryRing",
    "MemoryTable",
    "MessageCall",
    "MessageRun",
    "Messenger",
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
    "StagedCall",
    "StartedMessage",
    "configure_progress",
    "exit_after",
    "set_polling",
    "stop_progress",
]
