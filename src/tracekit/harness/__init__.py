"""Recording and replaying without patching: pass the agent clients that record, or that replay.

Example::

    from tracekit.harness import ReplayLLMClient, ReplayTraceWriter, TracedLLMClient, TraceIndex, TraceWriter,
    load_trace

    with TraceWriter() as writer:                                   # a run in the store, as `record()` creates one
        agent(TracedLLMClient(llm, writer, model_id="m-1"), writer)

    with TraceIndex(load_trace(writer.run_id)) as index:            # nothing live, nothing written
        agent(ReplayLLMClient(index, model_id="m-1"), ReplayTraceWriter(index))

The files are those of ``tracekit.record``: one format, one hash chain, the same sessions. ``tracekit list``, ``show``
and ``verify`` read them; divergence and exhaustion are the same errors. Only calls through these clients are captured,
not clocks, random numbers and other calls.
"""

from __future__ import annotations

from .clients import ReplayLLMClient, ReplayToolClient, TracedLLMClient, TracedToolClient
from .importing import import_agentloom, import_cassette
from .index import ReplayTraceWriter, TraceEvent, TraceEvents, TraceIndex, load_trace
from .writer import Line, TraceWriter

__all__ = [
    "Line",
    "ReplayLLMClient",
    "ReplayToolClient",
    "ReplayTraceWriter",
    "TraceEvent",
    "TraceEvents",
    "TraceIndex",
    "TraceWriter",
    "TracedLLMClient",
    "TracedToolClient",
    "import_agentloom",
    "import_cassette",
    "load_trace",
]
